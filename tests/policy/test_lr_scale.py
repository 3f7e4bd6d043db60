"""The learning-rate scale as a state machine on plain numbers; no framework is needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from keras_nanguard.policy.lr_scale import BackoffPolicy
from keras_nanguard.policy.lr_scale import advance
from keras_nanguard.policy.lr_scale import initial_marks

POLICY = BackoffPolicy(factor=0.5, patience=3, cooldown=10, regrow_steps=20, min_scale=0.1)


def run(events, policy=POLICY):
    """Scales after each of `events`: "bad", "spike" or anything else."""
    scale, marks, scales = np.float64(1.0), np.array(initial_marks(policy)), []
    for step, event in enumerate(events):
        scale, marks, _ = advance(policy, scale, marks, step, np.bool_(event == "bad"), np.bool_(event == "spike"), np)
        scales.append(float(scale))
    return scales, marks


@given(some.lists(some.sampled_from(["bad", "spike", "ok"]), max_size=80))
def test_the_scale_stays_in_its_range_and_falls_only_at_events(events):
    scales, _ = run(events)
    assert all(POLICY.min_scale <= scale <= 1.0 for scale in scales)
    for before, after, event in zip([1.0, *scales], scales, events):
        assert after >= before or event != "ok"


@given(some.lists(some.sampled_from(["bad", "spike", "ok"]), max_size=40))
def test_a_calm_step_at_the_full_rate_changes_nothing(events):
    """What lets a compiled step leave `advance` out."""
    scales, marks = run(events)
    if not scales or scales[-1] == 1.0:
        no, step = np.bool_(False), len(events)
        scale, same_marks, dropped = advance(POLICY, np.float64(1.0), marks, step, no, no, np)
        assert scale == 1.0 and not dropped
        np.testing.assert_array_equal(same_marks, marks)


@pytest.mark.parametrize("event", ["bad", "spike"])
def test_patience_events_close_together_drop_it_and_one_does_not(event):
    assert run([event] * 2)[0] == [1.0, 1.0]
    assert run([event] * 3)[0][-1] == 0.5
    apart = [event, *["ok"] * 9, event, *["ok"] * 9, event]
    assert run(apart)[0][-1] == 1.0


def test_it_takes_patience_events_again_for_the_next_drop():
    assert run(["bad"] * 5)[0][-1] == 0.5
    assert run(["bad"] * 6)[0][-1] == 0.25
    assert run(["bad"] * 60)[0][-1] == POLICY.min_scale


def test_it_waits_for_the_cooldown_and_grows_back_in_regrow_steps():
    scales, _ = run(["bad"] * 3 + ["ok"] * 40)
    assert scales[2:11] == [0.5] * 9
    assert scales[12] > 0.5
    grown = scales[11 : 11 + POLICY.regrow_steps + 1]
    assert grown[-2] < 1.0 + 1e-9 and scales[11 + POLICY.regrow_steps + 1] == 1.0
    assert scales[-1] == 1.0


def test_drops_are_counted():
    assert run(["bad"] * 6)[1][-1] == 2
