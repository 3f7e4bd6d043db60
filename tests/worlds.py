"""Small trainings of every kind that users have, each with clean batches and with bad ones among them."""

import dataclasses

import keras
import numpy as np

from keras_nanguard.state import _global_seed_generator

BATCH, BATCHES = 16, 8
BAD = (2, 5)
L = keras.layers


@dataclasses.dataclass
class World:
    """A compiled model with data; `x`, `y`, `weights` are trees of arrays of `BATCH * BATCHES` rows."""

    model: keras.Model
    x: object
    y: object
    weights: object = None
    fit: dict = dataclasses.field(default_factory=dict)
    eager_only_state: tuple = ()

    def without(self, batches):
        """Arguments of `fit` for the data that never had these batches."""
        rows = np.concatenate([np.arange(b * BATCH, (b + 1) * BATCH) for b in range(BATCHES) if b not in batches])
        cut = lambda tree: None if tree is None else keras.tree.map_structure(lambda a: a[rows], tree)
        return dict(x=cut(self.x), y=cut(self.y), sample_weight=cut(self.weights))

    def with_bad(self, value=np.nan, batches=BAD):
        """Arguments of `fit` for the data with one bad row in each of these batches."""
        x = keras.tree.map_structure(np.copy, self.x)
        y = keras.tree.map_structure(np.copy, self.y)
        first = keras.tree.flatten(x)[0]
        target = first if first.dtype.kind == "f" else keras.tree.flatten(y)[0]
        for batch in batches:
            target[batch * BATCH + 3] = value
        return dict(x=x, y=y, sample_weight=self.weights)


def data(columns=6, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(BATCH * BATCHES, columns)).astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


def seed_everything():
    """Keras' global seed generator too, which older Keras keeps from one model to the next."""
    keras.random.normal((1,))  # makes it
    keras.utils.set_random_seed(1)
    if _global_seed_generator() is not None:
        _global_seed_generator().state.assign([1, 0])


def body(inputs, norm=True, dropout=True):
    h = L.Dense(16, activation="silu")(inputs)
    h = L.BatchNormalization()(h) if norm else h
    return L.Dropout(0.2)(h) if dropout else h


def functional(cls=keras.Model, optimizer="adam", loss="mse", **compile):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    model = cls(inputs, L.Dense(1)(body(inputs)))
    compile.setdefault("jit_compile", False)
    if callable(optimizer):
        optimizer = optimizer()
    model.compile(optimizer, loss, metrics=["mae"], **compile)
    return World(model, *data())


def sequential(cls=keras.Model, built=True, **compile):
    import keras_nanguard as ng

    keras.utils.set_random_seed(1)
    base = keras.Sequential
    if cls is not keras.Model:
        base = type("SafeSequential", (ng.SafeTrainStep, keras.Sequential), {})
    layers = [keras.Input((6,))] if built else []
    model = base([*layers, L.Dense(16, activation="silu"), L.BatchNormalization(), L.Dropout(0.2), L.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], **{"jit_compile": False, **compile})
    return World(model, *data())


def subclassed(cls=keras.Model, **compile):
    class Net(cls):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.drop, self.last = L.Dense(16, activation="silu"), L.BatchNormalization(), L.Dropout(0.2), L.Dense(1)

        def call(self, x, training=False):
            h = self.drop(self.norm(self.first(x), training=training), training=training)
            # Keras' global seed generator is part of the training state too
            return self.last(h) + (0.01 * keras.random.normal(keras.ops.shape(h)[:1] + (1,)) if training else 0.0)

    seed_everything()
    model = Net()
    model.compile("adam", "mse", metrics=["mae"], **{"jit_compile": False, **compile})
    return World(model, *data())


def named_inputs_and_outputs(cls=keras.Model):
    keras.utils.set_random_seed(1)
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    h = body(L.Concatenate()([a, b]))
    model = cls({"a": a, "b": b}, {"p": L.Dense(1, name="p")(h), "q": L.Dense(1, name="q")(h)})
    model.compile("adam", {"p": "mse", "q": "mae"}, loss_weights={"p": 1.0, "q": 0.5}, metrics={"p": ["mae"]}, jit_compile=False)
    x, y = data()
    return World(model, {"a": x, "b": x[:, ::-1].copy()}, {"p": y, "q": 1 - y})


def listed_inputs_and_outputs(cls=keras.Model):
    keras.utils.set_random_seed(1)
    a, b = keras.Input((6,)), keras.Input((6,))
    h = body(L.Concatenate()([a, b]))
    model = cls([a, b], [L.Dense(1, name="p")(h), L.Dense(1, name="q")(h)])
    model.compile("adam", ["mse", "mae"], jit_compile=False)
    x, y = data()
    return World(model, [x, x[:, ::-1].copy()], [y, 1 - y])


def sample_weighted(cls=keras.Model):
    world = functional(cls)
    world.weights = np.random.default_rng(3).uniform(0.5, 2.0, BATCH * BATCHES).astype("float32")
    return world


def class_weighted(cls=keras.Model):
    world = functional(cls, loss="binary_crossentropy")
    world.fit = {"class_weight": {0: 1.0, 1: 3.0}}
    return world


def added_loss(cls=keras.Model):
    class Penalty(L.Layer):
        def call(self, x):
            self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
            return x

    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    model = cls(inputs, L.Dense(1, kernel_regularizer="l2")(Penalty()(body(inputs))))
    model.compile("adam", "mse", jit_compile=False)
    return World(model, *data())


def mixed_float16(cls=keras.Model):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    h = L.Dense(16, activation="silu", dtype="mixed_float16")(inputs)
    h = L.BatchNormalization(dtype="mixed_float16")(h)
    model = cls(inputs, L.Dense(1, dtype="float32")(h))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=256.0, dynamic_growth_steps=4)
    model.compile(optimizer, "mse", jit_compile=False)
    return World(model, *data())


def two_optimizers_by_layer(cls=keras.Model):
    # no SGD here: TensorFlow re-associates the product of gradient and rate where nothing else looks at the gradient
    rest, norms = keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.05)
    pick = lambda variable: norms if "normalization" in variable.path else rest
    return functional(cls, optimizer=lambda: keras.optimizers.MultiOptimizer(pick))


def stateful_rnn(cls=keras.Model):
    keras.utils.set_random_seed(1)
    inputs = keras.Input(batch_shape=(BATCH, 3, 2))
    model = cls(inputs, L.Dense(1)(L.LSTM(8, stateful=True)(inputs)))
    model.compile("adam", "mse", jit_compile=False)
    x, y = data()
    return World(model, x.reshape(-1, 3, 2), y)


def frozen_layers(cls=keras.Model):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    frozen = L.Dense(16, activation="silu", trainable=False)
    model = cls(inputs, L.Dense(1)(L.BatchNormalization()(frozen(inputs))))
    model.compile("adam", "mse", jit_compile=False)
    return World(model, *data())


def sparse_embedding(cls=keras.Model):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,), dtype="int32")
    model = cls(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(L.Embedding(50, 8)(inputs))))
    model.compile("adam", "mse", jit_compile=False)
    x = np.random.default_rng(0).integers(0, 50, (BATCH * BATCHES, 4)).astype("int32")
    return World(model, x, (x[:, :1] > 25).astype("float32"))


def spectral_norm(cls=keras.Model):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    model = cls(inputs, L.Dense(1)(L.SpectralNormalization(L.Dense(8))(inputs)))
    model.compile("adam", "mse", jit_compile=False)
    return World(model, *data())


def by_optimizer(make):
    return lambda cls=keras.Model: functional(cls, optimizer=make)


SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
schedule = lambda: keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.7)

EXACT = {
    "functional": functional,
    "sequential": sequential,
    "subclassed": subclassed,
    "sequential not yet built": lambda cls=keras.Model: sequential(cls, built=False),
    "dicts in and out": named_inputs_and_outputs,
    "lists in and out": listed_inputs_and_outputs,
    "sample_weight": sample_weighted,
    "class_weight": class_weighted,
    "add_loss and a regulariser": added_loss,
    "run_eagerly": lambda cls=keras.Model: functional(cls, run_eagerly=True),
    "run_eagerly, not yet built": lambda cls=keras.Model: sequential(cls, built=False, run_eagerly=True),
    "steps_per_execution 4": lambda cls=keras.Model: functional(cls, steps_per_execution=4),
    "mixed_float16 and loss scale": mixed_float16,
    "gradient accumulation": by_optimizer(lambda: Adam(0.01, gradient_accumulation_steps=3)),
    "EMA": by_optimizer(lambda: Adam(0.01, use_ema=True, ema_overwrite_frequency=3)),
    "accumulation and EMA": by_optimizer(lambda: SGD(0.01, momentum=0.9, use_ema=True, gradient_accumulation_steps=2)),
    "clipvalue": by_optimizer(lambda: Adam(0.01, clipvalue=0.1)),
    "clipnorm": by_optimizer(lambda: Adam(0.01, clipnorm=0.1)),
    "global_clipnorm": by_optimizer(lambda: Adam(0.01, global_clipnorm=0.1)),
    "weight decay and a schedule": by_optimizer(lambda: keras.optimizers.AdamW(schedule(), weight_decay=0.1)),
    "stateful recurrent layer": stateful_rnn,
    "frozen layers": frozen_layers,
    "sparse embedding gradients": sparse_embedding,
    "weights written in the forward pass": spectral_norm,
}


if hasattr(keras.optimizers, "MultiOptimizer"):
    EXACT["MultiOptimizer"] = two_optimizers_by_layer


# what Keras itself cannot train on a backend, with what it says
BEYOND_KERAS = {
    "torch": {
        "steps_per_execution 4": "`steps_per_execution` must be 1",
        "stateful recurrent layer": "modified by an inplace operation",
    }
}.get(keras.config.backend(), {})
for _name in BEYOND_KERAS:
    BEYOND_KERAS[_name] = EXACT.pop(_name), BEYOND_KERAS[_name]

COMPILED_ROUNDS = keras.config.backend() == "torch"  # fused by its compiler, a sum is rounded otherwise


def state(model):
    """path -> bits of everything that training changes."""
    from keras_nanguard import state as found

    return [np.array(v.numpy()) for v in found.forward_state(model) + found.optimizer_state(model)]


def assert_same_bits(one, other):
    assert len(one) == len(other)
    for place, (a, b) in enumerate(zip(one, other)):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a.view(np.uint8) if a.ndim else a, b.view(np.uint8) if b.ndim else b, err_msg=f"variable {place}")


def assert_close(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def train(world, arguments, callbacks=(), epochs=2, **more):
    keras.utils.set_random_seed(1)  # on torch, dropout draws from one generator for all models
    return world.model.fit(
        **arguments, **world.fit, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks), **more
    )


def leaves_a_trace(make=functional):
    """Whether a run with bad batches ends other than the one whose data never had them."""
    import keras_nanguard as ng

    plain, guarded = make(), make()
    train(plain, plain.without(BAD))
    train(guarded, guarded.with_bad(), [ng.NanGuardCallback()])
    return any((a != b).any() for a, b in zip(state(guarded.model), state(plain.model)))
