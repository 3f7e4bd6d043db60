"""The guarded update: the verdict is taken on the host, then the optimizer runs, the loss scale is lowered, or nothing happens."""

import numpy as np
import torch

from ...step import memory as layout
from ...step import optimizers
from ...step import update as updates
from ...step.judge import Seen
from ...step.judge import accept
from ...step.judge import judge
from ...step.judge import unremarkable
from . import numerics


class Update(updates.Update):
    """On torch."""

    @property
    def loss_scale(self):
        """A dynamic loss scale as a scalar tensor, else `None`."""
        if optimizers.has_loss_scale(self.optimizer):
            return self.optimizer.dynamic_scale.value.detach()
        return None

    def look(self):
        """What is seen of it, as tensors: (norm of the scaled gradients, divisor, learning rate)."""
        return numerics.total_norm(self.present), self.divisor(), learning_rate(self.optimizer)

    def divisor(self):
        """What the gradients are too large by."""
        scale = self.loss_scale
        return torch.as_tensor(optimizers.fixed_scale(self.optimizer) or 1.0) if scale is None else scale

    def survives_own_clips(self):
        """Whether the squares that a clip by norm adds up stay finite, in the gradients' own dtype, accumulated ones included."""
        if not optimizers.clips_by_norm(self.optimizer):
            return True
        squares, divisor = torch.zeros(()), self.divisor()
        for gradient, variable in zip(self.grads, self.variables):
            if gradient is None:
                continue
            values = numerics.values_of(gradient)
            values = values / divisor.to(values)
            held = optimizers.accumulated(self.optimizer, variable)
            if held is not None and not gradient.is_sparse:
                values = (values + held[0].value) / held[1]
            squares = squares + torch.sum(torch.square(values)).float()
        return bool(torch.isfinite(squares))


def learning_rate(optimizer):
    """Scalar; NaN where it cannot be read."""
    leaf = optimizers.readable_learning_rate(optimizer)
    rate = float("nan") if leaf is None else leaf.learning_rate
    return torch.as_tensor(getattr(rate, "value", rate)).detach()


def lower_loss_scale(optimizer):
    """What Keras does after an overflow, with a floor of 1."""
    optimizer.step_counter.assign(0)
    optimizer.dynamic_scale.assign(torch.clamp(optimizer.dynamic_scale.value * 0.5, min=1.0))


def seen_of(update, loss, norm, scale, rate, **others):
    """`Seen` of an update, from numpy scalars."""
    return Seen(
        loss=loss,
        grad_norm=norm / scale,
        learning_rate=rate,
        loss_scale=scale if optimizers.has_loss_scale(update.optimizer) else None,
        may_clip=not optimizers.clips_itself(update.optimizer),
        **others,
    )


@torch.no_grad()
def guarded(spec, memory, update, loss, written, agreed=None):
    """Judges an update and carries it out.

    Args:
        update: `Update`.
        loss: float32 scalar tensor.
        written: list of (value before, value now), tensors: what the forward pass wrote.
        agreed: function of (loss, whether the state is finite) that gives both as they hold for all participants, and a bit mask
            of the participants at fault; `None` where there is one.

    Returns:
        A dict: `applied`, `overflow` (bools), `loss`, `grad_norm` (numpy scalars).
    """
    floats = [pair for pair in written if numerics.is_float(pair[1])]
    squares, scale, rate = update.look()
    loss, norm, scale, rate, state = numerics.host(loss, squares, scale, rate, numerics.total_norm([now for _, now in floats]))
    state_finite = bool(np.isfinite(state)) or not numerics.newly_bad(floats)
    replicas = None
    if agreed is not None:
        loss, state_finite, replicas = agreed(loss, state_finite)
    values = memory.values
    with np.errstate(all="ignore"):
        finite = np.isfinite(loss) and np.isfinite(norm) and state_finite and update.survives_own_clips()
        seen = seen_of(update, loss, norm, scale, rate, gradients_finite=None, state_finite=state_finite, replicas=replicas)
        if unremarkable(spec, values, seen, finite, np):
            update.run(update.grads)
            memory.store(accept(spec, values, seen, np))
            return {"applied": True, "overflow": False, "loss": seen.loss, "grad_norm": seen.grad_norm}
        norm, gradients_finite = numerics.global_norm(update.present)
        seen.grad_norm, seen.gradients_finite = norm / scale, gradients_finite and update.survives_own_clips()
        verdict = judge(spec, values, seen, np)
    if verdict.apply:
        clip = verdict.clip_factor is not None and verdict.clip
        update.run(update.with_present(numerics.clipped(update.present, verdict.clip_factor)) if clip else update.grads)
    elif verdict.overflow:
        lower_loss_scale(update.optimizer)
    memory.store(verdict.change)
    return {"applied": bool(verdict.apply), "overflow": bool(verdict.overflow), "loss": seen.loss, "grad_norm": seen.grad_norm}


def extras(memory):
    """What the guard adds to the logs, as floats; `grad_norm` is NaN before the first accepted step of the epoch."""
    count = layout.counts(memory.values)
    accepted = count["epoch_accepted"]
    logs = {
        "grad_norm": float(memory.values["epoch_norm"]) / accepted if accepted else float("nan"),
        "skipped_steps": float(count["epoch_skipped"]),
    }
    if "lr_scale" in memory.values:
        logs["learning_rate_scale"] = float(memory.values["lr_scale"])
    return logs
