"""The tables of a source as they were when views were built on them, compared with their form now.

PostgreSQL sends rows, not DDL: the catalog is read before any row that has arrived is decoded, and
once a second. Invariants: no row is decoded before the catalog was checked after its arrival; what
was found is stored with the state, so that no change made while the service was down is missed.
`check` may run in another thread than the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from connectors.postgres.remote.columns import wire_relation
from connectors.postgres.remote.options import RemoteOptions
from connectors.postgres.replication.table_changes import why_lost
from connectors.postgres.replication.table_facts import (
    ColumnFacts,
    PartFacts,
    TableCatalog,
    TableFacts,
)
from connectors.postgres.replication.wire_shapes import KnownTable, Shape, ShapeColumn, shape_of
from dataflow.errors import SourceError
from dataflow.schema import Field, Relation
from dataflow.types import sql_type

NOTE = "table/"
_MAX_SHAPES = 8

# (transaction, table, position) -> whether the stream reports that it truncated the table.
Reports = Callable[[int, int, int], bool]


@dataclass(frozen=True)
class Found:
    """What a check has found. tables: those that changed, by relation."""

    digest: int
    tables: Mapping[str, KnownTable]


class RemoteTables:
    """The tables of some relations. known: by relation; from the notes, or from `first_seen`."""

    def __init__(
        self,
        options: RemoteOptions,
        relations: Sequence[Relation],
        known: Mapping[str, KnownTable],
        catalog: TableCatalog,
    ) -> None:
        self.known = dict(known)
        self._catalog = catalog
        self._digest: int | None = None
        oids = [table.facts.oid for table in self.known.values()]
        now = catalog.read(oids, {t.facts.oid: t.facts for t in self.known.values()}).tables
        self.declared: dict[int, Relation] = {}
        self.wires: list[Relation] = []
        for relation in relations:
            before = self.known[relation.name.name].facts
            facts = now.get(before.oid)
            table = options.table_of(relation.name.name)
            if facts is None:
                raise _missing(relation, table.title)
            numbers = {c.field.name: number for number, c in before.columns.items()}
            self.wires.append(wire_relation(relation, table, facts, numbers))
            self.declared[before.oid] = relation
        # In place: the decoder reads it.
        self.shapes: dict[int, tuple[Shape, ...]] = {}
        self._list_shapes()

    def check(self, reports: Reports) -> Found | None:
        """Check the catalog; None if nothing has changed.

        A SourceError names the relation that cannot continue: source.table_missing and others of
        `why_lost`. TemporaryError.
        """
        before = {table.facts.oid: table.facts for table in self.known.values()}
        digest = self._catalog.digest(before)
        if digest == self._digest:
            return None
        read = self._catalog.read(list(before), before)
        now = read.tables

        def is_reported(xid: int, oid: int) -> bool:
            return reports(xid, oid, self._catalog.write_marker())

        for wire in self.wires:
            columns = range(len(wire.fields))
            facts = now.get(wire.oid)
            error = why_lost(wire, columns, before[wire.oid], facts, is_reported)
            error = error or _renamed(wire, facts)
            if error is not None:
                raise error
        changed = {
            name: now[table.facts.oid]
            for name, table in self.known.items()
            if _facts_json(now[table.facts.oid]) != _facts_json(table.facts)
        }
        marker = self._catalog.write_marker() if changed else 0
        tables = {
            name: KnownTable(facts, _shapes(facts, self.known[name].shapes), marker)
            for name, facts in changed.items()
        }
        return Found(read.digest, tables)

    def accept(self, found: Found) -> dict[str, bytes]:
        """Decode by what was found; return the notes to store with the next batch."""
        self._digest = found.digest
        self.known.update(found.tables)
        self._list_shapes()
        return notes_of(found.tables)

    def passed(self, position: int) -> dict[str, bytes]:
        """Forget former shapes of tables that can no longer arrive; return the notes to store."""
        over = {
            name: KnownTable(table.facts, table.shapes[:1])
            for name, table in self.known.items()
            if table.until and table.until <= position
        }
        self.known.update(over)
        if over:
            self._list_shapes()
        return notes_of(over)

    def close(self) -> None:
        """End the session."""
        self._catalog.close()

    def _list_shapes(self) -> None:
        self.shapes.update({table.facts.oid: table.shapes for table in self.known.values()})


def first_seen(facts: TableFacts) -> KnownTable:
    """Return what is known of a table that was never read before."""
    return KnownTable(facts, (shape_of(facts),))


def notes_of(tables: Mapping[str, KnownTable]) -> dict[str, bytes]:
    """Return what is known of tables, by relation, as notes of the state."""
    return {
        f"{NOTE}{name}": json.dumps(
            {
                "facts": _facts_json(table.facts),
                "seen": table.facts.seen,
                "shapes": [[list(vars(c).values()) for c in shape] for shape in table.shapes],
                "until": table.until,
            }
        ).encode()
        for name, table in tables.items()
    }


def known_of(notes: Mapping[str, bytes], relation: str) -> KnownTable | None:
    """Return what the state knows of a relation's table; None if nothing."""
    stored = notes.get(f"{NOTE}{relation}")
    if stored is None:
        return None
    found = json.loads(stored)
    shapes = tuple(tuple(ShapeColumn(*c) for c in shape) for shape in found["shapes"])
    return KnownTable(_facts_of(found["facts"], found["seen"]), shapes, found["until"])


def _shapes(facts: TableFacts, before: Sequence[Shape]) -> tuple[Shape, ...]:
    shapes = tuple(dict.fromkeys((shape_of(facts), *before)))
    # No row is older than the oldest shape, which can also read those in between.
    return shapes if len(shapes) <= _MAX_SHAPES else (*shapes[: _MAX_SHAPES - 1], shapes[-1])


def _facts_json(facts: TableFacts) -> dict[str, Any]:
    """Return facts without `seen`, which always moves; a column's type as (name, oid, typmod)."""
    plain = {f.name: getattr(facts, f.name) for f in fields(facts)}
    del plain["seen"]
    plain["columns"] = [
        [
            *(number, c.field.name, c.field.type.name, c.field.type.oid, c.field.type.typmod),
            *(c.field.is_nullable, c.version, c.is_sent, list(c.labels)),
        ]
        for number, c in sorted(facts.columns.items())
    ]
    plain["parts"] = [[oid, *vars(part).values()] for oid, part in sorted(facts.parts.items())]
    return {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}


def _facts_of(plain: dict[str, Any], seen: int) -> TableFacts:
    columns = {
        number: ColumnFacts(
            Field(name, sql_type(type_name, oid, typmod), nullable), version, is_sent, tuple(labels)
        )
        for number, name, type_name, oid, typmod, nullable, version, is_sent, labels in plain[
            "columns"
        ]
    }
    parts = {oid: PartFacts(*rest) for oid, *rest in plain["parts"]}
    tuples = {name: tuple(plain[name]) for name in ("key", "identity_key", "publication")}
    return TableFacts(**{**plain, **tuples, "columns": columns, "parts": parts, "seen": seen})


def _renamed(wire: Relation, facts: TableFacts | None) -> SourceError | None:
    """Return an error if a declared column has another name now: it is declared by its name."""
    assert facts is not None
    for field, number in zip(wire.fields, wire.numbers, strict=True):
        name = facts.columns[number].field.name
        if name != field.name:
            return SourceError(
                "source.column_dropped",
                f'column "{field.name}" of table "{facts.title}" is now called "{name}"',
                hint="declare it by its new name, or name it as before, and rebuild the views",
                relation=wire.name,
            )
    return None


def _missing(relation: Relation, title: str) -> SourceError:
    return SourceError(
        "source.table_missing",
        f'table "{title}" was dropped',
        hint="create it again and rebuild the views that read it, or drop them",
        relation=relation.name,
    )
