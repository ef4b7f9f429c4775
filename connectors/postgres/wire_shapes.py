"""Which column of a relation message is which column of the table, also after renames.

A relation message names columns but does not number them. It is compared whole with the shapes that
the catalog is known to have had; those that fit must agree. Invariant: a column is never found by
a name that may have been another column's when the row was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from connectors.postgres.table_facts import TableFacts


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

    shapes: all that the table may have had where the message comes from. One that is not among them
    is read by names, if none of the columns has been touched between them.
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
    return _places_by_name(numbers, [c.name for c in wire], shapes)


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
