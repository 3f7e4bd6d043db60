"""A training step, whatever it is, kept whole and guarded: one condition on what it returns decides between the new state and the old."""

import jax
import jax.numpy as jnp
import keras

from ...state import optimizers_of
from ...step import memory as layout
from ...step.judge import clip_bound
from . import hooks
from . import numerics
from .update import Judgement
from .update import Update
from .update import extras


class Run:
    """One run (or trace) of the step."""

    def __init__(self, memory):
        self.memory = memory
        self.loss = None
        self.updates = []
        self.clipped = jnp.array(False)


class GuardedStep:
    """`step((*state, memory), data) -> logs, (*state, memory)`: as `model.train_step(state, data)`, the guard's memory with it.

    The step itself is left as it is, so that the compiler makes of it what it makes without the guard; a clip runs the
    optimizer once more, from the state before, where it is asked for. In a step that is not Keras' own the gradients are clipped on their way.
    """

    judged = "loss and gradients"

    def __init__(self, model, train_step, spec):
        self._model, self._train_step, self._spec = model, train_step, spec
        self._judgement = Judgement(spec)
        self._is_keras = (getattr(train_step, "__module__", None) or "").startswith("keras.")
        self.added = ()  # the keys of the logs that are the guard's

    def __call__(self, state, data):
        *before, memory = state
        before = tuple(list(part) for part in before)
        run = Run(memory)
        optimizers = optimizers_of(self._model)
        pairs = hooks.of_optimizers(optimizers, lambda *call: self._on_apply(run, *call))
        pairs += hooks.of_loss(self._model, lambda loss: setattr(run, "loss", numerics.scalar(loss)))
        if self._spec.backoff is not None:
            pairs += hooks.of_learning_rate(optimizers, memory["lr_scale"])
        with hooks.replaced(pairs):
            logs, after = self._train_step(before, data)
            if not run.updates:
                raise RuntimeError(
                    "The train step of this model calls `stateless_apply` of no Keras optimizer, so there is no update that keras_nanguard "
                    "could hold back. Use a Keras optimizer in `train_step`, or write the loop by hand with keras_nanguard.GradientGuard."
                )
            return self._decided(run, before, logs if isinstance(logs, dict) else {"loss": logs}, after)

    def _on_apply(self, run, optimizer, original, optimizer_variables, grads, trainable_variables):
        update = Update(optimizer, original, list(optimizer_variables), list(grads), list(trainable_variables))
        run.updates.append(update)
        bound = None if self._is_keras or update.clips_itself else clip_bound(self._spec, run.memory)
        if bound is None:
            return update.run(update.grads)
        norm, _ = update.norm()
        clip = norm > bound
        run.clipped = jnp.logical_or(run.clipped, clip)
        grads = numerics.choose(clip.astype("int32"), [lambda: update.grads, lambda: numerics.clipped(update.grads, bound / norm)])
        return update.run(grads)

    def _decided(self, run, before, logs, after):
        first = run.updates[0]
        loss = run.loss
        if loss is None and "loss" in logs:
            loss = numerics.scalar(logs["loss"])
        self.judged = "gradients" if loss is None else "loss and gradients"
        norms = [update.norm() for update in run.updates]
        norm, finite = norms[0]
        for other, sound in norms[1:]:
            norm, finite = jnp.sqrt(norm**2 + other**2), jnp.logical_and(finite, sound)
        seen = {
            "loss": jnp.zeros(()) if loss is None else loss,
            "grad_norm": norm,
            "gradients_finite": finite,
            "state_finite": jnp.logical_not(numerics.newly_bad(before[1], list(after[1]))),
            "learning_rate": first.learning_rate(),
            "loss_scale": first.loss_scale,
        }
        if not self._is_keras:
            seen["clipped"] = run.clipped
        apply, overflow, clip, factor, memory = self._judgement(run.memory, seen, not first.clips_itself)

        told = extras(run.memory, memory)
        self.added = tuple(name for name in told if name not in logs)
        numbers = {name: jnp.asarray(value) for name, value in logs.items() if _is_number(value)}
        after = jax.tree_util.tree_map(lambda old, new: jax.lax.convert_element_type(new, old.dtype), before, tuple(map(list, after)))
        none_accepted = memory["counts"][layout.COUNTS.index("epoch_accepted")] == 0

        def refused():
            kept = before
            if first.loss_scale is not None:
                kept = (*before[:2], lowered(first, overflow, before[2]), *before[3:])
            return self._before(before, numbers, none_accepted), kept

        def with_clip():
            trainable, own = first.run(numerics.clipped(first.grads, factor))
            return numbers, (list(trainable), after[1], list(own), *after[3:])

        branches = [lambda: (numbers, after), refused]
        which = jnp.where(apply, 0, 1)
        if self._is_keras and factor is not None:
            branches.append(with_clip)
            which = jnp.where(jnp.logical_and(apply, clip), 2, which)
        chosen, state = numerics.choose(which, branches)
        return {**told, **logs, **chosen}, (*state, memory)

    def _before(self, state, numbers, none_accepted):
        """The logs of a refused step: the metrics as they were, NaN where no step has been accepted in this epoch."""
        with keras.StatelessScope(state_mapping=list(zip(self._model.metrics_variables, state[3]))):
            results = self._model.get_metrics_result()
        nan = lambda like: jnp.full_like(like, jnp.nan) if numerics.is_float(like) else like
        told = {}
        for name, value in numbers.items():
            held = jnp.asarray(results[name]).astype(value.dtype) if name in results else nan(value)
            told[name] = jnp.where(none_accepted, nan(held), held)
        return told


def lowered(update, overflow, values):
    """The optimizer's variables, with a lower loss scale after an ordinary overflow."""
    lower = update.with_lower_scale()
    return [jnp.where(overflow, low, value).astype(value.dtype) for low, value in zip(lower, values)]


def _is_number(value):
    return isinstance(value, (int, float, jax.Array)) or hasattr(value, "__jax_array__")
