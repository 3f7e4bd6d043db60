"""A training step, whatever it is, kept whole and guarded: what it wrote is put back when the verdict is bad."""

import contextlib

import keras
import numpy as np
import torch

from ... import state
from ...step import memory as layout
from ...step import optimizers
from ...step.hooks import OptimizerHooks
from ...step.judge import clip_bound
from ...step.judge import judge
from . import numerics
from . import update as updates
from . import writes
from .buffers import buffers


class LossRefused(Exception):
    """The loss function raised, over predictions, targets or weights that are not finite: some of torch's say so instead of giving NaN."""


class Run:
    """One run of the step."""

    def __init__(self):
        self.loss = self.outcome = self.scale = None
        self.kept = {}  # id -> (variable, value before the step)
        self.updates = []
        self.squared, self.gradients_finite, self.clipped = np.float32(0), True, False


class GuardedStep:
    """`step(data) -> logs`, the guard's own logs with it.

    Keras' own step updates once, after its loss is known: the verdict comes before the update. Of any other step, which
    may update several times, the weights and slots are copied before each optimizer's first update, and the verdict comes at the end.
    """

    judged = "loss and gradients"

    def __init__(self, model, train_step, spec, memory):
        self._model, self._spec, self._memory = model, spec, memory
        self._is_keras = (getattr(train_step, "__module__", None) or "").startswith("keras.")
        self._compiles = bool(model.jit_compile) and not model.run_eagerly
        self._train_step = torch.compile(train_step) if self._compiles else train_step
        self._run = None
        self.added = ()  # the keys of the logs that are the guard's
        disable = torch.compiler.disable if self._compiles else lambda function: function
        scale = (lambda: memory.values["lr_scale"]) if spec.backoff is not None else None
        self._hooks = OptimizerHooks(
            state.optimizers_of(model),
            disable(self._on_apply),
            disable(self._on_loss),
            learning_rate_scale=scale,
            model=model,
            on_loss_error=disable(self._on_loss_error),
        )

    @torch.compiler.disable
    def __call__(self, data):
        run = self._run = Run()
        generator = torch.get_rng_state()
        self._keep_unassigned(run)
        try:
            with self._hooks, contextlib.nullcontext() if self._compiles else writes.kept_by(run.kept):
                logs = self._train_step(data)
        except LossRefused:
            logs = dict.fromkeys(self._model.get_metrics_result(), torch.tensor(float("nan")))
            run.outcome = self._judged(run, logs, torch.tensor(float("nan")))
        finally:
            self._run = None
        if not run.updates and run.outcome is None:
            raise RuntimeError(
                "The train step of this model calls no Keras optimizer (`optimizer.apply` or `optimizer.apply_gradients`), so there is "
                "no update that keras_nanguard could hold back. Use a Keras optimizer in `train_step`, or write the loop by hand "
                "with keras_nanguard.GradientGuard."
            )
        logs = logs if isinstance(logs, dict) else {"loss": logs}
        if run.outcome is None:
            run.outcome = self._judged(run, logs)
        if not run.outcome["applied"]:
            torch.set_rng_state(generator)
            writes.put_back(run.kept)
            if run.outcome["overflow"]:
                updates.lower_loss_scale(run.scaled)
        told = updates.extras(self._memory)
        self.added = tuple(name for name in told if name not in logs)
        return {**told, **self._logs(run, logs)}

    def _keep_unassigned(self, run):
        """What is written without an assignment that could be seen: buffers of torch modules, in compiled code everything."""
        writes.keep(run.kept, buffers(self._model))
        if self._compiles:
            writes.keep(run.kept, [v for v in state.forward_state(self._model) if not v.trainable])
        if not self._is_keras:
            run.scaled = next((o for o in state.optimizers_of(self._model) if optimizers.has_loss_scale(o) and o.built), None)
            run.scale = None if run.scaled is None else np.float32(run.scaled.dynamic_scale.numpy())

    def _on_loss(self, loss):
        if self._run is not None:
            self._run.loss = numerics.scalar(loss)

    def _on_loss_error(self, error, given):
        tensors = [value for value in keras.tree.flatten(given) if isinstance(value, torch.Tensor)]
        if self._run is not None and not numerics.all_finite(tensors):
            raise LossRefused from error

    def _on_apply(self, optimizer, original, grads, variables):
        run = self._run
        if run is None:
            return original(grads, variables)
        grads = list(grads)
        variables = list(optimizer._trainable_variables if variables is None else variables)
        if all(g is None for g in grads):
            return original(grads, variables)  # Keras' own error, or nothing to do
        optimizers.build(optimizer, variables)
        update = updates.Update(optimizer, original, grads, variables)
        run.updates.append(update)
        if self._is_keras:
            run.scaled = optimizer
            run.outcome = updates.guarded(self._spec, self._memory, update, run.loss, self._written(run))
        else:
            self._updated(run, update)
        return optimizer.iterations

    @torch.no_grad()
    def _updated(self, run, update):
        """One of perhaps several updates: carried out, clipped, and added up for the verdict at the end."""
        writes.keep(run.kept, [*update.optimizer.variables, *update.variables])
        divisor = numerics.host(update.divisor())[0]
        norm, finite = numerics.global_norm(update.present)
        finite, norm = finite and update.survives_own_clips(), norm / divisor
        bound = None if optimizers.clips_itself(update.optimizer) else clip_bound(self._spec, self._memory.values, np)
        grads = update.grads
        if finite and bound is not None and norm > bound:
            grads, run.clipped = update.with_present(numerics.clipped(update.present, bound / norm)), True
        run.squared += norm**2 if finite else 0
        run.gradients_finite = run.gradients_finite and finite
        update.original(grads, update.variables)

    def _judged(self, run, logs, loss=None):
        """The verdict on a step that has ended."""
        loss = run.loss if loss is None else loss
        if loss is None and "loss" in logs:
            loss = numerics.scalar(logs["loss"])
        self.judged = "gradients" if loss is None else "loss and gradients"
        optimizer = run.updates[0].optimizer if run.updates else state.optimizers_of(self._model)[0]
        with np.errstate(all="ignore"):
            loss, rate = numerics.host(torch.zeros(()) if loss is None else loss, updates.learning_rate(optimizer))
            seen = updates.Seen(
                loss=loss,
                grad_norm=np.sqrt(run.squared),
                gradients_finite=run.gradients_finite,
                state_finite=not numerics.newly_bad(self._written(run)),
                learning_rate=rate,
                loss_scale=run.scale,
                clipped=run.clipped,
            )
            verdict = judge(self._spec, self._memory.values, seen, np)
        self._memory.store(verdict.change)
        return {"applied": bool(verdict.apply), "overflow": bool(verdict.overflow)}

    def _written(self, run):
        """What the forward pass wrote: (before, now) pairs; metrics are no reason to refuse a step, an update's doing is none either."""
        others = {id(v) for metric in self._model.metrics for v in metric.variables}
        for update in run.updates if not self._is_keras else ():
            others |= {id(v) for v in [*update.optimizer.variables, *update.variables]}
        return [(before, writes.raw(v)) for key, (v, before) in run.kept.items() if key not in others]

    def _logs(self, run, logs):
        """A refused step tells what stood before it, NaN where nothing did."""
        numbers = {name for name, value in logs.items() if _is_number(value)}
        applied = run.outcome["applied"]
        results = self._model.get_metrics_result()
        if set(logs) != set(results):
            if applied:
                self._memory.last_logs = {name: _copy(logs[name]) for name in numbers}
            held = self._memory.last_logs
        else:
            none_accepted = layout.counts(self._memory.values)["epoch_accepted"] == 0
            held = {} if none_accepted else results
        if applied:
            return logs
        return {name: held.get(name, float("nan")) if name in numbers else value for name, value in logs.items()}


def _is_number(value):
    return isinstance(value, (int, float, torch.Tensor, keras.Variable))


def _copy(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
