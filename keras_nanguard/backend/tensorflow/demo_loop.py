"""The hand-written training loop of `nanguard demo`, as people write it with `tf.GradientTape`."""

import tensorflow as tf


def train(model, optimizer, loss_fn, batches, guard=None):
    """Trains `model`, and yields after each step what came of it.

    Args:
        model: a built Keras model.
        optimizer: a Keras optimizer.
        loss_fn: function of `(y_true, y_pred)` that gives a scalar.
        batches: an iterable of `(x, y)`, numpy arrays.
        guard: a `GradientGuard` of this optimizer and model; `None` trains without.

    Yields:
        `(loss, applied)`: a float, and whether the weights were updated.
    """

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss, tf.constant(True)

    @tf.function
    def guarded_step(x, y):
        with tf.GradientTape() as tape:
            with guard.forward():
                loss = loss_fn(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        outcome = guard.apply(grads, model.trainable_variables, loss=loss)
        return outcome.loss, outcome.applied

    optimizer.build(model.trainable_variables)
    for x, y in batches:
        loss, applied = (step if guard is None else guarded_step)(tf.constant(x), tf.constant(y))
        yield float(loss), bool(applied)
