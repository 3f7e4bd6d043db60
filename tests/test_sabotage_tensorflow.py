"""Tests of the tests: the guarded step of TensorFlow with one thing wrong turns them red."""

import keras
import numpy as np
import tensorflow as tf
import worlds

import keras_nanguard as ng
from keras_nanguard.backend.tensorflow import update


def test_zeroing_the_gradients_instead_of_skipping(monkeypatch):
    def zeroing(update, verdict, grads, run):
        run([[tf.where(verdict.apply, g, tf.zeros_like(g)) for g in own] for own in grads])

    monkeypatch.setattr(update, "carry_out", zeroing)
    assert worlds.leaves_a_trace()


def _forgets(monkeypatch, which):
    original = update.put_back
    forgetful = lambda kept: original([(v, values) for v, values in kept if which not in update.numerics.raw(v).name and which not in getattr(v, "path", "")])
    monkeypatch.setattr(update, "put_back", forgetful)


def test_forgetting_the_moving_statistics(monkeypatch):
    _forgets(monkeypatch, "moving_")
    assert worlds.leaves_a_trace()


def test_forgetting_the_metrics(monkeypatch):
    _forgets(monkeypatch, "total")
    world = worlds.functional()
    history = worlds.train(world, world.with_bad(), [ng.NanGuardCallback()]).history
    assert not np.isfinite(history["loss"]).all()


def test_looking_at_one_replica_only(monkeypatch, strategy):
    monkeypatch.setattr(update.distribution, "reduce_sum", lambda tensors: tensors)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        model.compile("adam", "mse", jit_compile=False)
        world = worlds.World(model, *worlds.data())
    arguments = world.without(())
    arguments["x"] = arguments["x"].copy()
    arguments["x"][2 * worlds.BATCH + 12] = np.nan  # the second replica's half
    history = worlds.train(world, arguments, [ng.NanGuardCallback()], epochs=1).history
    parts = [part for v in world.model.variables for part in strategy.experimental_local_results(v.value)]
    finite = all(np.isfinite(part.numpy()).all() for part in parts)
    assert history["skipped_steps"] != [1.0] or not finite
