"""`GradientGuard.stateless_apply`."""

import jax
import keras
import numpy as np
import pytest
import worlds

import keras_nanguard as ng


def one_variable(optimizer, step_guard=None):
    w = keras.Variable(np.array([1.0, 2.0], "float32"))
    optimizer.build([w])
    guard = ng.GradientGuard(optimizer, step_guard=step_guard)
    return guard, [v.value for v in optimizer.variables], [w.value]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_refused_step_gives_back_what_it_was_given(compiled):
    guard, own, trainable = one_variable(keras.optimizers.Adam(0.1))
    step = lambda state, own, grads, trainable, loss, before, after: guard.stateless_apply(
        state, own, grads, trainable, loss=loss, non_trainable_before=before, non_trainable_after=after
    )
    step = jax.jit(step) if compiled else step
    old, new = [jax.numpy.zeros(3)], [jax.numpy.ones(3)]
    good, nan = [jax.numpy.array([0.1, 0.1])], [jax.numpy.array([0.1, np.nan])]
    outcome, state, trainable, own, kept = step(guard.initial_state(), own, good, trainable, 1.0, old, new)
    assert bool(outcome.applied) and float(kept[0][0]) == 1.0
    for grads, loss, after in ((nan, 1.0, new), (good, np.nan, new), (good, 1.0, [jax.numpy.array([1.0, np.inf, 1.0])])):
        outcome, state, same, same_own, kept = step(state, own, grads, trainable, loss, old, after)
        assert not bool(outcome.applied)
        worlds.assert_same_bits([np.array(v) for v in (*same, *same_own, *kept)], [np.array(v) for v in (*trainable, *own, *old)])
    report = guard.report(state)
    assert [i.reason for i in report.incidents] == ["gradient", "loss", "state"] and report.totals["steps"] == 4


def test_gradients_are_clipped_by_their_global_norm():
    guard, own, trainable = one_variable(keras.optimizers.SGD(1.0), ng.StepGuard(1.0))
    outcome, state, (moved,), _, _ = guard.stateless_apply(guard.initial_state(), own, [jax.numpy.array([3.0, 4.0])], trainable, loss=1.0)
    assert float(outcome.grad_norm) == 5.0
    np.testing.assert_allclose(moved, [1.0 - 0.6, 2.0 - 0.8], rtol=1e-6)
    assert guard.report(state).totals["clipped"] == 1


def test_inside_a_step_that_is_guarded_already_it_is_refused():
    class Twice(keras.Model):
        def train_step(self, state, data):
            trainable, non_trainable, own, metrics = state
            grads = [jax.numpy.zeros_like(v) for v in trainable]
            _, _, trainable, own, _ = self.guard.stateless_apply(self.guard.initial_state(), own, grads, trainable, loss=1.0)
            return {"loss": 0.0}, (trainable, non_trainable, own, metrics)

    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    model = Twice(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse")
    model.guard = ng.GradientGuard(model.optimizer)
    x, y = worlds.data()
    model.fit(x, y, verbose=0)
    with pytest.raises(RuntimeError, match="One step can have one guard"):
        model.fit(x, y, verbose=0, callbacks=[ng.NanGuardCallback()])
