"""What a change of a table means for a view that reads it: nothing, a new name, or its end.

Pure: the facts of before and now go in, a judgement comes out. Columns are known by their numbers
(attnum), which survive a rename and are never used twice. Invariant: a view for which there is no
error goes on with rows that are those of its query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from connectors.postgres.replication.table_facts import ColumnFacts, TableFacts
from dataflow.errors import SourceError
from dataflow.schema import Relation

_REPLACE = "replace the view by one that fits the table, or drop it"
_REBUILD = "rebuild the view, or replace it by one that fits the table"


def numbers_of(relation: Relation, known: TableFacts) -> tuple[int, ...]:
    """The numbers of a relation's columns, by name where it was planned without them."""
    return relation.numbers or known.numbers([f.name for f in relation.fields])


def why_lost(
    relation: Relation,
    columns: Sequence[int],
    before: TableFacts,
    now: TableFacts | None,
    is_reported: Callable[[int, int], bool] = lambda xid, oid: False,
) -> SourceError | None:
    """Why a reader of these columns cannot go on as it is; None when it can.

    is_told: whether the stream tells that transaction xid truncated the whole table.

    SourceError source.table_missing, source.not_published, source.published_again,
    source.publication_altered, source.column_dropped,
    source.column_changed, source.key_changed, source.table_rewritten, source.partitions_changed.
    """
    if now is None:
        return _error(
            relation,
            "was dropped",
            code="source.table_missing",
            hint="create it again and rebuild the views that read it, or drop them",
        )
    if not now.is_published:
        return _error(
            relation,
            "is no longer in Tidemark's publication",
            code="source.not_published",
            detail="someone removed it; its changes since then are not known",
            hint="rebuild the views that read it",
        )
    if now.withheld:
        return _error(
            relation,
            "is not sent whole by Tidemark's publication",
            code="source.publication_altered",
            detail=f"someone has altered it: {now.withheld}",
        )
    # While something was withheld nobody has read it: who reads it now began after the repair.
    error = None if before.withheld else _gap_error(relation, before, now)
    if error is not None:
        return error
    used = sorted({*columns, *relation.key})
    numbers = numbers_of(relation, before)
    for position in used:
        error = _column_error(relation, position, numbers[position], before, now)
        if error is not None:
            return error
    return _key_error(relation, numbers, now) or _parts_error(relation, before, now, is_reported)


def _gap_error(relation: Relation, before: TableFacts, now: TableFacts) -> SourceError | None:
    """The table may not have been sent whole for a while."""
    if before.membership and now.membership != before.membership:
        return _error(
            relation,
            "was taken out of Tidemark's publication for a while",
            code="source.published_again",
            detail="its changes in between were not sent",
        )
    if before.publication and now.publication != before.publication:
        return _error(
            relation,
            "is sent by a publication that someone has altered",
            code="source.publication_altered",
            detail="changes may have been left out in between",
        )
    return None


def renamed(
    relation: Relation, columns: Sequence[int], before: TableFacts, now: TableFacts
) -> Iterator[str]:
    """In words, which names a reader that goes on knows otherwise than the catalog now does."""
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
        what = f'was written anew after a change of column "{field.name}"'
        detail = "ALTER COLUMN ... TYPE ... USING may have changed every value of it"
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
    """Whether the rows lie in another file than before, of the table or of any partition."""
    both = before.parts.keys() & now.parts.keys()
    return now.file != before.file or any(
        now.parts[part].file != before.parts[part].file for part in both
    )


def _key_error(relation: Relation, numbers: Sequence[int], now: TableFacts) -> SourceError | None:
    """What tells rows apart must be what the view's state was built with."""
    key = {numbers[position] for position in relation.key}
    why = ""
    if relation.is_full and now.identity != "f":
        why = "it no longer has REPLICA IDENTITY FULL"
    elif now.identity == "n" or (now.identity == "d" and not now.key):
        why = "it has nothing that tells which row an UPDATE or DELETE hits"
    elif now.identity == "d" and key != set(now.key):
        why = "its primary key is another one"
    elif now.identity == "i" and not key <= set(now.identity_key):
        why = "its replica identity is another index"
    elif now.identity == "f" and key and key not in (set(now.key), set(now.identity_key)):
        why = "its primary key is gone or another one"
    elif any(p.kind == "r" and p.identity != now.identity for p in now.parts.values()):
        why = "partitions differ from it in replica identity"
    if not why:
        return None
    return _error(relation, "is told by another key", code="source.key_changed", detail=why)


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
            done = "came with rows" if is_new else "was truncated, or rewritten"
            why.append(f'"{part.title}" {done}')
        elif now.kind == "r":
            why.append(f'"{part.title}" inherits from it')
    if not why:
        return None
    what = "has changed by whole partitions"
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
