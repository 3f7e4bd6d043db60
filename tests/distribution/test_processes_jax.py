"""`keras.distribution` beyond one verdict for all: the snapshot, the report, what is communicated, several devices of one process."""

import collections
import json
import re

import processes
import pytest

import keras_nanguard as ng

KINDS = ["data", "model"]
FAULTS = {"input": 0, "target": 7, "gradient": 4, "state": 3}


@pytest.mark.parametrize("kind", KINDS)
def test_four_devices_of_one_process(kind):
    faulty = [{"name": fault, "faults": {step: fault}} for fault, step in FAULTS.items()]
    clean = [{"name": f"without {fault}", "without": [step]} for fault, step in FAULTS.items()]
    (told,) = processes.told(1, "jax_fit.py", [*faulty, *clean], kind, "4")
    for fault, step in FAULTS.items():
        assert [(i["step"], i["action"]) for i in told[fault]["incidents"]] == [(step, "skip")]
        assert told[fault]["skipped"] == [1.0]
        assert told[fault]["state"] == told[f"without {fault}"]["state"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_snapshot_is_put_back_in_every_process(kind):
    """The learning rate is infinite for one step of the second epoch: what holds then is the state at the first one's end."""
    plans = [{"name": "one epoch", "explodes": 1000}, {"name": "explodes", "explodes": 11, "epochs": 4}]
    for told in processes.told(2, "jax_fit.py", plans, kind, "1"):
        stopped = told["explodes"]
        assert stopped["finite"]
        assert [i["reason"] for i in stopped["incidents"] if i["action"] == "stop"] == ["update"]
        assert stopped["state"] == told["one epoch"]["state"]


def test_the_chief_alone_writes_the_report_and_prints(tmp_path):
    plan = {"name": "input", "faults": {3: "input"}, "report": str(tmp_path / "{rank}.json"), "verbose": 2}
    first, second = processes.run(2, processes.HERE / "jax_fit.py", json.dumps([plan]), "data", "1")
    assert (first.returncode, second.returncode) == (0, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]
    assert ng.load_report(tmp_path / "0.json").totals["skipped"] == 1
    assert "nanguard: epoch 0, batch 3" in first.output
    assert "nanguard:" not in second.output


def communicated(folder):
    """Of the compiled step: the shapes that are summed over the devices, each with how often."""
    step = max(folder.glob("*.cpu_after_optimizations.txt"), key=lambda path: path.stat().st_size)
    found = re.findall(r"= (\S.*?) all-reduce\(", step.read_text())
    return collections.Counter(shape for shapes in found for shape in re.findall(r"\w+\[[\d,]*\]", shapes))


@pytest.mark.parametrize("kind", KINDS)
def test_no_second_sum_of_the_gradients(kind, tmp_path, monkeypatch):
    sums = {}
    for guarded in (True, False):
        folder = tmp_path / str(guarded)
        monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={folder} --xla_dump_hlo_as_text")
        processes.told(1, "jax_fit.py", [{"name": "one", "guarded": guarded}], kind, "4")
        sums[guarded] = communicated(folder)
    added = sums[True] - sums[False]
    assert sums[False] and not sums[False] - sums[True]
    if kind == "data":
        assert not added
    else:  # a norm over weights that lie on several devices is a sum over the devices
        assert set(added) == {"f32[]", "pred[]"}
