"""The rows of tables at a position of the log, in parts that are read whenever it suits.

A server shows its tables only as they are now. So a part reads its rows as of some later position,
and undoes what the log says has happened to them since (decision 38). Invariant: whenever a part is
read, and however often, it yields the rows of the snapshot's position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from connectors.feed_source import REJECTED_KINDS, FeedPart, FeedPositions, RelationAltered
from connectors.mysql.charsets import Charsets
from connectors.mysql.images import AFTER, NEW, ImageReader, RowImages, alike
from connectors.mysql.log import LogReader, LogRequest
from connectors.mysql.options import FAIL, SKIP, MySqlOptions
from connectors.mysql.positions import LogPosition
from connectors.mysql.preflight import find_table
from connectors.mysql.resume import is_by_gtid, watched
from connectors.mysql.rows import QueryRows, TableReader
from connectors.mysql.server import Server
from connectors.mysql.transactions import TRUNCATE, RowEvent, Transaction
from dataflow.delta import Column, Delta
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation
from dataflow.types import TypeKind

# A smaller table is one part.
PART_ROWS = 50_000
# What a part holds in memory of the changes since its position.
MAX_UNDONE = 2_000_000
_SPLIT_KINDS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)

Row = tuple[Any, ...]


@dataclass
class MySqlPart:
    """Rows of a table whose key begins with begin to end - 1, or all.

    columns: the requested columns of the relation. position: of the snapshot.
    """

    name: str
    source: str
    options: MySqlOptions
    relation: Relation
    columns: tuple[int, ...]
    position: Mapping[str, Any]
    begin: int | None = None
    end: int | None = None
    _rejected: list[Any] = field(default_factory=list, repr=False)

    def read(self) -> Iterator[Delta]:
        """See FeedPart. SourceError mysql.snapshot_lock, mysql.snapshot_truncated,
        mysql.snapshot_behind, mysql.snapshot_mismatch, source.bad_record, and those of the log.
        """
        self._rejected = []
        options = self.options.table_of(self.relation.name.name)
        with Server(self.options.login, self.source) as server:
            table = find_table(server, options)
            reader = TableReader(server, self.relation, options, table)
            shown = self._open(server)
            undone = _Undone(self)
            undone.read(server, shown)
            for rows in reader.scan(self._condition()):
                kept = undone.keep(rows)
                self._rejected += reader.rejected(kept.bad)
                yield from self._deltas(kept)
            yield from self._deltas(undone.rest())
            self._rejected += undone.rejected

    def rejected(self) -> Delta:
        """See FeedPart."""
        return Delta.of(REJECTED_KINDS, self._rejected)

    def has(self, key: Row) -> bool:
        """Return True if a row with this key is in the range."""
        if self.begin is not None and key[0] < self.begin:
            return False
        return self.end is None or key[0] < self.end

    def _open(self, server: Server) -> LogPosition:
        """Begin a consistent read; return its position, or a later one for a table with a key.

        What is undone of a key is its first change after the snapshot, and its row now does not
        count: so changes that may or may not be shown do no harm (decision 38).
        """
        try:
            return server.open_snapshot()
        except SourceError as error:
            if error.code != "mysql.snapshot_lock" or not self.relation.key:
                raise
        server.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        return server.log_end()

    def _condition(self) -> str:
        if not self.relation.key:
            return ""
        name = "`" + self.relation.fields[self.relation.key[0]].name.replace("`", "``") + "`"
        tests = [] if self.begin is None else [f"{name} >= {self.begin}"]
        return " AND ".join(tests + ([] if self.end is None else [f"{name} < {self.end}"]))

    def _deltas(self, rows: QueryRows) -> Iterator[Delta]:
        if len(rows):
            columns = [rows.columns[i] for i in self.columns]
            yield Delta(columns, np.ones(len(rows), np.int64))


class MySqlSnapshot:
    """A FeedSnapshot: the relations at their positions. Nothing is held at the server."""

    def __init__(self, source: str, options: MySqlOptions, positions: FeedPositions) -> None:
        self._source = source
        self._options = options
        self._positions = positions

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[FeedPart]:
        """See FeedSnapshot: ranges of the key's first column if it is an integer."""
        own = relation.name.name
        ranges = [_range_of(name) for name in known] or self._ranges(relation, count)
        return [
            MySqlPart(
                f"{own}:{'' if begin is None else begin}:{'' if end is None else end}",
                self._source,
                self._options,
                relation,
                tuple(columns),
                dict(self._positions[own]),
                begin,
                end,
            )
            for begin, end in ranges
        ]

    def close(self) -> None:
        """Do nothing: the snapshot holds nothing."""

    def _ranges(self, relation: Relation, count: int) -> list[tuple[int | None, int | None]]:
        whole: list[tuple[int | None, int | None]] = [(None, None)]
        if not relation.key or relation.fields[relation.key[0]].type.kind not in _SPLIT_KINDS:
            return whole
        options = self._options.table_of(relation.name.name)
        with Server(self._options.login, self._source) as server:
            table = find_table(server, options)
            count = min(count, table.rows // PART_ROWS)
            if count < 2:
                return whole
            bounds = TableReader(server, relation, options, table).bounds()
        if bounds is None:
            return whole
        least, most = bounds
        step = max((most - least) // count, 1)
        cuts = [least + step * i for i in range(1, count)]
        return list(zip([None, *cuts], [*cuts, None], strict=True))


class _Undone:
    """What has happened to the rows of a part between the snapshot's position and its reading.

    With a key: the row that each changed key had at the position, None for no row. Without one: how
    many copies of a row are to be left out, or to be added if less than 0.
    """

    def __init__(self, part: MySqlPart) -> None:
        self._part = part
        self._relation = part.relation
        self._options = part.options.table_of(part.relation.name.name)
        self._images = ImageReader(part.relation, self._options)
        self._rows: dict[Row, Row | None] = {}
        self._copies: Counter[Row] = Counter()
        self.rejected: list[Any] = []

    def read(self, server: Server, shown: LogPosition) -> None:
        """Read the log from the snapshot's position to what the connection shows."""
        begin = LogPosition.of(self._part.position)
        if (begin.server, begin.order) == (shown.server, shown.order):
            return
        login, name = self._part.options.login, self._part.source
        watch = watched([self._relation], self._part.options)
        by_gtid = is_by_gtid(server, [begin])
        request = LogRequest(begin, watch, by_gtid, is_endless=False)

        def take(transaction: Transaction) -> None:
            if transaction.end.order > shown.order:
                raise _Reached
            self._add(list(transaction.events()), reader.charsets)
            transaction.close()
            if transaction.end.order == shown.order:
                raise _Reached

        check = self._images.check
        reader = LogReader(login, name, request, take, on_shape=lambda _, shape: check(shape))
        try:
            reader.run()
        except _Reached:
            return
        except RelationAltered as error:
            raise TemporaryError(
                "mysql.snapshot_altered",
                f'table "{self._relation.name}" was altered while it was read',
                detail=f"{error.what}; {error.detail}",
                hint="no action needed: it is read again from the start",
                relation=self._relation.name,
            ) from None

    def keep(self, rows: QueryRows) -> QueryRows:
        """Return the rows that were there at the position, of what is there now."""
        if not self._rows and not self._copies:
            return rows
        if self._relation.key:
            keys = _rows_of([rows.columns[c] for c in self._relation.key])
            kept = [i for i, key in enumerate(keys) if key not in self._rows]
        else:
            kept = [i for i, row in enumerate(_rows_of(rows.columns)) if not self._left_out(row)]
        index = np.array(kept, np.int64)
        bad = [one for one in rows.bad if one.key not in self._rows]
        return QueryRows([column.take(index) for column in rows.columns], bad)

    def rest(self) -> QueryRows:
        """Return the rows of the position that are gone, or others, now."""
        if any(count > 0 for count in self._copies.values()):
            raise SourceError(
                "mysql.snapshot_mismatch",
                f'table "{self._relation.name}" lacks rows that its log has added',
                detail="values of the log and of a query differ, or rows were changed without it",
                hint="report the column types of the table; declare its key",
                relation=self._relation.name,
            )
        found = [row for key, row in self._rows.items() if row is not None and self._part.has(key)]
        found += [row for row, count in self._copies.items() for _ in range(-count)]
        kinds = [f.type.physical for f in self._relation.fields]
        cells = zip(*found, strict=True) if found else ([] for _ in kinds)
        return QueryRows([Column.of(kind, column) for kind, column in zip(kinds, cells)])  # noqa: B905

    def _left_out(self, row: Row) -> bool:
        if self._copies.get(row, 0) <= 0:
            return False
        self._copies[row] -= 1
        return True

    def _add(self, events: list[RowEvent], charsets: Charsets) -> None:
        for run in alike(events):
            if run[0].kind == TRUNCATE:
                raise SourceError(
                    "mysql.snapshot_truncated",
                    f'table "{self._relation.name}" was truncated while it was read',
                    hint="rebuild the view: it begins with the table as it is then",
                    relation=self._relation.name,
                )
            images = self._images.read(run, charsets)
            if self._relation.key:
                self._add_keyed(images)
            else:
                self._add_copies(images)
        if len(self._rows) + len(self._copies) > MAX_UNDONE:
            raise SourceError(
                "mysql.snapshot_behind",
                f'too many rows of table "{self._relation.name}" changed while it was read',
                detail=f"more than {MAX_UNDONE:,} since {LogPosition.of(self._part.position)}",
                hint="build the view while fewer rows change",
                relation=self._relation.name,
            )

    def _add_keyed(self, images: RowImages) -> None:
        roles = images.roles.tolist()
        keys = _rows_of([images.columns[c] for c in self._relation.key])
        for image, (role, key) in enumerate(zip(roles, keys, strict=True)):
            if image in images.bad_keys or key in self._rows:
                continue
            row = None
            if role not in (NEW, AFTER):
                row = self._row(images, image)
            self._rows[key] = row

    def _row(self, images: RowImages, image: int) -> Row | None:
        """Return a row as it was; None if it was none of the relation, which is reported."""
        reason = images.reasons.get(image)
        if reason is None:
            position = np.array([image])
            return tuple(column.take(position).to_list()[0] for column in images.columns)
        bad = [one for one in images.all_bad() if one.image == image]
        if self._options.on_error == FAIL:
            raise self._images.refusal(bad[0], str(LogPosition.of(self._part.position)))
        if self._options.on_error != SKIP:
            place = f"snapshot:{LogPosition.of(self._part.position)}"
            self.rejected += self._images.rejected(images, bad, place)
        return None

    def _add_copies(self, images: RowImages) -> None:
        for image, reason in images.reasons.items():
            del image
            what = str(LogPosition.of(self._part.position))
            raise self._images.refusal(images.all_bad()[0], f"{what}, {reason}")
        roles = images.roles.tolist()
        for role, row in zip(roles, _rows_of(images.columns), strict=True):
            self._copies[row] += 1 if role in (NEW, AFTER) else -1
            if not self._copies[row]:
                del self._copies[row]


class _Reached(Exception):
    """The log was read up to what the part shows."""


def _range_of(name: str) -> tuple[int | None, int | None]:
    _, begin, end = name.rsplit(":", 2)
    return (int(begin) if begin else None), (int(end) if end else None)


def _rows_of(columns: Sequence[Column]) -> list[Row]:
    return list(zip(*(column.to_list() for column in columns), strict=True))
