"""What a guarded run left: recorded during `fit`, written as JSON, told as text. No framework is needed to read it."""

from .file import SCHEMA_VERSION, load_report, write_report
from .messages import Messenger
from .record import Incident, StepRecord
from .recorder import Recorder
from .run_report import RunReport
from .text import report_text

__all__ = [
    "Incident",
    "Messenger",
    "Recorder",
    "RunReport",
    "SCHEMA_VERSION",
    "StepRecord",
    "load_report",
    "report_text",
    "write_report",
]
