"""The notebooks: they run from a clean kernel and show what they tell; in git they have no outputs."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import keras_nanguard

_FOLDER = Path(__file__).parents[1] / "notebooks"

# What a reader is told: in the outputs, in this order.
_TOLD = {
    "class_balanced_log_loss": [
        "one class:    nan", "loss by epoch: [nan", "recovered: ", "batches that were refused: [", "p = 1, label 1: nan",
        "stopped at epoch ", "one class:      0.", "healthy: 60 steps",
    ],
    "first_aid": [
        "loss: nan", "variables that hold NaN: ['", "variables that hold NaN: []", "recovered: 15 of 235 steps skipped",
        "missing value: [211]", "missing value: [640]", "missing value: [1033]", "weights as they were before: True",
        "stopped at epoch 0, batch 9", "10 of 10 steps", "healthy: 235 steps, none skipped.",
    ],
    "segmentation_center_distance": [
        "one class only: nan", "loss: nan", "14 of 14 variables hold NaN", "recovered: ", "healthy: 432 steps",
    ],
}  # fmt: skip


def _read(name):
    return nbformat.read(_FOLDER / f"{name}.ipynb", as_version=4)


def test_each_notebook_is_tested():
    assert sorted(path.stem for path in _FOLDER.glob("*.ipynb")) == sorted(_TOLD)


@pytest.mark.parametrize("name", sorted(_TOLD))
def test_a_notebook_is_kept_without_outputs(name):
    notebook = _read(name)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}, "of the machine that it was last run on"
    for cell in notebook.cells:
        assert cell.metadata == {}
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.parametrize("name", sorted(_TOLD))
def test_a_notebook_runs_from_a_clean_kernel_in_under_a_minute(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.fspath(Path(keras_nanguard.__file__).parents[1]))
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel chooses the one that draws into the notebook
    notebook = _read(name)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": os.fspath(tmp_path)}})
    before = os.times()
    client.execute()  # raises at the first cell with an error
    after = os.times()

    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    at = 0
    for words in _TOLD[name]:
        at = printed.find(words, at)
        assert at >= 0, f"{words!r} is not said, or not in its place, in:\n{printed}"
    assert any("image/png" in output.get("data", {}) for output in outputs), "there is a picture"
    # As CPU time of the kernel: what else the machine does at the time must not count.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 60
