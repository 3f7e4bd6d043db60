"""The guarded update: the verdict on loss, gradients and forward-written state, then the optimizer, a lower loss scale, or nothing."""

import dataclasses

import keras
import tensorflow as tf

from ...state import leaf_optimizers
from ...step import memory as layout
from ...step.judge import Seen
from ...step.judge import accept as accept_plain
from ...step.judge import judge
from ...step.judge import unremarkable
from . import numerics
from . import strategy as distribution


@dataclasses.dataclass
class Update:
    """One update as it is judged, in one replica's view.

    Attributes:
        optimizer: the one whose `apply` was called, built.
        original: its own `apply`.
        grads: as given, summed over the replicas where there are several; `None`s kept.
        variables: the variables they belong to.
    """

    optimizer: object
    original: object
    grads: list
    variables: list

    @property
    def present(self):
        return [g for g in self.grads if g is not None]

    def with_present(self, gradients):
        """`grads` with other values for those that are there."""
        filled = iter(gradients)
        return [None if g is None else next(filled) for g in self.grads]

    @property
    def loss_scale(self):
        """Tensor of a dynamic loss scale, else `None`."""
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return tf.cast(numerics.raw(self.optimizer.dynamic_scale).read_value(), tf.float32)
        return None

    def run(self, grads):
        """The optimizer's own update, its own verdict on the gradients left out."""
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            self.optimizer._stateful_handle_finite_grads(grads, self.variables)
        else:
            self.original(grads, self.variables)

    def with_grads(self, grads):
        return dataclasses.replace(self, grads=grads)


def lower_loss_scale(optimizer):
    """What Keras does after an overflow, with a floor of 1."""
    for steps in numerics.components(optimizer.step_counter):
        steps.assign(tf.zeros_like(steps))
    for scale in numerics.components(optimizer.dynamic_scale):
        scale.assign(tf.maximum(scale * 0.5, 1.0))


def fixed_scale(optimizer):
    """The constant by which `scale_loss` multiplies, or `None`."""
    return getattr(optimizer, "loss_scale_factor", None)


def own_clips(optimizer):
    """The parts of an optimizer that clip by themselves."""
    return [leaf for leaf in leaf_optimizers(optimizer) if leaf.clipnorm or leaf.global_clipnorm or leaf.clipvalue]


def branch(condition, if_true, if_false):
    """`tf.cond`, or Python's own choice in eager code; the functions return nothing or the same structure."""
    if tf.executing_eagerly():
        return if_true() if bool(condition) else if_false()
    return tf.cond(condition, if_true, if_false)


def rarely(function):
    """`function`, kept out of the graph that every step walks through: a call of its own."""
    if tf.executing_eagerly():
        return function
    return lambda: tf.function(function, autograph=False, experimental_attributes={"_noinline": True})()


def nothing():
    return None


def look(update, loss, state_finite, careful=True, replicas=None):
    """`Seen` of an update: the norm of the unscaled gradients, and whether they survive the optimizer's own clip.

    Not `careful`: gradients whose squares overflow float32 count as not finite.
    """
    norm, finite = numerics.global_norm(update.present, careful)
    scale = update.loss_scale
    divisor = scale if scale is not None else fixed_scale(update.optimizer)
    if divisor is not None:
        norm = norm / divisor
    clips = own_clips(update.optimizer)
    if any(leaf.clipnorm or leaf.global_clipnorm for leaf in clips):
        finite = tf.logical_and(finite, _survives_own_clip(update, divisor))
    return Seen(
        loss=loss,
        grad_norm=norm,
        gradients_finite=finite,
        state_finite=state_finite,
        learning_rate=learning_rate(update.optimizer),
        loss_scale=scale,
        may_clip=not clips,
        replicas=replicas,
    )


def _survives_own_clip(update, divisor):
    """Whether the squares that a clip by norm adds up stay finite, in the gradients' own dtype, accumulated ones included."""
    accumulated = {}
    for leaf in leaf_optimizers(update.optimizer):
        if leaf.gradient_accumulation_steps and getattr(leaf, "_accumulated_gradients", None):
            for variable in update.variables:
                if leaf._var_key(variable) in leaf._trainable_variables_indices:
                    held = leaf._accumulated_gradients[leaf._get_variable_index(variable)]
                    accumulated[id(variable)] = (held, leaf.gradient_accumulation_steps)
    squares = []
    for gradient, variable in zip(update.grads, update.variables):
        if gradient is None:
            continue
        values = numerics.values_of(gradient)
        if divisor is not None:
            values = values / tf.cast(divisor, values.dtype)
        if id(variable) in accumulated and not isinstance(gradient, tf.IndexedSlices):
            held, steps = accumulated[id(variable)]
            values = (values + numerics.raw(held)) / steps
        squares.append(tf.cast(tf.reduce_sum(tf.square(values)), tf.float32))
    return tf.math.is_finite(tf.add_n(squares))


def learning_rate(optimizer):
    """The rate of the (first) optimizer; a Python callable is not called a second time for the record: NaN."""
    leaf = leaf_optimizers(optimizer)[0]
    rate = leaf._learning_rate
    if isinstance(rate, (keras.Variable, keras.optimizers.schedules.LearningRateSchedule)) or not callable(rate):
        return tf.cast(tf.convert_to_tensor(leaf.learning_rate), tf.float32)
    return tf.constant(float("nan"))


def carry_out(update, verdict):
    """Runs the update, clipped where the verdict says so, or lowers the loss scale, or does nothing."""

    def run():
        grads = update.grads
        if verdict.clip_factor is not None:
            present = branch(
                verdict.clip, lambda: numerics.clipped(update.present, verdict.clip_factor), lambda: list(update.present)
            )
            grads = update.with_present(present)
        update.run(grads)

    branch(verdict.apply, run, nothing)
    if update.loss_scale is not None:
        branch(verdict.overflow, lambda: lower_loss_scale(update.optimizer), nothing)


def put_back(kept):
    """Assigns kept values, one per replica: a list of (variable, values). Called once for all replicas."""
    for variable, values in kept:
        for part, value in zip(numerics.components(variable), values):
            part.assign(value)


def guarded(spec, memory, update, loss, state_finite):
    """Judges and carries out an update; returns what became of it. Called in each replica where there are several."""
    if distribution.replicas() > 1:
        return _guarded_across_replicas(spec, memory, update, loss, state_finite)
    before = memory.tensors()
    seen = look(update, loss, state_finite, careful=False)

    def accept():
        update.run(update.grads)
        after = accept_plain(spec, before, seen)
        memory.assign(after)
        return outcome(seen, {**before, **after}, tf.constant(True))

    def examine():
        seen = look(update, loss, state_finite)
        verdict = judge(spec, before, seen)
        carry_out(update, verdict)
        memory.assign(verdict.memory)
        return outcome(seen, {**before, **verdict.memory}, verdict.apply, verdict.overflow)

    return branch(unremarkable(spec, before, seen), accept, rarely(examine))


def outcome(seen, memory, applied, overflow=None):
    """What the rest of the step and its caller want to know; tensors."""
    count = {name: memory["counts"][k] for k, name in enumerate(layout.COUNTS)}
    accepted = tf.cast(count["epoch_accepted"], tf.float32)
    mean = tf.where(accepted > 0, memory["epoch_norm"] / tf.maximum(accepted, 1.0), float("nan"))
    logs = [mean, tf.cast(count["epoch_skipped"], tf.float32)]
    if "lr_scale" in memory:
        logs.append(memory["lr_scale"])
    return {
        "applied": applied,
        "overflow": tf.constant(False) if overflow is None else overflow,
        "none_accepted": tf.equal(count["epoch_accepted"], 0),
        "loss": seen.loss,
        "grad_norm": seen.grad_norm,
        "logs": tf.stack(logs),
    }


def _guarded_across_replicas(spec, memory, update, loss, state_finite):
    """One sum over the replicas, one verdict, one decision for all."""
    own = update.present
    # one scalar more is communicated, and no second sum of the gradients
    total, *summed = distribution.reduce_sum([tf.where(state_finite, loss, float("nan")), *own])

    def decide(strategy, summed, total, own, loss, state_finite):
        # runs once, for all replicas
        count = strategy.num_replicas_in_sync
        replicas = range(count)
        grads = [[distribution.local(strategy, g)[r] for g in summed] for r in replicas]
        own = [[distribution.local(strategy, g)[r] for g in own] for r in replicas]
        losses, states = distribution.local(strategy, loss), distribution.local(strategy, state_finite)
        first = update.with_grads(update.with_present(grads[0]))
        states_finite = tf.reduce_all(tf.stack(states))
        total = tf.where(states_finite, distribution.local(strategy, total)[0], tf.add_n(losses))
        seen = look(first, total, states_finite)
        healthy = tf.logical_and(tf.logical_and(tf.math.is_finite(total), states_finite), seen.gradients_finite)
        seen.replicas = branch(healthy, lambda: tf.zeros(()), lambda: _bad_replicas(own, losses, states))
        verdict = judge(spec, memory.tensors(), seen)

        def run():
            passed = grads
            if verdict.clip_factor is not None:
                clip = lambda: [numerics.clipped(g, verdict.clip_factor) for g in grads]
                passed = branch(verdict.clip, clip, lambda: [list(g) for g in grads])
            in_replica = lambda given: update.run(update.with_present(given))
            strategy.extended.call_for_each_replica(in_replica, args=(distribution.per_replica(passed),))

        branch(verdict.apply, run, nothing)
        if first.loss_scale is not None:
            branch(verdict.overflow, lambda: lower_loss_scale(update.optimizer), nothing)
        memory.assign(verdict.memory)
        return outcome(seen, verdict.memory, verdict.apply, verdict.overflow)

    return distribution.across(decide, summed, total, own, loss, state_finite)


def _bad_replicas(gradients, losses, states):
    """Bit mask: the replicas with a loss, a gradient or a state that is not finite."""
    bits = tf.zeros(())
    for number, (own, loss, state) in enumerate(zip(gradients, losses, states)):
        finite = tf.logical_and(tf.logical_and(tf.math.is_finite(loss), state), numerics.global_norm(own)[1])
        bits += tf.where(finite, 0.0, 2.0**number)
    return bits
