"""Tests of the tests: the guarded step of torch with one thing wrong turns them red."""

import numpy as np
import torch
import worlds

import keras_nanguard as ng
from keras_nanguard.backend.torch import update
from keras_nanguard.backend.torch import writes


def test_zeroing_the_gradients_instead_of_skipping(monkeypatch):
    original = update.guarded

    def guarded(spec, memory, one, loss, written, agreed=None):
        grads = [torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in one.grads]
        return original(spec, memory, update.Update(one.optimizer, one.original, grads, one.variables), torch.zeros(()), [])

    monkeypatch.setattr(update, "guarded", guarded)
    assert worlds.leaves_a_trace()


def _forgets(monkeypatch, which):
    original = writes.put_back
    forgetful = lambda kept: original({key: (v, value) for key, (v, value) in kept.items() if which not in v.path})
    monkeypatch.setattr(writes, "put_back", forgetful)


def test_forgetting_the_moving_statistics(monkeypatch):
    _forgets(monkeypatch, "moving_")
    assert worlds.leaves_a_trace()


def test_forgetting_the_metrics(monkeypatch):
    _forgets(monkeypatch, "total")
    world = worlds.functional()
    history = worlds.train(world, world.with_bad(), [ng.NanGuardCallback()]).history
    assert not np.isfinite(history["loss"]).all()


def test_forgetting_the_random_numbers(monkeypatch):
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    assert worlds.leaves_a_trace()
