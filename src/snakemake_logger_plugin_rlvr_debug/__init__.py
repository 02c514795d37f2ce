"""Snakemake's logger plug-in of this project: what happens in a run, as JSON lines for the program that started it.

    snakemake --logger rlvr-debug --logger-rlvr-debug-events FILE

Snakemake finds a plug-in by the name of its package. What it says on the terminal stays as it is.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from logging import LogRecord

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

__all__ = ["LogHandler", "LogHandlerSettings"]

# what a line has of each kind of event, by Snakemake's own names
_FIELDS = {
    LogEvent.RUN_INFO: ("stats",),
    LogEvent.PROGRESS: ("done", "total"),
    LogEvent.JOB_INFO: ("rule_name", "wildcards"),
    LogEvent.JOB_ERROR: ("rule_name", "log"),
}


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """The plug-in's options on Snakemake's command line."""

    events: str = field(
        default="/dev/null", metadata={"help": "File or pipe that the events are written to."}
    )


class LogHandler(LogHandlerBase):
    """Write a line for each event of a kind in _FIELDS."""

    writes_to_stream = False
    # such a file would be named as a log to read
    writes_to_file = False
    # what --quiet hides from the terminal is an event all the same
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        assert isinstance(self.settings, LogHandlerSettings)
        # not buffered: whoever reads a pipe's other end sees each event as it happens
        self._file = FileIO(self.settings.events, "w")

    def emit(self, record: LogRecord) -> None:
        event = getattr(record, "event", None)
        if event in _FIELDS:
            line = {"event": event, **{name: getattr(record, name) for name in _FIELDS[event]}}
            # whoever reads them may be gone: the run goes on
            with suppress(BrokenPipeError):
                self._file.write(json.dumps(line, default=str).encode() + b"\n")

    def close(self) -> None:
        self._file.close()
        super().close()
