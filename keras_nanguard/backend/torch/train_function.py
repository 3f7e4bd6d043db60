"""The guarded train function of a model, and the guarded call of `model.train_step`."""

from .memory import Memory
from .step import GuardedStep


class GuardedFunction:
    """See `keras_nanguard.backend`. Keras looks `model.train_step` up at each batch, so the guarded one is there while this runs."""

    def __init__(self, model, train_step, make, spec):
        self.spec, self.memory = spec, Memory(spec)
        self.calls = 0
        self.before_first_update = self.owner = None  # Keras builds the model before it trains here
        self._model, self._make = model, make
        self._step = GuardedStep(model, train_step, spec, self.memory)
        self._function = None

    @property
    def added(self):
        return self._step.added

    @property
    def judged(self):
        return self._step.judged

    def __call__(self, data):
        if self._function is None:
            self._function = self._make(self._step)
        own = self._model.__dict__.get("train_step")
        self._model.__dict__["train_step"] = self._step
        try:
            logs = self._function(data)
        finally:
            if own is None:
                del self._model.__dict__["train_step"]
            else:
                self._model.__dict__["train_step"] = own
        self.calls += 1
        return logs

    def logs_of(self, logs):
        return logs

    def without_added(self, logs):
        return without(logs, self.added)


def guarded_step(model, train_step, spec, memory):
    """`step(data) -> logs` for a call outside of `fit`."""
    guarded = GuardedStep(model, train_step, spec, memory)
    return lambda data: without(guarded(data), guarded.added)


def without(logs, keys):
    return {name: value for name, value in logs.items() if name not in keys}


def sync(model):
    """The variables always hold the current values here."""


def unsupported(model):
    """Keras says itself what it cannot train here."""
    return None
