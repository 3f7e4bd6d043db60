"""Runs the programs of this folder as several processes and reads what they tell."""

import concurrent.futures
import importlib.util
import json
import pathlib
import threading

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent

_spec = importlib.util.spec_from_file_location("launch", ROOT / "examples" / "launch.py")
launch = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(launch)


class Ended:
    """A process that has ended: `returncode`, `output`, and what it told by the name of the plan."""

    def __init__(self, returncode, output):
        self.returncode, self.output = returncode, output
        told = [json.loads(line[5:]) for line in output.splitlines() if line.startswith("TOLD ")]
        self.told = {one["name"]: one for one in told}


def run(count, program, *arguments, timeout=300):
    """The ended processes, in the order of their rank. After `timeout` seconds all are killed: the test fails, and does not hang."""
    started = launch.start(count, [str(program), *arguments])
    killer = threading.Timer(timeout, lambda: [process.kill() for process in started])
    killer.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            outputs = list(pool.map(lambda process: process.communicate()[0], started))
    finally:
        killer.cancel()
    return [Ended(process.returncode, output) for process, output in zip(started, outputs)]


def told(count, program, plans, *arguments):
    """What each process tells of each plan: a list of dicts by name."""
    ended = run(count, HERE / program, json.dumps(plans), *arguments)
    for rank, process in enumerate(ended):
        assert process.returncode == 0, f"process {rank}:\n{process.output[-3000:]}"
    return [process.told for process in ended]
