"""`AdaptiveLRBackoff`: lowers the learning rate when training is unstable, restores it when calm."""

import logging
import math
import numbers

from ..fit.model_guard import step_guard_of
from ..policy.lr_scale import BackoffPolicy
from ..report import Messenger
from ..step.step_guard import StepGuard
from .guarding_callback import GuardingCallback


def _whole(name, value, least, most):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= value <= most:
        raise ValueError(f"`{name}` must be an int >= {least} and <= {most}. Received: {name}={value!r}")
    return int(value)


def _between(name, value, low, high, what):
    number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low < value <= high:
        raise ValueError(f"`{name}` must be {what}. Received: {name}={value!r}")
    return float(value)


class AdaptiveLRBackoff(GuardingCallback):
    """Multiplies the learning rate by a scale in [min_scale, 1] that drops when training is unstable and grows back once calm.

    It works with whatever rate the optimizer has (a float, a `LearningRateSchedule`, a callable, inside a `LossScaleOptimizer`
    or in the parts of a `MultiOptimizer`), leaves that rate itself alone, and so composes with `LearningRateScheduler`
    and `ReduceLROnPlateau`. The scale moves inside the compiled step, at the very step and without a retrace. The logs of `fit` show
    it as `learning_rate_scale`.

    The scale is multiplied by `factor` when `patience` steps were skipped, or `patience` gradient norms were spikes, within
    `cooldown` steps; one bad row changes nothing. `cooldown` steps without either it begins to grow, so that `regrow_steps` more undo
    one drop.

    Alone it guards the step with `StepGuard(global_clipnorm=None)` (a `SafeModel` with its own), never goes back, and stops after
    an epoch in which no step was accepted. With a `NanGuardCallback` in the list, before or after it, that one's guard
    is used.

    Args:
        factor: float in (0, 1), default 0.5: what a drop multiplies the scale with.
        patience: int from 1 to 1000, default 3, at most `cooldown`: how many bad steps (or spikes) close together cause a drop.
        cooldown: int >= 1, default 50, steps: how close together that is, and how long it must be calm before the scale grows.
        regrow_steps: int >= 1, default 200, steps: how long growing back by one `factor` takes.
        min_scale: float in (0, 1], default 1e-3: the scale never falls below.
        spike_zscore: float > 0, default 6.0: the robust z-score (median and MAD of the accepted norms in the guard's
            window, the MAD floored at 1e-3 of the median) above which a gradient norm is a spike, if it is 1.5 times the
            largest of them too, the last 16 left out: a batch that is an outlier in every epoch is no sign of divergence.

    Raises:
        ValueError: if an argument is out of range; if the list holds two.

    Example:

    >>> model.fit(x, y, callbacks=[NanGuardCallback(), AdaptiveLRBackoff(patience=2)])
    """

    role = "backoff"

    def __init__(self, factor=0.5, *, patience=3, cooldown=50, regrow_steps=200, min_scale=1e-3, spike_zscore=6.0):
        super().__init__()
        below_one = math.nextafter(1.0, 0.0)
        self.policy = BackoffPolicy(
            factor=_between("factor", factor, 0.0, below_one, "a float > 0 and < 1"),
            patience=_whole("patience", patience, 1, most=1000),
            cooldown=_whole("cooldown", cooldown, 1, most=10**9),
            regrow_steps=_whole("regrow_steps", regrow_steps, 1, most=10**9),
            min_scale=_between("min_scale", min_scale, 0.0, 1.0, "a float > 0 and <= 1"),
            spike_zscore=_between("spike_zscore", spike_zscore, 0.0, math.inf, "a finite float > 0"),
        )
        if self.policy.patience > self.policy.cooldown:
            raise ValueError(
                "`patience` steps within `cooldown` steps lower the rate, so `patience` must be <= `cooldown`. "
                f"Received: patience={patience}, cooldown={cooldown}"
            )

    def get_config(self):
        return {name: getattr(self.policy, name) for name in ("factor", "patience", "cooldown", "regrow_steps", "min_scale", "spike_zscore")}

    def chosen_step_guard(self):
        own = step_guard_of(self.session.model)
        return own if own is not None else StepGuard(global_clipnorm=None)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        logs = logs or {}
        if self.drives and math.isnan(logs.get("grad_norm", 0.0)) and logs.get("skipped_steps", 0) > 0:
            self.model.stop_training = True
            text = (
                f"epoch {epoch}: no step was accepted; training stopped, weights unchanged since. "
                "A lower learning rate cannot help: look at the data and the loss, or add keras_nanguard.NanGuardCallback()."
            )
            verbose = self.verbosity()
            if verbose:
                Messenger(verbose=verbose).say_once("stop", text, bar_open=verbose in (1, "auto"))
            elif self.is_chief():
                logging.getLogger("keras_nanguard").warning("%s", text)  # there is no report that would tell it
