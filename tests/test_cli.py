"""The command `nanguard`: what it passes on, what it refuses, and that asking for help costs nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_nanguard
import keras_nanguard.demo
from keras_nanguard import cli


def test_demo_gets_the_arguments_after_it_and_gives_the_exit_code(monkeypatch):
    given = []
    monkeypatch.setattr(keras_nanguard.demo, "main", lambda argv: given.append(argv) or 7)
    assert cli.main(["demo", "--case", "log-loss", "--help", "--version"]) == 7
    assert cli.main(["demo"]) == 7
    assert given == [["--case", "log-loss", "--help", "--version"], []]


def test_the_arguments_of_the_process_are_read_where_none_are_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["nanguard", "demo", "--case", "all"])
    monkeypatch.setattr(keras_nanguard.demo, "main", lambda argv: len(argv))
    assert cli.main() == 2


@pytest.mark.parametrize(
    "argv, said",
    [
        (["train"], "'train' is not a command. Commands: demo."),
        ([""], "'' is not a command. Commands: demo."),
        ([], "a command is missing. Commands: demo."),
        (["--fast", "demo"], "unrecognized arguments: --fast"),
    ],
)
def test_a_command_line_that_cannot_be_read_says_so_and_exits_with_2(argv, said, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main(argv)
    assert exit.value.code == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.out == ""


@pytest.mark.parametrize(
    "words, said",
    [
        (["--version"], f"keras_nanguard {keras_nanguard.__version__}\n"),
        (["--help"], "commands:\n  demo    two losses that turn training to NaN"),
        (["demo", "--help"], "--case"),
    ],
)
def test_help_and_version_start_no_framework(words, said, tmp_path):
    env = {**os.environ, "PYTHONPATH": os.fspath(Path(keras_nanguard.__file__).parents[1])}
    command = [sys.executable, "-c", _SCRIPT, *words]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    assert done.stdout.endswith("started: []\n")


_SCRIPT = """
import atexit, sys
frameworks = {"keras", "tensorflow", "jax", "torch", "numpy"}
atexit.register(lambda: print("started:", sorted(frameworks & set(sys.modules))))
from keras_nanguard.cli import main
sys.exit(main())
"""
