"""Which functions and casts are native, asked of the registry for all that PostgreSQL has.

`python -m tests.harness.native_functions` prints the two tables of docs/SQL.md. Every immutable
or stable function and every operator of pg_catalog is put to the registry under the name that the
planner gives it, with its own argument and result types.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.expressions.functions import has_kernel
from dataflow.sql.parse.shapes import OPERATORS
from dataflow.types import SqlType, TypeKind, sql_type
from tests.harness.postgres import Database, new_database

CALLABLE = """
SELECT p.proname::text, p.proargtypes::oid[]::bigint[],
       ARRAY(SELECT format_type(a, -1) FROM unnest(p.proargtypes) AS a),
       p.prorettype::bigint, format_type(p.prorettype, -1)
FROM pg_proc p
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset
  AND p.provolatile <> 'v' AND p.provariadic = 0
UNION ALL
SELECT o.oprname::text, ARRAY[nullif(o.oprleft, 0), o.oprright]::bigint[],
       ARRAY[format_type(nullif(o.oprleft, 0), -1), format_type(o.oprright, -1)],
       o.oprresult::bigint, format_type(o.oprresult, -1)
FROM pg_operator o
"""
# What people call families of types that always go together.
FAMILY = {
    **dict.fromkeys(("smallint", "integer", "bigint"), "integer"),
    **dict.fromkeys(("real", "double precision"), "float"),
    "bpchar": "char(n)",
    "time without time zone": "time",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
}
CASTABLE = {
    "boolean": 16,
    "smallint": 21,
    "integer": 23,
    "bigint": 20,
    "real": 700,
    "double precision": 701,
    "numeric": 1700,
    "text": 25,
    "bpchar": 1042,
    "date": 1082,
    "time without time zone": 1083,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "interval": 1186,
    "uuid": 2950,
    "bytea": 17,
    "json": 114,
    "jsonb": 3802,
}


def family_of(name: str) -> str:
    """The word for a type in the tables."""
    return FAMILY.get(name, name)


def functions_table(database: Database) -> list[str]:
    """Return rows of a Markdown table: functions and operators, and over which types they are
    native."""
    over: dict[str, set[str]] = defaultdict(set)
    for name, oids, names, result_oid, result in database.rows(CALLABLE):
        function = OPERATORS.get(name, name)
        pairs = [(n, o) for n, o in zip(names, oids, strict=True) if o is not None]
        types = tuple(sql_type(n, o) for n, o in pairs)
        if any(t.kind is TypeKind.OPAQUE for t in types):
            continue
        if "name" in names or not has_kernel(function, types, sql_type(result, result_oid)):
            continue
        over[function].add(", ".join(family_of(n) for n, _ in pairs))
    return _rows(over)


def casts_table() -> list[str]:
    """Rows of a Markdown table: native casts from each type."""
    types = {name: sql_type(name, oid) for name, oid in CASTABLE.items()}
    to: dict[str, set[str]] = defaultdict(set)
    for name, source in types.items():
        for other, result in types.items():
            if name != other and has_kernel("cast", (source,), result):
                to[family_of(name)].add(family_of(other))
    return _rows(to)


def is_native(function: str, types: Iterable[SqlType], result: SqlType) -> bool:
    """Whether a construct of the grammar has a kernel over these types."""
    return has_kernel(function, tuple(types), result)


def _rows(found: dict[str, set[str]]) -> list[str]:
    """Names with the same right side share a row."""
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in sorted(found):
        alike[tuple(sorted(found[name]))].append(name)
    rows = []
    for right, names in sorted(alike.items(), key=lambda pair: pair[1]):
        cells = [" ".join(f"`{_escaped(n)}`" for n in names), "; ".join(right)]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _escaped(name: str) -> str:
    return name.replace("|", "\\|")


if __name__ == "__main__":
    with EmbeddedPostgres() as server, new_database(server) as empty:
        print("\n".join(functions_table(empty)))
    print()
    print("\n".join(casts_table()))
