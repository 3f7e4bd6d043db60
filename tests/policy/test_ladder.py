"""The ladder on plain values."""

from hypothesis import given
from hypothesis import strategies as some

from keras_nanguard.policy.ladder import LadderPolicy
from keras_nanguard.policy.ladder import LadderState
from keras_nanguard.policy.ladder import Observation
from keras_nanguard.policy.ladder import decide

POLICY = LadderPolicy(max_consecutive_skips=3)


def test_skips_until_too_many_in_a_row_then_stops():
    state = LadderState()
    actions = []
    for in_row in (1, 2, 3, 4):
        state, decision = decide(POLICY, state, Observation(in_row, "loss"))
        actions.append(decision.action)
    assert actions == ["skip", "skip", "stop", "continue"]


def test_a_bad_state_is_restored_before_anything_else():
    _, decision = decide(POLICY, LadderState(), Observation(1, "loss", state_finite=False))
    assert (decision.action, decision.reason, decision.restore) == ("stop", "update", True)


@given(some.lists(some.builds(Observation, some.integers(0, 6), some.sampled_from([None, "loss"]), some.booleans()), max_size=30))
def test_it_stops_at_most_once_and_never_passes_a_bad_state_silently(observations):
    state, stops = LadderState(), 0
    for seen in observations:
        was_stopped = state.stopped
        state, decision = decide(POLICY, state, seen)
        stops += decision.action == "stop"
        assert seen.state_finite or was_stopped or decision.restore
    assert stops <= 1
