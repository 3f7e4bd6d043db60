"""What the callbacks of this package share: joining the `fit`, and never being in the list without being in use."""

import keras

from .. import backend
from ..fit.session import FitSession


class GuardingCallback(keras.callbacks.Callback):
    """Base of the callbacks that guard a `fit`; by itself it raises when the state turns non-finite.

    `role` tells the kinds apart; a `fit` has at most one of each.
    """

    role = "watch"
    async_safe = True

    def __init__(self):
        super().__init__()
        self.session = None

    def __deepcopy__(self, memo):
        """A fresh callback with the same settings: tuners copy callbacks, and what a run left is not a setting."""
        return type(self)(**self.get_config())

    def get_config(self):
        return {}

    def chosen_step_guard(self):
        """The `StepGuard` for this `fit`, where this callback is the driver."""
        return self.session.own_step_guard()

    @property
    def drives(self):
        return self.session is not None and self.session.driver is self

    def set_model(self, model):
        super().set_model(model)
        self.session = FitSession.join(model, self)

    def on_train_begin(self, logs=None):
        if self.drives and self.session.function is not None:
            self.session.state.begin()

    def on_epoch_begin(self, epoch, logs=None):
        if self.drives and self.session.function is not None:
            self.session.function.memory.begin_epoch()

    def on_train_batch_end(self, batch, logs=None):
        if self.session.function is None or not self.session.function.calls:
            raise RuntimeError(
                f"{type(self).__name__} is in the list of callbacks, but the train function that ran is not the guarded one: nothing is "
                f"protected. {type(self._model).__name__} (or another callback) replaces `train_function` or `make_train_function`, or the "
                "loop that calls the callbacks is not Keras' `fit`. Let Keras make the train function, subclass keras_nanguard.SafeModel, "
                "or use keras_nanguard.GradientGuard in a loop of your own."
            )

    def on_test_begin(self, logs=None):
        if self.session.function is None:  # `evaluate` outside of `fit`
            self.session.end()
        elif self.drives:
            self.look_at_state()

    def on_predict_begin(self, logs=None):
        if self.session.function is None:
            self.session.end()

    def on_epoch_end(self, epoch, logs=None):
        if self.drives:
            self.look_at_state()

    def on_train_end(self, logs=None):
        self.session.end()

    def look_at_state(self):
        """Between the last batch of an epoch and whatever saves or validates."""
        if not self.session.state_is_sound():
            self.on_bad_state()

    def on_bad_state(self):
        """The update made non-finite values of finite gradients."""
        self.session.state.refuse()

    def is_chief(self):
        """Whether to print and to write files is for this process, of those that train together."""
        return backend.active().is_chief()

    def verbosity(self):
        """`verbose` of `fit`, 0 where another process prints."""
        return (self.params or {}).get("verbose", 0) if self.is_chief() else 0

    def after_execution(self, logs):
        """The train function has returned these logs, as tensors; called on the thread of `fit`."""

    def on_fit_error(self, error):
        """The train function raised."""
