"""Readers of lakes that cannot be in the environment of the tests, in one of their own.

The newest release of Iceberg's package for Spark is for a Spark older than the product's, and
DuckDB's extensions are packaged for an earlier DuckDB. Delta's package for Spark is not to be had.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from bench.peers.environment import Peer, PeerMissing, install

PROGRAM = Path(__file__).parent / "lake_reader_program.py"
# Of one version, with which the packages below work.
SPARK = Peer("lake-spark", "", "pyspark==4.1.4", needs_java=True)
DUCKDB = Peer(
    "lake-duckdb",
    "",
    "duckdb==1.5.5 duckdb-extension-iceberg==1.5.5 duckdb-extension-avro==1.5.5"
    " duckdb-extension-delta==1.5.5",
)
ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
READ_S = 1_200.0
Rows = Counter[tuple[str | None, ...]]


@lru_cache
def _python(peer: Peer) -> Path:
    try:
        return install(peer)
    except PeerMissing as error:
        pytest.skip(str(error))


def read_with(reader: str, **asked: Any) -> list[Rows]:
    """The rows at each of the snapshots, as texts, by "duckdb" or "spark". The test is skipped
    where the reader cannot be installed.
    """
    python = _python(SPARK if reader == "spark" else DUCKDB)
    question = json.dumps({"reader": reader, "format": "iceberg", "package": "", **asked})
    done = subprocess.run(
        [python, PROGRAM, question],
        capture_output=True,
        text=True,
        timeout=READ_S,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    if done.returncode and "unresolved dependency" in done.stderr:
        pytest.skip(f"{asked['package']} cannot be had from Maven")
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    return [Counter(tuple(row) for row in rows) for rows in answers]
