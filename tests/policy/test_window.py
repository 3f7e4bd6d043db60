"""Robust statistics against plain numpy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from keras_nanguard.policy.window import RECENT
from keras_nanguard.policy.window import RISE
from keras_nanguard.policy.window import WARM_UP
from keras_nanguard.policy.window import adaptive_bound
from keras_nanguard.policy.window import risen_level
from keras_nanguard.policy.window import robust_zscore

floats = some.floats(1e-3, 1e3)


def ring(values, size=32):
    norms = np.zeros(size)
    for place, value in enumerate(values):
        norms[place % size] = value
    return norms


@given(some.lists(floats, min_size=WARM_UP, max_size=80), floats)
def test_zscore_is_that_of_the_lower_median_and_the_floored_mad(values, value):
    last = np.sort(values[-32:])
    median = last[(len(last) - 1) // 2]
    deviations = np.sort(np.abs(last - median))
    mad = max(deviations[(len(last) - 1) // 2], 1e-3 * median)
    np.testing.assert_allclose(robust_zscore(value, ring(values), len(values), np), 0.6745 * (value - median) / mad, rtol=1e-9)


@given(some.lists(floats, max_size=WARM_UP - 1), floats)
def test_nothing_is_a_spike_while_the_window_warms_up(values, value):
    assert robust_zscore(value, ring(values), len(values), np) == 0.0


@given(some.lists(floats, min_size=1, max_size=80))
def test_the_bound_is_far_above_everything_in_the_window(values):
    bound = adaptive_bound(ring(values), len(values), np)
    assert bound >= 100 * max(values[-32:])


def test_there_is_no_bound_before_anything_was_accepted():
    assert adaptive_bound(np.zeros(32), 0, np) == np.inf


@given(some.lists(floats, max_size=80))
def test_a_rise_is_measured_against_all_but_the_recent_norms(values):
    older = values[-32:][:-RECENT]
    assert risen_level(ring(values), len(values), np) == RISE * max(older, default=0.0)


def test_an_outlier_that_grows_a_little_in_every_epoch_does_not_count_as_a_rise_and_slow_growth_without_bound_does():
    wobble = [1.0, 0.8, 1.1, 0.9] * 6
    outliers = [value for peak in (1.5, 1.65, 1.8, 1.9) for value in [*wobble, peak]]
    risen = [v > risen_level(ring(outliers[:k]), k, np) for k, v in enumerate(outliers) if k >= 2 * RECENT]
    assert not any(risen)
    growing = wobble + [1.05**k for k in range(60)]
    assert all(v > risen_level(ring(growing[:k]), k, np) for k, v in enumerate(growing) if k >= len(growing) - 20)
