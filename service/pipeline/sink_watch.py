"""What others do to views' tables in the sink, checked once a second: changes by hand, and locks.

A view whose table was changed by hand fails alone, by name. A lock that an epoch waits for is
reported with the session that holds it. Invariant: tables are not judged while the sink is rewound
or ahead of the state, since they are repaired or replayed then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from connectors.postgres.sink.error_attribution import locked
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.postgres.sink.table_inspector import TableInspector
from connectors.sink import LOCKED, SinkTable
from dataflow.errors import TidemarkError
from service.engine.engine import Engine
from service.metrics.metrics import PipelineMetrics
from service.pipeline.epochs import Epochs
from service.pipeline.sink_mute import SinkMute
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_failures import Failures
from service.runtime.log import log
from service.runtime.runtime import Runtime

# An epoch takes less, unless it is large.
WAIT_S = 1.0
# A table that is to be replaced is probed so often; a transaction that holds a lock on it for
# longer is waited for.
PROBE_S, HELD_S = 0.5, 0.4
# Tables are checked for one part in so many of the time, and at least so often.
CHECK_SHARE, CHECK_S = 200, 10.0
# Between two tries to guard tables of an older version.
ADOPT_S = 10.0


@dataclass(frozen=True)
class _Probe:
    """at: when; since: the transactions that hold a lock, and when each was seen first."""

    at: float
    since: Mapping[tuple[int, str], float]
    why: TidemarkError | None
    is_held: bool


class SinkWatch:
    """Used by the pipeline's thread. sink: the one that writes epochs."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        mute: SinkMute,
        failures: Failures,
        subscriptions: SourceSubscriptions,
        sink: PostgresSink,
        inspector: TableInspector,
        metrics: PipelineMetrics,
        runtime: Runtime,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._failures = failures
        self._subscriptions = subscriptions
        self._sink = sink
        self._inspector = inspector
        self._metrics = metrics
        self._runtime = runtime
        self._due_at = 0.0
        self._adopted_at = float("-inf")
        self._is_reported = False
        self._probes: dict[str, _Probe] = {}

    def run(self) -> None:
        """Check once; a sink that cannot be asked delays it."""
        if "sink.unreachable" in self._metrics.sink_error:
            self._metrics.sink_wait = ""
            return
        try:
            self._report_waits()
            self._check_tables()
        except TidemarkError as error:
            log.warning("sink.unwatched", code=error.code, why=error.described)

    def held(self, identity: str) -> TidemarkError | None:
        """Return why a view's table cannot be replaced, as of the last probe."""
        last = self._probes.get(identity)
        return None if last is None else last.why

    def is_held(self, identity: str, tables: Sequence[SinkTable]) -> bool:
        """Return whether a lasting transaction holds a lock on one of these tables.

        An epoch that replaced the view's table would wait for it, and with it all views.
        """
        now, last = self._runtime.monotonic(), self._probes.get(identity)
        if last is not None and now - last.at < PROBE_S:
            return last.is_held
        since, why = {} if last is None else last.since, None
        found: dict[tuple[int, str], float] = {}
        try:
            holders = [(table, self._inspector.holders(table)) for table in tables]
        except TidemarkError as error:
            log.warning("sink.unwatched", code=error.code, why=error.described)
            return True
        for table, texts in holders:
            for key, text in texts.items():
                found[key] = since.get(key, now)
                if now - found[key] > HELD_S:
                    why = why or locked(table.title, table.relation, text)
        # What is there at the first probe may be short, and what is there later is another one.
        is_held = why is not None or (last is None and bool(found))
        self._probes[identity] = _Probe(now, found, why, is_held)
        return is_held

    def forget(self, identity: str) -> None:
        """Forget the probes of a view that waits for nothing any more."""
        self._probes.pop(identity, None)

    def _report_waits(self) -> None:
        text = ""
        if self._epochs.writer.stalled_s > WAIT_S:
            # Between two tries, the writer itself has asked.
            text = self._inspector.waits() or self._sink.blocked_by
        self._sink.blocked_by = text
        self._metrics.sink_wait = f"{text} [{LOCKED}]" if text else ""
        if bool(text) != self._is_reported:
            self._is_reported = bool(text)
            log.warning("sink.locked" if text else "sink.unlocked", why=text)

    def _check_tables(self) -> None:
        now = self._runtime.monotonic()
        if self._mute or self._epochs.is_returning or now < self._due_at:
            return
        states = self._inspector.states()
        took_s = self._runtime.monotonic() - now
        self._due_at = now + min(CHECK_SHARE * took_s, CHECK_S)
        self._sink.with_triggers = frozenset(s.relation for s in states if s.has_triggers)
        for state in states:
            if state.error is not None and state.relation in self._engine.views:
                failed = self._failures.fail_readers(state.error)
                self._subscriptions.complete_failed(failed)
        if any(state.is_unguarded for state in states):
            self._adopt()

    def _adopt(self) -> None:
        now = self._runtime.monotonic()
        if now - self._adopted_at < ADOPT_S:
            return
        self._adopted_at = now
        for view, why in self._inspector.adopt():
            log.warning("sink.unguarded", view=view, why=why)
