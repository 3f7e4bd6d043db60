"""`GradientGuard` in hand-written loops."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import worlds

import keras_nanguard as ng


def loop(world, batches, guard=None, compiled=False):
    """Trains as people write it; with a guard, or plainly."""
    model = world.model
    optimizer = guard._optimizer if guard else keras.optimizers.Adam(0.01)

    def step(x, y):
        with tf.GradientTape() as tape:
            if guard is not None:
                with guard.forward():
                    loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            else:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        if guard is None:
            optimizer.apply(grads, model.trainable_variables)
            return True
        return guard.apply(grads, model.trainable_variables, loss=loss).applied

    step = tf.function(step) if compiled else step
    return [bool(step(tf.constant(x), tf.constant(y))) for x, y in batches], optimizer


def batches(arguments):
    x, y = arguments["x"], arguments["y"]
    return [(x[k : k + 16], y[k : k + 16]) for k in range(0, len(x), 16)]


@pytest.mark.parametrize("compiled", [False, True])
def test_bad_batches_leave_no_trace(compiled):
    plain, guarded = worlds.functional(), worlds.functional()
    _, reference = loop(plain, batches(plain.without(worlds.BAD)), compiled=compiled)
    guard = ng.GradientGuard(keras.optimizers.Adam(0.01), guarded.model)
    applied, optimizer = loop(guarded, batches(guarded.with_bad()), guard, compiled)
    assert [k for k, ok in enumerate(applied) if not ok] == list(worlds.BAD)
    worlds.assert_same_bits([v.numpy() for v in guarded.model.variables], [v.numpy() for v in plain.model.variables])
    worlds.assert_same_bits([v.numpy() for v in optimizer.variables], [v.numpy() for v in reference.variables])
    assert [i.step for i in guard.report().incidents] == list(worlds.BAD)


def test_without_a_model_what_passes_the_optimizer_is_protected():
    w = keras.Variable([1.0, 2.0])
    guard = ng.GradientGuard(keras.optimizers.Adam(0.1))
    guard.apply([tf.constant([0.1, 0.1])], [w], loss=1.0)
    before = w.numpy().copy(), [v.numpy() for v in guard._optimizer.variables]
    outcome = guard.apply([tf.constant([np.nan, 0.1])], [w], loss=1.0)
    assert not bool(outcome.applied)
    np.testing.assert_array_equal(w.numpy(), before[0])
    worlds.assert_same_bits([v.numpy() for v in guard._optimizer.variables], before[1])


def test_forward_is_asked_for_where_the_model_writes_state():
    world = worlds.functional()
    guard = ng.GradientGuard(keras.optimizers.Adam(), world.model)
    grads = [tf.zeros_like(v.value) for v in world.model.trainable_variables]
    with pytest.raises(RuntimeError, match="with guard.forward"):
        guard.apply(grads, world.model.trainable_variables, loss=1.0)


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


def test_of_two_forwards_before_one_apply_the_first_counts():
    world = worlds.functional()
    model = world.model
    guard = ng.GradientGuard(keras.optimizers.Adam(), model)
    before = [v.numpy() for v in model.non_trainable_variables]
    for value in (np.nan, 1.0):
        with guard.forward():
            model(np.full((16, 6), value, "float32"), training=True)
    guard.apply([tf.zeros_like(v.value) * np.nan for v in model.trainable_variables], model.trainable_variables, loss=1.0)
    worlds.assert_same_bits([v.numpy() for v in model.non_trainable_variables], before)


def test_sparse_gradients_are_clipped_and_stay_sparse():
    table = keras.Variable(np.ones((5, 2), "float32"))
    guard = ng.GradientGuard(keras.optimizers.SGD(1.0), step_guard=ng.StepGuard(1.0))
    gradient = tf.IndexedSlices(tf.constant([[3.0, 4.0]]), tf.constant([2]), tf.constant([5, 2]))
    outcome = guard.apply([gradient], [table], loss=1.0)
    assert float(outcome.grad_norm) == 5.0
    expected = np.ones((5, 2), "float32")
    expected[2] -= np.array([0.6, 0.8], "float32")
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)


def test_none_gradients_are_legal():
    a, b = keras.Variable([1.0]), keras.Variable([1.0])
    guard = ng.GradientGuard(keras.optimizers.SGD(1.0))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        guard.apply([tf.constant([1.0]), None], [a, b], loss=1.0)
    assert (float(a[0]), float(b[0])) == (0.0, 1.0)


def test_a_poisonous_update_raises_at_the_next_refused_step():
    w = keras.Variable([1.0])
    guard = ng.GradientGuard(keras.optimizers.SGD(3e38))
    guard.apply([tf.constant([10.0])], [w], loss=1.0)
    with pytest.raises(ng.NonFiniteTrainingError, match="not finite"):
        guard.apply([tf.constant([np.nan])], [w], loss=np.nan)


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
        guard.apply([tf.constant(1.0)], [], loss=1.0)
    with pytest.raises(TypeError, match="loss"):
        guard.apply([], [])


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


def test_the_norm_of_an_accepted_step_is_told_also_where_its_square_overflows():
    optimizer = keras.optimizers.SGD(0.0)
    variable = keras.Variable(np.ones(4, "float32"))
    guard = ng.GradientGuard(optimizer, step_guard=ng.StepGuard(None))
    outcome = guard.apply([tf.fill([4], 1e30)], [variable], loss=1.0)
    assert bool(outcome.applied) and float(outcome.grad_norm) == pytest.approx(2e30)


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
