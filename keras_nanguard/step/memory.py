"""The guard's own state: what it is made of, and how the host reads it.

It lives on the device beside the training state and is the only thing that moves when a step is refused. Counters are
cumulative, so nothing is lost when the host looks late or a block of steps reports once; the last steps are kept in
a ring, so that each refused step is known exactly.
"""

import dataclasses

import numpy as np

from ..policy import lr_scale

# `counts`, int32
COUNTS = (
    "steps",  # seen
    "skipped",
    "clipped",
    "overflows",  # ordinary overflows of the loss scale
    "overflows_in_row",
    "epoch_accepted",
    "epoch_skipped",
    "admitted",  # norms stored in the window so far
)
# one row of `ring`, float32
ROW = ("loss", "grad_norm", "learning_rate", "loss_scale", "code", "replicas")

OUTCOMES = ("accepted", "clipped", "skipped", "overflow", "passed")
ACCEPTED, CLIPPED, SKIPPED, OVERFLOW, PASSED = range(5)
# what each outcome adds to, and keeps of, each counter (`admitted` is counted apart)
ADD = np.array(
    [
        # steps skipped clipped overflows overflows_in_row epoch_accepted epoch_skipped admitted
        [1, 0, 0, 0, 0, 1, 0, 0],
        [1, 0, 1, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 0, 0, 1, 0],
        [1, 0, 0, 1, 1, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0],
    ],
    "int32",
)
KEEP = np.array(
    [
        [1, 1, 1, 1, 0, 1, 1, 1],
        [1, 1, 1, 1, 0, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 1, 1, 1],
    ],
    "int32",
)
# (what is filled in turn, the part of a change that goes there, the counter that gives the place)
PLACES = (("ring", "row", "steps"), ("norms", "norm", "admitted"))
ONE_ADMITTED = np.array([name == "admitted" for name in COUNTS], "int32")

# bits of a row's `code`
BAD_LOSS, BAD_GRADIENT, BAD_STATE, SPIKE = 1, 2, 4, 8
_OUTCOME_UNIT = 16  # code = bits + 16 * outcome


@dataclasses.dataclass(frozen=True)
class StepSpec:
    """Everything a guarded step is compiled for; equal specs share a compiled step.

    Attributes:
        step_guard: `StepGuard`.
        backoff: `policy.lr_scale.BackoffPolicy`, or `None` where no `AdaptiveLRBackoff` takes part.
        rows: length of the ring, at least the number of steps in one execution.
    """

    step_guard: object
    backoff: object = None
    rows: int = 128

    @property
    def uses_window(self):
        guard = self.step_guard
        return guard.global_clipnorm == "adaptive" or guard.spike_zscore is not None or self.backoff is not None


def initial(spec):
    """name -> numpy array: the memory before the first step."""
    memory = {
        "counts": np.zeros(len(COUNTS), "int32"),
        "epoch_norm": np.zeros((), "float32"),  # sum of the accepted norms of the epoch
        "ring": np.zeros((spec.rows, len(ROW)), "float32"),
    }
    if spec.uses_window:
        memory["norms"] = np.zeros(spec.step_guard.window, "float32")
    if spec.backoff is not None:
        memory["lr_scale"] = np.ones((), "float32")
        memory["lr_marks"] = np.array(lr_scale.initial_marks(spec.backoff), "int32")
    return memory


def stored(memory, change):
    """The memory after a step; takes and gives numpy arrays.

    Of a `change`, `row` belongs to the next place of the ring and `norm` to the next of the window, as they were before
    the step; everything else replaces what has its name. A backend does the same on the device.
    """
    new = {**memory, **{name: np.array(value) for name, value in change.items() if name not in ("row", "norm")}}
    for name, part, count in PLACES:
        if part in change:
            new[name] = memory[name].copy()
            new[name][memory["counts"][COUNTS.index(count)] % len(memory[name])] = change[part]
    return new


def epoch_begun(memory):
    """The same memory with the counters of the epoch at zero; takes and gives numpy arrays."""
    memory = {name: np.array(value) for name, value in memory.items()}
    for name in ("epoch_accepted", "epoch_skipped"):
        memory["counts"][COUNTS.index(name)] = 0
    memory["epoch_norm"][...] = 0.0
    return memory


def counts(memory):
    """name -> int, from numpy arrays."""
    return dict(zip(COUNTS, map(int, memory["counts"])))


def totals(memory):
    """The totals of a report, from numpy arrays."""
    count = counts(memory)
    return {
        "steps": count["steps"],
        "skipped": count["skipped"],
        "clipped": count["clipped"],
        "scale_overflows": count["overflows"],
        "backoffs": int(memory["lr_marks"][-1]) if "lr_marks" in memory else 0,
    }


@dataclasses.dataclass(frozen=True)
class Row:
    """One step as the guard saw it; `step` counts from 0."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    loss_scale: float
    outcome: str
    reasons: tuple
    replica: int | None

    def incident(self):
        """The fields of a `report.Incident` for a step that was refused, or applied although it was bad."""
        action = "skip" if self.outcome == "skipped" else "mention"
        return {"action": action, "reason": self.reasons[0], "replica": self.replica, "loss": self.loss, "grad_norm": self.grad_norm}


def rows(memory, since=0):
    """The steps from number `since` on that the ring still holds, oldest first."""
    steps = counts(memory)["steps"]
    size = len(memory["ring"])
    return [_row(step, memory["ring"][step % size]) for step in range(max(since, steps - size, 0), steps)]


def _row(step, values):
    values = dict(zip(ROW, map(float, values)))
    outcome, bits = divmod(int(values.pop("code")), _OUTCOME_UNIT)
    named = ((BAD_LOSS, "loss"), (BAD_GRADIENT, "gradient"), (BAD_STATE, "state"), (SPIKE, "spike"))
    replicas = int(values.pop("replicas"))
    single = replicas > 0 and replicas & (replicas - 1) == 0
    return Row(
        step=step,
        outcome=OUTCOMES[outcome],
        reasons=tuple(name for bit, name in named if bits & bit),
        replica=replicas.bit_length() - 1 if single else None,
        **values,
    )


def code(bits, outcome):
    """What `_row` takes apart."""
    return bits + _OUTCOME_UNIT * outcome
