"""The verdict on plain numbers: the short way agrees with the whole one, and what is bad leaves no mark in the window."""

import math

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as some

from keras_nanguard import StepGuard
from keras_nanguard.policy.lr_scale import BackoffPolicy
from keras_nanguard.step import memory as layout
from keras_nanguard.step.judge import Seen
from keras_nanguard.step.judge import accept
from keras_nanguard.step.judge import judge
from keras_nanguard.step.judge import unremarkable

f32 = lambda value: keras.ops.convert_to_tensor(value, "float32")
yes_or_no = lambda value: keras.ops.convert_to_tensor(value, "bool")


def seen(loss=1.0, norm=1.0, gradients=True, state=True, scale=None):
    return Seen(f32(loss), f32(norm), yes_or_no(gradients), yes_or_no(state), f32(0.1), None if scale is None else f32(scale))


def tensors(memory):
    return {name: keras.ops.convert_to_tensor(value) for name, value in memory.items()}


def arrays(memory):
    return {name: keras.ops.convert_to_numpy(value) for name, value in memory.items()}


def run(spec, steps):
    """(memory as numpy, verdicts) after a sequence of `Seen`s."""
    memory, verdicts = layout.initial(spec), []
    for step in steps:
        verdict = judge(spec, tensors(memory), step)
        verdicts.append(verdict)
        memory = layout.stored(memory, arrays(verdict.change))
    return memory, verdicts


norms = some.one_of(some.floats(0, 1e6, width=32), some.sampled_from([0.0, 1e-30, 1e30, math.inf, math.nan]))
steps = some.builds(seen, loss=norms, norm=norms, gradients=some.booleans(), state=some.booleans())
specs = some.sampled_from(
    [
        layout.StepSpec(StepGuard()),
        layout.StepSpec(StepGuard(1.0)),
        layout.StepSpec(StepGuard(None)),
        layout.StepSpec(StepGuard(None, spike_zscore=4.0)),
        layout.StepSpec(StepGuard(), BackoffPolicy(patience=2, cooldown=3)),
    ]
)


@settings(max_examples=25)
@given(specs, some.lists(steps, max_size=20), steps)
def test_the_short_way_gives_what_the_whole_one_gives(spec, before, step):
    memory, _ = run(spec, before)
    finite = bool(step.gradients_finite) and bool(step.state_finite) and math.isfinite(float(step.loss) + float(step.grad_norm))
    if bool(unremarkable(spec, tensors(memory), step, yes_or_no(finite))):
        verdict = judge(spec, tensors(memory), step)
        assert bool(verdict.apply) and not bool(verdict.clip) and not bool(verdict.overflow)
        short = layout.stored(memory, arrays(accept(spec, tensors(memory), step)))
        whole = layout.stored(memory, arrays(verdict.change))
        for name in whole:
            np.testing.assert_array_equal(short[name], whole[name], err_msg=name)


@settings(max_examples=25)
@given(specs, some.lists(steps, min_size=1, max_size=20))
def test_only_finite_norms_of_accepted_steps_are_remembered(spec, sequence):
    memory, verdicts = run(spec, sequence)
    assert np.isfinite(memory["epoch_norm"]) or float(memory["epoch_norm"]) > 3e38
    if "norms" in memory:
        accepted = [float(s.grad_norm) for s, v in zip(sequence, verdicts) if bool(v.apply)]
        assert np.isfinite(memory["norms"]).all()
        assert set(memory["norms"].tolist()) <= {0.0, *accepted}
    counts = layout.counts(memory)
    assert counts["steps"] == len(sequence)
    assert counts["skipped"] == sum(not bool(v.apply) for v in verdicts)


@pytest.mark.parametrize("step", [seen(loss=math.nan), seen(loss=math.inf), seen(gradients=False, norm=math.nan), seen(state=False)])
def test_anything_not_finite_is_refused(step):
    memory, (verdict,) = run(layout.StepSpec(StepGuard()), [step])
    assert not bool(verdict.apply)
    assert layout.counts(memory)["skipped"] == 1


@pytest.mark.parametrize(
    "step, reason",
    [(seen(loss=math.nan, gradients=False), "loss"), (seen(gradients=False), "gradient"), (seen(state=False), "state")],
)
def test_the_row_says_why(step, reason):
    memory, _ = run(layout.StepSpec(StepGuard()), [seen(), step])
    row = layout.rows(memory)[-1]
    assert (row.step, row.outcome, row.reasons[0]) == (1, "skipped", reason)


def test_an_outlier_is_clipped_to_the_bound_and_a_violent_beginning_is_not():
    spec = layout.StepSpec(StepGuard())
    _, verdicts = run(spec, [seen(norm=n) for n in (1e6, 3e5, 5e5, 10.0, 1.0, 0.0, 1.0)])
    assert not any(bool(v.clip) for v in verdicts)
    _, verdicts = run(spec, [seen(norm=1.0)] * 20 + [seen(norm=5e3)])
    assert [bool(v.clip) for v in verdicts] == [False] * 20 + [True]
    assert float(verdicts[-1].clip_factor) * 5e3 == pytest.approx(1e3)


def test_a_number_clips_from_the_first_step_on():
    _, (verdict,) = run(layout.StepSpec(StepGuard(0.5)), [seen(norm=2.0)])
    assert bool(verdict.clip) and float(verdict.clip_factor) == 0.25


def test_ordinary_overflows_are_no_skips_until_the_floor_or_thirty_in_a_row():
    spec = layout.StepSpec(StepGuard())
    memory, verdicts = run(spec, [seen(gradients=False, scale=2.0**15)] * 31)
    assert [bool(v.overflow) for v in verdicts] == [True] * 30 + [False]
    assert layout.counts(memory)["skipped"] == 1 and layout.counts(memory)["overflows"] == 30
    _, (verdict,) = run(spec, [seen(gradients=False, scale=1.0)])
    assert not bool(verdict.overflow) and not bool(verdict.apply)
    _, (verdict,) = run(spec, [seen(loss=math.nan, gradients=False, scale=2.0**15)])
    assert not bool(verdict.overflow)


def test_spikes_are_skipped_where_asked_for():
    spec = layout.StepSpec(StepGuard(None, spike_zscore=6.0))
    wobble = [1.0, 1.1, 0.9, 1.05, 0.95] * 4
    memory, verdicts = run(spec, [seen(norm=n) for n in [*wobble, 50.0, 1.0]])
    assert [bool(v.apply) for v in verdicts] == [True] * 20 + [False, True]
    assert 50.0 not in memory["norms"]


def test_without_skipping_a_bad_step_is_applied_and_recorded():
    memory, (verdict,) = run(layout.StepSpec(StepGuard(skip_nonfinite=False)), [seen(loss=math.nan)])
    assert bool(verdict.apply)
    assert layout.rows(memory)[-1].outcome == "passed" and layout.counts(memory)["skipped"] == 0
