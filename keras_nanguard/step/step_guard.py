"""`StepGuard`: the serialisable configuration of the protection inside a step."""

import math
import numbers

import keras

from ..state import leaf_optimizers


def _positive(name, value, what):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"`{name}` must be {what}. Received: {name}={value!r}")
    return float(value)


@keras.saving.register_keras_serializable(package="keras_nanguard")
class StepGuard:
    """What is done about a training step that is not healthy: skip it, clip it, or let it pass.

    Set it with `model.compile(..., step_guard=StepGuard(...))` on a `SafeModel`, or give it to `NanGuardCallback` or
    `GradientGuard`. It is saved and loaded with the model.

    Args:
        global_clipnorm: a float > 0 clips the global L2 norm of the gradients to it, as
            `keras.optimizers.Optimizer(global_clipnorm=...)` does; `None` does not clip; `"adaptive"` (default) clips
            outliers only, at a bound far above every norm in the window of accepted steps, so that a healthy run
            is left bit for bit as it is. An optimizer that clips by itself keeps doing so, and `"adaptive"` then clips
            nothing more; a number in both places is an error.
        skip_nonfinite: bool, default `True`: a step whose loss, gradients or forward-updated state (the moving statistics
            of BatchNormalization, say) is not finite leaves the training state bit for bit as it was. `False` applies
            such a step, as plain Keras does, and only records it.
        spike_zscore: `None` (default), or a float > 0: the robust z-score, 0.6745 (norm - median) / MAD over the window
            (Iglewicz and Hoaglin, 1993), above which a *finite* gradient norm is skipped too.
        window: int >= 16, default 128: how many accepted gradient norms the clip and the z-score look back on.

    Raises:
        ValueError: if an argument is out of range.

    Example:

    >>> model.compile("adam", "mse", step_guard=StepGuard(global_clipnorm=1.0, spike_zscore=8.0))
    """

    def __init__(self, global_clipnorm="adaptive", *, skip_nonfinite=True, spike_zscore=None, window=128):
        if global_clipnorm is not None and global_clipnorm != "adaptive":
            global_clipnorm = _positive("global_clipnorm", global_clipnorm, 'a finite float > 0, "adaptive" or None')
        if not isinstance(skip_nonfinite, bool):
            raise ValueError(f"`skip_nonfinite` must be True or False. Received: skip_nonfinite={skip_nonfinite!r}")
        if spike_zscore is not None:
            spike_zscore = _positive("spike_zscore", spike_zscore, "a finite float > 0, or None to keep finite steps")
        if isinstance(window, bool) or not isinstance(window, numbers.Integral) or window < 16:
            raise ValueError(f"`window` must be an int >= 16 (it counts from 16 norms on). Received: window={window!r}")
        self.global_clipnorm = global_clipnorm
        self.skip_nonfinite = skip_nonfinite
        self.spike_zscore = spike_zscore
        self.window = int(window)

    def get_config(self):
        return {
            "global_clipnorm": self.global_clipnorm,
            "skip_nonfinite": self.skip_nonfinite,
            "spike_zscore": self.spike_zscore,
            "window": self.window,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def __eq__(self, other):
        return isinstance(other, StepGuard) and self.get_config() == other.get_config()

    def __hash__(self):
        return hash(tuple(self.get_config().values()))

    def __repr__(self):
        return "StepGuard(" + ", ".join(f"{k}={v!r}" for k, v in self.get_config().items()) + ")"


def step_guard_or_error(value, other=""):
    """`value` if it is a `StepGuard`, else a `TypeError` that shows the right form; `other` names what else is taken."""
    if not isinstance(value, StepGuard):
        raise TypeError(
            f"`step_guard` must be a keras_nanguard.StepGuard, for example StepGuard(global_clipnorm=1.0){other and ', '}{other}. "
            f"Received: step_guard={value!r} (of type {type(value).__name__})"
        )
    return value


def refuse_two_clips(guard, optimizers):
    """A number for a clip in two places is an error."""
    if not isinstance(guard.global_clipnorm, float):
        return
    for optimizer in optimizers:
        for leaf in leaf_optimizers(optimizer):
            for name in ("clipnorm", "clipvalue", "global_clipnorm"):
                if getattr(leaf, name):
                    raise ValueError(
                        f"The gradients would be clipped twice: StepGuard(global_clipnorm={guard.global_clipnorm}) and "
                        f"{type(leaf).__name__}({name}={getattr(leaf, name)}). Give the number in one place: leave {name} out of the "
                        'optimizer, or use StepGuard(global_clipnorm="adaptive") or None.'
                    )
