"""Keeping and restoring a training state: a copy in host memory."""

from . import backend
from . import state


class Snapshot:
    """Everything that `fit` changes, copied: weights, moving statistics, seeds, states, slots, counters.

    Left out are the learning-rate variables, which going back must not raise again, and the metrics, which belong to
    an epoch and are reset instead.

    Args:
        model: a built, compiled model.
    """

    def __init__(self, model):
        self._backend = backend.active()
        self._backend.sync(model)
        self._model = model
        self._kept = [(v, self._backend.host_copy(v)) for v in training_state(model)]

    def restore(self):
        self._backend.sync(self._model)
        for variable, value in self._kept:
            self._backend.put_back(variable, value)
        for metric in self._model.metrics:
            metric.reset_state()


def training_state(model):
    """The variables that a snapshot holds and a check of the state looks at."""
    left_out = {id(v) for metric in model.metrics for v in metric.variables}
    left_out |= {id(v) for v in state.learning_rate_variables(model)}
    return [v for v in state.forward_state(model) + state.optimizer_state(model) if id(v) not in left_out]
