"""Window calls: what stands between GROUP BY with HAVING and the select list.

Each different (partition, order) of a block becomes one Window node over the block's plan, whose
calls are columns at its end; above, a call is known by its text. A frame is made explicit: what
PostgreSQL assumes where none is written, or where the function does not look at it, is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Expression, Literal
from dataflow.schema import Field
from dataflow.sql.aggregates import check_key
from dataflow.sql.keys import keys_of
from dataflow.sql.plan import Frame, FrameBound, SortKey, Window, WindowCall
from dataflow.sql.scalars import Scalars
from dataflow.sql.scope import Context, Scope, span_of
from dataflow.sql.shapes import operands, ordered_parts
from dataflow.sql.window_functions import NEVER_NULL, NUMBERING, UNFRAMED, depends_on_ties
from dataflow.sql.window_shapes import (
    arguments_of,
    call_of,
    condition_of,
    window_of,
)
from dataflow.types import SqlType

_UNBOUNDED = "UNBOUNDED"
_CURRENT = "CURRENT ROW"
_NUMBERED = ("rows", "groups")
_NAME = re.compile(r'(?:"(?:[^"]|"")*"|[^"(])+')


def find_windows(context: Context, nodes: Sequence[exp.Expr]) -> dict[str, exp.Expr]:
    """The window calls in nodes by their text; those of subqueries are not the block's."""
    found: dict[str, exp.Expr] = {}

    def walk(node: exp.Expr) -> None:
        if window_of(node) is not None:
            found.setdefault(context.text_of(node), node)
        elif not isinstance(node, exp.Query | exp.Subquery):
            for child in operands(node):
                walk(child)

    for node in nodes:
        walk(node)
    return found


def window_column(context: Context, scope: Scope, node: exp.Expr) -> Expression:
    """The column of a window call that was bound before."""
    found = scope.added(context.text_of(node))
    if found is None:
        raise context.refuse(
            "a window function in this place is not maintained",
            "compute it in a subquery in FROM",
            "over",
        )
    return found


@dataclass
class _Definition:
    """A window's parts as written, what it inherits added."""

    partition: list[exp.Expr] = field(default_factory=list)
    order: list[exp.Ordered] = field(default_factory=list)
    spec: exp.WindowSpec | None = None

    def nodes(self) -> list[exp.Expr]:
        """All that is to be bound, in the order partition, order, distances of the frame."""
        return [*self.partition, *(o.this for o in self.order), *self.distances()]

    def distances(self) -> list[exp.Expr]:
        """The distances of the frame's bounds."""
        args = self.spec.args if self.spec is not None else {}
        return [args[k] for k in ("start", "end") if isinstance(args.get(k), exp.Expr)]


class Windows:
    """Puts one block's window calls on its scope."""

    def __init__(self, context: Context, scope: Scope, atom: Callable) -> None:
        self._context = context
        self._scope = scope
        self._scalars = Scalars(context, atom)
        self._named: dict[str, exp.Window] = {}

    def bind(self, nodes: Sequence[exp.Expr], named: Sequence[exp.Window]) -> None:
        """Add a column to the scope for each window call in nodes; named: the WINDOW clause."""
        calls = find_windows(self._context, nodes)
        if not calls:
            return
        self._named = {w.this.name: w for w in named}
        windows = [w for w in map(window_of, calls.values()) if w is not None]
        definitions = [self._definition(w) for w in windows]
        wanted = [n for d in definitions for n in d.nodes()]
        for window in windows:
            condition = condition_of(window)
            wanted += arguments_of(window) + ([condition] if condition is not None else [])
        bound = self._scalars.bind(wanted)
        by_node = {id(n): e for n, e in zip(wanted, bound, strict=True)}
        names = [self._name(n) for n in calls.values()]
        probes = [_probe(n, call_of(w), self._scalars) for n, w in zip(names, windows, strict=True)]
        columns = [c.type for c in self._scalars.columns]
        types = self._context.analyzer.types(columns, probes)
        groups: dict[tuple, list[tuple[str, WindowCall]]] = {}
        for i, (text, definition) in enumerate(zip(calls, definitions, strict=True)):
            partition, order = _keys(definition, by_node)
            for expression in partition:
                check_key(self._context, expression, "PARTITION BY", ("partition", "by"))
            call = self._call((names[i], types[i]), windows[i], definition, by_node)
            self._warn(call, partition, order)
            groups.setdefault((partition, order), []).append((text, call))
        for (partition, order), found in groups.items():
            self._add(partition, order, found)

    def _add(
        self,
        partition: tuple[Expression, ...],
        order: tuple[SortKey, ...],
        found: Sequence[tuple[str, WindowCall]],
    ) -> None:
        plan, calls = self._scope.plan, tuple(call for _, call in found)
        fields = plan.fields + tuple(c.field for c in calls)
        window = Window(plan, partition, order, calls, fields)
        self._scope.extend(window, [text for text, _ in found])

    def _definition(self, window: exp.Window) -> _Definition:
        """The window of a call or of a name, with what it inherits."""
        order = window.args.get("order")
        own = _Definition(
            list(window.args.get("partition_by") or []),
            ordered_parts(order),
            window.args.get("spec"),
        )
        name = window.args.get("alias")
        if name is None:
            return own
        base = self._definition(self._named[name.name])
        return _Definition(base.partition, own.order or base.order, own.spec or base.spec)

    def _name(self, node: exp.Expr) -> str:
        """The function as the text names it, with its schema."""
        found = _NAME.match(self._context.text, span_of(node)[0])
        assert found is not None
        return found.group()

    def _call(
        self,
        typed: tuple[str, SqlType],
        window: exp.Window,
        definition: _Definition,
        by_node: dict[int, Expression],
    ) -> WindowCall:
        name, type = typed
        call = call_of(window)
        condition = condition_of(window)
        slots = [
            "*"
            if isinstance(a, exp.Star)
            else f"VARIADIC ${i}"
            if isinstance(a, exp.Variadic)
            else f"${i}"
            for i, a in enumerate(call.expressions, 1)
        ]
        frame = self._frame(definition, by_node, name)
        return WindowCall(
            name,
            tuple(by_node[id(a)] for a in arguments_of(window)),
            None if condition is None else by_node[id(condition)],
            frame,
            f"{name}({', '.join(slots)})",
            Field(name.split(".")[-1].strip('"'), type, name not in NEVER_NULL),
            # rank and its like are aggregates too, WITHIN GROUP.
            name not in NUMBERING and name.replace('"', "") in self._context.aggregates,
        )

    def _frame(self, definition: _Definition, by_node: dict[int, Expression], name: str) -> Frame:
        spec = definition.spec
        if spec is None or name in UNFRAMED:
            return Frame()
        mode = spec.args["kind"].lower()
        start = self._bound(mode, spec.args["start"], spec.args.get("start_side"), by_node)
        end = FrameBound("current row")
        if spec.args.get("end") is not None:
            end = self._bound(mode, spec.args["end"], spec.args.get("end_side"), by_node)
        excluded = spec.args.get("exclude")
        word = excluded.name.lower() if excluded is not None else ""
        return Frame(mode, start, end, "" if word == "no others" else word)

    def _bound(
        self, mode: str, value: exp.Expr | str, side: str | None, by_node: dict[int, Expression]
    ) -> FrameBound:
        if value == _CURRENT:
            return FrameBound("current row")
        direction = str(side).lower()
        if value == _UNBOUNDED:
            return FrameBound(f"unbounded {direction}")
        distance = by_node[id(value)]
        if not isinstance(distance, Literal) or distance.text is None:
            raise self._context.refuse(
                "the distance of a window's frame is no constant", "write a constant", direction
            )
        if mode in _NUMBERED and int(distance.text) < 0:
            raise self._context.refuse(
                "the distance of a window's frame is negative",
                "write a number of rows from 0 on",
                direction,
            )
        return FrameBound(direction, distance)

    def _warn(
        self, call: WindowCall, partition: Sequence[Expression], order: Sequence[SortKey]
    ) -> None:
        """Tell when the answer hangs on an order that the query leaves open."""
        if not depends_on_ties(call):
            return
        known = keys_of(self._scope.plan)
        expressions = [*partition, *(k.expression for k in order)]
        columns = frozenset(e.index for e in expressions if isinstance(e, ColumnRef))
        follows = known.closure(columns)
        if any(key <= follows for key in known.keys):
            return
        self._context.warn(
            f"{call.function} OVER depends on the order of rows that its ORDER BY leaves open: "
            "rows that tie come in the order of all their columns by text"
        )


def _probe(name: str, call: exp.Expr, scalars: Scalars) -> str:
    """The call over c1, c2 ... whose type is asked; it is the same over every window."""
    arguments = [
        "*"
        if isinstance(a, exp.Star)
        else f"VARIADIC {scalars.probe(a.this)}"
        if isinstance(a, exp.Variadic)
        else scalars.probe(a)
        for a in call.expressions
    ]
    return f"{name}({', '.join(arguments)}) OVER ()"


def _keys(
    definition: _Definition, by_node: dict[int, Expression]
) -> tuple[tuple[Expression, ...], tuple[SortKey, ...]]:
    """Partition and order, without constants, which neither divide nor sort."""
    partition = [by_node[id(n)] for n in definition.partition]
    order = [
        SortKey(
            by_node[id(o.this)],
            bool(o.args.get("desc")),
            bool(o.args.get("nulls_first")),
            str(o.args.get("using") or ""),
        )
        for o in definition.order
    ]
    kept = tuple(dict.fromkeys(e for e in partition if not isinstance(e, Literal)))
    return kept, tuple(order)
