"""A bad step never happened: a run with bad batches ends bit for bit like the run whose data never had them."""

import keras
import numpy as np
import pytest
import worlds

import keras_nanguard as ng


@pytest.mark.parametrize("name", worlds.EXACT)
@pytest.mark.parametrize("door", ["callback", "SafeModel"])
def test_bad_batches_leave_no_trace(name, door):
    make = worlds.EXACT[name]
    plain = make()
    worlds.train(plain, plain.without(worlds.BAD))
    guarded = make(ng.SafeModel if door == "SafeModel" else keras.Model)
    callbacks = [ng.NanGuardCallback()] if door == "callback" else []
    history = worlds.train(guarded, guarded.with_bad(), callbacks).history
    worlds.assert_same_bits(worlds.state(guarded.model), worlds.state(plain.model))
    assert history["skipped_steps"] == [2.0, 2.0]


@pytest.mark.parametrize("name", worlds.EXACT)
def test_a_healthy_run_is_left_alone(name):
    make = worlds.EXACT[name]
    plain = make()
    expected = worlds.train(plain, plain.without(()), epochs=3).history
    guarded, guard = make(), ng.NanGuardCallback()
    history = worlds.train(guarded, guarded.without(()), [guard], epochs=3).history
    worlds.assert_same_bits(worlds.state(guarded.model), worlds.state(plain.model))
    assert {key: history[key] for key in expected} == expected
    assert guard.report.totals["skipped"] == guard.report.totals["clipped"] == 0 and not guard.report.incidents


def convolutional(**compile):
    keras.utils.set_random_seed(1)
    image = keras.Input((8, 8, 1))
    h = worlds.L.BatchNormalization()(worlds.L.Conv2D(4, 3, activation="silu")(image))
    h = worlds.L.Dropout(0.2)(worlds.L.MaxPooling2D()(h))
    model = keras.Model(image, worlds.L.Dense(3, activation="softmax")(worlds.L.Flatten()(h)))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], **compile)
    random = np.random.default_rng(0)
    return worlds.World(model, random.normal(size=(128, 8, 8, 1)).astype("float32"), random.integers(0, 3, (128,)))


def recurrent(**compile):
    keras.utils.set_random_seed(1)
    sequence = keras.Input((5, 4))
    model = keras.Model(sequence, worlds.L.Dense(1)(worlds.L.LSTM(8, dropout=0.1)(sequence)))
    model.compile("adam", "mse", **compile)
    random = np.random.default_rng(0)
    return worlds.World(model, random.normal(size=(128, 5, 4)).astype("float32"), random.normal(size=(128, 1)).astype("float32"))


@pytest.mark.parametrize("mode", ["graph", "eager", "XLA"])
@pytest.mark.parametrize("make", [worlds.functional, convolutional, recurrent])
def test_a_long_healthy_run_is_left_alone(make, mode):
    epochs = 5 if mode == "eager" else 25  # eager steps are slow to test
    compile = {"run_eagerly": mode == "eager", "jit_compile": mode == "XLA"}
    plain, guarded, guard = make(**compile), make(**compile), ng.NanGuardCallback()
    worlds.train(plain, plain.without(()), epochs=epochs)
    worlds.train(guarded, guarded.without(()), [guard, ng.AdaptiveLRBackoff()], epochs=epochs)
    assert guard.report.totals["steps"] == epochs * worlds.BATCHES and not guard.report.incidents
    if mode == "XLA":
        for one, other in zip(worlds.state(guarded.model), worlds.state(plain.model)):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)
    else:
        worlds.assert_same_bits(worlds.state(guarded.model), worlds.state(plain.model))


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinities_are_refused_like_nan(value):
    plain, guarded = worlds.functional(), worlds.functional()
    worlds.train(plain, plain.without(worlds.BAD))
    worlds.train(guarded, guarded.with_bad(value), [ng.NanGuardCallback()])
    worlds.assert_same_bits(worlds.state(guarded.model), worlds.state(plain.model))


def test_the_first_and_the_last_batch_may_be_bad():
    bad = (0, worlds.BATCHES - 1)
    plain, guarded = worlds.sequential(built=False), worlds.sequential(built=False)
    worlds.train(plain, plain.without(bad))
    worlds.train(guarded, guarded.with_bad(batches=bad), [ng.NanGuardCallback()])
    worlds.assert_same_bits(worlds.state(guarded.model), worlds.state(plain.model))


@pytest.mark.parametrize("door", ["callback", "SafeModel"])
def test_compiled_by_xla_equal_to_rounding(door):
    plain = worlds.functional(jit_compile=True)
    worlds.train(plain, plain.without(worlds.BAD))
    guarded = worlds.functional(ng.SafeModel if door == "SafeModel" else keras.Model, jit_compile=True)
    history = worlds.train(guarded, guarded.with_bad(), [ng.NanGuardCallback()] if door == "callback" else []).history
    assert history["skipped_steps"] == [2.0, 2.0]
    for one, other in zip(worlds.state(guarded.model), worlds.state(plain.model)):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_logs_are_the_means_over_accepted_steps():
    plain, guarded = worlds.functional(), worlds.functional()
    expected = worlds.train(plain, plain.without(worlds.BAD)).history
    history = worlds.train(guarded, guarded.with_bad(), [ng.NanGuardCallback()]).history
    assert {key: history[key] for key in expected} == expected
    assert all(np.isfinite(history["grad_norm"]))


def test_an_epoch_without_an_accepted_step_logs_nan():
    world = worlds.functional(ng.SafeModel)
    history = worlds.train(world, world.with_bad(batches=range(worlds.BATCHES)), epochs=1).history
    assert history["skipped_steps"] == [float(worlds.BATCHES)]
    assert all(np.isnan(history[key]).all() for key in ("loss", "mae", "grad_norm"))
