"""Cut a lowered view at its exchanges into stages, and number the slots of their tasks.

A stage is what one kind of task runs without moving rows. It is the source of a relation, or a node
that needs its rows in buckets, with the following nodes that accept any distribution. Invariant:
every output of a stage goes to a stage of a higher level, so levels may run one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from connectors.spark.routing import JoinRouting
from dataflow.errors import InvariantError
from dataflow.operators.base import kinds_of
from dataflow.plan.nodes import Scan
from dataflow.schema import RelationName
from dataflow.sql.lower.lowering import Node
from storage.store import ArrangementSpec, SumsSpec

SOURCE, NODE, STATE, SINK = "source", "node", "state", "sink"
SUMS = 1  # the tag of sums of an input's rows; an additive node has one input, of tag 0
SNAPSHOT = -1  # the "node" whose rows are a relation's snapshot
NO_INPUT = -1  # the tag of a page that only starts its task

Spec = ArrangementSpec | SumsSpec


@dataclass(frozen=True)
class Port:
    """Destination of a producer's rows: input `tag` of a stage, split by the columns `key`."""

    producer: int
    stage: int
    tag: int
    key: tuple[int, ...]


@dataclass
class Stage:
    """What the tasks of `buckets` slots, numbered from `slot`, run.

    SOURCE reads `relation` and has no slots. NODE steps `nodes`, in order. STATE writes the
    arrangement `spec`. SINK takes the view's rows. moved: by name, state of the nodes that is
    looked up by other columns than the bucket columns, with the stage that writes it. is_summed:
    its first node is Additive, and gets rows and sums of rows. routing: of the rows of a join that
    is maintained.
    """

    number: int
    kind: str
    level: int = 0
    relation: RelationName | None = None
    spec: Spec | None = None
    buckets: int = 0
    slot: int = 0
    nodes: list[int] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)
    is_summed: bool = False
    routing: JoinRouting | None = None


@dataclass(frozen=True)
class Cut:
    """All stages by number; level_slots[i]: the number of slots of the levels up to and including
    i.
    """

    stages: tuple[Stage, ...]
    level_slots: tuple[int, ...]

    def stage_of(self, slot: int) -> Stage:
        """Return the stage of a slot."""
        for stage in self.stages:
            if stage.slot <= slot < stage.slot + stage.buckets:
                return stage
        raise InvariantError("spark.slot", f"no stage has slot {slot}")

    def source_of(self, relation: RelationName) -> Stage:
        """Return the stage that reads a relation."""
        return next(s for s in self.stages if s.kind == SOURCE and s.relation == relation)

    def feeding_levels(self, level: int) -> set[int]:
        """Return the levels from which a level takes rows."""
        numbers = {s.number for s in self.stages if s.level == level}
        return {
            s.level
            for s in self.stages
            if numbers & ({p.stage for p in s.outputs} | set(s.moved.values()))
        }


def cut(
    nodes: Sequence[Node],
    tables: Mapping[RelationName, ArrangementSpec | None],
    specs: Mapping[int, Sequence[Spec]],
    buckets: int,
    additive: Collection[int] = (),
) -> Cut:
    """Return the stages of nodes in topological order; the last node is the view.

    tables: the relations to read, with the arrangement that stores their rows, if any. specs: the
    state of each node. buckets: the number of tasks of a stage that can be split. additive: the
    nodes whose input is added up before it is exchanged.
    """
    cutter = _Cutter(nodes, buckets, additive)
    for relation, spec in tables.items():
        cutter.add_source(relation, spec)
    for number in range(len(nodes)):
        cutter.add_node(number, specs.get(number, ()))
    cutter.add_sink()
    return cutter.number_slots()


class _Cutter:
    def __init__(self, nodes: Sequence[Node], buckets: int, additive: Collection[int]) -> None:
        self._nodes = nodes
        self._buckets = buckets
        self._additive = additive
        self._stages: list[Stage] = []
        self._sources: dict[RelationName, Stage] = {}
        self._stages_of: dict[int, list[Stage]] = {}  # node -> the stages that it runs in

    def add_source(self, relation: RelationName, spec: ArrangementSpec | None) -> None:
        source = self._sources[relation] = self._add(SOURCE, 0, relation=relation)
        if spec is not None:
            table = self._add(STATE, 1, spec=spec, buckets=self._buckets)
            source.outputs.append(Port(SNAPSHOT, table.number, 0, spec.key))

    def add_node(self, number: int, specs: Sequence[Spec]) -> None:
        node = self._nodes[number]
        if isinstance(node.plan, Scan):
            source = self._sources.get(node.plan.relation.name)
            self._stages_of[number] = [] if source is None else [source]
        elif node.inputs and all(key is None for key in node.exchange):
            shared_stages = {s.number: s for i in node.inputs for s in self._stages_of[i]}
            self._stages_of[number] = list(shared_stages.values())
        else:
            self._stages_of[number] = [self._add_exchange(number, specs)]
        for stage in self._stages_of[number]:
            stage.nodes.append(number)

    def _add_exchange(self, number: int, specs: Sequence[Spec]) -> Stage:
        node = self._nodes[number]
        keys = [key for key in node.exchange if key]
        if keys and len(keys) < len(node.inputs):
            raise InvariantError(
                "spark.exchange", f"{node.name} has the unknown exchange {node.exchange}"
            )
        stage = self._add(NODE, 1, buckets=self._buckets if keys else 1)
        stage.is_summed = number in self._additive
        for tag, producer in enumerate(node.inputs):
            self._connect(producer, stage, tag, node.exchange[tag] or ())
        if keys:
            kinds = kinds_of(self._nodes[node.inputs[0]].plan.fields)
            numbers = "".join(kinds[i] for i in keys[0])
            for spec in specs:
                if key_kinds(spec) != numbers:
                    state = self._add(STATE, stage.level + 1, spec=spec, buckets=self._buckets)
                    stage.moved[spec.name] = state.number
        return stage

    def add_sink(self) -> None:
        width = len(self._nodes[-1].plan.fields)
        stage = self._add(SINK, 1, buckets=self._buckets)
        self._connect(len(self._nodes) - 1, stage, 0, tuple(range(width)))

    def number_slots(self) -> Cut:
        levels = max(stage.level for stage in self._stages) + 1
        ends, slot = [], 0
        for level in range(levels):
            for stage in self._stages:
                if stage.level == level:
                    stage.slot = slot
                    slot += stage.buckets
            ends.append(slot)
        return Cut(tuple(self._stages), tuple(ends))

    def _add(
        self,
        kind: str,
        level: int,
        *,
        relation: RelationName | None = None,
        spec: Spec | None = None,
        buckets: int = 0,
    ) -> Stage:
        self._stages.append(Stage(len(self._stages), kind, level, relation, spec, buckets))
        return self._stages[-1]

    def _connect(self, producer: int, stage: Stage, tag: int, key: tuple[int, ...]) -> None:
        for producing in self._stages_of[producer]:
            producing.outputs.append(Port(producer, stage.number, tag, key))
            stage.level = max(stage.level, producing.level + 1)


def key_columns(spec: Spec) -> Sequence[int]:
    """Return the positions of the columns by which state is looked up; sums have them first."""
    return spec.key if isinstance(spec, ArrangementSpec) else range(len(spec.key_kinds))


def key_kinds(spec: Spec) -> str:
    """Return the physical kinds of the columns by which state is looked up."""
    if isinstance(spec, SumsSpec):
        return spec.key_kinds
    return "".join(spec.kinds[i] for i in spec.key)
