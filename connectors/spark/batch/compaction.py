"""Which files of a table a run writes again, so that readers and later epochs stay fast.

Invariant: what is written again is bounded by what has changed: a file is merged only with others
of about its size, or when many of its rows are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from connectors.spark.batch.table_files import FILE_ROWS, Contents, TableFile

# Deleted rows above this part of all rows make a file, or a table, worth writing again.
DELETED_PART = 0.2
# So many delete files are merged into one.
MOST_DELETES = 16
# So many files of one size are merged into one. Sizes of one class differ by this factor at most.
MERGED_FILES = 8
# Rows that one compaction writes.
MOST_ROWS = 20 * FILE_ROWS


def has_many_deletes(contents: Contents) -> bool:
    """Return True if the deletes of a table are worth looking at one by one."""
    rows = sum(file.rows for file in contents.data)
    deleted = sum(file.rows for file in contents.positions)
    is_over = deleted > DELETED_PART * rows
    return bool(contents.keys) or len(contents.positions) > MOST_DELETES or is_over


def to_rewrite(contents: Contents, deleted: Mapping[str, int]) -> list[TableFile]:
    """Return the data files to write again. deleted: rows of them, by location.

    All that an equality delete may concern; of the others, MOST_ROWS at most.
    """
    newest = max((file.sequence for file in contents.keys), default=0)
    chosen = [file for file in contents.data if file.sequence < newest]
    rest = [file for file in contents.data if file.sequence >= newest]
    worn = [f for f in rest if deleted.get(f.location, 0) > DELETED_PART * f.rows]
    worn.sort(key=lambda file: -deleted[file.location] / file.rows)
    chosen += _within(worn)
    if chosen:
        return chosen
    classes: dict[int, list[TableFile]] = {}
    for file in rest:
        if file.rows < FILE_ROWS // 2:
            classes.setdefault(_size_class(file.rows), []).append(file)
    return _within([f for one in classes.values() if len(one) >= MERGED_FILES for f in one])


def _size_class(rows: int) -> int:
    """Return a number that files of about the same size share.

    >>> [_size_class(rows) for rows in (1, 7, 8, 63, 64)]
    [1, 1, 2, 2, 3]
    """
    size = 1
    while rows >= MERGED_FILES**size:
        size += 1
    return size


def _within(files: Sequence[TableFile]) -> list[TableFile]:
    """Return the first of these files, MOST_ROWS together; at least one."""
    found: list[TableFile] = []
    rows = 0
    for file in files:
        rows += file.rows
        if found and rows > MOST_ROWS:
            break
        found.append(file)
    return found
