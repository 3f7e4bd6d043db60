"""Keeping and restoring a training state: a copy in host memory, verified before it is kept."""

import keras
import numpy as np

from . import backend
from . import state


class Snapshot:
    """Everything that `fit` changes, copied: weights, moving statistics, seeds, states, slots, counters.

    Left out are the learning-rate variables, which going back must not raise again, and the metrics, which belong to
    an epoch and are reset instead.

    Args:
        model: a built, compiled model.
        known: names of variables that were not finite from the start and are not expected to be.
    """

    def __init__(self, model, known=()):
        backend.active().sync(model)
        self._model = model
        self._kept = [(v, _copied(v.numpy())) for v in training_state(model)]
        self.bad = [
            state.variable_name(v) for v, value in self._kept if state.variable_name(v) not in known and _is_float(v) and not np.isfinite(value).all()
        ]

    @property
    def finite(self):
        return not self.bad

    def restore(self):
        backend.active().sync(self._model)
        for variable, value in self._kept:
            variable.assign(value)
        for metric in self._model.metrics:
            metric.reset_state()


def training_state(model):
    """The variables that a snapshot holds and a check of the state looks at."""
    left_out = {id(v) for metric in model.metrics for v in metric.variables}
    left_out |= {id(v) for v in state.learning_rate_variables(model)}
    return [v for v in state.forward_state(model) + state.optimizer_state(model) if id(v) not in left_out]


def _copied(array):
    """By value: what a framework hands out may be its own memory, which the next step writes to."""
    return array if array.flags.owndata else np.array(array)


def _is_float(variable):
    return "float" in keras.backend.standardize_dtype(variable.dtype)
