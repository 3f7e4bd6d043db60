"""Robust statistics of the gradient norms that were accepted.

Every function takes the array library as `lib`: `numpy` in tests and on the host, `keras.ops` inside a compiled step.
"""

WARM_UP = 16  # accepted norms before the window counts
EARLY_FACTOR = 1e6  # until then the bound is this times the largest accepted norm
FACTOR = 1e3  # afterwards this times the largest norm in the window
RECENT = 16  # accepted norms that a rise is not measured against: they may be part of it
RISE = 1.5  # how far above the largest of the others a norm is a sign of divergence


def adaptive_bound(norms, admitted, lib):
    """The norm above which a gradient is an outlier: Inf before anything was accepted.

    Args:
        norms: `(window,)` floats, accepted norms in any order, 0 where nothing was stored yet.
        admitted: int scalar, how many norms were stored in all.
        lib: `numpy` or `keras.ops`.
    """
    largest = lib.max(norms)
    bound = largest * lib.where(admitted < WARM_UP, EARLY_FACTOR, FACTOR)
    return lib.where(largest > 0, bound, float("inf"))


def robust_zscore(value, norms, admitted, lib):
    """0.6745 (value - median) / MAD over the norms stored so far, the MAD floored at 1e-3 of the median; 0 while warming up.

    Source: B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers, ASQC 1993.
    """
    size = norms.shape[0]
    filled = lib.minimum(admitted, size)
    median = _median_of_filled(norms, filled, size, lib)
    deviation = _median_of_filled(lib.abs(norms - median), filled, size, lib)
    deviation = lib.maximum(deviation, 1e-3 * median)
    score = 0.6745 * (value - median) / lib.maximum(deviation, 1e-30)
    return lib.where(admitted < WARM_UP, lib.zeros_like(score), score)


def risen_level(norms, admitted, lib):
    """The norm from which on gradients have grown: `RISE` times the largest stored one, the last `RECENT` left out.

    A batch that is an outlier in every epoch, a little more each time as the rest is learned, stays below it; growth without
    bound, however slow, does not.
    """
    size = norms.shape[0]
    age = (admitted - 1 - lib.arange(size)) % size
    return RISE * lib.max(lib.where(age >= min(RECENT, size - 1), norms, 0.0))


def _median_of_filled(values, filled, size, lib):
    """The lower median of the first `filled` values; the ring is filled from the front, so these are the stored ones."""
    stored = lib.arange(size) < filled
    ordered = lib.sort(lib.where(stored, values, float("inf")))
    return lib.where(filled > 0, lib.take(ordered, lib.maximum(filled - 1, 0) // 2), 0.0)
