"""Tests of the tests: a guard with one thing wrong turns them red."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import worlds

import keras_nanguard as ng
from keras_nanguard.backend.tensorflow import update
from keras_nanguard.fit import session
from keras_nanguard.fit.model_guard import ModelGuard
from keras_nanguard.step import judge


def leaves_a_trace(make=worlds.functional):
    """Whether a run with bad batches ends other than the one whose data never had them."""
    plain, guarded = make(), make()
    worlds.train(plain, plain.without(worlds.BAD))
    worlds.train(guarded, guarded.with_bad(), [ng.NanGuardCallback()])
    return any((a != b).any() for a, b in zip(worlds.state(guarded.model), worlds.state(plain.model)))


def test_without_sabotage_there_is_no_trace():
    assert not leaves_a_trace()


def test_zeroing_the_gradients_instead_of_skipping(monkeypatch):
    def zeroing(update, verdict, grads, run):
        run([[tf.where(verdict.apply, g, tf.zeros_like(g)) for g in own] for own in grads])

    monkeypatch.setattr(update, "carry_out", zeroing)
    assert leaves_a_trace()


def _forgets(monkeypatch, which):
    original = update.put_back
    forgetful = lambda kept: original([(v, values) for v, values in kept if which not in update.numerics.raw(v).name and which not in getattr(v, "path", "")])
    monkeypatch.setattr(update, "put_back", forgetful)


def test_forgetting_the_moving_statistics(monkeypatch):
    _forgets(monkeypatch, "moving_")
    assert leaves_a_trace()


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


def test_admitting_nan_to_the_window(monkeypatch):
    monkeypatch.setattr(judge, "_remembered", lambda memory, norm, admit: norm)
    world = worlds.functional()
    guard = ng.NanGuardCallback()
    worlds.train(world, world.with_bad(batches=(worlds.BATCHES - 1,)), [guard], epochs=1)
    from keras_nanguard.step.memory import counts

    memory = guard.session.function.memory.read()
    assert not np.isfinite(memory["norms"]).all() and counts(memory)["steps"]


def test_a_guard_that_is_never_called_because_of_a_cached_function(monkeypatch):
    world = worlds.functional()
    worlds.train(world, world.without(()), epochs=1)
    monkeypatch.setattr(ModelGuard, "install", lambda self, armed: armed.begin() and None)
    with pytest.raises((RuntimeError, AttributeError)):
        worlds.train(world, world.with_bad(), [ng.NanGuardCallback()], epochs=1)


def test_letting_another_callback_save_a_poisoned_state(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "_has_batch_hooks", lambda callback: False)
    world = worlds.functional(optimizer=lambda: keras.optimizers.SGD(3e38))
    world.x[:] *= 1e4
    saved = []

    class Saves(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            saved.append(all(np.isfinite(v.numpy()).all() for v in self.model.variables))

    worlds.train(world, world.without(()), [Saves(), ng.NanGuardCallback()], epochs=1)
    assert not all(saved)
