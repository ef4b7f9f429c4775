"""Logs on standard error, one line an event: its name and fields, never a row's content.

ERROR = loss or a broken invariant, WARN = recovered, INFO = life cycle. All processes of a service
write to one stream; each line names its process. Libraries' logs and uncaught exceptions become
events too, so that every line is an event. docs/LOGS.md lists them.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import MutableMapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO, cast

import structlog

from connectors.secrets import hide
from service.runtime.redaction import scrub_event

log = structlog.get_logger()
# The process's fields in every line; a logger already used by the parent reads the child's.
_origin: dict[str, Any] = {}


def configure(level: str, process: str, form: str = "json") -> None:
    """Set up this process's logging; `process` names it in every line. form: json or text."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    _origin.update(process=process, pid=os.getpid())
    shown = (
        structlog.processors.JSONRenderer(default=str)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
    )
    structlog.configure(
        processors=[
            _with_origin,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            scrub_event,
            shown,
            _without_secrets,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, Lossy(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    _take_others()


def _without_secrets(_logger: Any, _method: str, line: Any) -> Any:
    """Scrub the whole line: a field may hold anything, which is a text only now."""
    return hide(line)


def _with_origin(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    # Not bound as context: a new thread starts with an empty one.
    return {**event, **_origin}


class Lossy:
    """A file that may lose lines: a full disk under the log stops nothing. lost: how many lines."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.lost = 0

    def write(self, text: str) -> None:
        """Write the text, or count it as lost."""
        try:
            self._file.write(text)
        except (OSError, ValueError):
            self.lost += 1

    def flush(self) -> None:
        """Flush the file; ignore an error."""
        with suppress(OSError, ValueError):
            self._file.flush()


def _take_others() -> None:
    """Turn libraries' logs, warnings and uncaught exceptions into events."""
    root = logging.getLogger()
    root.handlers = [_Events(logging.WARNING)]
    root.setLevel(logging.WARNING)
    warnings.showwarning = _warned
    sys.excepthook = _crashed
    threading.excepthook = _thread_crashed


class _Events(logging.Handler):
    """Receive records of standard logging, from warnings on."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record as an event."""
        log_event = log.error if record.levelno >= logging.ERROR else log.warning
        text, traceback = record.getMessage(), record.exc_info
        log_event("library.log", logger=record.name, text=text, exc_info=traceback)


def _warned(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    log.warning("library.warning", kind=category.__name__, text=str(message))


def _crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.error("process.crashed", exc_info=(kind, error, trace))


def _thread_crashed(args: threading.ExceptHookArgs) -> None:
    thread = args.thread.name if args.thread else ""
    log.error("thread.crashed", thread=thread, exc_info=args.exc_value)
