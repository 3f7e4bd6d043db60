"""The record of a guarded run: settings, versions, incidents, the last steps, totals."""

import dataclasses
import datetime
from collections import Counter

from . import values
from .record import Incident, Record, StepRecord
from .text import report_text

RUN_OUTCOMES = ("running", "completed", "stopped", "raised", "interrupted")
TOTALS = ("steps", "skipped", "clipped", "rollbacks", "backoffs", "scale_overflows")


def utc_now() -> str:
    """The time as an ISO-8601 string in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RunReport(Record):
    """The record of a guarded run; `print(report)` gives the text for people.

    Args:
        settings: dict, the options of the guard.
        versions: dict of str, name -> version.
        outcome: one of "running", "completed", "stopped" (by the guard), "raised", "interrupted".
        started: str, ISO-8601 in UTC.
        duration: float, seconds.
        judged: str, what the verdict looked at: "loss and gradients" or "gradients".
        incidents: list of `Incident`; a long run keeps the first 1,000 and the one that stopped it.
        incident_counts: dict, "action/reason" -> int, of all incidents; counted from `incidents` when `None`.
        steps: list of `StepRecord`, the last steps.
        notes: list of str, mentions that are no incidents.
        totals: dict of ints: steps, skipped, clipped, rollbacks, backoffs, scale_overflows; those left out are 0.

    Raises:
        ValueError: where a value is out of range; it names the argument.

    Example:

    >>> print(RunReport(outcome="completed", totals={"steps": 480}).totals["skipped"])
    0
    """

    settings: dict = dataclasses.field(default_factory=dict)
    versions: dict = dataclasses.field(default_factory=dict)
    outcome: str = "running"
    started: str = dataclasses.field(default_factory=utc_now)
    duration: float = 0.0
    judged: str = "loss and gradients"
    incidents: list = dataclasses.field(default_factory=list)
    incident_counts: dict | None = None
    steps: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    totals: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        values.one_of("outcome", self.outcome, RUN_OUTCOMES)
        for name in ("started", "judged"):
            values.text(name, getattr(self, name))
        duration = values.number("duration", self.duration)
        if duration is None or not 0 <= duration < float("inf"):
            raise ValueError(f"`duration` must be seconds >= 0. Received: duration={self.duration!r}")
        self._set(duration=duration, totals=checked_totals(self.totals))
        for name in ("settings", "versions"):
            self._set(**{name: values.plain(values.holder(name, getattr(self, name), dict))})
        for name, kind in (("incidents", Incident), ("steps", StepRecord)):
            items = values.holder(name, getattr(self, name), list)
            self._set(**{name: [item if isinstance(item, kind) else kind.from_dict(item) for item in items]})
        self._set(notes=[values.text("notes", note) for note in values.holder("notes", self.notes, list)])
        kept = Counter(f"{incident.action}/{incident.reason}" for incident in self.incidents)
        counts = kept if self.incident_counts is None else values.holder("incident_counts", self.incident_counts, dict)
        self._set(incident_counts={str(key): values.whole(str(key), number) for key, number in counts.items()})
        for key, number in kept.items():
            if number > self.incident_counts.get(key, 0):
                raise ValueError(f"`incident_counts` has fewer {key!r} than `incidents`. Received: {self.incident_counts!r}")

    def to_dict(self) -> dict:
        """The content as fresh dicts, lists and plain values; non-finite floats stay floats."""
        data = {name: value.copy() if isinstance(value, list) else value for name, value in super().to_dict().items()}
        for name in ("incidents", "steps"):
            data[name] = [item.to_dict() for item in data[name]]
        for name in ("settings", "versions", "incident_counts", "totals"):
            data[name] = values.plain(data[name])
        return data

    @classmethod
    def from_dict(cls, data):
        """What `to_dict` gave, or its JSON. Keys that this version does not know are ignored, totals among them.

        Raises:
            ValueError: where a value is out of range.
        """
        totals = values.holder("totals", values.holder("RunReport", data, dict).get("totals", {}), dict)
        return super().from_dict({**data, "totals": {key: totals[key] for key in TOTALS if key in totals}})

    def __repr__(self):
        total = sum(self.incident_counts.values())
        return f"<RunReport {self.outcome}: steps={self.totals['steps']}, skipped={self.totals['skipped']}, incidents={total}>"

    def __str__(self):
        return report_text(self)


def checked_totals(totals) -> dict:
    """`totals` with exactly the six keys in their order, each an int >= 0."""
    unknown = sorted(set(values.holder("totals", totals, dict)) - set(TOTALS))
    if unknown:
        raise ValueError(f"`totals` has the keys {', '.join(TOTALS)}. Received also: {', '.join(map(repr, unknown))}")
    return {key: values.whole(key, totals.get(key, 0)) for key in TOTALS}
