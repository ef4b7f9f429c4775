"""A maintained view cut into stages, and its stages into buckets.

A stage is cut as for a backfill (`connectors.spark.stages`); the stages of base relations are level
0 and store the relations' rows. A bucket is one range of the hashes of a stage's exchange key. The
buckets of one number in all stages of a level are stepped together and have one state. Invariants:
a row and its retraction reach the same bucket; the leading columns of every state's key are the
exchange key, so state can be moved to other buckets without its operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from connectors import netguard
from connectors.spark.routing import JoinRouting
from connectors.spark.segment import additive_nodes, node_specs
from connectors.spark.stages import NODE, SINK, Cut, Spec, Stage, cut, key_kinds
from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.base import kinds_of
from dataflow.operators.joins.spreading import padded_sides, spread_sides
from dataflow.operators.tables.table import table_spec
from dataflow.plan.explain import describe
from dataflow.plan.nodes import Loop, Remember, Scan
from dataflow.plan.walk import nodes_of
from dataflow.schema import VIEW_SOURCE, Relation, RelationName
from dataflow.sql.lateness import depends_on_history
from dataflow.sql.lower.lowering import Node
from dataflow.sql.rules.split_aggregates import gets_few_rows
from dataflow.sql.rules.split_top_k import is_second_phase
from storage.store import ArrangementSpec

MAX_BUCKETS = 1 << 16
_STAGE_SHIFT = 16
# Slots of rows for the driver: the view's rows, failed rows, final rows, rejected records, an error
# of the view, a file that was written, the log and the answers of a task, its figures, what was
# found in a range.
OUTPUT, ERRORS, FINAL, REJECTED, FAILED, WRITTEN, LOGGED, ANSWERED, MEASURED = range(-1, -10, -1)
READ = -10
# How many rows of which keys a join was given.
COUNTED = -11
# The name of a file with rows for the sink.
STORED = -12
# The spread keys of a view's joins, ascending: (stage, input whose rows are spread, hash of the
# exchange key). See `connectors.spark.routing`.
Spread = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class MaintainedView:
    """Everything that a task needs of a view; picklable.

    nodes: as lowered. columns: the stored ones of each relation in `relations`, at least all that
    are read. evaluator: called once in a process. identity: another one for each build of the view.
    freed: the relations of which rows that the view never shows again may be missing.
    """

    identity: str
    nodes: tuple[Node, ...]
    scope: str
    relations: tuple[Relation, ...]
    columns: Mapping[RelationName, tuple[int, ...]]
    evaluator: Callable[[], Evaluator]
    guard: netguard.Guard = field(default_factory=netguard.installed)
    freed: frozenset[RelationName] = frozenset()

    @cached_property
    def exchanged(self) -> tuple[Node, ...]:
        """The nodes, with an exchange below every node that has state."""
        return tuple(map(_exchanged, self.nodes))

    @cached_property
    def tables(self) -> Mapping[RelationName, Relation]:
        """The relations with only their stored columns."""
        return {r.name: narrowed(r, self.columns[r.name]) for r in self.relations}


def _exchanged(node: Node) -> Node:
    if isinstance(node.plan, Remember) and not node.plan.by_arguments:
        # Its state is the whole row, whose copies may come from several buckets.
        return replace(node, exchange=(tuple(range(len(node.plan.input.fields))),))
    return node


def narrowed(relation: Relation, columns: Sequence[int]) -> Relation:
    """Return a relation with only these of its columns."""
    fields = tuple(relation.fields[c] for c in columns)
    has_key = set(relation.key) <= set(columns)
    key = tuple(list(columns).index(c) for c in relation.key) if has_key else ()
    return replace(relation, fields=fields, key=key, numbers=())


def _is_stored(relation: Relation) -> bool:
    """Return whether a relation's rows are stored: not of append-only ones and of other views."""
    return not relation.is_append and relation.name.source != VIEW_SOURCE


def spread_of(listed: Iterable[Sequence[int]]) -> Spread:
    """Return spread keys, as listed in a document or in any order."""
    return tuple(sorted((stage, side, hash) for stage, side, hash in listed))


class Layout:
    """The stages of a view over so many buckets; what `Segment` needs.

    levels[i]: the stages of level i, which read only stages of lower ones.
    """

    def __init__(self, view: MaintainedView, buckets: int, spread: Spread = ()) -> None:
        if not 0 < buckets <= MAX_BUCKETS:
            raise InvariantError("spark.exchange", f"{buckets} buckets")
        self.view = view
        self.buckets = buckets
        self.spread = spread
        self.nodes: Sequence[Node] = view.exchanged
        self.scope = view.scope
        self.columns = {name: view.columns[name] for name in view.tables}
        self.evaluator = view.evaluator
        tables = dict.fromkeys(view.tables)
        found = cut(self.nodes, tables, {}, buckets, additive_nodes(self.nodes))
        self.cut = Cut(tuple(map(self._placed, found.stages)), found.level_slots)
        own = [s for s in self.cut.stages if s.kind != SINK]
        # What depends on its steps must not be stepped in parts.
        self.is_cut = not depends_on_history(self.nodes[-1].plan)
        count = max((s.level for s in own), default=0) + 1
        self.levels = tuple(tuple(s for s in own if s.level == at) for at in range(count))
        sides = {s.number: self.spread_sides(s) for s in self.cut.stages}
        for number, side, _ in spread:
            if side not in sides.get(number, ()):
                raise InvariantError("spark.exchange", f"stage {number} has keys of input {side}")

    def _placed(self, stage: Stage) -> Stage:
        """Return the stage with its slots; what cannot be split has one, in a bucket of its own."""
        if stage.kind == SINK:
            return replace(stage, slot=OUTPUT, buckets=1)
        first = stage.number << _STAGE_SHIFT
        if self.is_single(stage):
            return replace(stage, slot=first + stage.number % self.buckets, buckets=1)
        padded = padded_sides(self.nodes[stage.nodes[0]].plan) if stage.kind == NODE else None
        if padded is None:
            return replace(stage, slot=first, buckets=self.buckets)
        keys = [(side, hash) for number, side, hash in self.spread if number == stage.number]
        routing = JoinRouting(padded, keys)
        return replace(stage, slot=first, buckets=self.buckets, routing=routing)

    def spread_sides(self, stage: Stage) -> tuple[int, ...]:
        """Return the inputs of which the rows of a key may be spread; none but of some joins."""
        if stage.routing is None:
            return ()
        return spread_sides(self.nodes[stage.nodes[0]].plan)

    def changed_levels(self, spread: Spread) -> frozenset[int]:
        """Return the levels whose rows are elsewhere if other keys are spread."""
        changed = set(self.spread) ^ set(spread)
        return frozenset(self.cut.stages[number].level for number, _, _ in changed)

    def is_single(self, stage: Stage) -> bool:
        """Return whether a stage has all its rows in one bucket, however many there are."""
        return stage.kind == NODE and not any(self.nodes[stage.nodes[0]].exchange)

    def stage_of(self, slot: int) -> Stage:
        """Return the stage of a slot."""
        return self.cut.stages[slot >> _STAGE_SHIFT]

    @staticmethod
    def bucket_of(slot: int) -> int:
        """Return the bucket of a slot."""
        return slot & (MAX_BUCKETS - 1)

    def slot_of(self, stage: Stage, bucket: int) -> int:
        """Return the slot of a stage's bucket."""
        return stage.number << _STAGE_SHIFT | bucket

    def stages_in(self, level: int, bucket: int) -> list[Stage]:
        """Return the stages of a level that have this bucket."""
        return [s for s in self.levels[level] if s.buckets > 1 or self._home(s) == bucket]

    def _home(self, stage: Stage) -> int:
        return self.bucket_of(stage.slot)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """All buckets of all levels that have state, "level-bucket"."""
        return tuple(
            f"{level}-{bucket}"
            for level in range(len(self.levels))
            for bucket in range(self.buckets)
            if self.stages_in(level, bucket)
        )

    def inputs_of(self, stage: Stage) -> list[int]:
        """Return the numbers of the stages whose rows a stage reads."""
        stages = self.cut.stages
        return [s.number for s in stages if any(p.stage == stage.number for p in s.outputs)]

    def is_last(self, stage: Stage) -> bool:
        """Return whether rows of a stage are rows of the view."""
        return any(self.cut.stages[p.stage].kind == SINK for p in stage.outputs)

    def single_stages(self) -> list[str]:
        """Return what one bucket does with all rows, because it cannot be split."""
        own = [s for level in self.levels for s in level if self.is_single(s) and not s.is_summed]
        plans = [self.nodes[stage.nodes[0]].plan for stage in own]
        return [describe(p) for p in plans if not (is_second_phase(p) or gets_few_rows(p))]

    def source_of(self, relation: RelationName) -> Stage:
        """Return the stage of a base relation."""
        return self.cut.source_of(relation)

    @cached_property
    def specs(self) -> Mapping[int, Sequence[tuple[Spec, int]]]:
        """By stage: its state, and how many leading columns of its key are the exchange key."""
        of_nodes = node_specs(self.nodes, self.scope, self.evaluator())
        found = {}
        for level in self.levels:
            for stage in level:
                specs = [(n, spec) for n in stage.nodes for spec in of_nodes.get(n, ())]
                found[stage.number] = [(s, self._width_of(stage, n, s)) for n, s in specs]
                table = self.table_of(stage)
                if table is not None:
                    found[stage.number].append((table, len(table.key)))
        return found

    def table_of(self, stage: Stage) -> ArrangementSpec | None:
        """Return the state of a base relation's rows; None for another stage, or none."""
        if stage.relation is None or not _is_stored(self.view.tables[stage.relation]):
            return None
        relation = self.view.tables[stage.relation]
        return table_spec(relation, range(len(relation.fields)), self.scope)

    def _width_of(self, stage: Stage, number: int, spec: Spec) -> int:
        """Return the width of a state's exchange key. InvariantError spark.exchange."""
        node = self.nodes[number]
        if self.is_single(stage):
            return 0
        exchange = node.exchange[0] or ()
        if number != stage.nodes[0] or not exchange:
            raise InvariantError("spark.exchange", f"{node.name} has state without an exchange")
        kinds = kinds_of(self.nodes[node.inputs[0]].plan.fields)
        leading = key_kinds(spec)[: len(exchange)]
        if leading != "".join(kinds[c] for c in exchange):
            raise InvariantError("spark.exchange", f"{spec.name} does not begin with its key")
        return len(exchange)

    @cached_property
    def answering(self) -> frozenset[int]:
        """The stages that keep answers of PostgreSQL that may change."""
        return frozenset(
            stage.number
            for stage in self.cut.stages
            if any(_may_change(self.nodes[n]) for n in stage.nodes)
        )


def _may_change(node: Node) -> bool:
    if isinstance(node.plan, Loop):
        return any(isinstance(plan, Remember) for plan in nodes_of(node.plan.body))
    return isinstance(node.plan, Remember)


def reads(nodes: Sequence[Node]) -> tuple[Relation, ...]:
    """Return the relations that nodes scan, each once."""
    scans = [node.plan for node in nodes if isinstance(node.plan, Scan)]
    return tuple({scan.relation.name: scan.relation for scan in scans}.values())
