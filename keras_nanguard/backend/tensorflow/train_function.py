"""The guarded train function of a model, and the guarded call of `model.train_step`."""

import itertools

import tensorflow as tf

from .memory import Memory
from .step import GuardedStep
from .step import TraceAgain
from .step import calls_scale_loss
from .whole import WholeStateStep


class GuardedFunction:
    """See `keras_nanguard.backend`."""

    def __init__(self, model, train_step, make, spec):
        self.spec, self.memory = spec, Memory(spec)
        self.calls = 0
        self.before_first_update = self.owner = None
        self._model, self._make = model, make
        self._step = _first(model, train_step, spec, self.memory)
        self._function = None

    @property
    def added(self):
        return self._step.added

    @property
    def judged(self):
        return self._step.judged

    def logs_of(self, logs):
        return logs

    def without_added(self, logs):
        return without(logs, self.added)

    def __call__(self, iterator):
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            # a Python iterator could not be asked for the same batch again
            batches = list(itertools.islice(iterator, self._model.steps_per_execution))
            return self._call(lambda: iter(batches))
        return self._call(lambda: iterator)

    def _call(self, iterator):
        while True:
            if self._function is None:
                self._function = self._make(self._step)
            self._step.before_update = self.before_first_update
            try:
                logs = self._function(iterator())
            except TraceAgain:
                self._function = None
                self._step = _next(self._step)
                if self.before_first_update is not None:
                    self.before_first_update()
            else:
                self.calls += 1
                self.before_first_update = self._step.before_update if self._model.run_eagerly else None
                return logs


def buffers(model):
    """Keras lists all there is."""
    return []


def sync(model):
    """The variables always hold the current values here."""


def guarded_step(model, train_step, spec, memory):
    """`step(data) -> logs` for a call outside of `fit`; compiled unless the model runs eagerly, inline in a replica."""
    holder = [_first(model, train_step, spec, memory)]
    compiled = {}

    def step(data):
        while True:
            current = holder[0]
            if model.distribute_strategy.num_replicas_in_sync > 1:
                try:
                    return without(current(data), current.added)
                except TraceAgain as again:
                    raise RuntimeError(
                        "`model.train_step` was called by hand in a replica, for a step that has to be traced twice: the optimizer is not "
                        "built yet, or the step updates more than once. Call model.optimizer.build(model.trainable_variables) first, "
                        "or train with `fit` or `train_on_batch`."
                    ) from again
            if model.run_eagerly:
                return without(current(data), current.added)
            if current not in compiled:
                compiled[current] = tf.function(current, autograph=False, reduce_retracing=True, jit_compile=model.jit_compile)
            try:
                return without(compiled[current](data), current.added)
            except TraceAgain:
                compiled.clear()
                holder[0] = _next(current)

    return step


def _first(model, train_step, spec, memory):
    """Eager code runs once: a step that may turn out to need its whole state kept has it kept from the start."""
    kind = WholeStateStep if model.run_eagerly and not calls_scale_loss(train_step) else GuardedStep
    return kind(model, train_step, spec, memory)


def without(logs, keys):
    return {name: value for name, value in logs.items() if name not in keys}


def _next(step):
    if step.needs_whole_state:
        return WholeStateStep(step.model, step.train_step, step.spec, step.memory)
    return step
