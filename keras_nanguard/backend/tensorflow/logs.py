"""The logs of a guarded step: a refused step reports what stood before it, NaN where nothing does, never 0."""

import tensorflow as tf

from .update import branch


def of_step(model, memory, outcome, logs, across):
    """`logs` with the guard's own keys, the values chosen by the verdict."""
    none_accepted = tf.equal(outcome["epoch_accepted"], 0)
    extras = {
        "grad_norm": tf.where(none_accepted, float("nan"), outcome["epoch_norm"]),
        "skipped_steps": tf.cast(outcome["epoch_skipped"], tf.float32),
    }
    if "learning_rate_scale" in outcome:
        extras["learning_rate_scale"] = outcome["learning_rate_scale"]
    if not isinstance(logs, dict):
        return {**extras, "loss": logs}
    return {**extras, **_chosen(model, memory, outcome["applied"], none_accepted, logs, across)}


def _chosen(model, memory, applied, none_accepted, logs, across):
    numbers = {k: tf.convert_to_tensor(v) for k, v in logs.items() if _is_number(v)}
    others = {k: v for k, v in logs.items() if k not in numbers}
    if not numbers:
        return logs
    from_metrics = set(logs) == set(model.get_metrics_result())

    def before():
        if from_metrics:  # the metrics have been put back
            return {k: _nan_where(none_accepted, tf.cast(v, numbers[k].dtype)) for k, v in model.get_metrics_result().items()}
        if across:
            return {k: _nan_where(True, v) for k, v in numbers.items()}
        last = memory.last_logs(len(floats)).read_value()
        kept = {k: tf.cast(last[place], numbers[k].dtype) for place, k in enumerate(floats)}
        return {k: kept.get(k, v) for k, v in numbers.items()}

    def now():
        if not from_metrics and not across:
            memory.last_logs(len(floats)).assign(tf.stack([tf.cast(numbers[k], tf.float32) for k in floats]))
        return numbers

    floats = [k for k, v in numbers.items() if v.dtype.is_floating and v.shape.rank == 0]
    if not from_metrics and not across:
        memory.last_logs(len(floats))  # made outside of the branches
    return {**others, **branch(applied, now, before)}


def _is_number(value):
    return isinstance(value, (int, float, tf.Tensor, tf.Variable)) or hasattr(value, "__tf_tensor__")


def _nan_where(condition, value):
    return tf.where(condition, tf.cast(float("nan"), value.dtype), value) if value.dtype.is_floating else value
