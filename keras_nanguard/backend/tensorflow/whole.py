"""The guarded step for any train step: its whole state is remembered, and put back when the verdict is bad.

For several optimizers or updates, for an update inside a loop, and for eager steps of one's own. Exact; the price is a
second copy of weights and slots while the step runs.
"""

import tensorflow as tf

from ... import state
from ...step.judge import Seen
from ...step.judge import clip_bound
from ...step.judge import judge
from ...step.optimizers import has_loss_scale
from . import numerics
from . import strategy as distribution
from .step import GuardedStep
from .update import branch
from .update import learning_rate
from .update import look
from .update import lower_loss_scale
from .update import nothing
from .update import outcome


class WholeStateStep(GuardedStep):
    """As `GuardedStep`, the verdict taken when the step has ended."""

    def _candidates(self):
        return super()._candidates() + state.optimizer_state(self.model)

    def _begin(self, run):
        run.optimizers = []
        self._scaled = next((o for o in state.optimizers_of(self.model) if has_loss_scale(o) and o.built), None)
        run.loss_scale = None
        if self._scaled is not None:
            run.loss_scale = numerics.raw(self._scaled.dynamic_scale).read_value()
        self.memory.start_adding()

    def _update(self, run, update):
        if self._across:
            update = update.with_grads(update.with_present(distribution.reduce_sum(update.present)))
        run.optimizers.append(update.optimizer)
        seen = look(update, tf.zeros(()), True)
        grads, clipped = update.grads, tf.constant(False)
        bound = clip_bound(self.spec, self.memory.tensors()) if seen.may_clip else None
        if bound is not None:
            factor, clipped = bound / tf.maximum(seen.grad_norm, bound), seen.grad_norm > bound
            clip = lambda: numerics.clipped(update.present, factor)
            grads = update.with_present(branch(clipped, clip, lambda: list(update.present)))
        self._add_up(seen, clipped)
        return update.original(grads, update.variables)

    def _add_up(self, seen, clipped):
        """Into variables: an update inside a loop or a condition can leave its norm nowhere else."""
        bad = tf.where(seen.gradients_finite, 0.0, 1.0)
        squared = tf.where(seen.gradients_finite, tf.square(seen.grad_norm), 0.0)
        values = tf.stack([squared, bad, tf.cast(clipped, tf.float32)])
        if self._across:
            once = lambda strategy, values: self.memory.add(distribution.local(strategy, values)[0])
            distribution.across(once, values)
        else:
            self.memory.add(values)

    def _finish(self, run, logs):
        loss = self._loss(run, logs)
        state_finite = numerics.all_finite(self._state(run))
        if not self._across:
            run.outcome = self._judged(run, loss, state_finite)
            return
        total = distribution.reduce_sum([tf.where(state_finite, loss, float("nan"))])[0]
        once = lambda strategy, total: self._judged(run, distribution.local(strategy, total)[0], tf.constant(True))
        run.outcome = distribution.across(once, total)

    def _judged(self, run, loss, state_finite):
        squared, bad, clipped = tf.unstack(self.memory.added())
        scale = run.loss_scale
        seen = Seen(
            loss=loss,
            grad_norm=tf.sqrt(squared),
            gradients_finite=tf.equal(bad, 0.0),
            state_finite=state_finite,
            learning_rate=learning_rate(run.optimizers[0]),
            loss_scale=None if scale is None else numerics.first_of(scale),
            clipped=clipped > 0,
        )
        before = self.memory.tensors()
        verdict = judge(self.spec, before, seen)
        self.memory.store(before, verdict.change)
        return outcome(seen, before, verdict.change, verdict.apply, verdict.overflow)

    def _after_refusal(self, run):
        if self._scaled is not None:
            branch(run.outcome["overflow"], lambda: lower_loss_scale(self._scaled), nothing)
