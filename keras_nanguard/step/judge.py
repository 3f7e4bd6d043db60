"""The verdict on a step: pure, on tensors of any backend, inside or outside a compiled step.

    (spec, memory, what was seen) -> verdict, with what changes in the memory

Rules that other guards got wrong: select, never multiply; `not (norm <= bound)` and never `norm > bound` where NaN must
not pass; only finite norms of accepted steps enter the window.
"""

import dataclasses

from keras import ops

from ..policy import lr_scale
from ..policy import window
from . import memory as layout

OVERFLOWS_IN_ROW = 30  # ordinary overflows of the loss scale in a row; more are an incident


@dataclasses.dataclass
class Seen:
    """What a step shows before its update. All scalars; losses and norms are float32, unscaled and reduced over replicas.

    Attributes:
        loss: of the step; 0 where only the gradients can be judged.
        grad_norm: global L2 norm before clipping.
        gradients_finite, state_finite: bool; the state is what the forward pass wrote.
        learning_rate: with the backoff's scale.
        loss_scale: of a `LossScaleOptimizer`, else `None`.
        may_clip: Python bool; `False` where the optimizer clips by itself.
        replicas: bit mask of the replicas that saw something bad; `None` on one device.
        clipped: bool, where the gradients were clipped already, each update by itself; else `None`.
    """

    loss: object
    grad_norm: object
    gradients_finite: object
    state_finite: object
    learning_rate: object
    loss_scale: object = None
    may_clip: bool = True
    replicas: object = None
    clipped: object = None


@dataclasses.dataclass
class Verdict:
    """What becomes of the step.

    Attributes:
        apply: bool scalar: run the optimizer's update.
        overflow: bool scalar: halve the loss scale instead.
        clip: bool scalar: with the gradients times `clip_factor`.
        clip_factor: float32 scalar, `None` where nothing may be clipped.
        change: what changes in the guard's memory, as `step.memory` says.
    """

    apply: object
    overflow: object
    clip: object
    clip_factor: object
    change: dict


def unremarkable(spec, memory, seen, finite):
    """Bool scalar: everything is finite and far from every bound, so that `accept` tells all there is to say.

    The short way of nearly every step; `judge` gives the same memory, by more operations.

    Args:
        seen: `Seen`, of which whether anything is finite is not looked at.
        finite: bool scalar, whether everything is; `False` where that would take a closer look.
    """
    plain = finite
    if spec.uses_window:
        plain = ops.logical_and(plain, _admits(seen.grad_norm))
    bound = spec.step_guard.global_clipnorm if seen.may_clip else None
    if bound == "adaptive":
        bound = ops.max(memory["norms"]) * window.FACTOR  # at most the bound itself
    if bound is not None:
        plain = ops.logical_and(plain, seen.grad_norm <= bound)
    if spec.step_guard.spike_zscore is not None:
        plain = ops.logical_and(plain, _zscore(memory, seen) <= spec.step_guard.spike_zscore)
    if spec.backoff is not None:
        plain = ops.logical_and(plain, seen.grad_norm <= _risen_level(memory))
        plain = ops.logical_and(plain, memory["lr_scale"] >= 1.0)
    return plain


def accept(spec, memory, seen):
    """What changes in the memory at a step that is unremarkable."""
    add = layout.ADD[layout.ACCEPTED] + (layout.ONE_ADMITTED if spec.uses_window else 0)
    change = {
        "counts": memory["counts"] * layout.KEEP[layout.ACCEPTED] + add,
        "epoch_norm": memory["epoch_norm"] + seen.grad_norm,
        "row": _row(seen, layout.code(0, layout.ACCEPTED)),
    }
    if spec.uses_window:
        change["norm"] = seen.grad_norm
    return change


def judge(spec, memory, seen):
    """The whole verdict, on any step."""
    guard = spec.step_guard
    norm = ops.cast(seen.grad_norm, "float32")
    loss_finite = ops.isfinite(seen.loss)
    finite = ops.logical_and(ops.logical_and(loss_finite, seen.state_finite), seen.gradients_finite)
    overflow = _ordinary_overflow(memory, seen, loss_finite)
    skip_spike = ops.zeros_like(finite)
    if guard.spike_zscore is not None:
        skip_spike = ops.logical_and(finite, ops.logical_not(_zscore(memory, seen) <= guard.spike_zscore))
    accepted = ops.logical_and(finite, ops.logical_not(skip_spike))

    bound = clip_bound(spec, memory) if seen.may_clip else None
    if seen.clipped is not None:
        clip, factor = ops.logical_and(accepted, seen.clipped), None
    elif bound is None:
        clip, factor = ops.zeros_like(accepted), None
    else:
        clip = ops.logical_and(accepted, ops.logical_not(norm <= bound))
        factor = bound / ops.maximum(norm, bound)

    refused = layout.SKIPPED if guard.skip_nonfinite else layout.PASSED
    outcome = ops.where(accepted, ops.where(clip, layout.CLIPPED, layout.ACCEPTED), refused)
    outcome = ops.where(skip_spike, layout.SKIPPED, outcome)
    outcome = ops.where(overflow, layout.OVERFLOW, outcome)
    bits = (
        ops.where(loss_finite, 0, layout.BAD_LOSS)
        + ops.where(seen.gradients_finite, 0, layout.BAD_GRADIENT)
        + ops.where(seen.state_finite, 0, layout.BAD_STATE)
        + ops.where(skip_spike, layout.SPIKE, 0)
    )
    # a norm too large for float32 is no reason to refuse a step, but nothing to compare others with
    storable = ops.logical_and(accepted, ops.isfinite(norm))
    counts = memory["counts"] * ops.take(layout.KEEP, outcome, axis=0) + ops.take(layout.ADD, outcome, axis=0)
    change = {
        "counts": counts,
        "epoch_norm": ops.where(storable, memory["epoch_norm"] + norm, memory["epoch_norm"]),
        "row": _row(seen, layout.code(bits, outcome)),
    }
    if spec.uses_window:
        admit = ops.logical_and(storable, _admits(norm))
        change["counts"] = counts + ops.where(admit, layout.ONE_ADMITTED, 0)
        change["norm"] = _remembered(memory, norm, admit)
    if spec.backoff is not None:
        bad = ops.equal(outcome, layout.SKIPPED)
        spike = ops.logical_and(finite, _is_unstable(spec, memory, seen))
        change["lr_scale"], change["lr_marks"], _ = lr_scale.advance(
            spec.backoff, memory["lr_scale"], memory["lr_marks"], memory["counts"][0], bad, spike, ops
        )
    apply = accepted if guard.skip_nonfinite else ops.logical_not(ops.logical_or(skip_spike, overflow))
    return Verdict(apply, overflow, clip, factor, change)


def clip_bound(spec, memory):
    """The global norm above which gradients are clipped; `None` where nothing is."""
    bound = spec.step_guard.global_clipnorm
    if bound is None:
        return None
    if bound == "adaptive":
        return window.adaptive_bound(memory["norms"], _count(memory, "admitted"), ops)
    return ops.convert_to_tensor(bound, "float32")


def _count(memory, name):
    return memory["counts"][layout.COUNTS.index(name)]


def _zscore(memory, seen):
    return window.robust_zscore(seen.grad_norm, memory["norms"], _count(memory, "admitted"), ops)


def _risen_level(memory):
    return window.risen_level(memory["norms"], _count(memory, "admitted"), ops)


def _is_unstable(spec, memory, seen):
    """Far above the median, and above what was usual before."""
    far = ops.logical_not(_zscore(memory, seen) <= spec.backoff.spike_zscore)
    return ops.logical_and(far, seen.grad_norm > _risen_level(memory))


def _ordinary_overflow(memory, seen, loss_finite):
    """Gradients that overflow under a loss scale above 1 while the loss is finite: how a loss scale finds its level."""
    if seen.loss_scale is None:
        return ops.zeros_like(loss_finite)
    ordinary = ops.logical_and(loss_finite, seen.state_finite)
    ordinary = ops.logical_and(ordinary, ops.logical_not(seen.gradients_finite))
    ordinary = ops.logical_and(ordinary, seen.loss_scale > 1.0)
    return ops.logical_and(ordinary, _count(memory, "overflows_in_row") < OVERFLOWS_IN_ROW)


def _admits(norm):
    """A norm of exactly 0 (a hinge that is met, a batch without a gradient) says nothing about the size of the others."""
    return norm > 0


def _remembered(memory, norm, admit):
    """What the window holds at its next place after this step."""
    oldest = ops.take(memory["norms"], ops.mod(_count(memory, "admitted"), memory["norms"].shape[0]))
    return ops.where(admit, norm, oldest)


def _row(seen, code):
    """The step's row of the ring."""
    none = ops.zeros((), "float32")
    return ops.stack(
        [
            ops.cast(seen.loss, "float32"),
            ops.cast(seen.grad_norm, "float32"),
            ops.cast(seen.learning_rate, "float32"),
            none if seen.loss_scale is None else ops.cast(seen.loss_scale, "float32"),
            ops.cast(code, "float32"),
            none if seen.replicas is None else ops.cast(seen.replicas, "float32"),
        ]
    )
