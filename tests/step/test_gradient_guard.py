"""`GradientGuard` in hand-written loops."""

import custom_steps
import keras
import pytest
import worlds

import keras_nanguard as ng


@pytest.mark.parametrize("compiled", [False, True])
def test_bad_batches_leave_no_trace(compiled):
    plain, guarded = worlds.functional(), worlds.functional()
    reference, optimizer = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
    custom_steps.loop(plain, custom_steps.batches(plain.without(worlds.BAD)), optimizer=reference, compiled=compiled)
    guard = ng.GradientGuard(optimizer, guarded.model)
    applied = custom_steps.loop(guarded, custom_steps.batches(guarded.with_bad()), guard, compiled=compiled)
    assert [k for k, ok in enumerate(applied) if not ok] == list(worlds.BAD)
    compare = worlds.assert_close if compiled and worlds.COMPILED_ROUNDS else worlds.assert_same_bits
    compare([v.numpy() for v in guarded.model.variables], [v.numpy() for v in plain.model.variables])
    compare([v.numpy() for v in optimizer.variables], [v.numpy() for v in reference.variables])
    assert [i.step for i in custom_steps.report(guard).incidents] == list(worlds.BAD)


def test_the_wrong_things_are_refused():
    optimizer = keras.optimizers.SGD(0.1)
    guard = ng.GradientGuard(optimizer)
    with pytest.raises(ValueError, match="guarded already"):
        ng.GradientGuard(optimizer)
    with pytest.raises(TypeError, match="Keras optimizer"):
        ng.GradientGuard("adam")
    with pytest.raises(ValueError, match="Build it first"):
        ng.GradientGuard(keras.optimizers.SGD(), keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="Each gradient needs its variable"):
        guard.apply([1.0], [], loss=1.0)
    with pytest.raises(TypeError, match="loss"):
        guard.apply([], [])


def test_the_other_form_names_the_one_to_use():
    guard = ng.GradientGuard(keras.optimizers.SGD(0.1))
    form = "guard.stateless_apply(" if custom_steps.STATELESS else "outcome = guard.apply("
    with pytest.raises(RuntimeError) as told:
        if custom_steps.STATELESS:
            guard.apply([1.0], [keras.Variable(1.0)], loss=1.0)
        else:
            guard.stateless_apply(None, [], [], [], loss=1.0)
    assert form in str(told.value)
    if not custom_steps.STATELESS:
        with pytest.raises(RuntimeError, match="is for JAX"):
            guard.initial_state()


def test_before_and_after_the_forward_pass_belong_together():
    guard = ng.GradientGuard(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="1 and 0 arrays"):
        guard.stateless_apply({}, [], [], [], loss=1.0, non_trainable_before=[1.0])
