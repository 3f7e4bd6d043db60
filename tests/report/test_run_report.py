import datetime
import functools
import json
import pathlib

import numpy as np
import pytest
from hypothesis import given

from keras_nanguard.report import Incident, RunReport, StepRecord, report_text
from report_strategies import reports

TOTALS = ["steps", "skipped", "clipped", "rollbacks", "backoffs", "scale_overflows"]


class Configured:
    def get_config(self):
        return {"window": 128, "bound": float("inf")}


@given(reports)
def test_a_report_comes_back_from_its_dict(report):
    again = RunReport.from_dict(report.to_dict())
    assert again == report
    assert again.to_dict().keys() == report.to_dict().keys()
    assert list(again.totals) == TOTALS
    assert len(repr(again)) < 250 and "\n" not in repr(again)


@given(reports)
def test_its_dict_shares_nothing_with_the_report(report):
    before = repr(report.to_dict())
    data = report.to_dict()
    for value in data.values():
        if isinstance(value, (list, dict)):
            value.clear()
    assert repr(report.to_dict()) == before


@pytest.mark.parametrize(
    "change",
    [{"settings": {"a": 2}}, {"versions": {"keras": "3.0"}}, {"outcome": "stopped"}, {"started": "2020-01-01"},
     {"duration": 2.0}, {"judged": "gradients"}, {"incidents": []}, {"incident_counts": {"skip/loss": 7}}, {"steps": []},
     {"notes": ["x"]}, {"totals": {"steps": 2}}],
)  # fmt: skip
def test_two_reports_differ_when_any_field_differs(change):
    fields = dict(
        settings={"a": 1}, outcome="completed", started="2026-01-01T00:00:00+00:00", duration=1.0, totals={"steps": 1},
        incidents=[Incident(action="skip", reason="loss", loss=float("nan"))], steps=[StepRecord(0, loss=float("nan"))],
    )  # fmt: skip
    assert RunReport(**fields) == RunReport(**fields)
    assert RunReport(**fields) != RunReport(**{**fields, **change})


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"outcome": "good"}, "`outcome` must be one of 'running'"), ({"duration": -1}, "`duration`"),
     ({"duration": float("nan")}, "`duration`"), ({"duration": None}, "`duration`"), ({"judged": 1}, "`judged`"),
     ({"started": None}, "`started`"), ({"settings": []}, "`settings`"), ({"versions": "3"}, "`versions`"),
     ({"incidents": 1}, "`incidents`"), ({"incidents": [1]}, "`Incident`"), ({"steps": ["x"]}, "`StepRecord`"),
     ({"notes": "text"}, "`notes`"), ({"notes": [1]}, "`notes`"), ({"totals": {"step": 1}}, "'step'"),
     ({"totals": {"steps": -1}}, "`steps`"), ({"totals": 3}, "`totals`"), ({"incident_counts": 3}, "`incident_counts`"),
     ({"incident_counts": {"skip/loss": 1.5}}, "`skip/loss`"),
     ({"incident_counts": {}, "incidents": [Incident(action="skip", reason="loss")]}, "fewer 'skip/loss'")],
)  # fmt: skip
def test_a_report_out_of_range_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        RunReport(**fields)


def test_totals_have_exactly_their_six_keys():
    assert RunReport(totals={"clipped": 2}).totals == {**dict.fromkeys(TOTALS, 0), "clipped": 2}


def test_incidents_are_counted_where_no_counts_are_given():
    incidents = [Incident(action="skip", reason=reason) for reason in ("loss", "gradient", "loss")]
    assert RunReport(incidents=incidents).incident_counts == {"skip/loss": 2, "skip/gradient": 1}


def test_settings_of_any_kind_become_plain_values():
    holds_itself = {}
    holds_itself["me"] = holds_itself
    given_settings = {
        "guard": Configured(), "path": pathlib.PurePosixPath("runs/a.json"), "rate": np.float32(0.5), "sizes": {2, 1},
        "function": len, "kind": RunReport, "partial": functools.partial(len), "pair": (1, None), "loop": holds_itself, 7: True,
    }  # fmt: skip
    settings = RunReport(settings=given_settings).settings
    assert settings["guard"] == {"window": 128, "bound": "Infinity"}
    assert settings["path"] == "runs/a.json" and settings["rate"] == 0.5 and settings["sizes"] == [1, 2]
    assert settings["function"] == "builtins.len" and settings["kind"].endswith(".RunReport")
    assert settings["pair"] == [1, None] and settings["7"] is True
    json.dumps(settings, allow_nan=False)


def test_a_report_keeps_its_own_lists():
    notes, settings = ["one"], {"a": [1]}
    report = RunReport(notes=notes, settings=settings)
    notes.append("two"), settings["a"].append(2)
    assert report.notes == ["one"] and report.settings == {"a": [1]}


def test_it_starts_now_in_utc():
    started = datetime.datetime.fromisoformat(RunReport().started)
    assert started.utcoffset() == datetime.timedelta(0)
    assert abs(datetime.datetime.now(datetime.timezone.utc) - started) < datetime.timedelta(minutes=1)


def test_printing_gives_the_text_and_repr_a_short_line():
    report = RunReport(outcome="completed", totals={"steps": 480, "skipped": 3})
    assert str(report) == report_text(report)
    assert repr(report) == "<RunReport completed: steps=480, skipped=3, incidents=0>"
