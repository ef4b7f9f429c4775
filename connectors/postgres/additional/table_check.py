"""Checks of the place for a sink's table: a free name, or an empty table that fits.

All functions work on the caller's cursor, inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from connectors.postgres.additional.options import TableOptions
from connectors.postgres.additional.progress_table import progress_name
from connectors.postgres.additional.written_table import CHANGE_ID
from connectors.postgres.session.quoting import quote_name
from dataflow.errors import SinkError
from dataflow.schema import Field

_COLUMNS = """SELECT attname::text, atttypid::bigint, atttypmod, attnotnull
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"""
_KEY = """SELECT array_agg(a.attname::text) FROM pg_index AS i
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
GROUP BY i.indexrelid"""

# The views' own tables, where the service keeps its views in this database too.
_VIEWS = "tidemark.tables"


class Written(Protocol):
    """What is asked of a table that is written."""

    @property
    def relations(self) -> list[str]:
        """Every name that it takes."""
        ...

    @property
    def columns(self) -> tuple[Field, ...]:
        """The columns that are written."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which rows are found; () for none."""
        ...

    @property
    def sql(self) -> str:
        """The table's name in statements."""
        ...


class TableCheck:
    """The checks of one sink's table."""

    def __init__(self, options: TableOptions, table: Written) -> None:
        self._options = options
        self._table = table

    def check(self, cursor: Any) -> bool:
        """Return whether the table is there and fits; else it can be created.

        SinkError sink.read_only, sink.schema_missing, sink.privilege, sink.type_missing,
        sink.table_unfit.
        """
        cursor.execute("SELECT pg_is_in_recovery()")
        if cursor.fetchone()[0]:
            raise SinkError(
                "sink.read_only",
                f'server "{self._options.login.host}" is a standby and cannot be written',
                hint="name the primary",
            )
        self._require_schema(cursor)
        self._require_types(cursor)
        found = [self._oid_of(cursor, name) for name in self._table.relations]
        if not any(found):
            return False
        self._require_fit(cursor, found)
        return True

    def require_empty(self, cursor: Any) -> None:
        """Require that a given table has no rows. SinkError sink.table_unfit."""
        cursor.execute(f"SELECT 1 FROM {self._table.sql} LIMIT 1")
        if cursor.fetchone() is not None:
            raise self._unfit("it has rows")

    def _oid_of(self, cursor: Any, name: str) -> int | None:
        sql = f"{quote_name(self._options.schema)}.{quote_name(name)}"
        cursor.execute("SELECT to_regclass(%s)::oid::bigint", (sql,))
        return cursor.fetchone()[0]

    def _require_schema(self, cursor: Any) -> None:
        schema = self._options.schema
        cursor.execute("SELECT to_regnamespace(%s)::oid", (quote_name(schema),))
        namespace = cursor.fetchone()[0]
        if namespace is None:
            raise SinkError(
                "sink.schema_missing",
                f'schema "{schema}" does not exist in the sink',
                hint=f"CREATE SCHEMA {quote_name(schema)}, or choose another schema",
            )
        cursor.execute("SELECT has_schema_privilege(%s, 'CREATE'), current_user", (namespace,))
        is_allowed, role = cursor.fetchone()
        if not is_allowed:
            grant = f"GRANT USAGE, CREATE ON SCHEMA {quote_name(schema)} TO {quote_name(role)}"
            raise SinkError(
                "sink.privilege",
                f'role "{role}" may not create tables in schema "{schema}" of the sink',
                hint=grant,
            )

    def _require_types(self, cursor: Any) -> None:
        names = sorted({c.type.name for c in self._table.columns})
        cursor.execute("SELECT n FROM unnest(%s::text[]) n WHERE to_regtype(n) IS NULL", (names,))
        missing = [name for (name,) in cursor.fetchall()]
        if missing:
            raise SinkError(
                "sink.type_missing",
                f'table "{self._options.title}" has a type that the sink lacks',
                detail=", ".join(missing),
                hint="create the type in the sink too, or cast the column to text",
            )

    def _require_fit(self, cursor: Any, found: Sequence[int | None]) -> None:
        oid = found[0]
        if oid is None or len(found) > 1:
            raise self._unfit("a view without a key needs names that are free: the sink makes both")
        cursor.execute("SELECT relkind::text FROM pg_class WHERE oid = %s", (oid,))
        if cursor.fetchone()[0] != "r":
            raise self._unfit("it is no ordinary table")
        for registry in (_VIEWS, progress_name(self._options.schema)):
            self._require_unused(cursor, registry, oid)
        cursor.execute(_COLUMNS, (oid,))
        actual = {name: facts for name, *facts in cursor.fetchall()}
        for column in self._table.columns:
            cursor.execute("SELECT %s::regtype::oid::bigint", (column.type.name,))
            type_oid, unlimited = cursor.fetchone()[0], -1
            has_type, modifier, _ = actual.get(column.name, (0, 0, False))
            if has_type != type_oid or modifier not in (unlimited, column.type.typmod):
                raise self._unfit(f'it has no column "{column.name}" of type {column.type.name}')
        names = {c.name for c in self._table.columns}
        for name, (_, _, is_set) in actual.items():
            if name not in names and is_set and name != CHANGE_ID:
                raise self._unfit(f'its column "{name}" must have values')
        if self._table.key:
            cursor.execute(_KEY, (oid,))
            if not any(set(key) == set(self._table.key) for (key,) in cursor.fetchall()):
                raise self._unfit(f"it has no unique index on {', '.join(self._table.key)}")
        self.require_empty(cursor)

    def _require_unused(self, cursor: Any, registry: str, oid: int) -> None:
        """Require that neither a view nor another sink has this table."""
        cursor.execute(
            "SELECT has_table_privilege(c, 'SELECT') FROM to_regclass(%s) AS c WHERE c IS NOT NULL",
            (registry,),
        )
        if cursor.fetchall() == [(True,)]:
            cursor.execute(f"SELECT 1 FROM {registry} WHERE table_oid = %s", (oid,))
            if cursor.fetchone() is not None:
                raise self._unfit("a view or another sink writes to it")

    def _unfit(self, detail: str) -> SinkError:
        return SinkError(
            "sink.table_unfit",
            f'table "{self._options.title}" exists, and does not fit the sink',
            detail=detail,
            hint="drop it, so that the sink creates it, or choose another table",
        )
