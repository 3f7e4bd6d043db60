"""Keeps Keras 3 training from being lost to NaN, Inf and divergence, and says why it happened.

The public names are imported when they are first used, so that `import keras_nanguard` starts no framework.
"""

import importlib
import sys

__version__ = "0.1.0"

_HOME = {
    "AdaptiveLRBackoff": "callbacks.lr_backoff",
    "GradientGuard": "step.gradient_guard",
    "NanGuardCallback": "callbacks.nan_guard",
    "NonFiniteTrainingError": "errors",
    "RunReport": "report",
    "SafeModel": "step.safe_model",
    "SafeTrainStep": "step.safe_model",
    "StepGuard": "step.step_guard",
    "load_report": "report",
    "losses": "losses",
}

__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_HOME[name]}", __name__)
    value = module if name == "losses" else getattr(module, name)
    globals()[name] = value
    return value


if sys.modules.get("keras") is not None:  # a saved SafeModel can be loaded as soon as both are imported
    importlib.import_module(".step.safe_model", __name__)


def __dir__():
    return [*__all__, "__version__"]
