"""Rows of JSON objects as columns, and what happens with those that do not fit.

Invariant: a row that does not fit is refused, counted or reported, as `on_error` says; never
changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from connectors.feed_source import REJECTED_KINDS, DeclaredRelation, rejected_row
from connectors.formats.declared import DeclaredColumn, declare_columns, resolved
from connectors.formats.discover import propose_columns
from connectors.formats.open_format import open_format
from connectors.formats.record_format import BadRecord, RecordFormat
from connectors.option_reader import OptionReader
from connectors.outside.texts import shown
from connectors.polled.contents import Fetched
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation

FAIL, SKIP, DEAD_LETTER = "fail", "skip", "dead_letter"
DAY_MS = 86_400_000
DEFAULT_INTERVAL_MS = 10_000
# Of which columns are proposed.
SAMPLES = 1000
# Records that are decoded at a time, and dead letters of one poll: beyond, the relation is wrong.
PART_ROWS, MAX_LETTERS = 50_000, 100_000


@dataclass(frozen=True)
class RowOptions:
    """What all polled relations declare. columns: () if they are still to be discovered.

    key: the columns by which rows are compared; () if rows are only added. on_error: FAIL, SKIP or
    DEAD_LETTER.
    """

    name: str
    columns: tuple[Mapping[str, Any], ...]
    key: tuple[str, ...]
    interval_s: float
    on_error: str


@dataclass(frozen=True)
class SharedOptions:
    """What relations have of their source if they do not say otherwise."""

    interval_ms: int
    on_error: str


def read_shared(reader: OptionReader) -> SharedOptions:
    """Read the options of a source that its relations may have too. SourceError
    source.bad_option."""
    interval_ms = read_number(reader, "poll_interval_ms", DEFAULT_INTERVAL_MS, DAY_MS)
    return SharedOptions(interval_ms, reader.choice("on_error", (FAIL, SKIP, DEAD_LETTER), FAIL))


def read_rows(
    reader: OptionReader, name: str, shared: SharedOptions, *, is_append: bool = False
) -> RowOptions:
    """Read the options of one relation. is_append: its rows are only added, so that it has no key.

    SourceError source.bad_option.
    """
    key = () if is_append else tuple(map(str, reader.take("key", list)))
    if not key and not is_append:
        raise reader.refused("key", "is empty", hint="rows are compared by key between polls")
    columns = tuple(reader.take("columns", list, []))
    if not all(isinstance(column, Mapping) for column in columns):
        raise reader.refused("columns", "must be objects")
    interval_ms = read_number(reader, "poll_interval_ms", shared.interval_ms, DAY_MS)
    on_error = reader.choice("on_error", (FAIL, SKIP, DEAD_LETTER), shared.on_error)
    return RowOptions(name, columns, key, interval_ms / 1000, on_error)


def read_number(
    reader: OptionReader, option: str, default: int, most: int, *, least: int = 1
) -> int:
    """Read a whole number within bounds. SourceError source.bad_option."""
    found = reader.optional(option, int)
    if found is None:
        return default
    if not least <= found <= most:
        raise reader.refused(option, f"must be between {least} and {most}")
    return found


def declared_relation(options: RowOptions) -> DeclaredRelation:
    """Return a relation as its options declare it. SourceError source.bad_option, format.*."""
    columns = [(c.field.name, c.field.type.name) for c in _content(options)]
    return DeclaredRelation(options.name, tuple(columns), options.key, is_append=not options.key)


def with_columns(
    options: Mapping[str, Any],
    declared: Sequence[RowOptions],
    sample: Callable[[str], Sequence[bytes]],
) -> Mapping[str, Any]:
    """Return a source's options with columns proposed for each relation that has none.

    sample: returns some of a relation's rows as JSON. SourceError source.bad_sample.
    """
    given: Mapping[str, Any] = options["relations"]
    proposed = dict(given)
    for relation in declared:
        if relation.columns:
            continue
        records = sample(relation.name)[:SAMPLES]
        if not records:
            what = f'no columns can be proposed for relation "{relation.name}"'
            detail, hint = "it has no rows now", "declare the columns"
            raise SourceError("source.bad_sample", what, detail=detail, hint=hint)
        columns = propose_columns({"format": "json"}, records)
        proposed[relation.name] = {**given[relation.name], "columns": columns}
    return {**options, "relations": proposed}


def _content(options: RowOptions) -> tuple[DeclaredColumn, ...]:
    if not options.columns:
        option = f"relations.{options.name}.columns"
        what, hint = f'option "{option}" is missing', "declare them, or discover them"
        raise SourceError("source.bad_option", what, hint=hint, option=option)
    return declare_columns(options.columns)


class RowReader:
    """Turns JSON texts into rows of a relation whose types PostgreSQL has resolved."""

    def __init__(self, options: RowOptions, relation: Relation) -> None:
        self._options = options
        self._relation = relation
        self._format: RecordFormat = open_format(
            {"format": "json"}, resolved(_content(options), relation, options.key)
        )

    def read(self, records: Sequence[bytes], validators: Mapping[str, str]) -> Fetched:
        """Return the rows. SourceError source.bad_record with `on_error: fail`."""
        parts: list[Delta] = []
        letters: list[tuple[object, ...]] = []
        skipped = 0
        # In parts, so that a source of which no row fits does not fill the memory with reasons.
        for start in range(0, max(1, len(records)), PART_ROWS):
            part = records[start : start + PART_ROWS]
            decoded = self._format.decode(part)
            parts.append(Delta(decoded.columns, np.ones(len(decoded), np.int64)))
            if self._options.on_error == SKIP:
                skipped += len(decoded.bad)
                continue
            most = 0 if self._options.on_error == FAIL else MAX_LETTERS
            if len(letters) + len(decoded.bad) > most:
                raise self._refused(decoded.bad[0], part, start)
            letters += [self._letter(one, part) for one in decoded.bad]
        rows = parts[0] if len(parts) == 1 else Delta.concat(parts)
        if not letters:
            return Fetched(rows, skipped=skipped, validators=validators)
        return Fetched(rows, Delta.of(REJECTED_KINDS, letters), validators=validators)

    def _letter(self, bad: BadRecord, records: Sequence[bytes]) -> tuple[object, ...]:
        raw = records[bad.number]
        # Its place moves with the rows before it, so it is known by its content.
        position = hashlib.sha256(raw).hexdigest()[:16]
        name = self._relation.name
        return rejected_row(name, position, bad.code, bad.reason, key=None, value=raw)

    def _refused(self, bad: BadRecord, records: Sequence[bytes], start: int) -> SourceError:
        text = shown(records[bad.number], 80)
        return SourceError(
            "source.bad_record",
            f'row {start + bad.number + 1} of "{self._relation.name}" does not fit its columns',
            detail=f"{bad.code}: {bad.reason}: {text}",
            hint='change the columns, or set on_error to "skip" or "dead_letter"',
            relation=self._relation.name,
        )
