"""Reports of errors that nobody thought of: where they came from, for the developers.

A report lies in the state's folder, for the service's user alone, since a traceback's words may
hold values of rows. Invariant: what the catalog and the log say of such an error has no traceback,
and names the report; there are never more than MOST_REPORTS of them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from dataflow.errors import INTERNAL_ERROR, TidemarkError, ViewError
from service.runtime.log import log
from service.runtime.release import VERSION
from storage import clock

FOLDER = "reports"
MOST_REPORTS = 50


class Reports:
    """Used by the pipeline's thread. epoch: the one in hand."""

    def __init__(self, state: Path, epoch: Callable[[], int]) -> None:
        self._folder = state / FOLDER
        self._epoch = epoch

    def reported(self, error: TidemarkError, view: str) -> TidemarkError:
        """Return an error as it is, or that of a view for an unexpected exception with its epoch
        and the report that was written of it."""
        if error.code != INTERNAL_ERROR or error.__cause__ is None:
            return error
        epoch = self._epoch()
        report = self._write(error, view, epoch)
        kind = type(error.__cause__).__name__
        log.error("view.internal_error", view=view, why=error.what, kind=kind, report=report)
        told = ViewError(
            error.code,
            error.what,
            detail=f"{error.detail}; epoch {epoch}; report: {report}",
            hint=error.hint,
            relation=error.relation,
        )
        # Told once: what fails with this one later has the same report.
        told.__cause__ = None
        return told

    def _write(self, error: TidemarkError, view: str, epoch: int) -> str:
        path = self._folder / f"{clock.utc():%Y%m%dT%H%M%S.%f}-epoch-{epoch}.txt"
        cause = error.__cause__
        assert cause is not None
        lines = [
            f"tidemark {VERSION}, view {view}, epoch {epoch}",
            f"{error.what} [{error.code}]",
            "",
            *traceback.format_exception(cause),
        ]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines), errors="backslashreplace")
            for old in sorted(self._folder.glob("*.txt"))[:-MOST_REPORTS]:
                old.unlink(missing_ok=True)
        except OSError as failure:
            return f"not written ({failure.strerror})"
        return str(path)
