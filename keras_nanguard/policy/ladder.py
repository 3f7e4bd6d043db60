"""The ladder of `NanGuardCallback`: what to do about a run whose steps are refused.

Skip, until `max_consecutive_skips` in a row; then stop, with the last good weights. A state that is itself bad is
restored first. The function is pure: the callback observes, asks, and acts.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class LadderPolicy:
    max_consecutive_skips: int = 10


@dataclasses.dataclass(frozen=True)
class LadderState:
    stopped: bool = False


@dataclasses.dataclass(frozen=True)
class Observation:
    """What the callback saw at a step (or at an epoch's end).

    Attributes:
        skips_in_row: refused steps since the last accepted one, this one included.
        reason: why this step was refused (`loss`, `gradient`, `state`, `spike`), `None` if it was not.
        state_finite: whether weights, slots and moving statistics are finite.
    """

    skips_in_row: int = 0
    reason: str | None = None
    state_finite: bool = True


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to do: `action` is `continue`, `skip` (nothing more to do) or `stop`; `restore`: put the snapshot back first."""

    action: str
    reason: str | None = None
    restore: bool = False


def decide(policy, state, seen):
    """(policy, state, observation) -> (state, decision)."""
    if state.stopped:
        return state, Decision("continue")
    if not seen.state_finite:
        return LadderState(stopped=True), Decision("stop", "update", restore=True)
    if seen.reason is None:
        return state, Decision("continue")
    if seen.skips_in_row >= policy.max_consecutive_skips:
        return LadderState(stopped=True), Decision("stop", seen.reason)
    return state, Decision("skip", seen.reason)
