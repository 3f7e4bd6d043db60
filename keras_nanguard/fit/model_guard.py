"""What a model carries for the guard: the guarded train functions of its compiled configuration, and whether it is armed."""

import weakref

from .. import backend
from ..step.memory import StepSpec
from .state_watch import StateWatch

_KEY = "_nanguard"  # in the model's `__dict__`, past Keras' tracking: absent from files, copies and pickles


class ModelGuard:
    """What a model carries while, and after, it was guarded: the guarded train functions of its compiled configuration."""

    def __init__(self, model):
        self._model = weakref.ref(model)
        self._functions, self._config = {}, None
        self._plain = None
        self._own_make = None  # a `make_train_function` that someone had put on the model itself
        self.armed = None

    @classmethod
    def of(cls, model):
        if _KEY not in vars(model):
            model.__dict__[_KEY] = cls(model)
        return vars(model)[_KEY]

    @property
    def model(self):
        return self._model()

    def arm(self, session):
        self.armed = session
        if not hasattr(type(self.model), "safe_train_function"):
            placed = vars(self.model).get("make_train_function")
            if placed != self.make_train_function:
                self._own_make = placed
            self.model.__dict__["make_train_function"] = self.make_train_function

    def disarm(self):
        """The model as it was: its own train function, no trace of the guard."""
        model, self.armed = self.model, None
        if vars(model).get("make_train_function") == self.make_train_function:
            del model.__dict__["make_train_function"]
            if self._own_make is not None:
                model.__dict__["make_train_function"] = self._own_make
            model.train_function = self._plain if self._config is model._compile_config else None
        elif hasattr(type(model), "safe_train_function"):
            model.train_function = None

    def make_train_function(self, force=False):
        session, self.armed = self.armed, None
        if session is None or not session.is_of_this_fit():
            self.disarm()
            return self.model.make_train_function(force)
        return self.install(session)

    def install(self, session):
        model = self.model
        if self._config is not model._compile_config:
            self._plain = None
        if not isinstance(model.train_function, _Guarded):
            self._plain = model.train_function
        spec = session.begin()
        model.train_function = _Guarded(session.wrapped(self.function(spec)))

    def make_safe_train_function(self, force):
        """`make_train_function` of a model that is guarded by itself: armed in `fit`, else for `train_on_batch`."""
        session, self.armed = self.armed, None
        if session is not None and session.is_of_this_fit():
            self.install(session)
            return
        model = self.model
        if isinstance(model.train_function, _Batchwise) and self._config is model._compile_config and not force:
            return
        model.train_function = _Batchwise(model, self.function(StepSpec(model.step_guard)))

    def guarded_step(self):
        """The guarded form of `model.train_step(data)`, for a call outside of Keras' loops."""
        model = self.model
        self._forget_other_configurations()
        key = "train_step", model.jit_compile, model.run_eagerly
        if key not in self._functions:
            spec = StepSpec(model.step_guard)
            seam = backend.active()
            self._functions[key] = seam.guarded_step(model, own_train_step(model), spec, seam.Memory(spec))
        return self._functions[key]

    def function(self, spec):
        """The guarded train function for a spec; traced once per compiled configuration."""
        model = self.model
        self._forget_other_configurations()
        key = (spec, model.jit_compile, model.run_eagerly, model.steps_per_execution)
        if key not in self._functions:
            self._functions[key] = backend.active().GuardedFunction(model, own_train_step(model), self._make, spec)
        return self._functions[key]

    def _forget_other_configurations(self):
        config = self.model._compile_config
        if self._config is not config:
            self._functions, self._config = {}, config

    def _make(self, step):
        """Keras' own train function, made of `step`."""
        model = self.model
        before, own_step = model.train_function, vars(model).get("train_step")
        model.__dict__["train_step"] = step
        try:
            if hasattr(model, "keras_make_train_function"):
                model.keras_make_train_function(force=True)
            elif self._own_make is not None:
                self._own_make(force=True)
            else:
                type(model).make_train_function(model, force=True)
            return model.train_function
        finally:
            del model.__dict__["train_step"]
            if own_step is not None:
                model.__dict__["train_step"] = own_step
            model.train_function = before


class _Guarded:
    """Marks the train function that a session put in place."""

    def __init__(self, function):
        self._function = function

    def __call__(self, *args):
        return self._function(*args)


class _Batchwise:
    """The guarded train function outside of `fit`: Keras' own results, nothing more, and a look at the state after each batch."""

    def __init__(self, model, function):
        self._function, self._state = function, StateWatch(model)

    def __call__(self, *args):
        self._state.begin()
        self._function.owner = None
        self._function.memory.begin_epoch()
        result = self._function(*args)
        if self._function.spec.step_guard.skip_nonfinite and not self._state.finite():
            self._state.refuse()
        return self._function.without_added(result)


def own_train_step(model):
    """The train step to keep: the model's, without the guard that `SafeTrainStep` puts round it."""
    return vars(model).get("train_step") or getattr(model, "unguarded_train_step", model.train_step)


def step_guard_of(model):
    """The `StepGuard` of a `SafeModel`, `None` of any other."""
    return getattr(model, "step_guard", None) if hasattr(type(model), "safe_train_function") else None
