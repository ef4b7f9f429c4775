"""SEARCH and CYCLE of a WITH RECURSIVE entry: the columns that they add, as in
rewriteSearchCycle.c.

PostgreSQL stores rows of the named columns as type record, which cannot be parsed from text. We
store the text of those rows, under PostgreSQL's type name: it can be shown as text and compared for
equality. Invariant: equal rows have equal texts, since only suitable columns are accepted. Any
other use of such a value in PostgreSQL is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dataflow.expressions.ir import Call, ColumnRef, Expression, InPostgres, Literal, children
from dataflow.expressions.keys import key_form
from dataflow.plan.nodes import Aggregate, Filter, Plan, Project, TopK, Window
from dataflow.plan.properties.nullability import is_nullable
from dataflow.plan.trees import expressions_within, refs
from dataflow.plan.walk import nodes_of
from dataflow.schema import Field
from dataflow.sql.bind.calls import native_call
from dataflow.sql.bind.relations import cast_to
from dataflow.sql.bind.scalars import Scalars
from dataflow.sql.bind.scope import Context
from dataflow.types import BOOL, INT8, TEXT, SqlType, TypeKind

_TEXTS = SqlType("text[]", 1009, -1, TypeKind.OPAQUE)
# Stored as text and as an array of text, with those oids; equal text is equal value.
_RECORD = SqlType("record", TEXT.oid, -1, TypeKind.OPAQUE, is_enum=True)
_RECORDS = SqlType("record[]", _TEXTS.oid, -1, TypeKind.OPAQUE, is_enum=True)


class Trail:
    """The clauses of one entry. Rows of its recursion have the entry's own columns, then the state
    of SEARCH (the depth, or the rows so far) and of CYCLE (the mark, the rows so far)."""

    def __init__(self, context: Context, entry: exp.Expr) -> None:
        self._context = context
        self._name = entry.args["alias"].name
        self._search, self._cycle = entry.args.get("search"), entry.args.get("cycle")
        self._columns: list[str] = []
        self._marks: list[Expression] = [Literal("t", BOOL), Literal("f", BOOL)]
        if self._cycle is not None and self._cycle.args.get("value") is not None:
            nodes = [self._cycle.args["value"], self._cycle.args["default"]]
            self._marks = Scalars(context, lambda _: None).bind(nodes)
            self._marks[1] = cast_to(self._marks[1], self._marks[0].type)

    @property
    def is_empty(self) -> bool:
        """Whether the entry has no such clause."""
        return self._search is None and self._cycle is None

    def begin(self, base: Plan) -> Plan:
        """Return the rows of the first term, under the entry's names, with their state."""
        self._columns = [f.name for f in base.fields]
        if self.is_empty:
            return base
        added: list[tuple[str, Expression]] = []
        if self._search is not None:
            retained: Expression = Literal("0", INT8)
            if self._search.args["word"] == "depth":
                retained = _first(self._row(base, self._search))
            added.append((".search", retained))
        if self._cycle is not None:
            path = _first(self._row(base, self._cycle))
            added += [(".mark", self._marks[1]), (".path", path)]
        return _extended(base, len(base.fields), added)

    def extend(self, step: Plan) -> Plan:
        """Return the rows of the step, which end with the state of the row that each came from."""
        if self.is_empty:
            return step
        retained = refs(step)[-self._width :]
        n = len(step.fields) - self._width
        added: list[tuple[str, Expression]] = []
        if self._search is not None:
            following: Expression | None = native_call("+", (retained[0], Literal("1", INT8)), INT8)
            if self._search.args["word"] == "depth":
                following = _next(retained[0], self._row(step, self._search))
            assert following is not None
            added.append((".search", following))
        if self._cycle is not None:
            mark, path = retained[-2:]
            row, columns = self._row(step, self._cycle)
            visited = InPostgres(f"({row} = ANY (${len(columns) + 1}))", (*columns, path), BOOL)
            cell = Call("case", (visited, *self._marks), mark.type)
            added += [(".mark", cell), (".path", _next(path, (row, columns)))]
            is_open = native_call("<>", (mark, self._marks[0]), BOOL)
            step = Filter(step, is_open or InPostgres("($1 <> $2)", (mark, self._marks[0]), BOOL))
        return _extended(step, n, added)

    def shown(self, plan: Plan, *, is_inside: bool = False) -> Plan:
        """Return the rows of the recursion with their declared columns.

        is_inside: followed by the state, for the step to pass on.
        """
        if self.is_empty:
            return plan
        n = len(plan.fields) - self._width
        retained = refs(plan)[n:]
        added: list[tuple[str, Expression]] = []
        if self._search is not None:
            cell = Call("cast", (retained[0],), _RECORDS)
            if self._search.args["word"] == "breadth":
                row, columns = self._row(plan, self._search, (retained[0],))
                cell = Call("cast", (InPostgres(row, columns, TEXT),), _RECORD)
            added.append((self._search.args["column"].name, cell))
        if self._cycle is not None:
            path = Call("cast", (retained[-1],), _RECORDS)
            added += [(self._cycle.args["mark"].name, retained[-2])]
            added += [(self._cycle.args["path"].name, path)]
        if is_inside:
            added += [(f.name, ref) for f, ref in zip(plan.fields[n:], retained, strict=True)]
        return _extended(plan, n, added)

    def with_state_passed(self, step: exp.Expr) -> exp.Expr:
        """Return the step, which also selects the state of the row that it starts from."""
        if self.is_empty:
            return step
        if not isinstance(step, exp.Select) or any(
            step.args.get(part) for part in ("distinct", "group", "having", "with_")
        ):
            raise self._context.refuse(
                "SEARCH or CYCLE over a step with GROUP BY, DISTINCT or WITH is not maintained",
                "store the path in a column of your own: ARRAY[id], then path || id",
                "search" if self._search is not None else "cycle",
            )
        step = step.copy()
        tables = [t for t in step.find_all(exp.Table) if not t.db and t.name == self._name]
        (alias,) = {t.alias_or_name for t in tables}
        for name in self._kept_names:
            column = exp.Column(
                this=exp.to_identifier(name, quoted=True),
                table=exp.to_identifier(alias, quoted=True),
            )
            column.meta["span"] = (0, 0)
            step.append("expressions", exp.Alias(this=column, alias=exp.to_identifier(name)))
        return step

    @property
    def _kept_names(self) -> list[str]:
        names = [".search"] if self._search is not None else []
        return names + ([".mark", ".path"] if self._cycle is not None else [])

    @property
    def _width(self) -> int:
        return len(self._kept_names)

    def _row(
        self, plan: Plan, clause: exp.Expr, before: Sequence[ColumnRef] = ()
    ) -> tuple[str, tuple[ColumnRef, ...]]:
        """Return the text of a row of the clause's columns: SQL and its arguments."""
        columns = [refs(plan)[self._columns.index(n.name)] for n in clause.expressions]
        for column in columns:
            if key_form(column) != column:
                raise self._context.refuse(
                    f"SEARCH or CYCLE by values of type {column.type.name} is not maintained",
                    "name columns of types with one text per value, such as integers or text",
                    "search" if clause is self._search else "cycle",
                )
        arguments = (*before, *columns)
        cells = ", ".join(f"${i + 1}" for i in range(len(arguments)))
        return f"(ROW({cells}))::text", arguments


def check_records(context: Context, plan: Plan) -> None:
    """Raise SqlError if an expression uses a row value of SEARCH or CYCLE."""
    for node in nodes_of(plan):
        is_ordering = isinstance(node, Aggregate | TopK | Window)
        groups = node.groups if isinstance(node, Aggregate) else ()
        for expression in expressions_within(node):
            if is_ordering and expression not in groups and _is_record(expression):
                raise _refusal(context)
            if any(map(_is_record, _row_arguments(expression))):
                raise _refusal(context)


def _refusal(context: Context) -> Exception:
    return context.refuse(
        "the columns of SEARCH and CYCLE can only be selected as text",
        "store an array in a column of your own: ARRAY[id], then path || id",
        "search" if "search" in context.query.lower() else "cycle",
    )


def _is_record(expression: Expression) -> bool:
    return expression.type in (_RECORD, _RECORDS)


def _row_arguments(expression: Expression) -> list[Expression]:
    """Return the subtrees of an expression that PostgreSQL evaluates."""
    if isinstance(expression, InPostgres):
        return list(expression.arguments)
    return [found for child in children(expression) for found in _row_arguments(child)]


def _first(row: tuple[str, tuple[ColumnRef, ...]]) -> Expression:
    sql, columns = row
    return InPostgres(f"ARRAY[{sql}]", columns, _TEXTS)


def _next(path: ColumnRef, row: tuple[str, tuple[ColumnRef, ...]]) -> Expression:
    sql, columns = row
    return InPostgres(f"(${len(columns) + 1} || {sql})", (*columns, path), _TEXTS)


def _extended(plan: Plan, n: int, added: Sequence[tuple[str, Expression]]) -> Plan:
    """Return the first n columns, then the added ones."""
    fields = tuple(Field(name, e.type, is_nullable(e, plan.fields)) for name, e in added)
    return Project(plan, (*refs(plan)[:n], *(e for _, e in added)), (*plan.fields[:n], *fields))
