"""Stub relations: empty temporary tables for relations that this database lacks.

Queries name topics, folders and the maintained views of another database like tables. Each relation
that a query names gets a temporary table of its own name. If two relations share that name, the
second table uses the qualified name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dataflow.lexer import Token, tokens
from dataflow.schema import Relation
from dataflow.types import SqlType

SCHEMA = "pg_temp"


class StubRelations:
    """The stubs of one transaction; `forget` them at its end. relations: all that may be named."""

    def __init__(self, relations: Iterable[Relation]) -> None:
        by_name = {(r.name.schema, r.name.name): r for r in relations}
        self._relations = dict(sorted(by_name.items(), key=lambda r: r[0][0] != "public"))
        self._made: dict[str, Relation] = {}

    def __bool__(self) -> bool:
        return bool(self._made)

    def find(self, schema: str, table: str) -> Relation | None:
        """Return the relation that a name of the canonical text stands for."""
        is_ours = not schema or schema.startswith(SCHEMA)
        return self._made.get(table) if is_ours else None

    def forget(self) -> None:
        """Forget the temporary tables after their transaction ended."""
        self._made = {}

    def make(self, query: str, create: Callable[[Relation, str], None]) -> None:
        """Create a table for each relation that the query may mean. create: runs the statement."""
        words = {name_of(t) for t in tokens(query)} if self._relations else set()
        for (schema, name), relation in self._relations.items():
            if name not in words or relation in self._made.values():
                continue
            table = name
            if name in self._made:
                if schema not in words:
                    continue
                table = f"{schema}.{name}"
            columns = ", ".join(f"{quoted(f.name)} {column_type(f.type)}" for f in relation.fields)
            create(relation, f"CREATE TEMP TABLE {quoted(table)} ({columns})")
            self._made[table] = relation

    def rename(
        self, query: str, is_there: Callable[[Relation], bool]
    ) -> tuple[str, list[tuple[int, int]]]:
        """Replace schema.name by the temporary table where the database lacks that relation.

        Also return (offset in the new text, its shift from the old text) for error positions.
        """
        tables = {(r.name.schema, r.name.name): table for table, r in self._made.items()}
        found = tokens(query) if tables else ()
        parts, at, moved, shift = [], 0, [], 0
        for first, dot, second in zip(found, found[1:], found[2:], strict=False):
            table = tables.get((name_of(first), name_of(second)))
            if dot.text != "." or table is None or is_there(self._made[table]):
                continue
            text = SCHEMA if table == name_of(second) else f"{SCHEMA}.{quoted(table)}"
            end = first if text == SCHEMA else second
            parts += [query[at : first.offset], text]
            at = end.offset + len(end.text)
            shift += len(text) - (at - first.offset)
            moved.append((at + shift, shift))
        return "".join(parts) + query[at:], moved


def name_of(token: Token) -> str:
    """Return the name that a word of the query stands for."""
    if token.kind == "quoted":
        return token.text[1:-1].replace('""', '"')
    return token.text


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def column_type(type: SqlType) -> str:
    """Return a type as written in a column definition."""
    return f"{type.name} COLLATE {type.collation}" if type.collation else type.name
