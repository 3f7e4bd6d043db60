"""`GradientGuard`: the guarded update for a loop, or a `train_step`, written by hand."""

import contextlib
import threading
import typing
import weakref

import keras
import numpy as np

from .. import backend
from .. import state
from ..errors import NonFiniteTrainingError
from ..report import Recorder
from ..report import StepRecord
from ..report.wording import some
from ..versions import versions
from . import memory as layout
from .step_guard import StepGuard
from .step_guard import refuse_two_clips
from .step_guard import step_guard_or_error

_OWNER = "_nanguard_owner"  # in the optimizer's `__dict__`: the guard that has it


class Outcome(typing.NamedTuple):
    """What became of a step; tensors.

    Attributes:
        applied: bool scalar, whether the optimizer ran.
        grad_norm: float32 scalar, global L2 norm of the unscaled gradients before clipping, summed over the replicas.
        loss: float32 scalar, the loss as judged.
    """

    applied: object
    grad_norm: object
    loss: object


class GradientGuard:
    """Skips, clips and records the updates of a hand-written loop, as `SafeModel` does those of `fit`.

    Call `apply` in place of `optimizer.apply`: in eager code, in a `tf.function`, under a `tf.distribute` strategy. With `model`, and the
    forward pass inside `with guard.forward():`, what the forward pass writes (the moving statistics of BatchNormalization, seeds,
    states of stateful layers) is put back too when a step is refused; without `model` only what passes the optimizer is
    protected. `forward` and `apply` belong in the same function: both in eager code (a compiled function that computes the
    gradients may lie between them), or both in one `tf.function`.

    Args:
        optimizer: a Keras optimizer; a `LossScaleOptimizer` too (scale the loss with `optimizer.scale_loss` as usual and
            give the unscaled one to `apply`).
        model: a built model, or `None` (default).
        step_guard: a `StepGuard`; `None` (default) is `StepGuard()`.

    Raises:
        TypeError: if an argument is of the wrong kind.
        ValueError: if the model is not built, or the optimizer is guarded already.

    Example:

    >>> guard = GradientGuard(optimizer, model)
    >>> for x, y in batches:
    ...     with tf.GradientTape() as tape:
    ...         with guard.forward():
    ...             loss = loss_fn(y, model(x, training=True))
    ...     grads = tape.gradient(loss, model.trainable_variables)
    ...     outcome = guard.apply(grads, model.trainable_variables, loss=loss)
    >>> print(guard.report())
    """

    def __init__(self, optimizer, model=None, *, step_guard=None):
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                "GradientGuard takes a Keras optimizer, such as keras.optimizers.Adam(). "
                f"Received: optimizer={optimizer!r} (of type {type(optimizer).__name__})"
            )
        if model is not None and not isinstance(model, keras.Layer):
            raise TypeError(f"`model` must be a Keras model or layer, or None. Received: model={model!r}")
        if model is not None and not model.built:
            raise ValueError(
                f"The model {model.name!r} has no variables yet, so there is nothing to keep. Build it first: model.build(input_shape), or "
                "call it once on a batch; then make the GradientGuard."
            )
        owner = vars(optimizer).get(_OWNER)
        if owner is not None and owner() is not None:
            raise ValueError(
                f"The optimizer {optimizer.name!r} is guarded already, by another GradientGuard. Use that one, or make a new optimizer."
            )
        guard = StepGuard() if step_guard is None else step_guard_or_error(step_guard)
        refuse_two_clips(guard, [optimizer])
        optimizer.__dict__[_OWNER] = weakref.ref(self)
        self._backend = backend.active()
        if model is not None:
            self._backend.prepare(optimizer, model)
        self._optimizer, self._model = optimizer, model
        self._spec = layout.StepSpec(guard)
        self._memory = self._backend.Memory(self._spec)
        self._kept, self._lock = {}, threading.Lock()
        self._recorder = Recorder(settings={"step_guard": guard.get_config()}, versions=versions())
        self._examined, self._check, self._variables = 0, None, []

    @contextlib.contextmanager
    def forward(self):
        """Remembers what the forward pass inside the block may write, for the next `apply`. Needs `model`."""
        if self._model is None:
            raise ValueError("guard.forward() keeps what the forward pass of a model writes: GradientGuard(optimizer, model).")
        here = self._backend.context(), self._backend.replica()
        with self._lock:
            pending = self._kept.get(here[1])
            if pending is None or pending[0] is not here[0]:  # of two before one `apply`, the first counts
                self._kept[here[1]] = here[0], self._backend.keep(self._written_by_forward())
        yield

    def _written_by_forward(self):
        trainable = {id(v) for v in self._model.trainable_variables}
        return [v for v in state.forward_state(self._model) if id(v) not in trainable]

    def apply(self, grads, trainable_variables, *, loss):
        """Judges the step, then runs the optimizer's update or leaves everything as it was.

        Args:
            grads: list of gradients (dense, `IndexedSlices`, `None`), as they come from the tape.
            trainable_variables: list of the variables they belong to.
            loss: scalar, the loss of the step; of this replica, where there are several.

        Returns:
            `Outcome`.

        Raises:
            RuntimeError: where `forward` is missing or belongs to another function.
            NonFiniteTrainingError: in eager code, where an earlier update has made the weights themselves non-finite.
        """
        grads, variables = list(grads), list(trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(f"Each gradient needs its variable. Received: {len(grads)} gradients and {len(variables)} variables.")
        self._variables = variables
        told = self._backend.apply_gradients(self._spec, self._memory, self._optimizer, grads, variables, loss, self._taken())
        if self._backend.context() is None and not bool(told["applied"]):
            self._refused()
        return Outcome(told["applied"], told["grad_norm"], told["loss"])

    def initial_state(self):
        """The guard's own state before the first step, for `stateless_apply`: a dict of arrays.

        Raises:
            RuntimeError: on TensorFlow and torch, where `apply` is the form.
        """
        return self._backend.initial_state(self._spec)

    def stateless_apply(
        self, guard_state, optimizer_variables, grads, trainable_variables, *, loss, non_trainable_before=(), non_trainable_after=()
    ):
        """`apply` for JAX, where a step is a function of its state; to be called in eager code or inside `jax.jit`.

        Args:
            guard_state: from `initial_state()`, then what the last call returned.
            optimizer_variables: list of arrays, the values of `optimizer.variables`; the optimizer must be built.
            grads: list of arrays, as `jax.grad` gives them.
            trainable_variables: list of arrays.
            loss: scalar, the loss of the step.
            non_trainable_before, non_trainable_after: lists of arrays, the values of `model.non_trainable_variables` before the
                forward pass and as it returned them; by default empty.

        Returns:
            `(outcome, guard_state, trainable_variables, optimizer_variables, non_trainable_variables)`, all to be passed on.

        Raises:
            RuntimeError: on TensorFlow and torch, where `apply` is the form.
            ValueError: if the two lists of non-trainable variables differ in length.

        Example:

        >>> (loss, written), grads = grad_fn(trainable, non_trainable, x, y)
        >>> outcome, guard_state, trainable, own, non_trainable = guard.stateless_apply(
        ...     guard_state, own, grads, trainable, loss=loss, non_trainable_before=non_trainable, non_trainable_after=written)
        """
        if len(non_trainable_before) != len(non_trainable_after):
            raise ValueError(
                "`non_trainable_before` and `non_trainable_after` are the same variables before and after the forward pass. "
                f"Received: {len(non_trainable_before)} and {len(non_trainable_after)} arrays."
            )
        told, *state = self._backend.stateless_apply(
            self._spec,
            self._optimizer,
            guard_state,
            optimizer_variables,
            grads,
            trainable_variables,
            loss,
            non_trainable_before,
            non_trainable_after,
        )
        return Outcome(told["applied"], told["grad_norm"], told["loss"]), *state

    def _taken(self):
        """What `forward` kept for this step."""
        if self._model is None:
            return []
        here = self._backend.context()
        with self._lock:
            pending = self._kept.pop(self._backend.replica(), None)
        if pending is not None and pending[0] is here:
            return pending[1]
        if pending is None and not self._written_by_forward():
            return []
        what = "there was no guard.forward() before" if pending is None else "guard.forward() ran in another function than"
        raise RuntimeError(
            f"GradientGuard has a model whose forward pass writes state, and {what} guard.apply(). Put both into the same function, "
            f"either both in eager code or both in one compiled function:\n{self._backend.FORM}"
        )

    def _refused(self):
        self._collect()
        told = self._lost()
        if told:
            raise NonFiniteTrainingError(told, self._recorder.build())

    def _lost(self):
        """A sentence where the weights themselves are no longer finite, or never were; else nothing."""
        if self._check is None:
            self._check = self._backend.StateCheck([*self._variables, *self._optimizer.variables])
        if self._check():
            return ""
        return (
            f"The weights or the optimizer's state are not finite: {some(self._check.names())}. They were so from the start, or an "
            "earlier update made them so of finite gradients. No copy was kept: lower the learning rate, and keep snapshots of your own."
        )

    def _collect(self, guard_state=None):
        memory = self._memory.read() if guard_state is None else {name: np.array(value) for name, value in guard_state.items()}
        for row in layout.rows(memory, self._examined):
            if row.outcome in ("skipped", "passed"):
                self._recorder.add_incident(**row.incident(), step=row.step)
        self._examined = layout.counts(memory)["steps"]
        self._recorder.set_totals(**layout.totals(memory))
        self._recorder.set_steps([StepRecord.from_row(row) for row in layout.rows(memory)])

    def report(self, guard_state=None):
        """The `RunReport` so far; after `stateless_apply` give it the guard state that the last call returned. In compiled loops call it at least once in 128 steps for each skipped step to be listed.

        Where steps were refused because the weights themselves are not finite, it says so in a note: in compiled code nothing
        can be raised.
        """
        self._collect(guard_state)
        built = self._recorder.build()
        told = self._lost() if self._variables and built.totals["skipped"] else ""
        if told and self._recorder.add_note(told):
            built = self._recorder.build()
        return built
