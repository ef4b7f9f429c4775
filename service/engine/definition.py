"""One view: what it is and reads, and its dataflow by itself while it is built.

A definition is all that is needed to run a view again after a restart; it never changes but as a
whole, at an epoch boundary.
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
from dataflow.sql.lower.lowering import lower
from service.engine.epoch_buffer import added_up
from storage.store import Store


@dataclass(frozen=True)
class ViewDefinition:
    """A planned view: all that is needed to run it again after a restart.

    identity is new for each creation, so that state of an earlier view of the same name is
    never mistaken for this one's; version counts the queries and rebuilds that it has had;
    rebuilt counts up where views still use the state of an earlier building. role: whose rights
    what PostgreSQL evaluates has, "" for the service's own. names: those in its query.
    """

    identity: str
    table: SinkTable
    query: str
    plan: ViewPlan
    rebuilt: int = 0
    version: int = 0
    role: str = ""
    names: KnownNames = UNKNOWN

    @property
    def scope(self) -> str:
        """The prefix of the names of arrangements that are made for it."""
        return f"v{self.identity}" + (f".{self.rebuilt}" if self.rebuilt else "")

    @property
    def building(self) -> str:
        """Tells the building of one version from that of another."""
        if not self.version:
            return self.identity
        # A version that came to nothing may have had the same number.
        query = hashlib.sha256(self.query.encode()).hexdigest()
        return f"{self.identity}.{self.version}.{query[:16]}"

    @property
    def name(self) -> RelationName:
        """What other views call it."""
        return RelationName(VIEW_SOURCE, self.table.schema, self.table.name)

    def relations(self) -> tuple[Relation, ...]:
        """The base relations that it reads, each once."""
        found = {s.relation.name: s.relation for s in scans_of(self.plan.root)}
        return tuple(r for name, r in found.items() if name.source != VIEW_SOURCE)

    def reads(self) -> list[tuple[Relation, tuple[int, ...]]]:
        """The base relations, each with the positions of the fields that are used."""
        needed = needed_columns(lower(self.plan.root))
        return [(relation, needed[relation.name]) for relation in self.relations()]

    def tables(self) -> list[TableLocation]:
        """The rows of base relations that are kept for it, and no more of them than it reads."""
        return [TableLocation(self.scope, relation, columns) for relation, columns in self.reads()]

    @property
    def relation(self) -> Relation:
        """The view as other views read it."""
        return Relation(self.name, 0, self.table.fields, self.table.key)

    def missing_in(self, relation: Relation) -> list[str]:
        """What keeps this view from reading another version of a view that it reads."""
        return what_is_missing(self.plan.root, relation.name, relation)

    def reading(self, name: RelationName, relation: Relation) -> ViewDefinition:
        """The view over another version, or under another name, of the one called `name`."""
        root = reading(self.plan.root, name, relation)
        return replace(self, plan=replace(self.plan, root=root))

    def parents(self) -> tuple[RelationName, ...]:
        """The maintained views that it reads, each once."""
        names = dict.fromkeys(s.relation.name for s in scans_of(self.plan.root))
        return tuple(name for name in names if name.source == VIEW_SOURCE)

    def is_planned_over(self, views: Mapping[RelationName, ViewDefinition]) -> bool:
        """Whether these have every view that it reads, with the columns and key that it knows."""
        for read in {s.relation for s in scans_of(self.plan.root)}:
            found = views.get(read.name)
            if read.name.source == VIEW_SOURCE and (
                found is None or (found.table.fields, found.table.key) != (read.fields, read.key)
            ):
                return False
        return True


@dataclass
class StateLayout:
    """Where the state of live views lies.

    homes: of each node of each view, by identity. A view that is not in it has all of its state
    in its own scope: so it was before views shared what they keep.
    """

    homes: dict[str, list[StateLocation | None]] = field(default_factory=dict)
    tables: list[TableLocation] = field(default_factory=list)


class View:
    """A view by itself, as it is built: changes of base relations in, its own delta out.

    columns: for relations of which more columns are kept than the view needs, all of them.
    """

    def __init__(
        self,
        definition: ViewDefinition,
        store: Store,
        evaluator: Evaluator,
        columns: Mapping[RelationName, tuple[int, ...]] | None = None,
    ) -> None:
        self.definition = definition
        self.errors = ErrorRows()
        nodes = lower(definition.plan.root)
        self.dataflow = ViewDataflow(nodes, definition.scope, store, evaluator, self.errors)
        self._needed = self.dataflow.needed_columns()
        self._parents = set(definition.parents())
        self.homes = [
            TableLocation(definition.scope, r, (columns or self._needed)[r.name])
            for r in definition.relations()
        ]
        self.tables = {
            home.relation.name: TableState(home.relation, home.columns, store, home.scope)
            for home in self.homes
        }
        self._places = {
            home.relation.name: [home.columns.index(c) for c in self._needed[home.relation.name]]
            for home in self.homes
        }

    def resolve(self, changes: Iterable[Changes]) -> dict[RelationName, Delta]:
        """Exact deltas of the base relations that this view reads."""
        deltas: dict[RelationName, list[Delta]] = {}
        for change in changes:
            name = change.relation.name
            if name in self.tables:
                rows = self.needed(name, self.tables[name].resolve(change))
                deltas.setdefault(name, []).append(rows)
        return {name: added_up(parts) for name, parts in deltas.items()}

    def needed(self, name: RelationName, rows: Delta) -> Delta:
        """Of rows of a relation as they are kept what `step` takes, consolidated."""
        places = self._places[name]
        if len(places) == len(rows.columns):
            return rows
        return rows.project(places).consolidate()

    def rejected(self) -> list[Letter]:
        """What is told of rows that its tables have left out since the last call."""
        found = [letter for table in self.tables.values() for letter in table.rejected]
        for table in self.tables.values():
            table.rejected = []
        return found

    def step(self, deltas: Mapping[RelationName, Delta]) -> Delta:
        """The view's own delta for one epoch of its inputs' deltas.

        Those of base relations as `resolve` gives them, those of other views whole.
        """
        return self.dataflow.step(self._inputs(deltas))

    def parts(self, deltas: Mapping[RelationName, Delta], most_rows: int) -> Iterator[Delta]:
        """As `step`, in deltas that add up to it; see `ViewDataflow.parts`."""
        yield from self.dataflow.parts(self._inputs(deltas), most_rows)

    def _inputs(self, deltas: Mapping[RelationName, Delta]) -> dict[RelationName, Delta]:
        inputs = dict(deltas)
        for name in self._parents & inputs.keys():
            inputs[name] = inputs[name].project(self._needed[name]).consolidate()
        return inputs
