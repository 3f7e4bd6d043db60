"""The package as a whole: no framework, and examples that run."""

import doctest
import importlib
import os
import subprocess
import sys

import pytest

import keras_nanguard.report as report


def test_reading_a_report_needs_no_framework(tmp_path):
    path = tmp_path / "run.json"
    report.write_report(report.RunReport(outcome="completed", totals={"steps": 3}), path)
    script = (
        "import sys\n"
        "for name in ('keras', 'tensorflow', 'jax', 'torch', 'numpy'):\n"
        "    sys.modules[name] = None  # as on a machine that has none: importing it raises\n"
        "import keras_nanguard.report\n"
        "print(keras_nanguard.report.load_report(sys.argv[1]))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, str(path)], env=env, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.startswith("healthy: 3 steps, none skipped.\n")


def test_importing_it_starts_no_framework():
    script = (
        "import sys, keras_nanguard.report\n"
        "print(sorted({'keras', 'tensorflow', 'jax', 'torch', 'numpy'} & set(sys.modules)))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("name", ["record", "run_report", "recorder", "file", "text", "messages"])
def test_the_examples_in_the_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"keras_nanguard.report.{name}")
    names = {public: getattr(report, public) for public in report.__all__}
    results = doctest.testmod(module, extraglobs=names)
    assert results.attempted > 0 and results.failed == 0
