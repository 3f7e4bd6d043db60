"""TensorFlow, several devices of one machine: `MirroredStrategy` in `fit`. `python tensorflow_mirrored.py`"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf

from keras_nanguard import NanGuardCallback

# Two devices made of one CPU; on a machine with several GPUs leave this out and write MirroredStrategy().
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

rng = np.random.default_rng(0)
x = rng.normal(size=(320, 8)).astype("float32")  # 20 global batches of 16 rows
y = x.sum(axis=1, keepdims=True)
x[95, 3] = np.nan  # one value is missing: batch 5, on the second device

keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="silu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
guard = NanGuardCallback()
model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[guard])
print(guard.report)
print("sum of the weights:", float(sum(np.abs(v.numpy()).sum() for v in model.trainable_variables)))
