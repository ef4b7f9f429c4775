"""Logs as JSON lines on standard error: an event name and fields, never a row's content.

ERROR = loss or a broken invariant, WARN = recovered, INFO = life cycle.
"""

from __future__ import annotations

import json
import logging
import sys

import structlog

from service.redaction import scrub, scrub_event


def configure(level: str, process: str) -> None:
    """Set up this process's logging; `process` names it in every line."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            scrub_event,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    # What libraries say for themselves: the web server's tracebacks.
    other = logging.StreamHandler(sys.stderr)
    other.setFormatter(_OneLine())
    logging.basicConfig(level=logging.WARNING, handlers=[other], force=True)


class _OneLine(logging.Formatter):
    """A record of the standard library as a line like ours."""

    def format(self, record: logging.LogRecord) -> str:
        event = {"event": "library", "level": record.levelname.lower(), "name": record.name}
        return json.dumps({**event, "text": scrub(super().format(record))})


log = structlog.get_logger()
