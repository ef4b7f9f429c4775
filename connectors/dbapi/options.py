"""The options of sources that query a database by its Python module (docs/DBAPI.md).

Invariant: a module is imported only if the operator has allowed it by name, and no option holds a
secret itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors import netguard
from connectors.option_reader import OptionReader
from connectors.outside.module_logins import check_module_login
from connectors.polled.rows import RowOptions, SharedOptions, read_number, read_rows, read_shared
from connectors.secrets import has_reference

PAGE = "docs/DBAPI.md"
MAX_ROWS = 1_000_000
_SECRET = re.compile(r"passw|passwd|pwd|secret|token|credential", re.IGNORECASE)


@dataclass(frozen=True)
class QueryRelation:
    """One relation: the rows of a query. parameters: in the order of its placeholders."""

    rows: RowOptions
    query: str
    parameters: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Its name within the source."""
        return self.rows.name


@dataclass(frozen=True)
class QueryOptions:
    """A source. connect: what the module's `connect` is called with, by name.

    max_rows: of one relation.
    """

    module: str
    connect: Mapping[str, Any]
    relations: tuple[QueryRelation, ...]
    max_rows: int


def read_options(options: Mapping[str, Any]) -> QueryOptions:
    """Return the options of a source. SourceError source.bad_option, module.forbidden."""
    reader = OptionReader(options, "source", page=PAGE)
    module = reader.take("module", str)
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module):
        raise reader.refused("module", "is no name of a Python module", detail=module)
    connect = reader.take("connect", dict, {})
    for name, value in connect.items():
        if _SECRET.search(name) and not has_reference(str(value)):
            hint = 'write "${env:NAME}" or "${file:/path}"'
            raise reader.refused(f"connect.{name}", "must refer to a secret", hint=hint)
    check_module_login(reader, module, connect)
    shared = read_shared(reader)
    max_rows = read_number(reader, "max_rows", MAX_ROWS, 100_000_000)
    given = reader.take("relations", dict)
    reader.end()
    if not given:
        raise reader.refused("relations", "is empty", hint='give {"name": {"query": "SELECT ..."}}')
    relations = tuple(_relation(str(name), own, shared) for name, own in given.items())
    netguard.check_module(module)
    return QueryOptions(module, connect, relations, max_rows)


def _relation(name: str, supplied: Any, shared: SharedOptions) -> QueryRelation:
    reader = OptionReader(supplied, "source", f"relations.{name}", PAGE)
    query = reader.take("query", str)
    parameters = tuple(reader.take("parameters", list, []))
    rows = read_rows(reader, name, shared)
    reader.end()
    return QueryRelation(rows, query, parameters)
