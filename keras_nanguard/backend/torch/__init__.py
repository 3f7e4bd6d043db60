"""The torch backend. The names are those that `keras_nanguard.backend` lists."""

from ...state import host_copy
from ...state import put_back
from .buffers import buffers
from .gradients import FORM
from .gradients import apply_gradients
from .gradients import context
from .gradients import initial_state
from .gradients import keep
from .gradients import prepare
from .gradients import replica
from .gradients import stateless_apply
from .memory import Memory
from .numerics import StateCheck
from .processes import is_chief
from .train_function import GuardedFunction
from .train_function import guarded_step
from .train_function import sync
from .train_function import unsupported

__all__ = [
    "FORM",
    "GuardedFunction",
    "Memory",
    "StateCheck",
    "apply_gradients",
    "buffers",
    "context",
    "guarded_step",
    "host_copy",
    "initial_state",
    "is_chief",
    "keep",
    "prepare",
    "put_back",
    "replica",
    "stateless_apply",
    "sync",
    "unsupported",
]
