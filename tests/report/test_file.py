import errno
import json
import os
import signal
import stat
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings

from keras_nanguard.report import Incident, RunReport, StepRecord, load_report, write_report
from report_strategies import reports

OLD = RunReport(outcome="running", totals={"steps": 1})
NEW = RunReport(
    outcome="completed", totals={"steps": 2}, incidents=[Incident(action="skip", reason="loss", step=0, loss=float("nan"))],
    steps=[StepRecord(0, loss=float("-inf"), grad_norm=float("inf"))],
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reports)
def test_a_report_comes_back_from_disk(tmp_path, report):
    write_report(report, tmp_path / "run.json")
    again = load_report(tmp_path / "run.json")
    assert again == report
    assert [repr(record.loss) for record in again.steps] == [repr(record.loss) for record in report.steps]
    assert str(again) == str(report)


def test_the_file_is_strict_json_with_its_schema_version(tmp_path):
    write_report(NEW, tmp_path / "run.json")

    def refuse(name):
        raise AssertionError(f"bare {name} in the file")

    content = json.loads((tmp_path / "run.json").read_bytes().decode("utf-8"), parse_constant=refuse)
    assert content["schema_version"] == 1
    assert content["incidents"][0]["loss"] == "NaN"
    assert content["steps"][0]["loss"] == "-Infinity" and content["steps"][0]["grad_norm"] == "Infinity"
    assert content["totals"] == NEW.totals


def test_missing_folders_are_made_and_nothing_else_is_left(tmp_path):
    write_report(NEW, str(tmp_path / "a" / "b" / "run.json"))
    write_report(OLD, str(tmp_path / "a" / "b" / "run.json"))
    assert os.listdir(tmp_path / "a" / "b") == ["run.json"]
    assert load_report(tmp_path / "a" / "b" / "run.json") == OLD


def test_a_bare_file_name_goes_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_report(NEW, "run.json")
    assert load_report("run.json") == NEW


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("no"), OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, function, error):
    path = tmp_path / "run.json"
    write_report(OLD, path)

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises((OSError, KeyboardInterrupt)) as caught:
            write_report(NEW, path)
    if isinstance(error, OSError):
        assert str(path) in str(caught.value) and caught.value.errno == error.errno
    assert load_report(path) == OLD
    assert os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_process_killed_while_it_writes_leaves_the_old_file_whole(tmp_path, moment):
    path = tmp_path / "run.json"
    write_report(OLD, path)
    script = (
        "import os, signal, sys\n"
        "from keras_nanguard.report import RunReport, write_report\n"
        f"os.{moment} = lambda *args: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_report(RunReport(), sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == -signal.SIGKILL
    assert load_report(path) == OLD


def test_the_file_has_the_rights_that_any_new_file_has(tmp_path):
    (tmp_path / "any").write_text("")
    write_report(NEW, tmp_path / "run.json")
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == stat.S_IMODE((tmp_path / "any").stat().st_mode)


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "there" / "run.json")
    write_report(NEW, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink() and load_report(tmp_path / "there" / "run.json") == NEW


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "run.json", tmp_path / "folder"):
        with pytest.raises(OSError, match="could not be written to") as caught:
            write_report(NEW, path)
        assert str(path) in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"] and os.listdir(tmp_path / "folder") == []


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no report at .*none.json"):
        load_report(tmp_path / "none.json")
    with pytest.raises(OSError, match="could not be read"):
        load_report(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not JSON"), (b"loss: nan", "not JSON"), (b'{"schema_version": 1', "not JSON"), (b"\xff\xfe{}", "not JSON"),
     (b'{"loss": NaN}', "NaN is no JSON"), (b"[" * 100_000, "not JSON"), (b"[]", "not a report"), (b"3", "not a report"),
     (b"{}", "not a report"), (b'{"schema_version": 1}', "not a report"),
     (b'{"format": "keras_nanguard.RunReport", "schema_version": true}', "not a report"),
     (b'{"format": "keras_nanguard.RunReport", "schema_version": "1"}', "not a report"),
     (b'{"format": "keras_nanguard.RunReport", "schema_version": 2, "outcome": "new"}', "schema version is 2.*up to 1.*Upgrade"),
     (b'{"format": "keras_nanguard.RunReport", "schema_version": 1, "outcome": "new"}', "damaged.*`outcome`"),
     (b'{"format": "keras_nanguard.RunReport", "schema_version": 1, "totals": []}', "damaged.*`totals`"),
     (b'{"format": "keras_nanguard.RunReport", "schema_version": 1, "incidents": [{}]}', "damaged.*Incident"),
     (b'{"format": "keras_nanguard.RunReport", "schema_version": 1, "steps": [{"step": 0, "loss": "x"}]}', "damaged.*`loss`")],
)  # fmt: skip
def test_what_is_no_report_is_refused_with_the_reason(tmp_path, content, message):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_report(path)
    assert "run.json" in str(caught.value)


def test_keys_of_a_later_version_with_the_same_schema_are_ignored(tmp_path):
    path = tmp_path / "run.json"
    write_report(NEW, path)
    content = json.loads(path.read_text("utf-8"))
    content["hue"] = content["totals"]["hue"] = content["incidents"][0]["hue"] = content["steps"][0]["hue"] = 1
    path.write_text(json.dumps(content), "utf-8")
    assert load_report(path) == NEW
