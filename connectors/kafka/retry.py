"""Retry of rejected records, once their cause has been repaired.

Invariant: an old record of an upsert topic never replaces a newer row. If the topic has a later
record of the same key, the old one is resolved without a change. The call runs on the pipeline's
thread, so its reading is bounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from connectors.feed_source import REJECTED_COLUMNS
from connectors.kafka.client import Client
from connectors.kafka.options import UPSERT
from connectors.kafka.reader import Reader, Span
from connectors.kafka.records import Records
from connectors.kafka.rows import RowReader, Rows, rejected_delta
from connectors.kafka.topics import Topics, missing
from connectors.source import SourceBatch
from dataflow.delta import Delta, row_hashes
from dataflow.errors import SourceError

TAKE_S = 1.0
# The pipeline waits during this time.
MAX_OFFSETS = 1_000_000
_POSITION, _KEY, _VALUE = (REJECTED_COLUMNS.index(name) for name in ("position", "key", "value"))


def decode_again(client: Client, rows: RowReader, rejected: Delta) -> SourceBatch:
    """See FeedSource.

    SourceError source.retry_too_far: too many records would have to be searched for later ones of a
    key.
    """
    stored_rows = [row for row, _ in rejected.rows()]
    records = _records(stored_rows)
    keep = np.ones(len(records), np.bool_)
    if rows.needs_times or rows.needs_headers:
        records, keep = _read_again(client, rows, records)
    found = rows.read(records)
    is_row = keep.copy()
    is_row[[bad.number for bad in found.bad]] = False
    changed = np.flatnonzero(is_row[found.records])
    if rows.options.mode == UPSERT and len(changed):
        changed = changed[~_is_replaced(client, rows, records, found, changed)]
    columns = [column.take(changed) for column in found.columns]
    unchanged = {c: mask[changed] for c, mask in found.unchanged.items()}
    now_valid = Rows(columns, found.kinds[changed], found.records[changed], [], unchanged)
    resolved = [stored_rows[number] for number in np.flatnonzero(is_row).tolist()]
    return SourceBatch(
        0,
        [rows.changes(records, now_valid)] if len(changed) else [],
        1 if len(changed) else 0,
        len(resolved),
        source=client.name,
        rejected=rejected_delta(resolved, -1),
    )


def _records(stored_rows: list[tuple[Any, ...]]) -> Records:
    """Return the records as they were stored, in the order of their offsets."""
    stored_rows.sort(key=lambda row: tuple(map(int, row[_POSITION].split(b":"))))
    records = Records()
    for row in stored_rows:
        number, _, offset = row[_POSITION].partition(b":")
        records.numbers.append(int(number))
        records.offsets.append(int(offset))
        records.keys.append(row[_KEY])
        records.values.append(row[_VALUE])
    return records


def _read_again(client: Client, rows: RowReader, records: Records) -> tuple[Records, np.ndarray]:
    """Read times and headers, which only the topic has; False for records that it has lost."""
    whole, keep = Records(), np.zeros(len(records), np.bool_)
    topics = Topics(client)
    for row in range(len(records)):
        number, offset = records.numbers[row], records.offsets[row]
        first = topics.begins(rows.options.topic, [number])[number]
        read = [] if offset < first else _span(client, rows, number, offset, offset + 1)
        one = records.where([at == row for at in range(len(records))])
        one.times, one.headers = [-1], [None]
        for again in read:
            # A recreated topic has another record at this offset.
            if (again.keys, again.values) != (one.keys, one.values):
                continue
            keep[row] = True
            one.times = again.times or one.times
            one.headers = again.headers or one.headers
        whole.add(one)
    return whole, keep


def _is_replaced(
    client: Client, rows: RowReader, records: Records, found: Rows, changed: np.ndarray
) -> np.ndarray:
    """Return bool for each changed row: True if its partition has a later record of its key."""
    out = np.zeros(len(changed), np.bool_)
    offsets = np.array(records.offsets, np.int64)[found.records[changed]]
    numbers = np.array(records.numbers, np.int64)[found.records[changed]]
    hashes = _hashes(rows, found)[changed]
    topics = Topics(client)
    for number in np.unique(numbers).tolist():
        mine = np.flatnonzero(numbers == number)
        end = topics.ends(rows.options.topic, [number])[number]
        begin = int(offsets[mine].min()) + 1
        if end - begin > MAX_OFFSETS:
            raise SourceError(
                "source.retry_too_far",
                f'records of topic "{rows.options.topic}" are too old to be retried',
                detail=f"{end - begin} offsets after {number}:{begin - 1} may hold newer ones",
                hint="produce the record again, then drop the rejected one",
                relation=rows.relation.name,
            )
        for later in _span(client, rows, number, begin, end):
            read = rows.read(later)
            positions = np.array(later.offsets, np.int64)[read.records]
            keys = _hashes(rows, read)
            for row in mine.tolist():
                out[row] |= bool(((keys == hashes[row]) & (positions > offsets[row])).any())
    return out


def _hashes(rows: RowReader, found: Rows) -> np.ndarray:
    """Return a 128-bit hash of each row's key."""
    keys = [found.columns[column] for column in rows.relation.key]
    first, second = row_hashes(keys, len(found.kinds))
    return np.rec.fromarrays([first, second])


def _span(client: Client, rows: RowReader, number: int, begin: int, end: int) -> list[Records]:
    """Return the records at [begin, end) of a partition."""
    topic = rows.options.topic
    described = Topics(client).describe([topic]).get(topic)
    if described is None:
        raise missing(topic, rows.relation.name)
    if begin >= end:
        return []
    needs = (rows.needs_times, rows.needs_headers)
    span = Span(rows.relation.name, topic, described.id, {number: begin}, {number: end}, *needs)
    reader = Reader(client, [span], wait_ms=20)
    try:
        found = []
        while not reader.is_done:
            found += [chunk.records for chunk in reader.take(TAKE_S) if len(chunk.records)]
        return found
    finally:
        reader.close()
