"""TensorFlow, several processes: `MultiWorkerMirroredStrategy` in a hand-written loop. `python launch.py 2 tensorflow_multi_worker.py`"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf

from keras_nanguard import GradientGuard

strategy = tf.distribute.MultiWorkerMirroredStrategy()
workers, rank = strategy.num_replicas_in_sync, strategy.cluster_resolver.task_id

rng = np.random.default_rng(0)
x = rng.normal(size=(20, 16, 8)).astype("float32")  # 20 global batches of 16 rows
y = x.sum(axis=2, keepdims=True)
x[5, -1, 3] = np.nan  # one value of the last process is missing
shard = slice(rank * 16 // workers, (rank + 1) * 16 // workers)

keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="silu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    guard = GradientGuard(optimizer, model)


@tf.function
def train_step(x, y):
    def step(x, y):
        with tf.GradientTape() as tape:
            with guard.forward():
                loss = tf.reduce_mean((y - model(x, training=True)) ** 2) / workers
        grads = tape.gradient(loss, model.trainable_variables)
        return guard.apply(grads, model.trainable_variables, loss=loss)

    return strategy.run(step, args=(x, y))


for step in range(len(x)):
    outcome = train_step(tf.constant(x[step, shard]), tf.constant(y[step, shard]))
    if not bool(outcome.applied):
        print(f"step {step} was skipped")
if rank == 0:
    print(guard.report())
print("sum of the weights:", float(sum(np.abs(v.numpy()).sum() for v in model.variables)))
