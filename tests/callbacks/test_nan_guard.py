"""`NanGuardCallback` in real fits: in, out, again, and however `fit` ends."""

import copy
import gc
import json
import math
import weakref

import keras
import numpy as np
import pytest
import worlds

import keras_nanguard as ng


def small(optimizer=None, loss="mse", cls=keras.Model, **compile):
    """A model of one layer on data with no surprises."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    model = cls(inputs, keras.layers.Dense(1, name="out")(inputs))
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss, **{"jit_compile": False, **compile})
    return worlds.World(model, *worlds.data())


def weights(model):
    return [np.array(v.numpy()) for v in model.variables]


class Watch(keras.callbacks.Callback):
    """What another callback would save after each batch."""

    def __init__(self):
        super().__init__()
        self.finite, self.logs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.finite.append(all(np.isfinite(w).all() for w in weights(self.model)))
        self.logs.append(logs)


def test_the_model_is_plain_again_however_fit_ends():
    world = small()
    worlds.train(world, world.without(()), epochs=1)
    plain = world.model.train_function

    def is_plain():
        world.model.make_train_function()
        return world.model.train_function is plain and not {"train_step", "make_train_function", "compute_loss"} & set(vars(world.model))

    class Ends(keras.callbacks.Callback):
        def __init__(self, error):
            super().__init__()
            self.error = error

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                raise self.error

    worlds.train(world, world.with_bad(), [ng.NanGuardCallback()], epochs=1)
    assert world.model.train_function is plain and is_plain()
    for error in (ValueError("x"), KeyboardInterrupt()):
        guard = ng.NanGuardCallback()
        with pytest.raises(type(error)):
            worlds.train(world, world.with_bad(), [guard, Ends(error)], epochs=1)
        assert guard.report.totals["skipped"] == 1
        assert is_plain()
    assert not set(vars(world.model.optimizer)) & {"apply", "scale_loss", "_get_current_learning_rate"}


def test_no_new_trace_after_the_first_guarded_fit(tmp_path):
    traces = []

    def loss(y_true, y_pred):
        traces.append(1)
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    world = small(loss=loss)
    arguments = world.with_bad()
    worlds.train(world, world.without(()), epochs=1)
    worlds.train(world, arguments, [ng.NanGuardCallback()], epochs=1)
    world.model.evaluate(world.x, world.y, verbose=0, batch_size=worlds.BATCH, callbacks=[ng.NanGuardCallback()])
    before = len(traces)
    worlds.train(world, world.without(()), epochs=1)
    worlds.train(world, arguments, [ng.NanGuardCallback()], epochs=1)
    world.model.evaluate(world.x, world.y, verbose=0, batch_size=worlds.BATCH)
    world.model.save_weights(tmp_path / "w.weights.h5")
    history = worlds.train(world, arguments, [ng.NanGuardCallback()], epochs=1).history
    assert len(traces) == before
    assert history["skipped_steps"] == [2.0]


def test_a_new_compile_is_guarded_anew():
    world = small()
    worlds.train(world, world.with_bad(), [ng.NanGuardCallback()], epochs=1)
    world.model.compile(keras.optimizers.SGD(0.01), "mae", jit_compile=False)
    assert worlds.train(world, world.with_bad(), [ng.NanGuardCallback()], epochs=1).history["skipped_steps"] == [2.0]
    assert "skipped_steps" not in worlds.train(world, world.without(()), epochs=1).history


def test_evaluate_and_predict_with_the_callback_leave_the_model_plain():
    world = small()
    world.model.evaluate(world.x, world.y, verbose=0, callbacks=[ng.NanGuardCallback()])
    world.model.predict(world.x, verbose=0, callbacks=[ng.NanGuardCallback()])
    assert "make_train_function" not in vars(world.model)
    assert "skipped_steps" not in worlds.train(world, world.without(()), epochs=1).history


def test_incidents_know_step_epoch_and_batch_inside_blocks_of_steps():
    world = small(steps_per_execution=4)
    guard = ng.NanGuardCallback()
    worlds.train(world, world.with_bad(batches=(2, 5)), [guard])
    assert [(i.step, i.epoch, i.batch) for i in guard.report.incidents] == [(2, 0, 2), (5, 0, 5), (10, 1, 2), (13, 1, 5)]
    assert {(i.action, i.reason) for i in guard.report.incidents} == {("skip", "loss")}


def test_it_stops_after_too_many_skips_in_a_row_with_the_last_good_weights():
    world = small()
    before = weights(world.model)
    guard = ng.NanGuardCallback(max_consecutive_skips=3)
    history = worlds.train(world, world.with_bad(batches=range(8)), [guard], epochs=4).history
    for one, other in zip(before, weights(world.model)):
        np.testing.assert_array_equal(one, other)
    assert len(history["loss"]) == 1 and guard.report.totals["steps"] == 3
    assert guard.report.incidents[-1].action == "stop" and guard.report.outcome == "stopped"


def test_raise_error_raises_with_the_report():
    world = small()
    guard = ng.NanGuardCallback(max_consecutive_skips=2, raise_error=True)
    with pytest.raises(ng.NonFiniteTrainingError, match="2 steps were refused in a row") as raised:
        worlds.train(world, world.with_bad(batches=range(8)), [guard])
    assert raised.value.report.incidents[-1].action == "stop"


class OverflowsAt(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that is fine and then infinite: finite gradients, non-finite weights."""

    def __init__(self, step):
        self.step = step

    def __call__(self, step):
        return keras.ops.where(keras.ops.cast(step, "int32") >= self.step, float("inf"), 0.01)


@pytest.mark.parametrize("at", [0, 3, 11])
@pytest.mark.parametrize("others", ["none", "saves after each batch", "saves at each epoch"])
def test_a_poisonous_update_is_undone_before_anything_can_save_it(at, others, tmp_path):
    world = small(keras.optimizers.SGD(OverflowsAt(at)))
    guard = ng.NanGuardCallback()
    path = str(tmp_path / "{epoch}.weights.h5")
    watch = Watch()
    saver = keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq="epoch")
    callbacks = {"none": [], "saves after each batch": [watch], "saves at each epoch": [saver]}[others]
    worlds.train(world, world.without(()), [*callbacks, guard], epochs=3)
    assert all(np.isfinite(w).all() for w in weights(world.model))
    assert all(watch.finite)
    assert (guard.report.incidents[-1].action, guard.report.incidents[-1].reason) == ("stop", "update")
    for file in tmp_path.glob("*.h5"):
        world.model.load_weights(file)
        assert all(np.isfinite(w).all() for w in weights(world.model))


def test_weights_that_are_not_finite_at_the_start_are_named_at_once(capsys):
    world = small()
    world.model.get_layer("out").bias.assign([np.nan])
    guard = ng.NanGuardCallback()
    worlds.train(world, world.without(()), [guard])
    first = guard.report.incidents[0]
    assert (first.reason, first.step) == ("initial_state", None) and "out/bias" in first.message
    assert guard.report.outcome == "stopped"


def test_infinities_that_belong_to_the_model_are_no_reason_to_stop():
    keras.utils.set_random_seed(1)

    class Masked(keras.layers.Layer):
        def build(self, shape):
            mask = np.array([0, 0, 0, 0, 0, -np.inf], "float32")
            self.mask = self.add_weight(shape=(6,), initializer=lambda s, dtype: mask, trainable=False, name="mask")

        def call(self, x):
            return keras.ops.softmax(x + self.mask)

    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(1)(Masked()(inputs)))
    model.compile("adam", "mse", jit_compile=False)
    world = worlds.World(model, *worlds.data())
    guard = ng.NanGuardCallback()
    history = worlds.train(world, world.without(()), [Watch(), guard]).history
    assert history["skipped_steps"] == [0.0, 0.0] and guard.report.outcome == "completed"


def test_a_nan_metric_is_mentioned_and_no_incident():
    world = small()
    nan_metric = lambda y_true, y_pred: keras.ops.log(keras.ops.sum(y_true) * 0 - 1)
    nan_metric.__name__ = "nan_metric"
    world.model.compile("sgd", "mse", metrics=[nan_metric], jit_compile=False)
    guard = ng.NanGuardCallback()
    history = worlds.train(world, world.without(()), [guard]).history
    assert history["skipped_steps"] == [0.0, 0.0] and not guard.report.incidents
    assert any("nan_metric" in note for note in guard.report.notes)


def test_validation_that_is_not_finite_is_an_incident_that_does_nothing():
    world = small()
    guard = ng.NanGuardCallback()
    bad = np.full((16, 6), np.nan, "float32")
    history = worlds.train(world, world.without(()), [guard], epochs=1, validation_data=(bad, world.y[:16])).history
    assert np.isnan(history["val_loss"][0]) and np.isfinite(history["loss"][0])
    assert [(i.action, i.reason) for i in guard.report.incidents] == [("mention", "validation")]


def test_a_healthy_run_asks_the_device_for_nothing_between_epochs(monkeypatch):
    world = small()
    guard = ng.NanGuardCallback()
    reads, in_epoch = [], []
    from keras_nanguard.backend.tensorflow import Memory
    from keras_nanguard.backend.tensorflow import StateCheck

    for owner, name in ((Memory, "read"), (StateCheck, "__call__")):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda self, original=original, name=name: (reads.append(name), original(self))[1])

    class Counts(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_begin(self, batch, logs=None):
            in_epoch.append(len(reads))

    worlds.train(world, world.without(()), [guard, ng.AdaptiveLRBackoff(), Counts()], epochs=1)
    assert len(set(in_epoch)) == 1
    assert len(reads) > in_epoch[-1]  # at the epoch's end it does look


def test_every_callback_sees_the_two_keys_whatever_its_place():
    for place in (0, 1):
        world, watch = small(), Watch()
        callbacks = [watch]
        callbacks.insert(place, ng.NanGuardCallback())
        worlds.train(world, world.with_bad(), callbacks, epochs=1)
        assert all({"grad_norm", "skipped_steps"} <= set(logs) for logs in watch.logs)
        assert [logs["skipped_steps"] for logs in watch.logs] == [0, 0, 1, 1, 1, 2, 2, 2]


def test_the_report_is_written_while_it_runs_and_at_the_end(tmp_path):
    path = tmp_path / "run.json"
    world = small()
    seen = []

    class Reads(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(json.loads(path.read_text())["outcome"])

    worlds.train(world, world.with_bad(), [ng.NanGuardCallback(report_path=path), Reads()], epochs=1)
    assert set(seen) == {"running"}
    report = ng.load_report(path)
    assert report.outcome == "completed" and report.totals["skipped"] == 2


def test_the_report_tells_of_an_exception(tmp_path):
    path = tmp_path / "run.json"
    world = small()

    def batches():
        for _ in range(4):  # Keras looks at the first two before it begins
            yield world.x[:16], world.y[:16]
        raise OSError("the disk is gone")

    guard = ng.NanGuardCallback(report_path=path)
    with pytest.raises(Exception, match="the disk is gone"):
        world.model.fit(batches(), verbose=0, shuffle=False, callbacks=[guard])
    assert guard.report.outcome == "raised" and ng.load_report(path).outcome == "raised"
    assert guard.report.totals["steps"] == 4


def test_a_report_that_can_no_longer_be_written_costs_no_training(tmp_path, capsys):
    path = tmp_path / "runs" / "run.json"
    world = small()

    class InTheWay(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if path.exists():
                path.unlink()
                path.parent.rmdir()
                path.parent.write_text("a file where the folder was")

    guard = ng.NanGuardCallback(report_path=path)
    history = world.model.fit(**world.with_bad(), batch_size=16, epochs=2, verbose=2, callbacks=[guard, InTheWay()]).history
    assert len(history["loss"]) == 2 and guard.report.totals["skipped"] == 4
    assert "could not be written" in guard.report.notes[0]
    assert capsys.readouterr().out.count("nanguard: The report could not be written") == 1


def test_a_report_that_cannot_be_written_from_the_start_is_an_error(tmp_path):
    (tmp_path / "runs").write_text("no folder")
    world = small()
    before = [v.numpy() for v in world.model.variables]
    with pytest.raises(OSError, match="The report could not be written"):
        worlds.train(world, world.without(()), [ng.NanGuardCallback(report_path=tmp_path / "runs" / "run.json")], epochs=1)
    for a, b in zip(before, world.model.variables):
        np.testing.assert_array_equal(a, b.numpy())
    assert not np.isnan(worlds.train(world, world.without(()), epochs=1).history["loss"]).any(), "the model is plain again"


def test_a_report_stays_that_of_its_run():
    world, first, second = small(), ng.NanGuardCallback(), ng.NanGuardCallback()
    worlds.train(world, world.with_bad(), [first], epochs=1)
    before = first.report
    worlds.train(world, world.with_bad(batches=(0, 1, 2)), [second], epochs=2)
    assert first.report.to_dict() == before.to_dict()
    assert (before.totals["skipped"], second.report.totals["skipped"]) == (2, 6)


def test_a_model_that_was_fitted_keeps_no_callback_alive():
    world, guard = small(), ng.NanGuardCallback()
    worlds.train(world, world.with_bad(), [guard], epochs=1)
    gone = weakref.ref(guard)
    del guard
    gc.collect()
    assert gone() is None


def test_without_skipping_bad_steps_are_applied_and_only_recorded(capsys):
    plain, world = small(), small()
    worlds.train(plain, plain.with_bad(), epochs=1)
    guard = ng.NanGuardCallback(ng.StepGuard(skip_nonfinite=False))
    world.model.fit(**world.with_bad(), batch_size=16, shuffle=False, verbose=2, callbacks=[guard])
    np.testing.assert_array_equal(weights(world.model)[0], weights(plain.model)[0])
    report = guard.report
    assert report.outcome == "completed" and report.totals["skipped"] == 0
    assert {incident.action for incident in report.incidents} == {"mention"}
    assert "the loss is not finite; applied all the same (skip_nonfinite=False)." in capsys.readouterr().out


def test_inside_a_block_of_steps_the_stop_is_at_the_step_that_exhausts_it():
    world = small(steps_per_execution=4)
    guard = ng.NanGuardCallback(max_consecutive_skips=2)
    worlds.train(world, world.with_bad(batches=(1, 2)), [guard], epochs=1)
    stop = guard.report.incidents[-1]
    assert (stop.action, stop.step, stop.batch) == ("stop", 2, 2) and guard.report.outcome == "stopped"


def test_a_train_step_placed_on_the_instance_is_guarded_and_stays():
    world = small()
    calls = []

    def train_step(data):
        calls.append(1)
        return keras.Model.train_step(world.model, data)

    world.model.train_step = train_step
    for _ in range(2):
        history = worlds.train(world, world.with_bad(), [ng.NanGuardCallback()], epochs=1).history
        assert history["skipped_steps"] == [2.0]
    assert calls and vars(world.model)["train_step"] is train_step


@pytest.mark.parametrize("eager", [False, True])
def test_a_poisonous_first_update_of_a_model_not_yet_built_is_undone(eager):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(3e38), "mse", run_eagerly=eager, jit_compile=False)
    x, y = worlds.data()
    guard = ng.NanGuardCallback()
    model.fit(x * 1e4, y, batch_size=16, verbose=0, callbacks=[guard])
    assert guard.report.outcome == "stopped" and guard.report.incidents[-1].reason == "update"
    assert all(np.isfinite(value).all() for value in weights(model))


def test_a_stop_says_where_nothing_was_good_from_the_start():
    world = small()
    world.model.layers[-1].bias.assign([np.nan])
    guard = ng.NanGuardCallback(raise_error=True)
    with pytest.raises(ng.NonFiniteTrainingError, match="Not finite from the start, and so still: out/bias") as raised:
        worlds.train(world, {k: None if v is None else np.tile(v, (3, 1)) for k, v in world.without(()).items()}, [guard], epochs=1)
    assert "last good" not in str(raised.value)
    assert guard.report.incidents[-1].reason == "initial_state" and "last good" not in str(guard.report)


def test_a_metric_that_is_not_finite_is_mentioned_once(capsys):
    world = small()

    @keras.saving.register_keras_serializable(package="tests")
    def broken(y_true, y_pred):
        return keras.ops.sum(y_pred) * float("nan")

    world.model.compile("adam", "mse", metrics=[broken], jit_compile=False)
    guard = ng.NanGuardCallback()
    world.model.fit(**world.without(()), batch_size=16, epochs=2, verbose=2, callbacks=[guard])
    assert guard.report.totals["skipped"] == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("nanguard:")]
    assert lines == ["nanguard: the metric 'broken' is not finite while the loss is; the steps are accepted."]


def test_the_first_incident_prints_one_line(capsys):
    world = small()
    world.model.fit(**world.with_bad(batches=(1, 2, 3, 4)), batch_size=16, shuffle=False, verbose=2, callbacks=[ng.NanGuardCallback()])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("nanguard:")]
    assert lines[0] == "nanguard: epoch 0, batch 1 (step 1): the loss is not finite; step skipped, weights unchanged."
    assert len(lines) == 2 and "3 more steps skipped" in lines[1]


def test_a_copy_has_the_settings_and_nothing_of_the_run():
    world = small()
    guard = ng.NanGuardCallback(max_consecutive_skips=4)
    worlds.train(world, world.with_bad(), [guard], epochs=1)
    other = copy.deepcopy(guard)
    assert other.get_config() == guard.get_config() and other.report.totals["steps"] == 0


def test_a_guard_that_is_not_in_use_raises():
    world = small()
    callbacks = keras.callbacks.CallbackList([ng.NanGuardCallback()], model=world.model)
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    with pytest.raises(RuntimeError, match="not the guarded one"):
        callbacks.on_train_batch_end(0, {"loss": 1.0})


@pytest.mark.parametrize("kind", [ng.NanGuardCallback, ng.AdaptiveLRBackoff])
def test_twice_in_a_list_is_an_error_and_loses_nothing(kind):
    world = small()
    before = weights(world.model)
    with pytest.raises(ValueError, match="twice"):
        worlds.train(world, world.without(()), [kind(), kind()])
    for one, other in zip(before, weights(world.model)):
        np.testing.assert_array_equal(one, other)
    assert "skipped_steps" in worlds.train(world, world.without(()), [kind()], epochs=1).history


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"step_guard": 3}, "StepGuard"),
        ({"max_consecutive_skips": 0}, "max_consecutive_skips"),
        ({"max_consecutive_skips": 2.5}, "max_consecutive_skips"),
        ({"report_path": 3}, "report_path"),
        ({"report_path": ""}, "must name a file"),
        ({"step_guard": None}, 'or "auto"'),
        ({"raise_error": "yes"}, "raise_error"),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ng.NanGuardCallback(**arguments)


def test_a_model_that_is_not_compiled_is_refused():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="not been compiled"):
        keras.callbacks.CallbackList([ng.NanGuardCallback()], model=model)


def test_a_second_guard_on_a_safe_model_is_refused():
    world = small(cls=ng.SafeModel)
    with pytest.raises(ValueError, match="one guard"):
        worlds.train(world, world.without(()), [ng.NanGuardCallback(ng.StepGuard(1.0))])


def test_the_number_of_a_clip_in_two_places_is_refused():
    world = small(keras.optimizers.SGD(0.1, clipnorm=1.0))
    with pytest.raises(ValueError, match="clipped twice"):
        worlds.train(world, world.without(()), [ng.NanGuardCallback(ng.StepGuard(1.0))])


def test_a_step_without_an_optimizer_is_refused():
    class Frozen(keras.Model):
        def call(self, x):
            return x

        def train_step(self, data):
            return {"loss": 0.0}

    model = Frozen()
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="calls no Keras optimizer"):
        model.fit(np.ones((4, 2), "float32"), np.ones((4, 2), "float32"), verbose=0, callbacks=[ng.NanGuardCallback()])


def test_one_huge_finite_target_is_skipped_where_the_optimizers_own_clip_overflows():
    for clip in ({"global_clipnorm": 1.0}, {"clipnorm": 1.0}):
        plain, guarded = (small(keras.optimizers.SGD(0.01, momentum=0.9, **clip), loss="mae") for _ in range(2))
        huge = lambda y_true, y_pred: keras.ops.mean(y_pred * y_true, axis=-1)
        for world in (plain, guarded):
            world.model.compile(keras.optimizers.SGD(0.01, momentum=0.9, **clip), huge, jit_compile=False)
        worlds.train(plain, plain.without((2,)))
        arguments = guarded.without(())
        arguments["y"] = arguments["y"].copy()
        arguments["y"][2 * worlds.BATCH] = 1e21
        guard = ng.NanGuardCallback()
        history = worlds.train(guarded, arguments, [guard]).history
        assert history["skipped_steps"] == [1.0, 1.0] and guard.report.incidents[0].reason == "gradient"
        worlds.assert_same_bits(worlds.state(guarded.model), worlds.state(plain.model))


def test_a_gradient_whose_square_overflows_is_not_by_itself_bad():
    huge = lambda y_true, y_pred: keras.ops.mean(y_pred * y_true, axis=-1)
    world = small(keras.optimizers.SGD(1e-25), loss=huge)
    arguments = world.without(())
    arguments["y"] = arguments["y"] * 0 + 1e21
    guard = ng.NanGuardCallback()
    assert worlds.train(world, arguments, [guard], epochs=1).history["skipped_steps"] == [0.0]
    assert 1e20 < guard.report.steps[-1].grad_norm < 1e22 and math.isfinite(guard.report.steps[-1].grad_norm)


def test_loss_scale_overflows_are_ordinary_and_nan_does_not_move_the_scale():
    keras.utils.set_random_seed(1)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=2.0**24)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, dtype="mixed_float16")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(hidden))
    model.compile(optimizer, "mse", jit_compile=False)
    world = worlds.World(model, *worlds.data())
    guard = ng.NanGuardCallback()
    history = worlds.train(world, world.without(()), [guard], epochs=3).history
    settled = float(optimizer.dynamic_scale.numpy())
    assert history["skipped_steps"] == [0.0] * 3 and not guard.report.incidents
    assert guard.report.totals["scale_overflows"] > 0 and 1.0 <= settled < 2.0**24
    worlds.train(world, world.with_bad(batches=range(8)), [ng.NanGuardCallback(max_consecutive_skips=100)], epochs=30)
    assert float(optimizer.dynamic_scale.numpy()) == settled


def test_nan_in_the_backward_pass_alone_does_not_drive_the_scale_below_one():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=8.0)
    root_at_zero = lambda y_true, y_pred: keras.ops.mean(keras.ops.sqrt(keras.ops.relu(y_pred - 1e6)), axis=-1)
    world = small(optimizer, loss=root_at_zero)
    before = weights(world.model)
    guard = ng.NanGuardCallback(max_consecutive_skips=100)
    worlds.train(world, world.without(()), [guard])
    assert float(optimizer.dynamic_scale.numpy()) == 1.0
    assert guard.report.totals["scale_overflows"] == 3 and guard.report.totals["skipped"] == 13
    for one, other in zip(before, weights(world.model)):
        np.testing.assert_array_equal(one, other)
