"""FROM: relations, subqueries, CTEs and joins, as plans with their visible names.

Joins have their whole condition as residual here; the rules turn equalities into keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Expression, InPostgres, Literal
from dataflow.plan.nodes import (
    Apply,
    Filter,
    Join,
    Plan,
    Project,
    Scan,
    SortKey,
    TableFunction,
    Values,
)
from dataflow.plan.outer_refs import inward, moved
from dataflow.plan.properties.nullability import is_nullable
from dataflow.plan.trees import shifted
from dataflow.schema import Field, RowType
from dataflow.sql.bind.analysis import Analysis, Table
from dataflow.sql.bind.blocks import apply_conditions, block_atom, column_atom
from dataflow.sql.bind.calls import equality, native_call
from dataflow.sql.bind.routines import check_routines
from dataflow.sql.bind.row_clauses import DROPPED
from dataflow.sql.bind.scalars import Scalars
from dataflow.sql.bind.scope import Context, FromEntry, Scope, Visible, applied, entry_of, nullable
from dataflow.sql.bind.set_functions import bind_rows_of
from dataflow.sql.bind.subqueries import BindQuery, all_of, subquery_nodes
from dataflow.sql.bind.whole_rows import quoted, rows_named, with_row
from dataflow.sql.parse.canonical_form import parse
from dataflow.sql.parse.parse_functions import RowsOf
from dataflow.sql.parse.shapes import bare, conjuncts
from dataflow.types import BOOL, SqlType

_SIDES = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}
_LOST = (
    "the ORDER BY of a subquery that is joined gives its rows no order: sort where they are "
    "aggregated, as in json_agg(x ORDER BY y)"
)
NOTHING = FromEntry(Values(((),), ()), (), ())


class Relations:
    """Binds the FROM of one block."""

    def __init__(
        self, context: Context, bind_query: BindQuery, *, is_ordered: bool = False
    ) -> None:
        """is_ordered: the order of the rows matters."""
        self._context = context
        self._is_ordered = is_ordered
        self._bind_query = bind_query
        self._rows: frozenset[str] = frozenset()

    def bind(self, select: exp.Select) -> FromEntry:
        """Bind the whole FROM clause; one row of no columns if there is none."""
        self._rows = rows_named(select)
        clause = select.args.get("from_")
        if clause is None:
            return NOTHING
        return self._joined(clause.this, select.args.get("joins") or [])

    def _joined(self, first: exp.Expr, joins: Sequence[exp.Join]) -> FromEntry:
        entry = self._entry(first)
        for join in joins:
            left, entry = entry, self._join(entry, join)
            if not entry.order and left.order:
                self._context.warn(_LOST)
        return entry

    def _entry(self, node: exp.Expr) -> FromEntry:
        """Bind one entry with the joins attached to it inside its parentheses."""
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
            return self._derived(node.this, node)
        if isinstance(node, RowsOf):
            return self._functions(NOTHING, node)
        if isinstance(node, exp.Subquery) and isinstance(
            node.this, exp.Table | exp.Subquery | RowsOf | exp.Lateral
        ):
            joined = self._joined(node.this, node.this.args.get("joins") or [])
            return (
                self._with_row(_aliased(joined, node), "", is_join=True) if node.alias else joined
            )
        if isinstance(node, exp.Subquery | exp.Values) or isinstance(node.this, exp.Values):
            return self._derived(node)
        if isinstance(node, exp.Table):
            return self._table(node)
        raise self._context.refuse("this form of FROM is not maintained", "use a subquery")

    def _functions(self, left: FromEntry, node: RowsOf) -> FromEntry:
        """Bind functions beside the rows of the entry before them."""
        scope = Scope(left)
        atom = block_atom(self._context, scope, self._bind_query)
        is_row = node.args["alias"].name in self._rows
        return bind_rows_of(self._context, scope, left, node, atom, is_row=is_row)

    def _function_join(self, left: FromEntry, join: exp.Join) -> FromEntry:
        """Bind [CROSS | LEFT] JOIN with functions, which may read the left input."""
        entry = self._functions(left, join.this)
        on = join.args.get("on")
        if (join.args.get("side") or "").upper() == "LEFT":
            plan = entry.plan
            assert isinstance(plan, TableFunction)
            n = len(plan.input.fields)
            fields = plan.fields[:n] + nullable(plan.fields[n:])
            entry = replace(entry, plan=replace(plan, is_outer=True, fields=fields))
        if on is None or isinstance(bare(on), exp.Boolean):
            return entry
        atom = column_atom(self._context, Scope(entry))
        condition = all_of(Scalars(self._context, atom).bind(conjuncts(on)))
        plan = entry.plan
        if isinstance(plan, TableFunction) and plan.is_outer:
            return replace(entry, plan=replace(plan, condition=condition))
        assert condition is not None
        return replace(entry, plan=Filter(plan, condition))

    def _derived(self, node: exp.Expr, named: exp.Expr | None = None) -> FromEntry:
        query = node if isinstance(node, exp.Values) else node.this
        return self._with_row(_aliased(self._query(query), named or node), "")

    def _query(self, query: exp.Expr) -> FromEntry:
        if self._is_ordered:
            return self._bind_query.ordered(self._context, query)
        return entry_of(self._bind_query(self._context, query))

    def _table(self, node: exp.Table) -> FromEntry:
        if node.args.get("sample"):
            raise self._context.refuse(
                "TABLESAMPLE is not maintained", "select by a condition", "tablesample"
            )
        if not node.db and node.name in self._context.ctes:
            entry = self._context.ctes[node.name]
        else:
            entry = self._relation(node)
        if entry.order and not self._is_ordered:
            self._context.warn(DROPPED)
            entry = replace(entry, order=())
        entry = _aliased(replace(entry, visible=(Visible(node.name, entry.star),)), node)
        if entry.visible[0].alias not in self._rows:
            return entry
        return self._with_row(entry, self._row_type(node))

    def _row_type(self, node: exp.Table) -> str:
        """Return the name of a relation's row type, which is a value now; "" if it has none."""
        found = self._context.relations.get((node.db, node.name, self._is_ordered))
        is_nameless = isinstance(found, Table) and not found.has_row_type
        if not node.db or is_nameless:
            return ""
        if isinstance(found, Table):
            name = found.relation.name
            row = RowType(name, tuple(column for column, _ in found.columns))
            self._context.row_types[name] = row
        return f"{quoted(node.db)}.{quoted(node.name)}"

    def _with_row(self, entry: FromEntry, type_name: str, *, is_join: bool = False) -> FromEntry:
        alias = entry.visible[0].alias if entry.visible else ""
        if alias not in self._rows:
            return entry
        return with_row(self._context, entry, alias, type_name, is_join=is_join)

    def _relation(self, node: exp.Table) -> FromEntry:
        known, name = self._context.relations, (node.db, node.name, self._is_ordered)
        if name not in known:
            looked_up = self._context.analyzer.relation(node.db, node.name)
            known[name] = (
                self._ordinary_view(looked_up) if isinstance(looked_up, Analysis) else looked_up
            )
        found = known[name]
        if not isinstance(found, Table):
            return found
        fields = found.relation.fields
        scan = Scan(found.relation, tuple(range(len(fields))), fields)
        star = tuple((n, p) for n, p in found.columns if isinstance(p, int))
        if len(star) == len(found.columns):
            return FromEntry(scan, (), star)
        return self._generated(scan, found, star)

    def _ordinary_view(self, found: Analysis) -> FromEntry:
        above = self._context
        context = Context(above.analyzer, found.text, above.query, warnings=above.warnings)
        context.relations, context.pinned = above.relations, above.pinned
        context.row_types = above.row_types
        context.calling(found)
        check_routines(context, found)
        query = parse(found.text)
        if self._is_ordered:
            entry = self._bind_query.ordered(context, query)
        else:
            entry = entry_of(self._bind_query(context, query))
        names = [f.name for f in found.fields]
        hidden = [f.name for f in entry.plan.fields[len(names) :]]
        plan = renamed(entry.plan, [*names, *hidden])
        return FromEntry(plan, (), tuple((n, i) for i, n in enumerate(names)), entry.order)

    def _generated(self, scan: Scan, table: Table, star: tuple[tuple[str, int], ...]) -> FromEntry:
        """Compute generated columns, which a source does not send."""
        fields, expressions = list(scan.fields), []
        for name, definition in table.columns:
            if isinstance(definition, int):
                continue
            text = f"SELECT {definition} AS x"
            context = Context(self._context.analyzer, text, self._context.query)
            scope = Scope(FromEntry(scan, (), star))
            atom = column_atom(context, scope)
            (node,) = parse(text).expressions
            (bound,) = Scalars(context, atom).bind([node.this])
            expressions.append(bound)
            fields.append(Field(name, bound.type, is_nullable(bound, scan.fields)))
        retained = [ColumnRef(i, f.type, f.name) for i, f in enumerate(scan.fields)]
        plan = Project(scan, (*retained, *expressions), tuple(fields))
        positions = {f.name: i for i, f in enumerate(fields)}
        return FromEntry(plan, (), tuple((name, positions[name]) for name, _ in table.columns))

    def _join(self, left: FromEntry, join: exp.Join) -> FromEntry:
        kind = _SIDES[(join.args.get("side") or "").upper()]
        on, using = join.args.get("on"), join.args.get("using")
        is_read = kind in ("inner", "left") and not using and not _has_query(on)
        if isinstance(join.this, RowsOf) and is_read:
            return replace(self._function_join(left, join), order=left.order)
        with self._context.inside(Scope(left)):
            right = self._entry(join.this)
        entry = self._beside(kind, left, right, join)
        if kind in ("inner", "left") and isinstance(join.this, exp.Lateral):
            # Order of a nested loop: by the left rows' order, then by the right rows'.
            return replace(entry, order=(*left.order, *_order_beside(entry, right)))
        if right.order:
            self._context.warn(_LOST)
        return entry

    def _beside(self, kind: str, left: FromEntry, right: FromEntry, join: exp.Join) -> FromEntry:
        """Return the rows of two entries joined."""
        on, using = join.args.get("on"), join.args.get("using")
        if on is not None and _has_query(on):
            return self._with_subqueries(kind, left, right, on)
        entry = _crossed(kind, left, right)
        if using:
            joined = self._using(entry, left, right, [u.name for u in using])
            return self._with_merged(joined, join, len(using))
        if on is None:
            return entry
        atom = column_atom(self._context, Scope(entry))
        condition = all_of(Scalars(self._context, atom).bind(conjuncts(on)))
        return _on(entry, condition)

    def _with_subqueries(
        self, kind: str, left: FromEntry, right: FromEntry, on: exp.Expr
    ) -> FromEntry:
        """Bind a join whose ON has subqueries, which read rows of either or both inputs.

        ON of an inner join is a WHERE. A left join becomes one with a lateral subquery: the right
        input, filtered by ON. Subqueries that do not read the right input are computed beside the
        left one.
        """
        context = self._context
        if kind == "inner":
            entry = _crossed(kind, left, right)
            scope = Scope(entry)
            apply_conditions(context, scope, on, self._bind_query)
            return FromEntry(scope.plan, entry.visible, entry.star)
        if kind == "full":
            return self._full(left, right, on)
        if kind == "right":
            swapped = (_moved(right, -1), _moved(left, 1))
            entry = self._with_subqueries("left", *swapped, on)
            n = len(right.star)
            return FromEntry(entry.plan, entry.visible, entry.star[n:] + entry.star[:n])
        scope, inner = Scope(left), Scope(right)
        for node in subquery_nodes(on):
            if not _names_any(node, right):
                value = block_atom(context, scope, self._bind_query)(node)
                if value is not None:
                    inner.once(context.text_of(node), lambda v=inward(value): v)
        with context.inside(scope):
            apply_conditions(context, inner, on, self._bind_query)
        grown = FromEntry(scope.plan, left.visible, left.star)
        return _crossed(kind, grown, FromEntry(inner.plan, right.visible, right.star))

    def _full(self, left: FromEntry, right: FromEntry, on: exp.Expr) -> FromEntry:
        """Bind a full join: compute each subquery beside the only input that it reads."""
        context, right = self._context, _moved(right, -1)
        scopes = (Scope(left), Scope(right))
        values = []
        for node in subquery_nodes(on):
            if _names_any(node, left) and _names_any(node, right):
                raise context.refuse(
                    "a subquery over both inputs of a FULL JOIN is not maintained",
                    "write a LEFT JOIN and a RIGHT JOIN, and UNION ALL them",
                    "full",
                )
            side = 1 if _names_any(node, right) else 0
            value = block_atom(context, scopes[side], self._bind_query)(node)
            if value is not None:
                values.append((context.text_of(node), side, value))
        grown = FromEntry(scopes[0].plan, left.visible, left.star)
        added = FromEntry(moved(scopes[1].plan, 1), right.visible, right.star)
        entry = _crossed("full", grown, added)
        scope = Scope(entry)
        for text, side, value in values:
            placed = shifted(value, side * len(grown.plan.fields))
            scope.once(text, lambda v=placed: v)
        atom = block_atom(context, scope, self._bind_query)
        return _on(entry, all_of(Scalars(context, atom).bind(conjuncts(on))))

    def _using(
        self, entry: FromEntry, left: FromEntry, right: FromEntry, names: list[str]
    ) -> FromEntry:
        """Bind USING: equality of the named columns, which `*` then shows once, first."""
        plan = entry.plan
        n = len(left.plan.fields)
        pairs = [(dict(left.star)[name], dict(right.star)[name] + n) for name in names]
        types = [f.type for f in plan.fields]
        self._context.require_alike([types[a] for a, _ in pairs], [types[b] for _, b in pairs])
        conditions = [equality(_ref(plan, a), _ref(plan, b)) for a, b in pairs]
        joined = _on(entry, all_of(conditions)).plan
        assert isinstance(joined, Join | Apply)
        merged = self._merged(joined, names, pairs)
        added = [e for e in merged if not isinstance(e, ColumnRef)]
        if added:
            retained = [_ref(joined, i) for i in range(len(plan.fields))]
            fields = [
                Field(name, e.type, is_nullable(e, plan.fields))
                for name, e in zip(names, merged, strict=True)
                if not isinstance(e, ColumnRef)
            ]
            joined = Project(joined, (*retained, *added), (*plan.fields, *fields))
        positions, next_position = [], len(plan.fields)
        for expression in merged:
            if isinstance(expression, ColumnRef):
                positions.append(expression.index)
            else:
                positions.append(next_position)
                next_position += 1
        rest = [(n_, p) for n_, p in entry.star if n_ not in names]
        star = (*zip(names, positions, strict=True), *rest)
        return FromEntry(joined, entry.visible, star)

    def _with_merged(self, entry: FromEntry, join: exp.Join, count: int) -> FromEntry:
        """Return the entry with its merged columns under the alias of USING, if there is one."""
        alias = join.meta.get("alias")
        if alias is None:
            return entry
        merged = Visible(alias.name, entry.star[:count])
        return FromEntry(entry.plan, (merged, *entry.visible), entry.star)

    def _merged(
        self, join: Join | Apply, names: list[str], pairs: list[tuple[int, int]]
    ) -> list[Expression]:
        """Return the expression of each merged column, by the kind of join (parse_clause.c,
        buildMergedJoinVar)."""
        fields = join.fields
        types = self._context.analyzer.types(
            [f.type for f in fields], [f"COALESCE(c{a + 1}, c{b + 1})" for a, b in pairs]
        )
        merged: list[Expression] = []
        for (a, b), type in zip(pairs, types, strict=True):
            left, right = _ref(join, a), _ref(join, b)
            if join.kind == "full":
                sides = (cast_to(left, type), cast_to(right, type))
                coalesced = native_call("coalesce", sides, type)
                merged.append(coalesced or InPostgres("COALESCE($1, $2)", (left, right), type))
            elif join.kind == "right":
                merged.append(cast_to(right, type))
            elif join.kind == "inner" and left.type != type and right.type == type:
                merged.append(right)
            else:
                merged.append(cast_to(left, type))
        return merged


def cast_to(expression: Expression, type: SqlType) -> Expression:
    """Return the expression in exactly the given type."""
    if expression.type == type:
        return expression
    native = native_call("cast", (expression,), type)
    return native if native is not None else InPostgres(f"($1)::{type.name}", (expression,), type)


def project(plan: Plan, expressions: Sequence[Expression], names: Sequence[str]) -> Plan:
    """Return a projection of the expressions under their names."""
    fields = tuple(
        Field(n, e.type, is_nullable(e, plan.fields))
        for n, e in zip(names, expressions, strict=True)
    )
    return Project(plan, tuple(expressions), fields)


def renamed(plan: Plan, names: Sequence[str]) -> Plan:
    """Return the plan with other field names."""
    if tuple(f.name for f in plan.fields) == tuple(names):
        return plan
    fields = tuple(Field(n, f.type, f.is_nullable) for n, f in zip(names, plan.fields, strict=True))
    refs = tuple(ColumnRef(i, f.type, f.name) for i, f in enumerate(plan.fields))
    return Project(plan, refs, fields)


def _crossed(kind: str, left: FromEntry, right: FromEntry) -> FromEntry:
    """Return the cross join of both entries; the right one may read the left one's rows."""
    left_fields = left.plan.fields
    if kind in ("inner", "left"):
        plan = applied(kind, left.plan, right.plan, None)
    else:
        left_fields = nullable(left_fields)
        inner = moved(right.plan, -1)
        right_fields = nullable(inner.fields) if kind == "full" else inner.fields
        plan = Join(kind, left.plan, inner, (), (), None, left_fields + right_fields)
    beside = right.shifted(len(left_fields))
    return FromEntry(plan, left.visible + beside.visible, left.star + beside.star)


def _on(entry: FromEntry, condition: Expression | None) -> FromEntry:
    """Return the joined entry filtered by its condition."""
    plan = entry.plan
    assert isinstance(plan, Join | Apply)
    if condition == Literal("t", BOOL):
        condition = None
    return FromEntry(replace(plan, residual=condition), entry.visible, entry.star)


def _has_query(on: exp.Expr | None) -> bool:
    return on is not None and on.find(exp.Query) is not None


def _order_beside(entry: FromEntry, right: FromEntry) -> tuple[SortKey, ...]:
    """Return the order of the right side of a join in the joined entry."""
    if not right.order or not right.star:
        return ()
    by = entry.visible[-1].columns[0][1] - right.visible[-1].columns[0][1]
    return tuple(replace(k, expression=shifted(k.expression, by)) for k in right.order)


def _moved(entry: FromEntry, by: int) -> FromEntry:
    return FromEntry(moved(entry.plan, by), entry.visible, entry.star)


def _names_any(node: exp.Expr, entry: FromEntry) -> bool:
    """Return whether a node names a column of the entry anywhere."""
    aliases, merged = {v.alias for v in entry.visible}, {n for n, _ in entry.star}
    columns = node.find_all(exp.Column)
    return any(c.table in aliases if c.table else c.name in merged for c in columns)


def _aliased(entry: FromEntry, node: exp.Expr) -> FromEntry:
    """Return the entry under the alias of its node, with the columns that the alias renames."""
    alias = node.args.get("alias")
    if alias is None or not alias.name:
        return entry
    names = [c.name for c in alias.args.get("columns") or []]
    star = tuple(
        (names[i] if i < len(names) else name, p) for i, (name, p) in enumerate(entry.star)
    )
    return replace(entry, visible=(Visible(alias.name, star),), star=star)


def _ref(plan: Plan, position: int) -> ColumnRef:
    found = plan.fields[position]
    return ColumnRef(position, found.type, found.name)
