"""The guard's memory as TensorFlow variables, outside of the model: absent from weights, summaries and files."""

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from ...step import memory as layout


class Memory:
    """One variable per entry of `step.memory.initial`; plain variables also under a strategy, where one decision is taken for all replicas."""

    def __init__(self, spec):
        self._variables = {name: _variable(value, name) for name, value in layout.initial(spec).items()}
        self._scratch = {}

    def tensors(self):
        return {name: variable.read_value() for name, variable in self._variables.items()}

    def store(self, before, change):
        """What `step.memory.stored` says, in place; `before` are the `tensors()` that the change was made from."""
        counts = dict(zip(layout.COUNTS, tf.unstack(before["counts"])))
        for name, part, count in layout.PLACES:
            if part in change:
                filled = self._variables[name]
                place = tf.math.floormod(counts[count], filled.shape[0])
                tf.raw_ops.ResourceScatterUpdate(resource=filled.handle, indices=place, updates=change[part])
        self.write({name: value for name, value in change.items() if name in self._variables})

    def learning_rate_scale(self):
        return self._variables["lr_scale"].read_value()

    @property
    def variables(self):
        return [*self._variables.values(), *self._scratch.values()]

    def read(self):
        return {name: variable.numpy() for name, variable in self._variables.items()}

    def write(self, values):
        for name, value in values.items():
            self._variables[name].assign(value, read_value=False)

    def begin_epoch(self):
        self.write(layout.epoch_begun({name: self._variables[name].numpy() for name in ("counts", "epoch_norm")}))
        for name in self._scratch:
            if name != "added":
                self._scratch[name].assign(tf.fill(self._scratch[name].shape, float("nan")))

    # what a step needs only for itself

    def start_adding(self):
        self._made("added", 3).assign(tf.zeros(3))

    def add(self, values):
        self._made("added", 3).assign_add(values)

    def added(self):
        return self._made("added", 3).read_value()

    def last_logs(self, size):
        """The logs of the last accepted step, for a train step whose logs are not the model's metrics; NaN before."""
        return self._made(f"last_{size}_logs", size)

    def _made(self, name, size):
        if name not in self._scratch:
            self._scratch[name] = _variable(np.full(size, np.nan, "float32"), name)
        return self._scratch[name]


def _variable(value, name):
    # the class itself: `tf.Variable` inside a strategy's scope would make one variable per replica
    with tf.init_scope():
        return resource_variable_ops.ResourceVariable(value, trainable=False, name=f"nanguard_{name}")
