"""`AdaptiveLRBackoff` in real fits."""

import keras
import numpy as np
import pytest
import worlds

import keras_nanguard as ng

SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


def linear(rate, seed=1, **compile):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(1, name="out")(inputs))
    rate = rate() if callable(rate) and not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else rate
    model.compile(keras.optimizers.SGD(rate), "mse", **{"jit_compile": False, **compile})
    return worlds.World(model, *worlds.data())


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("rate", [0.1, SCHEDULE, lambda: lambda: keras.ops.convert_to_tensor(0.1)], ids=["float", "schedule", "callable"])
def test_the_update_is_that_of_the_scaled_rate(rate, jit):
    """After a drop the next step moves the weights by exactly half of what it would have."""
    full, halved = linear(rate, jit_compile=jit), linear(rate, jit_compile=jit)
    bad, good = full.with_bad(batches=(0, 1)), full.without(range(1, 8))
    quick = ng.AdaptiveLRBackoff(patience=2)
    both = {k: None if v is None else np.concatenate([bad[k][: 2 * worlds.BATCH], good[k]]) for k, v in bad.items()}
    start = [v.numpy() for v in full.model.trainable_variables]
    worlds.train(full, good, epochs=1)
    history = worlds.train(halved, both, [quick, ng.NanGuardCallback()], epochs=1).history
    assert history["learning_rate_scale"] == [0.5] and history["skipped_steps"] == [2.0]
    for before, one, other in zip(start, full.model.trainable_variables, halved.model.trainable_variables):
        np.testing.assert_allclose(before - other.numpy(), (before - one.numpy()) / 2, rtol=1e-5, atol=1e-7)


def test_one_bad_row_changes_nothing():
    world = linear(0.1)
    history = worlds.train(world, world.with_bad(batches=(3,)), [ng.AdaptiveLRBackoff()], epochs=2).history
    assert history["learning_rate_scale"] == [1.0, 1.0]


def test_the_scale_moves_without_a_trace_and_grows_back():
    traces = []

    def loss(y_true, y_pred):
        traces.append(1)
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    world = linear(0.01)
    world.model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    backoff = ng.AdaptiveLRBackoff(patience=2, cooldown=3, regrow_steps=2)
    arguments = world.with_bad(batches=(0, 1))
    one = lambda slice_: {k: None if v is None else v[slice_] for k, v in arguments.items()}
    worlds.train(world, one(slice(0, 32)), [backoff], epochs=1)
    before = len(traces)
    scales = []

    class Scales(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_end(self, batch, logs=None):
            scales.append(logs["learning_rate_scale"])

    worlds.train(world, arguments, [backoff, Scales()], epochs=1)
    assert len(traces) == before
    assert min(scales) == 0.5 and scales[7] == 1.0


def test_it_leaves_the_rate_itself_to_the_other_callbacks():
    world = linear(0.1)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=100)
    callbacks = [ng.AdaptiveLRBackoff(patience=2), scheduler, plateau, ng.NanGuardCallback()]
    history = worlds.train(world, world.with_bad(batches=(0, 1)), callbacks, epochs=2).history
    np.testing.assert_allclose(history["learning_rate"], [0.05, 0.025])
    assert history["learning_rate_scale"][0] == 0.5
    assert float(world.model.optimizer.learning_rate) == np.float32(0.025)


def test_backoffs_are_in_the_report_by_either_order():
    for place in (0, 1):
        world, guard = linear(0.1), ng.NanGuardCallback()
        callbacks = [guard]
        callbacks.insert(place, ng.AdaptiveLRBackoff(patience=2))
        worlds.train(world, world.with_bad(batches=(0, 1)), callbacks, epochs=1)
        assert guard.report.totals["backoffs"] == 1


def test_alone_it_guards_the_step_and_stops_after_an_epoch_without_one(capsys):
    world = linear(0.1)
    before = [v.numpy() for v in world.model.variables]
    arguments = world.with_bad(batches=range(8))
    history = world.model.fit(**arguments, batch_size=16, epochs=5, shuffle=False, verbose=2, callbacks=[ng.AdaptiveLRBackoff()]).history
    assert len(history["loss"]) == 1
    assert "no step was accepted" in capsys.readouterr().out
    for one, other in zip(before, world.model.variables):
        np.testing.assert_array_equal(one, other.numpy())


def test_alone_a_poisonous_update_raises_and_names_the_weights():
    world = linear(3e38)
    world.x[:] *= 1e3
    with pytest.raises(ng.NonFiniteTrainingError, match="out/"):
        worlds.train(world, world.without(()), [ng.AdaptiveLRBackoff()])


def test_spikes_lower_it():
    world = linear(1e-4)
    arguments = world.without(())
    arguments["x"] = np.tile(arguments["x"], (4, 1))
    arguments["y"] = np.tile(arguments["y"], (4, 1))
    for batch, factor in ((25, 100), (27, 300), (29, 900)):
        arguments["x"][batch * 16 : batch * 16 + 16] *= factor
    history = worlds.train(world, arguments, [ng.AdaptiveLRBackoff()], epochs=1).history
    assert history["learning_rate_scale"][0] <= 0.5 and history["skipped_steps"] == [0.0]


def test_an_outlier_that_comes_again_in_every_epoch_is_no_spike():
    world = linear(1e-4)
    arguments = world.without(())
    arguments["x"] = np.tile(arguments["x"], (3, 1))
    arguments["y"] = np.tile(arguments["y"], (3, 1))
    arguments["x"][20 * 16 : 21 * 16] *= 5
    history = worlds.train(world, arguments, [ng.AdaptiveLRBackoff()], epochs=4).history
    assert history["learning_rate_scale"] == [1.0] * 4


@pytest.mark.parametrize(
    "name, values",
    {
        "factor": (0.0, 1.0, -0.5, "half", float("nan")),
        "patience": (0, 1.5, True),
        "cooldown": (0, -1),
        "regrow_steps": (0, 2.0),
        "min_scale": (0.0, 1.5),
        "spike_zscore": (0.0, float("inf")),
    }.items(),
)
def test_bad_arguments_are_refused_at_construction(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}="):
            ng.AdaptiveLRBackoff(**{name: value})


def test_more_patience_than_cooldown_could_never_act_and_is_refused():
    with pytest.raises(ValueError, match="patience=5, cooldown=4"):
        ng.AdaptiveLRBackoff(patience=5, cooldown=4)


def test_an_epoch_of_ordinary_overflows_is_no_reason_to_stop():
    world = linear(0.1)
    world.x[:] *= 1e9
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-30), initial_scale=2.0**127)
    world.model.compile(optimizer, "mse", jit_compile=False)
    history = worlds.train(world, world.without(()), [ng.AdaptiveLRBackoff()], epochs=2).history
    assert np.isnan(history["grad_norm"]).all() and history["skipped_steps"] == [0.0, 0.0]


def test_a_silent_fit_is_not_ended_in_silence(caplog):
    world = linear(0.1)
    history = worlds.train(world, world.with_bad(batches=range(8)), [ng.AdaptiveLRBackoff()], epochs=5).history
    assert len(history["loss"]) == 1
    assert "epoch 0: no step was accepted; training stopped" in caplog.text
