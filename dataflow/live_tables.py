"""The rows of base relations, kept once for all live views that read them.

Each view that joins brings its own rows of a table; where one table has every column that is read,
the others go. Invariant: every scan is read through a table that has its columns, told whole since
they were taken in. A column that no scan reads any more is no longer asked of the source: it is
NULL from then on, and never again counts as kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dataflow.changes import Changes, Letter
from dataflow.delta import Delta
from dataflow.errors import InvariantError, TidemarkError, ViewError
from dataflow.operators.base import view_error
from dataflow.operators.tables.table import TableState, table_spec
from dataflow.plan.nodes import Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import SqlType
from storage.store import Store

Clock = Callable[[], float]


def stopped() -> float:
    """The clock of a run that nobody measures."""
    return 0.0


@dataclass(frozen=True)
class TableLocation:
    """Where a table's rows lie, and which columns of it; picklable.

    columns: positions in the relation. dead: names of columns that nobody reads any more.
    """

    scope: str
    relation: Relation
    columns: tuple[int, ...]
    dead: frozenset[str] = frozenset()

    @property
    def prefix(self) -> str:
        """What the names of its arrangements begin with."""
        return table_spec(self.relation, self.columns, self.scope).name.removesuffix("rows")

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns kept, in order."""
        return tuple(self.relation.fields[c] for c in self.columns)

    def kept(self) -> dict[str, SqlType]:
        """The columns that may be read."""
        return {f.name: f.type for f in self.fields if f.name not in self.dead}


class LiveTable:
    """A table that views read, and by their node numbers the scans that read it.

    rows_in counts changes as the source tells them, rows_out those of exact deltas, time_s what
    making these of those took. failure: why it takes no more changes.
    """

    def __init__(self, home: TableLocation, store: Store) -> None:
        self.home = home
        self.state = TableState(home.relation, home.columns, store, home.scope, home.dead)
        self.scans: dict[int, TableScan] = {}
        self.failure: ViewError | None = None
        self.rows_in = self.rows_out = 0
        self.time_s = 0.0


class TableScan:
    """A scan's columns out of a table's or a view's delta."""

    def __init__(self, positions: Sequence[int], width: int) -> None:
        """positions: in a delta of so many columns."""
        self._positions = tuple(positions)
        self._is_narrower = len(set(positions)) < width

    @staticmethod
    def of_table(plan: Scan, home: TableLocation) -> TableScan:
        """A view may know the table otherwise than its rows are kept: columns are found by name."""
        names = [f.name for f in home.fields]
        fields = (plan.relation.fields[c] for c in plan.columns)
        return TableScan([names.index(f.name) for f in fields], len(names))

    def read(self, delta: Delta, *, is_unconsolidated: bool) -> Delta:
        """The rows of a consolidated delta as the scan sees them; is_loose: not added up."""
        rows = delta.project(self._positions)
        return rows.consolidate() if self._is_narrower and not is_unconsolidated else rows


class LiveTables:
    """All tables of one store, oldest first, and the scans that are to be read through them."""

    def __init__(self, store: Store, clock: Clock = stopped) -> None:
        self._store = store
        self._clock = clock
        self._tables: list[LiveTable] = []
        self._scans: dict[int, Scan] = {}

    @property
    def tables(self) -> tuple[LiveTable, ...]:
        """All of them, oldest first."""
        return tuple(self._tables)

    @property
    def homes(self) -> list[TableLocation]:
        """Where they lie, oldest first."""
        return [table.home for table in self._tables]

    def add(self, home: TableLocation) -> None:
        """Take in a table that stands where the others stand; `settle` tells whether it stays."""
        self._tables.append(LiveTable(home, self._store))

    def has(self, relation: Relation, columns: Sequence[int]) -> bool:
        """Whether one of them has these columns of a relation."""
        return any(_covers(table.home, relation, columns) for table in self._tables)

    def read(self, number: int, plan: Scan) -> None:
        """Serve a scan, from the next `settle` on."""
        self._scans[number] = plan

    def forget(self, number: int) -> None:
        """Serve it no longer."""
        del self._scans[number]

    def settle(self) -> list[str]:
        """Keep what scans need, as few tables as may be; the prefixes of what is not kept."""
        before = {t.home.prefix for t in self._tables}
        names = dict.fromkeys(t.home.relation.name for t in self._tables)
        self._tables = [table for name in names for table in self._settled(name)]
        return sorted(before - {t.home.prefix for t in self._tables})

    def _settled(self, name: RelationName) -> list[LiveTable]:
        tables = [t for t in self._tables if t.home.relation.name == name]
        scans = {n: plan for n, plan in self._scans.items() if plan.relation.name == name}
        kept = _needed(tables, list(scans.values()))
        for table in kept:
            table.scans = {}
        for number, plan in scans.items():
            table = next((t for t in kept if _serves(t.home, plan)), None)
            if table is None:
                raise InvariantError("state.table_missing", f'no rows of "{name}" are kept')
            table.scans[number] = TableScan.of_table(plan, table.home)
        return [self._without_unread(table) for table in kept]

    def _without_unread(self, table: LiveTable) -> LiveTable:
        """The table as it goes on when columns have lost their last reader."""
        home = table.home
        plans = [self._scans[number] for number in table.scans]
        read = {p.relation.fields[c].name for p in plans for c in p.columns}
        read |= {home.relation.fields[c].name for c in home.relation.key}
        dead = home.dead | {f.name for f in home.fields if f.name not in read}
        if dead == home.dead:
            return table
        narrowed = LiveTable(replace(home, dead=dead), self._store)
        narrowed.scans = table.scans
        narrowed.rows_in, narrowed.rows_out = table.rows_in, table.rows_out
        narrowed.time_s = table.time_s
        return narrowed

    def failures(self) -> Iterator[tuple[int, ViewError]]:
        """The scans of tables that take no more changes, and why."""
        for table in self._tables:
            if table.failure is not None:
                yield from ((number, table.failure) for number in table.scans)

    def rejected(self) -> list[Letter]:
        """What tables have left out since the last call."""
        found: list[Letter] = []
        for table in self._tables:
            found += table.state.rejected
            table.state.rejected = []
        return found

    def resolve(self, changes: Iterable[Changes]) -> Iterator[tuple[LiveTable, Delta]]:
        """What changed in each table, exactly; tables without a change are left out."""
        parts: dict[int, list[Delta]] = {}
        for change in changes:
            for position, table in enumerate(self._tables):
                if table.home.relation.name == change.relation.name and table.failure is None:
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
            # Each is consolidated already: only several can meet in a row.
            delta = found[0] if len(found) == 1 else Delta.concat(found).consolidate()
            if len(delta):
                yield self._tables[position], delta


def _resolved(table: LiveTable, change: Changes) -> Delta | None:
    """What changed, exactly; None where the table fails by it, and so what reads it."""
    name = table.home.relation.name
    try:
        return table.state.resolve(change)
    except Exception as error:
        if isinstance(error, TidemarkError) and error.relation == name:
            # The refusal of this table's changes, by its own code.
            failure = ViewError(error.code, error.what, detail=error.detail, hint=error.hint)
        else:
            failure = view_error(f"rows of {name}", error)
            if failure is None:
                raise
        table.failure = failure
        return None


def _needed(tables: Sequence[LiveTable], scans: Sequence[Scan]) -> list[LiveTable]:
    """The oldest table that serves all scans; else the tables that are left when every one goes
    whose scans another one serves, oldest first."""
    if not scans:
        return []
    for table in tables:
        if all(_serves(table.home, plan) for plan in scans):
            return [table]
    kept = list(tables)
    for table in tables:
        others = [t for t in kept if t is not table]
        if all(any(_serves(t.home, plan) for t in others) for plan in scans):
            kept = others
    return kept


def _serves(home: TableLocation, plan: Scan) -> bool:
    """Whether a scan can be read through a table."""
    return _covers(home, plan.relation, plan.columns)


def _covers(home: TableLocation, relation: Relation, columns: Sequence[int]) -> bool:
    """Whether a table has these columns; views may know it at different times."""
    if not is_one_table(home.relation, relation):
        return False
    kept = home.kept()
    fields = (relation.fields[c] for c in columns)
    return all(kept.get(f.name) == f.type for f in fields)


def is_one_table(left: Relation, right: Relation) -> bool:
    """Whether rows kept for one are rows for the other: one table, old rows found alike."""
    keys = ({r.fields[c].name for c in r.key} for r in (left, right))
    is_same = (left.name, left.oid, left.is_full) == (right.name, right.oid, right.is_full)
    return is_same and next(keys) == next(keys)
