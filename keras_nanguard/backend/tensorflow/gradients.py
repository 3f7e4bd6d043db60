"""The guarded update of a hand-written loop."""

import contextlib

import tensorflow as tf

from ...state import leaf_optimizers
from . import numerics
from . import strategy as distribution
from .hooks import Hooks
from .hooks import build
from .update import Update
from .update import branch
from .update import guarded
from .update import nothing
from .update import put_back


class _OneReduction(Hooks):
    """The guard sums the gradients over the replicas; the optimizer is kept from doing it again."""

    def __init__(self, optimizer):
        super().__init__()
        self._optimizer = optimizer

    def _targets(self):
        for leaf in leaf_optimizers(self._optimizer):
            yield leaf, "_all_reduce_sum_gradients", list


def prepare(optimizer, model):
    """Under a strategy the optimizer's variables have to exist before a replica's code is traced."""
    if distribution.replicas() > 1:
        build(optimizer, model.trainable_variables)


def keep(variables):
    """What the forward pass may write, read before it: (variable, value) pairs, of this replica."""
    return [(variable, numerics.raw(variable).read_value()) for variable in variables]


def context():
    """What `keep` and `apply_gradients` of one step must have in common: the graph they are traced in, `None` in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def replica():
    """The number of the replica that this code runs for."""
    here = tf.distribute.get_replica_context()
    return 0 if here is None else here._replica_id


def apply_gradients(spec, memory, optimizer, grads, variables, loss, kept):
    """Judges the update, carries it out, and puts the kept values back where it was refused; a dict of tensors."""
    across = distribution.replicas() > 1
    build(optimizer, variables)
    update = Update(optimizer, optimizer.apply, list(grads), list(variables))
    floats = [numerics.raw(v).read_value() for v, _ in kept]
    loss = tf.cast(tf.convert_to_tensor(loss), tf.float32)
    loss = loss if loss.shape.rank == 0 else tf.reduce_mean(loss)
    with _OneReduction(optimizer) if across else contextlib.nullcontext():
        told = guarded(spec, memory, update, loss, numerics.all_finite(floats))
    if not across:
        pairs = [(variable, [value]) for variable, value in kept]
        branch(told["applied"], nothing, lambda: put_back(pairs))
    elif kept:

        def once(strategy, values):
            pairs = [(variable, distribution.local(strategy, value)) for (variable, _), value in zip(kept, values)]
            branch(told["applied"], nothing, lambda: put_back(pairs))

        distribution.across(once, [value for _, value in kept])
    return told
