"""Tests of the tests: the guarded step of JAX with one thing wrong turns them red."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

import keras_nanguard as ng
from keras_nanguard.backend.jax import numerics


def _loses(monkeypatch, mend):
    """What `choose` gives for a refused step passes through `mend(logs, state, taken state)`."""
    original = numerics.choose

    def choose(index, branches):
        chosen = original(index, branches)
        taken = branches[0]()
        if len(taken) != 2 or not isinstance(taken[0], dict):
            return chosen
        return chosen[0], mend(chosen[1], taken[1])

    monkeypatch.setattr(numerics, "choose", choose)


def test_zeroing_what_is_not_finite_instead_of_skipping(monkeypatch):
    _loses(monkeypatch, lambda state, taken: jax.tree_util.tree_map(jnp.nan_to_num, taken))
    assert worlds.leaves_a_trace()


@pytest.mark.parametrize("part", [1, 2], ids=["the moving statistics", "the optimizer"])
def test_forgetting_a_part_of_the_state(monkeypatch, part):
    _loses(monkeypatch, lambda state, taken: (*state[:part], taken[part], *state[part + 1 :]))
    assert worlds.leaves_a_trace()


def test_forgetting_the_metrics(monkeypatch):
    _loses(monkeypatch, lambda state, taken: (*state[:3], taken[3]))
    world = worlds.functional()
    history = worlds.train(world, world.with_bad(), [ng.NanGuardCallback()]).history
    assert not np.isfinite(history["loss"]).all()
