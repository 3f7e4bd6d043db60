"""The mutable side of a report: filled during `fit`, read at any moment."""

import time
from collections import Counter, deque

from . import values
from .record import Incident, StepRecord
from .run_report import RUN_OUTCOMES, RunReport, checked_totals, utc_now

MAX_INCIDENTS = 1000
MAX_STEPS = 128
MAX_NOTES = 100
MORE_NOTES = "Further notes were left out."


class Recorder:
    """Collects what happens in one `fit`; bounded, however long the run and however much goes wrong.

    Args:
        settings: dict, the options of the guard, or `None`.
        versions: dict of str, name -> version, or `None`.
        judged: str, what the verdict looks at: "loss and gradients" or "gradients".
        clock: function that gives monotonic seconds, for the duration.

    Raises:
        ValueError: where a value is out of range; it names the argument.

    Example:

    >>> recorder = Recorder(settings={"max_consecutive_skips": 10})
    >>> incident = recorder.add_incident(action="skip", reason="loss", step=3, epoch=0, batch=3)
    >>> recorder.set_totals(steps=480, skipped=1)
    >>> recorder.finish("completed")
    >>> print(recorder.build().outcome)
    completed
    """

    def __init__(self, settings=None, versions=None, judged="loss and gradients", clock=time.monotonic):
        self._fixed = {
            "settings": values.plain(values.holder("settings", settings or {}, dict)),
            "versions": values.plain(values.holder("versions", versions or {}, dict)),
        }
        self._clock = clock
        self._began, self._took, self._started = clock(), None, utc_now()
        self._outcome = "running"
        self._incidents, self._counts = [], Counter()
        self._steps = deque(maxlen=MAX_STEPS)
        self._notes = {}  # a dict keeps the order and finds duplicates
        self._notes_left_out = False
        self._totals = checked_totals({})
        self.set_judged(judged)

    def add_incident(self, incident=None, **fields) -> Incident:
        """Record an `Incident`, given as one or as its fields; gives it back.

        The first 1,000 are kept in full, later ones only counted. The one that stops the run is kept whatever its
        number, because it says where and why the run ended.
        """
        incident = Incident(**fields) if incident is None else incident
        self._counts[f"{incident.action}/{incident.reason}"] += 1
        room = len(self._incidents) < MAX_INCIDENTS
        first_stop = incident.action == "stop" and all(kept.action != "stop" for kept in self._incidents)
        if room or first_stop:
            self._incidents.append(incident)
        return incident

    def add_note(self, note) -> bool:
        """Record a mention that is no incident, once; gives whether it is new. From the 101st on they are left out."""
        if values.text("note", note) in self._notes:
            return False
        if len(self._notes) >= MAX_NOTES:
            self._notes_left_out = True
            return False
        self._notes[note] = True
        return True

    def set_totals(self, **totals):
        """Set some of the totals (`steps`, `skipped`, `clipped`, `rollbacks`, `backoffs`, `scale_overflows`)."""
        self._totals = checked_totals({**self._totals, **totals})

    def set_steps(self, steps):
        """Set the flight recorder: `StepRecord`s or their dicts, oldest first; the last 128 are kept."""
        last = deque(steps, maxlen=MAX_STEPS)
        self._steps = deque(item if isinstance(item, StepRecord) else StepRecord.from_dict(item) for item in last)

    def set_judged(self, judged):
        """Set what the verdict looks at, where that is known only once the step was traced."""
        self._judged = values.text("judged", judged)

    def finish(self, outcome):
        """Set how the run ended and stop its clock; "running" sets it going again."""
        self._outcome = values.one_of("outcome", outcome, RUN_OUTCOMES)
        self._took = None if outcome == "running" else self._clock() - self._began

    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._began

    def build(self) -> RunReport:
        """The report as things stand: an independent copy that later events do not change."""
        return RunReport(
            **self._fixed,
            outcome=self._outcome,
            started=self._started,
            duration=max(self._clock() - self._began if self._took is None else self._took, 0.0),
            judged=self._judged,
            incidents=self._incidents,
            incident_counts=dict(self._counts),
            steps=list(self._steps),
            notes=[*self._notes, *([MORE_NOTES] if self._notes_left_out else [])],
            totals=self._totals,
        )
