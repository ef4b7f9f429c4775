"""Map columns of a relation message to columns of the table, also across renames.

A relation message names columns but does not number them. It is compared as a whole with the shapes
that the catalog had; all matching ones must agree. A message from between two catalog reads is
mapped by the order of the numbers, which every message keeps. Invariant: a column is never located
by a name that may have been another column's when the row was written.
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
    """A column that is sent. version: of its catalog row."""

    number: int
    name: str
    oid: int
    typmod: int
    version: int


Shape = tuple[ShapeColumn, ...]


@dataclass(frozen=True)
class KnownTable:
    """A table as it was last read.

    shapes: those in which rows may still arrive, newest first; until: where the stream passes the
    newest change, 0 once it has.
    """

    facts: TableFacts
    shapes: tuple[Shape, ...]
    until: int = 0


# Most columns dropped between two reads: each may or may not be in a message.
_MAX_GONE = 6


def shape_of(facts: TableFacts) -> Shape:
    """Return the columns with which rows are sent."""
    return tuple(
        ShapeColumn(n, c.field.name, c.field.type.oid, c.field.type.typmod, c.version)
        for n, c in sorted(facts.columns.items())
        if c.is_sent
    )


def positions_of(
    numbers: Sequence[int], wire: Sequence[WireColumn], shapes: Sequence[Shape]
) -> tuple[int, ...] | None:
    """Return where the columns of these numbers are in a relation message; None when unknown.

    shapes: those that it had around the message's position, newest first. A message that matches
    none is mapped by name, if none of the columns changed between them, else by order, if that is
    unambiguous.
    """
    sent = [(c.name, c.oid, c.typmod) for c in wire]
    answers = set()
    for shape in shapes:
        if sent == [(c.name, c.oid, c.typmod) for c in shape]:
            shape_numbers = [c.number for c in shape]
            if not set(numbers) <= set(shape_numbers):
                return None
            answers.add(tuple(shape_numbers.index(n) for n in numbers))
    if answers:
        return answers.pop() if len(answers) == 1 else None
    by_name = _positions_by_name(numbers, [c.name for c in wire], shapes)
    return by_name or _positions_by_order(numbers, wire, shapes)


def _positions_by_name(
    numbers: Sequence[int], sent: Sequence[str], shapes: Sequence[Shape]
) -> tuple[int, ...] | None:
    """Map by name: columns are in the order of their numbers, whatever was added or dropped."""
    versions: Mapping[int, set[tuple[str, int]]] = {n: set() for n in numbers}
    for shape in shapes:
        for column in shape:
            if column.number in versions:
                versions[column.number].add((column.name, column.version))
    if any(len(found) != 1 for found in versions.values()):
        return None
    names = {number: next(iter(found))[0] for number, found in versions.items()}
    if not set(names.values()) <= set(sent):
        return None
    positions = {number: sent.index(name) for number, name in names.items()}
    ordered = [positions[number] for number in sorted(positions)]
    if ordered != sorted(ordered):
        return None
    return tuple(positions[number] for number in numbers)


def _positions_by_order(
    numbers: Sequence[int], wire: Sequence[WireColumn], shapes: Sequence[Shape]
) -> tuple[int, ...] | None:
    """Map by order: the message is from between the oldest shape and the newest.

    So it has the columns of both, some of those dropped since, and after them those added since.
    """
    newest, oldest = {c.number: c for c in shapes[0]}, {c.number: c for c in shapes[-1]}
    if not set(numbers) <= newest.keys() & oldest.keys():
        return None
    if any(number < max(oldest) for number in newest.keys() - oldest.keys()):
        return None  # It was not sent before, and since when is unknown.
    answers = set()
    for candidate in _sequences(sorted(oldest), newest):
        if len(candidate) <= len(wire) and all(
            _may_be(oldest[number], newest.get(number), column)
            for number, column in zip(candidate, wire, strict=False)
        ):
            answers.add(tuple(candidate.index(n) for n in numbers))
    return answers.pop() if len(answers) == 1 else None


def _sequences(numbers: Sequence[int], newest: Mapping[int, ShapeColumn]) -> Iterator[list[int]]:
    """Yield the numbers without each combination of those that may already be gone."""
    gone = [number for number in numbers if number not in newest]
    if len(gone) > _MAX_GONE:
        return
    for count in range(len(gone) + 1):
        for left_out in combinations(gone, count):
            yield [number for number in numbers if number not in left_out]


def _may_be(before: ShapeColumn, after: ShapeColumn | None, column: WireColumn) -> bool:
    """Return whether the column may have looked like this between two moments.

    A changed column may have had any name and any type; the decoder refuses a type that is not the
    view's.
    """
    if after is None or after.version != before.version:
        return True
    return column[:3] == (before.name, before.oid, before.typmod)
