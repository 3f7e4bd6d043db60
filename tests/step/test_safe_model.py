"""`SafeModel` and `SafeTrainStep`: every form of class, every way in and out of a file."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
import worlds

import keras_nanguard as ng


@keras.saving.register_keras_serializable(package="tests")
class Mine(ng.SafeModel):
    """A user's subclass, used functionally."""


class Vae(ng.SafeModel):
    """A `train_step` of its own, whose loss is known only from its logs."""

    base = keras.Model

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(4), keras.layers.Dense(6)
        self.norm = keras.layers.BatchNormalization()
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, x, training=False):
        code = self.norm(self.encoder(x), training=training)
        return self.decoder(code + (keras.random.normal(keras.ops.shape(code)) if training else 0.0))

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - x))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


class Teacher(Vae):
    """Looks at the weights that its own update has just moved."""

    def __init__(self):
        super().__init__()
        self.followed = self.add_weight(shape=(6, 4), name="followed", initializer="zeros", trainable=False)

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, x, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.followed.assign(0.9 * self.followed + 0.1 * self.encoder.kernel)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result(), "followed": keras.ops.sum(self.followed)}


class Gan(Vae):
    """Two optimizers, the second after the first has moved weights."""

    def compile(self, first, second, **kwargs):
        super().compile(**kwargs)
        self.two = [first, second]

    def train_step(self, data):
        x, _ = data
        loss = 0.0
        for optimizer, layers in zip(self.two, ([self.encoder, self.norm], [self.decoder])):
            variables = [v for layer in layers for v in layer.trainable_variables]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - x))
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def unguarded(cls):
    """The same class on plain Keras."""
    body = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__", "__doc__")}
    if "train_step" in body:
        body["train_step"] = body["train_step"].__wrapped__
    for name in ("call", "metrics"):
        body.setdefault(name, getattr(Vae, name))

    def __init__(self):
        keras.Model.__init__(self)
        self.encoder, self.decoder = keras.layers.Dense(4), keras.layers.Dense(6)
        self.norm = keras.layers.BatchNormalization()
        self.tracker = keras.metrics.Mean(name="loss")
        if cls is Teacher:
            self.followed = self.add_weight(shape=(6, 4), name="followed", initializer="zeros", trainable=False)

    def compile(self, first, second, **kwargs):
        keras.Model.compile(self, **kwargs)
        self.two = [first, second]

    body["__init__"] = __init__
    if "compile" in body:
        body["compile"] = compile
    body.pop("__classcell__", None)
    return type(cls.__name__, (keras.Model,), body)


def custom(cls, **compile):
    worlds.seed_everything()
    model = cls()
    x, y = worlds.data()
    model(x[:1])
    if "Gan" in cls.__name__:
        model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01, momentum=0.9), jit_compile=False, **compile)
        model.two[0].build([*model.encoder.trainable_variables, *model.norm.trainable_variables])
        model.two[1].build(model.decoder.trainable_variables)
    else:
        model.compile("adam", "mse", jit_compile=False, **compile)
    return worlds.World(model, x, y)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("cls", [Vae, Teacher, Gan])
@pytest.mark.parametrize("door", ["SafeModel", "callback"])
def test_a_train_step_of_ones_own_is_kept_and_guarded(cls, door, eager):
    plain = custom(unguarded(cls), run_eagerly=eager)
    worlds.train(plain, plain.without(worlds.BAD))
    guarded = custom(cls if door == "SafeModel" else unguarded(cls), run_eagerly=eager)
    guard = ng.NanGuardCallback()
    history = worlds.train(guarded, guarded.with_bad(), [guard] if door == "callback" else []).history
    assert history["skipped_steps"] == [2.0, 2.0] and np.isfinite(history["loss"]).all()
    worlds.assert_same_bits(worlds.state(guarded.model), worlds.state(plain.model))
    if door == "callback":
        assert guard.report.judged == "loss and gradients"


def test_of_two_optimizers_each_clips_its_own_gradients_and_a_step_counts_once():
    for bound, clipped in ((1e-6, 16), (1e6, 0)):
        world, guard = custom(unguarded(Gan)), ng.NanGuardCallback(ng.StepGuard(bound))
        worlds.train(world, world.without(()), [guard])
        assert guard.report.totals["clipped"] == clipped


def test_train_on_batch_returns_what_keras_returns():
    plain, safe = worlds.frozen_layers(), worlds.frozen_layers(ng.SafeModel)
    x, y = plain.x[:16], plain.y[:16]
    assert safe.model.train_on_batch(x, y) == plain.model.train_on_batch(x, y)
    assert safe.model.train_on_batch(x, y, return_dict=True) == plain.model.train_on_batch(x, y, return_dict=True)
    bad = safe.model.train_on_batch(np.full_like(x, np.nan), y)
    assert np.shape(bad) == () and np.isnan(bad)
    assert safe.model.train_on_batch(x, y) == plain.model.train_on_batch(x, y)


def test_train_on_batch_raises_where_the_update_itself_is_poisonous():
    safe = worlds.functional(ng.SafeModel, optimizer=lambda: keras.optimizers.SGD(3e38))
    with pytest.raises(ng.NonFiniteTrainingError, match="dense"):
        for _ in range(3):
            safe.model.train_on_batch(safe.x[:16] * 1e4, safe.y[:16])


def test_fit_raises_where_the_update_itself_is_poisonous():
    safe = worlds.functional(ng.SafeModel, optimizer=lambda: keras.optimizers.SGD(3e38))
    with pytest.raises(ng.NonFiniteTrainingError, match="NanGuardCallback"):
        worlds.train(safe, safe.without(()))


def test_a_direct_call_of_train_step_is_guarded():
    safe = worlds.functional(ng.SafeModel)
    before = worlds.state(safe.model)
    batch = tf.constant(np.full((16, 6), np.nan, "float32")), tf.constant(safe.y[:16])
    logs = safe.model.train_step(batch)
    weights = len(safe.model.variables)
    worlds.assert_same_bits(worlds.state(safe.model)[:weights], before[:weights])
    assert set(logs) == {"loss", "mae"}


@pytest.mark.parametrize("cls", [ng.SafeModel, Mine])
def test_saved_loaded_pickled_and_copied_models_are_guarded_like_the_first(cls, tmp_path):
    world = worlds.functional(cls, step_guard=ng.StepGuard(7.0, window=32))
    worlds.train(world, world.without(()), epochs=1)
    world.model.save(tmp_path / "m.keras")
    copies = [keras.saving.load_model(tmp_path / "m.keras"), pickle.loads(pickle.dumps(world.model)), copy.deepcopy(world.model)]
    for model in copies:
        assert isinstance(model, cls) and model.step_guard == ng.StepGuard(7.0, window=32)
        other = worlds.World(model, world.x, world.y)
        before = [v.numpy() for v in model.variables]
        history = worlds.train(other, other.with_bad(batches=range(8)), epochs=1).history
        assert history["skipped_steps"] == [8.0]
        for one, v in zip(before, model.variables):
            np.testing.assert_array_equal(one, v.numpy())
    clone = keras.models.clone_model(world.model)
    assert isinstance(clone, cls)


def test_the_guard_is_absent_from_weights_and_they_fit_a_plain_model(tmp_path):
    plain, safe = worlds.functional(), worlds.functional(ng.SafeModel)
    worlds.train(safe, safe.with_bad(), epochs=1)
    safe.model.save_weights(tmp_path / "w.weights.h5")
    plain.model.optimizer.build(plain.model.trainable_variables)
    plain.model.load_weights(tmp_path / "w.weights.h5")
    for one, other in zip(plain.model.get_weights(), safe.model.get_weights()):
        np.testing.assert_array_equal(one, other)
    safe.model.set_weights(plain.model.get_weights())


def test_the_mixin_after_the_keras_class_is_refused():
    with pytest.raises(TypeError, match=r"class Wrong\(SafeTrainStep, Model\)"):
        type("Wrong", (keras.Model, ng.SafeTrainStep), {})


def test_a_list_of_layers_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match="keras.Sequential"):
        ng.SafeModel([keras.layers.Dense(1)])


@pytest.mark.parametrize(
    "arguments",
    [{"global_clipnorm": 0.0}, {"global_clipnorm": "auto"}, {"skip_nonfinite": 1}, {"spike_zscore": -1.0}, {"window": 8}],
)
def test_bad_settings_are_refused(arguments):
    (name, value), = arguments.items()
    with pytest.raises(ValueError, match=f"Received: {name}={value!r}"):
        ng.StepGuard(**arguments)


def test_compile_takes_a_step_guard_only():
    with pytest.raises(TypeError, match="StepGuard"):
        worlds.functional(ng.SafeModel, step_guard=1.0)
