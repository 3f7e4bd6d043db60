"""Plain values: what a report holds can be written as strict JSON and read where no framework is installed."""

import math
import operator
import os

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DEPTH = 16  # settings are shallow; an object that holds itself must not hang the report


def strict(value):
    """The same nest of plain values with non-finite floats as "NaN", "Infinity", "-Infinity": JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value


def plain(value, depth=_DEPTH):
    """Any value as a fresh nest of dicts, lists, strings, ints, bools, finite floats and `None`, for people to read.

    Objects are asked for `to_dict()` or `get_config()`; functions and classes give their name; the rest its `repr`.
    """
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return strict(kind(value))
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        return {str(key): plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth - 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return [plain(item, depth - 1) for item in sorted(value, key=repr)]
    if isinstance(value, os.PathLike):
        return plain(os.fspath(value), depth - 1)
    if isinstance(value, type) or callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    for method in ("to_dict", "get_config"):
        if hasattr(value, method):
            return plain(getattr(value, method)(), depth - 1)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), depth - 1)
    return repr(value)


def number(name, value):
    """`value` as a float, or `None`; the three names that stand for non-finite floats in JSON are understood."""
    if value is None:
        return None
    if isinstance(value, str) and value in _NAMES:
        return _NAMES[value]
    if isinstance(value, (bool, str, bytes)):
        raise ValueError(f"`{name}` must be a number or None. Received: {name}={value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"`{name}` must be a number or None. Received: {name}={value!r}") from error


def whole(name, value, optional=False):
    """`value` as an int >= 0, or `None` where that is allowed."""
    if value is None and optional:
        return None
    try:
        found = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = -1
    if found < 0:
        raise ValueError(f"`{name}` must be an int >= 0{' or None' if optional else ''}. Received: {name}={value!r}")
    return found


def one_of(name, value, allowed):
    """`value`, when it is one of the `allowed` strings."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, allowed))}. Received: {name}={value!r}")
    return value


def text(name, value):
    """`value`, when it is a string."""
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be a string. Received: {name}={value!r}")
    return value


def holder(name, value, kind):
    """`value`, when it is a `kind` (`dict`, or `list`, for which a tuple will do)."""
    if not isinstance(value, (list, tuple) if kind is list else kind):
        raise ValueError(f"`{name}` must be a {kind.__name__}. Received: {name}={value!r}")
    return value
