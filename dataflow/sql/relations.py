"""FROM: relations, subqueries, CTEs and joins, as plans with the names that they show.

Joins carry their whole condition as residual here; the rules make keys of its equalities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Expression, InPostgres
from dataflow.schema import Field
from dataflow.sql.analysis import Analysis, Table
from dataflow.sql.nullability import is_nullable
from dataflow.sql.parse import parse
from dataflow.sql.parse_functions import RowsOf
from dataflow.sql.plan import Filter, Join, Plan, Project, Scan, TableFunction, Values
from dataflow.sql.routines import check_routines
from dataflow.sql.scalars import Scalars, equality, native_call
from dataflow.sql.scope import Context, FromEntry, Scope, Visible, nullable
from dataflow.sql.set_functions import bind_rows_of
from dataflow.sql.shapes import bare, conjuncts
from dataflow.sql.subqueries import BindQuery, all_of, membership_of, scalar_subquery
from dataflow.types import SqlType

_SIDES = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}
NOTHING = FromEntry(Values(((),), ()), (), ())


class Relations:
    """Binds the FROM of one block."""

    def __init__(self, context: Context, bind_query: BindQuery) -> None:
        self._context = context
        self._bind_query = bind_query

    def bind(self, select: exp.Select) -> FromEntry:
        """The whole FROM clause; one row of no columns when there is none."""
        clause = select.args.get("from_")
        if clause is None:
            return NOTHING
        return self._joined(clause.this, select.args.get("joins") or [])

    def _joined(self, first: exp.Expr, joins: Sequence[exp.Join]) -> FromEntry:
        entry = self._entry(first)
        for join in joins:
            entry = self._join(entry, join)
        return entry

    def _entry(self, node: exp.Expr) -> FromEntry:
        """One entry with the joins that hang on it inside its parentheses."""
        if isinstance(node, exp.Lateral):
            raise self._context.refuse(
                "LATERAL is not maintained",
                "join the subquery on conditions instead, grouped by what it is joined on",
                "lateral",
            )
        if isinstance(node, RowsOf):
            return self._functions(NOTHING, node)
        if isinstance(node, exp.Subquery) and isinstance(
            node.this, exp.Table | exp.Subquery | RowsOf
        ):
            return _aliased(self._joined(node.this, node.this.args.get("joins") or []), node)
        if isinstance(node, exp.Subquery | exp.Values) or isinstance(node.this, exp.Values):
            return self._derived(node)
        if isinstance(node, exp.Table):
            return self._table(node)
        raise self._context.refuse("this form of FROM is not maintained", "use a subquery")

    def _functions(self, left: FromEntry, node: RowsOf) -> FromEntry:
        """Functions beside the rows of the entry before them."""
        scope = Scope(left)
        names = column_atom(self._context, scope)

        def atom(inner: exp.Expr) -> ColumnRef | None:
            found = names(inner)
            return found or scalar_subquery(self._context, scope, inner, self._bind_query)

        return bind_rows_of(self._context, scope, left, node, atom)

    def _function_join(self, left: FromEntry, join: exp.Join) -> FromEntry:
        """[CROSS | LEFT] JOIN with functions, which may read the left side."""
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
        scope = Scope(entry)
        atom = self._on_atom(scope, {})
        condition = all_of(Scalars(self._context, atom).bind(conjuncts(on)))
        plan = entry.plan
        if isinstance(plan, TableFunction) and plan.is_outer:
            return replace(entry, plan=replace(plan, condition=condition))
        assert condition is not None
        return replace(entry, plan=Filter(plan, condition))

    def _derived(self, node: exp.Expr) -> FromEntry:
        query = node if isinstance(node, exp.Values) else node.this
        plan = self._bind_query(self._context, query)
        star = tuple((f.name, i) for i, f in enumerate(plan.fields))
        return _aliased(FromEntry(plan, (), star), node)

    def _table(self, node: exp.Table) -> FromEntry:
        if node.args.get("sample"):
            raise self._context.refuse(
                "TABLESAMPLE is not maintained", "select by a condition", "tablesample"
            )
        if not node.db and node.name in self._context.ctes:
            plan, names = self._context.ctes[node.name]
            star = tuple((n, i) for i, n in enumerate(names))
        else:
            plan, star = self._relation(node)
        entry = FromEntry(plan, (Visible(node.name, star),), star)
        return _aliased(entry, node)

    def _relation(self, node: exp.Table) -> tuple[Plan, tuple[tuple[str, int], ...]]:
        known, name = self._context.relations, (node.db, node.name)
        if name not in known:
            asked = self._context.analyzer.relation(*name)
            known[name] = self._ordinary_view(asked) if isinstance(asked, Analysis) else asked
        found = known[name]
        if not isinstance(found, Table):
            return found, tuple((f.name, i) for i, f in enumerate(found.fields))
        fields = found.relation.fields
        scan = Scan(found.relation, tuple(range(len(fields))), fields)
        star = tuple((n, p) for n, p in found.columns if isinstance(p, int))
        if len(star) == len(found.columns):
            return scan, star
        return self._generated(scan, found, star)

    def _ordinary_view(self, found: Analysis) -> Plan:
        above = self._context
        context = Context(above.analyzer, found.text, above.query, warnings=above.warnings)
        context.relations = above.relations
        context.calling(found)
        check_routines(context, found)
        plan = self._bind_query(context, parse(found.text))
        names = tuple(f.name for f in found.fields)
        return renamed(plan, names)

    def _generated(
        self, scan: Scan, table: Table, star: tuple[tuple[str, int], ...]
    ) -> tuple[Plan, tuple[tuple[str, int], ...]]:
        """Generated columns are computed here: a source does not send them."""
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
        kept = [ColumnRef(i, f.type, f.name) for i, f in enumerate(scan.fields)]
        plan = Project(scan, (*kept, *expressions), tuple(fields))
        positions = {f.name: i for i, f in enumerate(fields)}
        return plan, tuple((name, positions[name]) for name, _ in table.columns)

    def _join(self, left: FromEntry, join: exp.Join) -> FromEntry:
        kind = _SIDES[(join.args.get("side") or "").upper()]
        on, using = join.args.get("on"), join.args.get("using")
        if isinstance(join.this, RowsOf) and kind in ("inner", "left") and not using:
            return self._function_join(left, join)
        right = self._entry(join.this)
        crossed: dict[str, int] = {}
        if on is not None:
            left, right, crossed = self._with_subqueries(kind, left, right, on)
        entry = _crossed(kind, left, right)
        if using:
            return self._using(entry, left, right, [u.name for u in using])
        if on is None:
            return entry
        plan = entry.plan
        assert isinstance(plan, Join)
        atom = self._on_atom(Scope(entry), crossed)
        conditions = Scalars(self._context, atom).bind(conjuncts(on))
        joined = Join(kind, plan.left, plan.right, (), (), all_of(conditions), plan.fields)
        return FromEntry(joined, entry.visible, entry.star)

    def _with_subqueries(
        self, kind: str, left: FromEntry, right: FromEntry, on: exp.Expr
    ) -> tuple[FromEntry, FromEntry, dict[str, int]]:
        """Scalar subqueries of ON become columns of a side that the join does not pad.

        The last part of the answer: where they stand in the joined columns, by their text.
        """
        nodes = list(on.find_all(exp.Subquery, exp.Exists))
        if any(membership_of(c) for c in conjuncts(on)) or (nodes and kind == "full"):
            raise self._context.refuse(
                "a subquery in this ON condition is not maintained",
                "move the condition to WHERE, or join the subquery in FROM",
                "on",
            )
        held = right if kind == "right" else left
        scope = Scope(held)
        shift = len(left.plan.fields) if kind == "right" else 0
        crossed = {}
        for node in nodes:
            found = scalar_subquery(self._context, scope, node, self._bind_query)
            if found is not None:
                crossed[self._context.text_of(node)] = found.index + shift
        held = FromEntry(scope.plan, held.visible, held.star)
        return (left, held, crossed) if kind == "right" else (held, right, crossed)

    def _on_atom(
        self, scope: Scope, crossed: dict[str, int]
    ) -> Callable[[exp.Expr], ColumnRef | None]:
        names = column_atom(self._context, scope)

        def atom(node: exp.Expr) -> ColumnRef | None:
            if isinstance(node, exp.Subquery | exp.Exists):
                position = crossed.get(self._context.text_of(node))
                return None if position is None else _ref(scope.plan, position)
            return names(node)

        return atom

    def _using(
        self, entry: FromEntry, left: FromEntry, right: FromEntry, names: list[str]
    ) -> FromEntry:
        """Equality of the named columns, which `*` then shows once, first."""
        plan = entry.plan
        assert isinstance(plan, Join)
        n = len(left.plan.fields)
        pairs = [(dict(left.star)[name], dict(right.star)[name] + n) for name in names]
        conditions = [equality(_ref(plan, a), _ref(plan, b)) for a, b in pairs]
        joined: Plan = Join(
            plan.kind, plan.left, plan.right, (), (), all_of(conditions), plan.fields
        )
        merged = self._merged(joined, names, pairs)
        added = [e for e in merged if not isinstance(e, ColumnRef)]
        if added:
            kept = [_ref(joined, i) for i in range(len(plan.fields))]
            fields = [
                Field(name, e.type, is_nullable(e, plan.fields))
                for name, e in zip(names, merged, strict=True)
                if not isinstance(e, ColumnRef)
            ]
            joined = Project(joined, (*kept, *added), (*plan.fields, *fields))
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

    def _merged(
        self, join: Join, names: list[str], pairs: list[tuple[int, int]]
    ) -> list[Expression]:
        """What each merged column is, by the kind of join (parse_clause.c, buildMergedJoinVar)."""
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


def column_atom(context: Context, scope: Scope) -> Callable[[exp.Expr], ColumnRef | None]:
    """Names resolved in a scope, nothing else."""

    def atom(node: exp.Expr) -> ColumnRef | None:
        if not isinstance(node, exp.Column):
            return None
        if isinstance(node.this, exp.Star):
            raise context.refuse(
                "a whole row as a value is not maintained", "name the columns that are needed"
            )
        return scope.resolve(node, context.text_of(node))

    return atom


def cast_to(expression: Expression, type: SqlType) -> Expression:
    """The expression in exactly the given type."""
    if expression.type == type:
        return expression
    native = native_call("cast", (expression,), type)
    return native if native is not None else InPostgres(f"($1)::{type.name}", (expression,), type)


def project(plan: Plan, expressions: Sequence[Expression], names: Sequence[str]) -> Plan:
    """The expressions under their names."""
    fields = tuple(
        Field(n, e.type, is_nullable(e, plan.fields))
        for n, e in zip(names, expressions, strict=True)
    )
    return Project(plan, tuple(expressions), fields)


def renamed(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan with other field names."""
    if tuple(f.name for f in plan.fields) == tuple(names):
        return plan
    fields = tuple(Field(n, f.type, f.is_nullable) for n, f in zip(names, plan.fields, strict=True))
    refs = tuple(ColumnRef(i, f.type, f.name) for i, f in enumerate(plan.fields))
    return Project(plan, refs, fields)


def _crossed(kind: str, left: FromEntry, right: FromEntry) -> FromEntry:
    left_fields, right_fields = left.plan.fields, right.plan.fields
    if kind in ("right", "full"):
        left_fields = nullable(left_fields)
    if kind in ("left", "full"):
        right_fields = nullable(right_fields)
    shifted = right.shifted(len(left_fields))
    plan = Join(kind, left.plan, right.plan, (), (), None, left_fields + right_fields)
    return FromEntry(plan, left.visible + shifted.visible, left.star + shifted.star)


def _aliased(entry: FromEntry, node: exp.Expr) -> FromEntry:
    """The entry under the alias of its node, with the columns that the alias renames."""
    alias = node.args.get("alias")
    if alias is None or not alias.name:
        return entry
    names = [c.name for c in alias.args.get("columns") or []]
    star = tuple(
        (names[i] if i < len(names) else name, p) for i, (name, p) in enumerate(entry.star)
    )
    return FromEntry(entry.plan, (Visible(alias.name, star),), star)


def _ref(plan: Plan, position: int) -> ColumnRef:
    found = plan.fields[position]
    return ColumnRef(position, found.type, found.name)
