"""Random queries over the tables of a database that is there.

Invariant: a query depends on the seed and on the columns alone. Its answer is one that
PostgreSQL defines: no order-dependent sums, no group whose equal members print differently, no
expression that fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tests.harness.draw import quote
from tests.harness.grammar import ColumnSpec, FromPart, Select, Term

FAMILIES = {
    "smallint": "int",
    "integer": "int",
    "bigint": "int",
    "numeric": "num",
    "real": "float",
    "double precision": "float",
    "text": "text",
    "character varying": "text",
    "character": "text",
    "boolean": "bool",
    "date": "date",
    "timestamp without time zone": "time",
    "timestamp with time zone": "time",
}
LITERALS: Mapping[str, Sequence[str]] = {
    "int": ("0", "1", "2", "5", "20", "-1"),
    "num": ("0", "1.5", "100", "10.25", "0.001"),
    "float": ("0", "0.1", "2.5"),
    "text": ("'a'", "'north'", "'paid'", "'amber'", "''", "'b'"),
    "bool": ("true", "false"),
    "date": ("date '2023-06-15'", "date '2024-01-01'"),
    "time": ("timestamp '2023-06-15'", "timestamp '2024-01-01 12:00'"),
}
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "=", "IS DISTINCT FROM")


LIKES = ("'a%'", "'%e%'", "'_a%'", "'%r'", "'a'")

# {a} is an expression of the family, {b} a constant of it. Some have no native kernel.
_EXPRESSIONS: Mapping[str, Sequence[str]] = {
    "int": (
        "({a} % 7)",
        "(({a}) % 100 + {b})",
        "({a} / 3)",
        "abs({a} % 50)",
        "coalesce({a}, {b})",
        "nullif({a}, {b})",
        "greatest({a}, {b})",
        "length(({a})::text)",
        "width_bucket(({a})::numeric % 50, 0, 50, 5)",
    ),
    "num": (
        "({a} + {b})",
        "({a} * {b})",
        "round({a}, 1)",
        "({a} / 4)",
        "coalesce({a}, {b})",
        "trunc({a}, 1)",
        "least({a}, {b})",
        "(-{a})",
        "({a})::numeric",
    ),
    "float": ("({a} * 2)", "coalesce({a}, {b})", "({a} / 2)", "abs({a})", "sqrt(abs({a}))"),
    "text": (
        "upper({a})",
        "({a} || {b})",
        "coalesce({a}, {b})",
        "substr({a}, 1, 2)",
        "md5({a})",
        "regexp_replace({a}, '[aeiou]', '#', 'g')",
        "split_part({a}, ' ', 1)",
        "lpad({a}, 6, '.')",
        "translate({a}, 'abc', 'xy')",
        "quote_literal({a})",
    ),
    "bool": ("(NOT {a})", "({a} IS TRUE)", "coalesce({a}, {b})", "({a} = {b})", "({a} > {b})"),
    "date": ("coalesce({a}, {b})", "nullif({a}, {b})", "({a} - 1)", "least({a}, {b})"),
    "time": ("coalesce({a}, {b})", "date_trunc('day', {a})", "({a} + interval '1 month')"),
}


def read_columns(connection: Any, tables: Sequence[str]) -> dict[str, tuple[ColumnSpec, ...]]:
    """Columns of each table that expressions are made of, with some of their values."""
    found = {}
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
                "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
                "AND attgenerated = '' ORDER BY attnum",
                (table,),
            )
            named = [(name, FAMILIES.get(kind)) for name, kind in cursor.fetchall()]
            found[table] = tuple(
                ColumnSpec(name, family, _samples(cursor, table, name))
                for name, family in named
                if family is not None
            )
    return found


def _samples(cursor: Any, table: str, column: str) -> tuple[str, ...]:
    cursor.execute(
        f"SELECT v FROM (SELECT DISTINCT {column}::text AS v FROM {table}) x "
        f"WHERE length(v) < 40 ORDER BY md5(v) LIMIT 4"
    )
    return tuple(quote(value) for (value,) in cursor.fetchall())


class QueryWriter:
    """Draws queries over tables; each call of `query` is another one."""

    def __init__(self, columns: Mapping[str, tuple[ColumnSpec, ...]], seed: str) -> None:
        self._columns = {t: c for t, c in columns.items() if c}
        self._rng = Random(seed)
        self._aliases = 0

    def query(self) -> Select:
        """A query of up to three joins, with everything else that luck brings."""
        rng = self._rng
        self._aliases = 0
        relations = self._relations()
        select = self._grouped(relations) if rng.random() < 0.5 else self._flat(relations)
        if rng.random() < 0.15:
            select = self._united(select)
        return select

    # --- FROM ----------------------------------------------------------------------------

    def _relations(self) -> list[FromPart]:
        rng = self._rng
        parts = [self._relation()]
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 2, 3))):
            part = self._relation()
            conditions = self._join_conditions(parts, part)
            kind = rng.choice(("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
            if not conditions:
                kind = "CROSS JOIN"
            elif kind != "FULL JOIN" and rng.random() < 0.3:
                conditions.append(self._predicate([*parts, part], 1))
            parts.append(replace(part, kind=kind, conditions=tuple(conditions)))
        return parts

    def _relation(self) -> FromPart:
        self._aliases += 1
        alias = f"t{self._aliases}"
        if self._rng.random() < 0.15:
            inner = self._grouped([self._base()])
            columns = tuple(ColumnSpec(f"c{i}", t.family) for i, t in enumerate(inner.outputs))
            return FromPart(alias, inner, columns)
        base = self._base()
        return FromPart(alias, base.source, base.columns)

    def _base(self) -> FromPart:
        self._aliases += 1
        table = self._rng.choice(list(self._columns))
        return FromPart(f"b{self._aliases}", table, self._columns[table])

    def _join_conditions(self, left: list[FromPart], right: FromPart) -> list[str]:
        rng = self._rng
        pairs = [
            (a, b)
            for a in _columns_of(left)
            for b in _columns_of([right])
            if a.family == b.family and a.family not in ("float", "bool")
        ]
        named_alike = [p for p in pairs if p[0].sql.split(".")[1] == p[1].sql.split(".")[1]]
        pairs = named_alike if named_alike and rng.random() < 0.7 else pairs
        chosen = rng.sample(pairs, min(len(pairs), rng.choice((1, 1, 1, 2))))
        return [f"{a.sql} = {b.sql}" for a, b in chosen]

    # --- SELECT lists --------------------------------------------------------------------

    def _flat(self, relations: list[FromPart]) -> Select:
        rng = self._rng
        outputs = [self._term(relations, 2) for _ in range(rng.randint(1, 4))]
        is_distinct = rng.random() < 0.2
        if is_distinct:
            outputs = [_canonical(term) for term in outputs]
        where = self._where(relations)
        return Select(tuple(relations), tuple(outputs), where, is_distinct=is_distinct)

    def _grouped(self, relations: list[FromPart]) -> Select:
        rng = self._rng
        keys = [_canonical(self._term(relations, 1)) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        keys = list({key.sql: key for key in keys if key.family != "float"}.values())
        calls = [self._aggregate(relations) for _ in range(rng.randint(1, 3))]
        having: tuple[str, ...] = ()
        if rng.random() < 0.25:
            call = self._aggregate(relations)
            having = (f"{call.sql} {rng.choice(COMPARISONS)} {self._literal(call.family)}",)
        groups = tuple(key.sql for key in keys)
        return Select(tuple(relations), (*keys, *calls), self._where(relations), groups, having)

    def _united(self, select: Select) -> Select:
        families = [term.family for term in select.outputs]
        relations = self._relations()
        outputs = tuple(_common(self._term_of(relations, family, 1)) for family in families)
        first = replace(select, outputs=tuple(_common(term) for term in select.outputs))
        other = Select(tuple(relations), outputs, self._where(relations))
        kind = self._rng.choice(("UNION ALL", "UNION"))
        has_floats = "float" in families
        return replace(first, union=other, union_kind="UNION ALL" if has_floats else kind)

    def _aggregate(self, relations: list[FromPart]) -> Term:
        rng = self._rng
        columns = _columns_of(relations)
        term = rng.choice(columns)
        if term.family in ("int", "num") and rng.random() < 0.3:
            term = self._term_of(relations, term.family, 1)
        distinct = "DISTINCT " if rng.random() < 0.2 else ""
        choices: list[tuple[str, str]] = [
            ("count(*)", "int"),
            (f"count({distinct}{term.sql})", "int"),
        ]
        if term.family in ("int", "num", "float"):
            family = "float" if term.family == "float" else "num"
            choices += [
                (f"sum({distinct}{term.sql})", family),
                (f"avg({distinct}{term.sql})", family),
            ]
        if term.family == "bool":
            choices += [(f"bool_and({term.sql})", "bool"), (f"bool_or({term.sql})", "bool")]
        else:
            ordered = _canonical(term)
            choices += [(f"min({ordered.sql})", term.family), (f"max({ordered.sql})", term.family)]
        sql, family = rng.choice(choices)
        if rng.random() < 0.2:
            sql += f" FILTER (WHERE {self._predicate(relations, 1)})"
        return Term(sql, family)

    # --- WHERE ---------------------------------------------------------------------------

    def _where(self, relations: list[FromPart]) -> tuple[str, ...]:
        rng = self._rng
        found = [self._predicate(relations, 2) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))]
        if rng.random() < 0.25:
            found.append(self._subquery_predicate(relations))
        return tuple(found)

    def _subquery_predicate(self, relations: list[FromPart]) -> str:
        rng = self._rng
        base = self._base()
        pairs = [
            (a, b)
            for a in _columns_of(relations)
            for b in _columns_of([base])
            if a.family == b.family and a.family in ("int", "num", "text", "date")
        ]
        inner = f"FROM {base.text()}"
        condition = self._predicate([base], 1)
        if not pairs or rng.random() < 0.2:
            numbers = [c for c in _columns_of([base]) if c.family in ("int", "num")]
            if not numbers:
                return f"EXISTS (SELECT 1 {inner} WHERE {condition})"
            outer = self._term_of(relations, "num", 1)
            function = rng.choice(("avg", "max", "min", "count"))
            return f"{outer.sql} > (SELECT {function}({numbers[0].sql}) {inner} WHERE {condition})"
        left, right = rng.choice(pairs)
        form = rng.randrange(4)
        if form == 0:
            return f"{left.sql} IN (SELECT {right.sql} {inner} WHERE {condition})"
        if form == 1:
            return f"{left.sql} NOT IN (SELECT {right.sql} {inner} WHERE {condition})"
        word = "EXISTS" if form == 2 else "NOT EXISTS"
        return f"{word} (SELECT 1 {inner} WHERE {right.sql} = {left.sql} AND {condition})"

    def _predicate(self, relations: list[FromPart], depth: int) -> str:
        rng = self._rng
        choice = rng.random()
        if depth and choice < 0.15:
            word = rng.choice(("AND", "OR"))
            left, right = self._predicate(relations, 0), self._predicate(relations, depth - 1)
            return f"({left} {word} {right})"
        if depth and choice < 0.22:
            return f"NOT ({self._predicate(relations, depth - 1)})"
        column = rng.choice(_columns_of(relations))
        if choice < 0.35:
            return f"{column.sql} IS {rng.choice(('', 'NOT '))}NULL"
        if column.family == "bool":
            return rng.choice((column.sql, f"{column.sql} IS NOT TRUE", f"NOT {column.sql}"))
        if column.family == "text" and choice < 0.45:
            return f"{column.sql} LIKE {rng.choice(LIKES)}"
        constants = [*column.samples, *LITERALS[column.family]]
        if choice < 0.55:
            return f"{column.sql} IN ({', '.join(rng.sample(constants, 2))})"
        if choice < 0.62:
            low, high = rng.sample(constants, 2)
            return f"{column.sql} BETWEEN {low} AND {high}"
        if choice < 0.85:
            return f"{column.sql} {rng.choice(COMPARISONS)} {rng.choice(constants)}"
        other = self._term_of(relations, column.family, depth)
        return f"{column.sql} {rng.choice(COMPARISONS)} {other.sql}"

    # --- expressions ---------------------------------------------------------------------

    def _term(self, relations: list[FromPart], depth: int) -> Term:
        column = self._rng.choice(_columns_of(relations))
        if self._rng.random() < 0.5:
            return column
        return self._term_of(relations, column.family, depth)

    def _literal(self, family: str) -> str:
        return self._rng.choice(LITERALS[family])

    def _term_of(self, relations: list[FromPart], family: str, depth: int) -> Term:
        rng = self._rng
        columns = [c for c in _columns_of(relations) if c.family == family]
        if depth and rng.random() < 0.5:
            inner = self._term_of(relations, family, depth - 1)
            form = rng.choice(_EXPRESSIONS[family])
            sql = form.format(a=inner.sql, b=self._literal(family))
            if rng.random() < 0.15:
                predicate = self._predicate(relations, 0)
                sql = f"CASE WHEN {predicate} THEN {sql} ELSE {inner.sql} END"
            return Term(sql, family)
        return rng.choice(columns) if columns else Term(self._literal(family), family)


def _columns_of(relations: Sequence[FromPart]) -> list[Term]:
    return [
        Term(f"{part.alias}.{column.name}", column.family, True, column.samples)
        for part in relations
        for column in part.columns
    ]


def _canonical(term: Term) -> Term:
    """The term, such that equal values print alike."""
    if term.family == "num" and not term.is_plain:
        return Term(f"round({term.sql}, 2)", term.family)
    return term


def _common(term: Term) -> Term:
    """The term in the one type of its family that a UNION has for it."""
    casts = {
        "int": f"({term.sql})::bigint",
        "num": f"round({term.sql}, 2)",
        "float": f"({term.sql})::float8",
        "text": f"({term.sql})::text",
        "time": f"({term.sql})::timestamptz",
    }
    return Term(casts.get(term.family, term.sql), term.family)
