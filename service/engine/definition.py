"""One view: what it is, what it reads, and its own dataflow while it is built.

A definition is all that is needed to run a view again after a restart. Invariant: it only changes
as a whole, at an epoch boundary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames
from connectors.sink import SinkTable
from dataflow.changes import Changes, Letter
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import Evaluator
from dataflow.graph import ViewDataflow, needed_columns
from dataflow.live_tables import TableLocation
from dataflow.operators.tables.table import TableState
from dataflow.plan.nodes import ViewPlan, scans_of
from dataflow.plan.reading import reading, what_is_missing
from dataflow.schema import VIEW_SOURCE, Relation, RelationName
from dataflow.shared import StateLocation
from dataflow.sql.lateness import depends_on_history, final_of
from dataflow.sql.lower.lowering import lower
from dataflow.work import UNLIMITED, WorkMeter
from service.engine.epoch_buffer import added_up
from storage.store import Store


@dataclass(frozen=True)
class ComputedView:
    """A view whose query is computed within another view, which does not read its rows.

    digest: of all that its rows depend on. is_named: the other view's own query names it; else it
    is below such a one.
    """

    identity: str
    name: RelationName
    digest: str
    is_named: bool


@dataclass(frozen=True)
class ViewDefinition:
    """A planned view: all that is needed to run it again after a restart.

    - identity: new for each creation, so that the state of an earlier view of this name is never
      used
    - version: counts its queries and rebuilds
    - rebuilt: counts up if views still use the state of an earlier build
    - role: whose privileges PostgreSQL evaluates with; "" for the service's own
    - names: those in its query
    - computed: the views that it computes instead of reading them
    """

    identity: str
    table: SinkTable
    query: str
    plan: ViewPlan
    rebuilt: int = 0
    version: int = 0
    role: str = ""
    names: KnownNames = UNKNOWN
    computed: tuple[ComputedView, ...] = ()

    @property
    def scope(self) -> str:
        """Return the prefix of the names of its arrangements."""
        return f"v{self.identity}" + (f".{self.rebuilt}" if self.rebuilt else "")

    @property
    def building(self) -> str:
        """Return an identifier that differs for each build."""
        if not self.version:
            return self.identity
        # An abandoned version may have had the same number.
        query = hashlib.sha256(self.query.encode()).hexdigest()
        return f"{self.identity}.{self.version}.{query[:16]}"

    @property
    def name(self) -> RelationName:
        """Return the name by which other views read it."""
        return RelationName(VIEW_SOURCE, self.table.schema, self.table.name)

    @property
    def depends_on_history(self) -> bool:
        """Return whether its rows depend on the order in which its sources' rows came."""
        return depends_on_history(self.plan.root)

    @property
    def published(self) -> SinkTable:
        """Return what its readers get: its table, or its final rows."""
        return replace(self.table, final=final_of(self.plan.root))

    def relations(self) -> tuple[Relation, ...]:
        """Return the base relations that it reads, each once."""
        found = {s.relation.name: s.relation for s in scans_of(self.plan.root)}
        return tuple(r for name, r in found.items() if name.source != VIEW_SOURCE)

    def reads(self) -> list[tuple[Relation, tuple[int, ...]]]:
        """Return the base relations, each with the indexes of the fields in use."""
        needed = needed_columns(lower(self.plan.root))
        return [(relation, needed[relation.name]) for relation in self.relations()]

    def tables(self) -> list[TableLocation]:
        """Return the locations of its base relations' rows, with only the columns that it reads."""
        return [TableLocation(self.scope, relation, columns) for relation, columns in self.reads()]

    @property
    def relation(self) -> Relation:
        """Return the view as other views read it."""
        return Relation(self.name, 0, self.table.fields, self.table.key)

    def missing_in(self, relation: Relation) -> list[str]:
        """Return what this view needs and another version of a view that it reads lacks."""
        return what_is_missing(self.plan.root, relation.name, relation)

    def reading(self, name: RelationName, relation: Relation) -> ViewDefinition:
        """Return this view over another version, or another name, of the view called `name`."""
        root = reading(self.plan.root, name, relation)
        return replace(self, plan=replace(self.plan, root=root))

    def parents(self) -> tuple[RelationName, ...]:
        """Return the maintained views that it reads, each once."""
        names = dict.fromkeys(s.relation.name for s in scans_of(self.plan.root))
        return tuple(name for name in names if name.source == VIEW_SOURCE)

    def views_named(self) -> tuple[RelationName, ...]:
        """Return the maintained views that its query names, whether read or computed, each once."""
        computed = (view.name for view in self.computed if view.is_named)
        return tuple(dict.fromkeys((*self.parents(), *computed)))

    def is_planned_over(self, views: Mapping[RelationName, ViewDefinition]) -> bool:
        """Return True if `views` has every view that it reads, with the same columns and key."""
        for read in {s.relation for s in scans_of(self.plan.root)}:
            found = views.get(read.name)
            if read.name.source == VIEW_SOURCE and (
                found is None or (found.table.fields, found.table.key) != (read.fields, read.key)
            ):
                return False
        return True


@dataclass
class StateLayout:
    """Where the state of live views is stored.

    locations: of each node of each view, by the view's identity. A view that is missing has all its
    state in its own scope, as before views shared state.
    """

    locations: dict[str, list[StateLocation | None]] = field(default_factory=dict)
    tables: list[TableLocation] = field(default_factory=list)


class View:
    """A view on its own, while it is built: changes of base relations in, its own delta out.

    columns: for relations that store more columns than the view needs, all stored ones. meter:
    limits what it does within one of its epochs.
    """

    def __init__(
        self,
        definition: ViewDefinition,
        store: Store,
        evaluator: Evaluator,
        columns: Mapping[RelationName, tuple[int, ...]] | None = None,
        *,
        meter: WorkMeter = UNLIMITED,
    ) -> None:
        self.definition = definition
        self.errors = ErrorRows()
        nodes = lower(definition.plan.root)
        self.meter = meter
        self.dataflow = ViewDataflow(
            nodes, definition.scope, store, evaluator, self.errors, meter=meter
        )
        self._rejected: list[Letter] = []
        self._needed = self.dataflow.needed_columns()
        self._parents = set(definition.parents())
        self.locations = [
            TableLocation(definition.scope, r, (columns or self._needed)[r.name])
            for r in definition.relations()
        ]
        self.tables = {
            at.relation.name: TableState(at.relation, at.columns, store, at.scope)
            for at in self.locations
        }
        self._indexes = {
            at.relation.name: [at.columns.index(c) for c in self._needed[at.relation.name]]
            for at in self.locations
        }

    def resolve(self, changes: Iterable[Changes]) -> dict[RelationName, Delta]:
        """Return exact deltas of the base relations that this view reads."""
        deltas: dict[RelationName, list[Delta]] = {}
        for change in changes:
            name = change.relation.name
            if name in self.tables:
                rows = self.needed(name, self.tables[name].resolve(change))
                deltas.setdefault(name, []).append(rows)
        return {name: added_up(parts) for name, parts in deltas.items()}

    def needed(self, name: RelationName, rows: Delta) -> Delta:
        """Return the columns that `step` takes of a relation's stored rows, consolidated."""
        indexes = self._indexes[name]
        if len(indexes) == len(rows.columns):
            return rows
        return rows.project(indexes).consolidate()

    def reject(self, letters: Iterable[Letter]) -> None:
        """Note records of rows that were rejected where its tables are not."""
        self._rejected += letters

    def rejected(self) -> list[Letter]:
        """Return and clear the records of rows that its tables rejected."""
        found, self._rejected = self._rejected, []
        found += [letter for table in self.tables.values() for letter in table.rejected]
        for table in self.tables.values():
            table.rejected = []
        return found

    def step(self, deltas: Mapping[RelationName, Delta]) -> Delta:
        """Return the view's delta for one epoch of its inputs' deltas.

        Deltas of base relations as from `resolve`; those of other views with all columns.
        """
        return self.dataflow.step(self._inputs(deltas))

    def parts(self, deltas: Mapping[RelationName, Delta], max_rows: int) -> Iterator[Delta]:
        """Return the same as `step`, in deltas that add up to it; see `ViewDataflow.parts`."""
        yield from self.dataflow.parts(self._inputs(deltas), max_rows)

    def _inputs(self, deltas: Mapping[RelationName, Delta]) -> dict[RelationName, Delta]:
        inputs = dict(deltas)
        self.meter.take(sum(map(len, inputs.values())))
        for name in self._parents & inputs.keys():
            inputs[name] = inputs[name].project(self._needed[name]).consolidate()
        return inputs
