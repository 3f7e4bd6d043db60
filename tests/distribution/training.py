"""What the programs of this folder train: one small model, global batches with a fault in some step, and what they tell of it.

A program is started as several processes with a JSON list of plans, trains a fresh model for each, and prints a line of JSON
for each. A plan: `name`, `faults` (step -> kind of fault), `without` (steps that are left out of the data), `guarded` (by default
true), `dies` (rank and step, or epoch in `fit`, at which a process ends without a word).
"""

import hashlib
import json
import sys

import keras
import numpy as np

ROWS, STEPS, FEATURES = 8, 8, 6
SLOPE, AUXILIARY = 6, 7  # columns of the input with a part of their own


def plans():
    return json.loads(sys.argv[1])


def data(plan):
    """`(x, y)` of shapes (steps, rows, columns): the last row is the last process' own, the first the first one's."""
    random = np.random.default_rng(0)
    x = random.normal(size=(STEPS, ROWS, FEATURES + 2)).astype("float32")
    x[..., SLOPE] = 1.0
    y = x[..., :FEATURES].sum(axis=-1, keepdims=True)
    for step, kind in plan.get("faults", {}).items():
        step = int(step)
        if kind == "input":
            x[step, -1, 0] = np.nan
        elif kind == "target":
            y[step, 0] = np.inf
        elif kind == "gradient":
            x[step, -1, SLOPE] = 0.0
        elif kind == "state":
            x[step, -1, AUXILIARY] = np.inf
        else:
            raise ValueError(kind)
    kept = [step for step in range(STEPS) if step not in plan.get("without", [])]
    return x[kept], y[kept]


@keras.saving.register_keras_serializable(package="tests")
class Faults(keras.layers.Layer):
    """Its slope is NaN where the column SLOPE is 0, its value is not; and it has a moving statistic that follows the column AUXILIARY."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = keras.layers.BatchNormalization(center=False, scale=False, name="auxiliary")

    def build(self, shape):
        self.norm.build((None, 1))
        self.slope = self.add_weight(shape=(1,), initializer="ones", name="slope")

    def call(self, inputs, training=False):
        x, out = inputs
        root = 1e-3 * keras.ops.sqrt(x[:, SLOPE : SLOPE + 1] * self.slope)
        followed = self.norm(x[:, AUXILIARY : AUXILIARY + 1], training=training)
        return out + root + 0.0 * keras.ops.nan_to_num(followed, posinf=0.0, neginf=0.0)


def make_model():
    keras.utils.set_random_seed(1)
    x = keras.Input((FEATURES + 2,))
    hidden = keras.layers.Dense(16, activation="silu", name="hidden")(x[:, :FEATURES])
    out = keras.layers.Dense(1, name="out")(keras.layers.BatchNormalization(name="norm")(hidden))
    return keras.Model(x, Faults(name="faults")([x, out]))


def digests(arrays):
    """Of a dict of arrays: name -> their bits, in short."""
    return {name: hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16] for name, value in arrays.items()}


def tell(plan, report, **what):
    incidents = [{"step": i.step, "reason": i.reason, "replica": i.replica, "action": i.action} for i in report.incidents]
    print("TOLD " + json.dumps({"name": plan["name"], "incidents": incidents, "totals": dict(report.totals), **what}), flush=True)
