"""Resolution of names inside one select block, and the context of binding one query.

A scope owns the growing plan of its block: a subquery appends columns. Names unknown to a block are
looked up in the enclosing scopes and become outer references. The context lists the enclosing
scopes, since each becomes the left side of an Apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dataflow.errors import SqlError
from dataflow.expressions.ir import ColumnRef, Expression, Literal, OuterRef
from dataflow.lexer import find_words, on_one_line
from dataflow.plan.nodes import Apply, Join, Plan, Project, SortKey
from dataflow.plan.outer_refs import Levels, moved
from dataflow.plan.properties.nullability import is_nullable
from dataflow.schema import Field, RelationName, RowType
from dataflow.sql.bind.analysis import Analysis, Analyzer, Table
from dataflow.sql.bind.zoned_calls import check_alike
from dataflow.sql.parse.shapes import span_of
from dataflow.types import SqlType


class NotInScope(Exception):
    """A column belongs to no visible relation."""


@dataclass
class Context:
    """The context of one canonical text: the view's own, or that of an ordinary view inside it.

    query is the user's text, only for positions. ctes: WITH entries by name. relations: tables and
    ordinary views resolved so far, by schema and name. aggregates, set_functions: names of the
    called functions. row_names, named_rows: see Analysis. has_stable: a called function may give
    another result later, despite our settings. has_own: a called function may be replaced by its
    owner. pinned: constants by their text, in either case. row_types: of the base tables whose
    whole rows are values, by table. enclosing: the scopes whose rows may be read, the nearest last;
    levels: which of them a plan does read.
    """

    analyzer: Analyzer
    text: str
    query: str
    aggregates: frozenset[str] = frozenset()
    warnings: list[str] = field(default_factory=list)
    ctes: dict[str, FromEntry] = field(default_factory=dict)
    has_stable: bool = False
    has_own: bool = False
    relations: dict[tuple[str, str, bool], FromEntry | Table] = field(default_factory=dict)
    set_functions: frozenset[str] = frozenset()
    pinned: dict[str, str] = field(default_factory=dict)
    row_types: dict[RelationName, RowType] = field(default_factory=dict)
    row_names: tuple[tuple[str, tuple[str, ...]], ...] = ()
    named_rows: tuple[tuple[str, ...], ...] = ()

    def calling(self, analysis: Analysis) -> Context:
        """Return the same context for a text that calls these functions."""
        self.aggregates = frozenset(r.name for r in analysis.routines if r.kind == "a")
        self.set_functions = frozenset(r.name for r in analysis.routines if r.returns_set)
        self.row_names = analysis.row_names
        self.named_rows = analysis.named_rows
        return self

    def returns_set(self, node: exp.Expr) -> bool:
        """Return whether a node calls a set-returning function."""
        if not self.set_functions:
            return False
        if isinstance(node, exp.Anonymous):
            return node.name in self.set_functions
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            name = self.text_of(node).split("(")[0].replace('"', "")
            return name in self.set_functions
        return False

    def refuse_sets(self, nodes: Iterable[exp.Expr]) -> None:
        """Refuse calls of set-returning functions among nodes that must have one value."""
        if any(self.returns_set(node) for node in nodes):
            what = "a function that returns a set is not maintained in this place"
            raise self.refuse(what, "call it in FROM")

    enclosing: list[Scope] = field(default_factory=list)
    levels: Levels = field(default_factory=Levels)

    @contextmanager
    def inside(self, scope: Scope) -> Iterator[None]:
        """Bind the right side of an Apply over the scope's rows inside this block."""
        known = self.ctes
        self.ctes = {
            name: replace(entry, plan=moved(entry.plan, 1)) if self.levels.of(entry.plan) else entry
            for name, entry in known.items()
        }
        self.enclosing.append(scope)
        try:
            yield
        finally:
            self.enclosing.pop()
            self.ctes = known

    def outside(self, node: exp.Column, text: str) -> OuterRef | None:
        """Return the column of an enclosing scope that a name refers to; None if there is none."""
        for level, scope in enumerate(reversed(self.enclosing)):
            position = scope.find(node.table, node.name, text)
            if position is not None:
                found = scope.plan.fields[position]
                return OuterRef(level, position, found.type, found.name)
        return None

    def is_outside(self, column: exp.Column) -> bool:
        """Return whether a column belongs to an enclosing block, grouped there or not."""
        return any(scope.owns(column.table, column.name) for scope in self.enclosing)

    def text_of(self, node: exp.Expr) -> str:
        """Return PostgreSQL's text of a scalar node, normalized in its whitespace."""
        begin, end = span_of(node)
        return on_one_line(self.text[begin:end])

    def refuse(self, what: str, hint: str, *words: str) -> SqlError:
        """Return the refusal of a construct; words: its first words in the user's text."""
        position = find_words(self.query, words) if words else None
        return SqlError("sql.not_maintained", what, hint=hint, position=position)

    def require_alike(self, left: Iterable[SqlType], right: Iterable[SqlType]) -> None:
        """Refuse pairs of types whose implicit comparison depends on the time zone. SqlError."""
        for a, b in zip(left, right, strict=False):
            check_alike(self.analyzer.time_zone, a, b)

    def warn(self, text: str) -> None:
        """Warn the user once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def warn_of(self, name: str, text: str) -> None:
        """Warn the user once, for all names that share a text."""
        for i, known in enumerate(self.warnings):
            if known.endswith(f" {text}"):
                names = known.removesuffix(f" {text}").removesuffix(": each").split(", ")
                if name not in names:
                    self.warnings[i] = f"{', '.join([*names, name])}: each {text}"
                return
        self.warnings.append(f"{name} {text}")


@dataclass(frozen=True)
class RowShape:
    """The type of a FROM entry's whole row.

    type_name: its named row type, "" for a record. marker: a column that is NULL only where an
    outer join has padded the entry. names: a record's columns, if they differ from the text.
    is_join: the entry is a join with an alias.
    """

    type_name: str
    marker: int
    names: tuple[str, ...] = ()
    is_join: bool = False


@dataclass(frozen=True)
class Visible:
    """A FROM entry that can qualify columns. row: set if its whole row is used."""

    alias: str
    columns: tuple[tuple[str, int], ...]
    row: RowShape | None = None

    def shifted(self, by: int) -> Visible:
        """Return the same names, `by` positions further right."""
        columns = tuple((name, position + by) for name, position in self.columns)
        row = replace(self.row, marker=self.row.marker + by) if self.row else None
        return replace(self, columns=columns, row=row)


@dataclass(frozen=True)
class FromEntry:
    """A part of FROM: its plan, its qualified names, and its columns in the order of `*`.

    order: that of its rows, by columns of the plan, if a subquery defines one and it matters.
    """

    plan: Plan
    visible: tuple[Visible, ...]
    star: tuple[tuple[str, int], ...]
    order: tuple[SortKey, ...] = ()

    def shifted(self, by: int) -> FromEntry:
        """Return the same names, `by` positions further right."""
        visible = tuple(v.shifted(by) for v in self.visible)
        return FromEntry(self.plan, visible, tuple((n, p + by) for n, p in self.star))


def entry_of(plan: Plan, names: Sequence[str] = (), order: tuple[SortKey, ...] = ()) -> FromEntry:
    """Return an entry whose columns are visible under the fields' names, the first ones under
    `names`."""
    star = tuple((f.name, i) for i, f in enumerate(plan.fields))
    star = (*((name, i) for i, name in enumerate(names)), *star[len(names) :])
    return FromEntry(plan, (), star, order)


class Scope:
    """A select block's names over its plan. order: that of its rows before grouping."""

    def __init__(self, entry: FromEntry) -> None:
        self.plan = entry.plan
        self.order = entry.order
        self._visible = entry.visible
        self._star = entry.star
        self._added: dict[str, Expression] = {}

    def shown(self, alias: str) -> Visible | None:
        """Return the FROM entry of that name."""
        return next((v for v in self._visible if v.alias == alias), None)

    def find(self, table: str, name: str, text: str) -> int | None:
        """Return the position of a column among the block's own, by its names or by its text."""
        del text
        if not table:
            return next((p for n, p in self._star if n == name), None)
        for visible in self._visible:
            if visible.alias == table:
                return next((p for n, p in visible.columns if n == name), None)
        return None

    def owns(self, table: str, name: str) -> bool:
        """Return whether a column belongs to the block, grouped or not."""
        return self.find(table, name, "") is not None

    def column(self, position: int) -> ColumnRef:
        """Return a reference to a column of the plan."""
        found = self.plan.fields[position]
        return ColumnRef(position, found.type, found.name)

    def once(self, text: str, make: Callable[[], Expression]) -> Expression:
        """Return the result of `make`, computed once for each text; it may extend the plan."""
        if text not in self._added:
            self._added[text] = make()
        return self._added[text]

    def added(self, text: str) -> Expression | None:
        """Return what was computed, or added as a column, for a text."""
        return self._added.get(text)

    def knows(self, text: str) -> bool:
        """Return whether an expression with this text has a value already."""
        return text in self._added

    def apply(self, kind: str, right: Plan) -> int:
        """Apply right, bound inside this scope, to each row; return the position of its first
        column."""
        start = len(self.plan.fields)
        self.plan = applied(kind, self.plan, right, None)
        return start

    def kept(self, expression: Expression) -> Expression:
        """Return the expression as a column of the plan, or an equally plain one."""
        if not isinstance(expression, ColumnRef | Literal | OuterRef):
            is_null = is_nullable(expression, self.plan.fields)
            held = Field("value", expression.type, is_null)
            refs = tuple(self.column(i) for i in range(len(self.plan.fields)))
            fields = (*self.plan.fields, held)
            self.plan = Project(self.plan, (*refs, expression), fields)
            return self.column(len(refs))
        return expression

    def extend(self, plan: Plan, texts: Sequence[str], *, beside: int = 0) -> None:
        """Replace the plan by one whose last columns are the values of these texts, then `beside`
        others."""
        first = len(plan.fields) - len(texts) - beside
        self.plan = plan
        self._added |= {text: self.column(first + i) for i, text in enumerate(texts)}


class GroupScope(Scope):
    """The scope after GROUP BY: expressions are group expressions or calls, found by their text.

    A subquery may write a grouped column differently (with or without its relation), so names are
    also looked up in the input. columns: for each grouped input column its position in the output.
    """

    def __init__(
        self, plan: Plan, positions: dict[str, int], below: Scope, columns: dict[int, int]
    ) -> None:
        super().__init__(FromEntry(plan, (), ()))
        self._positions = positions
        self._below = below
        self._columns = columns

    def over(self, plan: Plan, added: dict[str, int]) -> GroupScope:
        """Return the same names over a plan with the same first columns, and further ones by their
        text."""
        return GroupScope(plan, {**self._positions, **added}, self._below, self._columns)

    def owns(self, table: str, name: str) -> bool:
        return self._below.owns(table, name)

    def knows(self, text: str) -> bool:
        return text in self._positions or super().knows(text)

    def find(self, table: str, name: str, text: str) -> int | None:
        """Return the position of a group expression or aggregate call."""
        if text in self._positions:
            return self._positions[text]
        position = self._below.find(table, name, text) if name else None
        return None if position is None else self._columns.get(position)


def applied(kind: str, left: Plan, right: Plan, residual: Expression | None) -> Plan:
    """Return left joined with a right side bound inside its rows: a plain join if it reads none of
    them."""
    right_fields = nullable(right.fields) if kind == "left" else right.fields
    fields = left.fields + right_fields
    if 0 in Levels().of(right):
        return Apply(kind, left, right, residual, fields)
    return Join(kind, left, moved(right, -1), (), (), residual, fields)


def edited(text: str, begin: int, end: int, edits: Sequence[tuple[int, int, str]]) -> str:
    """Return text[begin:end] with the edits inside it applied, each (from, to, new text)."""
    out, at = [], begin
    for first, last, new in sorted(set(edits)):
        out += [text[at:first], new]
        at = last
    return "".join(out) + text[at:end]


def nullable(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return the fields as nullable, for a join that may pad them."""
    return tuple(Field(f.name, f.type) for f in fields)
