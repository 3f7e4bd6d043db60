"""The two sound losses: values against a float64 oracle, gradients finite and right, and their life inside Keras."""

import doctest
import math
import pickle

import keras
import numpy as np
import pytest
from gradients import FLOATS
from gradients import WIDEST
from gradients import finite_difference
from gradients import value_and_gradient
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from keras.src.backend import set_keras_mask

import keras_nanguard.losses
from keras_nanguard.losses import BalancedBinaryCrossentropy
from keras_nanguard.losses import ClassCenterDistance

EPSILON = 1e-7
SATURATED = 1 - math.log(EPSILON)  # of a probability that is exactly wrong
CORPUS = settings(max_examples=60, deadline=None, derandomize=True)


# --- oracles ----------------------------------------------------------------------------------------------------------


def log_loss_oracle(y, p, w=None, from_logits=False):
    """Sum of the two class means of the log loss, averaged over the columns; an absent class adds nothing."""
    y, p = np.asarray(y, "float64"), np.asarray(p, "float64")
    w = np.ones_like(p) if w is None else np.broadcast_to(np.asarray(w, "float64"), p.shape)
    if p.ndim == 1:
        y, p, w = y[:, None], p[:, None], w[:, None]
    total = 0.0
    for column in range(p.shape[-1]):
        yc, pc, wc = (a[..., column].ravel() for a in (y, p, w))
        for of_true, members in ((pc if from_logits else pc, yc), (-pc if from_logits else 1 - pc, 1 - yc)):
            keep = wc * np.where(wc == 0, 0, members) > 0
            if keep.any():
                total += np.average(minus_log(of_true[keep], from_logits), weights=(wc * members)[keep])
    return total / p.shape[-1]


def minus_log(value, from_logits):
    if from_logits:
        return np.logaddexp(0, -value)
    inside = np.maximum(value, EPSILON)
    return np.where(value >= EPSILON, -np.log(inside), SATURATED - value / EPSILON)


def distance_oracle(y, p, w=None, margin=1.0):
    y, p = np.asarray(y, "float64"), np.asarray(p, "float64")
    w = np.ones_like(y) if w is None else np.broadcast_to(np.asarray(w, "float64"), y.shape)
    centers = []
    for label in (0, 1):
        keep = (y == label) & (w > 0)
        if not keep.any():
            return 0.0
        centers.append(np.average(p[keep], axis=0, weights=w[keep]))
    return max(margin - np.linalg.norm(centers[0] - centers[1]), 0.0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def pixels(shape=(2, 3, 4), channels=2, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, shape)
    y[0, 0, :2] = 0, 1
    return y, softmax(rng.normal(size=(*shape, channels)))


# --- BalancedBinaryCrossentropy: values -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (7, 1), (1,), (1, 1), (6, 3), (3, 5, 2)])
@pytest.mark.parametrize("from_logits", [False, True])
def test_value_is_that_of_the_oracle(shape, from_logits):
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, shape)
    p = rng.normal(size=shape) * 3 if from_logits else rng.uniform(0.01, 0.99, shape)
    value = BalancedBinaryCrossentropy(from_logits=from_logits)(y, p)
    np.testing.assert_allclose(value, log_loss_oracle(y, p, from_logits=from_logits), rtol=2e-6)


def test_on_a_healthy_batch_it_is_the_hand_written_loss():
    """Someone who replaces `bal_log_loss` finds the same numbers in the log."""
    y, p = np.array([1.0, 0, 0, 1, 0]), np.array([0.9, 0.2, 0.6, 0.4, 0.1])
    naive = -np.sum(y * np.log(p)) / 2 - np.sum((1 - y) * np.log(1 - p)) / 3
    np.testing.assert_allclose(BalancedBinaryCrossentropy()(y, p), naive, rtol=1e-6)


def test_twice_binary_crossentropy_when_the_classes_are_equal():
    y, p = [[1], [0], [1], [0]], [[0.9], [0.2], [0.6], [0.4]]
    twice = 2 * keras.losses.BinaryCrossentropy()(y, p)
    np.testing.assert_allclose(BalancedBinaryCrossentropy()(y, p), twice, rtol=1e-5)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("from_logits", [False, True])
def test_absent_class_leaves_the_mean_over_the_other(label, from_logits):
    loss = BalancedBinaryCrossentropy(from_logits=from_logits)
    y, scores = np.full(4, label), np.array([0.2, 0.4, 0.6, 0.9])
    value, gradient = value_and_gradient(lambda p: loss(y, p), scores)
    of_true = scores if label else (-scores if from_logits else 1 - scores)
    np.testing.assert_allclose(value, minus_log(of_true, from_logits).mean(), rtol=1e-6)
    assert np.all(np.isfinite(gradient)) and np.all(gradient != 0)


def test_soft_labels_belong_to_both_classes_in_part():
    y, p = np.array([0.9, 0.1, 0.5]), np.array([0.8, 0.3, 0.6])
    expected = -np.sum(y * np.log(p)) / 1.5 - np.sum((1 - y) * np.log(1 - p)) / 1.5
    np.testing.assert_allclose(BalancedBinaryCrossentropy()(y, p), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint8", "float16", "float64"])
def test_labels_of_any_dtype(dtype):
    y, p = np.array([1, 0, 0]), np.array([0.7, 0.2, 0.4])
    np.testing.assert_allclose(BalancedBinaryCrossentropy()(y.astype(dtype), p), log_loss_oracle(y, p), rtol=1e-6)


@pytest.mark.parametrize("y_shape, p_shape", [((4,), (4, 1)), ((4, 1), (4,)), ((4, 1), (4, 1))])
def test_a_last_axis_of_one_may_be_lacking(y_shape, p_shape):
    y, p = np.array([1, 0, 0, 1]), np.array([0.7, 0.2, 0.4, 0.1])
    value = BalancedBinaryCrossentropy()(y.reshape(y_shape), p.reshape(p_shape))
    np.testing.assert_allclose(value, log_loss_oracle(y, p), rtol=1e-6)


def test_columns_are_balanced_each_by_itself():
    """A label that no row of the batch has does not disturb the others."""
    y = np.array([[1, 0], [0, 0], [0, 0]])
    p = np.array([[0.8, 0.1], [0.3, 0.2], [0.1, 0.3]])
    first, second = log_loss_oracle(y[:, 0], p[:, 0]), log_loss_oracle(y[:, 1], p[:, 1])
    np.testing.assert_allclose(BalancedBinaryCrossentropy()(y, p), (first + second) / 2, rtol=1e-6)


# --- BalancedBinaryCrossentropy: gradients ----------------------------------------------------------------------------


@pytest.mark.parametrize("from_logits", [False, True])
def test_gradient_is_right(from_logits):
    rng = np.random.default_rng(2)
    y, w = rng.integers(0, 2, (6, 2)), rng.uniform(0.1, 2, (6, 1))
    p = rng.normal(size=(6, 2)) * 4 if from_logits else rng.uniform(0.05, 0.95, (6, 2))
    loss = BalancedBinaryCrossentropy(from_logits=from_logits, dtype=WIDEST)
    _, gradient = value_and_gradient(lambda x: loss(y, x, w), p, WIDEST)
    expected = finite_difference(lambda x: log_loss_oracle(y, x, w, from_logits), p)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("label, p", [(0, 1.0), (1, 0.0)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_wrongly_saturated_probability_goes_on_learning(label, p, dtype):
    """The seed case: 1 - 1e-10 is 1 in float32, so a clip at 1e-10 does nothing; below a clip nothing is learned."""
    loss = BalancedBinaryCrossentropy()
    value, gradient = value_and_gradient(lambda x: loss([label, 1 - label], x), [p, 0.5], dtype)
    epsilon = 2**-12 if dtype == "float16" else EPSILON
    np.testing.assert_allclose(value, 1 - math.log(epsilon) + math.log(2), rtol=1e-5)
    slopes = np.array([1 / epsilon, -2]) * (1 if label == 0 else -1)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-2 if dtype == "bfloat16" else 1e-5)


@pytest.mark.parametrize("label", [0, 1])
def test_rightly_saturated_probability_costs_nothing(label):
    loss = BalancedBinaryCrossentropy()
    value, gradient = value_and_gradient(lambda x: loss([label, label], x), [float(label)] * 2)
    assert value == 0
    assert np.all(np.isfinite(gradient))


def test_the_tangent_joins_the_logarithm():
    """Value and slope are continuous at epsilon, and grow on towards 0 and beyond."""
    loss = BalancedBinaryCrossentropy(epsilon=0.01, dtype=WIDEST)
    gap, rtol = (1e-12, 1e-9) if WIDEST == "float64" else (1e-8, 1e-5)
    below, slope_below = value_and_gradient(lambda x: loss([1], x), [0.01 - gap], WIDEST)
    above, slope_above = value_and_gradient(lambda x: loss([1], x), [0.01 + gap], WIDEST)
    assert below > above
    np.testing.assert_allclose(below, above, rtol=rtol)
    np.testing.assert_allclose(slope_below, slope_above, rtol=rtol)
    assert float(loss([1], [-0.5])) > float(loss([1], [0.0])) > float(loss([1], [0.005])) > above


@pytest.mark.parametrize("logit", [1e4, -1e4, 3e38, -3e38])
def test_logits_are_exact_at_any_size(logit):
    loss = BalancedBinaryCrossentropy(from_logits=True)
    for label in (0, 1):
        value, gradient = value_and_gradient(lambda x, label=label: loss([label], x), [logit])
        wrong = (logit > 0) != (label == 1)
        np.testing.assert_allclose(value, abs(np.float32(logit)) if wrong else 0, rtol=1e-6)
        np.testing.assert_allclose(gradient, [np.sign(logit) if wrong else 0])


def test_saturated_sigmoid_layer_goes_on_learning():
    """Keras keeps the logits of a sigmoid's output, and the loss is taken from them; JAX's traced code has no place for them."""
    layer = keras.layers.Dense(1, activation="sigmoid", kernel_initializer="ones")
    x, y = np.array([[200.0], [-1.0]], "float32"), np.array([[0], [1]])
    layer.build(x.shape)
    loss = BalancedBinaryCrossentropy()
    value, gradient = value_and_gradient(lambda x: loss(y, layer(x)), x)
    of_saturated, slope = (SATURATED, 0.0) if keras.config.backend() == "jax" else (200.0, 1.0)
    np.testing.assert_allclose(value, of_saturated + np.log1p(np.e), rtol=1e-6)
    np.testing.assert_allclose(gradient[0], slope)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("from_logits", [False, True])
def test_large_half_precision_batches_do_not_overflow(dtype, from_logits):
    """5,000 rows of loss 17 are beyond float16; the sums are wider than that, whatever the dtype of the result."""
    y, p = np.arange(5000) % 2, np.full(5000, -20.0 if from_logits else 1e-3)
    for loss_dtype in ("float32", dtype):
        loss = BalancedBinaryCrossentropy(from_logits=from_logits, dtype=loss_dtype)
        value, gradient = value_and_gradient(lambda x, loss=loss: loss(y, x), p, dtype)
        np.testing.assert_allclose(value, log_loss_oracle(y, p, from_logits=from_logits), rtol=1e-2)
        assert np.all(np.isfinite(gradient))


@CORPUS
@given(data=st.data(), n=st.integers(1, 6), from_logits=st.booleans())
def test_finite_and_right_whatever_comes(data, n, from_logits):
    edges = [-1e4, -30.0, 0.0, 30.0, 1e4] if from_logits else [0.0, 1.0, 1e-10, 1e-7, 0.5]
    inside = st.floats(-50, 50, width=32) if from_logits else st.floats(0, 1, width=32)
    y = data.draw(st.lists(st.sampled_from([0, 1]), min_size=n, max_size=n))
    p = data.draw(st.lists(st.sampled_from(edges) | inside, min_size=n, max_size=n))
    w = data.draw(st.none() | st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=n, max_size=n))
    p = np.array(p, "float32")
    loss = BalancedBinaryCrossentropy(from_logits=from_logits)
    value, gradient = value_and_gradient(lambda x: loss(y, x, w), p)
    np.testing.assert_allclose(value, log_loss_oracle(y, p, w, from_logits), rtol=1e-5, atol=1e-6)
    assert np.all(np.isfinite(gradient))
    toward_truth = np.where(np.array(y) == 1, -gradient, gradient)
    assert np.all(toward_truth >= 0), "a step down the gradient never moves a row away from its label"
    counted = np.ones(n, bool) if w is None else np.array(w) > 0
    if not from_logits:
        assert np.all(gradient[counted] != 0), "every row that counts goes on learning"
    assert np.all(gradient[~counted] == 0)


# --- weights and masks ------------------------------------------------------------------------------------------------


def with_mask(tensor, mask):
    """`tensor` as a layer with mask support hands it to the loss."""
    tensor = keras.ops.convert_to_tensor(tensor)
    set_keras_mask(tensor, keras.ops.convert_to_tensor(mask))
    return tensor


@pytest.mark.parametrize("shape", [(4,), (4, 1), ()])
def test_sample_weights_enter_the_class_means(shape):
    y, p = np.array([1, 1, 0, 0]), np.array([0.9, 0.4, 0.3, 0.6])
    w = np.array([1.0, 3.0, 0.5, 0.0]) if shape else np.array(2.0)
    value = BalancedBinaryCrossentropy()(y[:, None], p[:, None], w.reshape(shape))
    np.testing.assert_allclose(value, log_loss_oracle(y, p, w), rtol=1e-6)


def test_class_weights_cancel():
    y, p = np.array([1, 1, 0, 0]), np.array([0.9, 0.4, 0.3, 0.6])
    loss = BalancedBinaryCrossentropy()
    np.testing.assert_allclose(loss(y, p, np.where(y == 1, 7.0, 2.0)), loss(y, p), rtol=1e-6)


def test_weight_zero_is_a_row_that_is_not_there():
    y, p, w = np.array([1, 1, 0, 0]), np.array([0.9, 0.4, 0.3, 0.6]), np.array([1.0, 0, 1, 1])
    np.testing.assert_allclose(
        BalancedBinaryCrossentropy()(y, p, w), BalancedBinaryCrossentropy()(y[w > 0], p[w > 0]), rtol=1e-6
    )


def test_class_without_weight_is_absent():
    y, p = np.array([1, 0, 0]), np.array([0.9, 0.3, 0.6])
    np.testing.assert_allclose(
        BalancedBinaryCrossentropy()(y, p, [0.0, 1.0, 1.0]), BalancedBinaryCrossentropy()(y[1:], p[1:]), rtol=1e-6
    )


def test_batch_without_any_weight_is_zero():
    for loss, y, p in (
        (BalancedBinaryCrossentropy(), [1, 0], [0.0, 1.0]),
        (ClassCenterDistance(), *pixels()),
    ):
        value, gradient = value_and_gradient(lambda x, loss=loss, y=y: loss(y, x, np.zeros(2)), p)
        assert value == 0
        assert np.all(gradient == 0)


@pytest.mark.parametrize("from_logits", [False, True])
def test_nan_labels_and_predictions_without_weight_reach_nothing(from_logits):
    loss = BalancedBinaryCrossentropy(from_logits=from_logits)
    y, w = np.array([1, 0, np.nan, 1]), np.array([1.0, 2.0, 0.0, 0.0])
    value, gradient = value_and_gradient(lambda x: loss(y, x, w), [0.7, 0.2, 0.5, np.nan])
    clean, clean_gradient = value_and_gradient(lambda x: loss(y[:2], x, w[:2]), [0.7, 0.2])
    np.testing.assert_allclose(value, clean, rtol=1e-6)
    np.testing.assert_allclose(gradient, [*clean_gradient, 0, 0], rtol=1e-6)


def test_nan_label_with_weight_is_shown():
    """Nothing is hidden: what the user did not mask must reach the guard."""
    assert math.isnan(float(BalancedBinaryCrossentropy()([np.nan, 0.0], [0.5, 0.5])))
    assert math.isnan(float(ClassCenterDistance()([[[np.nan, 0.0, 1.0]]], np.full((1, 1, 3, 2), 0.5))))


@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 2.0, 0.0]])
def test_mask_of_the_predictions(weights):
    y, p, mask = np.array([1, np.nan, 0, 0]), np.array([0.9, 0.4, 0.3, 0.6]), np.array([True, False, True, True])
    loss = BalancedBinaryCrossentropy()
    value, gradient = value_and_gradient(lambda x: loss(y, with_mask(x, mask), weights), p)
    kept = None if weights is None else np.array(weights)[mask]
    np.testing.assert_allclose(value, log_loss_oracle(y[mask], p[mask], kept), rtol=1e-6)
    assert np.all(np.isfinite(gradient)) and gradient[1] == 0


def test_mask_per_time_step():
    rng = np.random.default_rng(3)
    y, p = rng.integers(0, 2, (2, 4, 1)).astype("float64"), rng.uniform(0.1, 0.9, (2, 4, 1))
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0]], bool)
    y[~mask] = np.nan
    value = BalancedBinaryCrossentropy()(y, with_mask(p, mask))
    np.testing.assert_allclose(value, log_loss_oracle(y[mask], p[mask]), rtol=1e-6)


def test_pixel_mask_and_weights():
    y, p = pixels()
    w = np.random.default_rng(4).uniform(0, 1, y.shape)
    mask = np.ones(y.shape, bool)
    mask[:, 1] = False
    y = np.where(mask, y, np.nan)
    loss = ClassCenterDistance()
    for weights in (w, w[..., None]):
        value, gradient = value_and_gradient(lambda x, weights=weights: loss(y, with_mask(x, mask), weights), p)
        np.testing.assert_allclose(value, distance_oracle(y, p, w * mask), rtol=1e-6)
        assert np.all(np.isfinite(gradient)) and np.all(gradient[:, 1] == 0)
    value = loss(np.nan_to_num(y), p, [1.0, 0.0])
    np.testing.assert_allclose(value, distance_oracle(np.nan_to_num(y)[:1], p[:1]), rtol=1e-6)


# --- ClassCenterDistance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 3, 4), (5, 3), (2, 2, 3, 2)])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("last_axis", [False, True])
def test_distance_is_that_of_the_oracle(shape, channels, last_axis):
    rng = np.random.default_rng(5)
    y, p = rng.integers(0, 2, shape), rng.uniform(0, 1, (*shape, channels))
    y.flat[:2] = 0, 1
    for margin in (0.05, 1.0, 3.0):
        value = ClassCenterDistance(margin=margin)(y[..., None] if last_axis else y, p)
        np.testing.assert_allclose(value, distance_oracle(y, p, margin=margin), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32"])
def test_masks_of_any_dtype(dtype):
    y, p = pixels()
    np.testing.assert_allclose(ClassCenterDistance()(y.astype(dtype), p), distance_oracle(y, p), rtol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_from_logits_is_the_distance_of_the_probabilities(channels):
    rng = np.random.default_rng(6)
    y, x = pixels()[0], rng.normal(size=(2, 3, 4, channels)) * 3
    p = 1 / (1 + np.exp(-x)) if channels == 1 else softmax(x)
    np.testing.assert_allclose(ClassCenterDistance(from_logits=True)(y, x), distance_oracle(y, p), rtol=1e-5)


@pytest.mark.parametrize("from_logits", [False, True])
def test_distance_gradient_is_right(from_logits):
    y, p = pixels()
    x = np.log(p) if from_logits else p
    loss = ClassCenterDistance(margin=1.5, from_logits=from_logits, dtype=WIDEST)
    _, gradient = value_and_gradient(lambda x: loss(y, x), x, WIDEST)
    expected = finite_difference(lambda x: distance_oracle(y, softmax(x) if from_logits else x, margin=1.5), x)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_batch_is_zero_with_zero_gradient(label):
    _, p = pixels()
    loss = ClassCenterDistance()
    value, gradient = value_and_gradient(lambda x: loss(np.full((2, 3, 4), label), x), p)
    assert value == 0
    assert np.all(gradient == 0)


def test_an_image_of_one_class_counts_in_its_batch():
    """The centres are those of the batch."""
    y, p = pixels()
    y[1] = 1
    np.testing.assert_allclose(ClassCenterDistance()(y, p), distance_oracle(y, p), rtol=1e-6)
    _, gradient = value_and_gradient(lambda x: ClassCenterDistance()(y, x), p)
    assert np.all(gradient[1] != 0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_coinciding_centers_come_apart(dtype, channels):
    """The value is the margin; a small step down the gradient lowers it, at the rate that the gradient promises."""
    y, _ = pixels()
    loss = ClassCenterDistance()
    flat = np.full((2, 3, 4, channels), 0.5)
    value, gradient = value_and_gradient(lambda x: loss(y, x), flat, dtype)
    assert value == 1.0
    assert np.all(np.isfinite(gradient))
    zero, one = gradient[y == 0].sum(0), gradient[y == 1].sum(0)
    np.testing.assert_allclose(np.linalg.norm(zero), 1.0, rtol=1e-2)
    np.testing.assert_allclose(zero, -one, rtol=1e-2)
    moved = flat - 0.1 * gradient
    np.testing.assert_allclose(distance_oracle(y, moved), 1.0 - 0.1 * np.sum(gradient**2), rtol=1e-2)


@pytest.mark.parametrize("gap", [1e-12, 1e-25, 1e-36])
def test_almost_coinciding_centers(gap):
    """Squares that underflow float32 do not make a distance of 0, nor a gradient of NaN."""
    y = np.array([[[0, 1]]])
    p = np.array([[[[gap, 0.0], [0.0, 2 * gap]]]])
    _, gradient = value_and_gradient(lambda x: ClassCenterDistance()(y, x), p)
    np.testing.assert_allclose(gradient[0, 0, 0], -np.array([1, -2]) / np.sqrt(5), rtol=1e-5)
    np.testing.assert_allclose(gradient[0, 0, 1], np.array([1, -2]) / np.sqrt(5), rtol=1e-5)


def test_centers_that_are_apart_are_left_alone():
    y = np.array([[[0, 1]]])
    value, gradient = value_and_gradient(lambda x: ClassCenterDistance()(y, x), [[[[1.0, 0.0], [0.0, 1.0]]]])
    assert value == 0
    assert np.all(gradient == 0)


@CORPUS
@given(data=st.data(), n=st.integers(1, 3), channels=st.integers(1, 3), from_logits=st.booleans())
def test_distance_finite_and_right_whatever_comes(data, n, channels, from_logits):
    shape = (n, 1, 2)
    size = n * 2
    edges = st.sampled_from([-1e4, 0.0, 1e4] if from_logits else [0.0, 0.5, 1.0])
    inside = st.floats(-5, 5, width=32) if from_logits else st.floats(0, 1, width=32)
    y = np.array(data.draw(st.lists(st.sampled_from([0, 1]), min_size=size, max_size=size))).reshape(shape)
    x = data.draw(st.lists(edges | inside, min_size=size * channels, max_size=size * channels))
    x = np.array(x, "float32").reshape(*shape, channels)
    w = data.draw(st.none() | st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=size, max_size=size))
    w = None if w is None else np.array(w).reshape(shape)
    loss = ClassCenterDistance(margin=1.3, from_logits=from_logits)
    value, gradient = value_and_gradient(lambda x: loss(y, x, w), x)
    p = x.astype("float64")
    if from_logits:
        p = softmax(p) if channels > 1 else 1 / (1 + np.exp(np.minimum(-p, 700)))
    np.testing.assert_allclose(value, distance_oracle(y, p, w, margin=1.3), rtol=1e-5, atol=1e-6)
    assert np.all(np.isfinite(gradient))


# --- what the docstrings say of the usual forms -----------------------------------------------------------------------


def naive_log_loss(y, p):
    ops = keras.ops
    y, p = ops.cast(y, "float32"), ops.clip(p, 1e-10, 1 - 1e-10)
    return -ops.sum(y * ops.log(p)) / ops.sum(y) - ops.sum((1 - y) * ops.log(1 - p)) / ops.sum(1 - y)


def naive_distance(y, p):
    ops = keras.ops
    zero, one = ops.cast(y == 0, "float32")[..., None], ops.cast(y == 1, "float32")[..., None]
    gap = ops.sum(zero * p, (0, 1, 2)) / ops.sum(zero) - ops.sum(one * p, (0, 1, 2)) / ops.sum(one)
    return ops.maximum(1.0 - ops.sqrt(ops.sum(ops.square(gap))), 0.0)


@pytest.mark.parametrize("y", [[0, 0], [1, 1], [0, 1], [1, 0]])
def test_the_usual_log_loss_breaks_where_the_docstring_says(y):
    """A class is absent; a prediction is 1 wrongly, or rightly."""
    p = [0.2, 0.4] if y[0] == y[1] else [1.0, 0.5]
    value, gradient = value_and_gradient(lambda x: naive_log_loss(np.array(y), x), p)
    assert not np.isfinite(value) and not np.all(np.isfinite(gradient))
    value, gradient = value_and_gradient(lambda x: BalancedBinaryCrossentropy()(y, x), p)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


def test_below_its_clip_the_usual_log_loss_stops_learning():
    _, gradient = value_and_gradient(lambda x: naive_log_loss(np.array([1, 0]), x), [0.0, 0.5])
    assert gradient[0] == 0


@pytest.mark.parametrize("y", [[[[1, 1]]], [[[0, 0]]], [[[0, 1]]]])
def test_the_usual_distance_breaks_where_the_docstring_says(y):
    """With both classes there, the value is a harmless 1 and only the gradient is NaN."""
    flat = np.full((1, 1, 2, 2), 0.5)
    value, gradient = value_and_gradient(lambda x: naive_distance(np.array(y), x), flat)
    assert np.isnan(value) or value == 1.0
    assert np.all(np.isnan(gradient))


# --- life inside Keras ------------------------------------------------------------------------------------------------


def classifier(**dense):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1, **dense)])
    return model


def fcn(activation="softmax"):
    return keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Conv2D(2, 3, padding="same", activation=activation)])


def rows(n=16):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(n, 3)).astype("float32")
    return x, (x.sum(1) > 0).astype("float32")


def images(n=6):
    rng = np.random.default_rng(8)
    x = rng.normal(size=(n, 4, 4, 1)).astype("float32")
    return x, (x[..., 0] > 0).astype("int32")


CASES = [
    (BalancedBinaryCrossentropy, {"from_logits": True, "epsilon": 1e-6}, classifier, rows),
    (ClassCenterDistance, {"margin": 0.7, "from_logits": True}, lambda: fcn(None), images),
]


@pytest.mark.parametrize("cls, options, model, data", CASES)
def test_config_round_trip(cls, options, model, data):
    loss = cls(**options, reduction="sum", name="mine", dtype="float64")
    for copy in (
        cls.from_config(loss.get_config()),
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss)),
        keras.losses.get(keras.losses.serialize(loss)),
        pickle.loads(pickle.dumps(loss)),
    ):
        assert type(copy) is cls
        assert copy.get_config() == loss.get_config()
        assert {**options, "reduction": "sum", "name": "mine", "dtype": "float64"} == copy.get_config()


@pytest.mark.parametrize("cls, options, model, data", CASES)
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # keras 3.15 with numpy 2.4
def test_saved_and_loaded_with_the_model(cls, options, model, data, tmp_path):
    x, y = data()
    net = model()
    net.compile("sgd", cls(**options))
    net.fit(x, y, verbose=0)
    net.save(tmp_path / "net.keras")
    again = keras.saving.load_model(tmp_path / "net.keras")
    assert type(again.loss) is cls and again.loss.get_config() == net.loss.get_config()
    assert again.evaluate(x, y, verbose=0) == net.evaluate(x, y, verbose=0)


@pytest.mark.parametrize("cls, options, model, data", CASES)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_learns_past_batches_of_one_class(cls, options, model, data, jit_compile):
    x, y = data(64)
    y[:16] = 1
    keras.utils.set_random_seed(0)
    net = model()
    net.compile(keras.optimizers.Adam(0.02), cls(**options), jit_compile=jit_compile)
    history = net.fit(x, y, batch_size=8, epochs=6, shuffle=False, verbose=0).history["loss"]
    assert np.all(np.isfinite(history)) and history[-1] < 0.9 * history[0]
    assert all(np.all(np.isfinite(w)) for w in net.get_weights())


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_fit_in_mixed_precision(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        for cls, options, model, data in CASES:
            x, y = data(32)
            net = model()
            net.compile(keras.optimizers.Adam(0.01), cls(**options))
            history = net.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"]
            assert np.all(np.isfinite(history)) and history[-1] < history[0]
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_logs_the_loss_of_the_batch(run_eagerly):
    """What Keras reports with sample weights is the loss of the oracle, in graphs of unknown batch size too."""
    x, y = rows()
    w = np.linspace(0, 1, 16)
    net = classifier(activation="sigmoid")
    net.compile("sgd", BalancedBinaryCrossentropy(), run_eagerly=run_eagerly)
    expected = log_loss_oracle(y[:, None], net.predict(x, verbose=0), w[:, None])
    np.testing.assert_allclose(net.evaluate(x, y, batch_size=16, sample_weight=w, verbose=0), expected, rtol=1e-5)
    np.testing.assert_allclose(net.train_on_batch(x, y, sample_weight=w), expected, rtol=1e-5)


def test_mask_of_a_layer_reaches_the_loss():
    x = np.array([[1, 2, 0, 0], [3, 1, 2, 0]])
    y = np.array([[1, 0, np.nan, np.nan], [1, 1, 0, np.nan]])[..., None]
    net = keras.Sequential(
        [
            keras.layers.Embedding(4, 3, mask_zero=True),
            keras.layers.SimpleRNN(4, return_sequences=True),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    net.compile(keras.optimizers.SGD(0.1), BalancedBinaryCrossentropy())
    p = net.predict(x, verbose=0)
    kept = ~np.isnan(y)
    np.testing.assert_allclose(net.train_on_batch(x, y), log_loss_oracle(y[kept], p[kept]), rtol=1e-5)
    assert all(np.all(np.isfinite(w)) for w in net.get_weights())


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean", "mean_with_sample_weight"])
def test_the_means_agree(reduction):
    y, p, w = [1, 0, 0], [0.3, 0.2, 0.9], [1.0, 2.0, 0.5]
    value = BalancedBinaryCrossentropy(reduction=reduction)(y, p, w)
    np.testing.assert_allclose(value, log_loss_oracle(y, p, w), rtol=1e-6)
    y, p = pixels()
    np.testing.assert_allclose(ClassCenterDistance(reduction=reduction)(y, p), distance_oracle(y, p), rtol=1e-6)


@pytest.mark.parametrize("reduction", [None, "none"])
def test_unreduced_values_have_the_loss_as_their_mean(reduction):
    y, p = np.array([[1, 0], [0, 1], [0, 1]]), np.array([[0.3, 0.2], [0.9, 0.4], [0.2, 0.7]])
    values = keras.ops.convert_to_numpy(BalancedBinaryCrossentropy(reduction=reduction)(y, p))
    assert values.shape == (3,)
    np.testing.assert_allclose(values.mean(), log_loss_oracle(y, p), rtol=1e-6)
    np.testing.assert_allclose(BalancedBinaryCrossentropy(reduction="sum")(y, p), values.sum(), rtol=1e-6)
    y, p = pixels()
    values = keras.ops.convert_to_numpy(ClassCenterDistance(reduction=reduction)(y, p))
    np.testing.assert_allclose(values, [distance_oracle(y, p)] * 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [None, *FLOATS, "mixed_float16"])
def test_dtype_of_the_result(dtype):
    expected = {None: "float32", "mixed_float16": "float16"}.get(dtype, dtype)
    values = BalancedBinaryCrossentropy(dtype=dtype)([1, 0], [0.2, 0.4]), ClassCenterDistance(dtype=dtype)(*pixels())
    assert [keras.backend.standardize_dtype(value.dtype) for value in values] == [expected] * 2


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0, -1e-7, 0.5, 1, float("nan"), "1e-7", None, True])
def test_epsilon_is_checked(epsilon):
    with pytest.raises(ValueError, match=r"`epsilon` must be a float in .* Received: epsilon="):
        BalancedBinaryCrossentropy(epsilon=epsilon)


@pytest.mark.parametrize("margin", [0, -1.0, float("inf"), float("nan"), "1", None, True])
def test_margin_is_checked(margin):
    with pytest.raises(ValueError, match=r"`margin` must be a finite float > 0, .* Received: margin="):
        ClassCenterDistance(margin=margin)


@pytest.mark.parametrize("cls", [BalancedBinaryCrossentropy, ClassCenterDistance])
@pytest.mark.parametrize(
    "options, message",
    [
        ({"from_logits": "yes"}, "`from_logits` must be True .* Received: from_logits='yes'"),
        ({"from_logits": 1}, "Received: from_logits=1"),
        ({"reduction": "average"}, "Received: reduction=average"),
        ({"name": 3}, "`name` must be a string.* Received: name=3"),
        ({"dtype": "int32"}, "`dtype` must be a float dtype.* Received: dtype='int32'"),
    ],
)
def test_shared_options_are_checked(cls, options, message):
    with pytest.raises(ValueError, match=message):
        cls(**options)


@pytest.mark.parametrize("cls", [BalancedBinaryCrossentropy, ClassCenterDistance])
def test_options_are_keyword_only(cls):
    with pytest.raises(TypeError):
        cls(0.5, "sum")


@pytest.mark.parametrize("y, p", [((4,), (4, 2)), ((4, 2), (4, 3)), ((4,), (3,)), ((4, 1), (4, 3)), ((), ())])
def test_labels_that_do_not_fit_are_named(y, p):
    with pytest.raises(ValueError, match="`y_true` must have the shape of y_pred. Received: y_true with shape"):
        BalancedBinaryCrossentropy()(np.ones(y), np.full(p, 0.5))


@pytest.mark.parametrize("weights", [(3,), (4, 2), (1, 4), (4, 1, 2)])
def test_weights_that_do_not_fit_are_named(weights):
    with pytest.raises(ValueError, match="`sample_weight` must spread over the shape of the predictions. Received"):
        BalancedBinaryCrossentropy()(np.ones((4, 1)), np.full((4, 1), 0.5), np.ones(weights))


@pytest.mark.parametrize("y, p", [((2, 3, 4, 2), (2, 3, 4, 2)), ((4,), (4,)), ((2, 3), (2, 3, 4, 2))])
def test_one_hot_labels_are_refused_with_a_way_out(y, p):
    with pytest.raises(ValueError, match="one-hot labels go through argmax first. Received: y_true.shape="):
        ClassCenterDistance()(np.ones(y), np.full(p, 0.5))


def test_masks_of_another_size_are_named():
    with pytest.raises(ValueError, match=r"`y_true` must have the shape of y_pred\[..., 0\]. Received"):
        ClassCenterDistance()(np.ones((2, 3, 5)), np.full((2, 3, 4, 2), 0.5))


def test_the_examples_in_the_docstrings_run():
    result = doctest.testmod(keras_nanguard.losses)
    assert result.attempted >= 7 and result.failed == 0
