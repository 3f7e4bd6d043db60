"""The first seed case: a class-balanced log loss, written by hand, on scikit-learn's breast-cancer data."""

import keras
import numpy as np
from keras import ops

from ..losses import BalancedBinaryCrossentropy
from . import text
from .story import tell
from .training import Batches, Task, in_fit, in_loop

TITLE = "1. A class-balanced log loss on scikit-learn's breast-cancer data"


def bal_log_loss(y_true, y_pred):
    """The loss as people write it: each class weighs the same, and the clip is meant to keep the logarithm finite."""
    n1 = ops.sum(y_true)
    n0 = ops.sum(1 - y_true)
    p = ops.clip(y_pred, 1e-10, 1 - 1e-10)
    return ops.sum(-1 / n1 * y_true * ops.log(p)) + ops.sum(-1 / n0 * (1 - y_true) * ops.log(1 - p))


def load():
    """`(x, y), (x, y)`: 455 tumours to train on and 114 held out, 30 standardised features, 1 for a benign one."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.data))
    x, y = data.data[order].astype("float32"), data.target[order].astype("float32")[:, None]
    train, held_out = slice(0, 455), slice(455, None)
    x = (x - x[train].mean(0)) / x[train].std(0)
    return (x[train], y[train]), (x[held_out], y[held_out])


def make_model():
    """Three layers, the same weights each time."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((30,)), layers.Dense(16, "relu"), layers.Dense(16, "relu"), layers.Dense(1, "sigmoid")]
    )


def task(batch_size, learning_rate, epochs, steps_per_epoch):
    """The task of one setting."""
    (x, y), (held_x, held_y) = load()

    def score(model, held_out):
        inputs, labels = (held_x, held_y) if held_out else (x, y)
        p = ops.convert_to_numpy(model(inputs, training=False))
        return float(BalancedBinaryCrossentropy()(labels, p)), np.mean((p > 0.5) == (labels == 1))

    return Task(make_model, Batches(x, y, batch_size), score, learning_rate, epochs, steps_per_epoch)


def scattered():
    """Small batches: now and then one has no malignant tumour in it."""
    return task(batch_size=8, learning_rate=1e-3, epochs=6, steps_per_epoch=56)


def saturated():
    """All rows in each batch, and enough steps for a prediction to reach 1.0 exactly."""
    return task(batch_size=455, learning_rate=1e-2, epochs=9, steps_per_epoch=10)


def absent_class(setting, step, model):
    """Which class the batch of a step lacks."""
    y = setting.batches.at(step)[1]
    missing = [name for label, name in ((0, "malignant"), (1, "benign")) if not np.any(y == label)]
    return f"no {missing[0]} tumour in the batch, its class weight is 1/0" if missing else "both classes are there"


def exact_ones(setting, step, model):
    """How many predictions for the batch of a step are 1.0 exactly."""
    x, y = setting.batches.at(step)
    p = ops.convert_to_numpy(model(x, training=False))
    ones, right = np.sum(p == 1), np.sum((p == 1) & (y == 1))
    return (
        f"predictions that are exactly 1.0 in float32: {ones} of {len(p)}, {right} of them right; there log(1 - p) is "
        "-Inf, and (1 - y) * log(1 - p) is NaN where it should be 0"
    )


def run(say):
    """Both settings through both doors; gives the outcomes by `(setting, door)`."""
    losses = bal_log_loss, BalancedBinaryCrossentropy()
    say(text.heading(TITLE))
    say(text.paragraph(_LOSS))
    outcomes = {}
    for name, intro, setting, why in (
        ("scattered", _SCATTERED, scattered(), absent_class),
        ("saturated", _SATURATED, saturated(), exact_ones),
    ):
        say("\n" + text.paragraph(intro))
        outcomes[name, "fit"] = tell(setting, in_fit, losses, why, f"{name}, in `fit` with NanGuardCallback", say)
        outcomes[name, "loop"] = tell(
            setting, in_loop, losses, why, f"{name}, in a hand-written loop with GradientGuard", say
        )
    return outcomes


_LOSS = """loss = sum(-1/n1 * y * log(p)) + sum(-1/n0 * (1 - y) * log(1 - p)), with p clipped to [1e-10, 1 - 1e-10] and
n1, n0 counted in the batch."""

_SCATTERED = """Setting 1, scattered: batches of 8 in which a class is missing now and then. Its weight is 1/0, and
the NaN is in every weight one update later. Under the guard that update never happened."""

_SATURATED = """Setting 2, saturated: all rows in each batch. In float32 1 - 1e-10 is 1, so the clip does nothing for a
prediction that reaches 1.0: log(1 - p) is -Inf, and 0 * -Inf is NaN even where the prediction is right."""
