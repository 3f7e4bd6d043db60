"""What a guard has to know of a Keras optimizer."""

import keras

from ..state import leaf_optimizers


def build(optimizer, variables):
    """Creates the optimizer's variables, as its first `apply` would: some backends can make none inside a condition."""
    if not optimizer.built:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)
        optimizer.built = True


def has_loss_scale(optimizer):
    """Whether it has a dynamic loss scale."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def fixed_scale(optimizer):
    """The constant by which `scale_loss` multiplies, or `None`."""
    return getattr(optimizer, "loss_scale_factor", None)


def clips_itself(optimizer):
    """Whether a part of it clips by value or by a norm."""
    return any(leaf.clipvalue for leaf in leaf_optimizers(optimizer)) or clips_by_norm(optimizer)


def clips_by_norm(optimizer):
    """Whether a part of it clips by a norm, whose squares can overflow where the gradients do not."""
    return any(leaf.clipnorm or leaf.global_clipnorm for leaf in leaf_optimizers(optimizer))


def accumulated(optimizer, variable):
    """(variable that holds the accumulated gradient, steps) of a trainable variable, or `None`."""
    for leaf in leaf_optimizers(optimizer):
        if leaf.gradient_accumulation_steps and getattr(leaf, "_accumulated_gradients", None):
            if leaf._var_key(variable) in leaf._trainable_variables_indices:
                return leaf._accumulated_gradients[leaf._get_variable_index(variable)], leaf.gradient_accumulation_steps
    return None


def readable_learning_rate(optimizer):
    """The (first) part whose learning rate can be read, or `None`: a Python callable is not called a second time for the record."""
    leaf = leaf_optimizers(optimizer)[0]
    rate = leaf._learning_rate
    known = isinstance(rate, (keras.Variable, keras.optimizers.schedules.LearningRateSchedule)) or not callable(rate)
    return leaf if known else None
