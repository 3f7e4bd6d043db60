"""One training of the demo, in `fit` or in the hand-written loop, and what came of it."""

import dataclasses
import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from ..backend import active
from ..state import variable_name

MAX_CONSECUTIVE_SKIPS = 10


class Batches:
    """Endless batches, shuffled anew after each pass, the same each time they are gone through.

    Args:
        x, y: arrays with as many rows.
        batch_size: int; what does not fill a batch is left out of a pass.
    """

    def __init__(self, x, y, batch_size):
        self.x, self.y, self.batch_size = x, y, batch_size

    def __iter__(self):
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(len(self.x))
            for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
                rows = order[start : start + self.batch_size]
                yield self.x[rows], self.y[rows]

    def at(self, step):
        """The batch of a step."""
        return next(itertools.islice(self, step, None))


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        make_model: function that gives the model, with the same weights each time.
        batches: `Batches`.
        score: function of a model and of whether to use the data that was held out, that gives `(loss, accuracy)` by
            the sound loss.
        learning_rate: float, of Adam.
        epochs, steps_per_epoch: ints.
    """

    make_model: Callable
    batches: Batches
    score: Callable
    learning_rate: float
    epochs: int
    steps_per_epoch: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one training.

    Attributes:
        losses: the loss at each step of the loop (a skipped one included), or of each epoch of `fit`, as it is logged.
        steps: how many batches were seen.
        first_bad: the first step at which a loss was not finite, or `None`.
        skipped: the steps that the guard refused.
        stopped: the step at which the guard ended the run, or `None`.
        per_epoch: in `fit`, how many steps of each epoch were skipped.
        variables, bad_variables: how many the model has, and the names of those that are not finite at the end.
        trained, held_out: `(loss, accuracy)` at the end, on the data of the training and on the data held out.
        model: the model at the end.
        report: the `RunReport` of a guarded run, else `None`.
    """

    losses: list
    steps: int
    first_bad: int | None
    skipped: list
    stopped: int | None
    per_epoch: list
    variables: int
    bad_variables: list
    trained: tuple
    held_out: tuple
    model: Any
    report: Any = None


class _Steps(keras.callbacks.Callback):
    """Counts the steps of `fit` and notes the first after which the logged loss is not finite."""

    def __init__(self):
        super().__init__()
        self.steps, self.first_bad = 0, None

    def on_train_batch_end(self, batch, logs=None):
        if self.first_bad is None and not math.isfinite(logs["loss"]):
            self.first_bad = self.steps
        self.steps += 1


def in_fit(task, loss_fn, guarded=False):
    """`model.fit`, guarded by one callback or plain."""
    from ..callbacks.nan_guard import NanGuardCallback

    model = task.make_model()
    model.compile(keras.optimizers.Adam(task.learning_rate), loss_fn)
    seen = _Steps()
    guard = NanGuardCallback(max_consecutive_skips=MAX_CONSECUTIVE_SKIPS) if guarded else None
    callbacks = [guard, seen] if guarded else [seen]
    history = model.fit(
        iter(task.batches),
        epochs=task.epochs,
        steps_per_epoch=task.steps_per_epoch,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    ).history
    report = guard.report if guarded else None
    incidents = report.incidents if guarded else []
    return _outcome(
        task,
        model,
        losses=history["loss"],
        steps=seen.steps,
        first_bad=seen.first_bad,
        skipped=sorted({incident.step for incident in incidents if incident.action in ("skip", "stop")}),
        stopped=next((incident.step for incident in incidents if incident.action == "stop"), None),
        per_epoch=[int(count) for count in history.get("skipped_steps", [])],
        report=report,
    )


def in_loop(task, loss_fn, guarded=False):
    """The hand-written loop, guarded by `GradientGuard` or not; it gives up after ten refused steps in a row."""
    from ..step.gradient_guard import GradientGuard

    train = importlib.import_module(f"{active().__name__}.demo_loop").train
    model = task.make_model()
    optimizer = keras.optimizers.Adam(task.learning_rate)
    guard = GradientGuard(optimizer, model) if guarded else None
    losses, skipped, in_a_row, stopped = [], [], 0, None
    batches = itertools.islice(task.batches, task.epochs * task.steps_per_epoch)
    for step, (loss, applied) in enumerate(train(model, optimizer, loss_fn, batches, guard)):
        losses.append(loss)
        in_a_row = 0 if applied else in_a_row + 1
        if not applied:
            skipped.append(step)
        if in_a_row == MAX_CONSECUTIVE_SKIPS:
            stopped = step
            break
    return _outcome(
        task,
        model,
        losses=losses,
        steps=len(losses),
        first_bad=next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None),
        skipped=skipped,
        stopped=stopped,
        per_epoch=[],
        report=guard.report() if guarded else None,
    )


def _outcome(task, model, **parts):
    bad = [variable_name(v) for v in model.variables if not np.all(np.isfinite(v.numpy()))]
    return Outcome(
        variables=len(model.variables),
        bad_variables=bad,
        trained=task.score(model, held_out=False),
        held_out=task.score(model, held_out=True),
        model=model,
        **parts,
    )
