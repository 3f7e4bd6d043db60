"""`GradientGuard.apply`, where a step assigns to variables."""

import keras
import numpy as np
import pytest
import worlds

import keras_nanguard as ng

tensor = keras.ops.convert_to_tensor


def test_without_a_model_what_passes_the_optimizer_is_protected():
    w = keras.Variable([1.0, 2.0])
    guard = ng.GradientGuard(keras.optimizers.Adam(0.1))
    guard.apply([tensor([0.1, 0.1])], [w], loss=1.0)
    before = w.numpy().copy(), [v.numpy() for v in guard._optimizer.variables]
    outcome = guard.apply([tensor([np.nan, 0.1])], [w], loss=1.0)
    assert not bool(outcome.applied)
    np.testing.assert_array_equal(w.numpy(), before[0])
    worlds.assert_same_bits([v.numpy() for v in guard._optimizer.variables], before[1])


def test_forward_is_asked_for_where_the_model_writes_state():
    world = worlds.functional()
    guard = ng.GradientGuard(keras.optimizers.Adam(), world.model)
    grads = [keras.ops.zeros_like(v.value) for v in world.model.trainable_variables]
    with pytest.raises(RuntimeError, match="with guard.forward"):
        guard.apply(grads, world.model.trainable_variables, loss=1.0)


def test_of_two_forwards_before_one_apply_the_first_counts():
    world = worlds.functional()
    model = world.model
    guard = ng.GradientGuard(keras.optimizers.Adam(), model)
    before = [v.numpy() for v in model.non_trainable_variables]
    for value in (np.nan, 1.0):
        with guard.forward():
            model(np.full((16, 6), value, "float32"), training=True)
    guard.apply([keras.ops.zeros_like(v.value) * np.nan for v in model.trainable_variables], model.trainable_variables, loss=1.0)
    worlds.assert_same_bits([v.numpy() for v in model.non_trainable_variables], before)


def test_none_gradients_are_legal():
    a, b = keras.Variable([1.0]), keras.Variable([1.0])
    guard = ng.GradientGuard(keras.optimizers.SGD(1.0))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        guard.apply([tensor([1.0]), None], [a, b], loss=1.0)
    assert (float(a.numpy()[0]), float(b.numpy()[0])) == (0.0, 1.0)


def test_a_poisonous_update_raises_at_the_next_refused_step():
    w = keras.Variable([1.0])
    guard = ng.GradientGuard(keras.optimizers.SGD(3e38))
    guard.apply([tensor([10.0])], [w], loss=1.0)
    with pytest.raises(ng.NonFiniteTrainingError, match="not finite"):
        guard.apply([tensor([np.nan])], [w], loss=np.nan)


def test_the_norm_of_an_accepted_step_is_told_also_where_its_square_overflows():
    optimizer = keras.optimizers.SGD(0.0)
    variable = keras.Variable(np.ones(4, "float32"))
    guard = ng.GradientGuard(optimizer, step_guard=ng.StepGuard(None))
    outcome = guard.apply([keras.ops.full([4], 1e30)], [variable], loss=1.0)
    assert bool(outcome.applied) and float(outcome.grad_norm) == pytest.approx(2e30)
