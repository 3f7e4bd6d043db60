"""What the guard sums over the processes under `MultiWorkerMirroredStrategy`, counted in the compiled step."""

import processes


def test_one_scalar_more_and_no_second_sum_of_the_gradients():
    plans = [{"name": "guarded"}, {"name": "plain", "guarded": False}]
    for told in processes.told(2, "tensorflow_loop.py", plans):
        guarded, plain = told["guarded"], told["plain"]
        assert len(plain["sums"]) == 1, "Keras sums the gradients packed into one"
        assert guarded["sums"] == [plain["sums"][0] + 1]
        assert guarded["state"] == plain["state"]
