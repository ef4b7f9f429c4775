"""Tables with the rows of Python functions: created, altered, and updated to a new reading.

They are in a schema of their own and are ordinary tables, which logical replication publishes.
Invariant: a reading shows whole or not at all (one transaction), and a row that is unchanged bit
for bit is not written. A trigger refuses other changes, which the next reading would undo only in
part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import connection as Connection
from psycopg2.sql import SQL, Composable, Identifier, Literal

from connectors.postgres.embedded.function_difference import BadKeys, fill
from connectors.postgres.session.session import connect, to_error
from connectors.postgres.types.column_types import bad_type, check_type_name
from dataflow.errors import TidemarkError

SCHEMA = "tidemark_python"
TITLE = "Tables that Python functions fill, of an engine of Tidemark"
_LINE = re.compile(r"COPY [^,]*, line (\d+)(?:, column (.*?))?(?:: |$)")
_SETUP = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
COMMENT ON SCHEMA {SCHEMA} IS '{TITLE}';
CREATE OR REPLACE FUNCTION {SCHEMA}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('tidemark.filling', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'table "%" is filled by a Python function', TG_TABLE_NAME
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'change what the function returns, then refresh it';
    END IF;
    RETURN NULL;
END $$;
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute AS a
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEY = """
SELECT a.attname FROM pg_index AS i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY k.place
"""


@dataclass(frozen=True)
class FunctionTable:
    """columns: (name, type), as PostgreSQL prints types. key: names of the primary key's
    columns, () for none."""

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]


@dataclass(frozen=True)
class Filled:
    """What a reading changed."""

    rows: int
    inserted: int
    updated: int
    deleted: int


class FunctionTables:
    """The tables of one database; each call has a session of its own and closes it."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def prepare(self) -> None:
        """Create the schema. SourceError, among them source.privilege."""
        with self._transaction("the schema of functions cannot be created") as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(7954889273471284)")
            cursor.execute(_SETUP)

    def remove(self) -> None:
        """Drop the schema with all its tables."""
        with self._transaction("the schema of functions cannot be dropped") as cursor:
            cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")

    def shape(
        self, name: str, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> FunctionTable:
        """Return the table of a function with types as PostgreSQL prints them; creates nothing.

        TidemarkError function.name_taken, function.bad_key; SqlError sql.bad_type.
        """
        for column, type_name in columns:
            check_type_name(column, type_name)
        if not set(key) <= {n for n, _ in columns} or len(set(key)) != len(key):
            raise TidemarkError(
                "function.bad_key",
                f'function "{name}" has an invalid key',
                detail=f"key: {', '.join(key)}; columns: {', '.join(n for n, _ in columns)}",
                hint="list columns of the function, each once",
            )
        with self._transaction(f'table of function "{name}" cannot be created') as cursor:
            self._require_free(cursor, name)
            return FunctionTable(name, _normal(cursor, columns), tuple(key))

    def declare(self, table: FunctionTable) -> None:
        """Create a table, or give an existing one these columns and this key, without a new
        reading."""
        with self._transaction(f'table of function "{table.name}" cannot be created') as cursor:
            cursor.execute("SET LOCAL tidemark.filling = 'on'")
            _ensure(cursor, table)

    def fill(self, readings: Iterable[tuple[FunctionTable, IO[bytes]]]) -> tuple[list[Filled], str]:
        """Update tables to their readings (lines of COPY's text form), in one transaction.

        Return the changes, and the WAL position from which they are visible. TidemarkError
        function.bad_value, function.duplicate_key, function.null_key.
        """
        done: list[Filled] = []
        now: FunctionTable | None = None
        try:
            with self._transaction("the tables of functions cannot be filled", True) as cursor:
                cursor.execute("SET LOCAL tidemark.filling = 'on'")
                for number, (now, lines) in enumerate(readings):
                    _ensure(cursor, now)
                    found = fill(
                        cursor, _title(now.name), now.columns, now.key, lines, number=number
                    )
                    done.append(Filled(*found))
        except _Failed as failed:
            raise _refusal(failed.error, now) or failed.translated from failed.error
        except BadKeys as error:
            raise _named(error, now) from None
        return done, self.position()

    def position(self) -> str:
        """Return a WAL position after every committed change."""
        with self._transaction("the WAL position cannot be read") as cursor:
            cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
            return (cursor.fetchone() or ("",))[0]

    def numbers(self) -> dict[str, int]:
        """Return the oids of the tables by name."""
        with self._transaction("the tables of functions cannot be listed") as cursor:
            cursor.execute(
                "SELECT relname, c.oid::bigint FROM pg_class AS c JOIN pg_namespace AS n "
                "ON n.oid = relnamespace WHERE nspname = %s AND relkind = 'r'",
                (SCHEMA,),
            )
            return dict(cursor.fetchall())

    def drop(self, name: str) -> None:
        """Drop a function's table. SourceError function.in_use."""
        with self._transaction(f'table of function "{name}" cannot be dropped') as cursor:
            cursor.execute(SQL("DROP TABLE IF EXISTS {}").format(_title(name)))

    def _require_free(self, cursor: Any, name: str) -> None:
        cursor.execute(
            "SELECT nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace "
            "WHERE relname = %s AND nspname <> %s AND pg_table_is_visible(c.oid)",
            (name, SCHEMA),
        )
        found = cursor.fetchone()
        if found is not None:
            raise TidemarkError(
                "function.name_taken",
                f'function "{name}": relation "{found[0]}.{name}" exists already',
                hint="register the function under another name",
            )

    @contextmanager
    def _transaction(self, doing: str, has_cause: bool = False) -> Iterator[Any]:
        """has_cause: errors come as _Failed, for a caller that can say more."""
        session: Connection = connect(
            self._dsn, application_name="tidemark engine", is_long=True, is_users=True
        )
        try:
            with session, session.cursor() as cursor:
                yield cursor
        except psycopg2.Error as error:
            translated = to_error(error, "source", doing)
            if has_cause:
                raise _Failed(error, translated) from error
            raise translated from error
        finally:
            session.close()


class _Failed(Exception):
    """An error of PostgreSQL's, with its default translation."""

    def __init__(self, error: psycopg2.Error, translated: TidemarkError) -> None:
        super().__init__(str(error))
        self.error = error
        self.translated = translated


def _refusal(error: psycopg2.Error, table: FunctionTable | None) -> TidemarkError | None:
    """Return what is wrong with a row, if the row is at fault."""
    if table is None or (error.pgcode or "")[:2] not in ("22", "23", "54"):
        return None
    found = _LINE.search(error.diag.context or "")
    where = f"row {found[1]}" if found else "a row"
    detail = error.diag.message_primary or ""
    if error.diag.message_detail:
        detail = f"{detail}: {error.diag.message_detail}"
    if error.pgcode in (errorcodes.UNIQUE_VIOLATION, errorcodes.NOT_NULL_VIOLATION):
        is_null = error.pgcode == errorcodes.NOT_NULL_VIOLATION
        return _named(BadKeys(is_null, where, detail), table)
    if found and found[2]:
        detail = f'column "{found[2]}": {detail}'
    return TidemarkError(
        "function.bad_value",
        f'function "{table.name}": a value of {where} cannot be stored',
        detail=detail,
        hint="return another value, or declare another type with columns=",
    )


def _named(error: BadKeys, table: FunctionTable | None) -> TidemarkError:
    title = f'function "{table.name if table else ""}"'
    if error.is_null:
        return TidemarkError(
            "function.null_key",
            f"{title}: {error.where} has no key",
            detail=error.detail,
            hint="a key cannot be NULL: omit such rows, or register the function without a key",
        )
    return TidemarkError(
        "function.duplicate_key",
        f"{title}: {error.where} has a key that another row has",
        detail=error.detail,
        hint="return each key once, or register the function without a key",
    )


def _title(name: str) -> Composable:
    return Identifier(SCHEMA, name)


def _declared(columns: Sequence[tuple[str, str]]) -> Composable:
    parts = [SQL("{} {}").format(Identifier(n), SQL(type_name)) for n, type_name in columns]
    return SQL(", ").join(parts)


def _normal(cursor: Any, columns: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the columns with their types as PostgreSQL prints them. SqlError sql.bad_type."""
    try:
        cursor.execute(
            SQL("CREATE TEMP TABLE tidemark_shape ({}) ON COMMIT DROP").format(_declared(columns))
        )
    except psycopg2.errors.UndefinedObject as error:
        raise bad_type(error.diag.message_primary or "a type does not exist") from None
    cursor.execute(_COLUMNS, ("pg_temp.tidemark_shape",))
    found = tuple(cursor.fetchall())
    cursor.execute("DROP TABLE pg_temp.tidemark_shape")
    return found


def _ensure(cursor: Any, table: FunctionTable) -> None:
    title = _title(table.name)
    cursor.execute("SELECT to_regclass(%s) IS NULL", (title.as_string(cursor),))
    (is_new,) = cursor.fetchone()
    if is_new:
        _create(cursor, table)
    else:
        _alter(cursor, table)


def _create(cursor: Any, table: FunctionTable) -> None:
    title = _title(table.name)
    cursor.execute(SQL("CREATE TABLE {} ({})").format(title, _declared(table.columns)))
    _identify(cursor, title, table.key)
    cursor.execute(
        SQL("COMMENT ON TABLE {} IS {}").format(title, Literal(f"filled by function {table.name}"))
    )
    cursor.execute(
        SQL(
            "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {} "
            "FOR EACH STATEMENT EXECUTE FUNCTION {}()"
        ).format(title, Identifier(SCHEMA, "refuse"))
    )


def _identify(cursor: Any, title: Composable, key: Sequence[str]) -> None:
    if key:
        columns = SQL(", ").join(map(Identifier, key))
        cursor.execute(SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(title, columns))
    identity = SQL("DEFAULT" if key else "FULL")
    cursor.execute(SQL("ALTER TABLE {} REPLICA IDENTITY {}").format(title, identity))


def _alter(cursor: Any, table: FunctionTable) -> None:
    """Add new columns, drop missing ones, and change the types of others."""
    title = _title(table.name)
    name = title.as_string(cursor)
    cursor.execute(_COLUMNS, (name,))
    found = dict(cursor.fetchall())
    cursor.execute(_KEY, (name,))
    old_key = tuple(k for (k,) in cursor.fetchall())
    is_other_key = old_key != table.key
    if is_other_key:
        # The rows will be read again; some of them may lack the new key.
        cursor.execute(SQL("DELETE FROM {}").format(title))
        _loosen(cursor, title, old_key)
    declared = dict(table.columns)
    for column in found.keys() - declared.keys():
        cursor.execute(SQL("ALTER TABLE {} DROP COLUMN {}").format(title, Identifier(column)))
    for column, type_name in table.columns:
        if column not in found:
            change = SQL("ALTER TABLE {} ADD COLUMN {} {}")
            cursor.execute(change.format(title, Identifier(column), SQL(type_name)))
        elif found[column] != type_name:
            _convert(cursor, title, column, type_name)
    if is_other_key:
        _identify(cursor, title, table.key)


def _convert(cursor: Any, title: Composable, column: str, type_name: str) -> None:
    """Change the type of a column, and delete the rows if one of them does not fit it."""
    change = SQL("ALTER TABLE {0} ALTER COLUMN {1} TYPE {2} USING {1}::text::{2}").format(
        title, Identifier(column), SQL(type_name)
    )
    cursor.execute("SAVEPOINT converting")
    try:
        cursor.execute(change)
    except psycopg2.DataError:
        # They were what the function returned before, and it is read again.
        cursor.execute("ROLLBACK TO SAVEPOINT converting")
        cursor.execute(SQL("DELETE FROM {}").format(title))
        cursor.execute(change)
    cursor.execute("RELEASE SAVEPOINT converting")


def _loosen(cursor: Any, title: Composable, key: Sequence[str]) -> None:
    """Drop a primary key and the NOT NULL that it left."""
    if not key:
        return
    cursor.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'",
        (title.as_string(cursor),),
    )
    (constraint,) = cursor.fetchone()
    cursor.execute(SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(title, Identifier(constraint)))
    for column in key:
        change = SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL")
        cursor.execute(change.format(title, Identifier(column)))
