"""The pipeline's side of the catalog of sources: declarations, status and dead letters.

The sink may be down: a report that fails is repeated with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from connectors.feed_source import FeedSource
from connectors.postgres.catalog.catalog import Control, SourceRow
from connectors.postgres.catalog.dead_letters import DeadLetter, DeadLetters, to_delta
from dataflow.delta import Delta
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import RelationName
from service.ingest.external_sources import ExternalStatus
from service.runtime.log import log

DEAD_LETTERS = 1_000


class SourceStatusReporter:
    """The reporter of a pipeline, used by its thread.

    sink_key: of its dead letters. make: creates the source that a row of the catalog declares.
    """

    def __init__(
        self, control: Control, sink_key: str, make: Callable[[SourceRow], FeedSource]
    ) -> None:
        self._make = make
        self._control = control
        self._letters = DeadLetters(control)
        self._key = sink_key
        self._changed: set[str] = set()
        self._reported: dict[str, tuple[str, str]] = {}
        self.rows: Sequence[SourceRow] = ()

    def refresh(self) -> None:
        """Read the declarations. TemporaryError if the sink is unreachable."""
        rows = self._control.list_sources()
        before, now = _declared(self.rows), _declared(rows)
        self._changed |= {n for n in before.keys() | now.keys() if before.get(n) != now.get(n)}
        self.rows = rows

    def changed(self) -> set[str]:
        """Return the sources that were declared, changed, dropped or retried since the last
        call.
        """
        found, self._changed = self._changed, set()
        return found

    def source(self, name: str) -> FeedSource:
        """Return a declared source; SourceError source.not_found."""
        row = next((r for r in self.rows if r.name == name and not r.is_database), None)
        if row is None:
            raise SourceError(
                "source.not_found",
                f'source "{name}" does not exist',
                hint="check the name: the list of sources has all of them",
            )
        return self._make(row)

    def report(self, statuses: Mapping[str, ExternalStatus]) -> None:
        """Report the status of the sources that have changed."""
        for name, status in statuses.items():
            reported = (status.status, str(status.error))
            if self._reported.get(name) == reported:
                continue
            # If the answer is lost, the stored status is unknown.
            self._reported.pop(name, None)
            error = status.error
            facts = {"code": None, "detail": None, "hint": None}
            if error is not None:
                facts = {"code": error.code, "detail": error.described, "hint": error.hint}
            try:
                self._control.update_source(name, status=status.status, **facts)
                self._reported[name] = reported
            except TemporaryError as error:
                log.warning("catalog.retry", code=error.code)

    def marked_dead_letters(self) -> list[tuple[RelationName, Delta, bool]]:
        """Records to be tried again (True) or dropped, by relation; not too many at a time."""
        try:
            found = self._letters.marked(self._key, DEAD_LETTERS)
        except TemporaryError as error:
            log.warning("catalog.retry", code=error.code)
            return []
        groups: dict[tuple[RelationName, bool], list[DeadLetter]] = {}
        for letter in found:
            name = RelationName(letter.source, letter.source, letter.relation)
            groups.setdefault((name, letter.desired == "retry"), []).append(letter)
        return [(name, to_delta(g), is_retried) for (name, is_retried), g in groups.items()]

    def unmark_dead_letters(self, name: RelationName, rows: Delta) -> None:
        """Unmark dead letters; the next epoch has their outcome. TemporaryError."""
        positions = [str(row[2], "utf-8") for row, _ in rows.rows()]
        self._letters.unmark(self._key, name, positions)


def _declared(rows: Iterable[SourceRow]) -> dict[str, tuple[object, ...]]:
    return {r.name: (r.options, r.relations, r.retry_at) for r in rows if not r.is_database}
