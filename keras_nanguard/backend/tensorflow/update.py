"""The guarded update: the verdict on loss, gradients and forward-written state, then the optimizer, a lower loss scale, or nothing."""

import dataclasses

import tensorflow as tf

from ...step import memory as layout
from ...step import optimizers
from ...step import update as updates
from ...step.judge import Seen
from ...step.judge import accept
from ...step.judge import judge
from ...step.judge import unremarkable
from . import numerics
from . import strategy as distribution


class Update(updates.Update):
    """In one replica's view."""

    @property
    def loss_scale(self):
        """Tensor of a dynamic loss scale, else `None`."""
        if optimizers.has_loss_scale(self.optimizer):
            return tf.cast(numerics.raw(self.optimizer.dynamic_scale).read_value(), tf.float32)
        return None


def lower_loss_scale(optimizer):
    """What Keras does after an overflow, with a floor of 1."""
    for steps in numerics.components(optimizer.step_counter):
        steps.assign(tf.zeros_like(steps))
    for scale in numerics.components(optimizer.dynamic_scale):
        scale.assign(tf.maximum(scale * 0.5, 1.0))


def branch(condition, if_true, if_false):
    """`tf.cond`, or Python's own choice in eager code; the functions return nothing or the same structure."""
    if tf.executing_eagerly():
        return if_true() if bool(condition) else if_false()
    return tf.cond(condition, if_true, if_false)


def rarely(function):
    """`function`, kept out of the graph that every step walks through: a call of its own.

    In vain where several processes sum in it: such a call cannot hold what keeps their sums in order.
    """
    if tf.executing_eagerly() or distribution.several_processes():
        return function
    return lambda: tf.function(function, autograph=False, experimental_attributes={"_noinline": True})()


def nothing():
    return None


def look(update, loss, state_finite, replicas=None):
    """`Seen` of an update: the norm of the unscaled gradients, and whether they survive the optimizer's own clip."""
    norm, finite = numerics.global_norm(update.present)
    return _seen(update, loss, norm, tf.logical_and(finite, _survives_own_clips(update)), state_finite, replicas)


def glance(update, loss, state):
    """`Seen`, and whether everything is finite, in few operations; `False` also where squares overflow float32.

    `state` is a list of tensors: what the forward pass wrote.
    """
    squared = numerics.squared_norm(update.present)
    seen = _seen(update, loss, tf.sqrt(squared), None, None)
    # a sum is finite only where its terms are
    finite = tf.math.is_finite(tf.add_n([loss, seen.grad_norm, *([numerics.squared_norm(state)] if state else [])]))
    return seen, tf.logical_and(finite, _survives_own_clips(update))


def _seen(update, loss, norm, gradients_finite, state_finite, replicas=None):
    scale = update.loss_scale
    divisor = scale if scale is not None else optimizers.fixed_scale(update.optimizer)
    return Seen(
        loss=loss,
        grad_norm=norm if divisor is None else norm / divisor,
        gradients_finite=gradients_finite,
        state_finite=state_finite,
        learning_rate=learning_rate(update.optimizer),
        loss_scale=scale,
        may_clip=not optimizers.clips_itself(update.optimizer),
        replicas=replicas,
    )


def _survives_own_clips(update):
    """Whether the squares that a clip by norm adds up stay finite, in the gradients' own dtype, accumulated ones included."""
    if not optimizers.clips_by_norm(update.optimizer):
        return tf.constant(True)
    divisor = update.loss_scale if update.loss_scale is not None else optimizers.fixed_scale(update.optimizer)
    squares = []
    for gradient, variable in zip(update.grads, update.variables):
        if gradient is None:
            continue
        values = numerics.values_of(gradient)
        if divisor is not None:
            values = values / tf.cast(divisor, values.dtype)
        held = optimizers.accumulated(update.optimizer, variable)
        if held is not None and not isinstance(gradient, tf.IndexedSlices):
            values = (values + numerics.raw(held[0])) / held[1]
        squares.append(tf.cast(tf.reduce_sum(tf.square(values)), tf.float32))
    return tf.math.is_finite(tf.add_n(squares))


def learning_rate(optimizer):
    """The rate of the (first) optimizer; a Python callable is not called a second time for the record: NaN."""
    leaf = optimizers.readable_learning_rate(optimizer)
    if leaf is None:
        return tf.constant(float("nan"))
    return tf.cast(tf.convert_to_tensor(leaf.learning_rate), tf.float32)


def carry_out(update, verdict, grads, run):
    """Runs the update, clipped where the verdict says so, or lowers the loss scale, or does nothing.

    `grads` is a list of lists, one per replica; `run` is called with such a one.
    """

    def apply():
        passed = grads
        if verdict.clip_factor is not None:
            clip = lambda: [numerics.clipped(own, verdict.clip_factor) for own in grads]
            passed = branch(verdict.clip, clip, lambda: [list(own) for own in grads])
        run(passed)

    branch(verdict.apply, apply, nothing)
    if update.loss_scale is not None:
        branch(verdict.overflow, lambda: lower_loss_scale(update.optimizer), nothing)


def put_back(kept):
    """Assigns kept values, one per replica: a list of (variable, values). Called once for all replicas."""
    for variable, values in kept:
        for part, value in zip(numerics.components(variable), values):
            part.assign(value)


@dataclasses.dataclass(frozen=True)
class Undo:
    """What a refused step leaves behind, and how it is told.

    Attributes:
        kept: list of (variable, value before the step), of this replica.
        written: called with a list of (variable, values of all replicas) for those of them that the step has written.
        choice: `logs.Choice`, or `None`.
    """

    kept: list = ()
    written: object = lambda pairs: pairs
    choice: object = None


def guarded(spec, memory, update, loss, state, undo=Undo()):
    """Judges and carries out an update, and undoes what the step wrote before it where it is refused.

    Args:
        update: `Update`; called in each replica where there are several.
        loss: float32 scalar, of this replica.
        state: list of tensors, what the forward pass wrote, as it is now.
        undo: `Undo`.

    Returns:
        (outcome, logs): see `outcome`; the logs that hold, `None` without a choice.
    """
    if distribution.replicas() > 1:
        return _guarded_across_replicas(spec, memory, update, loss, state, undo)
    look_closely = lambda: look(update, loss, numerics.all_finite(state))
    run = lambda grads: update.run(update.with_present(grads[0]))
    kept = undo.written([(variable, [value]) for variable, value in undo.kept])
    now = undo.choice.now if undo.choice is not None else nothing

    def refuse(none_accepted):
        put_back(kept)
        return undo.choice.before(none_accepted) if undo.choice is not None else None

    seen, finite = glance(update, loss, state)
    return _decided(spec, memory, update, seen, finite, look_closely, [update.present], run, now, refuse)


def _decided(spec, memory, update, seen, finite, look_closely, grads, run, now, refuse):
    before = memory.tensors()

    def short():
        run(grads)
        change = accept(spec, before, seen)
        memory.store(before, change)
        return outcome(seen, before, change, tf.constant(True)), now()

    def long():
        closely = look_closely()
        verdict = judge(spec, before, closely)
        carry_out(update, verdict, grads, run)
        memory.store(before, verdict.change)
        told = outcome(closely, before, verdict.change, verdict.apply, verdict.overflow)
        return told, branch(verdict.apply, now, lambda: refuse(told["none_accepted"]))

    return branch(unremarkable(spec, before, seen, finite), short, rarely(long))


def outcome(seen, before, change, applied, overflow=None):
    """What the rest of the step and its caller want to know of the verdict; tensors."""
    count = dict(zip(layout.COUNTS, tf.unstack(change["counts"])))
    accepted = count["epoch_accepted"]
    logs = [change["epoch_norm"] / tf.cast(accepted, tf.float32), tf.cast(count["epoch_skipped"], tf.float32)]  # NaN before the first
    if "lr_scale" in before:
        logs.append(change.get("lr_scale", before["lr_scale"]))
    return {
        "applied": applied,
        "overflow": tf.constant(False) if overflow is None else overflow,
        "none_accepted": tf.equal(accepted, 0),
        "loss": seen.loss,
        "grad_norm": seen.grad_norm,
        "logs": logs,
    }


def _guarded_across_replicas(spec, memory, update, loss, state, undo):
    """One sum over the replicas, one verdict, one decision for all."""
    own = update.present
    # one scalar more is communicated, and no second sum of the gradients
    state_finite = numerics.all_finite(state)
    total, *summed = distribution.reduce_sum([tf.where(state_finite, loss, float("nan")), *own])

    def decide(strategy, summed, total, own, loss, state_finite, number, kept_values):
        # runs once, for all replicas of this process
        local = lambda value: distribution.local(strategy, value)
        by_replica = lambda tensors: [list(parts) for parts in zip(*map(local, tensors))]
        grads, own = by_replica(summed), by_replica(own)
        total = local(total)[0]
        first = update.with_grads(update.with_present(grads[0]))
        in_replica = lambda given: update.run(update.with_present(given))
        run = lambda grads: strategy.extended.call_for_each_replica(in_replica, args=(distribution.per_replica(grads),))
        kept = [(variable, local(value)) for (variable, _), value in zip(undo.kept, kept_values)]
        kept = undo.written(kept)
        refuse = lambda none_accepted: put_back(kept)

        def look_closely():
            faults = [_faults(*of_replica) for of_replica in zip(own, local(loss), local(state_finite), local(number))]
            total_of_losses, bad_states, bits = tf.unstack(distribution.sum_of_all(strategy, faults))
            all_finite = tf.equal(bad_states, 0.0)
            seen = look(first, tf.where(all_finite, total, total_of_losses), all_finite)
            seen.replicas = bits
            return seen

        seen, finite = glance(first, total, [])
        return _decided(spec, memory, update, seen, finite, look_closely, grads, run, nothing, refuse)[0]

    number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
    told = distribution.across(decide, summed, total, own, loss, state_finite, number, [value for _, value in undo.kept])
    if undo.choice is None:
        return told, None
    return told, branch(told["applied"], undo.choice.now, lambda: undo.choice.before(told["none_accepted"]))


def _faults(gradients, loss, state_finite, number):
    """Of one replica: its loss, whether its state is at fault, and a bit where anything of it is."""
    finite = tf.logical_and(tf.logical_and(tf.math.is_finite(loss), state_finite), numerics.global_norm(gradients)[1])
    return tf.stack([loss, tf.where(state_finite, 0.0, 1.0), tf.where(finite, 0.0, tf.pow(2.0, number))])
