"""Retry rejected rows: the table itself has the row that a dead letter is about, or no longer.

Invariant: a retried row is the row of its key as it is now. If it is newer than the feed's
position, the feed applies its earlier changes again and ends with the same row.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from connectors.feed_source import REJECTED_COLUMNS, REJECTED_KINDS
from connectors.mysql.options import MySqlOptions
from connectors.mysql.preflight import find_table
from connectors.mysql.rows import TableReader
from connectors.mysql.server import Server
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.schema import Relation

_KEY = REJECTED_COLUMNS.index("key")


def decode_again(
    source: str, options: MySqlOptions, relation: Relation, rows: Delta
) -> SourceBatch:
    """Return the valid rows, and the dead letters that are resolved at weight -1; see FeedSource.

    Rows that are still malformed have their new reason at weight 1.
    """
    table_options = options.table_of(relation.name.name)
    found: list[list[Column]] = []
    resolved: list[tuple[Any, ...]] = []
    with Server(options.login, source) as server:
        table = find_table(server, table_options)
        reader = TableReader(server, relation, table_options, table)
        for letter in zip(*(column.to_list() for column in rows.columns), strict=True):
            current = reader.row_of(json.loads(letter[_KEY] or b"{}"))
            if current.bad:
                continue
            if len(current):
                found.append(current.columns)
            resolved.append(letter)
    changes = []
    if found:
        columns = tuple(Column.concat(list(cells)) for cells in zip(*found, strict=True))
        kinds = np.full(len(columns[0]), Changes.UPSERT, np.uint8)
        changes.append(Changes(relation, kinds, columns))
    rejected = Delta.of(REJECTED_KINDS, resolved, -1) if resolved else None
    return SourceBatch(0, changes, len(changes), len(found), source=source, rejected=rejected)
