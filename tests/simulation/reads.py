"""What the text of a simulated query names: tables, their aliases, and those of their columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation import topics, zones

SCHEMA = "public"
# Of any table, as a pattern.
SCHEMAS = f"({'|'.join((SCHEMA, *topics.SOURCES, 'clock', zones.ZONED))})"
_READ = re.compile(rf"\b{SCHEMAS}\.(\w+)(?: ([a-z]\w*))?(?:\(([^)]*)\))?")


@dataclass(frozen=True)
class Read:
    """A relation in a query. text: as it stands there; alias: "" for none; columns: the first
    columns as the query calls them, where it gives them names."""

    schema: str
    name: str
    alias: str = ""
    columns: tuple[str, ...] = ()
    text: str = ""

    def called(self, names: Sequence[str]) -> tuple[str, ...]:
        """What the query calls columns that have these names."""
        return (*self.columns[: len(names)], *names[len(self.columns) :])


def canonical(query: str) -> str:
    """Without quotes, and without AS before the names of relations."""
    return re.sub(rf"({SCHEMAS}\.\w+) AS (\w+)", r"\1 \3", query.replace('"', ""))


def reads(query: str) -> list[Read]:
    """The relations that a query names, in its order."""
    return [_read(found) for found in _READ.finditer(canonical(query))]


def with_reads(query: str, written: Callable[[Read], str]) -> str:
    """The query with something else where it names relations."""
    return _READ.sub(lambda found: written(_read(found)), canonical(query))


def is_alike(query: str, other: str) -> bool:
    """Return whether two queries ask the same, whatever their tables and columns are called
    there."""
    return len({with_reads(text, lambda _: "?") for text in (query, other)}) == 1


def _read(found: re.Match[str]) -> Read:
    schema, name, alias, columns = found.groups()
    listed = tuple(columns.split(", ")) if columns else ()
    return Read(schema, name, alias or "", listed, found[0])
