"""`GradientGuard` in what only TensorFlow has: compiled functions with side effects, sparse gradients, strategies."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import worlds

import keras_nanguard as ng


def test_forward_in_another_function_than_apply_is_refused():
    world = worlds.functional()
    guard = ng.GradientGuard(keras.optimizers.Adam(), world.model)

    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            with guard.forward():
                loss = tf.reduce_mean(tf.square(world.model(x, training=True) - y))
        return loss, tape.gradient(loss, [v.value for v in world.model.trainable_variables])

    loss, grads = gradients(world.x[:16], world.y[:16])
    with pytest.raises(RuntimeError, match="another function"):
        guard.apply(grads, world.model.trainable_variables, loss=loss)


def test_sparse_gradients_are_clipped_and_stay_sparse():
    table = keras.Variable(np.ones((5, 2), "float32"))
    guard = ng.GradientGuard(keras.optimizers.SGD(1.0), step_guard=ng.StepGuard(1.0))
    gradient = tf.IndexedSlices(tf.constant([[3.0, 4.0]]), tf.constant([2]), tf.constant([5, 2]))
    outcome = guard.apply([gradient], [table], loss=1.0)
    assert float(outcome.grad_norm) == 5.0
    expected = np.ones((5, 2), "float32")
    expected[2] -= np.array([0.6, 0.8], "float32")
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)


def test_under_a_strategy_one_replica_decides_for_both(strategy):
    with strategy.scope():
        world = worlds.functional()
        guard = ng.GradientGuard(keras.optimizers.Adam(0.01), world.model)
    model = world.model

    @tf.function
    def step(x, y):
        def replica(x, y):
            with tf.GradientTape() as tape:
                with guard.forward():
                    loss = tf.reduce_mean(tf.square(model(x, training=True) - y)) / 2
            grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
            return guard.apply(grads, model.trainable_variables, loss=loss).applied

        return strategy.run(replica, args=(x, y))

    def both(first, second):
        split = lambda a, b: strategy.experimental_distribute_values_from_function(lambda c: tf.constant((a, b)[c.replica_id_in_sync_group]))
        return strategy.experimental_local_results(step(split(first, second), split(world.y[:16], world.y[16:32])))

    x = world.x[:16]
    assert all(map(bool, both(x, x)))
    before = [v.numpy() for v in model.variables]
    assert not any(map(bool, both(x, np.full_like(x, np.nan))))
    worlds.assert_same_bits([v.numpy() for v in model.variables], before)
    assert [i.replica for i in guard.report().incidents] == [1]


def test_in_compiled_code_lost_weights_are_told_by_the_report():
    variable = keras.Variable(np.ones(4, "float32"), name="lost")
    guard = ng.GradientGuard(keras.optimizers.SGD(3e38))

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable.value * factor)
        return guard.apply(tape.gradient(loss, [variable.value]), [variable], loss=loss)

    step(tf.constant(10.0))
    step(tf.constant(10.0))
    assert any("are not finite: lost" in note for note in guard.report().notes)


def test_inside_a_step_that_is_guarded_already_it_is_refused():
    class Twice(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.guard.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables, loss=loss)
            return {"loss": loss}

    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    model = Twice(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse", jit_compile=False)
    model.guard = ng.GradientGuard(model.optimizer)
    x, y = worlds.data()
    model.fit(x, y, verbose=0)
    with pytest.raises(RuntimeError, match="One step can have one guard"):
        model.fit(x, y, verbose=0, callbacks=[ng.NanGuardCallback()])
