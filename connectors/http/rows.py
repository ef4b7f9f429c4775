"""Rows of answers as columns, and what happens with those that do not fit.

Invariant: a row that does not fit is refused, counted or reported, as `on_error` says; never
changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from connectors.feed_source import REJECTED_KINDS, DeclaredRelation, rejected_row
from connectors.formats.declared import DeclaredColumn
from connectors.formats.open_format import open_format
from connectors.formats.record_format import BadRecord, RecordFormat
from connectors.http.options import FAIL, SKIP, HttpRelation, content_columns
from connectors.polled.contents import Fetched
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation


def declared_relation(relation: HttpRelation) -> DeclaredRelation:
    """Return a relation as its options declare it."""
    columns = [(c.field.name, c.field.type.name) for c in content_columns(relation)]
    return DeclaredRelation(relation.name, tuple(columns), relation.key)


class RowReader:
    """Turns JSON texts into rows of a relation whose types PostgreSQL has resolved."""

    def __init__(self, options: HttpRelation, relation: Relation) -> None:
        self._options = options
        self._relation = relation
        self._format: RecordFormat = open_format({"format": "json"}, _resolved(options, relation))

    def read(self, records: Sequence[bytes], validators: Mapping[str, str]) -> Fetched:
        """Return the rows. SourceError source.bad_record with `on_error: fail`."""
        decoded = self._format.decode(records)
        rows = Delta(decoded.columns, np.ones(len(decoded), np.int64))
        bad = decoded.bad
        if bad and self._options.on_error == FAIL:
            raise self._refused(bad[0], records)
        if not bad or self._options.on_error == SKIP:
            return Fetched(rows, skipped=len(bad), validators=validators)
        letters = [self._letter(one, records) for one in bad]
        return Fetched(rows, Delta.of(REJECTED_KINDS, letters), validators=validators)

    def _letter(self, bad: BadRecord, records: Sequence[bytes]) -> tuple[object, ...]:
        raw = records[bad.number]
        # Its place moves with the rows before it, so it is known by its content.
        position = hashlib.sha256(raw).hexdigest()[:16]
        name = self._relation.name
        return rejected_row(name, position, bad.code, bad.reason, key=None, value=raw)

    def _refused(self, bad: BadRecord, records: Sequence[bytes]) -> SourceError:
        shown = records[bad.number][:80].decode(errors="replace")
        return SourceError(
            "source.bad_record",
            f'row {bad.number + 1} of "{self._relation.name}" does not fit its columns',
            detail=f"{bad.code}: {bad.reason}: {shown}",
            hint='change the columns, or set on_error to "skip" or "dead_letter"',
            relation=self._relation.name,
        )


def _resolved(options: HttpRelation, relation: Relation) -> list[DeclaredColumn]:
    fields = {f.name: f for f in relation.fields}
    found = []
    for column in content_columns(options):
        name = column.field.name
        if name not in fields:
            what = f'column "{name}" of relation "{relation.name}" is not in the catalog'
            hint = "drop the source and declare it again"
            raise SourceError("source.bad_option", what, hint=hint)
        is_nullable = column.field.is_nullable and name not in options.key
        found.append(replace(column, field=replace(fields[name], is_nullable=is_nullable)))
    return found
