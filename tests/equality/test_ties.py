"""Oracle: PostgreSQL's answer to the same query with the extreme in a subquery of its own.

To the query as it stands PostgreSQL has no answer while its plan reads an extreme, which several
rows have, from the end of a sorted table: it fails (docs/SQL.md).
"""

from __future__ import annotations

from pathlib import Path

import psycopg2
import pytest

from tests.harness.postgres import Database
from tests.harness.service import RunningService

ASKED = "SELECT max(a) AS top FROM t ORDER BY max(a) FETCH FIRST 2 ROWS WITH TIES"
MEANT = "SELECT top FROM (SELECT max(a) AS top FROM t) m ORDER BY top FETCH FIRST 2 ROWS WITH TIES"
CHANGES = ("UPDATE t SET a = 8 WHERE id % 5 = 0", "DELETE FROM t WHERE a = 8", "DELETE FROM t")


@pytest.mark.whole
def test_an_extreme_that_several_rows_have(every_database: Database, tmp_path: Path) -> None:
    database = every_database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int); CREATE INDEX ON t (a); "
        "INSERT INTO t SELECT i, i % 7 FROM generate_series(1, 1000) i; ANALYZE t"
    )
    with pytest.raises(psycopg2.errors.CardinalityViolation):
        database.rows(ASKED)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("tops", ASKED, backfill="local")
        for change in ("SELECT", *CHANGES):
            database.execute(change)
            position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
            service.wait("tops", position)
            assert database.rows("TABLE tops") == database.rows(MEANT), change
