"""The text of a report: what a person wants to read after a run."""

from .wording import REASONS, ascii_only, count, one_line, sentence, where, wrapped

_IN_FULL = 3  # incidents of one kind; the rest is counted
_NOTES = 20


def report_text(report) -> str:
    """What happened in a run, as plain ASCII of at most 100 columns.

    Args:
        report: a `RunReport`.

    Example:

    >>> print(report_text(RunReport(outcome="completed", totals={"steps": 480})).splitlines()[0])
    healthy: 480 steps, none skipped.
    """
    lines = wrapped(headline(report))
    if mostly_skipped(report) and report.outcome != "completed":
        lines += wrapped(_BUG.format(**_skips(report)))
    lines += wrapped("totals: " + ", ".join(f"{key}={number}" for key, number in report.totals.items()))
    lines += _incidents(report)
    lines += wrapped(f"judged: {report.judged}")
    lines += _notes(report.notes)
    lines += wrapped(f"run: {report.outcome}, started {report.started}, {report.duration:.1f} seconds")
    lines += wrapped(f"versions: {_pairs(report.versions) or 'not recorded'}")
    lines += wrapped(f"settings: {_pairs(report.settings) or 'not recorded'}")
    return "\n".join(lines)


_BUG = (
    "A BUG, NOT A RECOVERY: {skipped} of {total} were skipped, so the model learned {left}. "
    "Find the cause before you use it."
)


def mostly_skipped(report) -> bool:
    """Whether more than half of the steps were skipped: to be shown as a bug, no recovery to be proud of."""
    return 2 * report.totals["skipped"] > report.totals["steps"]


def headline(report) -> str:
    """The one sentence that says how the run went."""
    totals, stop = report.totals, _stop(report)
    if report.outcome == "stopped" or report.outcome == "raised" and stop:
        return _stopped(report, stop)
    so_far = _so_far(report)
    if report.outcome == "running":
        return f"running: {so_far} so far."
    if report.outcome == "raised":
        return f"ended by an exception: {so_far} before it."
    if report.outcome == "interrupted":
        return f"interrupted: {so_far} before that."
    if totals["steps"] == 0:
        return "nothing to judge: no training step was seen."
    if mostly_skipped(report):
        return _BUG.format(**_skips(report))
    if totals["skipped"] or totals["rollbacks"]:
        return f"recovered: {so_far}; training went on and completed."
    mentions = sum(report.incident_counts.values())
    if mentions:
        return f"completed: {so_far}; {count(mentions, 'incident')}, see below."
    return f"healthy: {so_far}" + (f"; {count(len(report.notes), 'note')} below." if report.notes else ".")


def _stopped(report, stop):
    if stop is None:
        return f"stopped with the last good weights: {_so_far(report)}."
    verb = "raised an error" if report.outcome == "raised" else "stopped"
    kept = "" if stop.reason == "initial_state" else " with the last good weights"
    return f"{verb} at {where(stop)}{kept} because {REASONS[stop.reason]}; {_so_far(report)}."


def _stop(report):
    return next((incident for incident in reversed(report.incidents) if incident.action == "stop"), None)


def _so_far(report):
    """ "3 of 480 steps skipped, 1 rollback, 2 steps clipped": what is 0 is left out, but for the steps."""
    totals = report.totals
    if totals["skipped"]:
        said = [f"{totals['skipped']} of {count(totals['steps'], 'step')} skipped"]
    else:
        said = [count(totals["steps"], "step"), "none skipped"] if totals["steps"] else ["no step"]
    if totals["rollbacks"]:
        said.append(count(totals["rollbacks"], "rollback"))
    if totals["clipped"]:
        said.append(f"{count(totals['clipped'], 'step')} clipped")
    if totals["backoffs"]:
        said.append(f"learning rate lowered {count(totals['backoffs'], 'time')}")
    return ", ".join(said)


def _skips(report):
    skipped, steps = report.totals["skipped"], report.totals["steps"]
    left = max(steps - skipped, 0)
    return {"skipped": skipped, "total": count(steps, "step"), "left": f"from the other {left} only" if left else "nothing"}


def _incidents(report):
    if not report.incident_counts:
        return ["incidents: none"]
    lines = ["incidents (epochs, batches and steps count from 0):"]
    for kind, total in report.incident_counts.items():
        action, _, reason = kind.partition("/")
        lines += wrapped(f"{action}, {reason}: {count(total, 'time')}", "  ")
        known = [incident for incident in report.incidents if (incident.action, incident.reason) == (action, reason)]
        for incident in known[:_IN_FULL]:
            lines += wrapped(sentence(incident) + _measured(incident), "    ")
            lines += _diagnosis(incident.diagnosis)
        if total > len(known[:_IN_FULL]):
            last = f"; the last one kept at {where(known[-1])}" if len(known) > _IN_FULL else ""
            lines += wrapped(f"and {total - len(known[:_IN_FULL])} more{last}", "    ")
    return lines


def _measured(incident):
    pairs = [(name, getattr(incident, name)) for name in ("loss", "grad_norm")]
    said = ", ".join(f"{name}={value:g}" for name, value in pairs if value is not None)
    return f" ({said})" if said else ""


def _diagnosis(diagnosis):
    """A `Diagnosis` speaks for itself; of one that was loaded, the sentences meant for people."""
    if diagnosis is None:
        return []
    if isinstance(diagnosis, dict):
        lines = [str(diagnosis[key]) for key in ("explanation", "remedy") if diagnosis.get(key)]
    else:
        lines = [str(diagnosis)]
    return [wrap for text in lines for line in ascii_only(text).splitlines() for wrap in wrapped(line, "      ")]


def _notes(notes):
    lines = ["notes:"] if notes else []
    for note in notes[:_NOTES]:
        lines += wrapped(f"- {note}", "  ")
    if len(notes) > _NOTES:
        lines.append(f"  and {len(notes) - _NOTES} more")
    return lines


def _pairs(value):
    """A dict as "a=1, b=(c=2)"."""
    return ", ".join(
        f"{key}=({_pairs(item)})" if isinstance(item, dict) else f"{key}={one_line(str(item))}" for key, item in value.items()
    )
