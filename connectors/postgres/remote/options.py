"""Options of a PostgreSQL source: how to reach the database, and which tables are relations.

Invariant: accepted options are complete and consistent, and hold references to secrets only. What
only the server can tell is checked when it is reached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.feed_source import DeclaredRelation, Reader
from connectors.option_reader import OptionReader
from connectors.outside.logins import PostgresLogin, read_postgres_login
from connectors.postgres.replication.slot import object_name
from connectors.postgres.replication.transactions import StreamLimits
from connectors.table_options import (
    NAME_BYTES,
    Naming,
    named_tables,
    read_buffer_bytes,
    read_table,
    require_each_once,
)
from dataflow.schema import RelationName

PAGE = "docs/POSTGRES.md"
_NAMING = Naming("postgres", "schema", "sales")


@dataclass(frozen=True)
class TableOptions:
    """One table as a relation.

    schema, table: the database's names. columns: (name, SQL type). key: () for a table that is
    read as a multiset, with REPLICA IDENTITY FULL.
    """

    relation: str
    schema: str
    table: str
    columns: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()

    @property
    def name(self) -> RelationName:
        """The database's name of the table."""
        return RelationName("", self.schema, self.table)

    @property
    def title(self) -> str:
        """The name in the form of the option."""
        return f"{self.schema}.{self.table}"

    def declared(self) -> DeclaredRelation:
        """Return the declared relation for the service."""
        return DeclaredRelation(self.relation, self.columns, self.key, is_full=not self.key)


@dataclass(frozen=True)
class RemoteOptions:
    """All options of a source. slot, publication: "" for the default; see `names`."""

    login: PostgresLogin
    tables: tuple[TableOptions, ...]
    slot: str = ""
    publication: str = ""
    buffer_bytes: int = 16 << 20

    def table_of(self, relation: str) -> TableOptions:
        """Return the table of a declared relation."""
        return next(t for t in self.tables if t.relation == relation)

    def names(self, source: str, reader: Reader) -> tuple[str, str]:
        """Return the names of slot and publication for a reader of a source.

        >>> read = read_options({"host": "db", "user": "me", "database": "erp",
        ...                      "tables": ["public.t"]}, needs_columns=False)
        >>> read.names("erp", Reader("tidemark", "default"))
        ('tidemark_default_from_erp', 'tidemark_default_from_erp')
        """
        default = _fitting(f"{reader.prefix}_{reader.group}_from_{source}")
        suffix = "" if reader.group == "default" else f"_{reader.group}"
        slot = _fitting(self.slot + suffix) if self.slot else default
        return slot, _fitting(self.publication + suffix) if self.publication else slot

    def limits(self) -> StreamLimits:
        """Return the memory of a stream."""
        return StreamLimits(
            queue_bytes=self.buffer_bytes, spill_bytes=self.buffer_bytes // 2, is_foreign=True
        )


def read_options(options: Mapping[str, Any], *, needs_columns: bool = True) -> RemoteOptions:
    """Read options from JSON. SourceError source.bad_option, secret.plain.

    >>> found = read_options({"host": "db", "user": "me", "database": "erp",
    ...                       "tables": ["sales.orders"]}, needs_columns=False)
    >>> found.tables[0].relation, found.tables[0].title
    ('orders', 'sales.orders')
    """
    reader = OptionReader(options, "source", page=PAGE)
    login = read_postgres_login(reader, PAGE, "disable")
    names = [_own_name(reader, option) for option in ("slot", "publication")]
    buffer_bytes = read_buffer_bytes(reader)
    named = named_tables(reader, _NAMING)
    reader.end()
    tables = tuple(
        _table(name, OptionReader(one, "source", f"tables.{name}", PAGE), needs_columns)
        for name, one in named.items()
    )
    require_each_once(reader, ((table.relation, table.title) for table in tables))
    return RemoteOptions(login, tables, *names, buffer_bytes=buffer_bytes)


def _own_name(reader: OptionReader, option: str) -> str:
    name = reader.take(option, str, "")
    if name and (name != object_name("", name)[1:] or len(name) > NAME_BYTES - 1):
        raise reader.refused(option, "may have lower case letters, digits and _ only")
    return name


def _fitting(name: str) -> str:
    """Return a name of the characters and the length that a slot's may have, distinct if cut."""
    plain = object_name("", name)[1:]
    if plain == name:
        return plain
    return f"{plain[: NAME_BYTES - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _table(name: str, reader: OptionReader, needs_columns: bool) -> TableOptions:
    found = read_table(name, reader, _NAMING, needs_columns=needs_columns)
    reader.end()
    return TableOptions(name, found.schema, found.table, found.columns, found.key)
