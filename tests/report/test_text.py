import pytest
from hypothesis import given

from keras_nanguard.report import Incident, Recorder, RunReport, report_text
from report_strategies import reports


def report(outcome="completed", incidents=(), notes=(), **totals):
    return RunReport(outcome=outcome, incidents=list(incidents), notes=list(notes), totals=totals)


def headline(*args, **kwargs):
    text = report_text(report(*args, **kwargs))
    return " ".join(text[: text.index("\ntotals: ")].split())


def stop(reason="loss", **fields):
    return Incident(**{"action": "stop", "reason": reason, "epoch": 2, "batch": 3, "step": 43, **fields})


@given(reports)
def test_any_report_is_ascii_of_at_most_100_columns(made):
    lines = report_text(made).split("\n")
    assert all(line.isascii() and line.isprintable() and len(line) <= 100 for line in lines)
    for label in ("totals: ", "judged:", "run: ", "versions: ", "settings: "):
        assert sum(line.startswith(label) for line in lines) == 1


def test_a_healthy_run():
    assert headline(steps=480) == "healthy: 480 steps, none skipped."
    assert headline(steps=1, clipped=1) == "healthy: 1 step, none skipped, 1 step clipped."
    lowered = headline(steps=9, notes=["x"], backoffs=2)
    assert lowered == "healthy: 9 steps, none skipped, learning rate lowered 2 times; 1 note below."
    assert "incidents: none" in report_text(report(steps=480)).splitlines()


def test_a_recovered_run():
    assert headline(steps=480, skipped=3) == "recovered: 3 of 480 steps skipped; training went on and completed."
    assert headline(steps=480, skipped=3, rollbacks=1).startswith("recovered: 3 of 480 steps skipped, 1 rollback;")
    assert headline(steps=480, rollbacks=2).startswith("recovered: 480 steps, none skipped, 2 rollbacks;")


def test_a_run_that_skipped_most_steps_is_called_a_bug():
    bug = "A BUG, NOT A RECOVERY: 241 of 480 steps were skipped, so the model learned from the other 239 only."
    assert headline(steps=480, skipped=241).startswith(bug) and "recovered" not in headline(steps=480, skipped=241)
    assert headline(steps=480, skipped=240).startswith("recovered")
    assert "the model learned nothing. " in headline(steps=1, skipped=1)
    for outcome in ("running", "stopped", "raised", "interrupted"):
        assert bug in headline(outcome, steps=480, skipped=241) and "BUG" not in headline(outcome, steps=480, skipped=240)


def test_a_stopped_run_says_where_why_and_what_is_left():
    assert headline("stopped", [stop()], steps=44, skipped=10) == (
        "stopped at epoch 2, batch 3 (step 43) with the last good weights because the loss is not finite; "
        "10 of 44 steps skipped."
    )
    assert "good weights" not in headline("stopped", [stop("initial_state")], steps=1)
    assert headline("stopped", steps=4) == "stopped with the last good weights: 4 steps, none skipped."


def test_a_run_that_was_ended_otherwise():
    raised = headline("raised", [stop("update")], steps=44)
    assert raised.startswith("raised an error at epoch 2, batch 3 (step 43) with the last good weights because the update")
    assert headline("raised", steps=44) == "ended by an exception: 44 steps, none skipped before it."
    assert headline("interrupted", steps=44, skipped=1) == "interrupted: 1 of 44 steps skipped before that."
    assert headline("running") == "running: no step so far."
    assert headline("completed") == "nothing to judge: no training step was seen."


def test_a_mention_keeps_a_run_from_being_called_healthy():
    made = headline(incidents=[Incident(action="mention", reason="validation", epoch=1)], steps=5)
    assert made == "completed: 5 steps, none skipped; 1 incident, see below."


def test_incidents_are_grouped_the_first_in_full_then_counted():
    recorder = Recorder()
    for step in range(5000):
        recorder.add_incident(action="skip", reason="loss", step=step, epoch=0, batch=step, loss=float("inf"))
    recorder.add_incident(action="rollback", reason="state", step=6000, replica=1)
    lines = str(recorder.build()).splitlines()
    begin = lines.index("incidents (epochs, batches and steps count from 0):")
    assert lines[begin + 1 : begin + 3] == [
        "  skip, loss: 5000 times",
        "    epoch 0, batch 0 (step 0): the loss is not finite; step skipped, weights unchanged. (loss=inf)",
    ]
    assert lines[begin + 5 : begin + 8] == [
        "    and 4997 more; the last one kept at epoch 0, batch 999 (step 999)",
        "  rollback, state: 1 time",
        "    and 1 more",
    ]


def test_a_diagnosis_speaks_in_its_own_words():
    class Explains:
        def to_dict(self):
            return {"explanation": "log of 0.", "remedy": "use log1p", "op": "log"}

        def __str__(self):
            return "the log of 0\nin loss.py"

    incident = Incident(action="skip", reason="loss", diagnosis=Explains())
    assert "      the log of 0\n      in loss.py\n" in report_text(report(incidents=[incident]))
    loaded = Incident.from_dict(incident.to_dict())
    assert "      log of 0.\n      use log1p\n" in report_text(report(incidents=[loaded]))


def test_notes_are_listed_and_many_are_counted():
    text = report_text(report(notes=[f"note {number}" for number in range(30)]))
    assert "notes:\n  - note 0\n" in text and "  - note 19\n  and 10 more\n" in text and "note 20" not in text


def test_what_was_judged_the_versions_and_the_settings_are_named():
    made = RunReport(
        judged="gradients", versions={"keras": "3.15.0"}, duration=2.04, started="2026-01-01T00:00:00+00:00",
        settings={"step_guard": {"window": 128}, "max_consecutive_skips": 10},
    )  # fmt: skip
    assert report_text(made).splitlines()[-4:] == [
        "judged: gradients",
        "run: running, started 2026-01-01T00:00:00+00:00, 2.0 seconds",
        "versions: keras=3.15.0",
        "settings: step_guard=(window=128), max_consecutive_skips=10",
    ]


@pytest.mark.parametrize(
    ("fields", "place"),
    [({"epoch": 2}, "epoch 2: "), ({"step": 4}, "step 4: "), ({"epoch": 1, "step": 4}, "epoch 1 (step 4): "),
     ({"replica": 1}, "replica 1: "), ({}, "somewhere in fit: ")],
)  # fmt: skip
def test_a_place_is_told_as_far_as_it_is_known(fields, place):
    assert f"\n    {place}the loss" in report_text(report(incidents=[Incident(action="skip", reason="loss", **fields)]))


def test_a_state_that_was_bad_before_training_is_told_so():
    text = report_text(report(incidents=[Incident(action="mention", reason="initial_state", message="Variable dense/kernel.")]))
    assert "    start of fit: the state was not finite before training; only mentioned, nothing was done." in text
    assert "Variable dense/kernel." in " ".join(text.split())
