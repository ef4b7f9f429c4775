"""Inspect and change the tables of views outside epochs.

For the API, which checks before it accepts a request, and for views without epochs: paused and
failed ones. Every call has its own session and transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from connectors.postgres.schema.sink_target import ERRORS, NOTED
from connectors.postgres.session.session import connect, translated
from connectors.postgres.sink import carry_over, cut_over, history_tables, sink_tables
from connectors.postgres.sink.sink_reader import errors_of
from connectors.sink import SinkTable, ViewChange
from dataflow.delta import Delta


class ViewTables:
    """The view tables of one sink database with control tables; safe for several threads."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def check(self, table: SinkTable) -> None:
        """Require that a view of this name can be created. SinkError as sink_tables.check_name."""
        with self._cursor(table) as cursor:
            sink_tables.check_name(cursor, table)

    def check_history(self, table: SinkTable) -> None:
        """Require that a view can have a history. SinkError as history_tables.check_name."""
        with self._cursor(table) as cursor:
            history_tables.check_name(cursor, table)

    def change(self, changes: Sequence[ViewChange]) -> None:
        """Apply changes of views that are not maintained, at once. SinkError as cut_over.apply."""
        with self._cursor(changes[0].before) as cursor:
            for change in changes:
                cut_over.apply(cursor, change)
                for target in (ERRORS, NOTED):
                    cursor.execute(
                        f"UPDATE {target.sql} SET view = %s WHERE view = %s",
                        (change.table.title, change.before.title),
                    )

    def dependents(self, table: SinkTable) -> list[str]:
        """Return the user's objects that prevent dropping the view's table. SinkError
        sink.event_trigger."""
        with self._cursor(table) as cursor:
            sink_tables.require_no_event_trigger(cursor)
            return carry_over.dependents(cursor, table)

    def not_carried_over(self, before: SinkTable, table: SinkTable) -> list[str]:
        """Return the user's additions to the view's table that other columns would lose."""
        with self._cursor(table) as cursor:
            return carry_over.not_carried_over(cursor, before, table)

    def holds(self, table: SinkTable) -> bool:
        """Return whether the view's table exists, with all its columns."""
        with self._cursor(table) as cursor:
            return sink_tables.is_there(cursor, table)

    def read_errors(self, table: SinkTable) -> Delta:
        """Return the view's error rows and notes, with their counts."""
        with self._cursor(table) as cursor:
            return errors_of(cursor, table)

    @contextmanager
    def _cursor(self, table: SinkTable) -> Iterator[Any]:
        session = connect(self._dsn, side="sink", application_name="tidemark tables")
        try:
            with translated("sink", f'cannot inspect view "{table.title}"'), session:
                yield session.cursor()
        finally:
            session.close()
