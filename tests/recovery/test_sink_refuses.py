"""Oracle: PostgreSQL's own settings: what they forbid is told by name with a way out, and what was
committed meanwhile is shown once they allow it again, by the process that was refused."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg2.errors
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.errors import SourceError
from service.runtime.settings import Settings
from service.setup.doctor import check_all
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database
from tests.harness.service import RunningService

pytestmark = pytest.mark.timeout(300)

WITHIN_S = 60.0


def _problem(service: RunningService) -> dict:
    """What the view says that keeps it from going on."""
    return service.call("GET", "/views/newest").json().get("error") or {}


def _doctor(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The codes of its problems, by what was looked at."""
    with monkeypatch.context() as patched:
        for name, value in service.environment.items():
            patched.setitem(os.environ, name, value)
        found = check_all(Settings.load())
    return {f.name: f.problem.code for f in found if f.problem is not None}


@pytest.mark.whole
def test_a_sink_that_cannot_be_written_is_tried_again_in_one_process(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE marker (id int PRIMARY KEY)")
    with (
        new_database(database.server) as sink,
        RunningService(database.dsn, tmp_path, sink=sink.dsn) as service,
    ):
        service.create("newest", "SELECT max(id) AS id FROM marker", backfill="local")
        sink.execute(f"ALTER DATABASE {sink.name} SET default_transaction_read_only = on")
        service.kill_child("pipeline")
        service.await_so(lambda: _problem(service).get("code") == "sink.read_only", WITHIN_S)
        assert _problem(service)["hint"]
        assert _problem(service)["title"] == "the sink is read-only"
        # So do sessions of the API that begin now; those in psql are not served either.
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        Database(sink.server, "postgres").execute(end, (sink.name,))
        other = {"name": "other", "query": "SELECT count(*) AS n FROM marker"}
        service.await_so(
            lambda: service.call("POST", "/views", other).json().get("code") == "sink.read_only"
        )
        with pytest.raises(psycopg2.errors.ReadOnlySqlTransaction) as caught:
            sink.execute("CALL tidemark.pause_view('newest')")
        assert "sink.read_only" in str(caught.value)
        with pytest.raises(psycopg2.errors.QueryCanceled) as waited:
            sink.execute("SELECT tidemark.wait('FFFFFFFF/0'::pg_lsn, '1 second')")
        assert "this database is read-only" in str(waited.value.diag.message_hint)
        shown = "SELECT status, code FROM tidemark.status WHERE name = 'newest'"
        service.await_so(lambda: sink.rows(shown) == [("degraded", "sink.read_only")], WITHIN_S)
        ((reasons,),) = sink.rows("SELECT reasons FROM tidemark.health")
        what = "this database is read-only: no service can write to it"
        assert reasons == [f"{what} [sink.read_only]"]
        pid = service.pid_of("pipeline")
        database.execute("INSERT INTO marker VALUES (7)")
        health = service.call("GET", "/health").json()
        assert any("sink.read_only" in reason for reason in health["reasons"]), health
        assert _doctor(service, monkeypatch)["service: group default"] == "sink.read_only"
        assert sink.rows("SELECT id FROM newest") == [(None,)]
        admin = Database(sink.server, "postgres")
        admin.execute(f"ALTER DATABASE {sink.name} RESET default_transaction_read_only")
        service.await_so(lambda: sink.rows("SELECT id FROM newest") == [(7,)], WITHIN_S)
        service.await_so(lambda: not _problem(service), WITHIN_S)
        assert service.call("POST", "/views?wait_s=60", other).status_code == 201
        service.await_so(lambda: sink.rows(shown) == [("live", None)], WITHIN_S)
        sink.execute("CALL tidemark.pause_view('newest')")
        assert service.pid_of("pipeline") == pid, "it began again in the process that was refused"


def _restart_with(server: EmbeddedPostgres, level: str) -> None:
    server.stop()
    server._settings["wal_level"] = level
    server.start()


@pytest.mark.whole
def test_a_source_that_does_not_decode_is_reported_and_followed_once_it_does(
    database: Database, tmp_path: Path
) -> None:
    """At the start, where views are refused; and after a restart of PostgreSQL, which does not even
    start with our slot, so that its views stay as they are."""
    query = "SELECT max(id) AS id FROM marker"
    settings = {**SERVER_SETTINGS, "wal_level": "replica"}
    with EmbeddedPostgres(settings=settings) as server:
        source = Database(server, "postgres")
        source.execute("CREATE TABLE marker (id int PRIMARY KEY)")
        with RunningService(source.dsn, tmp_path, sink=database.dsn) as service:
            answer = service.call("POST", "/views", {"name": "newest", "query": query})
            told = answer.json()
            assert (answer.status_code, told["code"]) == (422, "source.wal_level"), told
            assert "wal_level = logical" in told["hint"]
            _restart_with(server, "logical")
            service.create("newest", query, backfill="local")
            with pytest.raises(SourceError, match="did not start"):
                _restart_with(server, "replica")
            view = lambda: service.call("GET", "/views/newest").json()  # noqa: E731
            service.await_so(lambda: "source.unreachable" in str(view()["warnings"]), WITHIN_S)
            assert database.rows("SELECT id FROM newest") == [(None,)]
            _restart_with(server, "logical")
            source.execute("INSERT INTO marker VALUES (7)")
            service.await_so(lambda: database.rows("SELECT id FROM newest") == [(7,)], WITHIN_S)
