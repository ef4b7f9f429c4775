"""What all views together read of the source: one relation a table, with the columns in use.

Views were planned at different times, between which a table may have gained and lost columns
that they do not use. Invariant: the stream is asked for exactly the columns in use, each under
the one type that all its readers know; where they differ, the older reader is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dataflow.errors import SourceError
from dataflow.live_tables import is_one_table
from dataflow.schema import Field, Relation, RelationName

# A relation as one view knows it, and the positions of the fields that the view uses.
Read = tuple[Relation, Sequence[int]]


def all_read(reads: Iterable[Read]) -> list[Relation]:
    """Each table once for each name that readers know it by, with the fields that any uses.

    SourceError source.schema_changed when two readers know the table differently.
    """
    merged: dict[RelationName, Relation] = {}
    for relation, columns in reads:
        own = _only(relation, columns)
        known = merged.get(own.name)
        merged[own.name] = own if known is None else _both(known, own)
    return list(merged.values())


def widened(reads: Iterable[Read], others: Iterable[Read]) -> dict[RelationName, tuple[int, ...]]:
    """For each relation that is read the columns to keep, so that others can read them there too.

    reads: of one view, which may know a table newer than the others do.
    """
    kept = {relation.name: (relation, set(columns)) for relation, columns in reads}
    for relation, columns in others:
        if relation.name not in kept:
            continue
        own, positions = kept[relation.name]
        if not is_one_table(own, relation):
            continue
        places = {f.name: c for c, f in enumerate(own.fields)}
        for field in (relation.fields[c] for c in columns):
            place = places.get(field.name)
            if place is not None and own.fields[place].type == field.type:
                positions.add(place)
    return {name: tuple(sorted(positions)) for name, (_, positions) in kept.items()}


def fits(read: Read, newer: Relation) -> bool:
    """Whether a reader and one that knows the table as `newer` can be told rows side by side."""
    relation, columns = read
    if not is_same_table(relation, newer):
        return True
    if relation.oid != newer.oid:
        return False
    by_name = {f.name: c for c, f in enumerate(newer.fields)}
    by_number = {n: c for c, n in enumerate(newer.numbers)}
    for column in columns:
        field, named = relation.fields[column], by_name.get(relation.fields[column].name)
        place = named
        if relation.numbers and newer.numbers:
            place = by_number.get(relation.numbers[column])
            if relation.name == newer.name and named not in (None, place):
                return False
        elif relation.name != newer.name:
            return False
        if place is None or newer.fields[place].type != field.type:
            return False
    return True


def is_same_table(left: Relation, right: Relation) -> bool:
    """Whether two relations are one by name or by oid; to differ in either is a change."""
    return left.name == right.name or (left.name.source, left.oid) == (right.name.source, right.oid)


def changed(relation: Relation) -> SourceError:
    """The refusal of the readers that know a table as it was."""
    return SourceError(
        "source.schema_changed",
        f'table "{relation.name}" is no longer what its views were made for',
        detail="a column in use changed, or the table was renamed or made again",
        hint="rebuild the views that read the table",
        relation=relation.name,
    )


def name_in_use(relation: Relation, reader: str) -> SourceError:
    """The refusal of a view that calls something by a name that a live view has for another."""
    return SourceError(
        "source.name_in_use",
        f'view "{reader}" knows table "{relation.name}", or a column of it, by an earlier name',
        detail="a name that it still uses stands for something else now",
        hint=f'replace or drop view "{reader}" first',
        relation=relation.name,
    )


def _only(relation: Relation, columns: Sequence[int]) -> Relation:
    used = sorted({*columns, *relation.key})
    return Relation(
        relation.name,
        relation.oid,
        tuple(relation.fields[c] for c in used),
        tuple(used.index(c) for c in relation.key),
        relation.is_full,
        numbers=tuple(relation.numbers[c] for c in used) if relation.numbers else (),
    )


def _both(known: Relation, own: Relation) -> Relation:
    if known.oid != own.oid:
        raise changed(known)
    fields: dict[str, tuple[Field, int]] = dict(_numbered(known))
    for name, (field, number) in _numbered(own):
        has = fields.setdefault(name, (field, number))
        if has[0].type != field.type or (has[1] != number and has[1] and number):
            raise changed(known)
    keys = [r.fields[i].name for r in (known, own) for i in r.key]
    names = list(fields)
    key = tuple(names.index(n) for n in dict.fromkeys(keys))
    # Rows from before it had REPLICA IDENTITY FULL are told to who can read them; who cannot was
    # made after those.
    is_full = known.is_full and own.is_full
    numbers = tuple(number for _, number in fields.values())
    return Relation(
        own.name,
        own.oid,
        tuple(field for field, _ in fields.values()),
        key,
        is_full,
        numbers=numbers if all(numbers) else (),
    )


def _numbered(relation: Relation) -> Iterator[tuple[str, tuple[Field, int]]]:
    numbers = relation.numbers or (0,) * len(relation.fields)
    for field, number in zip(relation.fields, numbers, strict=True):
        yield field.name, (field, number)
