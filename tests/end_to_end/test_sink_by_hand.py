"""Oracle: PostgreSQL's own answer for every view whose table nobody but Tidemark touched.

The others fail alone, in the epoch that meets what was done to them, and say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.tiers import is_fast

TABLE = """
CREATE TABLE items (id int PRIMARY KEY, kind text NOT NULL, amount int);
INSERT INTO items SELECT i, 'k' || i % 5, i FROM generate_series(1, 200) i;
CREATE TABLE still (id int PRIMARY KEY, kind text);
INSERT INTO still VALUES (1, 'a');
"""
# Ahead of PostgreSQL's own in the path that triggers of users see, and no statement of ours.
HIJACK = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.never(int, int) RETURNS bool LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'hijacked'; END $$;
CREATE FUNCTION evil.never(bigint, bigint) RETURNS bool LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'hijacked'; END $$;
CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.never);
CREATE OPERATOR evil.<> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.never);
"""
# What somebody does to a view's table: the statements, the code, and what names the culprit.
# Past the guard: as one who knows it and wants to.
PAST = (
    'ALTER TABLE {0} DISABLE TRIGGER "0_tidemark"; {1};'
    'ALTER TABLE {0} ENABLE ALWAYS TRIGGER "0_tidemark"'
)
RAISE = "RAISE EXCEPTION 'not with me' USING ERRCODE = '{}'"
KEYED, MULTISET = "SELECT id, kind, amount FROM items", "SELECT kind FROM items"
BY_HAND = {
    "dropped": (KEYED, "DROP TABLE dropped", "sink.table_missing", "public.dropped"),
    "renamed": (
        KEYED,
        "ALTER TABLE renamed RENAME TO elsewhere",
        "sink.table_changed",
        "elsewhere",
    ),
    "emptied": (KEYED, PAST.format("emptied", "TRUNCATE emptied"), "sink.row_missing", ""),
    "narrowed": (KEYED, "ALTER TABLE narrowed DROP COLUMN kind", "sink.table_changed", "kind"),
    "retyped": (
        KEYED,
        "ALTER TABLE retyped ALTER COLUMN amount TYPE numeric(9, -1)",
        "sink.table_changed",
        "amount",
    ),
    "widened": (KEYED, "ALTER TABLE widened ADD extra int", "sink.table_changed", "extra"),
    "guarded": (
        KEYED,
        "ALTER TABLE guarded ADD CONSTRAINT few CHECK (amount < 0) NOT VALID",
        "sink.constraint",
        "few",
    ),
    "written": (
        KEYED,
        PAST.format("written", "INSERT INTO written VALUES (900, 'a', 1)"),
        "sink.key_violation",
        "900",
    ),
    "forged": (
        MULTISET,
        PAST.format("_forged", "UPDATE _forged SET __h = gen_random_uuid()"),
        "sink.row_missing",
        "",
    ),
    "uncovered": (MULTISET, "DROP VIEW uncovered", "sink.table_missing", "uncovered"),
    "covered": (
        MULTISET,
        "CREATE OR REPLACE VIEW public.covered AS SELECT 'x'::text AS kind FROM _covered",
        "sink.table_changed",
        "covered",
    ),
    "unguarded": (
        KEYED,
        'ALTER TABLE unguarded DISABLE TRIGGER "0_tidemark"',
        "sink.table_changed",
        "guard",
    ),
    "unkeyed": (
        KEYED,
        "ALTER TABLE unkeyed DROP CONSTRAINT unkeyed_pkey",
        "sink.table_changed",
        "key",
    ),
    "inherited": (KEYED, "CREATE TABLE heir () INHERITS (inherited)", "sink.table_changed", ""),
    "unlogged": (KEYED, "ALTER TABLE unlogged SET UNLOGGED", "sink.table_changed", "unlogged"),
    "ruled": (
        KEYED,
        "CREATE RULE silent AS ON DELETE TO ruled DO INSTEAD NOTHING",
        "sink.table_changed",
        "silent",
    ),
    "rewritten": (
        KEYED,
        "CREATE FUNCTION rewrite() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.amount := 0; RETURN NEW; END $$;"
        "CREATE TRIGGER rewrites BEFORE INSERT OR UPDATE ON rewritten"
        " FOR EACH ROW EXECUTE FUNCTION rewrite()",
        "sink.table_changed",
        "rewrites",
    ),
}
# Triggers of users that only observe, and fail: by the SQLSTATE that they raise, or else.
FAILING = {
    "raises": ("AFTER INSERT OR UPDATE OR DELETE", RAISE.format("P0001")),
    "lacks_a_table": ("AFTER UPDATE", "INSERT INTO no_such_table VALUES (1)"),
    "pretends_a_lock": ("AFTER UPDATE", RAISE.format("55P03")),
    "pretends_a_deadlock": ("AFTER UPDATE", RAISE.format("40P01")),
    "pretends_a_shutdown": ("AFTER UPDATE", RAISE.format("57P01")),
    "deferred": ("DEFERRED", RAISE.format("55P03")),
    "deferred_too": ("DEFERRED", "PERFORM 1 / 0"),
    "writes_back": ("AFTER UPDATE", "UPDATE writes_back SET amount = 0"),
}
GOOD = {
    "untouched": "SELECT kind, count(*) AS n FROM items GROUP BY kind",
    "indexed": "SELECT id, kind, amount FROM items WHERE amount > 50",
    "observed": "SELECT id, amount FROM items",
    "observed_last": "SELECT id, kind FROM items",
}
OBSERVED = """
CREATE TABLE seen (name text, id int, path text);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    -- Without a schema, as the role finds it in any other session.
    INSERT INTO seen VALUES (TG_TABLE_NAME, NEW.id, current_setting('search_path'));
    RETURN NULL; END $$;
CREATE TRIGGER sees AFTER INSERT OR UPDATE ON observed FOR EACH ROW EXECUTE FUNCTION see();
CREATE CONSTRAINT TRIGGER sees AFTER INSERT OR UPDATE ON observed_last
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see();
"""
WRITES = (
    "INSERT INTO untouched VALUES ('mine', 1)",
    "UPDATE untouched SET n = 0",
    "DELETE FROM untouched",
    "TRUNCATE untouched",
    "COPY untouched FROM PROGRAM $$printf 'mine\\t1\\n'$$",
    "SET session_replication_role = replica; INSERT INTO untouched VALUES ('mine', 1)",
    "SET tidemark.epoch = '1'; DELETE FROM untouched",
    "MERGE INTO untouched USING (VALUES (1)) AS v ON true WHEN MATCHED THEN DELETE",
)
# Of those with one code one.
FAST = {"retyped", "uncovered", "unkeyed", "unlogged", "inherited"}
DONE = {n: done for n, done in BY_HAND.items() if not (is_fast() and n in FAST)}


def failing(name: str) -> str:
    when, body = FAILING[name]
    function = (
        f"CREATE FUNCTION f_{name}() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {body}; RETURN NULL; END $$;"
    )
    if when != "DEFERRED":
        return f"{function} CREATE TRIGGER t_{name} {when} ON {name} EXECUTE FUNCTION f_{name}()"
    return (
        f"{function} CREATE CONSTRAINT TRIGGER t_{name} AFTER UPDATE ON {name} DEFERRABLE"
        f" INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f_{name}()"
    )


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute(TABLE)
    database.execute(HIJACK)
    path = "SET search_path = evil, public, pg_catalog"
    database.execute(f"ALTER DATABASE {database.name} {path}")
    with RunningService(database.dsn, tmp_path) as running:
        yield running


def test_only_views_that_were_touched_fail(service: RunningService, database: Database) -> None:
    """Whatever was done to the others, and by whichever trigger of a user."""
    queries = {name: query for name, (query, *_) in DONE.items()}
    queries |= dict.fromkeys(FAILING, KEYED) | GOOD
    for name, query in queries.items():
        service.create(name, query, wait_s=0, backfill="local")
    for name in queries:
        service.await_status(name)
    for statement in WRITES:
        with pytest.raises(psycopg2.DatabaseError, match="maintained by Tidemark"):
            database.execute(statement)
    database.execute("CREATE INDEX ON indexed (kind); COMMENT ON TABLE indexed IS 'mine'")
    database.execute("VACUUM FULL indexed")
    database.execute(OBSERVED)
    pid = service.pid_of("pipeline")
    database.execute("; ".join(statement for _, statement, *_ in DONE.values()))
    database.execute("; ".join(map(failing, FAILING)))
    database.execute(
        "UPDATE items SET amount = amount + 1, kind = kind || 'x' WHERE id < 150;"
        " INSERT INTO items VALUES (900, 'k', 1); DELETE FROM items WHERE id BETWEEN 20 AND 30"
    )
    for name, (_, _, code, word) in DONE.items():
        error = service.await_status(name, "failed")["error"]
        assert (error["code"], word in error["title"]) == (code, True), error
        assert error["hint"]
    for name in FAILING:
        error = service.await_status(name, "failed")["error"]
        assert error["code"] == "sink.trigger_failed", (name, error)
        assert f"t_{name}" in error["title"], error
    database.execute("UPDATE items SET amount = 0 WHERE id > 100")
    position = flush_position(database)
    for name, query in GOOD.items():
        service.wait(name, position)
        assert_equal(database, name, query)
    for name in ("observed", "observed_last"):
        seen = database.rows(f"SELECT DISTINCT path FROM seen WHERE name = '{name}' AND id > 100")
        assert seen == database.rows("SHOW search_path"), name
    assert service.pid_of("pipeline") == pid
    # A view of the same name can be made where one was failed, and one can be rebuilt.
    service.drop("narrowed")
    service.create("narrowed", KEYED, backfill="local")
    database.execute("DROP TRIGGER rewrites ON rewritten")
    assert service.call("POST", "/views/rewritten/rebuild").status_code < 300
    service.await_status("rewritten")
    for name in ("narrowed", "rewritten"):
        assert_equal(database, name, KEYED)


def test_nothing_need_change_for_a_table_to_be_found(
    service: RunningService, database: Database
) -> None:
    """No epoch comes to it; and one that an older version has made is guarded at the start."""
    service.create("idle", "SELECT id, kind FROM still", backfill="local")
    service.create("older", "SELECT id FROM still", backfill="local")
    service.stop()
    database.execute(
        'DROP TRIGGER "0_tidemark" ON older; UPDATE tidemark.tables SET shape = NULL'
        " WHERE name = 'older'"
    )
    service.start()
    service.await_so(
        lambda: database.rows("SELECT 1 FROM tidemark.tables WHERE shape IS NULL") == []
    )
    with pytest.raises(psycopg2.DatabaseError, match="maintained by Tidemark"):
        database.execute("DELETE FROM older")
    database.execute("ALTER TABLE idle ADD extra int")
    error = service.await_status("idle", "failed")["error"]
    assert error["code"] == "sink.table_changed"
    assert "column extra was added" in error["title"]
    database.execute("INSERT INTO still VALUES (2, 'b')")
    service.wait("older", flush_position(database))
    assert database.rows("TABLE older ORDER BY 1") == [(1,), (2,)]


@pytest.mark.whole
def test_a_view_over_one_that_was_touched_fails_with_it(
    service: RunningService, database: Database
) -> None:
    service.create("untouched", GOOD["untouched"], backfill="local")
    service.create("parent", "SELECT id, kind FROM still", backfill="local")
    pid = service.pid_of("pipeline")
    # Nothing comes for it, so nobody has noticed yet.
    database.execute("ALTER TABLE parent DROP COLUMN kind")
    service.create("child", "SELECT id FROM parent", wait_s=0, backfill="local")
    assert service.await_status("parent", "failed")["error"]["code"] == "sink.table_changed"
    error = service.await_status("child", "failed")["error"]
    # Whether it was planned before the other had failed.
    assert error["code"] in ("sink.table_changed", "view.parent_failed"), error
    database.execute("UPDATE items SET amount = 0 WHERE id > 100")
    service.wait("untouched", flush_position(database))
    assert_equal(database, "untouched", GOOD["untouched"])
    assert service.pid_of("pipeline") == pid
