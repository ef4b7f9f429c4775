"""Which column of a relation message is which column of the table, also after renames.

A relation message names columns but does not number them. It is compared whole with the shapes that
the catalog is known to have had; those that fit must agree. One from between two looks is found by
the order of the numbers, which every message keeps. Invariant: a column is never found by a name
that may have been another column's when the row was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from connectors.postgres.replication.table_facts import TableFacts


class WireColumn(NamedTuple):
    """A column as a relation message describes it."""

    name: str
    oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True)
class ShapeColumn:
    """A column that is sent. version: of its row in the catalog."""

    number: int
    name: str
    oid: int
    typmod: int
    version: int


Shape = tuple[ShapeColumn, ...]


@dataclass(frozen=True)
class KnownTable:
    """A table as it was last seen. shapes: those that rows may still come in, the newest first;
    until: where the stream has passed the newest change, which is 0 when it has."""

    facts: TableFacts
    shapes: tuple[Shape, ...]
    until: int = 0


# Columns dropped between two looks, each of which a message may still have or not.
_MOST_GONE = 6


def shape_of(facts: TableFacts) -> Shape:
    """The columns that rows are sent with."""
    return tuple(
        ShapeColumn(n, c.field.name, c.field.type.oid, c.field.type.typmod, c.version)
        for n, c in sorted(facts.columns.items())
        if c.is_sent
    )


def places_of(
    numbers: Sequence[int], wire: Sequence[WireColumn], shapes: Sequence[Shape]
) -> tuple[int, ...] | None:
    """Where the columns of these numbers stand in a relation message; None when it is not known.

    shapes: those that it is known to have had where the message comes from, the newest first. One
    that is not among them is read by names, if none of the columns has been touched between them,
    else by order, if there is but one way to.
    """
    sent = [(c.name, c.oid, c.typmod) for c in wire]
    answers = set()
    for shape in shapes:
        if sent == [(c.name, c.oid, c.typmod) for c in shape]:
            known = [c.number for c in shape]
            if not set(numbers) <= set(known):
                return None
            answers.add(tuple(known.index(n) for n in numbers))
    if answers:
        return answers.pop() if len(answers) == 1 else None
    by_name = _places_by_name(numbers, [c.name for c in wire], shapes)
    return by_name or _places_by_order(numbers, wire, shapes)


def _places_by_name(
    numbers: Sequence[int], sent: Sequence[str], shapes: Sequence[Shape]
) -> tuple[int, ...] | None:
    """The columns stand in the order of their numbers, whatever was added and dropped between."""
    known: Mapping[int, set[tuple[str, int]]] = {n: set() for n in numbers}
    for shape in shapes:
        for column in shape:
            if column.number in known:
                known[column.number].add((column.name, column.version))
    if any(len(found) != 1 for found in known.values()):
        return None
    names = {number: next(iter(found))[0] for number, found in known.items()}
    if not set(names.values()) <= set(sent):
        return None
    places = {number: sent.index(name) for number, name in names.items()}
    ordered = [places[number] for number in sorted(places)]
    if ordered != sorted(ordered):
        return None
    return tuple(places[number] for number in numbers)


def _places_by_order(
    numbers: Sequence[int], wire: Sequence[WireColumn], shapes: Sequence[Shape]
) -> tuple[int, ...] | None:
    """The message is from between the oldest shape and the newest. So it has the columns that both
    have, some of those that were dropped since, and behind them those that came since."""
    newest, oldest = {c.number: c for c in shapes[0]}, {c.number: c for c in shapes[-1]}
    if not set(numbers) <= newest.keys() & oldest.keys():
        return None
    if any(number < max(oldest) for number in newest.keys() - oldest.keys()):
        return None  # It was not sent before: nobody knows since when it is.
    answers = set()
    for known in _sequences(sorted(oldest), newest):
        if len(known) <= len(wire) and all(
            _may_be(oldest[number], newest.get(number), column)
            for number, column in zip(known, wire, strict=False)
        ):
            answers.add(tuple(known.index(n) for n in numbers))
    return answers.pop() if len(answers) == 1 else None


def _sequences(numbers: Sequence[int], newest: Mapping[int, ShapeColumn]) -> Iterator[list[int]]:
    """The numbers without those that may be gone already, in every way."""
    gone = [number for number in numbers if number not in newest]
    if len(gone) > _MOST_GONE:
        return
    for count in range(len(gone) + 1):
        for left_out in combinations(gone, count):
            yield [number for number in numbers if number not in left_out]


def _may_be(before: ShapeColumn, after: ShapeColumn | None, column: WireColumn) -> bool:
    """Whether this is how a column may have been between two moments. One that was touched may
    have had any name and any type; the decoder refuses a type that is not the view's."""
    if after is None or after.version != before.version:
        return True
    return column[:3] == (before.name, before.oid, before.typmod)
