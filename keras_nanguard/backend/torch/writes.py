"""The values that Keras variables had before a step assigned to them."""

import contextlib
import threading

import keras

_HOLDER = next(cls for cls in keras.Variable.__mro__ if "_direct_assign" in vars(cls))  # where every assignment passes
_original = _HOLDER._direct_assign
_here = threading.local()
_lock, _active = threading.Lock(), 0


@contextlib.contextmanager
def kept_by(kept):
    """In the block, on this thread, each variable is put into the dict before it is first written: id -> (variable, value)."""
    global _active
    before = getattr(_here, "kept", None)
    with _lock:
        _active += 1
        _HOLDER._direct_assign = _direct_assign
    _here.kept = kept
    try:
        yield
    finally:
        _here.kept = before
        with _lock:
            _active -= 1
            if not _active:
                _HOLDER._direct_assign = _original


def keep(kept, variables):
    """The same for variables that are written without being assigned to."""
    for variable in variables:
        if id(variable) not in kept:
            kept[id(variable)] = variable, raw(variable).detach().clone()


def put_back(kept):
    for variable, value in kept.values():
        variable.assign(value)


def raw(variable):
    """The tensor of a variable itself, not what autocasting makes of it inside a layer."""
    value = getattr(variable, "_value", None)
    return variable.value if value is None else value


def _direct_assign(variable, value):
    kept = getattr(_here, "kept", None)
    if kept is not None:
        keep(kept, [variable])
    _original(variable, value)
