"""Images of rows in the log to columns of a relation, and to changes of it.

Images of many events with one shape are decoded at once, column by column. Invariant: a row with a
value that its declared type cannot hold is reported whole, and is no row of the relation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from tidemark_native import mysql

from connectors.feed_source import RelationAltered, rejected_row
from connectors.mysql.charsets import Charsets
from connectors.mysql.column_types import ALLOWED
from connectors.mysql.options import TableOptions
from connectors.mysql.shapes import Shape
from connectors.mysql.transactions import DELETE, INSERT, TRUNCATE, UPDATE, RowEvent, RowSet
from connectors.mysql.values import LogValues, Target, column_of_log
from dataflow.changes import Changes
from dataflow.delta import Column, equal_rows
from dataflow.errors import SourceError
from dataflow.schema import Relation

BAD_VALUE = "record.value"
# What an image is: a new row, a deleted one, and both sides of an update.
NEW, GONE, BEFORE, AFTER = 0, 1, 2, 3


@dataclass(frozen=True)
class BadRow:
    """A row that is none of the relation. image: its number."""

    image: int
    reason: str


@dataclass
class RowImages:
    """Decoded images, in the order of the log.

    columns: of the relation's fields. roles: uint8[n], see NEW. bad: uint8 mask of rows with a
    fault; reasons by image. bad_keys: those with a fault in the key.
    """

    relation: Relation
    columns: list[Column]
    roles: np.ndarray
    reasons: dict[int, str] = field(default_factory=dict)
    bad_keys: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.roles)

    def mask(self, images: Sequence[int] | set[int]) -> np.ndarray:
        """Return bool[n], True for these images."""
        found = np.zeros(len(self), np.bool_)
        found[list(images)] = True
        return found

    def reported(self) -> list[BadRow]:
        """Return the bad rows that exist from now on; what is gone was reported before."""
        is_new = ((self.roles == NEW) | (self.roles == AFTER)).tolist()
        return [BadRow(i, reason) for i, reason in sorted(self.reasons.items()) if is_new[i]]

    def all_bad(self) -> list[BadRow]:
        """Return all bad rows."""
        return [BadRow(i, reason) for i, reason in sorted(self.reasons.items())]

    def changes(self) -> Changes:
        """Return the images as changes: by key, or as whole rows where there is none."""
        if not self.relation.key:
            kinds = np.array([Changes.INSERT, Changes.DELETE, Changes.OLD, Changes.NEW], np.uint8)
            return Changes(self.relation, kinds[self.roles], tuple(self.columns))
        bad, bad_keys = self.mask(set(self.reasons)), self.mask(self.bad_keys)
        keep = np.where((self.roles == NEW) | (self.roles == AFTER), ~bad, ~bad_keys)
        before = np.flatnonzero(self.roles == BEFORE)
        if len(before):
            # An update with the same key needs no removal, unless its new row is left out.
            key = [self.columns[c] for c in self.relation.key]
            keep[before] &= ~equal_rows(key, before, key, before + 1) | bad[before + 1]
        rows = np.flatnonzero(keep)
        is_gone = np.isin(self.roles[rows], (GONE, BEFORE))
        kinds = np.where(is_gone, Changes.REMOVE, Changes.UPSERT).astype(np.uint8)
        columns = [
            column.take(rows) if c in self.relation.key else _nulled(column, rows, is_gone)
            for c, column in enumerate(self.columns)
        ]
        return Changes(self.relation, kinds, tuple(columns))


class ImageReader:
    """Decodes images of one relation; used by one thread at a time."""

    def __init__(self, relation: Relation, options: TableOptions) -> None:
        self.relation = relation
        self.options = options
        self._targets = [
            Target(f.type, options.zero_dates, i in relation.key)
            for i, f in enumerate(relation.fields)
        ]

    def check(self, shape: Shape) -> None:
        """Refuse a shape that lacks a declared column, or has one of another type.

        RelationAltered source.column_dropped, source.column_changed.
        """
        for declared in self.relation.fields:
            position = shape.position(declared.name)
            name = self.relation.name
            if position < 0:
                raise RelationAltered(
                    "source.column_dropped",
                    f'table "{name}" no longer has column "{declared.name}"',
                    detail=f'in the log, "{shape.schema}.{shape.table}" has the columns '
                    + ", ".join(column.name for column in shape.columns),
                    hint="declare the source with the table's columns, then rebuild the views",
                    relation=name,
                )
            family = shape.columns[position].family
            if declared.type.kind not in ALLOWED.get(family, ()):
                raise RelationAltered(
                    "source.column_changed",
                    f'table "{name}" has changed column "{declared.name}"',
                    detail=f"it is declared as {declared.type.name}; the log has "
                    + (family or "a type that is not supported"),
                    hint="declare the source with the table's columns, then rebuild the views",
                    relation=name,
                )

    def read(self, events: Sequence[RowEvent], charsets: Charsets) -> RowImages:
        """Decode the images of events that share shape and bitmaps; none is a TRUNCATE."""
        rows = events[0].rows
        assert rows is not None
        data, starts, lengths = self._walked(rows, events)
        found = RowImages(self.relation, [], _roles(events))
        for i, (declared, target) in enumerate(
            zip(self.relation.fields, self._targets, strict=True)
        ):
            column = rows.shape.columns[rows.shape.position(declared.name)]
            values = LogValues(data, *map(np.ascontiguousarray, (starts[:, i], lengths[:, i])))
            decoded, faults = column_of_log(target, column, values, charsets)
            if not declared.is_nullable:
                mask = decoded.mask()
                nulls = np.flatnonzero(~mask).tolist() if not mask.all() else []
                faults |= {row: "NULL in a column of the key" for row in nulls if row not in faults}
            found.columns.append(decoded)
            for image, reason in faults.items():
                found.reasons.setdefault(image, f'column "{declared.name}": {reason}')
            if i in self.relation.key:
                found.bad_keys.update(faults)
        return found

    def rejected(self, images: RowImages, bad: Sequence[BadRow], place: str) -> list[Any]:
        """Return bad rows as rows of REJECTED_KINDS; their key is what finds them again."""
        names = [self.relation.fields[c].name for c in self.relation.key]
        found = []
        for row in bad:
            position = np.array([row.image])
            key = [images.columns[c].take(position).to_list()[0] for c in self.relation.key]
            whole = {
                f.name: shown(c.take(position).to_list()[0])
                for f, c in zip(self.relation.fields, images.columns, strict=True)
            }
            key_text = json.dumps(dict(zip(names, map(shown, key), strict=True)))
            found.append(
                rejected_row(
                    self.relation.name,
                    f"{place}:{row.image}",
                    BAD_VALUE,
                    row.reason,
                    key=key_text.encode(),
                    value=json.dumps(whole).encode(),
                )
            )
        return found

    def refusal(self, bad: BadRow, place: str) -> SourceError:
        """Return the error for a bad row that stops the source."""
        return bad_record(self.relation, self.options, bad.reason, place)

    def _walked(
        self, rows: RowSet, events: Sequence[RowEvent]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (bytes, starts, lengths), the last two int64[images, fields]."""
        slots = np.full(len(rows.shape.columns), -1, np.int64)
        for i, declared in enumerate(self.relation.fields):
            slots[rows.shape.position(declared.name)] = i
        whole = b"".join(event.images for event in events)
        # Values of one width are gathered before it is known that there are any.
        data = np.frombuffer(whole + bytes(16), np.uint8)
        count = sum(event.count for event in events)
        starts = np.zeros((count, len(self.relation.fields)), np.int64)
        lengths = np.zeros_like(starts)
        masks, at, image = rows.masks, 0, 0
        for event in events:
            end = at + len(event.images)
            image = mysql.walk(
                data, at, end, rows.shape.widths, masks, slots, starts, lengths, image
            )
            at = end
        return data, starts, lengths


def alike(events: Sequence[RowEvent]) -> list[list[RowEvent]]:
    """Return the events of one relation in runs that can be decoded at once."""

    def share(event: RowEvent) -> tuple[object, ...]:
        rows = event.rows
        return () if rows is None else (event.kind == TRUNCATE, id(rows.shape), rows.present)

    return [list(run) for _, run in groupby(events, share)]


def truncation(relation: Relation) -> Changes:
    """Return the change that removes every row."""
    nulls = tuple(Column.nulls(f.type.physical, 1) for f in relation.fields)
    return Changes(relation, np.array([Changes.TRUNCATE], np.uint8), nulls)


def bad_record(relation: Relation, options: TableOptions, reason: str, place: str) -> SourceError:
    """Return the error for a row that stops the source."""
    return SourceError(
        "source.bad_record",
        f'table "{options.title}" has a row that is none of "{relation.name}"',
        detail=f"at {place}: {reason} [{BAD_VALUE}]",
        hint='correct the declared type, set zero_dates to "null", or set on_error to skip or '
        "dead_letter",
        relation=relation.name,
    )


def _roles(events: Sequence[RowEvent]) -> np.ndarray:
    of_kind = {INSERT: [NEW], DELETE: [GONE], UPDATE: [BEFORE, AFTER]}
    return np.concatenate([np.resize(np.array(of_kind[e.kind], np.uint8), e.count) for e in events])


def _nulled(column: Column, rows: np.ndarray, where: np.ndarray) -> Column:
    """Return these rows of a column, NULL where `where` is True."""
    if not where.any():
        return column.take(rows)
    index = np.where(where, len(column), rows)
    return Column.concat([column, Column.nulls(column.kind, 1)]).take(index)


def shown(value: Any) -> Any:
    """Return a physical value as JSON has it."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
