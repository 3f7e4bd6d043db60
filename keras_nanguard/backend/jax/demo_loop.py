"""The hand-written training loop of `nanguard demo`, as people write it on JAX."""

import jax


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

    def loss_and_updates(trainable, non_trainable, x, y):
        predicted, non_trainable = model.stateless_call(trainable, non_trainable, x, training=True)
        return loss_fn(y, predicted), non_trainable

    grad_fn = jax.value_and_grad(loss_and_updates, has_aux=True)

    @jax.jit
    def step(guard_state, trainable, non_trainable, own, x, y):
        (loss, written), grads = grad_fn(trainable, non_trainable, x, y)
        if guard is None:
            trainable, own = optimizer.stateless_apply(own, grads, trainable)
            return loss, True, guard_state, trainable, written, own
        outcome, guard_state, trainable, own, non_trainable = guard.stateless_apply(
            guard_state, own, grads, trainable, loss=loss, non_trainable_before=non_trainable, non_trainable_after=written
        )
        return outcome.loss, outcome.applied, guard_state, trainable, non_trainable, own

    optimizer.build(model.trainable_variables)
    values = lambda variables: [variable.value for variable in variables]
    state = values(model.trainable_variables), values(model.non_trainable_variables), values(optimizer.variables)
    guard_state = None if guard is None else guard.initial_state()
    for x, y in batches:
        loss, applied, guard_state, *state = step(guard_state, *state, x, y)
        for variables, new in zip((model.trainable_variables, model.non_trainable_variables, optimizer.variables), state):
            for variable, value in zip(variables, new):
                variable.assign(value)
        yield float(loss), bool(applied)
