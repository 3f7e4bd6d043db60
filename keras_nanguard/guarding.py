"""How a model's `fit` comes to run the guarded step: armed before it, consumed by it, gone after it.

Keras makes the train function between building its list of callbacks and `on_train_begin`, and keeps it. A callback's
`set_model` therefore only *arms* the model; the next `make_train_function` consumes the arm and puts a guarded train
function in place, made once per compiled configuration. Any later call without an arm takes everything off again. No
hook is needed for that, because a `fit` that raises calls none.
"""

import sys
import weakref

import keras

from . import backend
from .errors import NonFiniteTrainingError
from .snapshots import training_state
from .state import leaf_optimizers
from .state import optimizers_of
from .state import variable_name
from .step.memory import StepSpec
from .step.memory import initial
from .step.step_guard import StepGuard

_KEY = "_nanguard"  # in the model's `__dict__`, past Keras' tracking: absent from files, copies and pickles
READS_ONLY = (keras.callbacks.TerminateOnNaN, keras.callbacks.History, keras.callbacks.ProgbarLogger)


class ModelGuard:
    """What a model carries while, and after, it was guarded: the guarded train functions of its compiled configuration."""

    def __init__(self, model):
        self._model = weakref.ref(model)
        self._functions, self._config = {}, None
        self._plain = None
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
            self.model.__dict__["make_train_function"] = self.make_train_function

    def disarm(self):
        """The model as it was: its own train function, no trace of the guard."""
        model, self.armed = self.model, None
        if model.__dict__.pop("make_train_function", None) is not None:
            model.train_function = self._plain if self._config is model._compile_config else None
        elif hasattr(type(model), "safe_train_function"):
            model.train_function = None

    def make_train_function(self, force=False):
        session, self.armed = self.armed, None
        if session is None or not session.is_of_this_fit():
            self.disarm()
            return type(self.model).make_train_function(self.model, force)
        return self.install(session)

    def install(self, session):
        model = self.model
        if self._config is not model._compile_config:
            self._functions, self._plain = {}, None
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
        before = model.train_function
        model.__dict__["train_step"] = step
        try:
            maker = getattr(type(model), "keras_make_train_function", type(model).make_train_function)
            maker(model, force=True)
            return model.train_function
        finally:
            del model.__dict__["train_step"]
            model.train_function = before


class _Guarded:
    """Marks the train function that a session put in place."""

    def __init__(self, function):
        self._function = function

    def __call__(self, iterator):
        return self._function(iterator)


class _Batchwise:
    """The guarded train function outside of `fit`: Keras' own results, nothing more, and a look at the state after each batch."""

    def __init__(self, model, function):
        self._function, self._state = function, StateWatch(model)

    def __call__(self, iterator):
        self._state.begin()
        self._function.memory.begin_epoch()
        logs = self._function(iterator)
        if not self._state.finite():
            self._state.refuse()
        return {name: value for name, value in logs.items() if name not in self._function.added}


class StateWatch:
    """Whether the training state is finite; what was not from the start is known and not looked at."""

    def __init__(self, model):
        self._model, self._check, self.known = model, None, set()

    def begin(self):
        """Before the first step, where the variables exist already. Returns the names of those that are not finite."""
        if self._check is not None or not (self._model.built and self._model.optimizer.built):
            return []
        self._look_at(self._variables())
        if self._check():
            return []
        names = self._check.names()
        self.known = set(names)
        self._look_at([v for v in self._variables() if variable_name(v) not in self.known])
        return names

    def _variables(self):
        return training_state(self._model)

    def _look_at(self, variables):
        self._check = backend.active().StateCheck(variables)

    def finite(self):
        if self._check is None:
            self._look_at(self._variables())
        return self._check()

    def names(self):
        return self._check.names()

    def refuse(self, report=None):
        """Raised where nothing is kept to go back to."""
        names = self.names()
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise NonFiniteTrainingError(
            f"Finite gradients were turned into values that are not finite by the optimizer's update: {shown}. No copy was kept. "
            "Lower the learning rate (or look for an infinite schedule, or an epsilon that is 0 in float16), and add "
            "keras_nanguard.NanGuardCallback() to the callbacks of fit: it keeps the last good weights and puts them back.",
            report,
        )


def own_train_step(model):
    """The train step to keep: the model's, without the guard that `SafeTrainStep` puts round it."""
    return getattr(model, "unguarded_train_step", model.train_step)


def step_guard_of(model):
    """The `StepGuard` of a `SafeModel`, `None` of any other."""
    return getattr(model, "step_guard", None) if hasattr(type(model), "safe_train_function") else None


def _has_batch_hooks(callback):
    """Whether a callback may save the model, or anything else, between two batches."""
    if isinstance(callback, READS_ONLY) or getattr(callback, "async_safe", False) or getattr(callback, "save_freq", None) == "epoch":
        return False
    names = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    own = lambda name: getattr(getattr(callback, name), "__func__", getattr(callback, name))
    return any(own(name) is not getattr(keras.callbacks.Callback, name) for name in names)


class FitSession:
    """One `fit` of one model, and those of our callbacks that take part in it.

    Attributes:
        model: the model.
        members: our callbacks, at most one of each `role`.
        driver: the callback that acts for all: the `NanGuardCallback`, else the first that joined.
        function: the guarded train function, from `begin` on.
    """

    def __init__(self, model, callback_list):
        self.model, self._list = model, callback_list
        self._history = getattr(model, "history", None)
        self.members = []
        self.function, self.state = None, StateWatch(model)
        self._checks_each = False

    @classmethod
    def join(cls, model, callback):
        """The session of the `fit` that is being set up, with this callback in it; arms the model."""
        reason = None if getattr(model, "compiled", False) else "it has not been compiled"
        if reason:
            raise ValueError(
                f"{type(callback).__name__} cannot guard the model {getattr(model, 'name', model)!r}: {reason}. "
                "Call model.compile(optimizer, loss) before the callback is given a model."
            )
        guard = ModelGuard.of(model)
        found = _enclosing_list(callback)
        session = guard.armed
        if session is None or session._list is not found or not session.is_of_this_fit():
            session = cls(model, found)
        session._add(callback)
        guard.arm(session)
        return session

    def _add(self, callback):
        if any(member.role == callback.role for member in self.members):
            name = type(callback).__name__
            raise ValueError(f"`callbacks` holds {name} twice; one serves the whole fit. Leave one {name} in the list.")
        self.members.append(callback)

    def is_of_this_fit(self):
        return self._history is getattr(self.model, "history", None)

    def member(self, role):
        return next((member for member in self.members if member.role == role), None)

    @property
    def driver(self):
        return self.member("nan_guard") or self.members[0]

    def begin(self):
        """Called where Keras makes the train function: every callback has joined by now. Returns the spec."""
        why = backend.active().unsupported(self.model)
        if why:
            raise ValueError(why)
        guard, backoff = self.driver.chosen_step_guard(), self.member("backoff")
        check_clipnorm(guard, self.model)
        items = None
        if self._list is not None:
            ours = self.driver
            self._list.callbacks.remove(ours)
            self._list.callbacks.insert(0, ours)  # its hooks run before any that could save
            items = [callback for callback in self._list.callbacks if callback not in self.members]
        self._checks_each = items is None or any(_has_batch_hooks(callback) for callback in items)
        rows = max(128, 2 * self.model.steps_per_execution)
        return StepSpec(guard, backoff.policy if backoff else None, rows)

    def wrapped(self, function):
        """The train function of this `fit`: the guarded one, and a look at the state before any hook where one could save it."""
        self.function = function
        function.memory.write(initial(function.spec))
        function.calls = 0

        def run(iterator):
            try:
                logs = function(iterator)
            except StopIteration:
                raise
            except BaseException as error:
                self.driver.on_fit_error(error)
                raise
            if self._checks_each and not self.state.finite():
                self.driver.on_bad_state()
            return logs

        return run

    def own_step_guard(self):
        """The model's own `StepGuard`, else the default one."""
        own = step_guard_of(self.model)
        return own if own is not None else StepGuard()

    def end(self):
        ModelGuard.of(self.model).disarm()


def check_clipnorm(guard, model):
    """A number in both places is an error."""
    check_clipnorm_of(guard, optimizers_of(model))


def check_clipnorm_of(guard, optimizers):
    if not isinstance(guard.global_clipnorm, float):
        return
    for optimizer in optimizers:
        for leaf in leaf_optimizers(optimizer):
            for name in ("clipnorm", "clipvalue", "global_clipnorm"):
                if getattr(leaf, name):
                    raise ValueError(
                        f"The gradients would be clipped twice: StepGuard(global_clipnorm={guard.global_clipnorm}) and "
                        f"{type(leaf).__name__}({name}={getattr(leaf, name)}). Give the number in one place: leave {name} out of the "
                        'optimizer, or use StepGuard(global_clipnorm="adaptive") or None.'
                    )


def _enclosing_list(callback):
    """The `CallbackList` that is handing out the model, found on the call stack: Keras tells a callback of no other."""
    frame = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return None
        holder = frame.f_locals.get("self")
        if isinstance(holder, keras.callbacks.CallbackList) and any(item is callback for item in holder.callbacks):
            return holder
        frame = frame.f_back
    return None
