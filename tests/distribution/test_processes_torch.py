"""What the guard sums over the processes beside `DistributedDataParallel`."""

import processes


def test_one_scalar_per_step():
    for told in processes.told(2, "torch_loop.py", [{"name": "healthy"}, {"name": "input", "faults": {3: "input"}}]):
        assert told["healthy"]["sums"] == [[1]] * 8
        assert [sums for step, sums in enumerate(told["input"]["sums"]) if step != 3] == [[1]] * 7
        assert set(told["input"]["sums"][3]) == {1}, "scalars, to tell who it was"
