"""Oracle: PostgreSQL, whose slots are named across a server, so that no two databases have one."""

from __future__ import annotations

import psycopg2
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.replication.slot import database_name
from connectors.postgres.source import PostgresSource
from dataflow.errors import TemporaryError
from tests.connectors.postgres.test_refusals import refused
from tests.harness.postgres import new_database


def test_two_databases_of_one_server(postgres: EmbeddedPostgres) -> None:
    """Each has its own, also beside one that is called as all were once."""
    with new_database(postgres) as first, new_database(postgres) as second:
        first.execute("SELECT pg_create_logical_replication_slot('tidemark_source', 'pgoutput')")
        sources = [PostgresSource(d.dsn) for d in (first, second)]
        for source in sources:
            source.check()
            source.ensure_slot()
        assert sources[0].slot_name == "tidemark_source"
        assert sources[1].slot_name == f"tidemark_{second.name}_source"
        assert first.rows(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = ANY(%s)",
            ([s.slot_name for s in sources],),
        ) == [(2,)]
        for source in sources:
            source.drop_slot()
            source.close()


def test_a_name_that_is_taken(postgres: EmbeddedPostgres) -> None:
    """By whoever: it is refused, left as it is, and the hint names the way out."""
    with new_database(postgres) as first, new_database(postgres) as second:
        name = f"tidemark_{first.name}_source"
        second.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        source = PostgresSource(first.dsn)
        for call in (source.check, source.ensure_slot):
            error = refused(call)
            assert error.code == "source.slot_foreign" and "--prefix" in error.hint
        source.drop_slot()
        assert second.rows(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (name,)
        ) == [(1,)]
        other = PostgresSource(first.dsn, prefix="mine")
        other.ensure_slot()
        other.drop_slot()
        for opened in (source, other):
            opened.close()


@pytest.mark.parametrize("name", ["Shop", "shop-1", "shop_1", "ä", "shop_source", "x" * 63])
def test_names_of_all_letters_and_lengths(name: str) -> None:
    names = {
        database_name("tidemark", d, s) for d in (name, "shop") for s in ("source", "source_a")
    }
    assert len(names) == 4 and all(len(n) <= 63 for n in names)
    assert all(n.isascii() and n.islower() for n in names)


@pytest.mark.whole
def test_a_slot_that_waits_names_what_for(own_postgres: EmbeddedPostgres) -> None:
    with new_database(own_postgres) as place:
        holder = psycopg2.connect(place.dsn)
        holder.cursor().execute("CREATE TABLE held (id int)")
        pid = holder.info.backend_pid
        source = PostgresSource(place.dsn)
        with pytest.raises(TemporaryError) as caught:
            source.ensure_slot()
        error = caught.value
        assert error.code == "source.busy" and f"pid {pid}, user" in error.detail
        assert "open for" in error.detail and f"pg_terminate_backend({pid})" in error.hint
        holder.rollback()
        source.ensure_slot()
        assert source.open_transactions(0) is None
        source.drop_slot()
        source.close()
        holder.close()
