"""The logs of a guarded step: a refused step reports what stood before it, NaN where nothing does, never 0."""

import tensorflow as tf

EXTRAS = ("grad_norm", "skipped_steps", "learning_rate_scale")


def extras(outcome):
    """The guard's own keys."""
    return dict(zip(EXTRAS, outcome["logs"]))


class Choice:
    """The two sets of logs between which the verdict decides.

    Attributes:
        others: what is no number, the same either way.
    """

    def __init__(self, model, memory, logs, across):
        logs = logs if isinstance(logs, dict) else {"loss": logs}
        self._model = model
        self._numbers = {k: tf.convert_to_tensor(v) for k, v in logs.items() if _is_number(v)}
        self.others = {k: v for k, v in logs.items() if k not in self._numbers}
        self._from_metrics = set(logs) == set(model.get_metrics_result())
        self._floats = [k for k, v in self._numbers.items() if v.dtype.is_floating and v.shape.rank == 0]
        remembers = self._floats and not self._from_metrics and not across
        self._last = memory.last_logs(len(self._floats)) if remembers else None

    def now(self):
        """Of an accepted step: its own."""
        if self._last is not None:
            self._last.assign(tf.stack([tf.cast(self._numbers[k], tf.float32) for k in self._floats]))
        return self._numbers

    def before(self, none_accepted):
        """Of a refused step: the metrics, which have been put back, else the logs of the last accepted step."""
        if self._from_metrics:
            results = {k: tf.cast(v, self._numbers[k].dtype) for k, v in self._model.get_metrics_result().items()}
            return {k: _nan_where(none_accepted, v) for k, v in results.items()}
        if self._last is None:
            return {k: _nan_where(True, v) for k, v in self._numbers.items()}
        last = self._last.read_value()
        held = {k: tf.cast(last[place], self._numbers[k].dtype) for place, k in enumerate(self._floats)}
        return {k: held.get(k, v) for k, v in self._numbers.items()}


def _is_number(value):
    return isinstance(value, (int, float, tf.Tensor, tf.Variable)) or hasattr(value, "__tf_tensor__")


def _nan_where(condition, value):
    return tf.where(condition, tf.cast(float("nan"), value.dtype), value) if value.dtype.is_floating else value
