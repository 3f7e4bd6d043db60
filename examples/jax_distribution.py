"""JAX: `fit` under `keras.distribution`, over the devices of one process or of several.

`python jax_distribution.py` shows it on four host devices, `python launch.py 2 jax_distribution.py` on two processes; with the
argument `model` the weights are laid over the devices too (`ModelParallel` in place of `DataParallel`).
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
several = int(os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", "1")) > 1
if not several:  # on a machine with accelerators leave this out, and its devices are taken
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax
import keras
import numpy as np

from keras_nanguard import NanGuardCallback

if several:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # on CPUs only
    keras.distribution.initialize()

devices = keras.distribution.list_devices()
if "model" in sys.argv:
    mesh = keras.distribution.DeviceMesh((1, len(devices)), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout["hidden/kernel"] = (None, "model")
    layout["hidden/bias"] = ("model",)
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False))
else:
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False))

rank, shards = jax.process_index(), jax.process_count() if "model" not in sys.argv else 1
rng = np.random.default_rng(0)
x = rng.normal(size=(20, 16, 8)).astype("float32")  # 20 global batches of 16 rows
y = x.sum(axis=2, keepdims=True)
x[5, -1, 3] = np.nan  # one value of the last process is missing
mine = slice(rank % shards * 16 // shards, (rank % shards + 1) * 16 // shards)

keras.utils.set_random_seed(1)
hidden = keras.layers.Dense(16, activation="silu", name="hidden")
model = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
guard = NanGuardCallback()
own = x[:, mine].reshape(-1, 8), y[:, mine].reshape(-1, 1)
history = model.fit(*own, batch_size=16 // shards, shuffle=False, verbose=0, callbacks=[guard]).history
print("skipped:", history["skipped_steps"])
if rank == 0:
    print(guard.report)
total = jax.jit(lambda values: sum(abs(v).sum() for v in values))([v.value for v in model.trainable_variables])
print("sum of the weights:", float(total))
