"""What names mean inside one select block, and what binding one query carries along.

A scope owns the plan of its block while it grows: a scalar subquery adds a column at its end.
With an outer scope (a correlated subquery) positions are those of a join of the two: the outer
columns first, then the block's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from dataflow.errors import SqlError
from dataflow.expressions.ir import ColumnRef
from dataflow.schema import Field
from dataflow.sql.analysis import Analysis, Analyzer, Table
from dataflow.sql.plan import Join, Plan
from dataflow.sql.text import find_words


class NotInScope(Exception):
    """A column belongs to no relation in sight: the subquery is correlated."""


@dataclass
class Context:
    """One canonical text being bound: the view's own, or that of an ordinary view inside it.

    query is the user's text, only for positions. ctes: plan and column names by name. relations:
    tables and ordinary views met so far, by schema and name. aggregates, set_functions: names of
    functions that are called. has_stable: stable functions are called whose results our settings
    do not fix.
    """

    analyzer: Analyzer
    text: str
    query: str
    aggregates: frozenset[str] = frozenset()
    warnings: list[str] = field(default_factory=list)
    ctes: dict[str, tuple[Plan, tuple[str, ...]]] = field(default_factory=dict)
    has_stable: bool = False
    relations: dict[tuple[str, str], Plan | Table] = field(default_factory=dict)
    set_functions: frozenset[str] = frozenset()

    def calling(self, analysis: Analysis) -> Context:
        """The same context, for a text that calls these functions."""
        self.aggregates = frozenset(r.name for r in analysis.routines if r.kind == "a")
        self.set_functions = frozenset(r.name for r in analysis.routines if r.returns_set)
        return self

    def returns_set(self, node: exp.Expr) -> bool:
        """Whether a node calls a function that returns a set."""
        if not self.set_functions:
            return False
        if isinstance(node, exp.Anonymous):
            return node.name in self.set_functions
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            name = self.text_of(node).split("(")[0].replace('"', "")
            return name in self.set_functions
        return False

    def refuse_sets(self, nodes: Iterable[exp.Expr]) -> None:
        """Refuse calls of functions of sets among nodes that stand for one value."""
        if any(self.returns_set(node) for node in nodes):
            what = "a function that returns a set is not maintained in this place"
            raise self.refuse(what, "call it in FROM")

    def text_of(self, node: exp.Expr) -> str:
        """PostgreSQL's text of a scalar node."""
        begin, end = span_of(node)
        return self.text[begin:end]

    def refuse(self, what: str, hint: str, *words: str) -> SqlError:
        """The refusal of a construct; words are what it begins with in the user's text."""
        position = find_words(self.query, words) if words else None
        return SqlError("sql.not_maintained", what, hint=hint, position=position)

    def warn(self, text: str) -> None:
        """Tell the user once."""
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True)
class Visible:
    """A FROM entry that columns can be qualified with."""

    alias: str
    columns: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class FromEntry:
    """A part of FROM: its plan, its qualified names, and its columns in the order of `*`."""

    plan: Plan
    visible: tuple[Visible, ...]
    star: tuple[tuple[str, int], ...]

    def shifted(self, by: int) -> FromEntry:
        """The same names, `by` positions further right."""
        visible = tuple(
            Visible(v.alias, tuple((n, p + by) for n, p in v.columns)) for v in self.visible
        )
        return FromEntry(self.plan, visible, tuple((n, p + by) for n, p in self.star))


class Scope:
    """A select block's names over its plan. outer: the block around a correlated subquery."""

    def __init__(self, entry: FromEntry, outer: Scope | None = None) -> None:
        self.plan = entry.plan
        self.outer = outer
        self._visible = entry.visible
        self._star = entry.star
        self._added: dict[str, int] = {}

    @property
    def offset(self) -> int:
        """Where the block's own columns begin."""
        return len(self.outer.plan.fields) if self.outer else 0

    def resolve(self, node: exp.Column, text: str) -> ColumnRef:
        """The column that a name stands for; NotInScope when there is none."""
        position = self.find(node.table, node.name, text)
        if position is not None:
            found = self.plan.fields[position]
            return ColumnRef(position + self.offset, found.type, found.name)
        if self.outer is None:
            raise NotInScope(text)
        outer, offset = self.outer, self.outer.offset
        found = outer.resolve(node, text)
        if found.index < offset:
            raise NotInScope(text)
        return ColumnRef(found.index - offset, found.type, found.name)

    def find(self, table: str, name: str, text: str) -> int | None:
        """Position of a column among the block's own, by its names or by its text."""
        del text
        if not table:
            return next((p for n, p in self._star if n == name), None)
        for visible in self._visible:
            if visible.alias == table:
                return next((p for n, p in visible.columns if n == name), None)
        return None

    def without_outer(self) -> Scope:
        """The block's own names alone, over its plan as it is now."""
        return Scope(FromEntry(self.plan, self._visible, self._star))

    def add_single_row(self, text: str, make: Callable[[], Plan]) -> ColumnRef:
        """The only column of a one-row plan, crossed into the block once for each text."""

        def cross(plan: Plan) -> Plan:
            single = make()
            return Join("inner", plan, single, (), (), None, plan.fields + single.fields)

        return self.add_column(text, cross)

    def add_column(self, text: str, extend: Callable[[Plan], Plan]) -> ColumnRef:
        """The last column of the plan that `extend` makes of the block's, once for each text."""
        if text not in self._added:
            self.plan = extend(self.plan)
            self._added[text] = len(self.plan.fields) - 1
        found = self.added(text)
        assert found is not None
        return found

    def added(self, text: str) -> ColumnRef | None:
        """The column that was added for a text."""
        position = self._added.get(text)
        if position is None:
            return None
        found = self.plan.fields[position]
        return ColumnRef(position + self.offset, found.type, found.name)

    def extend(self, plan: Plan, texts: Sequence[str]) -> None:
        """Take a plan whose last columns stand for these texts."""
        first = len(plan.fields) - len(texts)
        self.plan = plan
        self._added |= {text: first + i for i, text in enumerate(texts)}


class GroupScope(Scope):
    """After GROUP BY: what is written is a group expression or call, known by its text.

    A subquery may write a grouped column otherwise (with its relation, without), so names are
    also looked up below. columns: for each grouped input column its position in the output.
    """

    def __init__(
        self, plan: Plan, positions: dict[str, int], below: Scope, columns: dict[int, int]
    ) -> None:
        super().__init__(FromEntry(plan, (), ()), below.outer)
        self._positions = positions
        self._below = below
        self._columns = columns

    def over(self, plan: Plan, added: dict[str, int]) -> GroupScope:
        """The same names over a plan whose first columns are the same; and some by their text."""
        return GroupScope(plan, {**self._positions, **added}, self._below, self._columns)

    def find(self, table: str, name: str, text: str) -> int | None:
        """Position of a group expression or aggregate call."""
        if text in self._positions:
            return self._positions[text]
        position = self._below.find(table, name, text) if name else None
        return None if position is None else self._columns.get(position)


def span_of(node: exp.Expr) -> tuple[int, int]:
    """Where a node stands in the canonical text."""
    found = node.meta.get("span")
    if found:
        return found
    spans = [span_of(child) for child in node.iter_expressions() if _has_span(child)]
    assert spans, f"no text for {node!r}"
    return min(s[0] for s in spans), max(s[1] for s in spans)


def _has_span(node: exp.Expr) -> bool:
    return "span" in node.meta or any(_has_span(child) for child in node.iter_expressions())


def nullable(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The same fields where a join may pad them."""
    return tuple(Field(f.name, f.type) for f in fields)
