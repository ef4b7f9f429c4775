"""What all views together read of the source: one relation per table, with the columns in use.

Views are planned at different times, between which a table may gain and lose columns that they do
not use. Invariant: the stream requests exactly the columns in use, each under the one type that all
its readers expect. If they differ, the error names the older reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dataflow.errors import SourceError
from dataflow.live_tables import is_one_table
from dataflow.schema import Field, Relation, RelationName

# A relation as one view planned it, and the indexes of the fields that the view uses.
Read = tuple[Relation, Sequence[int]]


def all_read(reads: Iterable[Read]) -> list[Relation]:
    """Return each table once per name, with the fields that any reader uses.

    SourceError source.schema_changed if two readers expect different tables.
    """
    merged: dict[RelationName, Relation] = {}
    for relation, columns in reads:
        own = _only(relation, columns)
        other = merged.get(own.name)
        merged[own.name] = own if other is None else _both(other, own)
    return list(merged.values())


def widened(reads: Iterable[Read], others: Iterable[Read]) -> dict[RelationName, tuple[int, ...]]:
    """Return the columns to store of each relation, so that other views can read them there too.

    reads: of one view, which may know a newer version of a table than the others.
    """
    stored = {relation.name: (relation, set(columns)) for relation, columns in reads}
    for relation, columns in others:
        if relation.name not in stored:
            continue
        own, used = stored[relation.name]
        if not is_one_table(own, relation):
            continue
        indexes = {f.name: c for c, f in enumerate(own.fields)}
        for field in (relation.fields[c] for c in columns):
            index = indexes.get(field.name)
            if index is not None and own.fields[index].type == field.type:
                used.add(index)
    return {name: tuple(sorted(used)) for name, (_, used) in stored.items()}


def fits(read: Read, newer: Relation) -> bool:
    """Return True if this reader and one that expects the table as `newer` can read the same
    stream.
    """
    relation, columns = read
    if not is_same_table(relation, newer):
        return True
    if relation.oid != newer.oid:
        return False
    by_name = {f.name: c for c, f in enumerate(newer.fields)}
    by_number = {n: c for c, n in enumerate(newer.numbers)}
    for column in columns:
        field, named = relation.fields[column], by_name.get(relation.fields[column].name)
        index = named
        if relation.numbers and newer.numbers:
            index = by_number.get(relation.numbers[column])
            if relation.name == newer.name and named not in (None, index):
                return False
        elif relation.name != newer.name:
            return False
        if index is None or newer.fields[index].type != field.type:
            return False
    return True


def is_same_table(left: Relation, right: Relation) -> bool:
    """Return True if two relations share name or oid; a difference in either is a schema change."""
    return left.name == right.name or (left.name.source, left.oid) == (right.name.source, right.oid)


def changed(relation: Relation) -> SourceError:
    """Return the error for readers that expect an earlier version of a table."""
    return SourceError(
        "source.schema_changed",
        f'table "{relation.name}" no longer matches its views',
        detail="a column in use changed, or the table was renamed or recreated",
        hint="rebuild the views that read the table",
        relation=relation.name,
    )


def name_in_use(relation: Relation, reader: str) -> SourceError:
    """Return the error for a view that uses a name which a live view has for another object."""
    return SourceError(
        "source.name_in_use",
        f'view "{reader}" uses an earlier name of table "{relation.name}" or of its columns',
        detail="that name now belongs to another table or column",
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


def _both(other: Relation, own: Relation) -> Relation:
    if other.oid != own.oid:
        raise changed(other)
    fields: dict[str, tuple[Field, int]] = dict(_numbered(other))
    for name, (field, number) in _numbered(own):
        has = fields.setdefault(name, (field, number))
        if has[0].type != field.type or (has[1] != number and has[1] and number):
            raise changed(other)
    keys = [r.fields[i].name for r in (other, own) for i in r.key]
    names = list(fields)
    key = tuple(names.index(n) for n in dict.fromkeys(keys))
    # Only readers of full rows can read rows from before REPLICA IDENTITY FULL; the others were
    # built after those rows.
    is_full = other.is_full and own.is_full
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
