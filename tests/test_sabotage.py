"""Tests of the tests: a guard with one thing wrong turns them red."""

import keras
import numpy as np
import pytest
import worlds

import keras_nanguard as ng
from keras_nanguard.fit import session
from keras_nanguard.fit.model_guard import ModelGuard
from keras_nanguard.step import judge
from keras_nanguard.step.memory import counts


def test_without_sabotage_there_is_no_trace():
    assert not worlds.leaves_a_trace()


def test_admitting_nan_to_the_window(monkeypatch):
    monkeypatch.setattr(judge, "_remembered", lambda memory, norm, admit, lib: norm)
    world = worlds.functional()
    guard = ng.NanGuardCallback()
    worlds.train(world, world.with_bad(batches=(worlds.BATCHES - 1,)), [guard], epochs=1)
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
