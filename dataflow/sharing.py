"""What live views share, for people: which parts, with whom, and what is kept once for them.

Figures only: nothing is ever decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dataflow.live_tables import LiveTable
from dataflow.schema import RelationName
from dataflow.shared import LiveNode, SharedDataflow
from dataflow.sql.explain import describe
from dataflow.sql.plan import Loop, Plan
from storage.store import Store


@dataclass(frozen=True)
class SharedPart:
    """One part of the dataflow that several views read.

    rows, bytes: about what it keeps, once for all of them. rows_in, rows_out: of its deltas since
    the start.
    """

    what: str
    views: tuple[RelationName, ...]
    rows: int
    bytes: int
    rows_in: int
    rows_out: int


def shared_parts(dataflow: SharedDataflow, store: Store) -> list[SharedPart]:
    """The tables that several views read; then, inputs first, their nodes that keep state, and
    those at which the views part."""
    nodes = {node.number: node for view in dataflow.views.values() for node in view.nodes}
    sizes = _Sizes(store)
    parts = [_table(table, nodes, sizes) for table in dataflow.tables.tables]
    parts += [_node(node, sizes) for _, node in sorted(nodes.items())]
    return [part for part in parts if part is not None]


class _Sizes:
    """Rows and bytes under "<scope>/<node>/"."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[str, list[str]] = {}
        for name in store.names():
            self._names.setdefault(_owner(name), []).append(name)

    def of(self, prefix: str) -> tuple[int, int]:
        """(rows, bytes), about."""
        found = [self._store.size(name) for name in self._names.get(_owner(prefix), ())]
        return sum(rows for rows, _ in found), sum(size for _, size in found)


def _owner(name: str) -> str:
    return "/".join(name.split("/", 2)[:2])


def _table(table: LiveTable, nodes: dict[int, LiveNode], sizes: _Sizes) -> SharedPart | None:
    scans = [nodes[number] for number in table.scans]
    views = _together(view for scan in scans for view in scan.names)
    if len(views) < 2:
        return None
    columns = ", ".join(table.home.kept())
    what = f"rows of {table.home.relation.name} ({columns})"
    counts = (sum(scan.rows_in for scan in scans), sum(scan.rows_out for scan in scans))
    return SharedPart(what, views, *sizes.of(table.home.prefix), *counts)


def _node(node: LiveNode, sizes: _Sizes) -> SharedPart | None:
    views = _together(node.names)
    if len(views) < 2 or node.home is None:
        return None
    rows, size = sizes.of(node.home.prefix)
    is_last = all(len(reader.names) < len(views) for reader in node.readers)
    if not rows and not is_last:
        return None
    return SharedPart(_shown(node.plan), views, rows, size, node.rows_in, node.rows_out)


def _shown(plan: Plan) -> str:
    return f"recursive {plan.name}" if isinstance(plan, Loop) else describe(plan)


def _together(views: Iterable[RelationName]) -> tuple[RelationName, ...]:
    return tuple(dict.fromkeys(views))
