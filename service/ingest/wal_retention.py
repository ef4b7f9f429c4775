"""How much WAL the source retains for our slot, compared with the operator's limit.

A separate thread checks the slot, because a stalled sink, and with it a stalled pipeline, must not
hide its effect on the source. From a percentage of the budget on, it raises an alarm in log, health
and metrics. At the budget, the operator has chosen a warning or dropping the slot. Invariant: a
slot is dropped only after a note about it is on disk, so the following error (source.wal_budget)
states the reason, whatever crashes in between.
"""

from __future__ import annotations

import json

from connectors.postgres.replication.slot_errors import REBUILD_HINT
from connectors.postgres.source import PostgresSource
from dataflow.errors import SourceError, TidemarkError
from service.metrics.metrics import WAL_FILE
from service.runtime.log import log
from service.runtime.private_files import replace_file
from service.runtime.runtime import RUNTIME, Runtime
from service.runtime.settings import Settings

WATCH_S = 5.0
CLOSE_S = 1.0
NOTE = "wal_released.json"


class WalBudget:
    """Watch until closed. source: with its own session, which nothing else waits for."""

    def __init__(
        self, settings: Settings, source: PostgresSource, runtime: Runtime = RUNTIME
    ) -> None:
        self._source = source
        self._runtime = runtime
        self._folder = settings.state
        self._budget = settings.wal_budget_mb << 20
        self._alarm = alarm_bytes(settings)
        self._is_limit = settings.wal_limit == "release"
        self._is_alarmed = False
        self._stopping = runtime.event()
        self._thread = runtime.begin(self._run, "wal-budget")

    def explained(self, error: SourceError) -> SourceError:
        """Replace the error of a missing slot if we dropped it ourselves."""
        note = self._folder / NOTE
        if error.code != "source.slot_missing" or not note.is_file():
            return error
        facts = json.loads(note.read_text())
        return SourceError(
            "source.wal_budget",
            "the replication slot was dropped to protect the source's disk",
            detail=f"it retained {facts['kept_bytes'] >> 20} MiB of WAL; at most "
            f"{facts['budget_bytes'] >> 20} MiB are allowed (TIDEMARK_WAL_BUDGET_MB)",
            hint=f"find out what stopped the service (usually the sink); then {REBUILD_HINT}",
        )

    def forget(self) -> None:
        """Remove the note, once the source's position is dropped."""
        (self._folder / NOTE).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop watching; a check that hangs ends with the process."""
        self._stopping.set()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._source.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._check()
            except TidemarkError as error:
                log.debug("wal.retry", code=error.code)
            except OSError as error:
                log.warning("wal.unwritten", why=str(error))
            self._stopping.wait(WATCH_S)

    def _check(self) -> None:
        retained = self._source.retained_wal_bytes()
        alarm = self._judge(retained)
        figures = {
            "wal_retained_bytes": retained,
            # The earlier name, for one release.
            "wal_kept_bytes": retained,
            "wal_budget_bytes": self._budget,
            "wal_alarm": alarm,
            "wal_at": self._runtime.time(),
        }
        replace_file(self._folder / WAL_FILE, figures)
        if self._budget and self._is_limit and retained > self._budget:
            note = {
                "kept_bytes": retained,
                "budget_bytes": self._budget,
                "at": self._runtime.time(),
            }
            replace_file(self._folder / NOTE, note)
            log.error("source.wal_released", kept_bytes=retained, budget_bytes=self._budget)
            self._source.release_slot()

    def _judge(self, retained: int) -> str:
        """Return the alarm's text, "" if there is none; log when it starts or ends."""
        is_alarmed = 0 < self._alarm <= retained
        if is_alarmed != self._is_alarmed:
            self._is_alarmed = is_alarmed
            log_event = log.warning if is_alarmed else log.info
            event = "source.wal_alarm" if is_alarmed else "source.wal_alarm_over"
            log_event(event, kept_bytes=retained, budget_bytes=self._budget)
        return shown(retained, self._budget) if is_alarmed else ""


def alarm_bytes(settings: Settings) -> int:
    """Return the bytes from which on there is an alarm; 0: never."""
    return (settings.wal_budget_mb << 20) * settings.wal_alarm_percent // 100


def shown(retained: int, budget: int) -> str:
    """Return the alarm's text."""
    return (
        f"the source retains {retained >> 20} MiB of WAL for the replication slot;"
        f" {budget >> 20} MiB are allowed [source.wal_alarm]"
    )


def check(settings: Settings, source: PostgresSource) -> None:
    """Fail with SourceError source.wal_alarm if our slot retains too much WAL; for `doctor`."""
    retained = source.retained_wal_bytes()
    if 0 < alarm_bytes(settings) <= retained:
        raise SourceError(
            "source.wal_alarm",
            "the source retains too much WAL for the replication slot",
            detail=f"{retained >> 20} MiB; the budget is {settings.wal_budget_mb} MiB",
            hint="start the service, or repair its sink; otherwise drop the views, or the slot",
        )
