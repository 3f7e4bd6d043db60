"""`MirroredStrategy` over two devices: one verdict, one reduction, one decision for both replicas."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import worlds

import keras_nanguard as ng


def linear(strategy=None, optimizer=None, cls=keras.Model):
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        inputs = keras.Input((6,))
        model = cls(inputs, keras.layers.Dense(1, name="out")(keras.layers.BatchNormalization()(inputs)))
        model.compile((optimizer or (lambda: keras.optimizers.Adam(0.01)))(), "mse", jit_compile=False)
    return worlds.World(model, *worlds.data())


def same_on_both(model, strategy):
    for variable in model.trainable_variables + model.optimizer.variables:
        first, second = (v.numpy() for v in strategy.experimental_local_results(variable.value))
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("row, replica", [(3, 0), (12, 1)])
@pytest.mark.parametrize("door", ["callback", "SafeModel"])
def test_nan_on_either_replica_skips_the_step_on_both(strategy, row, replica, door):
    plain = linear(strategy)
    worlds.train(plain, plain.without(worlds.BAD))
    guarded = linear(strategy, cls=ng.SafeModel if door == "SafeModel" else keras.Model)
    arguments = guarded.without(())
    arguments["x"] = arguments["x"].copy()
    for batch in worlds.BAD:
        arguments["x"][batch * worlds.BATCH + row] = np.nan
    guard = ng.NanGuardCallback()
    history = worlds.train(guarded, arguments, [guard] if door == "callback" else []).history
    assert history["skipped_steps"] == [2.0, 2.0]
    worlds.assert_same_bits([v.numpy() for v in guarded.model.variables], [v.numpy() for v in plain.model.variables])
    same_on_both(guarded.model, strategy)
    if door == "callback":
        assert {incident.replica for incident in guard.report.incidents} == {replica}


def test_gradients_are_summed_before_they_are_clipped(strategy):
    world = linear(strategy, lambda: keras.optimizers.SGD(1.0))
    before = [v.numpy() for v in world.model.trainable_variables]
    guard = ng.NanGuardCallback(ng.StepGuard(0.25))
    worlds.train(world, {k: v[:16] if v is not None else v for k, v in world.without(()).items()}, [guard], epochs=1)
    moved = np.sqrt(sum(np.sum((v.numpy() - b) ** 2) for v, b in zip(world.model.trainable_variables, before)))
    assert guard.report.totals["clipped"] == 1
    np.testing.assert_allclose(moved, 0.25, rtol=1e-5)


def test_the_gradients_are_reduced_once(strategy, monkeypatch):
    sizes = []
    original = tf.distribute.ReplicaContext.all_reduce

    def counted(self, op, value, options=None):
        sizes.append([int(np.prod(v.shape)) for v in tf.nest.flatten(value)])
        return original(self, op, value, options)

    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", counted)
    world = linear(strategy)
    worlds.train(world, world.without(()), [ng.NanGuardCallback()], epochs=1)
    gradients = sorted(int(np.prod(v.shape)) for v in world.model.trainable_variables)
    with_gradients = [s for s in sizes if len(s) > 1]
    assert len(with_gradients) == 2, "one call, traced in each of two replicas"
    assert sorted(with_gradients[0]) == sorted([1, *gradients]), "the gradients and one scalar"


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "gradient_accumulation_steps"),
        (lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2), "ema_overwrite_frequency"),
    ],
)
def test_what_keras_cannot_run_there_is_said(strategy, make, name):
    world = linear(strategy, make)
    with pytest.raises(ValueError, match=f"Keras itself cannot train with .*{name}"):
        worlds.train(world, world.without(()), [ng.NanGuardCallback()], epochs=1)
