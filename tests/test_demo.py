"""`nanguard demo`: the unguarded runs really fail, the guarded ones really learn, the sound losses go on."""

import importlib.util
import re
import time
import types

import numpy as np
import pytest

from keras_nanguard import demo
from keras_nanguard.demo import balanced_log_loss
from keras_nanguard.demo import center_distance
from keras_nanguard.demo import runner
from keras_nanguard.demo import text

RUNS = [
    ("scattered", "fit"),
    ("scattered", "loop"),
    ("saturated", "fit"),
    ("saturated", "loop"),
    ("one-class", "fit"),
]
SCATTERED = [run for run in RUNS if run[0] != "saturated"]
SATURATED = [run for run in RUNS if run[0] == "saturated"]


@pytest.fixture(scope="module")
def shown():
    """The whole command, run once: its exit code, what it printed, how long it took, and the outcomes behind it."""
    outcomes, lines = {}, []

    def recording(run):
        def wrapped(say):
            found = run(lambda line: (lines.append(line), say(line)))
            outcomes.update(found)
            return found

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for module in (balanced_log_loss, center_distance):
            patch.setattr(module, "run", recording(module.run))
        began = time.process_time()
        code = demo.main([])
        seconds = time.process_time() - began
    return types.SimpleNamespace(code=code, outcomes=outcomes, text="\n".join(lines), cpu_seconds=seconds)


def steps_that_lack_a_class(setting, steps):
    """From the data alone, without the demo's own words for it."""
    batches = iter(setting.batches)
    return [step for step in range(steps) if len(np.unique(next(batches)[1])) == 1]


def test_it_ends_well_and_in_time(shown):
    """Under two minutes on two cores; processor time, which a busy machine does not change."""
    assert shown.code == 0
    assert set(shown.outcomes) == set(RUNS)
    assert shown.cpu_seconds < 120


@pytest.mark.parametrize("run", RUNS)
def test_without_guard_every_trainable_weight_is_lost(shown, run):
    plain = shown.outcomes[run][0]
    assert plain.first_bad is not None
    assert len(plain.bad_variables) == plain.variables
    assert np.isnan(plain.trained[0]) and np.isnan(plain.held_out[0])


@pytest.mark.parametrize("run", RUNS)
def test_guard_and_sound_loss_leave_no_bad_variable(shown, run):
    for outcome in shown.outcomes[run][1:]:
        assert outcome.bad_variables == []
        assert all(np.all(np.isfinite(w)) for w in outcome.model.get_weights())


@pytest.mark.parametrize("run", SCATTERED)
def test_exactly_the_batches_without_a_class_are_skipped(shown, run):
    setting = balanced_log_loss.scattered() if run[0] == "scattered" else center_distance.task()
    plain, guarded, sound = shown.outcomes[run]
    expected = steps_that_lack_a_class(setting, sound.steps)
    assert len(expected) >= 3, "the case shows something"
    assert guarded.skipped == expected
    assert guarded.report.totals["skipped"] == len(expected)
    assert guarded.report.totals["steps"] == guarded.steps == sound.steps
    assert plain.first_bad == expected[0]
    assert guarded.stopped is None


@pytest.mark.parametrize("run", SCATTERED)
def test_under_the_guard_the_naive_loss_learns(shown, run):
    plain, guarded, sound = shown.outcomes[run]
    start = shown.outcomes[run][2].losses[0]
    assert guarded.trained[0] < 0.25 * start
    assert guarded.held_out[1] > 0.93 > plain.held_out[1]
    assert abs(guarded.held_out[1] - sound.held_out[1]) < 0.02


def test_both_doors_tell_the_same(shown):
    fit, loop = (shown.outcomes["scattered", door][1] for door in ("fit", "loop"))
    assert fit.skipped == loop.skipped
    np.testing.assert_allclose(fit.trained, loop.trained, rtol=1e-3)


@pytest.mark.parametrize("run", SATURATED)
def test_saturation_stops_with_the_last_good_weights(shown, run):
    plain, guarded, sound = shown.outcomes[run]
    assert guarded.stopped == guarded.steps - 1 < sound.steps - 1
    assert guarded.skipped == list(range(plain.first_bad, plain.first_bad + 10)), "skipping does not help, it gives up"
    assert guarded.report.totals["skipped"] == 10
    assert guarded.trained[0] < 0.2 and guarded.held_out[1] > 0.93, "it had learned up to that point"
    told = balanced_log_loss.exact_ones(balanced_log_loss.saturated(), guarded.stopped, guarded.model)
    assert re.search(r"exactly 1\.0 in float32: [1-9]\d* of 455", told)


def test_the_stop_in_fit_says_why(shown):
    guarded = shown.outcomes["saturated", "fit"][1]
    assert guarded.report.incidents[-1].action == "stop" and guarded.report.incidents[-1].reason == "loss"
    assert "with the last good weights because the loss is not finite" in " ".join(shown.text.split())


@pytest.mark.parametrize("run", SATURATED)
def test_the_sound_loss_goes_on_where_the_naive_one_ends(shown, run):
    _, guarded, sound = shown.outcomes[run]
    assert sound.stopped is None and sound.skipped == []
    assert sound.trained[0] < 0.1 * guarded.trained[0]
    assert sound.held_out[1] > 0.93


def test_what_is_printed_stands_side_by_side(shown):
    columns = ("without guard", "with guard", "sound loss")
    for words in (*columns, "6 of 6", "14 of 14", "0 of 14", "lost", "skipped)", ", stop"):
        assert words in shown.text
    assert "\nscattered, in a hand-written loop with GradientGuard\n" in shown.text
    assert "With guard, step 6: no malignant tumour in the batch" in shown.text
    assert max(map(len, shown.text.splitlines())) <= text.WIDTH
    shown.text.encode("ascii")


def test_the_naive_losses_are_right_on_a_healthy_batch():
    """They fail for the reasons given, not because they are wrong."""
    from keras_nanguard.losses import BalancedBinaryCrossentropy
    from keras_nanguard.losses import ClassCenterDistance

    y, p = np.array([[1.0], [0], [0]], "float32"), np.array([[0.7], [0.2], [0.4]], "float32")
    np.testing.assert_allclose(balanced_log_loss.bal_log_loss(y, p), BalancedBinaryCrossentropy()(y, p), rtol=1e-6)
    y = np.array([[[0.0, 1.0, 1.0]]], "float32")
    p = np.array([[[[0.8, 0.2], [0.5, 0.5], [0.3, 0.7]]]], "float32")
    sound = ClassCenterDistance(center_distance.MARGIN)(y, p)
    np.testing.assert_allclose(center_distance.center_distance(y, p), sound, rtol=1e-6)


@pytest.mark.parametrize("module, package", [("sklearn", "scikit-learn"), ("skimage", "scikit-image")])
def test_missing_extra_says_what_to_install(monkeypatch, capsys, module, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else find(name, *rest))
    assert demo.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"nanguard demo needs {package}, not installed here" in said.err
    assert 'pip install "keras_nanguard[demo]"' in said.err


def test_backend_that_is_not_there_says_so(monkeypatch, capsys):
    import keras_nanguard.backend

    def refuse():
        raise ImportError("Keras runs on 'numpy' here.")

    monkeypatch.setattr(keras_nanguard.backend, "active", refuse)
    assert demo.main([]) == 2
    assert "cannot start: Keras runs on 'numpy' here." in capsys.readouterr().err


@pytest.mark.parametrize("arguments, code", [(["--case", "other"], 2), (["extra"], 2), (["--help"], 0)])
def test_arguments(arguments, code, capsys):
    with pytest.raises(SystemExit) as ended:
        demo.main(arguments)
    assert ended.value.code == code
    said = capsys.readouterr()
    assert "--case {log-loss,center-distance,all}" in said.out + said.err


def test_one_case_alone(monkeypatch):
    ran = []
    for name, module in (("first", balanced_log_loss), ("second", center_distance)):
        monkeypatch.setattr(module, "run", lambda say, name=name: ran.append(name))
    assert runner.main(["--case", "center-distance"]) == 0
    assert ran == ["second"]


def test_table():
    assert text.table(("a", "bb"), [("x", 1), ("yyy", 100)]).splitlines() == [
        "  a     bb",
        "  ---  ---",
        "  x      1",
        "  yyy  100",
    ]


def test_several():
    assert text.several([1, 2]) == "1, 2"
    assert text.several(range(9), most=3) == "0, 1, 2 and 6 more"
