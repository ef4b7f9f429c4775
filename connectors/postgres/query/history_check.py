"""Check the history of a view against the view's table, in one snapshot of the sink.

The rows of the history that are current must be those of the table, character for character; each
period must end after it begins, and the periods of one key must not overlap. Rows that ended before
the snapshot cannot be computed again, so only their periods are checked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from connectors.postgres.query.answer_comparison import Comparison, selected
from connectors.postgres.schema.history_target import OPEN_EPOCH, History
from connectors.postgres.session.quoting import quote_name
from connectors.sink import SinkTable
from dataflow.schema import Field
from dataflow.types import TEXT

_PERIOD = ("from_epoch", "to_epoch", "valid_from", "valid_to")


@dataclass
class HistoryFindings:
    """How a history differs from what it must be.

    rows: of the history, past ones too. missing, surplus, different: current rows, compared with
    the view's table. periods: rows that end before they begin, or whose epochs and clocks
    contradict each other. overlaps: rows that begin before another one of the same key has ended.
    examples: as of `Comparison`, with the kinds "period" and "overlap" besides.
    """

    rows: int = 0
    missing: int = 0
    surplus: int = 0
    different: int = 0
    periods: int = 0
    overlaps: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Return how many rows are wrong, by kind."""
        return {kind: getattr(self, kind) for kind in KINDS}

    @property
    def is_equal(self) -> bool:
        """Return whether nothing is wrong."""
        return not any(self.counts.values())


KINDS = ("missing", "surplus", "different", "periods", "overlaps")


def exact(fields: Sequence[Field]) -> list[Field]:
    """Return the fields as texts: then rows are equal only character for character."""
    return [replace(f, type=TEXT) for f in fields]


def current_rows(table: SinkTable, history: History) -> str:
    """Return a query of the current rows of a history, each as often as it occurs in the view."""
    target = replace(history.rows, schema="tidemark", name=history.name)
    return f"{selected(table, target)} WHERE t.{history.column(1)} = {OPEN_EPOCH}"


def counts_query(history: History) -> str:
    """Return a query of one row: all rows, those with a wrong period, and those that overlap."""
    marked, is_wrong, is_double = _marked(history)
    return (
        f"SELECT count(*), count(*) FILTER (WHERE m.{is_wrong}), "
        f"count(*) FILTER (WHERE m.{is_double}) FROM ({marked}) AS m"
    )


def examples_query(history: History, limit: int) -> str:
    """Return a query of rows that are counted: whether the period is wrong, then texts: of the key,
    the fields and the period.
    """
    marked, is_wrong, is_double = _marked(history)
    names = [*_key_names(history), *(f.name for f in history.rows.fields), *history.period[:4]]
    shown = ", ".join(
        f"CASE WHEN num_nulls(m.{n}) = 0 THEN format('%s', m.{n}) END"
        for n in map(quote_name, names)
    )
    return (
        f"SELECT m.{is_wrong}, {shown} FROM ({marked}) AS m "
        f"WHERE m.{is_wrong} OR m.{is_double} LIMIT {limit}"
    )


def _marked(history: History) -> tuple[str, str, str]:
    """Return a query of all rows with two more columns, and the names of these: whether the period
    is wrong, and whether an earlier row of the key has not ended.
    """
    taken = {*(c.name for c in history.rows.columns), *history.period}
    is_wrong, is_double = (_unused(name, taken) for name in ("is_wrong", "is_double"))
    begin, end, since, until = (f"h.{history.column(i)}" for i in range(4))
    query = (
        f"SELECT h.*, {begin} >= {end} OR {since} > {until} "
        f"OR ({end} = {OPEN_EPOCH}) <> ({until} = 'infinity') AS {is_wrong}, "
        f"coalesce(max({end}) OVER (PARTITION BY {', '.join(_key_values(history))} "
        f"ORDER BY {begin}, {end} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > {begin}, "
        f"false) AS {is_double} FROM ONLY {history.sql} AS h"
    )
    return query, is_wrong, is_double


def _unused(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return quote_name(name)


def _key_names(history: History) -> list[str]:
    """Return the names of the key's columns; a multiset has none that its readers know."""
    target = history.rows
    return [] if target.is_multiset else [c.name for c in target.key_columns]


def _key_values(history: History) -> list[str]:
    """Return expressions that tell keys apart. Not every type has an order, so texts stand for
    values; a row ends under the very key with which it began.
    """
    columns = [f"h.{quote_name(c.name)}" for c in history.rows.key_columns]
    if history.is_plain:
        return columns
    return [e for c in columns for e in (f"format('%s', {c}) COLLATE \"C\"", f"num_nulls({c})")]


def lost(compared: Comparison) -> HistoryFindings:
    """Return what is wrong with a history that is not there. compared: the view's table with no
    rows."""
    return HistoryFindings(missing=compared.missing, examples=list(compared.examples))


def findings(
    compared: Comparison,
    counts: Sequence[int],
    examples: Sequence[Sequence[Any]],
    history: History,
) -> HistoryFindings:
    """Return what was found. compared: the view's table with the history's current rows; counts
    and examples: the answers of the two queries."""
    keys, names = _key_names(history), [f.name for f in history.rows.fields]
    shown = list(compared.examples)
    for is_wrong, *texts in examples:
        key, rest = texts[: len(keys)], texts[len(keys) :]
        row = dict(zip([*names, *_PERIOD], rest, strict=True))
        kind = "period" if is_wrong else "overlap"
        under = dict(zip(keys, key, strict=True))
        shown.append({"kind": kind, "key": under, "expected": None, "found": row})
    rows, periods, overlaps = counts
    return HistoryFindings(
        rows=rows,
        missing=compared.missing,
        surplus=compared.surplus,
        different=compared.different,
        periods=periods,
        overlaps=overlaps,
        examples=shown,
    )
