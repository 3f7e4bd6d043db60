"""`GradientGuard` under `MultiWorkerMirroredStrategy`."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
import training

from keras_nanguard import GradientGuard

strategy = tf.distribute.MultiWorkerMirroredStrategy()
workers, rank = strategy.num_replicas_in_sync, strategy.cluster_resolver.task_id
shard = slice(rank * training.ROWS // workers, (rank + 1) * training.ROWS // workers)


def collectives(graph):
    """What a step sums over the processes where nothing is at fault: how many elements in each sum; branches are graphs of their own."""
    return [op.outputs[0].shape.num_elements() for op in graph.get_operations() if op.type == "CollectiveReduceV2"]


def run(plan):
    with strategy.scope():
        model = training.make_model()
        optimizer = keras.optimizers.Adam(0.01, name="adam")
        optimizer.build(model.trainable_variables)
        guard = GradientGuard(optimizer, model)

    @tf.function
    def train_step(x, y):
        def step(x, y):
            with tf.GradientTape() as tape:
                with guard.forward():
                    loss = tf.reduce_mean((y - model(x, training=True)) ** 2) / workers
            grads = tape.gradient(loss, model.trainable_variables)
            if not plan.get("guarded", True):
                optimizer.apply(grads, model.trainable_variables)
                return ()
            return guard.apply(grads, model.trainable_variables, loss=loss)

        return strategy.run(step, args=(x, y))

    applied = []
    for number, (x, y) in enumerate(zip(*training.data(plan))):
        if plan.get("dies") == [rank, number]:
            os._exit(3)
        outcome = train_step(tf.constant(x[shard]), tf.constant(y[shard]))
        applied.append(bool(outcome.applied) if outcome else True)
    shared = {v.path: v.numpy() for v in [*model.trainable_variables, *optimizer.variables]}
    # Keras leaves moving statistics to each process here, and so does the guard
    own = {v.path: v.numpy() for v in model.non_trainable_variables}
    finite = all(np.isfinite(v).all() for v in [*shared.values(), *own.values()])
    state = {"state": training.digests(shared), "own": training.digests(own), "finite": finite}
    sums = collectives(train_step.get_concrete_function(tf.constant(x[shard]), tf.constant(y[shard])).graph)
    training.tell(plan, guard.report(), applied=applied, sums=sums, **state)


for plan in training.plans():
    run(plan)
