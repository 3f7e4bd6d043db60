"""The guarded update of a hand-written loop."""

import contextlib

import tensorflow as tf

from ...step.hooks import is_guarded
from ...step.optimizers import build
from . import numerics
from . import strategy as distribution
from .update import Undo
from .update import Update
from .update import guarded

FORM = """
    with tf.GradientTape() as tape:
        with guard.forward():
            loss = loss_fn(y, model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    outcome = guard.apply(grads, model.trainable_variables, loss=loss)"""


def prepare(optimizer, model):
    """Under a strategy the optimizer's variables have to exist before a replica's code is traced."""
    if distribution.replicas() > 1:
        build(optimizer, model.trainable_variables)


def keep(variables):
    """What the forward pass may write, read before it: (variable, value) pairs, of this replica."""
    return [(variable, numerics.raw(variable).read_value()) for variable in variables]


def context():
    """What `keep` and `apply_gradients` of one step must have in common: the graph they are traced in, `None` in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def replica():
    """The number of the replica that this code runs for."""
    here = tf.distribute.get_replica_context()
    return 0 if here is None else here._replica_id


def initial_state(spec):
    raise _stateful("guard.initial_state()")


def stateless_apply(*args):
    raise _stateful("guard.stateless_apply(...)")


def _stateful(what):
    return RuntimeError(f"{what} is for JAX, where a step is a function of its state. Here variables are assigned to:\n{FORM}")


def apply_gradients(spec, memory, optimizer, grads, variables, loss, kept):
    """Judges the update, carries it out, and puts the kept values back where it was refused; a dict of tensors."""
    if is_guarded(optimizer):
        raise RuntimeError(
            f"GradientGuard.apply runs inside a train step that is guarded already (NanGuardCallback or SafeModel), with the same optimizer "
            f"{optimizer.name!r}. One step can have one guard: call optimizer.apply there, or leave the other guard out."
        )
    build(optimizer, variables)
    update = Update(optimizer, optimizer.apply, list(grads), list(variables))
    written = [value for value in (numerics.raw(v).read_value() for v, _ in kept) if value.dtype.is_floating]
    with distribution.OneReduction([optimizer]) if distribution.replicas() > 1 else contextlib.nullcontext():
        return guarded(spec, memory, update, numerics.scalar(loss), written, Undo(kept))[0]
