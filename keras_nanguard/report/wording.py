"""The words for what happened, shared by the lines printed during `fit` and the text of a report.

Epochs, batches and steps count from 0, as Keras callbacks see them (the progress bar's "Epoch 1/5" is epoch 0 here).
"""

import textwrap

WIDTH = 100

REASONS = {
    "loss": "the loss is not finite",
    "gradient": "the gradients are not finite",
    "state": "the state that the forward pass wrote is not finite",
    "update": "the update turned finite gradients into non-finite weights",
    "spike": "the gradient norm is finite but far above the recent ones",
    "validation": "the validation loss is not finite while training is",
    "initial_state": "the state was not finite before training",
}

DONE = {
    "skip": "step skipped, weights unchanged",
    "rollback": "rolled back to the last verified snapshot",
    "stop": "training stopped with the last good weights",
    "mention": "only mentioned, nothing was done",
}


def what_was_done(incident):
    """What was done about an incident. A state that was bad from the start has no good weights to go back to."""
    if incident.action == "stop" and incident.reason == "initial_state":
        return "training stopped"
    if incident.action == "mention" and incident.reason in ("loss", "gradient", "state"):
        return "applied all the same (skip_nonfinite=False)"
    return DONE[incident.action]


def where(incident):
    """Where an incident happened: "epoch 1, batch 3 (step 8), replica 0", as far as it is known."""
    parts = [f"{name} {value}" for name, value in (("epoch", incident.epoch), ("batch", incident.batch)) if value is not None]
    place = ", ".join(parts)
    if incident.step is not None:
        place = f"{place} (step {incident.step})" if place else f"step {incident.step}"
    if incident.replica is not None:
        place = f"{place}, replica {incident.replica}" if place else f"replica {incident.replica}"
    return place or ("start of fit" if incident.reason == "initial_state" else "somewhere in fit")


def sentence(incident):
    """One line for an incident: where, what was not finite, what was done, and its message."""
    line = f"{where(incident)}: {REASONS[incident.reason]}; {what_was_done(incident)}."
    return f"{line} {one_line(incident.message)}".rstrip()


def count(number, noun):
    """`count(1, "step")` is "1 step", `count(3, "step")` is "3 steps"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def some(names, limit=5):
    """The first of the names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def one_line(text):
    """`text` in ASCII and on one line: a console that cannot show a layer's name must not cost the run."""
    return " ".join(ascii_only(text).split())


def ascii_only(text):
    """`text` with everything but printable ASCII and white space as backslash escapes."""
    escaped = text.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(letter if letter.isprintable() or letter.isspace() else f"\\x{ord(letter):02x}" for letter in escaped)


def wrapped(text, indent=""):
    """The lines of one paragraph, each at most 100 columns, the later ones set in by two more."""
    return textwrap.wrap(one_line(text), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
