"""Gradients in tests, by whatever backend Keras runs on."""

import keras
import numpy as np

# What the backend computes in; JAX has no float64 unless it is told to before it starts.
FLOATS = ["float16", "bfloat16", "float32", *(["float64"] if keras.config.backend() != "jax" else [])]
WIDEST = FLOATS[-1]


def value_and_gradient(function, array, dtype="float32"):
    """`(value, gradient)` of a scalar `function` of one tensor, at `array`, as float64 numpy."""
    value, gradient = _BACKENDS[keras.config.backend()](function, array, dtype)
    return np.float64(value), np.asarray(gradient).astype("float64")


def finite_difference(function, array, step=1e-6):
    """The central differences of a scalar function of a float64 array."""
    array = np.asarray(array, "float64")
    gradient = np.zeros_like(array)
    for index in np.ndindex(*array.shape):
        move = np.zeros_like(array)
        move[index] = step
        gradient[index] = (function(array + move) - function(array - move)) / (2 * step)
    return gradient


def _numpy(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float64"))


def _tensorflow(function, array, dtype):
    import tensorflow as tf

    x = tf.cast(np.asarray(array), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return _numpy(value), _numpy(tape.gradient(value, x))


def _jax(function, array, dtype):
    import jax

    value, gradient = jax.value_and_grad(function)(jax.numpy.asarray(array, dtype))
    return np.asarray(value, "float64"), np.asarray(gradient, "float64")


def _torch(function, array, dtype):
    x = keras.ops.convert_to_tensor(array, dtype).detach().requires_grad_(True)
    value = function(x)
    value.backward()
    return _numpy(value), _numpy(x.grad)


_BACKENDS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
