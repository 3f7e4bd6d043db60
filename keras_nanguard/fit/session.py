"""One `fit`: those of our callbacks that take part in it, and the train function that it runs."""

import sys

import keras

from .. import backend
from ..state import optimizers_of
from ..step.memory import StepSpec
from ..step.memory import initial
from ..step.step_guard import StepGuard
from ..step.step_guard import refuse_two_clips
from .model_guard import ModelGuard
from .model_guard import step_guard_of
from .state_watch import StateWatch

READS_ONLY = (keras.callbacks.TerminateOnNaN, keras.callbacks.History, keras.callbacks.ProgbarLogger)


class FitSession:
    """One `fit` of one model, and those of our callbacks that take part in it.

    Attributes:
        model: the model.
        members: our callbacks, at most one of each `role`.
        driver: the callback that acts for all: the `NanGuardCallback`, else the first that joined.
        function: the guarded train function, from `begin` on.
        late_hooks: whether Keras calls batch hooks on a thread of their own, some batches late.
    """

    def __init__(self, model, callback_list):
        self.model, self._list = model, callback_list
        self._history = getattr(model, "history", None)
        self.members = []
        self.function, self.state = None, StateWatch(model)
        self._checks_each = self.late_hooks = False
        self._mark = object()  # in the function in place of the session, which would keep callbacks and their snapshots alive

    @classmethod
    def join(cls, model, callback):
        """The session of the `fit` that is being set up, with this callback in it; arms the model."""
        if not getattr(model, "compiled", False):
            raise ValueError(
                f"{type(callback).__name__} cannot guard the model {getattr(model, 'name', model)!r}: it has not been compiled. "
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
        refuse_two_clips(guard, optimizers_of(self.model))
        items = None
        if self._list is not None:
            ours = self.driver
            self._list.callbacks.remove(ours)
            self._list.callbacks.insert(0, ours)  # its hooks run before any that could save
            items = [callback for callback in self._list.callbacks if callback not in self.members]
        self.late_hooks = getattr(self._list, "_async_train", False)
        self._checks_each = items is None or any(_has_batch_hooks(callback) for callback in items)
        rows = max(128, 2 * self.model.steps_per_execution)
        return StepSpec(guard, backoff.policy if backoff else None, rows)

    def wrapped(self, function):
        """The train function of this `fit`: the guarded one, and a look at the state before any hook where one could save it."""
        self.function = function
        function.memory.write(initial(function.spec))
        function.calls, function.before_first_update, function.owner = 0, None, self._mark

        def run(*args):
            try:
                result = function(*args)
            except StopIteration:
                raise
            except BaseException as error:
                self.driver.on_fit_error(error)
                raise
            if self._checks_each and not self.state_is_sound():
                self.driver.on_bad_state()
            self.driver.after_execution(function.logs_of(result))
            return result

        return run

    def has_steps(self):
        """Whether the guard's memory holds steps of this `fit`, and not of a later one."""
        function = self.function
        return function is not None and function.owner is self._mark and function.calls > 0

    def state_is_sound(self):
        """Whether the state is finite, or nobody asked for that."""
        return not self.function.spec.step_guard.skip_nonfinite or self.state.finite()

    def own_step_guard(self):
        """The model's own `StepGuard`, else the default one."""
        own = step_guard_of(self.model)
        return own if own is not None else StepGuard()

    def end(self):
        ModelGuard.of(self.model).disarm()


def _has_batch_hooks(callback):
    """Whether a callback may save the model, or anything else, between two batches."""
    if isinstance(callback, READS_ONLY) or getattr(callback, "async_safe", False) or getattr(callback, "save_freq", None) == "epoch":
        return False
    names = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    own = lambda name: getattr(getattr(callback, name), "__func__", getattr(callback, name))
    return any(own(name) is not getattr(keras.callbacks.Callback, name) for name in names)


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
