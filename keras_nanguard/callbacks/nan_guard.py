"""`NanGuardCallback`: protects a `fit`, recovers, and reports."""

import contextlib
import math
import numbers
import os
import weakref

from ..errors import NonFiniteTrainingError
from ..fit.model_guard import step_guard_of
from ..policy import ladder
from ..report import Messenger
from ..report import Recorder
from ..report import StepRecord
from ..report import write_report
from ..snapshots import Snapshot
from ..step import memory as layout
from ..step.step_guard import StepGuard
from ..step.step_guard import step_guard_or_error
from ..versions import versions
from .guarding_callback import GuardingCallback

WRITE_INTERVAL = 1.0  # seconds between two writings of the report at incidents


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
        report_path: where to write the report as JSON: at the start, at incidents (once a second at most), at
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
            step_guard_or_error(step_guard)
        whole = isinstance(max_consecutive_skips, numbers.Integral) and not isinstance(max_consecutive_skips, bool)
        if not whole or max_consecutive_skips < 1:
            raise ValueError(
                f"`max_consecutive_skips` must be an int >= 1. Received: max_consecutive_skips={max_consecutive_skips!r}"
            )
        if report_path is not None and not isinstance(report_path, (str, os.PathLike)):
            raise TypeError(f"`report_path` must be a path (str or os.PathLike) or None. Received: report_path={report_path!r}")
        if not isinstance(raise_error, bool):
            raise ValueError(f"`raise_error` must be True or False. Received: raise_error={raise_error!r}")
        self.step_guard = step_guard
        self.max_consecutive_skips = int(max_consecutive_skips)
        self.report_path = report_path
        self.raise_error = raise_error
        self._recorder = Recorder(settings=self._settings(step_guard), versions=versions())
        self._messenger = Messenger(verbose=0)
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
        self._epoch, self._epoch_begin, self._examined = 0, 0, 0
        self._skipped_seen = 0.0
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
        self._messenger = Messenger(verbose=self.params.get("verbose", 0) if self.params else 0)
        if self.report_path is not None:
            weakref.finalize(self, _write_unfinished, self._recorder, self.report_path)
        if self.model.built and self.model.optimizer.built:
            self._first_snapshot()
        else:
            function.before_first_update = self._first_snapshot
        if self.report_path is not None:
            write_report(self._recorder.build(), self.report_path)  # a path that cannot be written is an error here, not after hours

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._epoch, self._epoch_begin, self._skipped_seen = epoch, self._examined, 0.0

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        skipped, loss = (logs or {}).get("skipped_steps", math.nan), (logs or {}).get("loss", 0.0)
        if skipped != self._skipped_seen or not math.isfinite(loss):
            self._skipped_seen = skipped
            self._examine()

    def on_epoch_end(self, epoch, logs=None):
        self._collect()
        super().on_epoch_end(epoch, logs)
        self._mention(epoch, logs or {})
        if not self._ladder.stopped:
            snapshot = Snapshot(self.model, self.session.state.known)
            if snapshot.finite:
                self._snapshot = snapshot
        self._write()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self._collect()
        self._recorder.finish("stopped" if self._ladder.stopped else "completed")
        self._messenger.flush()
        self._write()

    def on_fit_error(self, error):
        self._collect()
        self._recorder.finish("interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "raised")
        self._write()

    def on_bad_state(self):
        self._collect()
        self._act(ladder.Observation(state_finite=False), step=self._examined - 1)

    # -- what is seen, decided and done

    def _first_snapshot(self):
        names = self.session.state.begin()
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            self._tell(action="mention", reason="initial_state", message=f"Not finite before the first step: {shown}.")
        self._snapshot = Snapshot(self.model, self.session.state.known)

    def _collect(self):
        """Reads the guard's memory into the record; returns the steps that are new."""
        function = self.session.function if self.session is not None else None
        if function is None or not function.calls:
            return [], None
        memory = function.memory.read()
        counts = layout.counts(memory)
        new = layout.rows(memory, self._examined)
        self._examined = counts["steps"]
        for row in new:
            if row.outcome in ("skipped", "passed"):
                action = "skip" if row.outcome == "skipped" else "mention"
                self._tell(
                    action=action, reason=row.reasons[0], replica=row.replica, loss=row.loss, grad_norm=row.grad_norm, **self._place(row.step)
                )
        backoffs = int(memory["lr_marks"][-1]) if "lr_marks" in memory else 0
        self._recorder.set_judged(function.judged)
        self._recorder.set_totals(
            steps=counts["steps"],
            skipped=counts["skipped"],
            clipped=counts["clipped"],
            scale_overflows=counts["overflows"],
            backoffs=backoffs,
        )
        self._recorder.set_steps([StepRecord.from_row(row) for row in layout.rows(memory)])
        return new, counts

    def _place(self, step):
        return {"step": step, "epoch": self._epoch, "batch": step - self._epoch_begin}

    def _examine(self):
        new, counts = self._collect()
        for row in new:
            if row.outcome in ("skipped", "passed"):
                state_finite = self.session.state.finite()
                seen = ladder.Observation(counts["skips_in_row"], row.reasons[0], state_finite)
                self._act(seen, step=row.step)

    def _act(self, seen, step):
        policy = ladder.LadderPolicy(self.max_consecutive_skips)
        self._ladder, decision = ladder.decide(policy, self._ladder, seen)
        if decision.action != "stop":
            self._write(at_incident=True)
            return
        message = ""
        if decision.restore:
            message = f"Not finite after the update: {', '.join(self.session.state.names()[:5])}. "
            self._snapshot.restore()
            message += "The snapshot was put back."
        elif seen.reason is not None:
            message = f"{seen.skips_in_row} steps were refused in a row."
        self._tell(action="stop", reason=decision.reason, message=message, **self._place(step))
        self.model.stop_training = True
        if self.raise_error:
            self._recorder.finish("raised")
            self._write()
            self.session.end()
            incident = self._recorder.build().incidents[-1]
            raise NonFiniteTrainingError(f"{incident.message} (reason: {incident.reason}) The model holds the last good weights.", self.report)
        self._write(at_incident=True)

    def _tell(self, **fields):
        incident = self._recorder.add_incident(**fields)
        self._messenger.incident(incident, bar_open=bool(self.params) and self.params.get("verbose") == 1)

    def _mention(self, epoch, logs):
        """What is not finite and yet no reason to do anything."""
        loss = logs.get("loss", 0.0)
        bad = [name for name, value in logs.items() if isinstance(value, float) and not math.isfinite(value)]
        if not math.isfinite(loss):
            return
        for name in bad:
            if name == "val_loss":
                self._tell(action="mention", reason="validation", epoch=epoch)
            elif name not in ("grad_norm", "skipped_steps", "learning_rate_scale"):
                note = f"The metric {name!r} is not finite while the loss is; the steps are accepted."
                if self._recorder.add_note(note):
                    self._messenger.say_once(name, note[0].lower() + note[1:])

    def _write(self, at_incident=False):
        if self.report_path is None:
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
            self._messenger.say_once("report_path", note)


def _write_unfinished(recorder, path):
    """`fit` was ended from outside of the train function, which calls no hook: the report says so all the same."""
    if recorder.build().outcome == "running":
        recorder.finish("interrupted")
        with contextlib.suppress(OSError):
            write_report(recorder.build(), path)
