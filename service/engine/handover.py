"""A live view's state on its way from one engine to that of another group.

The state goes into a store of its own, in the form that a build would have left there, and the
engine over that store takes the view as if it had been built. So it does not matter here whether
Spark or one process maintains it there. Invariant: the rows are those of one epoch boundary, and
the positions that the new store begins with are those of that epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from connectors.sink import LaterParts, Progress, SinkEpoch, SinkPart, SinkRows, SinkTable
from connectors.source import MAIN_SOURCE
from connectors.spark.maintained.bases import rows_of
from connectors.spark.segment import node_specs
from connectors.spark.stages import Spec
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, TidemarkError
from dataflow.expressions.evaluator import Evaluator
from dataflow.live_tables import LiveTable
from dataflow.operators.tables.table import FreedRows, prefix_of, table_spec
from dataflow.plan.nodes import Scan
from dataflow.schema import Relation, RelationName
from dataflow.shared import SharedDataflow
from dataflow.sql.lower.lowering import lower
from service.engine.definition import ViewDefinition
from service.engine.positions import Positions
from storage.store import ArrangementSpec, Store

# The stored columns of each base relation.
Columns = Mapping[RelationName, tuple[int, ...]]


@dataclass(frozen=True)
class Carried:
    """What a view's group continues from: positions after `progress`, and the notes of sources.

    sinks: entries of the store that have the progress of additional sinks. epochs: those that any
    of these sinks may lack, in order, up to that of `progress`; can be iterated once.
    """

    progress: Progress
    notes: Mapping[str, Mapping[str, bytes]]
    sinks: Mapping[str, bytes] = field(default_factory=dict)
    epochs: Iterable[SinkEpoch] = ()


def carried(positions: Positions, definition: ViewDefinition, epoch: int) -> Carried:
    """Return the positions of what a view reads. epoch: with which it leaves."""
    relations = definition.relations()
    read: dict[str, set[str]] = {}
    for relation in relations:
        read.setdefault(relation.name.source, set()).add(relation.name.name)
    found = {}
    for source, position in positions.by_source.items():
        if isinstance(position, int):
            # A view without relations moves with the database.
            if source in read or not relations:
                found[source] = position
        elif source in read:
            found[source] = {name: at for name, at in position.items() if name in read[source]}
    external = read.keys() - {MAIN_SOURCE}
    return Carried(Progress(epoch, found), {name: positions.notes(name) for name in external})


def epochs_of(
    table: SinkTable,
    find: Callable[[int], SinkEpoch | None],
    after: int,
    progress: Progress,
) -> Iterator[SinkEpoch]:
    """Yield what additional sinks may lack: a view's rows in the epochs after number `after`.

    find: returns a committed epoch of its group. progress: of the epoch that hands the view over,
    which is the last one and has no rows. All else is as it was, since a sink may write an epoch
    again. One that is no longer stored is left out: the sink fails, as without a handover.
    """
    for number in range(after + 1, progress.epoch):
        found = find(number)
        if found is None:
            continue
        # A repair is for the views' tables alone.
        rows = SinkRows() if found.repair is not None else _rows_of(found.rows, table)
        yield SinkEpoch(found.progress, rows, commit_time_us=found.commit_time_us)
    yield SinkEpoch(progress)


def _rows_of(rows: SinkRows, table: SinkTable) -> SinkRows:
    """Return the rows of one view, without its error rows."""
    if table.relation in rows.left_out:
        return SinkRows()
    own = [(found, delta) for found, delta in rows.deltas if found.relation == table.relation]
    is_later = rows.later is not None and any(t.relation == table.relation for t in rows.later.rows)
    return SinkRows(own, later=_PartsOf(rows.later, table) if rows.later and is_later else None)


@dataclass(frozen=True)
class _PartsOf:
    """One view's rows in the later parts of an epoch."""

    parts: LaterParts
    table: SinkTable

    @property
    def rows(self) -> Mapping[SinkTable, int]:
        """See LaterParts."""
        return {t: n for t, n in self.parts.rows.items() if t.relation == self.table.relation}

    def __iter__(self) -> Iterator[SinkPart]:
        for part in self.parts:
            own = [(t, delta) for t, delta in part.deltas if t.relation == self.table.relation]
            if own:
                yield SinkPart(own)

    def close(self) -> None:
        """Do nothing: the parts belong to the group's outbox."""


@dataclass(frozen=True)
class Stores:
    """old: has the state, between two epochs. new: gets it, as part of its open epoch."""

    old: Store
    new: Store

    def add(self, spec: Spec, keys: Sequence[Column], values: np.ndarray) -> None:
        """Add rows, or sums, to a state of the new store."""
        if isinstance(spec, ArrangementSpec):
            self.new.arrange(spec).apply(Delta(keys, values[0]))
        else:
            self.new.arrange_sums(spec).add(keys, values)
        self.new.relieve()


class StateCopy:
    """Copies a view's state out of a dataflow that shares it with other views.

    evaluator: the view's.
    """

    def __init__(
        self,
        dataflow: SharedDataflow,
        definition: ViewDefinition,
        evaluator: Evaluator,
        stores: Stores,
    ) -> None:
        self._dataflow = dataflow
        self._definition = definition
        self._evaluator = evaluator
        self._stores = stores
        self._live = dataflow.views[definition.name]
        self._nodes = lower(definition.plan.root)
        scans = [(n.number, n.plan) for n in self._live.nodes if isinstance(n.plan, Scan)]
        self._scans = {number: plan.relation.name for number, plan in scans}

    def run(self) -> Columns:
        """Copy it, and return the columns of each base relation.

        TidemarkError view.rows_in_parts, view.rows_not_stored: then it cannot be copied.
        """
        definition = self._definition
        columns = {relation.name: read for relation, read in definition.reads()}
        for relation in definition.relations():
            if not relation.is_append:
                self._copy_table(relation, columns[relation.name])
        for number, specs in node_specs(self._nodes, definition.scope, self._evaluator).items():
            location = self._live.locations[number]
            assert location is not None
            own = self._own_prefix(number)
            for spec in specs:
                if not spec.name.startswith(own):
                    raise InvariantError("state.mismatch", f'"{spec.name}" is not below "{own}"')
                stored = replace(spec, name=location.prefix + spec.name.removeprefix(own))
                for rows in rows_of(self._stores.old, stored):
                    self._stores.add(spec, *rows)
        return columns

    def _copy_table(self, relation: Relation, columns: Sequence[int]) -> None:
        """Copy the rows of a base relation, with only the columns that the view reads."""
        names = [relation.fields[c].name for c in columns]
        tables = [t for t in self._dataflow.tables.tables if self._serves(t, relation, names)]
        table = next((t for t in tables if t.location.is_stored), None)
        if table is None:
            raise _not_stored(relation) if self._reads_unstored(relation) else _in_parts(relation)
        stored = [field.name for field in table.location.fields]
        positions = [stored.index(name) for name in names]
        spec = table_spec(relation, columns, self._definition.scope)
        self._stores.new.arrange(spec)
        self._copy_freed(table.state.freed, FreedRows(self._stores.new, prefix_of(spec)))
        for rows in table.state.rows():
            found = rows.project(positions)
            self._stores.add(spec, found.columns, found.weights.reshape(1, -1))

    def _reads_unstored(self, relation: Relation) -> bool:
        return any(
            not table.location.is_stored and not self._own_scans(relation).isdisjoint(table.scans)
            for table in self._dataflow.tables.tables
        )

    def _own_scans(self, relation: Relation) -> set[int]:
        return {number for number, name in self._scans.items() if name == relation.name}

    def _copy_freed(self, found: FreedRows, copy: FreedRows) -> None:
        """Copy what is known of freed rows: they end at operators of this view, and of others."""
        ends = {}
        for number, location in enumerate(self._live.locations):
            if location is not None and location.prefix in found.ends:
                ends[self._own_prefix(number)] = found.ends[location.prefix]
        if not found.is_complete:
            copy.set_ends(ends)
            copy.add(found.count)

    def _own_prefix(self, number: int) -> str:
        return f"{self._definition.scope}/{self._nodes[number].name}/"

    def _serves(self, table: LiveTable, relation: Relation, names: Sequence[str]) -> bool:
        """Return whether a table has these columns of a relation for one of the view's scans.

        One with freed rows must be what all of the view's scans of the relation read.
        """
        location = table.location
        if location.relation.name != relation.name or not location.kept().keys() >= set(names):
            return False
        own = self._own_scans(relation)
        if table.state.freed.is_complete:
            return not own.isdisjoint(table.scans)
        return own <= table.scans.keys()


def _in_parts(relation: Relation) -> TidemarkError:
    return TidemarkError(
        "view.rows_in_parts",
        f'the rows of "{relation.name}" are stored in parts, each shared with another view',
        hint="rebuild the view, and request this again",
    )


def _not_stored(relation: Relation) -> TidemarkError:
    return TidemarkError(
        "view.rows_not_stored",
        f'the rows of "{relation.name}" are not stored for this view',
        detail="the table has REPLICA IDENTITY FULL, and no cluster was configured when the view"
        " was built",
        hint="rebuild the view, and request this again",
    )
