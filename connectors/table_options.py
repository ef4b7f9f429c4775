"""Options of databases whose tables are relations: TLS, and which tables with which columns.

Invariant: accepted options are complete and consistent. What only the server can tell is checked
when it is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from connectors.option_reader import OptionReader

# Of a relation's name, as of every name in PostgreSQL.
NAME_BYTES = 63
_LEAST_BUFFER_BYTES = 1 << 16


@dataclass(frozen=True)
class Tls:
    """TLS options; files are paths on the service's machine. verifies_host: the name, too."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verifies_host: bool = True

    @property
    def files(self) -> tuple[str, str, str]:
        """All files, "" for those that are not used."""
        return self.ca_file, self.certificate_file, self.key_file

    @staticmethod
    def of(reader: OptionReader) -> Tls:
        """Read all of the options of an object. Errors `<side>.bad_option`."""
        files = [reader.take(name, str, "") for name in ("ca_file", "certificate_file", "key_file")]
        verifies = reader.optional("verify_host", bool)
        reader.end()
        return Tls(*files, verifies_host=verifies is not False)


def read_tls(reader: OptionReader, page: str) -> Tls | None:
    """Return the option `tls`: true, or an object; None without it. page: lists the options.

    Errors `<side>.bad_option`.
    """
    found = reader.raw("tls")
    if found is None or found is False:
        return None
    return Tls.of(OptionReader({} if found is True else found, reader.side, "tls", page))


def read_buffer_bytes(reader: OptionReader) -> int:
    """Return how much a feed reads ahead. Errors `<side>.bad_option`."""
    found = reader.take("buffer_bytes", int, 16 << 20)
    if found < _LEAST_BUFFER_BYTES:
        raise reader.refused("buffer_bytes", "is too small", hint=f"{_LEAST_BUFFER_BYTES} or more")
    return found


@dataclass(frozen=True)
class Naming:
    """How a database names tables, for messages.

    type_name: of the source. qualifier: what stands before a table's name. example: the qualifier
    of an example.
    """

    type_name: str
    qualifier: str
    example: str


@dataclass(frozen=True)
class NamedTable:
    """One table as a relation. columns: (name, SQL type). key: () for a table without one."""

    relation: str
    schema: str
    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]


def named_tables(reader: OptionReader, naming: Naming) -> dict[str, Any]:
    """Return the options of each table by its relation; a list names tables only.

    Errors `<side>.bad_option`.
    """
    found = reader.raw("tables")
    if isinstance(found, list):
        named: dict[str, Any] = {}
        for title in found:
            relation = title.rpartition(".")[2] if isinstance(title, str) else ""
            if not relation or relation in named:
                form = f"{naming.qualifier}.table"
                why = f'needs distinct names of the form "{form}", not {title!r}'
                hint = f'name relations: {{"orders": {{"table": "{naming.example}.orders"}}}}'
                raise reader.refused("tables", why, hint=hint)
            named[relation] = {"table": title}
        found = named
    if not isinstance(found, Mapping) or not found:
        raise reader.refused("tables", "names no table", hint=f'["{naming.example}.orders"]')
    return {
        str(name): {"table": one} if isinstance(one, str) else one for name, one in found.items()
    }


def read_table(
    name: str, reader: OptionReader, naming: Naming, *, needs_columns: bool
) -> NamedTable:
    """Read what every table has; the reader may have more. Errors `<side>.bad_option`."""
    if not name or len(name.encode()) > NAME_BYTES:
        raise reader.refused("", f"needs a name of 1 to {NAME_BYTES} bytes")
    schema, _, table = reader.take("table", str).partition(".")
    if not schema or not table:
        raise reader.refused("table", f'must be of the form "{naming.qualifier}.table"')
    columns = _columns(reader, naming, needs_columns)
    key = tuple(reader.take("key", list, []))
    names = [column for column, _ in columns]
    for column in key:
        if columns and column not in names:
            raise reader.refused("key", f'names "{column}", which is not declared')
    return NamedTable(name, schema, table, columns, key)


def require_each_once(reader: OptionReader, tables: Iterable[tuple[str, str]]) -> None:
    """Refuse two relations of one table. tables: (relation, title of its table)."""
    by_table: dict[str, str] = {}
    for relation, title in tables:
        if by_table.setdefault(title, relation) != relation:
            raise reader.refused(
                f"tables.{relation}.table",
                f'is also the table of "{by_table[title]}"',
                hint="declare one relation with all columns, or a second source",
            )


def _columns(reader: OptionReader, naming: Naming, is_needed: bool) -> tuple[tuple[str, str], ...]:
    found = reader.raw("columns")
    if found is None and not is_needed:
        return ()
    if isinstance(found, list):
        pairs = [
            (one.get("name"), one.get("type")) if isinstance(one, Mapping) else (None, None)
            for one in found
        ]
    else:
        pairs = list(found.items()) if isinstance(found, Mapping) else []
    if not pairs:
        hint = f"tidemark sources discover {naming.type_name} proposes them"
        raise reader.refused("columns", "must name each column with its type", hint=hint)
    names = [name for name, _ in pairs]
    if not all(isinstance(part, str) and part for pair in pairs for part in pair):
        raise reader.refused("columns", "must be names with types")
    for name in names:
        if names.count(name) > 1:
            raise reader.refused("columns", f'names "{name}" twice')
    return tuple((str(name), str(type_name)) for name, type_name in pairs)
