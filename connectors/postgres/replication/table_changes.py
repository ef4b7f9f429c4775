"""The effect of a table change on a view that reads it: none, a new name, or a rebuild.

Pure: old and new facts in, a judgement out. Columns are identified by number (attnum), which
survives a rename and is never reused. Invariant: a view without an error continues with the rows of
its query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from connectors.postgres.replication.given_publication import add_statement
from connectors.postgres.replication.table_facts import ColumnFacts, TableFacts
from dataflow.errors import SourceError
from dataflow.schema import Relation, RelationName, RowType

_REPLACE = "replace the view with one that fits the table, or drop it"
_REBUILD = "rebuild the view, or replace it with one that fits the table"


def numbers_of(relation: Relation, facts: TableFacts) -> tuple[int, ...]:
    """Return the numbers of a relation's columns; by name if it was planned without numbers."""
    return relation.numbers or facts.numbers([f.name for f in relation.fields])


def why_lost(
    relation: Relation,
    columns: Sequence[int],
    before: TableFacts,
    now: TableFacts | None,
    is_reported: Callable[[int, int], bool] = lambda xid, oid: False,
    *,
    row: RowType | None = None,
    given: str = "",
) -> SourceError | None:
    """Return why a reader of these columns cannot continue; None if it can.

    is_reported(xid, oid): True if the stream reports that this transaction truncated the whole
    table. row: the table's row type, if the reader uses whole rows as values. given: the name of
    the publication if an administrator made it.

    SourceError source.table_missing, source.not_published, source.published_again,
    source.publication_altered, source.column_dropped, source.column_changed, source.key_changed,
    source.row_type_changed, source.table_rewritten, source.partitions_changed.
    """
    if now is None:
        return _error(
            relation,
            "was dropped",
            code="source.table_missing",
            hint="create it again and rebuild the views that read it, or drop them",
        )
    publication = f'publication "{given}"' if given else "Tidemark's publication"
    if not now.is_published:
        way = f"{add_statement(given, RelationName('', now.schema, now.name))} then "
        return _error(
            relation,
            f"is no longer in {publication}",
            code="source.not_published",
            detail="someone removed it; its changes since then are missing",
            hint=f"{way if given else ''}rebuild the views that read it",
        )
    if now.withheld:
        return _error(
            relation,
            f"is only partly published by {publication}",
            code="source.publication_altered",
            detail=f"someone has altered it: {now.withheld}",
        )
    # While parts were not published, no view read them: current readers started after the repair.
    error = None if before.withheld else _gap_error(relation, before, now, publication)
    if error is not None:
        return error
    used = sorted({*columns, *relation.key})
    numbers = numbers_of(relation, before)
    for position in used:
        error = _column_error(relation, position, numbers[position], before, now)
        if error is not None:
            return error
    return (
        key_error(relation, numbers, now)
        or _row_error(relation, row, now)
        or _parts_error(relation, before, now, is_reported)
    )


def _gap_error(
    relation: Relation, before: TableFacts, now: TableFacts, publication: str
) -> SourceError | None:
    """Return an error if parts of the table may not have been sent for a while."""
    if before.membership and now.membership != before.membership:
        return _error(
            relation,
            f"was temporarily removed from {publication}",
            code="source.published_again",
            detail="its changes in between were not sent",
        )
    if before.publication and now.publication != before.publication:
        return _error(
            relation,
            "is published by a publication that someone altered",
            code="source.publication_altered",
            detail="changes in between may be missing",
        )
    return None


def renamed(
    relation: Relation, columns: Sequence[int], before: TableFacts, now: TableFacts
) -> Iterator[str]:
    """Yield, as text, the current names of what a continuing reader calls otherwise."""
    name = relation.name
    if (name.schema, name.name) != (now.schema, now.name):
        yield f'table "{name}" is now called "{now.title}"'
    numbers = numbers_of(relation, before)
    for position in columns:
        field, column = relation.fields[position], now.columns.get(numbers[position])
        if column is not None and column.field.name != field.name:
            yield f'column "{field.name}" of table "{name}" is now called "{column.field.name}"'


def _column_error(
    relation: Relation, position: int, number: int, before: TableFacts, now: TableFacts
) -> SourceError | None:
    field = relation.fields[position]
    was, column = before.columns.get(number), now.columns.get(number)
    if column is None:
        is_back = any(c.field.name == field.name for c in now.columns.values())
        detail = "another column of this name was added since" if is_back else ""
        what = f'no longer has column "{field.name}"'
        return _error(relation, what, code="source.column_dropped", detail=detail, hint=_REPLACE)
    changed = _difference(field.is_nullable, column, was)
    if column.field.type != field.type:
        changed = f"its type was {field.type.name} and is {column.field.type.name}"
    if changed:
        what = f'has changed column "{field.name}"'
        return _error(relation, what, code="source.column_changed", detail=changed)
    if was is not None and column.version != was.version and _is_rewritten(before, now):
        what = f'was rewritten after a change of column "{field.name}"'
        detail = "ALTER COLUMN ... TYPE ... USING may have changed every value"
        return _error(relation, what, code="source.table_rewritten", detail=detail)
    return None


def _difference(is_nullable: bool, column: ColumnFacts, was: ColumnFacts | None) -> str:
    if column.field.is_nullable and not is_nullable:
        return "it was NOT NULL and no longer is"
    if was is not None and column.is_sent != was.is_sent:
        return "it is generated now, or no longer is"
    if was is not None and column.labels[: len(was.labels)] != was.labels:
        return "values of its enum were renamed"
    return ""


def _is_rewritten(before: TableFacts, now: TableFacts) -> bool:
    """Return True if the rows of the table, or of any partition, are in another file."""
    both = before.parts.keys() & now.parts.keys()
    return now.file != before.file or any(
        now.parts[part].file != before.parts[part].file for part in both
    )


def _row_error(relation: Relation, row: RowType | None, now: TableFacts) -> SourceError | None:
    """Return an error if whole rows are values of another type now: their text has the names of
    the columns, and the type has the table's name."""
    if row is None:
        return None
    columns = tuple(c.field.name for _, c in sorted(now.columns.items()))
    changed = ""
    if (relation.name.schema, relation.name.name) != (now.schema, now.name):
        changed = f'the table is now called "{now.title}"'
    elif columns != row.columns:
        changed = f"its columns were {', '.join(row.columns)} and are {', '.join(columns)}"
    if not changed:
        return None
    what = "has another row type, and its whole rows are values in the query"
    return _error(relation, what, code="source.row_type_changed", detail=changed)


def key_error(relation: Relation, numbers: Sequence[int], now: TableFacts) -> SourceError | None:
    """Return source.key_changed if a table identifies its rows otherwise than a relation does.

    numbers: of the relation's columns.
    """
    key = {numbers[position] for position in relation.key}
    why = ""
    if relation.is_full and now.identity != "f":
        why = "it no longer has REPLICA IDENTITY FULL"
    elif now.identity == "n" or (now.identity == "d" and not now.key):
        why = "it has no key that identifies the row of an UPDATE or DELETE"
    elif now.identity == "d" and key != set(now.key):
        why = "its primary key was changed"
    elif now.identity == "i" and not key <= set(now.identity_key):
        why = "its replica identity uses another index"
    elif now.identity == "f" and key and key not in (set(now.key), set(now.identity_key)):
        why = "its primary key was dropped or changed"
    elif any(p.kind == "r" and p.identity != now.identity for p in now.parts.values()):
        why = "a partition has another replica identity"
    if not why:
        return None
    return _error(relation, "identifies rows by another key", code="source.key_changed", detail=why)


def _parts_error(
    relation: Relation, before: TableFacts, now: TableFacts, is_reported: Callable[[int, int], bool]
) -> SourceError | None:
    why = [f'"{part.title}" was detached or dropped' for _, part in _gone(before, now)]
    for oid, part in now.parts.items():
        if part.kind not in ("r", "p"):
            why.append(f'"{part.title}" is not an ordinary partition')
        elif part.has_unreported and not (
            part.emptied_by and is_reported(part.emptied_by, now.oid)
        ):
            is_new = oid not in before.parts
            done = "was attached with rows" if is_new else "was truncated, or rewritten"
            why.append(f'"{part.title}" {done}')
        elif now.kind == "r":
            why.append(f'"{part.title}" inherits from it')
    if not why:
        return None
    what = "had whole partitions changed"
    return _error(relation, what, code="source.partitions_changed", detail="; ".join(sorted(why)))


def _gone(before: TableFacts, now: TableFacts) -> list:
    return [
        (oid, part)
        for oid, part in before.parts.items()
        if oid not in now.parts and part.kind != "p"
    ]


def _error(
    relation: Relation, what: str, *, code: str, detail: str = "", hint: str = _REBUILD
) -> SourceError:
    name = relation.name
    return SourceError(code, f'table "{name}" {what}', detail=detail, hint=hint, relation=name)
