"""How much WAL the source keeps for us, against what its operator allows.

A thread of its own looks at the slot, so that a sink that stalls, and with it the pipeline, does
not hide what that does to the source. From a share of the budget on it is an alarm, in log,
health and metrics. At the budget the operator has chosen: to be warned, or to have the slot
dropped. Invariant: a slot is dropped only after a note of it is on disk, so that the refusal that
follows (source.wal_budget) says why, whatever dies in between.
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
    """Watches until closed. source: a session of its own, which nothing else waits for."""

    def __init__(self, settings: Settings, source: PostgresSource, host: Runtime = RUNTIME) -> None:
        self._source = source
        self._host = host
        self._folder = settings.state
        self._budget = settings.wal_budget_mb << 20
        self._alarm = alarm_bytes(settings)
        self._is_limit = settings.wal_limit == "release"
        self._is_alarmed = False
        self._stopping = host.event()
        self._thread = host.begin(self._run, "wal-budget")

    def explained(self, error: SourceError) -> SourceError:
        """A missing slot as what it is when it was us who dropped it."""
        note = self._folder / NOTE
        if error.code != "source.slot_missing" or not note.is_file():
            return error
        facts = json.loads(note.read_text())
        return SourceError(
            "source.wal_budget",
            "the replication slot was dropped, so that the source's disk does not fill",
            detail=f"{facts['kept_bytes'] >> 20} MiB of WAL were kept for it, at most "
            f"{facts['budget_bytes'] >> 20} MiB are allowed (TIDEMARK_WAL_BUDGET_MB)",
            hint=f"find out what held the service up (the sink, most likely); then {REBUILD_HINT}",
        )

    def forget(self) -> None:
        """The source's position is forgotten: so is what became of its slot."""
        (self._folder / NOTE).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop watching; a look that does not end ends with the process."""
        self._stopping.set()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._source.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
            except TidemarkError as error:
                log.debug("wal.retry", code=error.code)
            except OSError as error:
                log.warning("wal.unwritten", why=str(error))
            self._stopping.wait(WATCH_S)

    def _look(self) -> None:
        kept = self._source.retained_wal_bytes()
        alarm = self._judge(kept)
        figures = {
            "wal_kept_bytes": kept,
            "wal_budget_bytes": self._budget,
            "wal_alarm": alarm,
            "wal_at": self._host.time(),
        }
        replace_file(self._folder / WAL_FILE, figures)
        if self._budget and self._is_limit and kept > self._budget:
            note = {"kept_bytes": kept, "budget_bytes": self._budget, "at": self._host.time()}
            replace_file(self._folder / NOTE, note)
            log.error("source.wal_released", kept_bytes=kept, budget_bytes=self._budget)
            self._source.release_slot()

    def _judge(self, kept: int) -> str:
        """The alarm in words, empty when there is none; logs when that changes."""
        is_alarmed = 0 < self._alarm <= kept
        if is_alarmed != self._is_alarmed:
            self._is_alarmed = is_alarmed
            tell = log.warning if is_alarmed else log.info
            event = "source.wal_alarm" if is_alarmed else "source.wal_alarm_over"
            tell(event, kept_bytes=kept, budget_bytes=self._budget)
        return shown(kept, self._budget) if is_alarmed else ""


def alarm_bytes(settings: Settings) -> int:
    """From how many bytes on there is an alarm; 0: never."""
    return (settings.wal_budget_mb << 20) * settings.wal_alarm_percent // 100


def shown(kept: int, budget: int) -> str:
    """How it stands, for people."""
    return (
        f"the source keeps {kept >> 20} MiB of WAL for the replication slot,"
        f" {budget >> 20} MiB are allowed [source.wal_alarm]"
    )


def check(settings: Settings, source: PostgresSource) -> None:
    """For `doctor`: SourceError source.wal_alarm when too much WAL is kept for our slot."""
    kept = source.retained_wal_bytes()
    if 0 < alarm_bytes(settings) <= kept:
        raise SourceError(
            "source.wal_alarm",
            "much WAL is kept for our replication slot",
            detail=f"{kept >> 20} MiB; the budget is {settings.wal_budget_mb} MiB",
            hint="is the service running, and is its sink up? Else drop the views, or the slot",
        )
