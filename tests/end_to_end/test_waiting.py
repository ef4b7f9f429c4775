"""Oracle: what is in the way of a view that is not live is known here, since it was put there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database, versions_to_test
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, i FROM generate_series(1, 9) i;
CREATE TABLE other (id int PRIMARY KEY);
CREATE TABLE told (v int, id int GENERATED ALWAYS AS (v * 2) STORED PRIMARY KEY);
CREATE TABLE kept (v int, u int NOT NULL UNIQUE, id int GENERATED ALWAYS AS (v * 2) STORED
    PRIMARY KEY);
INSERT INTO told VALUES (1); INSERT INTO kept VALUES (1, 1);
ALTER TABLE kept REPLICA IDENTITY USING INDEX kept_u_key;
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Database]:
    settings = {**SERVER_SETTINGS, "max_prepared_transactions": 4}
    with (
        EmbeddedPostgres(max(versions_to_test()), settings) as server,
        new_database(server) as found,
    ):
        found.execute(TABLES)
        yield found


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(place.dsn, tmp_path_factory.mktemp("waiting")) as running:
        yield running


def await_told(service: RunningService, name: str, *words: str) -> dict:
    """Until the view says what it waits for, before it is live."""
    found: dict = {}

    def is_reported() -> bool:
        view = service.call("GET", f"/views/{name}").json()
        assert view["status"] != "live", view
        found.update(view["error"] or {})
        return all(word in str(view["error"]) for word in words)

    service.await_so(is_reported, 60)
    return found


@pytest.mark.whole
def test_an_open_transaction(place: Database, service: RunningService) -> None:
    """The first view waits for its slot, the second for its snapshot."""
    for name in ("first", "second"):
        holder = place.connect(autocommit=False)
        holder.cursor().execute("INSERT INTO other VALUES (1)")
        service.create(
            name, "SELECT v, count(*) AS n FROM t GROUP BY v", wait_s=0, backfill="local"
        )
        pid = holder.info.backend_pid
        error = await_told(service, name, f"pid {pid}", 'user "postgres"', "open for")
        assert error["code"] == "source.busy" and str(pid) in error["hint"]
        holder.rollback()
        holder.close()
        assert service.await_status(name)["error"] is None


@pytest.mark.whole
def test_a_prepared_transaction(place: Database, service: RunningService) -> None:
    place.execute("BEGIN; INSERT INTO other VALUES (2); PREPARE TRANSACTION 'left behind'")
    service.create("third", "SELECT id FROM t", wait_s=0, backfill="local")
    error = await_told(service, "third", "left behind", 'user "postgres"')
    assert "ROLLBACK PREPARED 'left behind'" in error["hint"]
    place.execute("ROLLBACK PREPARED 'left behind'")
    assert service.await_status("third")["error"] is None


@pytest.mark.whole
def test_a_key_that_is_generated(place: Database, service: RunningService) -> None:
    """It is not sent: refused by name, unless other columns tell the rows apart."""
    body = {"name": "keyed", "query": "SELECT id, v FROM told"}
    answer = service.call("POST", "/views?wait_s=30", body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "source.no_identity" and '"id"' in answer.json()["detail"]
    service.create("by_index", "SELECT id, v FROM kept", backfill="local")
    place.execute("INSERT INTO kept VALUES (2, 2); UPDATE kept SET v = 5 WHERE u = 1")
    service.await_so(lambda: place.rows("TABLE by_index ORDER BY 1") == [(4, 2), (10, 5)])
    place.execute("UPDATE told SET v = 3; DELETE FROM told")
