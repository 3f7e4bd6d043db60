"""The command `nanguard demo`: checks what it needs, runs the cases, and says what happened."""

import argparse
import importlib.util
import sys
import time

_NEEDED = {"sklearn": "scikit-learn", "skimage": "scikit-image"}
_INSTALL = 'pip install "keras_nanguard[demo]"'
_CASES = {"log-loss": "balanced_log_loss", "center-distance": "center_distance"}


def main(argv=None):
    """Runs the demo.

    Args:
        argv: list of str, the arguments after `nanguard demo`; `None` for none.

    Returns:
        The exit code: 0, or 2 where something that the demo needs is not installed.
    """
    options = _parser().parse_args(argv or [])
    missing = [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(
            f"nanguard demo needs {', '.join(missing)}, not installed here. "
            f"Install them with: {_INSTALL}",
            file=sys.stderr,
        )
        return 2
    try:
        import keras

        from ..backend import active

        active()
    except ImportError as error:
        print(f"nanguard demo cannot start: {error}", file=sys.stderr)
        print(f"A framework that it runs on comes with: {_INSTALL}", file=sys.stderr)
        return 2
    began = time.perf_counter()
    print("nanguard demo: two losses that turn training to NaN, on real data")
    print(f"Keras {keras.__version__} on {keras.config.backend()}")
    for name, module in _CASES.items():
        if options.case in (name, "all"):
            importlib.import_module(f".{module}", __package__).run(print)
    print(f"\nDone in {time.perf_counter() - began:.0f} seconds.")
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="nanguard demo", description=__doc__)
    parser.add_argument("--case", choices=(*_CASES, "all"), default="all", help="which of the two cases (default: all)")
    return parser
