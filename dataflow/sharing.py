"""A report of the live dataflow's nodes: what each does, for which views, with which metrics.

For display only: nothing is decided by these figures. Rows, bytes and times are totals since the
start; the difference of two reads gives rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dataflow.live_tables import LiveTable
from dataflow.plan.explain import describe
from dataflow.schema import RelationName
from dataflow.shared import LiveNode, SharedDataflow
from dataflow.sql.lower.lowering import Node, title_of
from storage.store import Store

TABLE = "table"


@dataclass(frozen=True)
class NodeFigures:
    """One node. id: unique while the process runs; inputs: ids of its inputs.

    views: its readers. output_of: the views whose rows it emits. is_part: it represents work that
    its views share. rows, bytes: estimates of its state, counted once. rows_in, rows_out: of its
    deltas; time_s: in its steps, without waiting.
    """

    id: str
    what: str
    detail: str
    inputs: tuple[str, ...]
    views: tuple[RelationName, ...]
    output_of: tuple[RelationName, ...]
    is_part: bool
    rows: int
    bytes: int
    rows_in: int
    rows_out: int
    time_s: float


@dataclass(frozen=True)
class _Outline:
    """The parts of a node's report that change only when a view is added or removed."""

    id: str
    what: str
    detail: str
    inputs: tuple[str, ...]
    views: tuple[RelationName, ...]
    output_of: tuple[RelationName, ...]
    counted: LiveNode | LiveTable
    names: tuple[str, ...]
    is_last: bool


class DataflowFigures:
    """The figures of one dataflow over one store; use only in the thread that steps it."""

    def __init__(self, dataflow: SharedDataflow, store: Store) -> None:
        self._dataflow = dataflow
        self._store = store
        self._shape: tuple[int, tuple[str, ...]] = (-1, ())
        self._outlines: list[_Outline] = []
        self._tables: dict[str, str] = {}

    def nodes(self) -> list[NodeFigures]:
        """Return tables first, then all other nodes, each after its inputs."""
        shape = (self._dataflow.shape, tuple(self._store.names()))
        if self._shape != shape:
            self._outlines = self._drawn()
            self._shape = shape
        return [self._counted(outline) for outline in self._outlines]

    def _counted(self, outline: _Outline) -> NodeFigures:
        sizes = [self._store.size(name) for name in outline.names]
        rows = sum(rows for rows, _ in sizes)
        counted = outline.counted
        has_own = outline.what == TABLE or bool(rows) or outline.is_last
        is_scan = isinstance(counted, LiveNode) and counted.location is None
        return NodeFigures(
            outline.id,
            outline.what,
            outline.detail,
            outline.inputs,
            outline.views,
            outline.output_of,
            len(outline.views) > 1 and has_own and not is_scan,
            rows,
            sum(size for _, size in sizes),
            counted.rows_in,
            counted.rows_out,
            counted.time_s,
        )

    def _drawn(self) -> list[_Outline]:
        views = self._dataflow.views
        nodes = {node.number: node for view in views.values() for node in view.nodes}
        stored: dict[str, list[str]] = {}
        for name in self._store.names():
            stored.setdefault(_owner(name), []).append(name)
        tables = self._dataflow.tables.tables
        drawn = [self._table(table, nodes, stored) for table in tables]
        of_scan = {n: o.id for t, o in zip(tables, drawn, strict=True) for n in t.scans}
        for number, node in sorted(nodes.items()):
            inputs = tuple(_id(below) for below in node.inputs) or (of_scan.get(number, ""),)
            readers = _together(node.names)
            drawn.append(
                _Outline(
                    _id(node),
                    title_of(node.plan),
                    describe(node.plan),
                    tuple(filter(None, inputs)),
                    readers,
                    tuple(name for name, view in views.items() if view.root is node),
                    node,
                    tuple(stored.get(_owner(node.location.prefix), ())) if node.location else (),
                    all(len(reader.names) < len(readers) for reader in node.readers),
                )
            )
        return drawn

    def _table(
        self, table: LiveTable, nodes: dict[int, LiveNode], stored: dict[str, list[str]]
    ) -> _Outline:
        location = table.location
        number = self._tables.setdefault(location.prefix, f"t{len(self._tables)}")
        views = _together(view for scan in table.scans for view in nodes[scan].names)
        what = "rows" if location.is_stored else "changes"
        detail = f"{what} of {location.relation.name} ({', '.join(location.kept())})"
        names = tuple(stored.get(_owner(location.prefix), ()))
        return _Outline(number, TABLE, detail, (), views, (), table, names, is_last=False)


def planned_nodes(nodes: Iterable[Node]) -> list[dict[str, object]]:
    """Return the nodes of a single view as they will run: id, what, detail, inputs."""
    return [
        {
            "id": f"p{position}",
            "what": title_of(node.plan),
            "detail": describe(node.plan),
            "inputs": [f"p{below}" for below in node.inputs],
        }
        for position, node in enumerate(nodes)
    ]


def _id(node: LiveNode) -> str:
    return f"n{node.number}"


def _owner(name: str) -> str:
    return "/".join(name.split("/", 2)[:2])


def _together(views: Iterable[RelationName]) -> tuple[RelationName, ...]:
    return tuple(dict.fromkeys(views))
