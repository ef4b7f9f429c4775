"""Oracle: service/backfill/spool.py: the keys that have changed, by the columns of now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import sql_type
from service.backfill.spool import Spool

INTEGER = sql_type("integer", 23)
ID, AMOUNT = Field("id", INTEGER, False), Field("amount", INTEGER, False)
NAME = RelationName("pg", "public", "entries")
THEN = Relation(NAME, 7, (ID, AMOUNT), (0,), numbers=(1, 3))


def inserted(relation: Relation, *rows: tuple[int, int]) -> Changes:
    columns = tuple(Column.of("i", [row[i] for row in rows]) for i in range(2))
    kinds = np.full(len(rows), Changes.INSERT, np.uint8)
    return Changes(relation, kinds, columns)


def keys(folder: Path, relation: Relation) -> list[int] | None:
    spool = Spool(folder / "spool", [NAME])
    try:
        changes = [inserted(THEN, (1, 10), (2, 20)), inserted(THEN, (2, 30))]
        for position, change in enumerate(changes, 1):
            spool.append(SourceBatch(position, [change], 1, len(change)))
        found = spool.changed_keys(relation, 100)
        return None if found is None else sorted(row[0] for row, _ in found.rows())
    finally:
        spool.close()


RENAMED = replace(THEN, fields=(replace(ID, name="id_2"), AMOUNT))
SWAPPED = replace(THEN, fields=(replace(ID, name="amount"), replace(AMOUNT, name="id")))
MADE_AGAIN = replace(THEN, numbers=(4, 3))
WIDENED = replace(THEN, fields=(replace(ID, type=sql_type("bigint", 20)), AMOUNT))
UNNUMBERED = replace(THEN, numbers=())
OTHER_KEY = replace(THEN, key=(1,))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (THEN, [1, 2]),
        (RENAMED, [1, 2]),
        (SWAPPED, [1, 2]),
        (UNNUMBERED, [1, 2]),
        (OTHER_KEY, [10, 20, 30]),
        (MADE_AGAIN, None),
        (WIDENED, None),
        (replace(UNNUMBERED, fields=RENAMED.fields), None),
    ],
)
def test_keys_are_found_by_the_number_of_their_column(
    now: Relation, expected: list[int] | None, tmp_path: Path
) -> None:
    assert keys(tmp_path, now) == expected
