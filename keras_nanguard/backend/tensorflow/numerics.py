"""Norms and finiteness on TensorFlow."""

import tensorflow as tf

from ...state import variable_name


def values_of(gradient):
    """The tensor that holds a gradient's values: of `IndexedSlices`, the rows."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def squared_norm(tensors):
    """The sum of all squares, in float32: not finite where an element is not, and where it overflows."""
    if not tensors:
        return tf.zeros(())
    return 2.0 * tf.add_n([tf.nn.l2_loss(tf.cast(values_of(t), tf.float32)) for t in tensors])


def global_norm(gradients):
    """(norm, whether every gradient is finite), also where the squares overflow float32."""
    if not gradients:
        return tf.zeros(()), tf.constant(True)
    squared = squared_norm(gradients)
    finite = tf.math.is_finite(squared)
    return tf.cond(finite, lambda: (tf.sqrt(squared), finite), lambda: _norm_of_large(gradients))


def _norm_of_large(gradients):
    values = [tf.cast(values_of(g), tf.float32) for g in gradients]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in values])
    largest = tf.reduce_max([tf.reduce_max(tf.abs(v)) for v in values if v.shape.num_elements() != 0] or [tf.ones(())])
    squared = tf.add_n([tf.reduce_sum(tf.square(v / largest)) for v in values])
    return largest * tf.sqrt(squared), finite


def all_finite(tensors):
    """Bool scalar; integers are finite. Small tensors are joined first: fewer operations."""
    floats = [t for t in tensors if t.dtype.is_floating]
    if not floats:
        return tf.constant(True)
    joined = tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in floats], 0)
    return tf.reduce_all(tf.math.is_finite(joined))


def clipped(gradients, factor):
    """The gradients times `factor`; sparse ones stay sparse, `None` stays `None`."""

    def scale(gradient):
        if gradient is None:
            return None
        values = values_of(gradient)
        scaled = tf.cast(tf.cast(values, tf.float32) * factor, values.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape)
        return scaled

    return [scale(gradient) for gradient in gradients]


def scalar(loss):
    """A loss as a float32 scalar."""
    loss = tf.cast(tf.convert_to_tensor(loss), tf.float32)
    return loss if loss.shape.rank == 0 else tf.reduce_mean(loss)


def raw(variable):
    """The `tf.Variable` under a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def components(variable):
    """The variables, one per replica, that a distributed variable is made of; itself elsewhere."""
    return list(getattr(raw(variable), "values", None) or [raw(variable)])


def first_of(value):
    """Of a value per replica, the first replica's; any other value itself."""
    return value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value


class StateCheck:
    """Whether variables are finite: a compiled reduction, one flag read by the host."""

    def __init__(self, variables):
        self._variables = [v for v in variables if raw(v).dtype.is_floating]
        self._function = None

    def _finite(self):
        parts = [part for variable in self._variables for part in components(variable)]
        squares = [tf.nn.l2_loss(tf.cast(part.read_value(), tf.float32)) for part in parts]
        if not squares:
            return tf.constant(True)
        total = tf.add_n(squares)
        exact = lambda: tf.reduce_all([tf.reduce_all(tf.math.is_finite(part.read_value())) for part in parts])
        return tf.cond(tf.math.is_finite(total), lambda: tf.constant(True), exact)

    def __call__(self):
        if self._function is None:
            self._function = tf.function(self._finite, autograph=False).get_concrete_function()
        return bool(self._function())

    def names(self):
        """The variables that are not finite, by path."""
        bad = []
        for variable in self._variables:
            if not all(bool(tf.reduce_all(tf.math.is_finite(part.read_value()))) for part in components(variable)):
                bad.append(variable_name(variable))
        return bad
