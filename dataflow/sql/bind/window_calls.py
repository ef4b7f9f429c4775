"""Window calls, computed after GROUP BY and HAVING and before the select list.

Each distinct (partition, order) of a block becomes one Window node over the block's plan, with its
calls as the last columns; above it, a call is found by its text. Frames are made explicit:
PostgreSQL's default if none is written, or if the function ignores it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dataflow.errors import SqlError
from dataflow.expressions.intervals import parse_interval
from dataflow.expressions.ir import ColumnRef, Expression, Literal
from dataflow.expressions.sql_text import with_arguments
from dataflow.plan.nodes import Frame, FrameBound, SortKey, Window, WindowCall
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.plan.window_functions import (
    IN_ROWS,
    NEVER_NULL,
    NUMBERING,
    UNFRAMED,
    depends_on_ties,
)
from dataflow.schema import Field
from dataflow.sql.bind.grouping import check_key
from dataflow.sql.bind.scalars import Scalars
from dataflow.sql.bind.scope import Context, Scope
from dataflow.sql.bind.window_shapes import (
    arguments_of,
    call_of,
    condition_of,
    function_of,
    window_of,
)
from dataflow.sql.parse.shapes import operands, ordered_parts, span_of
from dataflow.types import UTC, SqlType, TypeKind

_UNBOUNDED = "UNBOUNDED"
_CURRENT = "CURRENT ROW"
_NUMBERED = ("rows", "groups")
_NAME = re.compile(r'(?:"(?:[^"]|"")*"|[^"(])+')


def find_windows(context: Context, nodes: Sequence[exp.Expr]) -> dict[str, exp.Expr]:
    """Return the window calls in nodes by their text, except those of subqueries."""
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
    """Return the column of a window call that is already bound."""
    found = scope.added(context.text_of(node))
    if found is None:
        raise context.refuse(
            "a window function in this position is not maintained",
            "compute it in a subquery in FROM",
            "over",
        )
    return found


@dataclass
class _Definition:
    """The parts of a window, inherited ones included."""

    partition: list[exp.Expr] = field(default_factory=list)
    order: list[exp.Ordered] = field(default_factory=list)
    spec: exp.WindowSpec | None = None

    def key_nodes(self) -> list[exp.Expr]:
        """Return the expressions of partition and order."""
        return [*self.partition, *(o.this for o in self.order)]

    def nodes(self) -> list[exp.Expr]:
        """Return the nodes to bind, in the order partition, order, distances of the frame."""
        return [*self.key_nodes(), *self.distances()]

    def distances(self) -> list[exp.Expr]:
        """Return the distances of the frame's bounds."""
        args = self.spec.args if self.spec is not None else {}
        return [args[k] for k in ("start", "end") if isinstance(args.get(k), exp.Expr)]


class Windows:
    """Adds one block's window calls to its scope."""

    def __init__(
        self, context: Context, scope: Scope, atom: Callable, named: Sequence[exp.Window]
    ) -> None:
        """named: the WINDOW clause."""
        self._context = context
        self._scope = scope
        self._scalars = Scalars(context, atom)
        self._named = {w.this.name: w for w in named}

    def keys(self, nodes: Sequence[exp.Expr]) -> list[exp.Expr]:
        """Return the keys of the windows that calls in nodes use."""
        windows = [window_of(n) for n in find_windows(self._context, nodes).values()]
        definitions = [self._definition(w) for w in windows if w is not None]
        return [key for d in definitions for key in d.key_nodes()]

    def bind(self, nodes: Sequence[exp.Expr]) -> None:
        """Add a column to the scope for each window call in nodes."""
        calls = find_windows(self._context, nodes)
        if not calls:
            return
        windows = [w for w in map(window_of, calls.values()) if w is not None]
        definitions = [self._definition(w) for w in windows]
        required = [n for d in definitions for n in d.nodes()]
        for window in windows:
            condition = condition_of(window)
            required += [condition] if condition is not None else []
        self._scalars.learn([*required, *(a for w in windows for a in arguments_of(w))])
        bound = self._scalars.bind(required)
        by_node = {id(n): e for n, e in zip(required, bound, strict=True)}
        names = [self._name(n) for n in calls.values()]
        types = self._types(names, windows)
        groups: dict[tuple, list[tuple[str, WindowCall]]] = {}
        for i, (text, definition) in enumerate(zip(calls, definitions, strict=True)):
            partition, order = _keys(definition, by_node)
            for expression in partition:
                check_key(self._context, expression, "PARTITION BY", ("partition", "by"))
            call = self._call((names[i], types[i]), windows[i], definition, by_node)
            own = order
            call, order = self._in_order(call, order)
            self._warn(call, partition, order, is_borrowed=order != own)
            groups.setdefault((partition, order), []).append((text, call))
        for (partition, order), found in groups.items():
            self._add(partition, order, found)

    def _types(self, names: Sequence[str], windows: Sequence[exp.Window]) -> Sequence[SqlType]:
        """Return the types of the calls."""
        probes = [_probe(n, call_of(w), self._scalars) for n, w in zip(names, windows, strict=True)]
        rows = [
            name
            for name, window in zip(names, windows, strict=True)
            if any(self._scalars.bound(a) is None for a in arguments_of(window))
        ]
        try:
            found = self._context.analyzer.types([c.type for c in self._scalars.columns], probes)
        except SqlError:
            if not rows:
                raise
            found = ()
        if not found or not IN_ROWS.isdisjoint(rows):
            named = ", ".join(f"{name} OVER" for name in rows)
            raise self._context.refuse(
                f"a row without a named type is not maintained in {named}",
                "name the required columns of the row",
                "over",
            )
        return found

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
        """Return the window of a call or of a name, inherited parts included."""
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
        """Return the function's name in the text, with its schema."""
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
        arguments: list[Expression] = []
        slots = [self._slot(a, arguments) for a in call.expressions]
        frame = self._frame(definition, by_node, name)
        return WindowCall(
            name,
            tuple(arguments),
            None if condition is None else by_node[id(condition)],
            frame,
            f"{name}({', '.join(slots)})",
            Field(name.split(".")[-1].strip('"'), type, name not in NEVER_NULL),
            # rank and similar functions are also aggregates (WITHIN GROUP).
            name not in NUMBERING and function_of(window) in self._context.aggregates,
        )

    def _slot(self, node: exp.Expr, arguments: list[Expression]) -> str:
        """Return an argument's text in the call; add its columns to the arguments."""
        if isinstance(node, exp.Star):
            return "*"
        word = "VARIADIC " if isinstance(node, exp.Variadic) else ""
        value = node.this if word else node
        bound = self._scalars.bound(value)
        if bound is not None:
            arguments.append(bound)
            return f"{word}${len(arguments)}"
        sql, columns = self._scalars.over_columns(value)
        before = len(arguments)
        arguments += columns
        return word + with_arguments(sql, lambda i: f"${before + i}")

    def _in_order(
        self, call: WindowCall, order: tuple[SortKey, ...]
    ) -> tuple[WindowCall, tuple[SortKey, ...]]:
        """Return a call over a window without ORDER BY with the order of the rows from FROM.

        All rows are peers there; an order would change EXCLUDE GROUP and TIES.
        """
        frame = call.frame
        is_open = not order and depends_on_ties(call) and frame.exclude not in ("group", "ties")
        if not is_open or not self._scope.order:
            return call, order
        if frame.mode != "rows" and call.function not in UNFRAMED:
            start, end = FrameBound("unbounded preceding"), FrameBound("unbounded following")
            frame = Frame("rows", start, end, frame.exclude)
        return replace(call, frame=frame), self._scope.order

    def _frame(self, definition: _Definition, by_node: dict[int, Expression], name: str) -> Frame:
        spec = definition.spec
        if spec is None or name in UNFRAMED:
            return Frame()
        mode = spec.args["kind"].lower()
        start = self._bound(mode, spec.args["start"], spec.args.get("start_side"), by_node)
        end = FrameBound("current row")
        if spec.args.get("end") is not None:
            end = self._bound(mode, spec.args["end"], spec.args.get("end_side"), by_node)
        self._check_days(start, definition, by_node)
        self._check_days(end, definition, by_node)
        excluded = spec.args.get("exclude")
        word = excluded.name.lower() if excluded is not None else ""
        return Frame(mode, start, end, "" if word == "no others" else word)

    def _check_days(
        self, bound: FrameBound, definition: _Definition, by_node: dict[int, Expression]
    ) -> None:
        """Refuse days outside UTC: a day of a timestamptz has 23 to 25 hours there."""
        distance = bound.distance
        if distance is None or distance.type.kind is not TypeKind.INTERVAL:
            return
        parts = parse_interval(str(distance.text).encode())
        is_instant = by_node[id(definition.order[0].this)].type.kind is TypeKind.TIMESTAMPTZ
        has_days = parts is not None and parts[1] != 0
        if is_instant and has_days and self._context.analyzer.time_zone != UTC:
            raise self._context.refuse(
                "a distance in days over a timestamptz depends on the time zone",
                "write hours, or ORDER BY x AT TIME ZONE '...'",
                bound.kind,
            )

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
                "the distance of a window frame is not a constant", "write a constant", direction
            )
        if mode in _NUMBERED and int(distance.text) < 0:
            raise self._context.refuse(
                "the distance of a window frame is negative",
                "write a number of rows that is 0 or more",
                direction,
            )
        return FrameBound(direction, distance)

    def _warn(
        self,
        call: WindowCall,
        partition: Sequence[Expression],
        order: Sequence[SortKey],
        *,
        is_borrowed: bool,
    ) -> None:
        """Warn if the answer depends on an order that the query leaves open."""
        if not depends_on_ties(call):
            return
        if is_borrowed and partition:
            self._context.warn(
                f"{call.function} OVER takes the rows of its partition in the order of the sorted "
                "subquery, which PostgreSQL leaves open: write ORDER BY inside OVER"
            )
        known = keys_of(self._scope.plan)
        expressions = [*partition, *(k.expression for k in order)]
        columns = frozenset(e.index for e in expressions if isinstance(e, ColumnRef))
        follows = known.closure(columns)
        if any(key <= follows for key in known.keys):
            return
        self._context.warn(
            f"{call.function} OVER depends on the order of rows that its ORDER BY leaves open: "
            "ties are sorted by the text of all their columns"
        )


def _probe(name: str, call: exp.Expr, scalars: Scalars) -> str:
    """Return the call over c1, c2 ... for a type probe; the type is the same over every window."""
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
    """Return partition and order without constants, which neither divide nor sort."""
    partition = [by_node[id(n)] for n in definition.partition]
    order = [
        SortKey(
            by_node[id(o.this)],
            bool(o.args.get("desc")),
            bool(o.args.get("nulls_first")),
            o.meta.get("operator", ""),
        )
        for o in definition.order
    ]
    retained = tuple(dict.fromkeys(e for e in partition if not isinstance(e, Literal)))
    return retained, tuple(order)
