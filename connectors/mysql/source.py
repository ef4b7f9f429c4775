"""Tables of a MySQL or MariaDB server as a source: declared relations, positions, snapshots, feeds.

The position of a relation is a place in the binary log, as file and offset and as GTIDs
(positions.py). Invariant: nothing between two positions is skipped silently: what the log holds and
this connector cannot follow stops the source by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from connectors.feed_source import (
    DeclaredRelation,
    FeedPositions,
    FeedSnapshot,
    FeedSource,
    FeedStart,
    SourceFeed,
)
from connectors.mysql import discover as discovery
from connectors.mysql.feed import MySqlFeed
from connectors.mysql.options import DEAD_LETTER, MySqlOptions, read_options
from connectors.mysql.positions import LogPosition
from connectors.mysql.preflight import check_server, check_table
from connectors.mysql.repair import decode_again
from connectors.mysql.rows import LOOKUP_KINDS
from connectors.mysql.server import Server
from connectors.mysql.snapshot import MySqlSnapshot
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation

# For how long a start position is shared.
SHARED_S = 1.0


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """See Connector: a relation for each entry of `tables`."""
    return [table.declared() for table in read_options(options).tables]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> FeedSource:
    """See Connector."""
    return MySqlSource(name, read_options(options), relations)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """See Connector and connectors/mysql/discover.py."""
    return discovery.discover(options)


class _RecentStarts:
    """Start positions that were just found, so that relations of one view begin at one position.

    An older position is as good as a newer one, as long as the log has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], tuple[float, LogPosition]] = {}

    def get(self, key: tuple[str, str]) -> LogPosition | None:
        """Return the position of this source and server, if it is recent."""
        with self._lock:
            at, position = self._found.get(key, (-SHARED_S, None))
        return position if time.monotonic() - at < SHARED_S else None

    def put(self, key: tuple[str, str], position: LogPosition) -> None:
        """Remember a position for SHARED_S seconds."""
        with self._lock:
            self._found[key] = time.monotonic(), position


_recent_starts = _RecentStarts()


class MySqlSource:
    """A FeedSource. relations: those that the options declare.

    The log has the same changes however often it is read.
    """

    is_replayable = True

    def __init__(self, name: str, options: MySqlOptions, relations: Sequence[Relation]) -> None:
        self.name = name
        self._options = options
        self._relations = tuple(relations)
        for relation in relations:
            table = options.table_of(relation.name.name)
            kinds = {relation.fields[c].type.kind for c in relation.key}
            if table.on_error == DEAD_LETTER and not kinds <= set(LOOKUP_KINDS):
                raise SourceError(
                    "source.bad_option",
                    f'option "tables.{table.relation}.on_error" cannot be {DEAD_LETTER}',
                    detail="a dead letter is found again by its key, of integers, texts or bytes",
                    hint="use on_error fail or skip",
                )

    def relations(self) -> Sequence[Relation]:
        """See FeedSource."""
        return self._relations

    def check(self) -> None:
        """See FeedSource and connectors/mysql/preflight.py."""
        with Server(self._options.login, self.name) as server:
            check_server(server, self._options.server_id)
            for relation in self._relations:
                check_table(server, self._options.table_of(relation.name.name), relation)

    def start_position(self, relation: Relation) -> FeedStart:
        """See FeedSource: the end of the log. Everything before it is in a later snapshot."""
        with Server(self._options.login, self.name) as server:
            check_table(server, self._options.table_of(relation.name.name), relation)
            position = _recent_starts.get((self.name, server.identity()))
            if position is None:
                position = _end_of_log(server, has_key=bool(relation.key))
                _recent_starts.put((self.name, server.identity()), position)
        return FeedStart(position.as_json())

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> FeedSnapshot:
        """See FeedSource."""
        return MySqlSnapshot(self.name, self._options, positions)

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> SourceFeed:
        """See FeedSource; the feed's own thread reaches the server."""
        return MySqlFeed(self.name, self._options, relations, positions, on_ready)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """See FeedSource and connectors/mysql/repair.py."""
        return decode_again(self.name, self._options, relation, rows)


def _end_of_log(server: Server, *, has_key: bool) -> LogPosition:
    try:
        return server.open_snapshot()
    except SourceError as error:
        if error.code != "mysql.snapshot_lock" or not has_key:
            raise
        # What MySQL counts as executed is also shown; its files may be ahead of that.
        position = server.log_end()
        if not position.gtids:
            raise
        return position
