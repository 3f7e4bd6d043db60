"""The guarded update of a hand-written loop."""

import torch

from ...step.hooks import is_guarded
from ...step.optimizers import build
from . import numerics
from . import processes
from . import writes
from .update import Update
from .update import guarded

FORM = """
    with guard.forward():
        loss = loss_fn(y, model(x, training=True))
    model.zero_grad()
    loss.backward()
    grads = [v.value.grad for v in model.trainable_variables]
    outcome = guard.apply(grads, model.trainable_variables, loss=loss)"""


def prepare(optimizer, model):
    """Nothing has to exist beforehand."""


@torch.compiler.disable
def keep(variables):
    """What the forward pass may write, copied before it."""
    kept = {}
    writes.keep(kept, variables)
    return kept


def context():
    """All code is eager here: a compiled function is left where the guard is called."""
    return None


def replica():
    return 0


def initial_state(spec):
    raise _stateful("guard.initial_state()")


def stateless_apply(*args):
    raise _stateful("guard.stateless_apply(...)")


def _stateful(what):
    return RuntimeError(f"{what} is for JAX, where a step is a function of its state. Here variables are assigned to:\n{FORM}")


@torch.compiler.disable
def apply_gradients(spec, memory, optimizer, grads, variables, loss, kept):
    """Judges the update, carries it out, and puts the kept values back where it was refused; a dict of tensors."""
    if is_guarded(optimizer):
        raise RuntimeError(
            f"GradientGuard.apply runs inside a train step that is guarded already (NanGuardCallback or SafeModel), with the same optimizer "
            f"{optimizer.name!r}. One step can have one guard: call optimizer.apply there, or leave the other guard out."
        )
    build(optimizer, variables)
    update = Update(optimizer, optimizer.apply, list(grads), list(variables))
    kept = kept or {}
    written = [(before, writes.raw(v)) for v, before in kept.values()]
    told = guarded(spec, memory, update, numerics.scalar(loss), written, processes.agreed())
    if not told["applied"]:
        writes.put_back(kept)
    return {name: torch.as_tensor(told[name]) for name in ("applied", "grad_norm", "loss")}
