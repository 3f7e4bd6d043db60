"""`SafeTrainStep` and `SafeModel`: a model whose train step is guarded, in `fit`, in `train_on_batch` and when called."""

import functools
import inspect
import threading

import keras

from ..callbacks.guarding_callback import GuardingCallback
from ..fit.model_guard import ModelGuard
from ..state import optimizers_of
from .step_guard import StepGuard
from .step_guard import refuse_two_clips
from .step_guard import step_guard_or_error

_running = threading.local()  # the model whose own train step this thread is in


class SafeTrainStep:
    """Mixin that guards `Model.train_step`: a step that is not healthy never happened.

    List it before the Keras class. The guard goes round whatever `train_step` the class has, also one defined below; `fit`,
    `train_on_batch` and a direct call of `train_step` are guarded alike, and give the results of plain Keras while nothing is wrong.

    >>> class Net(SafeTrainStep, keras.Sequential):
    ...     pass
    >>> model = Net([keras.layers.Dense(1)])
    >>> model.compile("adam", "mse", step_guard=StepGuard(global_clipnorm=1.0))

    `compile` takes one argument more, `step_guard`: a `StepGuard`, by default `StepGuard()`. It is saved with the model.

    Where an update turns finite gradients into non-finite weights, `fit` and `train_on_batch` raise `NonFiniteTrainingError`: no
    copy is kept. Add a `NanGuardCallback` to have one.

    Raises:
        TypeError: at class creation, if the mixin comes after the Keras class; in `compile`, if `step_guard` is no `StepGuard`.
    """

    safe_train_function = True

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if keras.Model in order and order.index(keras.Model) < order.index(SafeTrainStep):
            others = ", ".join(base.__name__ for base in cls.__bases__ if base is not SafeTrainStep)
            raise TypeError(
                f"In `class {cls.__name__}({', '.join(base.__name__ for base in cls.__bases__)})` the train step of Keras comes before the "
                f"guarded one, and nothing would be guarded. List the mixin first: `class {cls.__name__}(SafeTrainStep, {others})`."
            )
        if "train_step" in cls.__dict__:
            cls.train_step = _guarded(cls.__dict__["train_step"])

    @property
    def step_guard(self):
        """The `StepGuard` of this model; set it with `compile`."""
        return vars(self).get("_step_guard") or StepGuard()

    def compile(self, *args, step_guard=None, **kwargs):
        guard = StepGuard() if step_guard is None else step_guard_or_error(step_guard)
        super().compile(*args, **kwargs)
        self.__dict__["_step_guard"] = guard
        refuse_two_clips(guard, optimizers_of(self))

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            config["step_guard"] = keras.saving.serialize_keras_object(self.step_guard)
        return config

    def compile_from_config(self, config):
        guard = config.pop("step_guard", None)
        if type(self).compile is not SafeTrainStep.compile:
            super().compile_from_config(config)  # the model's own `compile`: Keras says what to do
            return
        config = keras.saving.deserialize_keras_object(config)
        self.compile(**config, step_guard=keras.saving.deserialize_keras_object(guard) if guard else None)
        if getattr(self, "optimizer", None) is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self, *args, **kwargs):
        given = inspect.signature(super().fit).bind(*args, **kwargs)
        callbacks = given.arguments.get("callbacks")
        flat = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else keras.tree.flatten(callbacks)
        if not any(isinstance(callback, GuardingCallback) for callback in flat):
            watch = GuardingCallback()
            if isinstance(callbacks, keras.callbacks.CallbackList):
                callbacks.append(watch)
                watch.set_params(callbacks.params)
                watch.set_model(self)
            else:
                given.arguments["callbacks"] = [watch, *(callback for callback in flat if callback is not None)]
        return super().fit(*given.args, **given.kwargs)

    def make_train_function(self, force=False):
        ModelGuard.of(self).make_safe_train_function(force)

    def keras_make_train_function(self, force=False):
        super().make_train_function(force=force)

    def train_step(self, *args):
        return super().train_step(*args)

    @property
    def unguarded_train_step(self):
        """The class's own train step, bound; steps of its parents that it calls are not guarded a second time."""
        own = type(self).train_step.__wrapped__
        if own is _KERAS_STEP:
            return keras.Model.train_step.__get__(self)

        @functools.wraps(own)
        def train_step(*args):
            before, _running.model = getattr(_running, "model", None), self
            try:
                return own(self, *args)
            finally:
                _running.model = before

        return train_step


def _guarded(own):
    """A train step as the class has it, guarded when it is called from outside."""

    @functools.wraps(own)
    def train_step(self, *args):
        if getattr(_running, "model", None) is self:
            return own(self, *args)
        return ModelGuard.of(self).guarded_step()(*args)

    return train_step


_KERAS_STEP = SafeTrainStep.train_step
SafeTrainStep.train_step = _guarded(_KERAS_STEP)


@keras.saving.register_keras_serializable(package="keras_nanguard")
class SafeModel(SafeTrainStep, keras.Model):
    """`keras.Model` with a guarded train step (see `SafeTrainStep`), functional or subclassed.

    >>> inputs = keras.Input((8,))
    >>> model = SafeModel(inputs, keras.layers.Dense(1)(inputs))
    >>> model.compile("adam", "mse")
    >>> history = model.fit(x, y)  # with `grad_norm` and `skipped_steps` in its logs

    Subclassed, it takes a `call` of yours, and a `train_step` too. The Sequential form is `class Net(SafeTrainStep, keras.Sequential)`.
    Loading a saved one needs the class to be known: name `keras_nanguard.SafeModel` before `keras.saving.load_model`.
    """

    def __new__(cls, *args, **kwargs):
        if _is_functional(args, kwargs):
            cls = _functional_class(cls)
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        if len(args) == 1 and isinstance(args[0], (list, tuple)) and "outputs" not in kwargs:
            raise TypeError(
                "SafeModel([...]) is not a model: it takes (inputs, outputs), or is subclassed. For a stack of layers write\n"
                "    class Net(keras_nanguard.SafeTrainStep, keras.Sequential):\n        pass\n    model = Net([...])"
            )
        if _is_functional(args, kwargs) and not isinstance(self, _functional()):
            self.__class__ = _functional_class(type(self))
        super().__init__(*args, **kwargs)


def _is_functional(args, kwargs):
    return len(args) == 2 or (len(args) == 1 and "outputs" in kwargs) or ("inputs" in kwargs and "outputs" in kwargs)


def _functional():
    """Keras' class of functional models, which has no public name."""
    from keras.src.models.functional import Functional

    return Functional


@functools.cache
def _functional_class(cls):
    """The functional form of a subclass: a class of the same name that Keras' machinery for functional models belongs to.

    Keras itself would rewrite the bases of `cls`, and fails to where a mixin is among them.
    """
    if issubclass(cls, _functional()):
        return cls
    from keras.src.saving import object_registration

    body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    made = type(cls)(cls.__name__, (cls, _functional()), body)

    def reduce(self):  # pickle finds classes by name, and the name is that of `cls`
        load, saved = super(made, self).__reduce__()
        return getattr(cls, load.__name__), saved

    made.__reduce__ = reduce
    object_registration.GLOBAL_CUSTOM_NAMES[made] = keras.saving.get_registered_name(cls)
    return made
