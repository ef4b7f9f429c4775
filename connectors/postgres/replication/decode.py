"""Decode pgoutput payloads of whole transactions into columns of changes.

Payloads (text format) are joined, walked once per relation to per-column offsets, and parsed column
by column with `dataflow.values`. PostgreSQL sends a relation message before the first row and after
every change of the table. It locates the columns: by number where the table's shapes are known
(`wire_shapes`), else by name. Invariant: a column in use that is missing, or has another type than
the views expect, stops the stream with an error naming it. Nothing is decoded under a guess. One
thread.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from tidemark_native import replication

from connectors.postgres.replication.wire_shapes import Shape, WireColumn, positions_of
from dataflow.changes import Changes
from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import InvariantError, SourceError
from dataflow.schema import Relation, RelationName
from dataflow.values import from_text

RELATION, TRUNCATE = ord("R"), ord("T")
_KEY_FLAG = 1
_GONE = "it was dropped or renamed, or is generated (generated columns are not sent)"
_REBUILD_HINT = "rebuild the views that read the table"


@dataclass(frozen=True)
class WireRelation:
    """A relation message. identity: the letter of pg_class.relreplident."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[WireColumn, ...]


@dataclass(frozen=True)
class _Layout:
    """slots: wire column -> number of a used column, or -1. used_columns: (field position,
    number)."""

    relation: Relation
    slots: np.ndarray
    used_columns: tuple[tuple[int, int], ...]


def parse_relation(payload: bytes) -> WireRelation:
    """Parse a relation message (tag R)."""
    (oid,) = struct.unpack_from(">I", payload, 1)
    schema, at = _string(payload, 5)
    name, at = _string(payload, at)
    identity = chr(payload[at])
    (count,) = struct.unpack_from(">H", payload, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = payload[at]
        column, at = _string(payload, at + 1)
        type_oid, typmod = struct.unpack_from(">Ii", payload, at)
        at += 8
        columns.append(WireColumn(column, type_oid, typmod, bool(flags & _KEY_FLAG)))
    return WireRelation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def truncated_oids(payload: bytes) -> tuple[int, ...]:
    """Return the relations of a truncate message (tag T)."""
    (count,) = struct.unpack_from(">I", payload, 1)
    return struct.unpack_from(f">{count}I", payload, 6)


class Decoder:
    """Decode the payloads of one replication session, in order.

    relations: one for each name under which readers know a table. columns: the field positions in
    use by relation name (all by default); others come as NULL columns. A key's columns are always
    decoded. shapes: by oid, the shapes that the catalog had; may change between calls.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        columns: Mapping[RelationName, Sequence[int]] | None = None,
        shapes: Mapping[int, Sequence[Shape]] | None = None,
    ) -> None:
        self._relations: dict[int, list[Relation]] = {}
        for relation in relations:
            self._relations.setdefault(relation.oid, []).append(relation)
        self._used = {
            r.name: sorted({*(columns or {}).get(r.name, range(len(r.fields))), *r.key})
            for r in relations
        }
        # An empty mapping may be filled later.
        self._shapes = {} if shapes is None else shapes
        self._layouts: dict[int, list[_Layout] | SourceError] = {}
        self._last_wire: dict[int, tuple[bytes, object]] = {}

    def copied(self) -> Decoder:
        """Return a decoder that has learned the same, and learns for itself from now on."""
        found = copy.copy(self)
        found._layouts, found._last_wire = dict(self._layouts), dict(self._last_wire)
        return found

    def decode(self, payloads: Sequence[bytes]) -> list[Changes]:
        """Return changes in order for each relation; skip payloads of other relations.

        SourceError `source.schema_changed` where a table no longer fits its views.
        """
        if not payloads:
            return []
        joined = np.frombuffer(b"".join(payloads), np.uint8)
        ends = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
        tags, oids = replication.heads(joined, ends)
        starts = np.empty_like(ends)
        starts[0], starts[1:] = 0, ends[:-1]
        out: list[Changes] = []
        first = 0
        for at in np.flatnonzero((tags == RELATION) | (tags == TRUNCATE)).tolist():
            payload = payloads[at]
            if tags[at] == RELATION and self._is_current(int(oids[at]), payload):
                continue
            self._decode_rows(joined, starts[first:at], oids[first:at], out)
            first = at + 1
            if tags[at] == RELATION:
                self._learn(payload)
            else:
                out.extend(self._truncate(payload))
        self._decode_rows(joined, starts[first:], oids[first:], out)
        return out

    def _decode_rows(
        self, joined: np.ndarray, starts: np.ndarray, oids: np.ndarray, out: list[Changes]
    ) -> None:
        """Decode rows between two schema changes, one Changes per relation."""
        if not len(starts):
            return
        tags = joined[starts]
        is_row = (tags == ord("I")) | (tags == ord("U")) | (tags == ord("D"))
        if not is_row.all():
            starts, oids = starts[is_row], oids[is_row]
            if not len(starts):
                return
        if (oids == oids[0]).all():
            self._decode_relation(int(oids[0]), joined, starts, out)
            return
        for oid in np.unique(oids).tolist():
            self._decode_relation(oid, joined, starts[oids == oid], out)

    def _decode_relation(
        self, oid: int, joined: np.ndarray, starts: np.ndarray, out: list[Changes]
    ) -> None:
        if oid not in self._relations:
            return
        layouts = self._layouts.get(oid)
        if layouts is None:
            name = self._relations[oid][0].name
            what = f'rows of table "{name}" arrived without a relation message'
            raise InvariantError("source.protocol", what)
        if isinstance(layouts, SourceError):
            raise layouts
        out.extend(_decode_tuples(layout, joined, starts) for layout in layouts)

    def _truncate(self, payload: bytes) -> list[Changes]:
        kind = np.array([Changes.TRUNCATE], np.uint8)
        found = [r for oid in truncated_oids(payload) for r in self._relations.get(oid, ())]
        return [
            Changes(r, kind.copy(), tuple(Column.nulls(f.type.physical, 1) for f in r.fields))
            for r in found
        ]

    def check(self, payload: bytes) -> None:
        """Refuse a relation message whose rows `decode` would refuse, before any row is decoded."""
        self._layouts_of(parse_relation(payload))

    def _learn(self, payload: bytes) -> None:
        """Take a relation message: it describes the rows that follow.

        An unusable one is refused with its first row, since transactions that were skipped long ago
        send theirs too.
        """
        wire = parse_relation(payload)
        self._last_wire[wire.oid] = (payload, self._shapes.get(wire.oid))
        try:
            self._layouts[wire.oid] = self._layouts_of(wire)
        except SourceError as error:
            self._layouts[wire.oid] = error

    def _is_current(self, oid: int, payload: bytes) -> bool:
        """Return whether the same was last received, under the same shapes."""
        return self._last_wire.get(oid) == (payload, self._shapes.get(oid))

    def _layouts_of(self, wire: WireRelation) -> list[_Layout]:
        return [self._layout_of(relation, wire) for relation in self._relations.get(wire.oid, ())]

    def _layout_of(self, relation: Relation, wire: WireRelation) -> _Layout:
        """Find the used columns and check their types."""
        positions = self._positions_of(relation, wire)
        numbers = {at: number for number, at in enumerate(sorted(set(positions.values())))}
        slots = np.full(len(wire.columns), -1, np.int64)
        for at, number in numbers.items():
            slots[at] = number
        for position, at in positions.items():
            field, column = relation.fields[position], wire.columns[at]
            if (column.oid, column.typmod) != (field.type.oid, field.type.typmod):
                what = f'changed the type of column "{field.name}" from {field.type.name}'
                _refuse(relation.name, what)
        if relation.is_full and wire.identity != "f":
            _refuse(relation.name, "no longer has REPLICA IDENTITY FULL")
        if wire.identity in "di":
            for position in relation.key:
                if not wire.columns[positions[position]].is_key:
                    name = relation.fields[position].name
                    _refuse(relation.name, f'no longer has column "{name}" in its replica identity')
        used_columns = tuple((position, numbers[at]) for position, at in positions.items())
        return _Layout(relation, slots, used_columns)

    def _positions_of(self, relation: Relation, wire: WireRelation) -> dict[int, int]:
        """Return where the fields in use are: field position -> wire column."""
        used = self._used[relation.name]
        shapes = self._shapes.get(relation.oid)
        if shapes and relation.numbers:
            numbers = [relation.numbers[position] for position in used]
            found = positions_of(numbers, wire.columns, shapes)
            if found is None:
                _refuse(relation.name, "sends rows with columns in an unknown order")
            return dict(zip(used, found, strict=True))
        by_name = {column.name: i for i, column in enumerate(wire.columns)}
        for position in used:
            if relation.fields[position].name not in by_name:
                name = relation.fields[position].name
                _refuse(relation.name, f'no longer sends column "{name}"', _GONE)
        return {position: by_name[relation.fields[position].name] for position in used}


def _decode_tuples(layout: _Layout, joined: np.ndarray, starts: np.ndarray) -> Changes:
    """Decode rows of one table as one of its relations."""
    relation, width = layout.relation, int(layout.slots.max(initial=-1)) + 1
    try:
        found = replication.walk_tuples(joined, starts, layout.slots, width)
    except ValueError as error:
        what = f'rows of table "{relation.name}" cannot be read'
        raise InvariantError("source.protocol", what, detail=str(error)) from error
    at_value, lengths, kinds, unchanged = found
    columns: dict[int, Column] = {}
    missing: dict[int, np.ndarray] = {}
    for position, slot in layout.used_columns:
        offsets, values, valid, nulls = replication.gather_bytes(
            joined, at_value[slot], lengths[slot]
        )
        texts = Column(offsets, valid if nulls else None, values)
        columns[position] = parse_column(relation, position, texts)
        if unchanged[slot]:
            missing[position] = lengths[slot] == replication.UNCHANGED
    whole = tuple(
        columns.get(position) or Column.nulls(field.type.physical, len(kinds))
        for position, field in enumerate(relation.fields)
    )
    return Changes(relation, kinds, whole, missing)


def parse_column(relation: Relation, position: int, texts: Column) -> Column:
    """Parse one column from PostgreSQL's text; unreadable text breaks an invariant."""
    field = relation.fields[position]
    if field.type.physical == KIND_BYTES:
        return texts
    try:
        return from_text(field.type, texts)
    except ValueError as error:
        what = f'column "{field.name}" of table "{relation.name}" cannot be read'
        raise InvariantError("source.value", what, detail=str(error)) from error


def _refuse(name: RelationName, what: str, detail: str = "") -> NoReturn:
    raise SourceError(
        "source.schema_changed",
        f'table "{name}" {what}',
        detail=detail,
        hint=_REBUILD_HINT,
        relation=name,
    )


def _string(payload: bytes, at: int) -> tuple[str, int]:
    end = payload.index(b"\0", at)
    return payload[at:end].decode(), end + 1
