"""Losses of a whole batch that stay finite, in value and in gradient, where their usual form does not.

Both compare the classes *of a batch*, so the weights and the mask of its rows belong into the means over each class and
not into the reduction afterwards: a class whose rows all have weight 0 is a class that the batch does not have.
"""

import math
import numbers

import keras
from keras import ops
from keras.src.backend import get_keras_mask

# Probabilities nearer to 1 round to it, and a slope of 1e7 would be Inf.
_FLOAT16_EPSILON = 2.0**-12


class _Reduction(keras.losses.Loss):
    """Keras' own reduction (and its scaling for `tf.distribute`) of values that are computed already."""

    def call(self, y_true, y_pred):
        return y_pred


class _BatchLoss(keras.losses.Loss):
    """What the two losses share: options, weights and mask, and values whose mean is the loss of the batch."""

    def __init__(self, from_logits, reduction, name, dtype):
        if not isinstance(from_logits, bool):
            raise ValueError(
                "`from_logits` must be True (predictions are raw scores) or False (predictions are probabilities). "
                f"Received: from_logits={from_logits!r}"
            )
        if name is not None and not isinstance(name, str):
            raise ValueError(f"`name` must be a string, or None for a default. Received: name={name!r}")
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if self.dtype not in ("float16", "bfloat16", "float32", "float64"):
            raise ValueError(
                '`dtype` must be a float dtype such as "float32", a dtype policy, or None for Keras\' default. '
                f"Received: dtype={dtype!r}"
            )
        self.from_logits = from_logits
        # Sums over a batch overflow float16 and are coarse in bfloat16.
        self._wide = "float64" if self.dtype == "float64" else "float32"
        self._reduce = _Reduction(reduction=reduction, dtype=self._wide)

    def __call__(self, y_true, y_pred, sample_weight=None):
        with keras.name_scope(self.name):
            mask = get_keras_mask(y_pred)
            values = self.call(y_true, y_pred, sample_weight, mask)
            return ops.cast(self._reduce(values, values), self.dtype)

    def get_config(self):
        return {"from_logits": self.from_logits, "dtype": self.dtype, **super().get_config()}

    def _tensor(self, value):
        return ops.cast(ops.convert_to_tensor(value), self._wide)

    def _weights(self, sample_weight, mask, like):
        """One weight per element of `like`: the sample weight, and 0 where the mask is False."""
        weights = ops.ones_like(like)
        if sample_weight is not None:
            weights = weights * _aligned("sample_weight", self._tensor(sample_weight), like)
        if mask is not None:
            mask = _aligned("mask", ops.cast(ops.convert_to_tensor(mask), "bool"), like)
            weights = ops.where(mask, weights, 0.0)
        return weights


@keras.saving.register_keras_serializable(package="keras_nanguard")
class BalancedBinaryCrossentropy(_BatchLoss):
    """Binary log loss in which both classes of the batch weigh the same, however rare one of them is.

    The mean log loss over the rows of class 1 plus the mean log loss over the rows of class 0, counted in the batch at
    hand (under a distribution strategy: in the replica's part of it). Use it in place of a hand-written log loss with
    weights `1/n1` and `1/n0`, or where one class is so rare that `BinaryCrossentropy` learns to ignore it. On a batch
    with as many rows of either class it is twice `BinaryCrossentropy`.

    Args:
        from_logits: bool, default `False`: predictions are probabilities in [0, 1]. `True`: they are logits, and the
            loss is exact at any size of them. Prefer logits.
        epsilon: float in (0, 0.5), default 1e-7; for probabilities only. Where the probability of the true class is
            below it, `-log` goes on as its tangent: `-log(epsilon) + 1 - p / epsilon`. Float16 predictions raise it to
            2**-12, where a slope of 1e7 would be Inf.
        reduction: as in `keras.losses.Loss`, default `"sum_over_batch_size"`: the loss of the batch. The three kinds of
            mean are the same here, since the weights are in the class means already. `None` gives one value per row,
            whose mean is the loss of the batch; `"sum"` is their sum.
        name: string, default `"balanced_binary_crossentropy"`.
        dtype: dtype of the result, default `keras.config.floatx()`. Sums are taken in float32 at least.

    Call arguments:
        y_true: labels in [0, 1], of any dtype; between 0 and 1 a row belongs to both classes in part.
        y_pred: any float dtype; `(n,)` or `(n, 1)` for one label, `(n, k)` for k labels, each balanced by itself and
            then averaged; further axes, as in `(n, time, k)`, are counted as rows. Of labels and predictions, one may
            have a last axis of 1 that the other lacks.
        sample_weight: not negative; scalar, `(n,)`, `(n, 1)` or up to the shape of `y_pred`. A weight counts against
            the others *of its class*: one that is the same for all rows of a class (`class_weight`) changes nothing.
            The mask of `y_pred` counts as well; a row with weight 0, or masked out, is as if it were not in the batch,
            also if its label is NaN.

    Raises:
        ValueError: if an option is out of range, or (in the call) if shapes do not fit.

    Example:

    >>> loss = BalancedBinaryCrossentropy(from_logits=True)
    >>> round(float(loss([[1], [0], [0], [0]], [[2.0], [-1.0], [-1.0], [1.0]])), 4)
    0.7735
    >>> float(loss([[0], [0]], [[-200.0], [-120.0]]))  # no row of class 1: its term is 0
    0.0

    Where the usual form breaks, `-sum(y * log(p)) / n1 - sum((1 - y) * log(1 - p)) / n0` with `p` clipped to
    [1e-10, 1 - 1e-10]:

    * A class is not in the batch: `1 / n1` is Inf, and `Inf * 0` is NaN in the value and in every gradient. Here that
      class contributes 0, so that the mean over the other class is returned. A batch without any row that counts gives
      0, with gradient 0.
    * `p` is 1 and the label 0: `1 - 1e-10` rounds to 1 in float32, so nothing is clipped, `log(1 - p)` is -Inf and its
      gradient `-1 / 0`; and in the rows where `p` is 1 rightly, the factor `1 - y` makes `0 * Inf`, NaN. Here the value
      is `1 - log(epsilon)`, 17.12 by default, with a slope of `1 / epsilon`.
    * `p` is 0 and the label 1: the clip returns 1e-10 whatever `p` is, so its gradient is 0 and the row never learns
      again. Here the value is the same 17.12 and the slope is `-1 / epsilon`.

    A sigmoid that has saturated passes no gradient, whatever the loss. Where Keras keeps the logits of an activation
    with its output (`Dense(1, activation="sigmoid")`, on TensorFlow and torch), the loss is taken from them. JAX keeps
    them in eager code only, not in `fit`; use `from_logits=True` there.

    Source: the weights are those of King and Zeng, "Logistic Regression in Rare Events Data" (2001), for classes of
    equal prior; a term of 0 for an absent class as in deel-ai/deel-lip#28; the form from logits is that of
    `tf.nn.sigmoid_cross_entropy_with_logits`.
    """

    def __init__(
        self, from_logits=False, *, epsilon=1e-7, reduction="sum_over_batch_size",
        name="balanced_binary_crossentropy", dtype=None,
    ):
        super().__init__(from_logits, reduction, name, dtype)
        if isinstance(epsilon, bool) or not isinstance(epsilon, numbers.Real) or not 1e-37 <= epsilon < 0.5:
            raise ValueError(f"`epsilon` must be a float in [1e-37, 0.5), such as 1e-7. Received: epsilon={epsilon!r}")
        self.epsilon = float(epsilon)

    def get_config(self):
        return {"epsilon": self.epsilon, **super().get_config()}

    def call(self, y_true, y_pred, sample_weight=None, mask=None):
        """One value per row; their mean is the loss of the batch."""
        logits = None if self.from_logits else getattr(y_pred, "_keras_logits", None)
        from_logits = self.from_logits or logits is not None
        scores = ops.convert_to_tensor(y_pred if logits is None else logits)
        is_float16 = keras.backend.standardize_dtype(scores.dtype) == "float16"
        epsilon = max(self.epsilon, _FLOAT16_EPSILON) if is_float16 else self.epsilon
        scores, labels = self._tensor(scores), self._tensor(y_true)
        if len(labels.shape) == len(scores.shape) + 1 and labels.shape[-1] == 1:
            labels = ops.squeeze(labels, -1)
        elif len(scores.shape) == len(labels.shape) + 1 and scores.shape[-1] == 1:
            labels = ops.expand_dims(labels, -1)
        _check_shapes("y_true", labels, scores, "y_pred", exact=True)
        if len(scores.shape) == 1:
            labels, scores = ops.expand_dims(labels, -1), ops.expand_dims(scores, -1)

        weights = self._weights(sample_weight, mask, scores)
        labels = ops.where(weights == 0, 0.0, labels)
        epsilon = None if from_logits else epsilon
        terms = _term(weights * labels, scores, +1, epsilon) + _term(weights * (1.0 - labels), scores, -1, epsilon)
        *rows, columns = ops.shape(terms)
        # Not mean(): on torch Keras takes that of float64 in float32.
        return ops.sum(terms, axis=-1) * (ops.cast(math.prod(rows), self._wide) / ops.cast(columns, self._wide))


@keras.saving.register_keras_serializable(package="keras_nanguard")
class ClassCenterDistance(_BatchLoss):
    """`max(margin - d, 0)`, with `d` the distance between the mean predictions over the pixels of two classes.

    For segmentation into two classes: the mean prediction over all pixels of class 0 *in the batch* and the one over
    all pixels of class 1 are pushed at least `margin` apart. The centres are those of the batch (under a distribution
    strategy: of the replica's part of it), not of an image, so that an image of one class is of use too. The loss says
    which pixels belong together; which channel stands for which class it leaves open.

    Args:
        margin: float > 0, default 1.0. Softmax centres are at most sqrt(2) apart: with more, the loss is never 0.
        from_logits: bool, default `False`: the mean is taken of the predictions as they are. `True`: of their softmax
            over the last axis (of their sigmoid, if it has length 1).
        reduction: as in `keras.losses.Loss`, default `"sum_over_batch_size"`: the loss of the batch. `None` gives that
            loss once per image, `"sum"` the sum of those.
        name: string, default `"class_center_distance"`.
        dtype: dtype of the result, default `keras.config.floatx()`. Sums are taken in float32 at least.

    Call arguments:
        y_true: `(n, h, w)` or `(n, h, w, 1)`, bool, integer or float: 0 or 1 per pixel (a mask of 0 and 255 must be
            divided first); between 0 and 1 a pixel belongs to both classes in part.
        y_pred: `(n, h, w, channels)`, any float dtype; any number of axes between the first and the last.
        sample_weight: not negative; scalar, `(n,)`, or up to `(n, h, w)` or `(n, h, w, 1)`: the weight of an image or
            a pixel in the mean over its class. The mask of `y_pred` counts as well; what has weight 0, or is masked
            out, is as if it were not in the batch, also if its label is NaN.

    Raises:
        ValueError: if an option is out of range, or (in the call) if shapes do not fit.

    Example:

    >>> loss = ClassCenterDistance(margin=1.0)
    >>> y_true = [[[0, 1]]]
    >>> round(float(loss(y_true, [[[[0.8, 0.2], [0.5, 0.5]]]])), 4)
    0.5757
    >>> float(loss(y_true, [[[[0.5, 0.5], [0.5, 0.5]]]]))  # the centres coincide
    1.0
    >>> float(loss([[[1, 1]]], [[[[0.8, 0.2], [0.5, 0.5]]]]))  # no pixel of class 0
    0.0

    Where the usual form breaks, `maximum(margin - sqrt(sum(square(mean(p[y == 0], 0) - mean(p[y == 1], 0)))), 0)`:

    * A class is not in the batch, or its mask is empty: the mean of nothing is `0 / 0`, NaN in the value and in every
      gradient. Here there is no distance to speak of, and the loss is 0 with gradient 0.
    * The centres coincide, as they do while a network still gives the same answer everywhere: the slope of the square
      root at 0 is Inf, times the slope 0 of the square it is NaN, while the value is a harmless `margin`. Here the
      value is the same, and of the subgradients of the distance at 0 (all vectors up to length 1) one of length 1 is
      taken, so that the centres come apart: that of class 0 moves towards channel 0, that of class 1 towards channel
      1. (Of a single channel, the probability of class 1, centre 0 goes down and centre 1 up.)
    * The centres are so close that the squares underflow: the usual form returns `margin` and NaN again. Here the
      difference is scaled before it is squared, and value and gradient are exact.

    Source: the margin is that of the contrastive loss of Hadsell, Chopra and LeCun, "Dimensionality Reduction by
    Learning an Invariant Mapping" (2006); on the norm at 0, tensorflow/tensorflow#12071.
    """

    def __init__(
        self, margin=1.0, *, from_logits=False, reduction="sum_over_batch_size",
        name="class_center_distance", dtype=None,
    ):
        super().__init__(from_logits, reduction, name, dtype)
        if isinstance(margin, bool) or not isinstance(margin, numbers.Real) or not 0 < margin < math.inf:
            raise ValueError(f"`margin` must be a finite float > 0, such as 1.0. Received: margin={margin!r}")
        self.margin = float(margin)

    def get_config(self):
        return {"margin": self.margin, **super().get_config()}

    def call(self, y_true, y_pred, sample_weight=None, mask=None):
        """The loss of the batch, once per image."""
        scores, labels = self._tensor(y_pred), self._tensor(y_true)
        if len(labels.shape) == len(scores.shape) - 1:
            labels = ops.expand_dims(labels, -1)
        if len(scores.shape) < 2 or labels.shape[-1:] != (1,):
            raise ValueError(
                "ClassCenterDistance takes predictions of shape (batch, ..., channels) and labels 0 or 1 of shape "
                "(batch, ...) or (batch, ..., 1); one-hot labels go through argmax first. "
                f"Received: y_true.shape={tuple(y_true.shape)}, y_pred.shape={tuple(y_pred.shape)}"
            )
        _check_shapes("y_true", labels[..., 0], scores[..., 0], "y_pred[..., 0]", exact=True)

        weights = self._weights(sample_weight, mask, labels)
        labels = ops.where(weights == 0, 0.0, labels)
        scores = ops.where(weights == 0, 0.0, scores)
        if self.from_logits:
            scores = ops.sigmoid(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)
        axes = tuple(range(len(scores.shape) - 1))
        # Measured from one pixel, so that equal predictions have equal centres: as means they differ by rounding.
        scores = scores - ops.stop_gradient(scores[(slice(0, 1),) * len(axes)])
        center0, present0 = _mean(scores, weights * (1.0 - labels), axes)
        center1, present1 = _mean(scores, weights * labels, axes)
        distance = _norm(center0 - center1)
        # Selected, not maximum(): at a tie its gradient differs between backends.
        hinge = ops.where(distance >= self.margin, 0.0, self.margin - distance)
        return ops.broadcast_to(ops.where(ops.logical_and(present0, present1), hinge, 0.0), (ops.shape(scores)[0],))


def _term(weights, scores, sign, epsilon):
    """The rows' parts in the mean log loss of class 1 (`sign` +1) or 0 (-1); an `epsilon` of `None` means logits."""
    share = weights / _divisor(ops.sum(weights, axis=tuple(range(len(weights.shape) - 1)), keepdims=True))
    # Selected before the log loss, not after: 0 times the slope at NaN or Inf would be NaN.
    scores = ops.where(weights == 0, 0.0 if epsilon is None else 0.5, scores)
    if epsilon is None:
        return share * ops.softplus(-sign * scores)
    probability = scores if sign > 0 else 1.0 - scores
    inside = probability >= epsilon
    tangent = 1.0 - math.log(epsilon) - probability / epsilon
    return share * ops.where(inside, -ops.log(ops.where(inside, probability, epsilon)), tangent)


def _divisor(total):
    """`total`, or 1 where it is 0: what is divided by it is 0 there too."""
    return ops.where(total == 0, 1.0, total)


def _mean(values, weights, axes):
    """The weighted mean, and whether there was anything to take the mean of (it is 0 if not)."""
    total = ops.sum(weights)
    return ops.sum(weights * values, axis=axes) / _divisor(total), total != 0


def _norm(vector):
    """Euclidean norm; its gradient has unit length everywhere, at 0 towards channel 0 and away from channel 1."""
    scale = ops.stop_gradient(ops.max(ops.abs(vector)))
    scaled = vector / _divisor(scale)
    norm = scale * ops.sqrt(ops.where(scale == 0, 1.0, ops.sum(ops.square(scaled))))
    apart = (vector[0] - vector[1]) / math.sqrt(2.0) if vector.shape[0] > 1 else -vector[0]
    return ops.where(scale == 0, apart, norm)


def _aligned(name, value, like):
    """`value` with as many axes as `like`, so that it spreads over the trailing ones."""
    if len(value.shape) == len(like.shape) + 1 and value.shape[-1] == 1:
        value = ops.squeeze(value, -1)
    while len(value.shape) < len(like.shape):
        value = ops.expand_dims(value, -1)
    _check_shapes(name, value, like, "the predictions", exact=False)
    return value


def _check_shapes(name, value, like, of, exact):
    received, expected = tuple(value.shape), tuple(like.shape)
    fits = len(received) == len(expected) > 0 and all(
        a is None or b is None or a == b or (a == 1 and not exact) for a, b in zip(received, expected)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must {'have' if exact else 'spread over'} the shape of {of}. "
            f"Received: {name} with shape {received}, {of} with shape {expected}"
        )
