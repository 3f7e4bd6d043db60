"""When the learning rate is lowered and when it grows back: one pure function on numbers or on tensors.

`advance` takes the array library as `lib`: `numpy` in tests, `keras.ops` inside a compiled step, where it runs so that the
scale moves at the very step, also within `steps_per_execution`, and without a retrace.
"""

import dataclasses

LONG_AGO = -(2**30)


@dataclasses.dataclass(frozen=True)
class BackoffPolicy:
    """The numbers of `AdaptiveLRBackoff`; see there."""

    factor: float = 0.5
    patience: int = 3
    cooldown: int = 50
    regrow_steps: int = 200
    min_scale: float = 1e-3
    spike_zscore: float = 6.0

    @property
    def growth(self):
        """What the scale is multiplied with at a calm step: `regrow_steps` of them undo one drop."""
        return self.factor ** (-1.0 / self.regrow_steps)

    @property
    def marks(self):
        """How many step numbers the state holds: the last event, the last drop, `patience` bad steps, `patience` spikes, drops so far."""
        return 3 + 2 * self.patience


def initial_marks(policy):
    """A list of ints: nothing has happened yet."""
    return [LONG_AGO] * (policy.marks - 1) + [0]


def advance(policy, scale, marks, step, bad, spike, lib):
    """One step of the scale.

    Args:
        policy: `BackoffPolicy`.
        scale: float scalar in [min_scale, 1].
        marks: `(policy.marks,)` ints.
        step: int scalar, the number of this step.
        bad: bool scalar, the step was skipped.
        spike: bool scalar, its norm was finite and far above the window.
        lib: `numpy` or `keras.ops`.

    Returns:
        (scale, marks, dropped): the new state, and whether the scale was lowered at this step.
    """
    patience = policy.patience
    last_event, last_drop, drops = marks[0], marks[1], marks[-1]
    bads, spikes = marks[2 : 2 + patience], marks[2 + patience : 2 + 2 * patience]
    bads = lib.where(bad, _shifted(bads, step, lib), bads)
    spikes = lib.where(spike, _shifted(spikes, step, lib), spikes)
    close = lib.logical_or(
        lib.logical_and(bad, step - bads[0] < policy.cooldown),
        lib.logical_and(spike, step - spikes[0] < policy.cooldown),
    )
    dropped = lib.logical_and(close, scale > policy.min_scale)
    last_event = lib.where(lib.logical_or(bad, spike), step, last_event)
    last_drop = lib.where(dropped, step, last_drop)
    grown = _grown(policy, scale, step - lib.maximum(last_event, last_drop), lib)
    scale = lib.where(dropped, lib.maximum(scale * policy.factor, policy.min_scale), grown)
    forgotten = lib.zeros_like(bads) + LONG_AGO
    marks = lib.concatenate(
        [
            lib.reshape(last_event, (1,)),
            lib.reshape(last_drop, (1,)),
            lib.where(close, forgotten, bads),
            lib.where(close, forgotten, spikes),
            lib.reshape(drops + lib.where(dropped, 1, 0), (1,)),
        ]
    )
    return scale, marks, dropped


def _grown(policy, scale, since, lib):
    return lib.where(since >= policy.cooldown, lib.minimum(scale * policy.growth, 1.0), scale)


def _shifted(times, step, lib):
    return lib.concatenate([times[1:], lib.reshape(step, (1,))])
