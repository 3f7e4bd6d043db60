import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given

from keras_nanguard.report import Incident, StepRecord
from report_strategies import incidents, step_records


class Explains:
    """Stands for a `Diagnosis`: anything with `to_dict`."""

    def to_dict(self):
        return {"cause": "log-of-zero", "min": math.nan}


@given(incidents)
def test_an_incident_comes_back_from_its_dict(incident):
    again = Incident.from_dict(incident.to_dict())
    assert again == incident
    assert repr(again.loss) == repr(incident.loss) and repr(again.grad_norm) == repr(incident.grad_norm)


@given(step_records)
def test_a_step_comes_back_from_its_dict(record):
    again = StepRecord.from_dict(record.to_dict())
    assert again == record
    assert repr(dataclasses.astuple(again)) == repr(dataclasses.astuple(record))


@pytest.mark.parametrize(
    "change",
    [{"step": 4}, {"epoch": 1}, {"batch": 4}, {"replica": 0}, {"action": "stop"}, {"reason": "state"}, {"loss": 1.0},
     {"grad_norm": None}, {"message": "other"}, {"diagnosis": {"cause": "exp-overflow"}}],
)  # fmt: skip
def test_two_incidents_differ_when_any_field_differs(change):
    fields = dict(step=3, epoch=0, batch=3, action="skip", reason="loss", loss=math.nan, grad_norm=math.inf, diagnosis={})
    assert Incident(**fields) == Incident(**fields)
    assert Incident(**fields) != Incident(**{**fields, **change})
    assert Incident(**fields) != "an incident"


@pytest.mark.parametrize(
    ("field", "value"),
    [("step", -1), ("step", 1.5), ("epoch", True), ("batch", "3"), ("replica", -2), ("action", "clip"), ("action", None),
     ("reason", "bad"), ("reason", ["loss"]), ("loss", "much"), ("loss", True), ("grad_norm", []), ("loss", 10**400),
     ("message", None)],
)  # fmt: skip
def test_an_incident_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"`{field}` must be"):
        Incident(**{"action": "skip", "reason": "loss", field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("step", None), ("step", -1), ("loss", "x"), ("learning_rate", {}), ("outcome", "fine")]
)
def test_a_step_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"`{field}` must be"):
        StepRecord(**{"step": 0, field: value})


def test_records_cannot_be_changed():
    for record, field in ((Incident(action="skip", reason="loss"), "step"), (StepRecord(0), "loss")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field, 1)


def test_scalars_of_array_libraries_become_plain_numbers():
    incident = Incident(action="skip", reason="loss", step=np.int64(3), loss=np.float32("nan"), grad_norm=np.array(2.0))
    record = StepRecord(np.int32(4), loss=np.float16(0.5))
    assert [type(value) for value in (incident.step, incident.loss, incident.grad_norm)] == [int, float, float]
    assert json.dumps(record.to_dict()).startswith('{"step": 4, "loss": 0.5')


def test_a_diagnosis_is_kept_as_it_is_and_written_as_a_dict():
    diagnosis = Explains()
    incident = Incident(action="skip", reason="loss", diagnosis=diagnosis)
    assert incident.diagnosis is diagnosis
    assert incident.to_dict()["diagnosis"] == {"cause": "log-of-zero", "min": "NaN"}
    assert Incident.from_dict(incident.to_dict()) == incident


def test_what_is_missing_in_a_dict_is_named():
    with pytest.raises(ValueError, match="reason"):
        Incident.from_dict({"action": "skip"})
    with pytest.raises(ValueError, match="`StepRecord` must be a dict"):
        StepRecord.from_dict([1])
