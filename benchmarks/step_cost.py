"""What a guarded step costs: CPU time per step against plain `fit`, in one process, interleaved.

    python benchmarks/step_cost.py [--only NAME ...] [--rounds 30]

Each row is one model; its columns are plain `fit`, Keras' own `global_clipnorm=1` with `TerminateOnNaN`, `NanGuardCallback` alone, and
`NanGuardCallback` with `AdaptiveLRBackoff`. Every round trains each of them for one epoch, one after the other; the ratios are of the
best rounds and of the medians. Tracing is not in them.
"""

import argparse
import contextlib
import functools
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import keras_nanguard as ng

L = keras.layers


def mlp(width, depth, inputs=32, norm=False):
    x = inputs = keras.Input((inputs,))
    for _ in range(depth):
        x = L.Dense(width, activation="relu")(x)
        x = L.BatchNormalization()(x) if norm else x
    return keras.Model(inputs, L.Dense(1)(x))


def cnn():
    x = inputs = keras.Input((28, 28, 1))
    for filters in (16, 32):
        x = L.MaxPooling2D()(L.BatchNormalization()(L.Conv2D(filters, 3, activation="relu")(x)))
    return keras.Model(inputs, L.Dense(1)(L.Flatten()(x)))


# name -> (model, batch size, steps per round)
MODELS = {
    "tiny MLP": (lambda: mlp(32, 2, norm=True), 16, 1000),
    "3x512 MLP": (lambda: mlp(512, 3, norm=True), 128, 200),
    "small CNN": (cnn, 64, 60),
    "40M-parameter MLP": (lambda: mlp(4400, 3, 256), 64, 8),
    "300 layers of 8": (lambda: mlp(8, 300), 8, 40),
    "two replicas, 3x512": (lambda: mlp(512, 3, norm=True), 128, 100),
}
KINDS = ("plain", "global_clipnorm=1 + TerminateOnNaN", "NanGuardCallback", "NanGuardCallback + AdaptiveLRBackoff")


@functools.cache
def strategy():
    """One for the process: the collectives of several would get in each other's way."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def prepared(name, kind):
    """A function that trains one epoch and gives (CPU, wall) milliseconds per step."""
    make, batch, steps = MODELS[name]
    replicas = strategy() if "replicas" in name else None
    keras.utils.set_random_seed(0)
    with replicas.scope() if replicas else contextlib.nullcontext():
        model = make()
        optimizer = keras.optimizers.Adam(1e-4, global_clipnorm=1.0 if kind == KINDS[1] else None)
        model.compile(optimizer, "mse", jit_compile=False)
    random = np.random.default_rng(0)
    x = random.normal(size=(batch * steps, *model.input_shape[1:])).astype("float32")
    y = random.normal(size=(batch * steps, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=True)
    callbacks = {
        KINDS[0]: lambda: [],
        KINDS[1]: lambda: [keras.callbacks.TerminateOnNaN()],
        KINDS[2]: lambda: [ng.NanGuardCallback()],
        KINDS[3]: lambda: [ng.NanGuardCallback(), ng.AdaptiveLRBackoff()],
    }[kind]

    def epoch():
        ours = callbacks()
        cpu, wall = time.process_time(), time.perf_counter()
        model.fit(data, verbose=0, shuffle=False, callbacks=ours)
        return (time.process_time() - cpu) / steps * 1e3, (time.perf_counter() - wall) / steps * 1e3

    epoch()
    return epoch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    cpu = tf.config.list_physical_devices("CPU")[0]
    if any("replicas" in name for name in arguments.only):
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    print("| model | plain, CPU ms (wall ms) | " + " | ".join(f"{kind}: best (median)" for kind in KINDS[1:]) + " |")
    print("|---|---|" + "---|" * len(KINDS[1:]))
    for name in arguments.only:
        epochs = {kind: prepared(name, kind) for kind in KINDS}
        times = {kind: [] for kind in KINDS}
        for _ in range(arguments.rounds):
            for kind, epoch in epochs.items():
                times[kind].append(epoch())
        best = {kind: np.min(times[kind], axis=0) for kind in KINDS}
        median = {kind: np.median(times[kind], axis=0) for kind in KINDS}
        cells = [f"{best[k][0] / best['plain'][0]:.3f} ({median[k][0] / median['plain'][0]:.3f})" for k in KINDS[1:]]
        print(f"| {name} | {best['plain'][0]:.2f} ({best['plain'][1]:.2f}) | " + " | ".join(cells) + " |", flush=True)
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
