"""Scheduled verification: view after view, one at a time, at low priority.

Only one of several API processes does it. Each result is stored in the catalog and the metrics;
nothing here stops anything else.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from datetime import datetime

from connectors.postgres.catalog import verification_records
from connectors.postgres.catalog.catalog import Control, ViewRow
from dataflow.errors import TidemarkError
from service.runtime.log import log
from service.runtime.settings import Settings
from service.verify.comparison import COMPARABLE, Limits, Verify
from storage import clock

_NICE = 10
_POLL_S = (0.2, 5.0)
# Clocks of two machines may differ by this much.
FUTURE_S = 60.0


class VerifyRounds:
    """A thread of the API process; `start` does nothing if the interval is 0."""

    def __init__(self, settings: Settings, verify: Verify, control: Control) -> None:
        self._settings = settings
        self._verify = verify
        self._control = control
        self._limits = Limits(settings.verify_timeout_s, settings.verify_max_cost)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verify", daemon=True)

    def start(self) -> None:
        """Start the thread, if there is an interval."""
        if self._settings.verify_interval_s:
            self._thread.start()

    def close(self) -> None:
        """End the thread; `Verify.close` has cancelled what it runs."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self._control.close()

    def _run(self) -> None:
        # For this thread only; statements in the database have a timeout and a cost limit.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        pause_s = min(max(self._settings.verify_interval_s / 10, _POLL_S[0]), _POLL_S[1])
        while not self._stopping.wait(pause_s):
            with suppress(TidemarkError):
                while not self._stopping.is_set() and (row := self._due()) is not None:
                    self._verify_one(row)

    def _verify_one(self, row: ViewRow) -> None:
        try:
            self._verify.verify_row(row, 0, self._limits)
        except TidemarkError as error:
            log.warning("verify.failed", view=row.title, code=error.code, why=error.what)

    def _due(self) -> ViewRow | None:
        """Return the live view with the oldest verification, if that is old enough."""
        if not verification_records.try_lock(self._control):
            return None
        newest = verification_records.newest(self._control)
        now = clock.utc()
        found: list[tuple[float, ViewRow]] = []
        for row in self._control.list_views():
            at = newest.get(row.identity, {}).get("at")
            age_s = (now - datetime.fromisoformat(at)).total_seconds() if at else float("inf")
            # From the future: the clock was set back, so its age is unknown.
            age_s = float("inf") if age_s < -FUTURE_S else age_s
            if row.status in COMPARABLE and age_s >= self._settings.verify_interval_s:
                found.append((age_s, row))
        return max(found, key=lambda f: f[0])[1] if found else None
