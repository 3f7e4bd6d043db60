"""The seam: everything that names TensorFlow, JAX or torch stands in this folder, in modules that mirror one another.

A backend is a package with these names; someone adding one fills them in:

`GuardedFunction(model, train_step, make, spec)`
    The guarded train function of a compiled model for one `step.memory.StepSpec`. `train_step` is the step to keep, `make(step)` has Keras
    build a train function from a step. Called with what Keras' own is called with, it returns what that returns, the logs as tensors, with the keys `grad_norm`,
    `skipped_steps` and, with a backoff, `learning_rate_scale` beside the model's own. Attributes: `memory` (below), `judged`
    (`"loss and gradients"` or `"gradients"`), `added` (the keys that are the guard's), `spec`, `before_first_update` (where the model was
    not built: called between building and the first update, again if that one is refused; else `None`), `calls`, `owner` (for whom the memory holds
    steps, compared by identity).
    `logs_of(result)`: the logs in what a call returned. `without_added(result)`: what a call returned, its logs without those keys.
`guarded_step(model, train_step, spec, memory)`
    The same for a call of `model.train_step` outside of `fit`; takes and gives what that does.
`sync(model)`
    Makes the variables of the model hold their current values, where a running `fit` keeps them elsewhere.
`buffers(model)`
    State in the model that Keras has no variable for, as a list of objects with `value`, `dtype`, `path`, `read_value()`, `numpy()` and `assign(value)`.
`Memory(spec)`
    The guard's own state on the device: `read()` gives numpy arrays by name (`step.memory.initial`), `write(arrays)` sets some of them, `begin_epoch()`
    sets the epoch's counters to zero.
`apply_gradients(spec, memory, optimizer, grads, variables, loss, kept)`, `keep(variables)`, `prepare(optimizer, model)`, `context()`, `replica()`
    The guarded update of a hand-written loop: the update itself (a dict of tensors: `applied`, `grad_norm`, `loss`), the values that the forward
    pass may write, what has to exist beforehand, what `keep` and the update of one step have in common (`None` in eager code), and
    the number of the replica that runs.
`stateless_apply(spec, optimizer, guard_state, optimizer_variables, grads, trainable_variables, loss, before, after)`, `initial_state(spec)`
    The same where a step is a function of its state, and the guard's first state. `FORM`: how the guard is used in a loop, to be shown in an
    error; of `apply_gradients` and these the ones that are not the backend's form raise with it.
`host_copy(variable)`, `put_back(variable, copy)`
    A copy in host memory of what this process holds of a variable, and the way back.
`is_chief()`
    Whether this process is the one that prints and writes files, of those that train together.
`StateCheck(variables)`
    Of variables that hold their values. Called: whether all of them are finite, in one reduction on the device, and the same in all processes. `.names()`: those that are not.
`unsupported(model)`
    A sentence that says why stock Keras cannot train this model here, or `None`.
"""

import importlib

import keras

NAMES = ("tensorflow", "jax", "torch")


def active():
    """The package for the backend that Keras runs on."""
    name = keras.config.backend()
    if name not in NAMES:
        raise ImportError(
            f"keras_nanguard guards steps on the backends {', '.join(NAMES)}; Keras runs on {name!r} here. "
            f"Set KERAS_BACKEND={NAMES[0]} (or another of them) before keras is imported."
        )
    return importlib.import_module(f".{name}", __name__)
