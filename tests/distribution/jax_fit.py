"""`NanGuardCallback` in `fit` under `DataParallel` or `ModelParallel`: of several processes, or of one with several devices."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
kind, devices = sys.argv[2], int(sys.argv[3])
several = int(os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", "1")) > 1
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
import jax
import keras
import training

from keras_nanguard import NanGuardCallback

if several:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize()
rank = jax.process_index()
devices = keras.distribution.list_devices()
if kind == "model":
    mesh = keras.distribution.DeviceMesh((1, len(devices)), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout["hidden/kernel"], layout["hidden/bias"] = (None, "model"), ("model",)
    distribution = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False)
    shards = 1
else:
    distribution = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    shards = jax.process_count()
keras.distribution.set_distribution(distribution)
rows = training.ROWS // shards
shard = slice(rank % shards * rows, (rank % shards + 1) * rows)


class Dies(keras.callbacks.Callback):
    def __init__(self, plan):
        super().__init__()
        self.plan = plan

    def on_epoch_begin(self, epoch, logs=None):
        if self.plan.get("dies") == [rank, epoch]:
            os._exit(3)


class Explodes(keras.optimizers.schedules.LearningRateSchedule):
    """Infinite at one step."""

    def __init__(self, at):
        self.at = at

    def __call__(self, step):
        return keras.ops.where(step == self.at, float("inf"), 0.01)


def here(value):
    """Whole where this process holds all of it, else its part."""
    return value if value.is_fully_addressable else value.addressable_data(0)


def run(plan):
    model = training.make_model()
    rate = Explodes(plan["explodes"]) if "explodes" in plan else 0.01
    model.compile(keras.optimizers.Adam(rate, name="adam"), "mse")
    guard = NanGuardCallback(report_path=plan.get("report", "").format(rank=rank) or None)
    x, y = training.data(plan)
    own = x[:, shard].reshape(-1, x.shape[-1]), y[:, shard].reshape(-1, 1)
    callbacks = [guard] if plan.get("guarded", True) else []
    fit = dict(batch_size=rows, shuffle=False, verbose=plan.get("verbose", 0), epochs=plan.get("epochs", 1))
    history = model.fit(*own, callbacks=[*callbacks, Dies(plan)], **fit).history
    variables = [*model.variables, *model.optimizer.variables]
    state = {v.path: here(v.value) for v in variables}
    finite = all(bool(jax.numpy.isfinite(v.value).all()) for v in variables)
    skipped = history.get("skipped_steps")
    training.tell(plan, guard.report, skipped=skipped, state=training.digests(state), finite=finite)


for plan in training.plans():
    run(plan)
