"""The guarded update of a hand-written loop, stateless as JAX asks for."""

import functools

import jax.numpy as jnp

from . import hooks
from . import numerics
from .memory import initial as initial_state
from .step import lowered
from .update import Judgement
from .update import Update

FORM = """
    (loss, non_trainable), grads = grad_fn(trainable_variables, non_trainable_variables, x, y)
    outcome, guard_state, trainable_variables, optimizer_variables, non_trainable_variables = guard.stateless_apply(
        guard_state, optimizer_variables, grads, trainable_variables, loss=loss,
        non_trainable_before=non_trainable_variables, non_trainable_after=non_trainable)"""

_judgement = functools.cache(Judgement)  # by spec: compiled once


def prepare(optimizer, model):
    """Nothing has to exist beforehand that the caller does not make."""


def keep(variables):
    raise _stateless("guard.forward() remembers variables")


def context():
    """Eager code and compiled code are the same to a stateless update."""
    return None


def replica():
    return 0


def apply_gradients(spec, memory, optimizer, grads, variables, loss, kept):
    raise _stateless("guard.apply(...) assigns to variables")


def _stateless(what):
    return RuntimeError(f"{what}, and a training step on JAX is a function of its state. Use the stateless form:\n{FORM}")


def stateless_apply(spec, optimizer, guard_state, optimizer_variables, grads, trainable_variables, loss, before, after):
    """Judges the update and gives what holds afterwards.

    Returns:
        (dict with `applied`, `grad_norm`, `loss`; guard state, trainable variables, optimizer variables, non-trainable variables).
    """
    if hooks.is_guarded(optimizer):
        raise RuntimeError(
            f"GradientGuard.stateless_apply runs inside a train step that is guarded already (NanGuardCallback or SafeModel), with the same "
            f"optimizer {optimizer.name!r}. One step can have one guard: call optimizer.stateless_apply there, or leave the other guard out."
        )
    update = Update(optimizer, optimizer.stateless_apply, list(optimizer_variables), list(grads), list(trainable_variables))
    norm, finite = update.norm()
    seen = {
        "loss": numerics.scalar(loss),
        "grad_norm": norm,
        "gradients_finite": finite,
        "state_finite": jnp.logical_not(numerics.newly_bad(list(before), list(after))),
        "learning_rate": update.learning_rate(),
        "loss_scale": update.loss_scale,
    }
    apply, overflow, clip, factor, memory = _judgement(spec)(guard_state, seen, not update.clips_itself)

    def applied(grads):
        trainable, own = update.run(grads)
        return list(trainable), list(own), list(after)

    def refused():
        own = update.optimizer_variables
        return update.trainable_variables, own if update.loss_scale is None else lowered(update, overflow, own), list(before)

    branches = [lambda: applied(update.grads), refused]
    which = jnp.where(apply, 0, 1)
    if factor is not None:
        branches.append(lambda: applied(numerics.clipped(update.grads, factor)))
        which = jnp.where(jnp.logical_and(apply, clip), 2, which)
    trainable, own, non_trainable = numerics.choose(which, branches)
    return {"applied": apply, "grad_norm": norm, "loss": seen["loss"]}, memory, trainable, own, non_trainable
