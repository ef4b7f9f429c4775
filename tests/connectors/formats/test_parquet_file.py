"""Oracle: the rows that Arrow reads of the same file by itself, and the sizes of its batches."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.formats import parquet_file
from connectors.formats.parquet_file import ParquetInput
from connectors.outside.bounded import OverLimitError
from tests.harness.tiers import count
from tests.security import parquet_bombs

ROWS, MOST_ROWS = 3000, 700


def _table(random: Random) -> pa.Table:
    def some(make: Any) -> list[Any]:
        return [None if random.random() < 0.1 else make() for _ in range(ROWS)]

    def texts() -> list[str] | None:
        return [str(random.random())[: random.randrange(9)] for _ in range(random.randrange(5))]

    long = ["a" * 3000, "b", "", "c" * 900]
    return pa.table(
        {
            "id": range(ROWS),
            "long": some(lambda: random.choice(long)),
            "unique": some(lambda: str(random.random())),
            "list": pa.array(some(texts), pa.list_(pa.string())),
            "deep": pa.array(
                some(lambda: {"a": [{"b": texts()} for _ in range(random.randrange(3))]})
            ),
            "fixed": pa.array(some(lambda: random.randbytes(4)), pa.binary(4)),
            "is": some(lambda: random.random() < 0.5),
            "a.b": pa.array(some(random.random), pa.float64()),
        }
    )


def _read(content: bytes, most_rows: int = MOST_ROWS) -> list[pa.RecordBatch]:
    found = ParquetInput(io.BytesIO(content))
    return list(found.batches(found.names(), range(len(found.group_rows())), most_rows))


def _written(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


DELTA = {
    "unique": "DELTA_LENGTH_BYTE_ARRAY",
    "id": "DELTA_BINARY_PACKED",
    "fixed": "DELTA_BYTE_ARRAY",
}
DELTA |= {"long": "DELTA_BYTE_ARRAY", "list.list.element": "DELTA_BYTE_ARRAY"}


@pytest.mark.parametrize(
    "options",
    [
        *({"compression": c} for c in ("snappy", "zstd", "gzip", "lz4", "brotli", "none")),
        {"data_page_version": "2.0", "data_page_size": 2000},
        {"data_page_version": "2.0", "compression": "none", "row_group_size": 1000},
        {"use_dictionary": False, "data_page_size": 5000},
        {"use_dictionary": False, "column_encoding": DELTA, "data_page_size": 5000},
        {"row_group_size": 100, "dictionary_pagesize_limit": 2000},
    ],
    ids=str,
)
def test_every_encoding_is_read_as_arrow_reads_it(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _table(Random(str(options)))
    content = _written(table, **options)
    assert pa.Table.from_batches(_read(content)).equals(table)
    # With limits that make the batches small, and measure every page.
    monkeypatch.setattr(parquet_file, "BATCH_BYTES", 100_000)
    monkeypatch.setattr(parquet_file, "_UNMEASURED_BYTES", 0)
    batches = _read(content)
    assert pa.Table.from_batches(batches).equals(table)
    assert max(batch.nbytes for batch in batches) < 200_000


@pytest.mark.parametrize("seed", range(count("TIDEMARK_TEST_PARQUET_FILES", 100, 3000)))
def test_a_file_that_is_changed_is_refused_or_read_as_arrow_reads_it(seed: int) -> None:
    random = Random(seed)
    table = _table(Random(1)).slice(0, 60)
    version = random.choice(["1.0", "2.0"])
    content = bytearray(
        _written(table, compression=random.choice(["none", "snappy"]), data_page_version=version)
    )
    for _ in range(random.randrange(1, 4)):
        content[random.randrange(len(content))] = random.randrange(256)
    try:
        batches = _read(bytes(content))
    except (pa.ArrowException, OSError, OverLimitError, UnicodeDecodeError):
        return
    whole = pq.ParquetFile(io.BytesIO(bytes(content))).iter_batches(use_threads=False)
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches(list(whole))), seed


def test_long_strings_that_repeat_are_read() -> None:
    """A million rows of two gigabytes, in a file of few bytes."""
    rows, value = 1_000_000, b"x" * 2000
    content = parquet_bombs.repeated(value, rows)
    assert len(content) < 1000
    found = ParquetInput(io.BytesIO(content))
    seen = largest = number = 0
    for batch in found.batches(["x"], [0], 16_384):
        seen += batch.num_rows
        number += 1
        largest = max(largest, batch.nbytes)
    assert seen == rows
    assert largest <= parquet_file.BATCH_BYTES * 1.1 and number < 100


@pytest.mark.parametrize(
    "make",
    [
        lambda: parquet_bombs.repeated(b"ab", 5),
        lambda: parquet_bombs.repeated_late(b"ab", 5),
        lambda: parquet_bombs.repeated_v2(b"ab", 5),
        lambda: parquet_bombs.continued(b"abc", 300, 2),
        lambda: parquet_bombs.listed(5),
        lambda: parquet_bombs.listed_v2(5),
        lambda: parquet_bombs.listed_in_pages(10, 2),
        lambda: parquet_bombs.listed_rows(3, 4, b"z"),
        lambda: parquet_bombs.fixed(10, 5),
        lambda: parquet_bombs.long_page(1),
        lambda: parquet_bombs.long_dictionary(1),
        lambda: parquet_bombs.many_dictionaries(3, 4),
    ],
)
def test_what_the_bombs_are_made_of_is_a_file(make: Any) -> None:
    """Arrow reads small ones: what is refused is their size."""
    content = make()
    assert pa.Table.from_batches(_read(content)).equals(pq.ParquetFile(io.BytesIO(content)).read())
