"""Declared sources: what the catalog stores, and the connector that implements it.

A connector is imported when a source of its type is first used, so unused ones cost nothing.
Invariant: a relation keeps its identity (oid) as long as its declaration is the same.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, get_args

from connectors.extras import extra_required
from connectors.feed_source import (
    Connector,
    DeclaredRelation,
    FeedSource,
    Reader,
    SelectiveConnector,
    retaining,
)
from connectors.outside.guarded import guarded
from connectors.postgres.catalog.catalog import SourceRow
from connectors.pushdown import Pushdown
from dataflow.errors import SourceError
from dataflow.schema import Field, Relation, RelationName
from service.engine import output_fields

# Of a relation's facts: what its source makes of requirements.
_KEY = "pushdown"
_NO_IDENTITY = {"oid": 0, _KEY: None}
# Types that nothing from outside enters by.
_OURS = frozenset({"clock"})
# Types whose connector is not in a folder of their own name.
_MODULES = {"postgres": "connectors.postgres.remote.source"}
SourceType = Literal[
    "kafka",
    "files",
    "http",
    "stream",
    "dbapi",
    "python",
    "mongodb",
    "mysql",
    "postgres",
    "clickhouse",
    "clock",
]
TYPES: tuple[str, ...] = get_args(SourceType)


def connector(type_name: str) -> Connector:
    """Return the connector of a type. SourceError source.bad_type; TidemarkError
    package.missing."""
    if type_name not in TYPES:
        raise SourceError(
            "source.bad_type",
            f'source type "{type_name}" does not exist',
            hint=f"use one of: {', '.join(TYPES)}",
        )
    with extra_required(f'source type "{type_name}"'):
        module = cast(Connector, importlib.import_module(module_of(type_name)))
    return module if type_name in _OURS else guarded("source", type_name, module)


def module_of(type_name: str) -> str:
    """Return the name of the module that implements a type of TYPES."""
    return _MODULES.get(type_name, f"connectors.{type_name}.source")


def retains_changes(type_name: str) -> bool:
    """Return True if sources of a type are RetainingSources."""
    return type_name == "postgres"


def feed_source(row: SourceRow, reader: Reader | None = None) -> FeedSource:
    """Return the source that a row of the catalog declares. reader: for whom it retains changes."""
    source = connector(row.type).make(row.name, row.options, relations_of(row))
    own = retaining(source)
    if own is not None and reader is not None:
        own.read_as(reader)
    return source


_WHOLE_ROWS = "its rows are stored whole: changes are found by key, and later views read them"
_UNKNOWN = "not known: the source was declared by an earlier version; declare its options again"
# What each type makes of requirements, unless its connector says so of each relation.
_PUSHDOWN = {
    "postgres": Pushdown("", _WHOLE_ROWS),
    "mysql": Pushdown("all declared columns are read, as its binary log has them", _WHOLE_ROWS),
    "kafka": Pushdown("records are decoded whole", "a topic is read whole"),
    "files": Pushdown("files are decoded whole", "files are read whole"),
    "http": Pushdown("responses are read whole", "responses are read whole"),
    "stream": Pushdown("messages are decoded whole", "messages are read whole"),
    "dbapi": Pushdown("its query is sent as it is declared", "its query is sent as it is declared"),
    "mongodb": Pushdown(
        "all declared fields are read", "the declared filter is sent as it is declared"
    ),
    "clickhouse": Pushdown(
        "all declared columns are read", "all rows of the table or query are read"
    ),
    "clock": Pushdown("it is one row", "it is one row"),
    "python": Pushdown(_UNKNOWN, _UNKNOWN),
}


def with_pushdown(
    type_name: str, options: Mapping[str, Any], relations: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return relations with what the source makes of requirements. SourceError, TemporaryError."""
    own = connector(type_name)
    if not hasattr(own, "pushdown"):
        return [dict(relation) for relation in relations]
    found = cast(SelectiveConnector, own).pushdown(options)
    return [{**relation, _KEY: found[relation["name"]].facts()} for relation in relations]


def pushdown_of(source: SourceRow | None, relation: str) -> Pushdown:
    """Return what a source makes of requirements on a relation. source: None of the database."""
    if source is None:
        return _PUSHDOWN["postgres"]
    facts = next((r for r in source.relations if r["name"] == relation), {})
    return Pushdown.of(facts[_KEY]) if _KEY in facts else _PUSHDOWN[source.type]


# Types of sources whose relations always have exactly one row.
_OF_ONE_ROW = frozenset({"clock"})


def relations_of(row: SourceRow) -> list[Relation]:
    """Return the relations of a declared source; none for the database, which lists its own."""
    found = []
    for facts in row.relations:
        columns = output_fields.from_json(facts["fields"])
        names = [f.name for f in columns]
        found.append(
            Relation(
                RelationName(row.name, row.name, facts["name"]),
                facts["oid"],
                columns,
                tuple(names.index(k) for k in facts["key"]),
                is_full=facts.get("is_full", False),
                is_append=facts["is_append"],
                is_single=row.type in _OF_ONE_ROW,
            )
        )
    return found


def relation_facts(declared: DeclaredRelation, columns: Sequence[Field]) -> dict[str, Any]:
    """Return a relation in the form that the catalog stores. SourceError source.bad_option."""
    names = [name for name, _ in declared.columns]
    for name in declared.key:
        if name not in names:
            raise SourceError(
                "source.bad_option",
                f'key column "{name}" of relation "{declared.name}" is not declared',
                hint=f"its columns are: {', '.join(names)}",
                option="key",
            )
    # A record without a complete key is malformed, so views on this relation can have a primary
    # key.
    columns = [
        replace(f, is_nullable=f.is_nullable and f.name not in declared.key) for f in columns
    ]
    facts = {
        "name": declared.name,
        # Distinguishes the relation from an earlier one with its name.
        "oid": secrets.randbelow(2**31 - 2) + 1,
        "fields": output_fields.to_json(columns),
        "key": list(declared.key),
        "is_append": declared.is_append,
    }
    # Rows of the catalog from before there were such relations lack it.
    return {**facts, "is_full": True} if declared.is_full else facts


def keep_oids(facts: Iterable[dict[str, Any]], before: Iterable[Mapping[str, Any]]) -> set[str]:
    """Give unchanged relations their old oid again; return the names of changed or removed ones."""
    previous = {f["name"]: f for f in before}
    for relation in facts:
        old = previous.get(relation["name"])
        if old is not None and {**old, **_NO_IDENTITY} == {**relation, **_NO_IDENTITY}:
            relation["oid"] = old["oid"]
            del previous[relation["name"]]
    return set(previous)
