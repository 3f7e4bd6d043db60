"""The guarded train function of a model, and the guarded call of `model.train_step`."""

import jax

from .hooks import replaced
from .memory import Memory
from .memory import initial
from .numerics import is_traced
from .step import GuardedStep

PARTS = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


class GuardedFunction:
    """See `keras_nanguard.backend`. The guard's memory is one more part of the state that Keras threads through (and donates to) its step."""

    def __init__(self, model, train_step, make, spec):
        self.spec, self.memory = spec, Memory(spec)
        self.calls = 0
        self.before_first_update = self.owner = None  # Keras builds the model before it trains here
        self._model, self._make = model, make
        self._step = GuardedStep(model, train_step, spec)
        self._function = None

    @property
    def added(self):
        return self._step.added

    @property
    def judged(self):
        return self._step.judged

    def __call__(self, state, iterator):
        if self._function is None:
            # Keras asks the variables where their values are to be, and has taken the values out of them by now
            shardings = jax.tree_util.tree_map(lambda value: value.sharding, (*state, self.memory.values))
            with replaced([(self._model, "_get_state_sharding_spec", lambda: shardings)]):
                self._function = self._make(self._step)
        logs, (*state, self.memory.values) = self._function((*state, self.memory.values), iterator)
        self.calls += 1
        # what `fit` does when this returns, now: so that what looks at the state before it can ask for it
        self._model._jax_state = dict(zip(PARTS, state))
        return logs, tuple(state)

    def logs_of(self, result):
        return result[0]

    def without_added(self, result):
        logs, state = result
        return {name: value for name, value in logs.items() if name not in self.added}, state


def guarded_step(model, train_step, spec, memory):
    """`step(state, data) -> logs, state` for a call outside of `fit`; inside a compiled function of the user's it starts without memory."""
    guarded = GuardedStep(model, train_step, spec)

    def step(state, data):
        traced = is_traced(state, data)
        values = initial(spec) if traced else memory.values
        logs, (*state, values) = guarded((*state, values), data)
        if not traced:
            memory.values = values
        return {name: value for name, value in logs.items() if name not in guarded.added}, tuple(state)

    return step


def buffers(model):
    """Keras lists all there is."""
    return []


def sync(model):
    """The variables hold the current values; while a `fit` runs they are with its step."""
    model.jax_state_sync()


def unsupported(model):
    """Why stock Keras would not run the guarded step."""
    from keras.src.backend.config import is_nnx_enabled

    if is_nnx_enabled() and model.jit_compile and not model.run_eagerly:
        return (
            "With KERAS_NNX_ENABLED Keras compiles the train step of the model's class and passes by one put on the model, which is how it is "
            "guarded. Switch NNX off (keras.config.disable_nnx, or KERAS_NNX_ENABLED=0), or compile with jit_compile=False."
        )
    return None
