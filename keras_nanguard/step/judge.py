"""The verdict on a step: pure, on tensors of any backend, inside or outside a compiled step.

    (spec, memory, what was seen) -> verdict with the new memory

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
        loss: `None` where only the gradients can be judged.
        grad_norm: global L2 norm before clipping.
        gradients_finite, state_finite: bool; the state is what the forward pass wrote.
        learning_rate: with the backoff's scale.
        loss_scale: of a `LossScaleOptimizer`, else `None`.
        may_clip: Python bool; `False` where the optimizer clips by itself.
        replicas: bit mask of the replicas that saw something bad; `None` on one device.
    """

    loss: object
    grad_norm: object
    gradients_finite: object
    state_finite: object
    learning_rate: object
    loss_scale: object = None
    may_clip: bool = True
    replicas: object = None


@dataclasses.dataclass
class Verdict:
    """What becomes of the step.

    Attributes:
        apply: bool scalar: run the optimizer's update.
        overflow: bool scalar: halve the loss scale instead.
        clip_factor: float32 scalar, `None` where nothing may be clipped; meaningful where `clip` is true.
        clip: bool scalar.
        memory: the guard's memory after the step.
    """

    apply: object
    overflow: object
    clip: object
    clip_factor: object
    memory: dict


def judge(spec, memory, seen):
    guard = spec.step_guard
    count = {name: memory["counts"][k] for k, name in enumerate(layout.COUNTS)}
    loss = ops.zeros((), "float32") if seen.loss is None else ops.cast(seen.loss, "float32")
    norm = ops.cast(seen.grad_norm, "float32")

    loss_finite = ops.isfinite(loss)
    finite = ops.logical_and(ops.logical_and(loss_finite, seen.state_finite), seen.gradients_finite)
    overflow = _ordinary_overflow(count, seen, loss_finite)
    spike = skip_spike = ops.zeros_like(finite)
    if guard.spike_zscore is not None or spec.backoff is not None:
        score = window.robust_zscore(norm, memory["norms"], count["admitted"], ops)
        if guard.spike_zscore is not None:
            skip_spike = ops.logical_and(finite, ops.logical_not(score <= guard.spike_zscore))
        if spec.backoff is not None:
            spike = ops.logical_and(finite, ops.logical_not(score <= spec.backoff.spike_zscore))
    accepted = ops.logical_and(finite, ops.logical_not(skip_spike))

    bound = clip_bound(spec, memory) if seen.may_clip else None
    if bound is None:
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
    new = _remember(spec, memory, count, accepted, outcome, norm)
    new["ring"] = _recorded(memory["ring"], count["steps"], loss, norm, seen, layout.code(bits, outcome))
    if spec.backoff is not None:
        bad = ops.equal(outcome, layout.SKIPPED)
        new["lr_scale"], new["lr_marks"], _ = lr_scale.advance(
            spec.backoff, memory["lr_scale"], memory["lr_marks"], count["steps"], bad, spike, ops
        )
    apply = accepted if guard.skip_nonfinite else ops.logical_not(ops.logical_or(skip_spike, overflow))
    return Verdict(apply, overflow, clip, factor, new)


def _ordinary_overflow(count, seen, loss_finite):
    """Gradients that overflow under a loss scale above 1 while the loss is finite: how a loss scale finds its level."""
    if seen.loss_scale is None:
        return ops.zeros_like(loss_finite)
    ordinary = ops.logical_and(loss_finite, seen.state_finite)
    ordinary = ops.logical_and(ordinary, ops.logical_not(seen.gradients_finite))
    ordinary = ops.logical_and(ordinary, seen.loss_scale > 1.0)
    return ops.logical_and(ordinary, count["overflows_in_row"] < OVERFLOWS_IN_ROW)


def clip_bound(spec, memory):
    """The global norm above which gradients are clipped; `None` where nothing is."""
    bound = spec.step_guard.global_clipnorm
    if bound is None:
        return None
    if bound == "adaptive":
        admitted = memory["counts"][layout.COUNTS.index("admitted")]
        largest = memory["levels"][layout.LEVELS.index("largest_norm")]
        return window.adaptive_bound(memory["norms"], admitted, largest, ops)
    return ops.convert_to_tensor(bound, "float32")


def _remember(spec, memory, count, accepted, outcome, norm):
    add, keep = ops.convert_to_tensor(layout.ADD), ops.convert_to_tensor(layout.KEEP)
    counts = memory["counts"] * ops.take(keep, outcome, axis=0) + ops.take(add, outcome, axis=0)
    epoch_norm, largest = memory["levels"][0], memory["levels"][1]
    # a norm too large for float32 is no reason to skip, but nothing to compare others with
    storable = ops.logical_and(accepted, ops.isfinite(norm))
    mean = epoch_norm + (norm - epoch_norm) / ops.cast(count["epoch_accepted"] + 1, "float32")
    new = {"levels": ops.stack([ops.where(storable, mean, epoch_norm), ops.where(storable, ops.maximum(largest, norm), largest)])}
    if spec.uses_window:
        # norms of exactly 0 (a hinge that is met, a batch without a gradient) say nothing about the size of the others
        admit = ops.logical_and(storable, norm > 0)
        place = ops.equal(ops.arange(spec.step_guard.window), ops.mod(count["admitted"], spec.step_guard.window))
        new["norms"] = ops.where(ops.logical_and(place, admit), norm, memory["norms"])
        last = ops.equal(ops.arange(len(layout.COUNTS)), layout.COUNTS.index("admitted"))
        counts = counts + ops.cast(ops.logical_and(last, admit), "int32")
    new["counts"] = counts
    return new


def _recorded(ring, step, loss, norm, seen, code):
    none = ops.zeros((), "float32")
    row = ops.stack(
        [
            loss,
            norm,
            ops.cast(seen.learning_rate, "float32"),
            none if seen.loss_scale is None else ops.cast(seen.loss_scale, "float32"),
            ops.cast(code, "float32"),
            none if seen.replicas is None else ops.cast(seen.replicas, "float32"),
        ]
    )
    return ops.slice_update(ring, (ops.mod(step, ring.shape[0]), 0), ops.expand_dims(row, 0))
