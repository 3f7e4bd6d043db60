"""What is shipped: dependencies, extras, the command, types; and that importing it costs nothing."""

import ast
import configparser
import importlib
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import pytest

import keras_nanguard

_ROOT = Path(__file__).parents[1]
_PACKAGE = Path(keras_nanguard.__file__).parent
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_FRAMEWORKS = {"tensorflow", "jax", "torch"}


def _setup(section, key):
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(_ROOT / "setup.cfg", encoding="utf-8")
    return [line for line in parser[section][key].splitlines() if line]


def _names(lines):
    return {re.match(r"[\w-]+", line)[0] for line in lines}


def _sources(folder=_PACKAGE):
    return [(path.relative_to(_PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in folder.rglob("*.py")]


def _imported(tree):
    """The top-level packages that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0]


def test_importing_the_package_starts_nothing():
    script = (
        "import sys, keras_nanguard\n"
        "dir(keras_nanguard)\n"
        "print(sorted({'keras', 'numpy', 'tensorflow', 'jax', 'torch', 'matplotlib'} & set(sys.modules)))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.fspath(_PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_only_keras_and_numpy_are_required():
    assert _names(_setup("options", "install_requires")) == {"keras", "numpy"}
    assert _names(_setup("options.extras_require", "demo")) == {"scikit-image", "scikit-learn"}
    of_the_demo = {"sklearn", "skimage"}
    for name, tree in _sources():
        allowed = set(sys.stdlib_module_names) | {"keras", "numpy", "keras_nanguard"}
        if name.startswith("backend/"):
            allowed |= {name.split("/")[1]}
        if name.startswith("demo/"):
            allowed |= of_the_demo
        assert set(_imported(tree)) <= allowed, name


def test_each_framework_is_an_extra():
    extras = {name: _names(_setup("options.extras_require", name)) for name in (*_FRAMEWORKS, "tensorflow-cpu")}
    assert extras == {
        "tensorflow": {"tensorflow"}, "jax": {"jax"}, "torch": {"torch"}, "tensorflow-cpu": {"tensorflow", "tensorflow-cpu"},
    }  # fmt: skip


def test_versions_are_stated_alike_everywhere():
    keras_bound = next(line for line in _setup("options", "install_requires") if line.startswith("keras"))
    assert f"{keras_bound.replace('keras>=', 'Keras >= ')}, TensorFlow >= 2.16." in _README
    assert _setup("options.extras_require", "tensorflow") == ["tensorflow>=2.16"]
    assert _setup("options", "python_requires") == [">=3.10"]
    classifiers = _setup("metadata", "classifiers")
    assert [c[-4:] for c in classifiers if " 3." in c] == ["3.10", "3.11", "3.12", "3.13"]
    assert "Python 3.10 to 3.13" in _README
    assert _setup("metadata", "version") == ["attr: keras_nanguard.__version__"]
    assert f"## {keras_nanguard.__version__}" in (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_this_keras_is_one_that_is_supported():
    bound = next(line for line in _setup("options", "install_requires") if line.startswith("keras"))
    numbers = [tuple(map(int, re.findall(r"\d+", version)[:2])) for version in (bound, keras.__version__)]
    assert numbers[0] <= numbers[1]


def test_the_command_exists():
    (line,) = _setup("options.entry_points", "console_scripts")
    module, _, name = line.removeprefix("nanguard = ").partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_package_says_that_it_is_typed():
    assert (_PACKAGE / "py.typed").is_file()
    assert _setup("options.package_data", "keras_nanguard") == ["py.typed"]


def test_each_folder_of_the_package_is_shipped():
    for path in _PACKAGE.rglob("*.py"):
        assert (path.parent / "__init__.py").is_file(), f"{path.parent} is no package: it is not shipped"


def test_a_warning_fails_a_test():
    with pytest.raises(UserWarning):
        warnings.warn("of any kind", stacklevel=1)


def test_no_path_of_a_machine_is_in_the_project():
    found = re.compile(r"(?<![\w.\"'])/(?:home|root|tmp|Users|opt|mnt)/\w")
    for folder in (_PACKAGE, _ROOT / "tests", _ROOT / "notebooks"):
        for path in [*folder.rglob("*.py"), *folder.rglob("*.ipynb")]:
            assert not found.search(path.read_text(encoding="utf-8")), path
