"""Three trainings of one task, without a guard, with it, and with the sound loss, told side by side."""

import math

from . import text
from .training import MAX_CONSECUTIVE_SKIPS

_COLUMNS = ("without guard", "with guard", "sound loss")


def tell(task, train, losses, why, door, say):
    """Runs the three trainings and says what happened.

    Args:
        task: a `training.Task`.
        train: `training.in_fit` or `training.in_loop`.
        losses: `(naive, sound)`.
        why: function of `(task, step, model)` that says what was the matter with the batch of a refused step.
        door: how it is trained, for the heading.
        say: what prints a line.

    Returns:
        The three `training.Outcome`s.
    """
    naive, sound = losses
    say(text.heading(door, "-"))
    outcomes = train(task, naive), train(task, naive, guarded=True), train(task, sound)
    in_fit = bool(outcomes[1].per_epoch)
    say("")
    say(_by_epoch(outcomes) if in_fit else _by_step(outcomes))
    say("")
    for line in _notes(outcomes, lambda step: why(task, step, outcomes[1].model)):
        say(text.paragraph(line, "  "))
    say("")
    say(text.table(("at the end", *_COLUMNS), _summary(outcomes)))
    return outcomes


def _by_epoch(outcomes):
    _, guarded, sound = outcomes
    epochs = _spread(range(len(sound.losses)), 8)
    last = len(guarded.losses) - 1
    epochs = sorted({*epochs, last})
    rows = []
    for epoch in epochs:
        cells = [text.number(run.losses[epoch]) if epoch < len(run.losses) else "-" for run in outcomes]
        if epoch <= last:
            cells[1] += f" ({guarded.per_epoch[epoch]} skipped)"
            if guarded.stopped is not None and epoch == last:
                cells[1] += ", stop"
        rows.append((epoch, *cells))
    return text.table(("loss in epoch", *_COLUMNS), rows)


def _by_step(outcomes):
    plain, guarded, sound = outcomes
    first = plain.first_bad or 0
    bad = guarded.skipped[:3] if guarded.stopped is None else [guarded.skipped[0], guarded.stopped]
    near = {step + move for step in (first, *bad) for move in (-1, 0, 1)}
    steps = sorted({*_spread(range(len(sound.losses)), 5), *(s for s in near if 0 <= s < len(sound.losses))})
    refused = set(guarded.skipped)
    rows = []
    for step in steps:
        cells = [text.number(run.losses[step]) if step < len(run.losses) else "-" for run in outcomes]
        if step in refused:
            cells[1] += ", stop" if step == guarded.stopped else ", skipped"
        rows.append((step, *cells))
    return text.table(("loss at step", *_COLUMNS), rows)


def _spread(values, most):
    values = list(values)
    if len(values) <= most:
        return values
    return [values[round(at * (len(values) - 1) / (most - 1))] for at in range(most)]


def _notes(outcomes, why):
    plain, guarded, _ = outcomes
    if plain.first_bad is not None:
        yield (
            f"Without guard: the loss is not finite at step {plain.first_bad}, and no later batch mends it: in the end "
            f"{len(plain.bad_variables)} of {plain.variables} variables of the model hold NaN."
        )
    for step in _one_per_reason(guarded.skipped, why):
        yield f"With guard, step {step}: {why(step)}."
    if guarded.skipped:
        yield f"Steps refused: {text.several(guarded.skipped)}."
    headline = str(guarded.report).split("\ntotals:")[0]
    yield f"The report of the guarded run: {headline}"
    if guarded.stopped is not None:
        if not guarded.per_epoch:
            yield f"The loop gives up after {MAX_CONSECUTIVE_SKIPS} refused steps in a row, with the last good weights."
        yield (
            "A prediction that has saturated stays saturated: the model does not change while its steps are refused, "
            "so that skipping on and going back cannot help. The remedy is the loss."
        )


def _one_per_reason(steps, why):
    first = {}
    for step in steps:
        first.setdefault(why(step), step)
    return list(first.values())[:3]


def _summary(outcomes):
    def row(name, cell):
        return (name, *(cell(run) for run in outcomes))

    return [
        row("steps", lambda run: run.steps),
        row("steps skipped", lambda run: len(run.skipped)),
        row("variables with NaN", lambda run: f"{len(run.bad_variables)} of {run.variables}"),
        row("loss, training data", lambda run: text.number(run.trained[0])),
        row("loss, held-out data", lambda run: text.number(run.held_out[0])),
        row("accuracy, training data", lambda run: f"{100 * run.trained[1]:.1f}%"),
        row("accuracy, held-out data", lambda run: f"{100 * run.held_out[1]:.1f}%"),
        row("how it ended", _verdict),
    ]


def _verdict(run):
    if run.bad_variables or not math.isfinite(run.trained[0]):
        return "lost"
    return "stopped, weights good" if run.stopped is not None else "trained on"
