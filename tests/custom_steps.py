"""Train steps of one's own, and loops, as people write them on the backend that runs."""

import keras
import worlds

ops = keras.ops


class Body:
    """An autoencoder with noise; the kinds below give it a `train_step`."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(4), keras.layers.Dense(6)
        self.norm = keras.layers.BatchNormalization()
        self.tracker = keras.metrics.Mean(name="loss")
        self.noise = keras.random.SeedGenerator(3)

    def call(self, x, training=False):
        code = self.norm(self.encoder(x), training=training)
        return self.decoder(code + (keras.random.normal(ops.shape(code), seed=self.noise) if training else 0.0))

    @property
    def metrics(self):
        return [self.tracker]

    def parts(self):
        """The variables of each of two optimizers."""
        return [[*self.encoder.trainable_variables, *self.norm.trainable_variables], self.decoder.trainable_variables]


def _loss_and_grads(model, loss_fn, variables):
    """On the backends whose steps assign to variables."""
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_fn()
        return loss, tape.gradient(loss, [v.value for v in variables])
    model.zero_grad()
    loss = loss_fn()
    loss.backward()
    return loss.detach(), [v.value.grad for v in variables]


class Stateful:
    """By kind, for TensorFlow and torch."""

    @staticmethod
    def vae(self, data):
        """Its loss is known only from its logs."""
        x, _ = data
        loss, grads = _loss_and_grads(self, lambda: ops.mean(ops.square(self(x, training=True) - x)), self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    @staticmethod
    def teacher(self, data):
        """Looks at the weights that its own update has just moved."""
        x, _ = data
        loss, grads = _loss_and_grads(self, lambda: self.compute_loss(x, x, self(x, training=True)), self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        self.followed.assign(0.9 * self.followed + 0.1 * self.encoder.kernel)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result(), "followed": ops.sum(self.followed)}

    @staticmethod
    def gan(self, data):
        """Two optimizers, the second after the first has moved weights."""
        x, _ = data
        for optimizer, variables in zip(self.two, self.parts()):
            loss, grads = _loss_and_grads(self, lambda: ops.mean(ops.square(self(x, training=True) - x)), variables)
            optimizer.apply_gradients(zip(grads, variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


class Stateless:
    """By kind, for JAX."""

    @staticmethod
    def _tracked(self, metrics, loss):
        return self.tracker.stateless_update_state(metrics, loss)

    @staticmethod
    def _grads(self, state, x, places=None):
        import jax

        trainable, non_trainable = state

        def loss_fn(chosen, non_trainable):
            values = list(trainable)
            for place, value in zip(places or range(len(trainable)), chosen):
                values[place] = value
            y, written = self.stateless_call(values, non_trainable, x, training=True)
            return ops.mean(ops.square(y - x)), written

        chosen = [trainable[place] for place in places or range(len(trainable))]
        (loss, written), grads = jax.value_and_grad(loss_fn, has_aux=True)(chosen, non_trainable)
        return loss, written, chosen, grads

    @staticmethod
    def vae(self, state, data):
        trainable, non_trainable, own, metrics = state
        loss, non_trainable, _, grads = Stateless._grads(self, (trainable, non_trainable), data[0])
        trainable, own = self.optimizer.stateless_apply(own, grads, trainable)
        metrics = Stateless._tracked(self, metrics, loss)
        return {"loss": self.tracker.stateless_result(metrics)}, (trainable, non_trainable, own, metrics)

    @staticmethod
    def teacher(self, state, data):
        logs, (trainable, non_trainable, own, metrics) = Stateless.vae(self, state, data)
        place = next(k for k, v in enumerate(self.non_trainable_variables) if v is self.followed)
        kernel = next(value for v, value in zip(self.trainable_variables, trainable) if v is self.encoder.kernel)
        non_trainable = list(non_trainable)
        non_trainable[place] = 0.9 * non_trainable[place] + 0.1 * kernel
        return {**logs, "followed": ops.sum(non_trainable[place])}, (trainable, non_trainable, own, metrics)


STATELESS = keras.config.backend() == "jax"
KINDS = ("vae", "teacher") if STATELESS else ("vae", "teacher", "gan")  # Keras' stateless state has room for one optimizer


def model_class(kind, base):
    """The class that a user would write, on top of `keras.Model` or `SafeModel`."""
    step = getattr(Stateless if STATELESS else Stateful, kind)

    def train_step(self, *args):
        return step(self, *args)

    def __init__(self):
        Body.__init__(self)
        if kind == "teacher":
            self.followed = self.add_weight(shape=(6, 4), name="followed", initializer="zeros", trainable=False)

    return type(kind.title(), (Body, base), {"__init__": __init__, "train_step": train_step, "__module__": __name__})


def world(kind, base, **compile):
    worlds.seed_everything()
    model = model_class(kind, base)()
    x, y = worlds.data()
    model(x[:1], training=True)
    if kind == "gan":
        model.two = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01, momentum=0.9)]
        model.compile(**compile)
        for optimizer, variables in zip(model.two, model.parts()):
            optimizer.build(variables)
    else:
        model.compile("adam", "mse", **compile)
    return worlds.World(model, x, y)


# --- loops ------------------------------------------------------------------------------------------------------------


def loop(world, batches, guard=None, optimizer=None, compiled=False):
    """Trains as people write it; with a guard, or plainly. Gives for each step whether it was applied."""
    keras.utils.set_random_seed(1)
    optimizer = guard._optimizer if guard else optimizer
    return _LOOPS[keras.config.backend()](world.model, batches, guard, optimizer, compiled)


def _stateful(model, batches, guard, optimizer, compiled):
    import contextlib

    def step(x, y):
        def loss_fn():
            with guard.forward() if guard is not None else contextlib.nullcontext():
                return ops.mean(ops.square(model(x, training=True) - y))

        loss, grads = _loss_and_grads(model, loss_fn, model.trainable_variables)
        if guard is None:
            optimizer.apply(grads, model.trainable_variables)
            return True
        return guard.apply(grads, model.trainable_variables, loss=loss).applied

    if compiled and keras.config.backend() == "tensorflow":
        import tensorflow as tf

        step = tf.function(step)
    elif compiled:
        import torch

        step = torch.compile(step)
    return [bool(step(*map(ops.convert_to_tensor, batch))) for batch in batches]


def _stateless(model, batches, guard, optimizer, compiled):
    import jax

    def loss_fn(trainable, non_trainable, x, y):
        predicted, written = model.stateless_call(trainable, non_trainable, x, training=True)
        return ops.mean(ops.square(predicted - y)), written

    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)

    def step(guard_state, trainable, non_trainable, own, x, y):
        (loss, written), grads = grad_fn(trainable, non_trainable, x, y)
        if guard is None:
            return True, None, *optimizer.stateless_apply(own, grads, trainable), written
        outcome, guard_state, trainable, own, non_trainable = guard.stateless_apply(
            guard_state, own, grads, trainable, loss=loss, non_trainable_before=non_trainable, non_trainable_after=written
        )
        return outcome.applied, guard_state, trainable, own, non_trainable

    step = jax.jit(step) if compiled else step
    optimizer.build(model.trainable_variables)
    groups = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    trainable, non_trainable, own = ([v.value for v in group] for group in groups)
    guard_state, applied = guard.initial_state() if guard is not None else None, []
    for x, y in batches:
        ok, guard_state, trainable, own, non_trainable = step(guard_state, trainable, non_trainable, own, x, y)
        applied.append(bool(ok))
    for group, values in zip(groups, (trainable, non_trainable, own)):
        for variable, value in zip(group, values):
            variable.assign(value)
    if guard is not None:
        guard.last_state = guard_state
    return applied


_LOOPS = {"tensorflow": _stateful, "torch": _stateful, "jax": _stateless}


def report(guard):
    """The report of a guard that `loop` used."""
    return guard.report(guard.last_state) if STATELESS else guard.report()


def batches(arguments):
    x, y = arguments["x"], arguments["y"]
    return [(x[k : k + worlds.BATCH], y[k : k + worlds.BATCH]) for k in range(0, len(x), worlds.BATCH)]
