"""One update as it is judged: what it shows, and the verdict on it."""

import dataclasses

import jax
import jax.numpy as jnp
import keras

from ...step import optimizers
from ...step.judge import Seen
from ...step.judge import judge
from ...step import memory as layout
from . import memory as memories
from . import numerics


@dataclasses.dataclass
class Update:
    """A call of `stateless_apply`, with its arguments."""

    optimizer: object
    original: object
    optimizer_variables: list
    grads: list
    trainable_variables: list

    @property
    def loss_scale(self):
        if optimizers.has_loss_scale(self.optimizer):
            return jnp.asarray(self.value_of(self.optimizer.dynamic_scale)).astype("float32")
        return None

    @property
    def divisor(self):
        """What the gradients are too large by, or `None`."""
        scale = self.loss_scale
        return optimizers.fixed_scale(self.optimizer) if scale is None else scale

    def value_of(self, variable):
        for known, value in zip(self.optimizer.variables, self.optimizer_variables):
            if known is variable:
                return value
        return variable.value

    def run(self, grads):
        return self.original(self.optimizer_variables, grads, self.trainable_variables)

    def norm(self):
        """(norm of the unscaled gradients, whether all is finite, also after the optimizer's own clip)."""
        norm, finite = numerics.global_norm([g for g in self.grads if g is not None])
        finite = jnp.logical_and(finite, self._survives_own_clips())
        return (norm if self.divisor is None else norm / self.divisor), finite

    @property
    def clips_itself(self):
        return optimizers.clips_itself(self.optimizer)

    def _survives_own_clips(self):
        """Whether the squares that a clip by norm adds up stay finite, in the gradients' own dtype, accumulated ones included."""
        if not optimizers.clips_by_norm(self.optimizer):
            return jnp.array(True)
        squares = jnp.zeros(())
        for gradient, variable in zip(self.grads, self.optimizer._trainable_variables):
            if gradient is None:
                continue
            values = gradient if self.divisor is None else gradient / jnp.asarray(self.divisor).astype(gradient.dtype)
            held = optimizers.accumulated(self.optimizer, variable)
            if held is not None:
                values = (values + self.value_of(held[0])) / held[1]
            squares += jnp.sum(jnp.square(values)).astype("float32")
        return jnp.isfinite(squares)

    def learning_rate(self):
        leaf = optimizers.readable_learning_rate(self.optimizer)
        if leaf is None:
            return jnp.array(jnp.nan)
        with keras.StatelessScope(state_mapping=list(zip(self.optimizer.variables, self.optimizer_variables))):
            return jnp.asarray(keras.ops.convert_to_tensor(leaf.learning_rate)).astype("float32")

    def with_lower_scale(self):
        """The optimizer's variables after an overflow: what Keras does, with a floor of 1."""
        lowered = {id(self.optimizer.step_counter): jnp.zeros_like, id(self.optimizer.dynamic_scale): lambda scale: jnp.maximum(scale * 0.5, 1.0)}
        return [lowered.get(id(v), lambda value: value)(value) for v, value in zip(self.optimizer.variables, self.optimizer_variables)]


class Judgement:
    """`judge` for one spec, compiled where it is called from eager code.

    Gives (apply, overflow, clip, clip factor or `None`, the memory afterwards).
    """

    def __init__(self, spec):
        self._spec = spec
        self._compiled = {may_clip: jax.jit(self._function(may_clip)) for may_clip in (True, False)}

    def _function(self, may_clip):
        def judged(memory, seen):
            verdict = judge(self._spec, memory, Seen(**seen, may_clip=may_clip))
            return verdict.apply, verdict.overflow, verdict.clip, verdict.clip_factor, memories.stored(memory, verdict.change)

        return judged

    def __call__(self, memory, seen, may_clip):
        return self._compiled[may_clip](memory, seen)


def extras(before, memory):
    """What the guard adds to the logs; `grad_norm` is NaN before the first accepted step of the epoch."""
    count = dict(zip(layout.COUNTS, memory["counts"]))
    logs = {
        "grad_norm": memory["epoch_norm"] / count["epoch_accepted"],
        "skipped_steps": count["epoch_skipped"].astype("float32"),
    }
    if "lr_scale" in before:
        logs["learning_rate_scale"] = memory["lr_scale"]
    return logs
