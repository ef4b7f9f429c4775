"""Reports of unexpected errors, with the traceback, for the developers.

A report is a file in the state directory, readable only by the service's user, because a traceback
may contain row values. Invariant: the catalog and the log show no traceback of such an error, only
the path of its report. At most MAX_REPORTS are retained.
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
MAX_REPORTS = 50


class Reports:
    """Used by the pipeline's thread only. epoch: returns the current epoch."""

    def __init__(self, state: Path, epoch: Callable[[], int]) -> None:
        self._folder = state / FOLDER
        self._epoch = epoch

    def reported(self, error: TidemarkError, view: str) -> TidemarkError:
        """Return the error to show for `view`.

        An unexpected exception gets a report, and becomes a ViewError with its epoch and the
        report's path. Any other error is returned unchanged.
        """
        if error.code != INTERNAL_ERROR or error.__cause__ is None:
            return error
        epoch = self._epoch()
        report = self._write(error, view, epoch)
        kind = type(error.__cause__).__name__
        log.error("view.internal_error", view=view, why=error.what, kind=kind, report=report)
        shown = ViewError(
            error.code,
            error.what,
            detail=f"{error.detail}; epoch {epoch}; report: {report}",
            hint=error.hint,
            relation=error.relation,
        )
        # Without a cause it is reported once: whatever fails with it later names the same report.
        shown.__cause__ = None
        return shown

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
            for old in sorted(self._folder.glob("*.txt"))[:-MAX_REPORTS]:
                old.unlink(missing_ok=True)
        except OSError as failure:
            return f"not written ({failure.strerror})"
        return str(path)
