"""The rows of base relations, stored once for all live views that read them.

A view that joins brings its own rows of a table. If one stored table has every column that is read,
the others are dropped. Rows that arrive whole are needed only to retract them all when the table is
truncated; where the readers of a scan can do that with what they store (`dataflow.clearing`), the
scan reads a table without rows. Invariant: every other scan reads a table that has stored its
columns completely since they were loaded. A column without a reader is no longer requested from the
source: it is dead, NULL from then on, and never counts as stored again. One thread owns all of
this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dataflow.changes import Changes, Letter
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, ViewError
from dataflow.operators.base import table_error
from dataflow.operators.tables.table import (
    TableState,
    arrives_whole,
    prefix_of,
    table_spec,
)
from dataflow.plan.nodes import Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import SqlType
from storage.store import Store

Clock = Callable[[], float]


def stopped() -> float:
    """Return the clock of an unmeasured run: always 0."""
    return 0.0


@dataclass(frozen=True)
class TableLocation:
    """The location and the columns of a table's stored rows; picklable.

    columns: positions in the relation. dead: names of columns that have lost their last reader.
    is_stored: False if its rows are not; they never are again.
    """

    scope: str
    relation: Relation
    columns: tuple[int, ...]
    dead: frozenset[str] = frozenset()
    is_stored: bool = True

    @property
    def prefix(self) -> str:
        """The prefix of its arrangements' names."""
        return prefix_of(table_spec(self.relation, self.columns, self.scope))

    @property
    def fields(self) -> tuple[Field, ...]:
        """The stored columns, in order."""
        return tuple(self.relation.fields[c] for c in self.columns)

    def kept(self) -> dict[str, SqlType]:
        """Return the stored columns that may be read: those that are not dead."""
        return {f.name: f.type for f in self.fields if f.name not in self.dead}


class LiveTable:
    """A table that views read, and the scans that read it by node number.

    rows_in counts changes as the source reports them, rows_out rows of the exact deltas, time_s the
    seconds spent on the conversion. failure: why it accepts no more changes.
    """

    def __init__(self, location: TableLocation, store: Store) -> None:
        self.location = location
        self.state = TableState(
            location.relation,
            location.columns,
            store,
            location.scope,
            location.dead,
            is_stored=location.is_stored,
        )
        self.scans: dict[int, TableScan] = {}
        self.failure: ViewError | None = None
        self.rows_in = self.rows_out = 0
        self.time_s = 0.0


class TableScan:
    """Selects a scan's columns from a table's or a view's delta."""

    def __init__(self, positions: Sequence[int], width: int) -> None:
        """positions: in a delta of that many columns."""
        self._positions = tuple(positions)
        self._is_narrower = len(set(positions)) < width

    @staticmethod
    def of_table(plan: Scan, location: TableLocation) -> TableScan:
        """Map by name: a view may know another version of the table than the stored one."""
        names = [f.name for f in location.fields]
        fields = (plan.relation.fields[c] for c in plan.columns)
        return TableScan([names.index(f.name) for f in fields], len(names))

    def columns_of(self, rows: Delta) -> list[Column]:
        """Return the scan's columns of a table's rows, row by row."""
        return [rows.columns[at] for at in self._positions]

    def read(self, delta: Delta, *, is_unconsolidated: bool) -> Delta:
        """Return the rows of a consolidated delta as the scan sees them; is_unconsolidated: not
        consolidated."""
        rows = delta.project(self._positions)
        return rows.consolidate() if self._is_narrower and not is_unconsolidated else rows


EndsOf = Callable[[int], Collection[str] | None]


IsClearable = Callable[[int], bool]


def _unknown(number: int) -> None:
    """Return None: nothing is known of any scan."""


def _never(number: int) -> bool:
    """Return False: nothing is known of any scan."""
    return False


class LiveTables:
    """All tables of one store, oldest first, and the scans that read them.

    ends_of: of a scan by its number, the operators at which freed rows would end (`FreedRows`);
    None if rows of it may reach something else. is_clearable: of a scan by its number, whether its
    readers can retract all rows by themselves. keeps_rows: whether rows that are stored stay so
    even then.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock = stopped,
        ends_of: EndsOf = _unknown,
        is_clearable: IsClearable = _never,
        *,
        keeps_rows: bool = False,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ends_of = ends_of
        self._is_clearable = is_clearable
        self._keeps_rows = keeps_rows
        self._tables: list[LiveTable] = []
        self._scans: dict[int, Scan] = {}

    @property
    def tables(self) -> tuple[LiveTable, ...]:
        """All tables, oldest first."""
        return tuple(self._tables)

    @property
    def locations(self) -> list[TableLocation]:
        """The locations of all tables, oldest first."""
        return [table.location for table in self._tables]

    def add(self, location: TableLocation) -> None:
        """Add a table at the same source position as the others; `assign_scans` decides whether it
        stays."""
        self._tables.append(LiveTable(location, self._store))

    def has(self, relation: Relation, columns: Sequence[int]) -> bool:
        """Return whether a stored table has these columns of all rows of a relation."""
        return any(
            _covers(table.location, relation, columns) and table.state.freed.is_complete
            for table in self._tables
        )

    def read(self, number: int, plan: Scan) -> None:
        """Add a scan, served from the next `assign_scans` on."""
        self._scans[number] = plan

    def forget(self, number: int) -> None:
        """Remove a scan."""
        del self._scans[number]

    def assign_scans(self) -> list[str]:
        """Assign scans to as few tables as possible; return the prefixes of the state no longer
        needed."""
        before = {t.location.prefix for t in self._tables if t.location.is_stored}
        names = dict.fromkeys(t.location.relation.name for t in self._tables)
        self._tables = [table for name in names for table in self._settled(name)]
        return sorted(before - {t.location.prefix for t in self._tables if t.location.is_stored})

    def _settled(self, name: RelationName) -> list[LiveTable]:
        tables = [t for t in self._tables if t.location.relation.name == name]
        scans = {n: plan for n, plan in self._scans.items() if plan.relation.name == name}
        stored = [t for t in tables if t.location.is_stored]
        bound = {n: plan for n, plan in scans.items() if self._needs_rows(stored, n, plan)}
        kept = self._needed(stored, bound)
        others = {
            n: plan
            for n, plan in scans.items()
            if n not in bound and self._serving(kept, n, plan) is None
        }
        self._assign(kept, {n: plan for n, plan in scans.items() if n not in others})
        rest = [table for table in tables if table not in kept]
        without = [self._without_rows(table) for table in self._needed(rest, others)]
        self._assign(without, others)
        for table in kept:
            self._forget_ends(table)
        return [self._without_unread(table) for table in (*kept, *without)]

    def _needs_rows(self, stored: Sequence[LiveTable], number: int, plan: Scan) -> bool:
        """Return whether a scan must read a table whose rows are stored."""
        if not (arrives_whole(plan.relation) and self._is_clearable(number)):
            return True
        return self._keeps_rows and self._serving(stored, number, plan) is not None

    def _serving(self, tables: Sequence[LiveTable], number: int, plan: Scan) -> LiveTable | None:
        """Return the first table that a scan can read."""
        return next((t for t in tables if self._serves(t, number, plan)), None)

    def _assign(self, tables: Sequence[LiveTable], scans: Mapping[int, Scan]) -> None:
        for table in tables:
            table.scans = {}
        for number, plan in scans.items():
            table = self._serving(tables, number, plan)
            if table is None:
                name = plan.relation.name
                raise InvariantError("state.table_missing", f'no rows of "{name}" are kept')
            table.scans[number] = TableScan.of_table(plan, table.location)

    def _forget_ends(self, table: LiveTable) -> None:
        """Forget operators that are gone: a later one may have the name of one."""
        freed = table.state.freed
        present = {end for number in table.scans for end in self._ends_of(number) or ()}
        if freed.ends.keys() - present:
            freed.set_ends({end: n for end, n in freed.ends.items() if end in present})

    def _needed(self, tables: Sequence[LiveTable], scans: Mapping[int, Scan]) -> list[LiveTable]:
        """Return the oldest table that serves all scans; else the tables left after dropping each
        one whose scans another serves, oldest first."""
        if not scans:
            return []
        serves = {
            (table.location.prefix, number): self._serves(table, number, plan)
            for table in tables
            for number, plan in scans.items()
        }
        for table in tables:
            if all(serves[table.location.prefix, number] for number in scans):
                return [table]
        stored = list(tables)
        for table in tables:
            others = [t.location.prefix for t in stored if t is not table]
            if all(any(serves[other, number] for other in others) for number in scans):
                stored = [t for t in stored if t is not table]
        return stored

    def _serves(self, table: LiveTable, number: int, plan: Scan) -> bool:
        """Return whether a scan can read a table: it has its columns, and all rows that the scan's
        readers can see."""
        if not _covers(table.location, plan.relation, plan.columns):
            return False
        freed = table.state.freed
        if freed.is_complete:
            return True
        ends = self._ends_of(number)
        return ends is not None and freed.ends.keys() >= set(ends)

    def _without_rows(self, table: LiveTable) -> LiveTable:
        """Return the table without its stored rows."""
        if not table.location.is_stored:
            return table
        return self._changed(table, replace(table.location, is_stored=False))

    def _without_unread(self, table: LiveTable) -> LiveTable:
        """Return the table without the columns that have lost their last reader."""
        location = table.location
        plans = [self._scans[number] for number in table.scans]
        read = {p.relation.fields[c].name for p in plans for c in p.columns}
        read |= {location.relation.fields[c].name for c in location.relation.key}
        dead = location.dead | {f.name for f in location.fields if f.name not in read}
        if dead == location.dead:
            return table
        return self._changed(table, replace(location, dead=dead))

    def _changed(self, table: LiveTable, location: TableLocation) -> LiveTable:
        """Return the table in another form, with its scans and figures."""
        changed = LiveTable(location, self._store)
        changed.scans = table.scans
        changed.rows_in, changed.rows_out = table.rows_in, table.rows_out
        changed.time_s = table.time_s
        return changed

    def failures(self) -> Iterator[tuple[int, ViewError]]:
        """Return the scans of tables that accept no more changes, and why."""
        for table in self._tables:
            if table.failure is not None:
                yield from ((number, table.failure) for number in table.scans)

    def rejected(self) -> list[Letter]:
        """Return the rows that tables have rejected since the last call."""
        found: list[Letter] = []
        for table in self._tables:
            found += table.state.rejected
            table.state.rejected = []
        return found

    def resolve(self, changes: Iterable[Changes]) -> Iterator[tuple[LiveTable, Delta]]:
        """Return the exact delta of each changed table."""
        parts: dict[int, list[Delta]] = {}
        for change in changes:
            for position, table in enumerate(self._tables):
                if table.location.relation.name == change.relation.name and table.failure is None:
                    started = self._clock()
                    delta = _resolved(table, change)
                    table.time_s += self._clock() - started
                    if delta is None:
                        continue
                    table.rows_in += len(change)
                    table.rows_out += len(delta)
                    parts.setdefault(position, []).append(delta)
        for position, found in parts.items():
            if self._tables[position].failure is not None:
                continue
            # Each is consolidated: only the sum of several needs it.
            delta = found[0] if len(found) == 1 else Delta.concat(found).consolidate()
            if len(delta):
                yield self._tables[position], delta


def _resolved(table: LiveTable, change: Changes) -> Delta | None:
    """Return the exact delta of a table; None if the table fails, and with it every reader."""
    name = table.location.relation.name
    try:
        return table.state.resolve(change)
    except Exception as error:
        failure = table_error(name, error)
        if failure is None:
            raise
        table.failure = failure
        return None


def _covers(location: TableLocation, relation: Relation, columns: Sequence[int]) -> bool:
    """Return whether a table has these columns; views may have planned with different versions of
    it."""
    if not is_one_table(location.relation, relation):
        return False
    stored = location.kept()
    fields = (relation.fields[c] for c in columns)
    return all(stored.get(f.name) == f.type for f in fields)


def is_one_table(left: Relation, right: Relation) -> bool:
    """Return whether rows stored for one relation serve the other: same table, same way to find old
    rows."""
    keys = ({r.fields[c].name for c in r.key} for r in (left, right))
    is_same = (left.name, left.oid, left.is_full) == (right.name, right.oid, right.is_full)
    return is_same and next(keys) == next(keys)
