"""README.md: its programs run, print what it shows, and promise only names that exist."""

import re

import readme

import keras_nanguard


def test_the_programs_run_in_order_and_print_what_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    programs, namespace = readme.examples("python"), {}
    assert len(programs) >= 4
    for program, shown in programs:
        exec(compile(program, "README.md", "exec"), namespace)
        printed = capsys.readouterr().out
        assert readme.missing(shown or "", printed) == [], printed


def test_the_quickstart_has_ten_lines():
    assert len([line for line in readme.examples("python")[0][0].splitlines() if line]) <= 10


def test_there_are_two_commands_of_one_line_and_their_output_is_shown():
    commands = readme.examples("sh")
    assert [text.count("\n") for text, _ in commands] == [1, 1]
    assert ["nanguard demo" in commands[0][0], "pytest" in commands[1][0]] == [True, True]
    assert all(shown for _, shown in commands)


def test_names_of_the_package_in_the_text_exist():
    named = set(re.findall(r"`(?:losses\.)?([A-Z][a-z]+[A-Z]\w+)", readme.PATH.read_text(encoding="utf-8")))
    foreign = {"GradientTape", "TerminateOnNaN", "MirroredStrategy", "MultiWorkerMirroredStrategy", "DataParallel", "ModelParallel", "DistributedDataParallel"}
    names = set(keras_nanguard.__all__) | set(dir(keras_nanguard.losses))
    assert {"NanGuardCallback", "BalancedBinaryCrossentropy"} <= named
    assert named - foreign <= names


def test_each_public_name_is_in_the_text():
    text = readme.PATH.read_text(encoding="utf-8")
    assert [name for name in keras_nanguard.__all__ if name not in text] == []


def test_a_line_that_was_not_printed_is_found():
    assert readme.missing("a 1\n  b  2.5", "x\na 7\nb 33\n") == []
    assert readme.missing("b 1\na 1", "a 7\nb 33\n") == ["a 0"]
    assert readme.missing("c", "a\nb\n") == ["c"]
