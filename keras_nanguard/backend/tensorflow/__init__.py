"""The TensorFlow backend. The names are those that `keras_nanguard.backend` lists."""

from .gradients import apply_gradients
from .gradients import context
from .gradients import keep
from .gradients import prepare
from .gradients import replica
from .memory import Memory
from .numerics import StateCheck
from .strategy import unsupported
from .train_function import GuardedFunction
from .train_function import guarded_step


__all__ = [
    "GuardedFunction",
    "Memory",
    "StateCheck",
    "apply_gradients",
    "context",
    "guarded_step",
    "keep",
    "prepare",
    "replica",
    "unsupported",
]
