"""The hand-written training loop of `nanguard demo`, as people write it on torch."""

import torch


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

    def gradients(loss):
        model.zero_grad()
        loss.backward()
        return [v.value.grad for v in model.trainable_variables]

    def step(x, y):
        loss = loss_fn(y, model(x, training=True))
        grads = gradients(loss)
        with torch.no_grad():
            optimizer.apply(grads, model.trainable_variables)
        return loss, True

    def guarded_step(x, y):
        with guard.forward():
            loss = loss_fn(y, model(x, training=True))
        outcome = guard.apply(gradients(loss), model.trainable_variables, loss=loss)
        return outcome.loss, outcome.applied

    optimizer.build(model.trainable_variables)
    for x, y in batches:
        loss, applied = (step if guard is None else guarded_step)(torch.as_tensor(x), torch.as_tensor(y))
        yield float(loss), bool(applied)
