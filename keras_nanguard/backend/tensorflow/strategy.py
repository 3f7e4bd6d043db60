"""What `tf.distribute` asks of the guard."""

import tensorflow as tf
from tensorflow.python.distribute import distribute_utils

from ...state import leaf_optimizers
from ...state import optimizers_of
from ...step.hooks import Hooks


def replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


def several_processes():
    strategy = tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync > 1 and len(strategy.extended.worker_devices) < strategy.num_replicas_in_sync


def is_chief():
    resolver = tf.distribute.get_strategy().cluster_resolver
    if resolver is None or not resolver.cluster_spec():
        return True
    chief = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (chief, 0)


def reduce_sum(tensors):
    """Sums a list over the replicas, in one call; called in a replica context."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def across(function, *args):
    """Runs `function(strategy, *args)` once, in the cross-replica context, where a `tf.cond` may hold updates."""
    return tf.distribute.get_replica_context().merge_call(function, args=args)


def local(strategy, value):
    """The values of all replicas, as a list."""
    return list(strategy.experimental_local_results(value))


def sum_of_all(strategy, values):
    """The sum of one tensor per local replica over the replicas of all processes; called in the cross-replica context."""
    if len(values) == strategy.num_replicas_in_sync:
        return tf.add_n(values)
    return local(strategy, strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica(values), axis=None))[0]


def per_replica(values):
    """The opposite of `local`: one structure per replica, joined."""
    return distribute_utils.regroup(tuple(values))


class OneReduction(Hooks):
    """The guard sums the gradients over the replicas; optimizers are kept from doing it again."""

    def __init__(self, optimizers):
        super().__init__()
        self._optimizers = optimizers

    def _targets(self):
        for optimizer in self._optimizers:
            for leaf in leaf_optimizers(optimizer):
                yield leaf, "_all_reduce_sum_gradients", list


def unsupported(model):
    """What stock Keras itself cannot train under `MirroredStrategy`."""
    strategy = getattr(model, "_distribute_strategy", None)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return None
    for optimizer in optimizers_of(model):
        for leaf in leaf_optimizers(optimizer):
            if leaf.gradient_accumulation_steps:
                return (
                    f"Keras itself cannot train with `gradient_accumulation_steps` (here {leaf.gradient_accumulation_steps}) under "
                    f"{type(strategy).__name__} with {strategy.num_replicas_in_sync} replicas: its optimizer applies updates inside a "
                    "condition of the replica context. Leave `gradient_accumulation_steps` out (the replicas already add up a larger batch), "
                    "or train on one device."
                )
            if leaf.use_ema and leaf.ema_overwrite_frequency:
                return (
                    f"Keras itself cannot train with `use_ema=True` and `ema_overwrite_frequency={leaf.ema_overwrite_frequency}` under "
                    f"{type(strategy).__name__} with {strategy.num_replicas_in_sync} replicas: it overwrites the weights inside a condition "
                    "of the replica context. Leave `ema_overwrite_frequency` out: `fit` still puts the average into the weights at its end."
                )
    return None
