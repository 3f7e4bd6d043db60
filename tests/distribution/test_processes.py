"""Two real processes that train together: one verdict for both, in the same step."""

import json
import signal

import keras
import processes
import pytest

BACKEND = keras.config.backend()
PROGRAMS = {
    "tensorflow": [("tensorflow_loop.py",)],
    "torch": [("torch_loop.py",)],
    "jax": [("jax_fit.py", "data", "1"), ("jax_fit.py", "model", "1")],
}
FAULTS = {"input": "loss", "target": "loss", "gradient": "gradient", "state": "state"}  # fault -> the reason that is told
AT = {"input": 0, "target": 4, "gradient": 7, "state": 3}  # the first step, the last, and between
REPLICA = {"input": 1, "target": 0, "gradient": None if BACKEND == "torch" else 1, "state": 1}  # torch has summed them by then
if BACKEND == "jax":
    REPLICA = dict.fromkeys(FAULTS)  # the arrays are global, and the step knows of no replicas


@pytest.fixture(scope="module", params=PROGRAMS[BACKEND], ids=lambda program: "-".join(program))
def told(request):
    """What each of the two processes tells of each plan: a list of dicts."""
    faulty = [{"name": fault, "faults": {AT[fault]: fault}} for fault in FAULTS]
    clean = [{"name": f"without {fault}", "without": [AT[fault]]} for fault in FAULTS]
    program, *arguments = request.param
    return processes.told(2, program, [*faulty, *clean, {"name": "healthy"}], *arguments)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_process_is_skipped_by_both(told, fault):
    for of_process in told:
        one = of_process[fault]
        assert [(i["step"], i["action"]) for i in one["incidents"]] == [(AT[fault], "skip")]
        assert one["totals"]["skipped"] == 1 and one["totals"]["steps"] == 8
        assert one["finite"]
        if "applied" in one:
            assert one["applied"] == [step != AT[fault] for step in range(8)]
        else:
            assert one["skipped"] == [1.0]


@pytest.mark.parametrize("fault", FAULTS)
def test_both_have_the_bits_of_the_training_without_that_batch(told, fault, request):
    for of_process in told:
        faulty, clean = of_process[fault], of_process[f"without {fault}"]
        assert faulty["state"] == clean["state"]
        assert faulty.get("own") == clean.get("own")
    first, second = (of_process[fault]["state"] for of_process in told)
    laid_over_both = {name for name in first if "hidden" in name} if "model" in request.node.name else set()
    assert {name for name in first if first[name] != second[name]} <= laid_over_both


@pytest.mark.parametrize("fault", FAULTS)
def test_both_tell_the_same_of_it(told, fault):
    first, second = (of_process[fault]["incidents"][0] for of_process in told)
    assert first == second
    assert first["reason"] == FAULTS[fault]
    assert first["replica"] == REPLICA[fault]


def test_a_healthy_training_has_no_incident(told):
    for of_process in told:
        assert of_process["healthy"]["incidents"] == []


def test_a_process_that_dies_leaves_the_other_with_an_error():
    """In the time that its framework takes to notice; the other has not told of that training, and was not killed by the test."""
    program, *arguments = PROGRAMS[BACKEND][0]
    plan = [{"name": "dies", "dies": [0, 1], "epochs": 3}]
    dead, other = processes.run(2, processes.HERE / program, json.dumps(plan), *arguments, timeout=200)
    assert dead.returncode == 3
    assert other.returncode not in (0, -signal.SIGKILL)
    assert other.told == {}
