"""A report on disk: strict JSON with a schema version, there whole or not at all."""

import contextlib
import json
import os
import secrets

from .run_report import RunReport
from .values import strict

SCHEMA_VERSION = 1
FORMAT = "keras_nanguard.RunReport"


def write_report(report, path):
    """Write a report as JSON, atomically: whoever reads `path` sees the old file or the new one, never half of one.

    The text goes to a hidden file in the same folder, which then takes the place of `path`; missing folders are made.
    Whatever goes wrong, the old file stays and the hidden one is removed (a process that is killed outright can leave
    its hidden file, `.nanguard-*.tmp`).

    Args:
        report: a `RunReport`.
        path: str or `os.PathLike`, the file; a link is followed.

    Raises:
        OSError: if the file cannot be written; it names the path.

    Example:

    >>> write_report(RunReport(outcome="completed"), "runs/today.json")
    """
    content = {"format": FORMAT, "schema_version": SCHEMA_VERSION, **strict(report.to_dict())}
    data = (json.dumps(content, indent=1, allow_nan=False) + "\n").encode("utf-8")
    path = os.fspath(path)
    try:
        _replace(os.path.realpath(path), data)
    except OSError as error:
        raise _named(error, f"The report could not be written to {path!r}") from error


def _replace(target, data):
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".nanguard-{secrets.token_hex(8)}.tmp")
    # not `tempfile`: its files are for their owner only, and colleagues read reports
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _named(error, what):
    """The same kind of OSError with a message that names the report."""
    if error.errno is None:
        return OSError(f"{what}: {error}")
    return OSError(error.errno, f"{what}: {error.strerror}")


def load_report(path) -> RunReport:
    """Read a report that `write_report` (or `NanGuardCallback(report_path=...)`) wrote; needs no framework.

    Args:
        path: str or `os.PathLike`.

    Raises:
        FileNotFoundError: if there is no such file.
        OSError: if it cannot be read.
        ValueError: if it is not JSON, not a report, damaged, or of a newer schema than this version reads.

    Example:

    >>> write_report(RunReport(outcome="completed"), "runs/today.json")
    >>> load_report("runs/today.json").outcome
    'completed'
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, f"There is no report at {path!r}") from error
    except OSError as error:
        raise _named(error, f"The report {path!r} could not be read") from error
    try:
        content = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path!r} is not a report of keras_nanguard: it is not JSON ({error}).") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if type(version) is not int or version < 1 or content.get("format") != FORMAT:
        raise ValueError(f"{path!r} is JSON, but not a report of keras_nanguard.")
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"{path!r} was written by a newer keras_nanguard: its schema version is {version}, this one reads up to "
            f"{SCHEMA_VERSION}. Upgrade keras_nanguard to read it."
        )
    try:
        return RunReport.from_dict(content)
    except ValueError as error:
        raise ValueError(f"The report {path!r} is damaged: {error}") from error


def _refuse(name):
    raise ValueError(f"{name} is no JSON")
