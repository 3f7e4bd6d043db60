"""`SafeModel` and `SafeTrainStep`: every form of class, every way in and out of a file."""

import copy
import pickle

import custom_steps
import keras
import numpy as np
import pytest
import worlds

import keras_nanguard as ng


@keras.saving.register_keras_serializable(package="tests")
class Mine(ng.SafeModel):
    """A user's subclass, used functionally."""


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("kind", custom_steps.KINDS)
@pytest.mark.parametrize("door", ["SafeModel", "callback"])
def test_a_train_step_of_ones_own_is_kept_and_guarded(kind, door, eager):
    compile = {"run_eagerly": eager, "jit_compile": custom_steps.STATELESS and not eager}
    plain = custom_steps.world(kind, keras.Model, **compile)
    worlds.train(plain, plain.without(worlds.BAD))
    guarded = custom_steps.world(kind, ng.SafeModel if door == "SafeModel" else keras.Model, **compile)
    guard = ng.NanGuardCallback()
    history = worlds.train(guarded, guarded.with_bad(), [guard] if door == "callback" else []).history
    assert history["skipped_steps"] == [2.0, 2.0] and np.isfinite(history["loss"]).all()
    worlds.assert_same_bits(worlds.state(guarded.model), worlds.state(plain.model))
    if door == "callback":
        assert guard.report.judged == "loss and gradients"


@pytest.mark.parametrize("kind", custom_steps.KINDS)
def test_each_update_clips_its_own_gradients_and_a_step_counts_once(kind):
    for bound, clipped in ((1e-6, 16), (1e6, 0)):
        world, guard = custom_steps.world(kind, keras.Model, jit_compile=False), ng.NanGuardCallback(ng.StepGuard(bound))
        worlds.train(world, world.without(()), [guard])
        assert guard.report.totals["clipped"] == clipped


def test_train_on_batch_returns_what_keras_returns():
    plain, safe = worlds.frozen_layers(), worlds.frozen_layers(ng.SafeModel)
    x, y = plain.x[:16], plain.y[:16]
    assert safe.model.train_on_batch(x, y) == plain.model.train_on_batch(x, y)
    assert safe.model.train_on_batch(x, y, return_dict=True) == plain.model.train_on_batch(x, y, return_dict=True)
    bad = safe.model.train_on_batch(np.full_like(x, np.nan), y)
    assert np.shape(bad) == () and np.isnan(bad)
    assert safe.model.train_on_batch(x, y) == plain.model.train_on_batch(x, y)


def test_train_on_batch_raises_where_the_update_itself_is_poisonous():
    safe = worlds.functional(ng.SafeModel, optimizer=lambda: keras.optimizers.SGD(3e38))
    with pytest.raises(ng.NonFiniteTrainingError, match="dense"):
        for _ in range(3):
            safe.model.train_on_batch(safe.x[:16] * 1e4, safe.y[:16])


def test_fit_raises_where_the_update_itself_is_poisonous():
    safe = worlds.functional(ng.SafeModel, optimizer=lambda: keras.optimizers.SGD(3e38))
    with pytest.raises(ng.NonFiniteTrainingError, match="NanGuardCallback"):
        worlds.train(safe, safe.without(()))


def test_a_direct_call_of_train_step_is_guarded():
    safe = worlds.functional(ng.SafeModel)
    before = worlds.state(safe.model)
    batch = keras.ops.convert_to_tensor(np.full((16, 6), np.nan, "float32")), keras.ops.convert_to_tensor(safe.y[:16])
    if custom_steps.STATELESS:
        state = safe.model._get_jax_state(trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True)
        logs, after = safe.model.train_step(state, batch)
        for old, new in zip(state, after):
            worlds.assert_same_bits([np.array(v) for v in new], [np.array(v) for v in old])
    else:
        logs = safe.model.train_step(batch)
        weights = len(safe.model.variables)
        worlds.assert_same_bits(worlds.state(safe.model)[:weights], before[:weights])
    assert set(logs) == {"loss", "mae"}


@pytest.mark.parametrize("cls", [ng.SafeModel, Mine])
def test_saved_loaded_pickled_and_copied_models_are_guarded_like_the_first(cls, tmp_path):
    world = worlds.functional(cls, step_guard=ng.StepGuard(7.0, window=32))
    worlds.train(world, world.without(()), epochs=1)
    world.model.save(tmp_path / "m.keras")
    copies = [keras.saving.load_model(tmp_path / "m.keras"), pickle.loads(pickle.dumps(world.model)), copy.deepcopy(world.model)]
    for model in copies:
        assert isinstance(model, cls) and model.step_guard == ng.StepGuard(7.0, window=32)
        other = worlds.World(model, world.x, world.y)
        before = [v.numpy() for v in model.variables]
        history = worlds.train(other, other.with_bad(batches=range(8)), epochs=1).history
        assert history["skipped_steps"] == [8.0]
        for one, v in zip(before, model.variables):
            np.testing.assert_array_equal(one, v.numpy())
    clone = keras.models.clone_model(world.model)
    assert isinstance(clone, cls)


def test_the_guard_is_absent_from_weights_and_they_fit_a_plain_model(tmp_path):
    plain, safe = worlds.functional(), worlds.functional(ng.SafeModel)
    worlds.train(safe, safe.with_bad(), epochs=1)
    safe.model.save_weights(tmp_path / "w.weights.h5")
    plain.model.optimizer.build(plain.model.trainable_variables)
    plain.model.load_weights(tmp_path / "w.weights.h5")
    for one, other in zip(plain.model.get_weights(), safe.model.get_weights()):
        np.testing.assert_array_equal(one, other)
    safe.model.set_weights(plain.model.get_weights())


def test_the_mixin_after_the_keras_class_is_refused():
    with pytest.raises(TypeError, match=r"class Wrong\(SafeTrainStep, Model\)"):
        type("Wrong", (keras.Model, ng.SafeTrainStep), {})


def test_a_list_of_layers_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match="keras.Sequential"):
        ng.SafeModel([keras.layers.Dense(1)])


@pytest.mark.parametrize(
    "arguments",
    [{"global_clipnorm": 0.0}, {"global_clipnorm": "auto"}, {"skip_nonfinite": 1}, {"spike_zscore": -1.0}, {"window": 8}],
)
def test_bad_settings_are_refused(arguments):
    (name, value), = arguments.items()
    with pytest.raises(ValueError, match=f"Received: {name}={value!r}"):
        ng.StepGuard(**arguments)


def test_compile_takes_a_step_guard_only():
    with pytest.raises(TypeError, match="StepGuard"):
        worlds.functional(ng.SafeModel, step_guard=1.0)
