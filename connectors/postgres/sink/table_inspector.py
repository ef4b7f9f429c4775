"""What others do to views' tables: changed by hand, locked. By a session of the catalog's.

Invariant: it takes no lock on a table, so it never waits for those that it tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from connectors.postgres.evaluation.sandbox import EVENT_TRIGGER, check_event_triggers
from connectors.postgres.schema import table_guard
from connectors.postgres.schema.sink_target import WIDE_INDEX
from connectors.postgres.sink import lock_waits
from connectors.sink import SinkTable, TableState


class TableInspector:
    """run: executes one statement with its parameters, and commits. application: the name of the
    session that writes epochs."""

    def __init__(self, run: Callable[..., Sequence[tuple[Any, ...]]], application: str) -> None:
        self._run = run
        self._application = application

    def states(self) -> list[TableState]:
        """Return the state of each view's table in the sink, also of other groups."""
        return list(table_guard.read_states(self._run, WIDE_INDEX))

    def adopt(self) -> list[tuple[str, str]]:
        """Guard the tables that an older version made; return (view, why not) of the others.

        SinkError sink.event_trigger.
        """
        check_event_triggers(self._run(EVENT_TRIGGER), is_sink=True)
        return table_guard.adopt(self._run)

    def holders(self, table: SinkTable) -> dict[tuple[int, str], str]:
        """Return what to say of each transaction that holds a lock on a view's table, by a key
        that identifies it."""
        return lock_waits.read_holders(self._run, table)

    def waits(self) -> str:
        """Return which table an epoch waits for, and which session holds it; "" for none."""
        return lock_waits.read_waits(self._run, self._application)
