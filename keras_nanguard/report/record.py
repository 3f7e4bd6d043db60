"""What happened at one step: an incident, or a line of the flight recorder. Plain data, read without any framework.

Epochs, batches and steps count from 0, as Keras callbacks see them. `step` counts the batches seen in one `fit` and
never goes back, not even on a rollback.
"""

import dataclasses
from typing import Any

from . import values

ACTIONS = ("skip", "rollback", "stop", "mention")
REASONS = ("loss", "gradient", "state", "update", "spike", "validation", "initial_state")
STEP_OUTCOMES = ("accepted", "clipped", "skipped", "overflow", "passed")


class Record:
    """A dataclass as a dict and back. Compared by content: NaN equals NaN, a diagnosis equals what was written of it."""

    def to_dict(self) -> dict:
        """The content as fresh dicts, lists and plain values; non-finite floats stay floats."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, data):
        """What `to_dict` gave, or its JSON. Keys that this version does not know are ignored.

        Raises:
            ValueError: where a value is missing or out of range.
        """
        values.holder(cls.__name__, data, dict)
        known = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data}
        try:
            return cls(**known)
        except TypeError as error:  # a required key is missing
            raise ValueError(f"{cls.__name__}: {error}") from error

    def __eq__(self, other):
        if type(other) is not type(self):
            return NotImplemented
        return values.strict(self.to_dict()) == values.strict(other.to_dict())

    __hash__ = None  # a diagnosis may be a dict

    def _set(self, **checked):
        for name, value in checked.items():
            object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True, eq=False)
class Incident(Record):
    """Something that was not finite (or a spike), and what was done about it.

    Args:
        step: int or `None`, the batch counted over the whole `fit`, from 0.
        epoch: int or `None`, from 0.
        batch: int or `None`, from 0, within the epoch.
        replica: int or `None` (one device, or not known).
        action: one of "skip", "rollback", "stop", "mention".
        reason: one of "loss", "gradient", "state", "update", "spike", "validation", "initial_state".
        diagnosis: `None`, a `Diagnosis`, or the dict that a loaded report holds in its place.
        loss: float or `None`, as the step computed it.
        grad_norm: float or `None`, the global gradient norm before clipping.
        message: str, what else there is to say.

    Raises:
        ValueError: where a value is out of range; it names the argument.

    Example:

    >>> Incident(step=3, epoch=0, batch=3, action="skip", reason="loss", loss=float("nan")).action
    'skip'
    """

    step: int | None = None
    epoch: int | None = None
    batch: int | None = None
    replica: int | None = None
    action: str = dataclasses.field(kw_only=True)
    reason: str = dataclasses.field(kw_only=True)
    diagnosis: Any = None
    loss: float | None = None
    grad_norm: float | None = None
    message: str = ""

    def __post_init__(self):
        for name in ("step", "epoch", "batch", "replica"):
            self._set(**{name: values.whole(name, getattr(self, name), optional=True)})
        values.one_of("action", self.action, ACTIONS)
        values.one_of("reason", self.reason, REASONS)
        self._set(loss=values.number("loss", self.loss), grad_norm=values.number("grad_norm", self.grad_norm))
        values.text("message", self.message)
        if not hasattr(self.diagnosis, "to_dict"):
            self._set(diagnosis=values.plain(self.diagnosis))

    def to_dict(self) -> dict:
        """The content as a dict; the diagnosis as a dict too."""
        return {**super().to_dict(), "diagnosis": values.plain(self.diagnosis)}


@dataclasses.dataclass(frozen=True, eq=False)
class StepRecord(Record):
    """One line of the flight recorder.

    Args:
        step: int, counted over the whole `fit`, from 0.
        loss, grad_norm, learning_rate, loss_scale: float or `None` where there is none.
        outcome: one of "accepted", "clipped", "skipped", "overflow" (of the loss scale, ordinary), "passed" (bad, and
            applied all the same, as the user asked).

    Raises:
        ValueError: where a value is out of range; it names the argument.

    Example:

    >>> StepRecord(7, loss=0.25, grad_norm=1.5).outcome
    'accepted'
    """

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    loss_scale: float | None = None
    outcome: str = "accepted"

    def __post_init__(self):
        self._set(step=values.whole("step", self.step))
        for name in ("loss", "grad_norm", "learning_rate", "loss_scale"):
            self._set(**{name: values.number(name, getattr(self, name))})
        values.one_of("outcome", self.outcome, STEP_OUTCOMES)

    @classmethod
    def from_row(cls, row):
        """Of a row of the guard's memory."""
        rate = row.learning_rate
        return cls(row.step, row.loss, row.grad_norm, None if rate != rate else rate, row.loss_scale or None, row.outcome)
