"""ORDER BY, LIMIT, OFFSET, FETCH, DISTINCT ON and locking clauses of a query.

ORDER BY alone is dropped: a stored view has no order. With a limit it chooses the rows, and must
always choose the same ones: all columns decide between ties, with a warning to the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Literal
from dataflow.expressions.keys import key_form
from dataflow.lexer import find_words
from dataflow.plan.nodes import Plan, Project, SortKey, TopK
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.sql.bind.grouping import check_key
from dataflow.sql.bind.scalars import Scalars
from dataflow.sql.bind.scope import Context, FromEntry, Scope
from dataflow.sql.parse.shapes import bare, ordered_parts, row_parts
from dataflow.types import INT8

_LIMITS = ("limit", "offset", "fetch")
DROPPED = "ORDER BY is dropped: a stored view has no order; sort where you read it"
_TIES = (
    "{} leaves open which of equal rows are taken: the first by all their columns are taken; "
    "add a unique key to ORDER BY to choose"
)


def _drop_locks(context: Context, node: exp.Expr) -> None:
    """Warn of FOR UPDATE and the like, which a view cannot do."""
    for lock in node.args.get("locks") or []:
        word = "UPDATE" if lock.args.get("update") else "SHARE"
        context.warn(f"FOR {word} is dropped: a view locks no rows, and shows locked ones too")


def sorting_nodes(select: exp.Expr, *, is_used: bool = False) -> list[exp.Expr]:
    """Return the expressions of DISTINCT ON and ORDER BY if they choose rows; is_used: always."""
    on = _on_nodes(select)
    if not (is_used or on or any(select.args.get(key) for key in _LIMITS)):
        return []
    return [*on, *(bare(part.this) for part in _ordered(select))]


class RowClauses:
    """The clauses of one query that define the order and number of its rows."""

    def __init__(self, context: Context, node: exp.Expr, *, is_ordered: bool = False) -> None:
        """is_ordered: the order of the rows matters, not only the set."""
        self._context = context
        self._is_ordered = is_ordered
        _drop_locks(context, node)
        self._hidden: list[exp.Expr] = []
        self._on = _on_nodes(node)
        self._ordered = _ordered(node)
        limit, offset = node.args.get("limit"), node.args.get("offset")
        self._with_ties = False
        count = None
        if isinstance(limit, exp.Fetch):
            options = limit.args.get("limit_options")
            self._with_ties = bool(options is not None and options.args.get("with_ties"))
            count = limit.args.get("count") or exp.Literal.number(1)
        elif limit is not None:
            count = limit.expression
        self._limit = self._constant(count, "LIMIT")
        self._offset = self._constant(offset.expression if offset else None, "OFFSET") or 0
        self._is_plain_distinct = bool(node.args.get("distinct")) and not self._on
        self._is_block = isinstance(node, exp.Select)
        is_plain = not self._on and not self._is_limited
        if is_plain and is_ordered and any(_is_row(bare(part.this)) for part in self._ordered):
            # The sort key cannot be stored in a column.
            self._ordered, is_ordered = [], False
            context.warn(DROPPED)
        if self._ordered and is_plain and not is_ordered:
            context.warn(DROPPED)

    @property
    def _is_limited(self) -> bool:
        return self._limit is not None or self._offset > 0

    @property
    def is_taken_in_order(self) -> bool:
        """Whether the input order matters because this query defines none."""
        return not self._ordered and (self._is_ordered or self._sorts)

    @property
    def sorts_by_keys(self) -> bool:
        """Whether ORDER BY is given and matters."""
        return self._sorts and bool(self._ordered)

    @property
    def _sorts(self) -> bool:
        return bool(self._on) or self._is_limited or (self._is_ordered and bool(self._ordered))

    def hidden(self, selected: Sequence[exp.Expr]) -> list[exp.Expr]:
        """Return the expressions to compute beside the select list, each distinct one once."""
        self._hidden = self._found_hidden(selected) if self._sorts else []
        return list(self._hidden)

    def _found_hidden(self, selected: Sequence[exp.Expr]) -> list[exp.Expr]:
        known = {self._text(node) for node in selected}
        found: dict[str, exp.Expr] = {}
        for node in [*self._on, *(bare(part.this) for part in self._ordered)]:
            if self._text(node) not in known:
                found.setdefault(self._text(node), node)
        if found and self._is_plain_distinct and not self._is_limited:
            self._ordered = []
            self._context.warn(DROPPED)
            return []
        if found and self._is_plain_distinct:
            raise self._context.refuse(
                "this ORDER BY of SELECT DISTINCT is not maintained",
                "order by a column of the select list",
                "order",
            )
        return list(found.values())

    def take_distinct(self, scope: Scope, scalars: Scalars, selected: Sequence[exp.Expr]) -> None:
        """Apply DISTINCT ON with ORDER BY to the rows of a scope, before the select list is
        computed."""
        if not (self._on and self._ordered):
            return
        sorted_by = [bare(part.this) for part in self._ordered]
        bound = [scope.kept(e) for e in scalars.bind([*self._on, *sorted_by])]
        scalars.resolve(selected)
        shown = {c for node in selected for c in scalars.over_columns(node)[1]}
        # Others are constants in a block.
        partition = tuple(e for e in bound[: len(self._on)] if isinstance(e, ColumnRef))
        order = tuple(
            _sort_key(part, e)
            for part, e in zip(self._ordered, bound[len(self._on) :], strict=True)
            if isinstance(e, ColumnRef)
        )
        columns = [e for e in shown if isinstance(e, ColumnRef)]
        scope.plan = self._firsts(scope.plan, partition, order, columns)
        self._on = []

    def applied(
        self, entry: FromEntry, selected: Sequence[exp.Expr], within: Sequence[SortKey] = ()
    ) -> FromEntry:
        """Return the chosen rows of an entry with the select list's columns, then the hidden ones.

        The entry's order is that of its input. within: the order of rows made of one of those.
        """
        if not self._sorts and not self._hidden:
            return replace(entry, order=(*entry.order, *within))
        plan, order, width = entry.plan, entry.order, len(entry.star)
        texts = [self._text(node) for node in (*selected, *self._hidden)]
        positions = {text: i for i, text in reversed(list(enumerate(texts)))}
        if self._ordered:
            found = [self._sort_key(part, plan, positions) for part in self._ordered]
            order = tuple(k for k in found if k is not None)
        # Rows made of one row tie by ORDER BY.
        order = order if self._with_ties else (*order, *within)
        shown = [_column(plan, i) for i in range(width)]
        if self._on:
            partition = tuple(_column(plan, positions[self._text(n)]) for n in self._on)
            sorted_by = tuple(SortKey(column) for column in partition)
            is_kept = bool(self._ordered) or _begins_with(order, sorted_by)
            plan = self._firsts(plan, partition, order, shown if is_kept or not order else None)
            if not is_kept and order:
                self._context.warn(_TIES.format("DISTINCT ON without ORDER BY"))
            # PostgreSQL may sort the rows by only these keys.
            order = order if is_kept else sorted_by
        if self._is_limited:
            plan = TopK(plan, (), order, self._limit, self._offset, self._with_ties)
            # After DISTINCT ON its columns are a key: they come first in ORDER BY.
            if not (self._with_ties and self._offset == 0):
                self._warn_of_ties(plan, shown, "LIMIT" if self._limit is not None else "OFFSET")
        if self._is_ordered or width == len(plan.fields):
            return replace(entry, plan=plan, order=order if self._is_ordered else ())
        retained = Project(plan, tuple(shown), plan.fields[:width])
        return replace(entry, plan=retained, order=())

    def _firsts(
        self,
        plan: Plan,
        partition: tuple[ColumnRef, ...],
        order: tuple[SortKey, ...],
        shown: Sequence[ColumnRef] | None,
    ) -> Plan:
        """Return the first row of each partition. shown: see _warn_of_ties; None for no warning."""
        for column in partition:
            check_key(self._context, column, "DISTINCT ON", ("distinct", "on"))
        found = TopK(plan, partition, order, 1, 0, False)
        if shown is not None:
            self._warn_of_ties(found, shown, "DISTINCT ON")
        return found

    def _sort_key(self, part: exp.Ordered, plan: Plan, positions: dict[str, int]) -> SortKey | None:
        """Return the sort key; None for a constant, which orders nothing."""
        node = bare(part.this)
        if self._is_block:
            position = positions[self._text(node)]
        elif isinstance(node, exp.Literal):
            position = int(node.name) - 1
        else:
            position = [f.name for f in plan.fields].index(node.name)
        if isinstance(plan, Project) and isinstance(plan.expressions[position], Literal):
            return None
        return _sort_key(part, _column(plan, position))

    def _warn_of_ties(self, plan: TopK, shown: Sequence[ColumnRef], word: str) -> None:
        """Warn the user if ORDER BY does not determine which rows are taken. shown: the columns of
        the result."""
        columns = frozenset(
            e.index
            for e in (*plan.partition, *(k.expression for k in plan.order))
            if isinstance(e, ColumnRef)
        )
        below = keys_of(plan.input)
        closure = below.closure(columns)
        if any(key <= closure for key in below.keys):
            return
        if all(c.index in closure and key_form(c) == c for c in shown):
            return
        self._context.warn(_TIES.format(word if plan.order else f"{word} without ORDER BY"))

    def _constant(self, node: exp.Expr | None, word: str) -> int | None:
        """Return the number of rows of a clause; None for all."""
        if node is None or (isinstance(node, exp.Var) and node.name.upper() == "ALL"):
            return None
        found = bare(node)
        if isinstance(found, exp.Literal) and found.name.isdigit():
            return int(found.name)
        if found.find(exp.Column, exp.Query):
            raise self._not_constant(word)
        text = f"({self._context.text_of(found)})::bigint"
        (value,) = self._context.analyzer.constants([text], [INT8])
        if value is None:
            raise self._not_constant(word)
        if value.text is not None and int(value.text) < 0:
            raise self._context.refuse(
                f"{word} must not be negative", "write a number that is 0 or more", self._word(word)
            )
        return None if value.text is None else int(value.text)

    def _not_constant(self, word: str) -> Exception:
        return self._context.refuse(
            f"{word} is maintained for constants only",
            "number the rows with row_number() in a subquery, and filter by the number outside",
            self._word(word),
        )

    def _word(self, word: str) -> str:
        """Return the user's spelling of a clause."""
        is_fetch = word == "LIMIT" and find_words(self._context.query, ("limit",)) is None
        return "fetch" if is_fetch else word.lower()

    def _text(self, node: exp.Expr) -> str:
        return self._context.text_of(bare(node))


def _sort_key(part: exp.Ordered, column: ColumnRef) -> SortKey:
    return SortKey(
        column,
        bool(part.args.get("desc")),
        bool(part.args.get("nulls_first")),
        part.meta.get("operator", ""),
    )


def _begins_with(order: Sequence[SortKey], keys: Sequence[SortKey]) -> bool:
    """Return whether rows in an order are also sorted by these keys."""
    first = order[: len(keys)]
    return len(first) == len(keys) and all(
        isinstance(a.expression, ColumnRef)
        and isinstance(b.expression, ColumnRef)
        and a.expression.index == b.expression.index
        and replace(a, expression=b.expression) == b
        for a, b in zip(first, keys, strict=True)
    )


def _is_row(node: exp.Expr) -> bool:
    """Return whether a node is, or may be, a row of no named type."""
    is_made = isinstance(node, exp.Anonymous) and node.this == "ROW"
    is_named = isinstance(node, exp.Column) and isinstance(node.this, exp.Star)
    return is_made or is_named or isinstance(node, exp.Tuple)


def _on_nodes(node: exp.Expr) -> list[exp.Expr]:
    distinct = node.args.get("distinct")
    if not isinstance(distinct, exp.Distinct) or not distinct.args.get("on"):
        return []
    on = distinct.args["on"]
    nodes = on.expressions if isinstance(on, exp.Tuple) else [bare(on)]
    return [part for n in nodes for part in row_parts(n)]


def _ordered(node: exp.Expr) -> list[exp.Ordered]:
    return ordered_parts(node.args.get("order"))


def _column(plan: Plan, position: int) -> ColumnRef:
    found = plan.fields[position]
    return ColumnRef(position, found.type, found.name)
