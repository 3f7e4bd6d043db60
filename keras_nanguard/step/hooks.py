"""The places where a step passes the optimizer, looked into while a guarded step runs, and only then."""

import abc
import functools
import threading

import keras

from ..state import leaf_optimizers


class Hooks(abc.ABC):
    """Replaces methods on instances for the time of a `with` block; nested and concurrent uses (replica threads) share one."""

    def __init__(self):
        self._lock = threading.RLock()
        self._depth = 0
        self._replaced = []

    @abc.abstractmethod
    def _targets(self):
        """Yields (instance, name of the method, what to put there)."""

    def __enter__(self):
        with self._lock:
            if self._depth == 0:
                for target, name, function in self._targets():
                    self._replaced.append((target, name, vars(target).get(name)))
                    target.__dict__[name] = function
            self._depth += 1
        return self

    def __exit__(self, *error):
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                while self._replaced:
                    target, name, before = self._replaced.pop()
                    if before is None:
                        target.__dict__.pop(name, None)
                    else:
                        target.__dict__[name] = before


class OptimizerHooks(Hooks):
    """Of each optimizer: `apply`, `scale_loss`; of the optimizers that update: the learning rate.

    Args:
        optimizers: the optimizers that a step calls.
        on_apply: `(optimizer, original, grads, variables)`.
        on_loss: `(loss)`, the loss before it is scaled.
        learning_rate_scale: called for the factor of the learning rate, or `None`.
        model: whose `compute_loss` shows the loss of a step that does not call `scale_loss`, or `None`.
        on_loss_error: `(error, arguments)` of a `compute_loss` that raised; what it does not raise itself is raised on.
    """

    def __init__(self, optimizers, on_apply, on_loss=None, learning_rate_scale=None, model=None, on_loss_error=None):
        super().__init__()
        self._optimizers, self._on_apply, self._on_loss = optimizers, on_apply, on_loss
        self._learning_rate_scale, self._model, self._on_loss_error = learning_rate_scale, model, on_loss_error

    def _targets(self):
        for optimizer in self._optimizers:
            yield optimizer, "apply", self._apply(optimizer)
            if self._on_loss is not None:
                yield optimizer, "scale_loss", self._scale_loss(optimizer)
            if self._learning_rate_scale is not None:
                for leaf in leaf_optimizers(optimizer):
                    yield leaf, "_get_current_learning_rate", self._learning_rate(leaf)
        if self._model is not None and self._on_loss is not None:
            yield self._model, "compute_loss", self._compute_loss(self._model)

    def _apply(self, optimizer):
        original = optimizer.apply

        def apply(grads, trainable_variables=None):
            return self._on_apply(optimizer, original, grads, trainable_variables)

        apply.guarded = True
        return apply

    def _scale_loss(self, optimizer):
        original = optimizer.scale_loss

        def scale_loss(loss):
            self._on_loss(loss)
            return original(loss)

        return scale_loss

    def _compute_loss(self, model):
        original = model.compute_loss

        @functools.wraps(original)
        def compute_loss(*args, **kwargs):
            try:
                loss = original(*args, **kwargs)
            except Exception as error:
                if self._on_loss_error is not None:
                    self._on_loss_error(error, (args, kwargs))
                raise
            self._on_loss(loss)
            return loss

        return compute_loss

    def _learning_rate(self, leaf):
        original = leaf._get_current_learning_rate

        def scaled():
            rate = original()
            return rate * keras.ops.cast(self._learning_rate_scale(), getattr(rate, "dtype", "float32"))

        return scaled


def is_guarded(optimizer):
    """Whether a guarded step is running and has this optimizer in its hands."""
    return getattr(vars(optimizer).get("apply"), "guarded", False)
