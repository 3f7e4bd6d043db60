"""A training step, whatever it is, kept whole and guarded: what it writes is put back when the verdict is bad."""

import contextlib
import functools
import threading

import tensorflow as tf

from ... import state
from ...step.hooks import OptimizerHooks
from ...step.optimizers import build
from . import logs as told_logs
from . import numerics
from . import strategy as distribution
from .update import Undo
from .update import Update
from .update import branch
from .update import guarded
from .update import nothing
from .update import put_back
from .update import rarely
from .writes import Span
from .writes import captured
from .writes import touched
from .writes import written


class TraceAgain(Exception):
    """The step has to be traced once more: its variables exist only now, or it needs its whole state kept."""


class Run:
    """One run (or trace) of the step; under a strategy, of one replica."""

    def __init__(self):
        self.loss = self.outcome = None
        self.updates = 0
        self.waiting = None  # the `Update` that waits for the end of the step, and where in the graph it was asked for
        self.kept = []  # (variable, value before the step)
        self.graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self.span = Span(self.graph) if self.graph is not None else None
        self.begin = self.span.position() if self.span else 0


class GuardedStep:
    """`step(data) -> logs`: the update runs under the verdict, and what the forward pass and the metrics wrote is put back.

    For a step whose gradients pass one optimizer once: Keras' own, and most others. It raises `TraceAgain` for any other,
    with `needs_whole_state` set.

    In a graph the update waits for the end of the step, where one condition decides on everything; a step that looks at
    the updated weights itself is traced again, with the update where it stands. There, and in eager code, the loss must be known by then.
    """

    judged = "loss and gradients"

    def __init__(self, model, train_step, spec, memory):
        self.model, self.train_step, self.spec, self.memory = model, train_step, spec, memory
        self.needs_whole_state, self._update_waits = False, True
        self.added = ()  # the keys of the logs that are the guard's
        self.before_update = None  # eager code: called before each update until one is carried out
        if model.built and calls_scale_loss(train_step):
            with model.distribute_strategy.scope():
                build(model.optimizer, model.trainable_variables)
        self._ready = model.built and all(optimizer.built for optimizer in state.optimizers_of(model))
        self._extra = []  # variables that a trace found written and that nobody had listed
        self._here = threading.local()  # `.run`: what this thread, a replica's, is in
        self._across = model.distribute_strategy.num_replicas_in_sync > 1
        self._one_reduction = distribution.OneReduction(state.optimizers_of(model)) if self._across else contextlib.nullcontext()
        self._hooks = OptimizerHooks(
            state.optimizers_of(model),
            self._on_apply,
            self._on_loss,
            learning_rate_scale=memory.learning_rate_scale if spec.backoff is not None else None,
            model=None if calls_scale_loss(train_step) else model,
        )

    def __call__(self, data):
        run = Run()
        run.kept = [(variable, numerics.raw(variable).read_value()) for variable in self._candidates()]
        created = []
        self._here.run = run
        try:
            self._begin(run)
            with self._hooks, self._one_reduction, tf.variable_creator_scope(_recorder(created)):
                logs = self.train_step(data)
                self._here.run = None
                if run.waiting is not None:
                    return self._told(run, self._decide(run, logs))
        finally:
            self._here.run = None
        if run.graph is None:
            run.kept += created
        if not run.updates:
            raise RuntimeError(
                "The train step of this model calls no Keras optimizer (`optimizer.apply` or `optimizer.apply_gradients`), so there is "
                "no update that keras_nanguard could hold back. Use a Keras optimizer in `train_step`, or write the loop by hand "
                "with keras_nanguard.GradientGuard."
            )
        self._finish(run, logs)
        return self._told(run, self._put_back(run, logs))

    def _told(self, run, logs):
        if run.graph is None and bool(run.outcome["applied"]):
            self.before_update = None
        extras = told_logs.extras(run.outcome)
        self.added = tuple(name for name in extras if name not in logs)
        return {**extras, **logs}

    def _candidates(self):
        """What is read before the step; in a graph the reads that nobody needs are pruned, and a read copies nothing."""
        return state.forward_state(self.model) + self._extra

    def _begin(self, run):
        pass

    def _finish(self, run, logs):
        pass

    def _on_loss(self, loss):
        if getattr(self._here, "run", None) is not None:
            self._here.run.loss = numerics.scalar(loss)

    def _on_apply(self, optimizer, original, grads, variables):
        run = getattr(self._here, "run", None)
        if run is None:
            return original(grads, variables)
        grads = list(grads)
        variables = list(optimizer._trainable_variables if variables is None else variables)
        if all(g is None for g in grads):
            return original(grads, variables)  # Keras' own error, or nothing to do
        build(optimizer, variables)
        if run.graph is None and self.before_update is not None:
            self.before_update()
        run.updates += 1
        return self._update(run, Update(optimizer, original, grads, variables))

    def _update(self, run, update):
        waits = run.graph is not None and self._update_waits
        if run.updates > 1 or self._elsewhere(run) or (run.loss is None and not waits):
            self.needs_whole_state = True
            raise TraceAgain
        if waits:
            run.waiting = update, run.span.position()
            return update.optimizer.iterations
        if run.graph is None:
            trainable = {id(v) for v in self.model.trainable_variables}
            run.kept = [(v, value) for v, value in run.kept if id(v) not in trainable or not self._spared(run, v, value)]
        begin = run.span.position() if run.span else 0
        run.outcome, _ = guarded(self.spec, self.memory, update, run.loss, self._state(run))
        if run.span:
            run.span.add(begin)
        return update.optimizer.iterations

    def _decide(self, run, logs):
        """The update that has waited, and the whole verdict on the step."""
        update, since = run.waiting
        concerned = [*update.variables, *state.optimizer_state(self.model)]
        if touched(run.graph, since) & {captured(run.graph, part) for v in concerned for part in numerics.components(v)}:
            self._update_waits = False
            raise TraceAgain
        choice = told_logs.Choice(self.model, self.memory, logs, self._across)
        undo = Undo(run.kept, functools.partial(self._of_written, run), choice)
        loss = self._loss(run, logs)
        run.outcome, logs = guarded(self.spec, self.memory, update, loss, self._state(run), undo)
        return {**choice.others, **logs}

    def _loss(self, run, logs):
        """The loss of a step that has ended, from its logs where nothing else has shown it."""
        loss = run.loss
        if loss is None and isinstance(logs, dict) and "loss" in logs:
            loss = numerics.scalar(logs["loss"])
        self.judged = "gradients" if loss is None else "loss and gradients"
        return tf.zeros(()) if loss is None else loss

    @staticmethod
    def _elsewhere(run):
        """Whether the step is inside a loop or a condition, whose tensors nothing outside can see."""
        return run.graph is not None and tf.compat.v1.get_default_graph() is not run.graph

    @staticmethod
    def _spared(run, variable, value):
        """Eager code: a weight that the forward pass left alone need not be held through the update."""
        return bool(tf.reduce_all(tf.equal(numerics.raw(variable).read_value(), value)))

    def _state(self, run):
        """What the forward pass wrote, as it is now; metrics are no reason to refuse a step."""
        metrics = {id(v) for metric in self.model.metrics for v in metric.variables}
        floats = [v for v, _ in run.kept if id(v) not in metrics and numerics.raw(v).dtype.is_floating]
        if run.graph is None:
            weights = {id(v) for v in self.model.trainable_variables}
            floats = [v for v in floats if id(v) not in weights]
        else:
            writes = written(run.graph, run.begin)
            floats = [v for v in floats if any(captured(run.graph, part) in writes for part in numerics.components(v))]
        return [numerics.raw(v).read_value() for v in floats]

    def _put_back(self, run, logs):
        """Assigns the kept values where the step was refused, and gives the logs that hold then."""
        choice = told_logs.Choice(self.model, self.memory, logs, self._across)
        before = lambda: choice.before(run.outcome["none_accepted"])
        if not self._across:
            kept = self._of_written(run, [(variable, [value]) for variable, value in run.kept])

            def refuse():
                put_back(kept)
                self._after_refusal(run)
                return before()

            return {**choice.others, **branch(run.outcome["applied"], choice.now, rarely(refuse))}

        def once(strategy, values):
            kept = [(variable, distribution.local(strategy, value)) for (variable, _), value in zip(run.kept, values)]
            kept = self._of_written(run, kept)

            def refuse():
                put_back(kept)
                self._after_refusal(run)

            branch(run.outcome["applied"], nothing, refuse)

        distribution.across(once, [value for _, value in run.kept])
        return {**choice.others, **branch(run.outcome["applied"], choice.now, before)}

    def _after_refusal(self, run):
        pass

    def _of_written(self, run, kept):
        if run.graph is None:
            return kept
        writes = written(run.graph, run.begin, run.span)
        places = [{captured(run.graph, part) for part in numerics.components(variable)} for variable, _ in kept]
        unknown = writes.difference(*places, {captured(run.graph, v) for v in self.memory.variables})
        self._trace_again_if_incomplete(run, unknown)
        return [entry for entry, place in zip(kept, places) if place & writes]

    def _trace_again_if_incomplete(self, run, unknown):
        """What the trace itself made or what nobody had listed was not read in time; the next trace reads it."""
        listed = {id(part) for v in self._candidates() for part in numerics.components(v)}
        fresh = [v for v in run.graph.variables if captured(run.graph, v) in unknown]
        self._extra += [v for v in fresh if id(v) not in listed]
        if fresh or not self._ready:
            self._ready = True
            raise TraceAgain


def calls_scale_loss(train_step):
    """Keras' own step does."""
    return (getattr(train_step, "__module__", None) or "").startswith("keras.")


def _recorder(created):
    """Makes variables outside of the trace, so that they outlive one that is done again, and notes their first values.

    A model may be built by its first batch, and that batch may be the bad one.
    """

    def creator(next_creator, **kwargs):
        if tf.executing_eagerly():
            variable = next_creator(**kwargs)
            created.append((variable, variable.read_value()))
            return variable
        if not callable(kwargs.get("initial_value")):
            return next_creator(**kwargs)
        with tf.init_scope():
            return tf.Variable(**kwargs)

    return creator
