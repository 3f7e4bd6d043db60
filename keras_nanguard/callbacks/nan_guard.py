"""`NanGuardCallback`: protects a `fit`, recovers, and reports."""

import contextlib
import math
import numbers
import os
import weakref

import keras
import numpy as np

from ..errors import NonFiniteTrainingError
from ..fit.model_guard import step_guard_of
from ..policy import ladder
from ..report import Messenger
from ..report import Recorder
from ..report import StepRecord
from ..report import write_report
from ..report.wording import some
from ..snapshots import Snapshot
from ..step import memory as layout
from ..step.step_guard import StepGuard
from ..step.step_guard import step_guard_or_error
from ..versions import versions
from .guarding_callback import GuardingCallback

WRITE_INTERVAL = 1.0  # seconds between two writings of the report at incidents
LOOK_EVERY = 4  # executions between two looks at the logs, where batch hooks come late; these are as many executions old


class NanGuardCallback(GuardingCallback):
    """Keeps a `fit` from being lost to NaN and Inf: add it to the callbacks, nothing else.

    A step whose loss, gradients or forward-updated state is not finite never happens: weights, moving statistics, optimizer
    slots, counters, seeds and metrics stay bit for bit as they were, and training goes on with the next batch. After
    `max_consecutive_skips` such steps in a row `fit` is stopped, with the last good weights in the model. Where
    an update makes non-finite weights of finite gradients, the snapshot of the last epoch's end (or of the start) is put
    back before anything can save them, and `fit` is stopped.

    A model that is no `SafeModel` is guarded for the duration of this `fit` and plain again afterwards, however it ended.
    The logs of `fit` gain `grad_norm` (mean over the accepted steps of the epoch, before clipping) and `skipped_steps` (count in
    the epoch). The host waits for the device no more often than `fit` does anyway.

    Args:
        step_guard: `"auto"` (default) takes `StepGuard()`, on a `SafeModel` its own; or a `StepGuard`. On a `SafeModel` one
            that differs from its own is an error.
        max_consecutive_skips: int >= 1, default 10: skipped steps in a row after which training is stopped. Ordinary
            overflows of a loss scale do not count.
        report_path: where to write the report as JSON (of several processes the first writes it): at the start, at incidents (once a second at most), at
            each epoch's end and at the end. `None` (default) writes nothing. A path that cannot be written is an error
            before the first step; later it is a note in the report, and training goes on.
        raise_error: bool, default `False`: raise `NonFiniteTrainingError` instead of stopping; the backups of other
            callbacks then stay in place, as with `keras.callbacks.TerminateOnNaN(raise_error=True)`.

    Attributes:
        report: the `RunReport` of the last `fit`, built when read: after `fit`, after an exception, after Ctrl-C.

    Raises:
        ValueError, TypeError: if an argument is out of range; if the model is not compiled; if the list holds two.

    Example:

    >>> guard = NanGuardCallback(report_path="run.json")
    >>> model.fit(x, y, epochs=5, callbacks=[guard])
    >>> print(guard.report)
    """

    role = "nan_guard"

    def __init__(self, step_guard="auto", *, max_consecutive_skips=10, report_path=None, raise_error=False):
        super().__init__()
        if step_guard != "auto":
            step_guard_or_error(step_guard, 'or "auto"')
        whole = isinstance(max_consecutive_skips, numbers.Integral) and not isinstance(max_consecutive_skips, bool)
        if not whole or max_consecutive_skips < 1:
            raise ValueError(
                f"`max_consecutive_skips` must be an int >= 1. Received: max_consecutive_skips={max_consecutive_skips!r}"
            )
        if report_path is not None and not isinstance(report_path, (str, os.PathLike)):
            raise TypeError(f"`report_path` must be a path (str or os.PathLike) or None. Received: report_path={report_path!r}")
        if report_path == "":
            raise ValueError("`report_path` must name a file, or be None for no file. Received: report_path=''")
        if not isinstance(raise_error, bool):
            raise ValueError(f"`raise_error` must be True or False. Received: raise_error={raise_error!r}")
        self.step_guard = step_guard
        self.max_consecutive_skips = int(max_consecutive_skips)
        self.report_path = report_path
        self.raise_error = raise_error
        self._recorder = Recorder(settings=self._settings(step_guard), versions=versions())
        self._messenger = Messenger(verbose=0)
        self._unfinished = None
        self._begin()

    def get_config(self):
        return {
            "step_guard": self.step_guard,
            "max_consecutive_skips": self.max_consecutive_skips,
            "report_path": self.report_path,
            "raise_error": self.raise_error,
        }

    def _settings(self, guard):
        settings = dict(self.get_config(), step_guard=guard.get_config() if isinstance(guard, StepGuard) else guard)
        return {**settings, "report_path": None if self.report_path is None else os.fspath(self.report_path)}

    def _begin(self):
        self._ladder = ladder.LadderState()
        self._snapshot = None
        self._epoch, self._epoch_begin, self._examined, self._skips_in_row = 0, 0, 0, 0
        self._skipped_seen, self._in_epoch = 0.0, False
        self._executions, self._waiting = 0, None
        self._written = -math.inf

    def set_model(self, model):
        own = step_guard_of(model)
        if own is not None and self.step_guard != "auto" and self.step_guard != own:
            raise ValueError(
                f"The model is a SafeModel with {own!r}, and NanGuardCallback was given {self.step_guard!r}. One step can have one guard: "
                'leave step_guard="auto" here, or compile the model with the other one.'
            )
        super().set_model(model)

    def chosen_step_guard(self):
        own = self.session.own_step_guard()
        return own if self.step_guard == "auto" else self.step_guard

    @property
    def report(self):
        self._collect()
        return self._recorder.build()

    # -- hooks, in the order in which `fit` calls them

    def on_train_begin(self, logs=None):
        self._begin()
        function = self.session.function
        if function is None:
            return  # not Keras' `fit`: the first batch raises
        self._recorder = Recorder(settings=self._settings(function.spec.step_guard), versions=versions())
        self._messenger = Messenger(verbose=self.verbosity())
        if self._unfinished is not None:
            self._unfinished.detach()
        if self.model.built and self.model.optimizer.built:
            self._look_at_start()
            self._snapshot = Snapshot(self.model)
        else:
            function.before_first_update = self._late_snapshot
        if self.report_path is not None and self.is_chief():
            write_report(self._recorder.build(), self.report_path)  # a path that cannot be written is an error here, not after hours
            self._unfinished = weakref.finalize(self, _write_unfinished, self._recorder, self.report_path)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._epoch, self._epoch_begin, self._skipped_seen, self._in_epoch = epoch, self._examined, 0.0, True
        self._executions, self._waiting = 0, None

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if not self.session.late_hooks:
            self._look(logs or {})

    def after_execution(self, logs):
        """Where batch hooks come late, on a thread of their own: the logs of some executions ago are there without waiting.

        Which executions these are depends on nothing but their number, so that several processes decide alike.
        """
        if not self.session.late_hooks:
            return
        if isinstance(logs["skipped_steps"], float):  # on the host already
            self._look(logs)
            return
        self._executions += 1
        if self._executions % LOOK_EVERY == 0:
            before, self._waiting = self._waiting, logs
            if before is not None:
                self._look({name: keras.ops.convert_to_numpy(before[name]) for name in ("skipped_steps", "loss") if name in before})

    def _look(self, logs):
        skipped = float(logs.get("skipped_steps", math.nan))
        if skipped != self._skipped_seen or not _is_finite(logs.get("loss", 0.0)):
            self._skipped_seen = skipped
            self._examine()

    def on_epoch_end(self, epoch, logs=None):
        self._examine()
        super().on_epoch_end(epoch, logs)
        self._mention(epoch, logs or {})
        if not self._ladder.stopped and self.session.state.finite():
            self._snapshot = Snapshot(self.model)
        self._write()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self._in_epoch = False
        self._collect()
        self._recorder.finish("stopped" if self._ladder.stopped else "completed")
        self._messenger.flush()
        self._write()

    def on_fit_error(self, error):
        self._recorder.finish("interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "raised")
        try:
            self._collect()
        except Exception as unreadable:  # the device itself may be gone
            self._recorder.add_note(f"The guard's counters could not be read at the end: {type(unreadable).__name__}.")
        self._write()

    def on_bad_state(self):
        self._collect()
        self._act(ladder.Observation(state_finite=False), step=self._examined - 1)

    # -- what is seen, decided and done

    def _look_at_start(self):
        names = self.session.state.begin()
        if names:
            self._tell(action="mention", reason="initial_state", message=f"Not finite before the first step: {some(names)}.")

    def _late_snapshot(self):
        """Of a model that its first batch builds; what that batch has made non-finite already is no state to go back to."""
        if not self.model.run_eagerly:
            self._look_at_start()
        if self.session.state.finite():
            self._snapshot = Snapshot(self.model)

    def _collect(self):
        """Reads the guard's memory into the record; returns the steps that were refused since, each with how many in a row that made."""
        if self.session is None or not self.session.has_steps():
            return []
        function = self.session.function
        memory = function.memory.read()
        new = layout.rows(memory, self._examined)
        if new and new[0].step > self._examined:
            self._skips_in_row = 0  # what the ring no longer holds was accepted: a refused step is looked at when its block ends
        self._examined = layout.counts(memory)["steps"]
        refused = []
        for row in new:
            if row.outcome in ("skipped", "passed"):
                self._tell(**row.incident(), **self._place(row.step))
            if row.outcome != "overflow":
                self._skips_in_row = self._skips_in_row + 1 if row.outcome == "skipped" else 0
            if row.outcome == "skipped":
                refused.append((row, self._skips_in_row))
        self._recorder.set_judged(function.judged)
        self._recorder.set_totals(**layout.totals(memory))
        self._recorder.set_steps([StepRecord.from_row(row) for row in layout.rows(memory)])
        return refused

    def _place(self, step):
        return {"step": step, "epoch": self._epoch, "batch": step - self._epoch_begin}

    def _examine(self):
        for row, in_row in self._collect():
            seen = ladder.Observation(in_row, row.reasons[0], self.session.state_is_sound())
            self._act(seen, step=row.step)

    def _act(self, seen, step):
        policy = ladder.LadderPolicy(self.max_consecutive_skips)
        self._ladder, decision = ladder.decide(policy, self._ladder, seen)
        if decision.action != "stop":
            self._write(at_incident=True)
            return
        message = f"{seen.skips_in_row} steps were refused in a row."
        if decision.restore:
            message = f"Not finite after the update: {some(self.session.state.names())}. "
            if self._snapshot is None:
                message += "There was no snapshot yet: the weights are lost. Build the model before fit, and there is one."
            else:
                self._snapshot.restore()
                message += "The snapshot was put back."
        known, reason = self.session.state.known, decision.reason
        if known and not decision.restore:
            reason, message = "initial_state", f"{message} Not finite from the start, and so still: {some(sorted(known))}."
        self._tell(action="stop", reason=reason, message=message, **self._place(step))
        self.model.stop_training = True
        if self.raise_error:
            self._recorder.finish("raised")
            self._write()
            self.session.end()
            incident = self._recorder.build().incidents[-1]
            good = "" if known or self._snapshot is None else " The model holds the last good weights."
            raise NonFiniteTrainingError(f"{incident.message} (reason: {incident.reason}){good}", self.report)
        self._write(at_incident=True)

    def _tell(self, **fields):
        incident = self._recorder.add_incident(**fields)
        self._messenger.incident(incident, self._bar_open())

    def _bar_open(self):
        return self._in_epoch and self.verbosity() in (1, "auto")

    def _mention(self, epoch, logs):
        """What is not finite and yet no reason to do anything."""
        loss = logs.get("loss", 0.0)
        bad = [name for name, value in logs.items() if isinstance(value, float) and not math.isfinite(value)]
        if not _is_finite(loss):
            return
        for name in bad:
            if name == "val_loss":
                self._tell(action="mention", reason="validation", epoch=epoch)
            elif name not in ("grad_norm", "skipped_steps", "learning_rate_scale"):
                note = f"The metric {name!r} is not finite while the loss is; the steps are accepted."
                if self._recorder.add_note(note):
                    self._messenger.say_once(name, note[0].lower() + note[1:], self._bar_open())

    def _write(self, at_incident=False):
        if self.report_path is None or not self.is_chief():
            return
        now = self._recorder.now()
        if at_incident and now - self._written < WRITE_INTERVAL:
            return
        self._written = now
        try:
            write_report(self._recorder.build(), self.report_path)
        except OSError as error:  # a full disk costs the file, not the training
            note = error.strerror or str(error)
            self._recorder.add_note(note)
            self._messenger.say_once("report_path", note, self._bar_open())


def _is_finite(loss):
    """Of a number, of a tensor, or of an array that a train step of one's own has put into the logs."""
    return math.isfinite(loss) if isinstance(loss, float) else bool(np.all(np.isfinite(keras.ops.convert_to_numpy(loss))))


def _write_unfinished(recorder, path):
    """`fit` was ended from outside of the train function, which calls no hook: the report says so all the same."""
    if recorder.build().outcome == "running":
        recorder.finish("interrupted")
        with contextlib.suppress(OSError):
            write_report(recorder.build(), path)
