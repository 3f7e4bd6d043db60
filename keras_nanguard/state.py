"""Everything that `fit` changes: found on the model, whatever the backend.

Beside `model.variables` there is state that Keras does not list there: the states of stateful recurrent layers, loss
and metric objects with variables of their own, variables that a layer holds as plain attributes, Keras' global seed
generator, and the optimizers (several, where a custom step has several).
"""

import keras
import numpy as np

from . import backend


def optimizers_of(model):
    """The optimizers of a model: the compiled one, and those a custom `compile` left as attributes, in lists and dicts too."""
    found = _Unique()
    if getattr(model, "optimizer", None) is not None:
        found.add(model.optimizer)
    _scan_optimizers(vars(model).values(), found, depth=3)
    return found.items


def _scan_optimizers(values, found, depth):
    if depth == 0:
        return
    for value in values:
        if isinstance(value, keras.optimizers.Optimizer):
            found.add(value)
        elif isinstance(value, (list, tuple)):
            _scan_optimizers(value, found, depth - 1)
        elif isinstance(value, dict):
            _scan_optimizers(value.values(), found, depth - 1)


def leaf_optimizers(optimizer):
    """The optimizers that do the updates: inside a `LossScaleOptimizer`, the parts of a `MultiOptimizer`, or itself."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return leaf_optimizers(optimizer.inner_optimizer)
    parts = getattr(optimizer, "optimizers", None)
    return list(parts) if parts else [optimizer]


def forward_state(model):
    """What the forward pass and the metrics can write, trainable variables included; a list of variables."""
    found = _Unique()
    found.add_all(model.variables)
    for metric in model.metrics:
        found.add_all(metric.variables)
    for layer in model._flatten_layers():
        _scan(vars(layer).values(), found)
    for holder in (getattr(model, "_compile_loss", None), getattr(model, "loss", None)):
        _scan_object(holder, found, depth=3)
    seeds = _global_seed_generator()
    if seeds is not None:
        found.add(seeds.state)
    found.add_all(backend.active().buffers(model))
    return found.items


def optimizer_state(model):
    """The variables of all optimizers: slots, iteration counters, accumulators, averages, the loss scale."""
    found = _Unique()
    for optimizer in optimizers_of(model):
        found.add_all(optimizer.variables)
    return found.items


def learning_rate_variables(model):
    """The variables that hold a plain learning rate; going back to a snapshot must not raise it again."""
    rates = [getattr(leaf, "_learning_rate", None) for optimizer in optimizers_of(model) for leaf in leaf_optimizers(optimizer)]
    return [rate for rate in rates if isinstance(rate, keras.Variable)]


def host_copy(variable):
    """By value: what a framework hands out may be its own memory, which the next step writes to."""
    array = variable.numpy()
    return array if array.flags.owndata else np.array(array)


def put_back(variable, copy):
    variable.assign(copy)


def variable_name(variable):
    return getattr(variable, "path", None) or getattr(variable, "name", "variable")


class _Unique:
    def __init__(self):
        self.items, self._seen = [], set()

    def add(self, variable):
        if id(variable) not in self._seen:
            self._seen.add(id(variable))
            self.items.append(variable)

    def add_all(self, variables):
        for variable in variables:
            self.add(variable)


def _is_variable(value):
    return isinstance(value, keras.Variable) or (hasattr(value, "assign") and hasattr(value, "read_value"))


def _scan(values, found):
    for value in values:
        if _is_variable(value):
            if id(getattr(value, "value", None)) != id(value):
                found.add(value)
        elif isinstance(value, keras.random.SeedGenerator):
            found.add(value.state)
        elif isinstance(value, (list, tuple)):
            _scan(value, found)
        elif isinstance(value, dict):
            _scan(value.values(), found)


def _scan_object(value, found, depth):
    """Losses may hold variables, and lists of losses; layers and models are found elsewhere."""
    if value is None or depth == 0 or isinstance(value, (str, int, float, keras.layers.Layer)):
        return
    if isinstance(value, (list, tuple)):
        for item in value:
            _scan_object(item, found, depth)
    elif isinstance(value, dict):
        _scan_object(list(value.values()), found, depth)
    elif hasattr(value, "__dict__"):
        _scan(vars(value).values(), found)
        for item in list(vars(value).values()):
            if isinstance(item, (keras.losses.Loss, list, tuple, dict)) or hasattr(item, "fn"):
                _scan_object(item, found, depth - 1)


def _global_seed_generator():
    # Keras has no public way to ask for it without making one
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("global_seed_generator")
