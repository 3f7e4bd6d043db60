"""The places where a step passes the optimizer and the metrics, looked into while a guarded step runs, and only then."""

import contextlib

import keras

from ...state import leaf_optimizers


@contextlib.contextmanager
def replaced(pairs):
    """Puts functions in place of methods of instances: `(instance, name, function)`."""
    before = [(target, name, vars(target).get(name)) for target, name, _ in pairs]
    for target, name, function in pairs:
        target.__dict__[name] = function
    try:
        yield
    finally:
        for target, name, own in before:
            if own is None:
                del target.__dict__[name]
            else:
                target.__dict__[name] = own


def of_optimizers(optimizers, on_apply):
    """`on_apply(optimizer, original, optimizer_variables, grads, trainable_variables)` in place of `stateless_apply`."""

    def hook(optimizer):
        original = optimizer.stateless_apply

        def stateless_apply(optimizer_variables, grads, trainable_variables):
            return on_apply(optimizer, original, optimizer_variables, grads, trainable_variables)

        stateless_apply.guarded = True
        return optimizer, "stateless_apply", stateless_apply

    return [hook(optimizer) for optimizer in optimizers]


def of_loss(model, on_loss):
    """`on_loss(unscaled loss)`, where Keras' own step hands it to the metrics."""
    original = model._update_metrics_variables

    def update(metrics_variables, unscaled_loss, x, y, y_pred, sample_weight):
        on_loss(unscaled_loss)
        return original(metrics_variables, unscaled_loss, x, y, y_pred, sample_weight)

    return [(model, "_update_metrics_variables", update)]


def of_learning_rate(optimizers, scale):
    """The learning rate of every part that updates, times `scale`."""

    def hook(leaf):
        original = leaf._get_current_learning_rate

        def scaled():
            rate = original()
            return rate * keras.ops.cast(scale, getattr(rate, "dtype", "float32"))

        return leaf, "_get_current_learning_rate", scaled

    return [hook(leaf) for optimizer in optimizers for leaf in leaf_optimizers(optimizer)]


def is_guarded(optimizer):
    """Whether a guarded step is being traced and has this optimizer in its hands."""
    return getattr(vars(optimizer).get("stateless_apply"), "guarded", False)
