"""The seam: everything that names TensorFlow, JAX or torch stands in this folder, in modules that mirror one another.

A backend is a package with these names; someone adding one fills them in:

`GuardedFunction(model, train_step, make, spec)`
    The guarded train function of a compiled model for one `step.memory.StepSpec`. `train_step` is the step to keep, `make(step)` has Keras
    build a train function from a step. Called with what Keras' own is called with, it returns the logs as tensors, with the keys `grad_norm`,
    `skipped_steps` and, with a backoff, `learning_rate_scale` beside the model's own. Attributes: `memory` (below), `judged`
    (`"loss and gradients"` or `"gradients"`), `added` (the keys that are the guard's), `spec`, `before_first_update` (where the model was
    not built: called between building and the first update, again if that one is refused; else `None`), `calls`, `owner` (for whom the memory holds
    steps, compared by identity).
`guarded_step(model, train_step, spec, memory)`
    The same for a call of `model.train_step(data)` outside of `fit`.
`Memory(spec)`
    The guard's own state on the device: `read()` gives numpy arrays by name (`step.memory.initial`), `write(arrays)` sets some of them, `begin_epoch()`
    sets the epoch's counters to zero.
`apply_gradients(spec, memory, optimizer, grads, variables, loss, kept)`, `keep(variables)`, `prepare(optimizer, model)`, `context()`, `replica()`
    The guarded update of a hand-written loop: the update itself (a dict of tensors: `applied`, `grad_norm`, `loss`), the values that the forward
    pass may write, what has to exist beforehand, what `keep` and the update of one step have in common (`None` in eager code), and
    the number of the replica that runs.
`StateCheck(variables)`
    Called: whether all of them are finite, in one reduction on the device. `.names()`: those that are not.
`unsupported(model)`
    A sentence that says why stock Keras cannot train this model here, or `None`.
"""

import importlib

import keras


def active():
    """The package for the backend that Keras runs on."""
    name = keras.config.backend()
    if name != "tensorflow":
        raise ImportError(
            f"keras_nanguard guards steps on the TensorFlow backend; Keras runs on {name!r} here. "
            "Set KERAS_BACKEND=tensorflow before keras is imported."
        )
    return importlib.import_module(f".{name}", __name__)
