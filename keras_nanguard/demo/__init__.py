"""`nanguard demo`: the two losses that this package grew out of, on real data, with and without the guard."""

from .runner import main

__all__ = ["main"]
