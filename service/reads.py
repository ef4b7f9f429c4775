"""What all views together read of the source: one relation a table, with the columns in use.

Views were planned at different times, between which a table may have gained and lost columns
that they do not use. Invariant: the stream is asked for exactly the columns in use, each under
the one type that all its readers know; where they differ, the older reader is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dataflow.errors import SourceError
from dataflow.live_tables import is_one_table
from dataflow.schema import Field, Relation, RelationName

# A relation as one view knows it, and the positions of the fields that the view uses.
Read = tuple[Relation, Sequence[int]]


def all_read(reads: Iterable[Read]) -> list[Relation]:
    """Each table once, its fields being those that any reader uses.

    SourceError source.schema_changed when two readers know the table differently.
    """
    merged: dict[RelationName, Relation] = {}
    for relation, columns in reads:
        known = next((m for m in merged.values() if is_same_table(m, relation)), None)
        own = _only(relation, columns)
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
    """Whether a reader may go on although another one knows the table as `newer`."""
    relation, columns = read
    if not is_same_table(relation, newer):
        return True
    types = {f.name: f.type for f in newer.fields}
    used = [relation.fields[c] for c in columns]
    is_one = (relation.name, relation.oid) == (newer.name, newer.oid)
    return is_one and all(types.get(f.name) == f.type for f in used)


def is_same_table(left: Relation, right: Relation) -> bool:
    """Whether two relations are one by name or by oid; to differ in either is a change."""
    return left.name == right.name or (left.name.source, left.oid) == (right.name.source, right.oid)


def changed(relation: Relation) -> SourceError:
    """The refusal of the readers that know a table as it was."""
    return SourceError(
        "source.schema_changed",
        f'table "{relation.name}" is no longer what its views were made for',
        detail="a column in use changed, or the table was renamed or made again",
        hint="drop the views that read the table and create them again",
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
    )


def _both(known: Relation, own: Relation) -> Relation:
    if (known.name, known.oid) != (own.name, own.oid):
        raise changed(known)
    fields: dict[str, Field] = {f.name: f for f in known.fields}
    for field in own.fields:
        if fields.setdefault(field.name, field).type != field.type:
            raise changed(known)
    keys = [r.fields[i].name for r in (known, own) for i in r.key]
    names = list(fields)
    key = tuple(names.index(n) for n in dict.fromkeys(keys))
    is_full = known.is_full or own.is_full
    return Relation(own.name, own.oid, tuple(fields.values()), key, is_full)
