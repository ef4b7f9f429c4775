"""Oracle: the number and sum of rows that were written; the kernel's count of pages for memory."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 1_200_000
# Of 150 MB that are read; a feed reads ahead 32 MB.
MAX_GROWTH_BYTES = 60 << 20

READER = """
import resource, sys, time
from connectors import netguard
from tests.connectors.files.source_mirror import make_source
netguard.install(netguard.Guard(folders=("/",)))
path, rows, is_snapshot = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "snapshot"
columns = [{"name": "id", "type": "int8"}, {"name": "filler", "type": "text"}]
source = make_source({"settle_ms": 0, "relations": {"t": {"path": path, "columns": columns}}})
relation = source.relations()[0]
count = total = base = 0
def take(column):
    global count, total, base
    count, total = count + len(column), total + int(column.values.sum())
    # Modules, kernels and Arrow's pool are there by the first rows.
    base = base or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if is_snapshot:
    start = source.start_position(relation)
    snapshot = source.open_snapshot([relation], {"t": start.position}, start.notes)
    for part in snapshot.parts(relation, [0], 4):
        for delta in part.read():
            take(delta.columns[0])
else:
    feed = source.open_feed([relation], {"t": {"pin": "0", "event": 0}}, {}, lambda: None)
    while count < rows:
        batch = feed.poll(10_000)
        if batch is None:
            time.sleep(0.01)
        for changes in batch.changes if batch else ():
            take(changes.columns[0])
    feed.close()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
print(count, total, grown * 1024)
"""


def write(path: Path, format: str) -> None:
    filler = "f" * 100
    if format == "parquet":
        rows = pa.table({"id": range(ROWS), "filler": [f"{filler}{i}" for i in range(ROWS)]})
        pq.write_table(rows, path, compression="none", row_group_size=ROWS // 4)
        return
    with gzip.open(path, "wb", 1) if format == "jsonl.gz" else path.open("wb") as file:
        for start in range(0, ROWS, 10_000):
            lines = [f'{{"id":{i},"filler":"{filler}"}}\n' for i in range(start, start + 10_000)]
            file.write("".join(lines).encode())


@pytest.mark.parametrize("road", ["snapshot", "feed"])
@pytest.mark.parametrize("format", ["jsonl", "jsonl.gz", "parquet"])
def test_a_long_file_needs_little_memory(format: str, road: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{format}"
    write(path, format)
    arguments = [sys.executable, "-c", READER, str(path), str(ROWS), road]
    answer = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode == 0, answer.stderr
    count, total, grown = map(int, answer.stdout.split())
    assert (count, total) == (ROWS, ROWS * (ROWS - 1) // 2)
    assert grown < MAX_GROWTH_BYTES
