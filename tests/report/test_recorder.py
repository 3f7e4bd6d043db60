import pytest

from keras_nanguard.report import Incident, Recorder, RunReport, StepRecord


def filled(number, action="skip", reason="loss"):
    recorder = Recorder()
    for step in range(number):
        recorder.add_incident(action=action, reason=reason, step=step, epoch=0, batch=step)
    return recorder


def test_five_thousand_incidents_keep_the_first_thousand_and_count_all():
    report = filled(5000).build()
    assert [incident.step for incident in report.incidents] == list(range(1000))
    assert report.incident_counts == {"skip/loss": 5000}


def test_the_thousandth_is_kept_and_the_next_is_not():
    assert [len(filled(number).build().incidents) for number in (999, 1000, 1001)] == [999, 1000, 1000]


def test_the_stop_is_kept_after_a_thousand_others_but_only_one():
    recorder = filled(1500)
    for step in (1500, 1501):
        recorder.add_incident(action="stop", reason="gradient", step=step)
    report = recorder.build()
    assert len(report.incidents) == 1001 and report.incidents[-1].step == 1500
    assert report.incident_counts == {"skip/loss": 1500, "stop/gradient": 2}


def test_kinds_are_counted_apart():
    recorder = Recorder()
    for action, reason, number in (("skip", "loss", 3), ("skip", "gradient", 2), ("rollback", "loss", 1)):
        for _ in range(number):
            recorder.add_incident(Incident(action=action, reason=reason))
    assert recorder.build().incident_counts == {"skip/loss": 3, "skip/gradient": 2, "rollback/loss": 1}


def test_notes_are_said_once_and_bounded():
    recorder = Recorder()
    assert recorder.add_note("a metric is NaN") and not recorder.add_note("a metric is NaN")
    assert recorder.build().notes == ["a metric is NaN"]
    for number in range(500):
        recorder.add_note(f"note {number}")
    notes = recorder.build().notes
    assert len(notes) == 101 and notes[99] == "note 98" and notes[100] == "Further notes were left out."


def test_the_last_128_steps_are_kept():
    recorder = Recorder()
    recorder.set_steps(StepRecord(step) for step in range(300))
    assert [record.step for record in recorder.build().steps] == list(range(172, 300))
    recorder.set_steps([{"step": 7, "loss": 1.0}])
    assert recorder.build().steps == [StepRecord(7, loss=1.0)]


def test_totals_are_set_key_by_key():
    recorder = Recorder()
    recorder.set_totals(steps=10, skipped=2)
    recorder.set_totals(steps=20)
    assert recorder.build().totals["steps"] == 20 and recorder.build().totals["skipped"] == 2
    with pytest.raises(ValueError, match="'skips'"):
        recorder.set_totals(skips=1)


def test_a_report_does_not_move_with_later_events():
    settings = {"guard": {"window": 128}}
    recorder = Recorder(settings=settings)
    recorder.add_incident(action="skip", reason="loss", step=0)
    first, before = recorder.build(), recorder.build().to_dict()
    recorder.add_incident(action="skip", reason="loss", step=1)
    recorder.add_note("note")
    recorder.set_totals(steps=3)
    recorder.set_steps([StepRecord(1)])
    recorder.set_judged("gradients")
    recorder.finish("stopped")
    settings["guard"]["window"] = 1
    assert {**first.to_dict(), "duration": 0} == {**before, "duration": 0}
    first.settings["guard"]["window"] = 2
    first.notes.append("mine")
    first.totals["steps"] = 99
    later = recorder.build()
    assert later.settings == {"guard": {"window": 128}} and later.notes == ["note"] and later.totals["steps"] == 3
    assert later.judged == "gradients" and later.outcome == "stopped" and len(later.incidents) == 2


def test_the_duration_runs_until_the_run_ends():
    now = [100.0]
    recorder = Recorder(clock=lambda: now[0])
    now[0] = 103.5
    assert recorder.build().duration == 3.5 and recorder.build().outcome == "running"
    recorder.finish("completed")
    now[0] = 200.0
    assert recorder.build().duration == 3.5 and recorder.build().outcome == "completed"
    recorder.finish("running")
    assert recorder.build().duration == 100.0


def test_bad_input_is_refused_and_records_nothing():
    recorder = Recorder()
    for call in (
        lambda: recorder.add_incident(action="skip", reason="none"),
        lambda: recorder.finish("done"),
        lambda: recorder.set_steps([{"loss": 1.0}]),
        lambda: recorder.add_note(3),
        lambda: recorder.set_judged(None),
    ):
        with pytest.raises(ValueError):
            call()
    report = recorder.build()
    assert report == RunReport(started=report.started, duration=report.duration)
