"""The guard's memory on torch: numpy arrays, since the verdict is taken on the host."""

from ...step import memory as layout


class Memory:
    """Holds the arrays between two steps.

    Attributes:
        values: name -> array.
        last_logs: name -> float: the logs of the last accepted step of the epoch, for a train step whose logs are no metrics.
    """

    def __init__(self, spec):
        self.values, self.last_logs = layout.initial(spec), {}

    def read(self):
        return {name: value.copy() for name, value in self.values.items()}

    def write(self, values):
        self.values = {**self.values, **{name: value.copy() for name, value in values.items()}}

    def store(self, change):
        self.values = layout.stored(self.values, change)

    def begin_epoch(self):
        self.values, self.last_logs = layout.epoch_begun(self.values), {}
