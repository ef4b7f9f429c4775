"""Relations that a database does not have, shown to it as empty temporary tables.

Topics, folders, and the maintained views of another database are named in queries like tables.
Each that a query names gets a temporary table of its own name, or, where two of one name are
meant, of its whole name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dataflow.lexer import Token, tokens
from dataflow.schema import Relation
from dataflow.types import SqlType

SCHEMA = "pg_temp"


class StubRelations:
    """Of one transaction; `forget` when it is over. relations: all that may be named."""

    def __init__(self, relations: Iterable[Relation]) -> None:
        by_name = {(r.name.schema, r.name.name): r for r in relations}
        self._relations = dict(sorted(by_name.items(), key=lambda r: r[0][0] != "public"))
        self._made: dict[str, Relation] = {}

    def __bool__(self) -> bool:
        return bool(self._made)

    def find(self, schema: str, table: str) -> Relation | None:
        """What a name of the canonical text stands for."""
        is_ours = not schema or schema.startswith(SCHEMA)
        return self._made.get(table) if is_ours else None

    def forget(self) -> None:
        """The temporary tables are gone."""
        self._made = {}

    def make(self, query: str, create: Callable[[Relation, str], None]) -> None:
        """Let there be a table for each relation that the query may mean. create: runs the
        statement that makes it."""
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
        """The query with schema.name as the temporary table where the database lacks it.

        Also (offset in the new text, how far it stands from the old text) for positions.
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
    """What a word of the query names."""
    if token.kind == "quoted":
        return token.text[1:-1].replace('""', '"')
    return token.text


def quoted(name: str) -> str:
    """A name as an identifier."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def column_type(type: SqlType) -> str:
    """A type as a column's definition has it."""
    return f"{type.name} COLLATE {type.collation}" if type.collation else type.name
