"""The lines printed during `fit`: the first incident of a kind in full, then counts, at a bounded rate."""

import math
import time
from collections import Counter

from .wording import count, one_line, sentence

_NOUNS = {"skip": "step", "rollback": "rollback", "stop": "stop", "mention": "mention"}


class Messenger:
    """Says what happens while it happens, and never one line per step.

    In T seconds it prints at most one line per kind of incident (action and reason) and per `say_once` key, one line of
    counts per `min_interval` after the last line, and one at the end.

    Args:
        write: function of one str that puts it on the screen and ends the line, as `print` does.
        clock: function that gives monotonic seconds.
        min_interval: float > 0, seconds between a line and the next line of counts.
        verbose: int, as in `fit`; 0 prints nothing.

    Raises:
        ValueError: if `min_interval` is not a finite number > 0.

    Example:

    >>> messenger = Messenger(verbose=1)
    >>> messenger.incident(Incident(action="skip", reason="loss", step=3, epoch=1, batch=3))
    nanguard: epoch 1, batch 3 (step 3): the loss is not finite; step skipped, weights unchanged.
    """

    def __init__(self, write=print, clock=time.monotonic, min_interval=10.0, verbose=1):
        if isinstance(min_interval, bool) or not 0 < min_interval < math.inf:
            raise ValueError(f"`min_interval` must be seconds > 0. Received: min_interval={min_interval!r}")
        self._write, self._clock, self._min_interval = write, clock, min_interval
        self._verbose = verbose
        self._said = set()
        self._waiting = Counter()  # (action, reason) -> how many since the last line of counts
        self._last = -math.inf

    def incident(self, incident, bar_open=False):
        """Print the incident if it is the first of its kind, else count it, and print the counts if it is time.

        Args:
            incident: an `Incident`.
            bar_open: bool, whether the cursor may stand in a Keras progress bar, which has no line end yet: the text
                then begins on a new line, and the bar goes on below it.
        """
        kind = (incident.action, incident.reason)
        if self._once(kind):
            self._line(sentence(incident), bar_open)
            return
        self._waiting[kind] += 1
        if self._clock() - self._last >= self._min_interval:
            self.flush(bar_open)

    def say_once(self, key, text, bar_open=False):
        """Print `text` on a line, the first time that `key` (any hashable value) is used."""
        if self._once(("say", key)):
            self._line(text, bar_open)

    def flush(self, bar_open=False):
        """Print the counts that wait, if there are any: to be called at the end of `fit`."""
        if not self._waiting:
            return
        parts = []
        for action in dict.fromkeys(action for action, _ in self._waiting):
            reasons = {reason: number for (each, reason), number in self._waiting.items() if each == action}
            total = sum(reasons.values())
            split = reasons if len(reasons) == 1 else [f"{number} {reason}" for reason, number in reasons.items()]
            skipped = " skipped" if action == "skip" else ""
            parts.append(f"{count(total, f'more {_NOUNS[action]}')}{skipped} since then ({', '.join(split)})")
        self._waiting.clear()
        self._line("; ".join(parts) + ".", bar_open)

    def _once(self, key):
        new = key not in self._said
        self._said.add(key)
        return new

    def _line(self, text, bar_open):
        self._last = self._clock()
        if self._verbose:
            self._write(("\n" if bar_open else "") + f"nanguard: {one_line(text)}")
