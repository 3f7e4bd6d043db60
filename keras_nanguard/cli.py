"""The command `nanguard`. Each command is imported when it is called for, so that `--help` starts no framework."""

import argparse
import importlib
import sys

from . import __version__

# Name -> module of this package, whose `main(list of arguments)` returns the exit code; and what it does.
_COMMANDS = {"demo": ("demo", "two losses that turn training to NaN, on real data, with and without the guard")}


def main(argv=None):
    """Runs `nanguard COMMAND ...`.

    Args:
        argv: list of str, the arguments after `nanguard`; `None` for those of the process.

    Returns:
        The exit code of the command.

    Raises:
        SystemExit: as argparse does; with 2 where the command line cannot be read.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    at = next((index for index, word in enumerate(argv) if not word.startswith("-")), len(argv))
    parser = _parser()
    parser.parse_args(argv[:at])
    names = ", ".join(_COMMANDS)
    if at == len(argv):
        parser.error(f"a command is missing. Commands: {names}. `nanguard --help` says what they do.")
    command, rest = argv[at], argv[at + 1 :]
    if command not in _COMMANDS:
        parser.error(f"{command!r} is not a command. Commands: {names}. `nanguard --help` says what they do.")
    return importlib.import_module(f".{_COMMANDS[command][0]}", __package__).main(rest)


def _parser():
    lines = "\n".join(f"  {name}    {what}" for name, (_, what) in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="nanguard",
        usage="nanguard [--help] [--version] COMMAND ...",
        description="Keeps Keras 3 training from being lost to NaN.",
        epilog=f"commands:\n{lines}\n\n`nanguard COMMAND --help` says more about one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"keras_nanguard {__version__}")
    return parser
