"""Oracle: what each reader uses, written down by hand for each pair of versions of a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.errors import SourceError
from dataflow.operators.tables.table import TableState
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT4, INT8, TEXT
from service.engine.column_requirements import all_read, fits
from storage.memory import MemoryStore

ID, NAME, SPARE, ADDED = (
    Field("id", INT4, False),
    Field("name", TEXT),
    Field("spare", TEXT),
    Field("added", INT4),
)
TABLE = RelationName("source", "public", "t")
OLD = Relation(TABLE, 7, (SPARE, NAME, ID), key=(2,))
NEW = Relation(TABLE, 7, (ADDED, ID, NAME), key=(1,), row_estimate=9)
OTHER = Relation(RelationName("source", "public", "u"), 8, (ID,), key=(0,))


def test_a_table_is_read_once_with_the_columns_in_use() -> None:
    (t, u) = all_read([(OLD, (1, 2)), (OTHER, (0,)), (NEW, (0, 1))])
    assert (t.name, t.oid, u.name) == (TABLE, 7, OTHER.name)
    assert [f.name for f in t.fields] == ["name", "id", "added"]
    assert [t.fields[i].name for i in t.key] == ["id"]
    assert all_read([]) == []


def test_a_key_is_read_though_no_view_uses_it() -> None:
    (t,) = all_read([(OLD, (1,))])
    assert [f.name for f in t.fields] == ["name", "id"] and t.key == (1,)


def test_old_rows_are_requested_whole_where_all_readers_need_them_so() -> None:
    """The table has got REPLICA IDENTITY FULL between two of them: rows of before are told too."""
    full = replace(NEW, is_full=True)
    assert [t.is_full for t in all_read([(OLD, (1,)), (full, (1,))])] == [False]
    assert [t.is_full for t in all_read([(full, (0,)), (full, (1,))])] == [True]


@pytest.mark.parametrize(
    "other",
    [
        replace(OLD, fields=(SPARE, Field("name", INT8), ID)),
        replace(OLD, oid=9),
    ],
)
def test_readers_that_disagree_are_refused_by_name(other: Relation) -> None:
    with pytest.raises(SourceError) as caught:
        all_read([(OLD, (1, 2)), (other, (1, 2))])
    assert caught.value.code == "source.schema_changed"
    assert caught.value.relation == TABLE
    assert not fits((OLD, (1, 2)), other)


RENAMED = RelationName("source", "public", "renamed")
NUMBERED = replace(OLD, numbers=(1, 2, 3))


def test_a_renamed_table_is_read_under_both_names() -> None:
    later = replace(NUMBERED, name=RENAMED)
    assert [r.name for r in all_read([(NUMBERED, (1, 2)), (later, (1,))])] == [TABLE, RENAMED]
    assert fits((NUMBERED, (1, 2)), later)
    assert not fits((OLD, (1, 2)), replace(OLD, name=RENAMED))


def test_columns_are_distinguished_by_number() -> None:
    """Another column of a name that a reader still uses cannot be told beside it."""
    moved = replace(NUMBERED, fields=(SPARE, Field("called", TEXT), ID))
    assert fits((NUMBERED, (1, 2)), moved)
    (both,) = all_read([(NUMBERED, (1, 2)), (moved, (1, 2))])
    assert [(f.name, n) for f, n in zip(both.fields, both.numbers, strict=True)] == [
        ("name", 2),
        ("id", 3),
        ("called", 2),
    ]
    taken = replace(NUMBERED, fields=(NAME, Field("called", TEXT), ID))
    assert not fits((NUMBERED, (1, 2)), taken)
    with pytest.raises(SourceError):
        all_read([(NUMBERED, (1, 2)), (taken, (0, 2))])


def test_what_is_not_used_may_change() -> None:
    assert fits((OLD, (1, 2)), NEW)
    assert not fits((OLD, (0, 2)), NEW)
    assert fits((OLD, (0, 1, 2)), OTHER)


def test_a_table_state_finds_its_columns_in_any_version() -> None:
    columns = {
        "spare": Column.of("s", [b"-", b"-"]),
        "name": Column.of("s", [b"x", b"y"]),
        "id": Column.of("i", [1, 2]),
        "added": Column.of("i", [5, 6]),
    }
    kinds = np.array([Changes.INSERT] * 2, np.uint8)
    answers = []
    for sent in (OLD, NEW, *all_read([(OLD, (1, 2)), (NEW, (0, 1))])):
        state = TableState(OLD, (1, 2), MemoryStore(), "v")
        changes = Changes(sent, kinds, tuple(columns[f.name] for f in sent.fields))
        answers.append(sorted(state.resolve(changes).rows()))
    assert answers == [[((b"x", 1), 1), ((b"y", 2), 1)]] * 3
