"""The programs of `examples/` run as their first lines say, and skip the one bad step."""

import keras
import processes
import pytest

EXAMPLES = {
    "tensorflow": [(1, "tensorflow_mirrored.py"), (2, "tensorflow_multi_worker.py")],
    "torch": [(2, "torch_distributed.py")],
    "jax": [(count, "jax_distribution.py", *kind) for count in (1, 2) for kind in ((), ("model",))],
}[keras.config.backend()]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: "-".join(map(str, example)))
def test_an_example_skips_the_bad_step_in_every_process(example):
    count, program, *arguments = example
    command = [str(processes.ROOT / "examples" / program), *arguments]
    if count > 1:
        command = [str(processes.ROOT / "examples" / "launch.py"), str(count), *command]
    (ended,) = processes.run(1, *command)
    assert ended.returncode == 0, ended.output[-3000:]
    assert ended.output.count("totals: steps=20, skipped=1,") == 1, "one report, by the chief"
    sums = [line.split("sum of the weights: ")[1] for line in ended.output.splitlines() if "sum of the weights" in line]
    assert len(sums) == count and len(set(sums)) == 1


def test_the_launcher_says_how_it_is_called():
    (ended,) = processes.run(1, processes.ROOT / "examples" / "launch.py")
    assert ended.returncode == 1
    assert "python launch.py 2 program.py" in ended.output
