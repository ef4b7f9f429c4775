"""Options of a MySQL or MariaDB source: how to reach the server, and which tables are relations.

Invariant: accepted options are complete and consistent, and hold references to secrets only. What
only the server can tell is checked in `preflight.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.feed_source import DeclaredRelation
from connectors.option_reader import OptionReader
from connectors.outside.logins import MySqlLogin, read_host_login
from connectors.table_options import (
    Naming,
    named_tables,
    read_buffer_bytes,
    read_table,
    require_each_once,
)

FAIL, SKIP, DEAD_LETTER = "fail", "skip", "dead_letter"
POLICIES = (FAIL, SKIP, DEAD_LETTER)
REJECT, AS_NULL = "reject", "null"
MAX_SERVER_ID = 2**32 - 1
PAGE = "docs/MYSQL.md"
_NAMING = Naming("mysql", "database", "shop")


@dataclass(frozen=True)
class TableOptions:
    """One table as a relation.

    schema, table: the server's names. columns: (name, SQL type). key: () for a table without one.
    on_error: of POLICIES. zero_dates: REJECT or AS_NULL.
    """

    relation: str
    schema: str
    table: str
    columns: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()
    on_error: str = FAIL
    zero_dates: str = REJECT

    @property
    def title(self) -> str:
        """The server's name of the table."""
        return f"{self.schema}.{self.table}"

    def declared(self) -> DeclaredRelation:
        """Return the declared relation for the service."""
        return DeclaredRelation(self.relation, self.columns, self.key, is_full=not self.key)


@dataclass(frozen=True)
class MySqlOptions:
    """All options of a source.

    server_id: what the feed calls itself to the server, 0 for a random number. buffer_bytes: limit
    of read-ahead, and of a transaction in memory.
    """

    login: MySqlLogin
    tables: tuple[TableOptions, ...]
    server_id: int = 0
    buffer_bytes: int = 16 << 20

    def table_of(self, relation: str) -> TableOptions:
        """Return the table of a declared relation."""
        return next(t for t in self.tables if t.relation == relation)


def read_options(options: Mapping[str, Any], *, needs_columns: bool = True) -> MySqlOptions:
    """Read options from JSON. SourceError source.bad_option, secret.plain.

    >>> found = read_options({"host": "db", "user": "me", "tables": ["shop.orders"]},
    ...                      needs_columns=False)
    >>> found.tables[0].relation, found.tables[0].title
    ('orders', 'shop.orders')
    """
    reader = OptionReader(options, "source", page=PAGE)
    login = read_login(reader, PAGE)
    server_id = reader.take("server_id", int, 0)
    if not 0 <= server_id <= MAX_SERVER_ID:
        raise reader.refused("server_id", f"must be 1 to {MAX_SERVER_ID}")
    buffer_bytes = read_buffer_bytes(reader)
    shared = {
        "on_error": reader.choice("on_error", POLICIES, FAIL),
        "zero_dates": reader.choice("zero_dates", (REJECT, AS_NULL), REJECT),
    }
    named = named_tables(reader, _NAMING)
    reader.end()
    tables = tuple(
        _table(name, OptionReader(one, "source", f"tables.{name}", PAGE), shared, needs_columns)
        for name, one in named.items()
    )
    # The server may not tell upper from lower case.
    require_each_once(reader, ((table.relation, table.title.lower()) for table in tables))
    return MySqlOptions(login, tables, server_id, buffer_bytes)


def read_login(reader: OptionReader, page: str) -> MySqlLogin:
    """Read how to reach the server. Errors `<side>.bad_option`; SourceError secret.plain."""
    return MySqlLogin(**vars(read_host_login(reader, page, 3306)))


def _table(
    name: str, reader: OptionReader, shared: Mapping[str, str], needs_columns: bool
) -> TableOptions:
    found = read_table(name, reader, _NAMING, needs_columns=needs_columns)
    on_error = reader.choice("on_error", POLICIES, shared["on_error"])
    zero_dates = reader.choice("zero_dates", (REJECT, AS_NULL), shared["zero_dates"])
    reader.end()
    if found.columns and not found.key and on_error != FAIL:
        raise reader.refused(
            "on_error",
            f"cannot be {on_error} for a table without a key",
            detail="a rejected row that is deleted later could not be identified",
            hint="declare the table's key, or keep on_error fail",
        )
    table = found.schema, found.table, found.columns, found.key
    return TableOptions(name, *table, on_error, zero_dates)
