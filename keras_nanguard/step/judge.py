"""The verdict on a step: pure, on tensors of any backend, inside or outside a compiled step.

    (spec, memory, what was seen) -> verdict, with what changes in the memory

`lib` is the array library: `keras.ops` (the default) on the device, `numpy` where the verdict is taken on the host.

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


def unremarkable(spec, memory, seen, finite, lib=ops):
    """Bool scalar: everything is finite and far from every bound, so that `accept` tells all there is to say.

    The short way of nearly every step; `judge` gives the same memory, by more operations.

    Args:
        seen: `Seen`, of which whether anything is finite is not looked at.
        finite: bool scalar, whether everything is; `False` where that would take a closer look.
    """
    plain = finite
    if spec.uses_window:
        plain = lib.logical_and(plain, _admits(seen.grad_norm, lib))
    bound = spec.step_guard.global_clipnorm if seen.may_clip else None
    if bound == "adaptive":
        bound = lib.max(memory["norms"]) * window.FACTOR  # at most the bound itself
    if bound is not None:
        plain = lib.logical_and(plain, seen.grad_norm <= bound)
    if spec.step_guard.spike_zscore is not None:
        plain = lib.logical_and(plain, _zscore(memory, seen, lib) <= spec.step_guard.spike_zscore)
    if spec.backoff is not None:
        plain = lib.logical_and(plain, seen.grad_norm <= _risen_level(memory, lib))
        plain = lib.logical_and(plain, memory["lr_scale"] >= 1.0)
    return plain


def accept(spec, memory, seen, lib=ops):
    """What changes in the memory at a step that is unremarkable."""
    add = layout.ADD[layout.ACCEPTED] + (layout.ONE_ADMITTED if spec.uses_window else 0)
    change = {
        "counts": memory["counts"] * layout.KEEP[layout.ACCEPTED] + add,
        "epoch_norm": memory["epoch_norm"] + seen.grad_norm,
        "row": _row(seen, layout.code(0, layout.ACCEPTED), lib),
    }
    if spec.uses_window:
        change["norm"] = seen.grad_norm
    return change


def judge(spec, memory, seen, lib=ops):
    """The whole verdict, on any step."""
    guard = spec.step_guard
    norm = lib.array(seen.grad_norm, "float32")
    loss_finite = lib.isfinite(seen.loss)
    finite = lib.logical_and(lib.logical_and(loss_finite, seen.state_finite), seen.gradients_finite)
    overflow = _ordinary_overflow(memory, seen, loss_finite, lib)
    skip_spike = lib.zeros_like(finite)
    if guard.spike_zscore is not None:
        skip_spike = lib.logical_and(finite, lib.logical_not(_zscore(memory, seen, lib) <= guard.spike_zscore))
    accepted = lib.logical_and(finite, lib.logical_not(skip_spike))

    bound = clip_bound(spec, memory, lib) if seen.may_clip else None
    if seen.clipped is not None:
        clip, factor = lib.logical_and(accepted, seen.clipped), None
    elif bound is None:
        clip, factor = lib.zeros_like(accepted), None
    else:
        clip = lib.logical_and(accepted, lib.logical_not(norm <= bound))
        factor = bound / lib.maximum(norm, bound)

    refused = layout.SKIPPED if guard.skip_nonfinite else layout.PASSED
    outcome = lib.where(accepted, lib.where(clip, layout.CLIPPED, layout.ACCEPTED), refused)
    outcome = lib.where(skip_spike, layout.SKIPPED, outcome)
    outcome = lib.where(overflow, layout.OVERFLOW, outcome)
    bits = (
        lib.where(loss_finite, 0, layout.BAD_LOSS)
        + lib.where(seen.gradients_finite, 0, layout.BAD_GRADIENT)
        + lib.where(seen.state_finite, 0, layout.BAD_STATE)
        + lib.where(skip_spike, layout.SPIKE, 0)
    )
    # a norm too large for float32 is no reason to refuse a step, but nothing to compare others with
    storable = lib.logical_and(accepted, lib.isfinite(norm))
    counts = memory["counts"] * lib.take(layout.KEEP, outcome, axis=0) + lib.take(layout.ADD, outcome, axis=0)
    change = {
        "counts": counts,
        "epoch_norm": lib.where(storable, memory["epoch_norm"] + norm, memory["epoch_norm"]),
        "row": _row(seen, layout.code(bits, outcome), lib),
    }
    if spec.uses_window:
        admit = lib.logical_and(storable, _admits(norm, lib))
        change["counts"] = counts + lib.where(admit, layout.ONE_ADMITTED, 0)
        change["norm"] = _remembered(memory, norm, admit, lib)
    if spec.backoff is not None:
        bad = lib.equal(outcome, layout.SKIPPED)
        spike = lib.logical_and(finite, _is_unstable(spec, memory, seen, lib))
        change["lr_scale"], change["lr_marks"], _ = lr_scale.advance(
            spec.backoff, memory["lr_scale"], memory["lr_marks"], memory["counts"][0], bad, spike, lib
        )
    apply = accepted if guard.skip_nonfinite else lib.logical_not(lib.logical_or(skip_spike, overflow))
    return Verdict(apply, overflow, clip, factor, change)


def clip_bound(spec, memory, lib=ops):
    """The global norm above which gradients are clipped; `None` where nothing is."""
    bound = spec.step_guard.global_clipnorm
    if bound is None:
        return None
    if bound == "adaptive":
        return window.adaptive_bound(memory["norms"], _count(memory, "admitted"), lib)
    return lib.array(bound, "float32")


def _count(memory, name):
    return memory["counts"][layout.COUNTS.index(name)]


def _zscore(memory, seen, lib):
    return window.robust_zscore(seen.grad_norm, memory["norms"], _count(memory, "admitted"), lib)


def _risen_level(memory, lib):
    return window.risen_level(memory["norms"], _count(memory, "admitted"), lib)


def _is_unstable(spec, memory, seen, lib):
    """Far above the median, and above what was usual before."""
    far = lib.logical_not(_zscore(memory, seen, lib) <= spec.backoff.spike_zscore)
    return lib.logical_and(far, seen.grad_norm > _risen_level(memory, lib))


def _ordinary_overflow(memory, seen, loss_finite, lib):
    """Gradients that overflow under a loss scale above 1 while the loss is finite: how a loss scale finds its level."""
    if seen.loss_scale is None:
        return lib.zeros_like(loss_finite)
    ordinary = lib.logical_and(loss_finite, seen.state_finite)
    ordinary = lib.logical_and(ordinary, lib.logical_not(seen.gradients_finite))
    ordinary = lib.logical_and(ordinary, seen.loss_scale > 1.0)
    return lib.logical_and(ordinary, _count(memory, "overflows_in_row") < OVERFLOWS_IN_ROW)


def _admits(norm, lib):
    """A norm of exactly 0 (a hinge that is met, a batch without a gradient) says nothing about the size of the others."""
    return norm > 0


def _remembered(memory, norm, admit, lib):
    """What the window holds at its next place after this step."""
    oldest = lib.take(memory["norms"], lib.mod(_count(memory, "admitted"), memory["norms"].shape[0]))
    return lib.where(admit, norm, oldest)


def _row(seen, code, lib):
    """The step's row of the ring."""
    none = lib.zeros((), "float32")
    return lib.stack(
        [
            lib.array(seen.loss, "float32"),
            lib.array(seen.grad_norm, "float32"),
            lib.array(seen.learning_rate, "float32"),
            none if seen.loss_scale is None else lib.array(seen.loss_scale, "float32"),
            lib.array(code, "float32"),
            none if seen.replicas is None else lib.array(seen.replicas, "float32"),
        ]
    )
