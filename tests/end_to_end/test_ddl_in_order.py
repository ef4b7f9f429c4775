"""Oracle: PostgreSQL's own answer to each query, asked at the position that the view has reached.

After every statement of DDL the views equal it again: untouched, under the new name, or rebuilt
with their old rows readable meanwhile. Where there is no such answer, the view says why.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from storage.failpoints import REACHED
from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.failpoints import arm
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

Case = tuple[RunningService, Database]
Queries = Mapping[str, str]


@pytest.fixture(scope="module")
def case(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """What the catalog of each version says is in test_table_facts.py."""
    folder = tmp_path_factory.mktemp("service")
    with new_database(postgres) as database, RunningService(database.dsn, folder) as service:
        yield service, database


def create(case: Case, queries: Queries) -> None:
    for name, query in queries.items():
        case[0].create(name, query, backfill="local")


def check(case: Case, queries: Queries) -> None:
    service, database = case
    position = flush_position(database)
    for name, query in queries.items():
        service.wait(name, position, 60)
        assert_equal(database, name, query)


def is_untouched(case: Case, queries: Queries, before: Mapping[str, str]) -> None:
    """None of the views was rebuilt."""
    for name in queries:
        assert case[0].call("GET", f"/views/{name}").json()["live_at"] == before[name], name


def live_since(case: Case, queries: Queries) -> dict[str, str]:
    """Told a moment after the view is called live."""
    found = lambda: {n: case[0].call("GET", f"/views/{n}").json()["live_at"] for n in queries}  # noqa: E731
    case[0].await_so(lambda: all(found().values()), 20)
    return found()


def assert_warned(service: RunningService, name: str, *words: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        warnings = "; ".join(service.call("GET", f"/views/{name}").json()["warnings"])
        if all(word in warnings for word in words):
            return
        assert time.monotonic() < deadline, warnings
        time.sleep(0.1)


def drop(case: Case, names: list[str]) -> None:
    for name in names:
        case[0].drop(name)


ITEMS = """
CREATE SCHEMA other;
CREATE TABLE items (spare int, id int PRIMARY KEY, kind text, amount numeric(8,2), more text);
CREATE TABLE kinds (kind text PRIMARY KEY, title text);
INSERT INTO items SELECT i, i, 'k' || i % 5, i / 7.0, 'm' FROM generate_series(1, 300) i;
INSERT INTO kinds SELECT 'k' || i, 'title ' || i FROM generate_series(0, 3) i;
"""
OF_ITEMS = {
    "items_by_kind": "SELECT {kind} AS kind, count(*) AS n, sum(amount) AS total FROM {items}"
    " GROUP BY {kind}",
    "items_titled": "SELECT i.id, k.title FROM {items} i LEFT JOIN kinds k ON k.kind = i.{kind}",
}
# Statements, and what table and column are called from then on. {id} is a fresh number.
HARMLESS = [
    ("ALTER TABLE items ADD COLUMN a int DEFAULT 5, ADD b text NOT NULL DEFAULT 'b'", {}),
    ("ALTER TABLE items ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED", {}),
    ("ALTER TABLE items DROP COLUMN spare", {}),
    ("ALTER TABLE items RENAME COLUMN more TO much", {}),
    ("ALTER TABLE items ALTER COLUMN a TYPE numeric(10,3)", {}),
    ("ALTER TABLE items REPLICA IDENTITY FULL", {}),
    ("ALTER TABLE items RENAME COLUMN kind TO sort", {"kind": "sort"}),
    ("ALTER TABLE items RENAME TO things", {"items": "things"}),
    ("ALTER TABLE things SET SCHEMA other", {"items": "other.things"}),
    ("ALTER TABLE other.things ADD COLUMN kind text DEFAULT 'not this one'", {}),
    ("ALTER TABLE other.things REPLICA IDENTITY DEFAULT", {}),
]
CHANGE = (
    "INSERT INTO {items} (id, {kind}, amount) VALUES ({id}, 'k1', 3);"
    " UPDATE {items} SET amount = amount + 1, {kind} = 'k2' WHERE id % 9 = {id} % 9;"
    " DELETE FROM {items} WHERE id % 61 = {id} % 61;"
)


def test_what_views_do_not_use_and_what_is_renamed(case: Case) -> None:
    """Rows of the same transaction come in the shape before and in the shape after."""
    service, database = case
    database.execute(ITEMS)
    names = {"items": "items", "kind": "kind"}
    create(case, {n: q.format(**names) for n, q in OF_ITEMS.items()})
    since = live_since(case, OF_ITEMS)
    for number, (ddl, changed) in enumerate(HARMLESS):
        before = CHANGE.format(id=1000 + number, **names)
        names |= changed
        database.execute(f"{before} {ddl}; {CHANGE.format(id=2000 + number, **names)}")
        queries = {n: q.format(**names) for n, q in OF_ITEMS.items()}
        check(case, queries)
        if number == len(HARMLESS) // 2:
            assert service.kill_child("pipeline")
    database.execute(f"UPDATE {names['items']} SET kind = 'k9'")
    check(case, queries)
    is_untouched(case, queries, since)
    assert_warned(service, "items_by_kind", '"other.things"', '"sort"')
    # The names are free, but not beside a view that still knows the table by them.
    database.execute("CREATE TABLE items (id int PRIMARY KEY, kind text)")
    later = "SELECT kind, count(*) AS n FROM other.things GROUP BY kind"
    create(case, {"later": later})
    refused = service.call("POST", "/views?wait_s=30", {"name": "x", "query": "TABLE items"})
    assert refused.json()["error"]["code"] == "source.name_in_use"
    database.execute("UPDATE other.things SET kind = 'k' || id % 3, sort = 'z' WHERE id % 2 = 0")
    check(case, {**queries, "later": later})
    drop(case, [*queries, "later", "x"])


SOLD = """
CREATE TABLE sold (id int PRIMARY KEY, shop text, amount int) PARTITION BY RANGE (id);
CREATE TABLE sold1 PARTITION OF sold FOR VALUES FROM (0) TO (100);
CREATE TABLE sold2 PARTITION OF sold FOR VALUES FROM (100) TO (200);
CREATE TABLE shops (shop text PRIMARY KEY, town text);
INSERT INTO sold SELECT i, 's' || i % 4, i FROM generate_series(1, 199) i;
INSERT INTO shops SELECT 's' || i, 't' || i % 2 FROM generate_series(0, 2) i;
CREATE VIEW big_sold AS SELECT id, amount FROM sold WHERE amount > 50;
"""
# Each as it is asked for, and as PostgreSQL is asked for it once all is called otherwise.
OF_SOLD = {
    "sold_by_shop": (
        "SELECT shop, count(*) AS n, sum(amount) FROM sold GROUP BY shop",
        "SELECT store AS shop, count(*) AS n, sum(amount) FROM sales GROUP BY store",
    ),
    "sold_in_town": (
        "SELECT s.*, town FROM Public.Sold s LEFT JOIN shops USING (shop)",
        "SELECT id, store AS shop, amount, town FROM sales LEFT JOIN stores ON store = name",
    ),
    "sold_whole": (
        "WITH w AS (SELECT amount, shop FROM sold AS x(n, outlet, amount)"
        " JOIN shops ON shop = outlet) TABLE w",
        "SELECT amount, name AS shop FROM sales JOIN stores ON name = store",
    ),
    "sold_big": (
        "SELECT count(*) AS n, sum(amount) FROM big_sold",
        "SELECT count(*) AS n, sum(amount) FROM sales WHERE amount > 50",
    ),
}
SOLD_RENAMED = """
ALTER TABLE sold RENAME TO sales; ALTER TABLE sales RENAME shop TO store;
ALTER TABLE shops RENAME shop TO name; ALTER TABLE shops RENAME TO stores;
ALTER TABLE stores ADD COLUMN shop text DEFAULT 'not this one';
ALTER VIEW big_sold RENAME amount TO worth; ALTER VIEW big_sold RENAME TO much_sold;
CREATE TABLE sold (id int PRIMARY KEY, shop text, amount int);
INSERT INTO sold VALUES (1, 'another table', 1);
"""
SOLD_CHANGE = (
    "UPDATE sales SET amount = amount + {0} WHERE id % 7 = {0}; UPDATE stores SET town = {0}"
)


@pytest.mark.whole
def test_views_of_renamed_tables_are_built_again(case: Case) -> None:
    """As PostgreSQL's own views they read what they read, whatever has the name by now: on a
    rebuild, where a partition is truncated, and when the state is lost."""
    service, database = case
    database.execute(SOLD)
    create(case, {name: asked for name, (asked, _) in OF_SOLD.items()})
    database.execute(SOLD_RENAMED)
    queries = {name: renamed for name, (_, renamed) in OF_SOLD.items()}
    for name in queries:
        answer = service.call("POST", f"/views/{name}/verify").json()
        assert answer.get("result") == "equal", answer
    check(case, queries)
    assert_warned(service, "sold_by_shop", '"public.sales"', '"store"')
    asked = service.call("POST", "/views/sold_by_shop/rebuild?wait_s=60").json()
    assert asked["status"] == "live" and '"sales" AS "sold"' in asked["query"]
    assert not [w for w in asked["warnings"] if "renamed" in w]
    database.execute(SOLD_CHANGE.format(1))
    check(case, queries)
    database.execute("TRUNCATE sold1; " + SOLD_CHANGE.format(2))
    check(case, queries)
    service.stop()
    shutil.rmtree(service.state)
    database.execute(SOLD_CHANGE.format(3))
    service.start()
    database.execute(SOLD_CHANGE.format(4))
    check(case, queries)
    drop(case, [*queries])


def test_a_name_that_cannot_be_put_into_a_query(case: Case) -> None:
    service, database = case
    database.execute("CREATE TABLE spelled (id int PRIMARY KEY, a int)")
    create(case, {"spelled_out": "SELECT public.spelled.id FROM spelled"})
    database.execute("ALTER TABLE spelled RENAME TO renamed; INSERT INTO renamed VALUES (1, 2)")
    check(case, {"spelled_out": "SELECT id FROM renamed"})
    refused = service.call("POST", "/views/spelled_out/rebuild?wait_s=30")
    assert (refused.status_code, refused.json()["code"]) == (422, "source.renamed")
    assert '"public.renamed"' in refused.json()["detail"]
    replaced = {"query": "SELECT id FROM renamed"}
    assert service.call("POST", "/views/spelled_out/replace?wait_s=60", replaced).status_code == 200
    check(case, {"spelled_out": replaced["query"]})
    drop(case, ["spelled_out"])


@pytest.mark.whole
def test_the_first_view_of_a_service_continues_too(database: Database, tmp_path: Path) -> None:
    """Its stream is opened before anything is known of the table."""
    database.execute("CREATE TABLE first (id int PRIMARY KEY, a int)")
    with RunningService(database.dsn, tmp_path) as service:
        case = service, database
        create(case, {"ones": "SELECT id, a FROM first"})
        since = live_since(case, {"ones": ""})
        for column, before in (("b", "a"), ("c", "b")):
            database.execute(f"ALTER TABLE first RENAME {before} TO {column}")
            database.execute("INSERT INTO first VALUES ((SELECT count(*) + 1 FROM first), 5)")
            check(case, {"ones": f"SELECT id, {column} AS a FROM first"})
        is_untouched(case, {"ones": ""}, since)


def test_a_column_that_only_a_paused_view_used(case: Case) -> None:
    """The stream was opened for that view too, and continues without it."""
    service, database = case
    database.execute("CREATE TABLE shared (id int PRIMARY KEY, a int, b int)")
    kept = {"of_a": "SELECT id, a FROM shared"}
    create(case, {**kept, "of_b": "SELECT id, b FROM shared"})
    since = live_since(case, kept)
    assert service.call("POST", "/views/of_b/pause?wait_s=30").json()["status"] == "paused"
    database.execute("INSERT INTO shared VALUES (1, 2, 3)")
    database.execute("ALTER TABLE shared DROP COLUMN b; INSERT INTO shared VALUES (2, 3)")
    check(case, kept)
    is_untouched(case, kept, since)
    drop(case, ["of_a", "of_b"])


PARTS = """
CREATE TABLE part (id int PRIMARY KEY, v int, note text) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (100) TO (200);
CREATE TABLE part3 PARTITION OF part FOR VALUES FROM (200) TO (300);
CREATE TABLE filled (id int PRIMARY KEY, v int, note text);
CREATE TABLE beside (id int PRIMARY KEY, v int);
INSERT INTO part SELECT i, i % 7, 'n' FROM generate_series(1, 299) i;
INSERT INTO filled SELECT i, i % 7, 'f' FROM generate_series(300, 350) i;
INSERT INTO beside SELECT i, i FROM generate_series(1, 50) i;
"""
OF_PARTS = {
    "part_sums": "SELECT v, count(*) AS n, sum(id) AS ids FROM part GROUP BY v",
    "part_rows": "SELECT id, v FROM part WHERE v > 2",
}
BESIDE = {"beside_sum": "SELECT sum(v) AS v, count(*) AS n FROM beside"}
TOLD = [
    "TRUNCATE part; INSERT INTO part SELECT i, i % 5, 'x' FROM generate_series(1, 299) i",
    "BEGIN; INSERT INTO part VALUES (0, 1, ''); TRUNCATE part, beside RESTART IDENTITY CASCADE;"
    " INSERT INTO part SELECT i, i % 4, 'y' FROM generate_series(50, 299) i; COMMIT",
    "UPDATE part SET id = id + 150 WHERE id BETWEEN 50 AND 60 AND NOT EXISTS"
    " (SELECT FROM part p WHERE p.id = part.id + 150); UPDATE part SET id = id - 50 WHERE id = 99",
    "CREATE TABLE part5 PARTITION OF part FOR VALUES FROM (500) TO (600);"
    " INSERT INTO part VALUES (501, 3, 'z')",
]
UNTOLD = [
    "TRUNCATE part1; INSERT INTO part VALUES (7, 3, 'after')",
    "ALTER TABLE part DETACH PARTITION part2; DROP TABLE part3",
    "ALTER TABLE part ATTACH PARTITION filled FOR VALUES FROM (300) TO (400)",
]


@pytest.mark.whole
def test_whole_partitions(case: Case) -> None:
    service, database = case
    database.execute(PARTS)
    every = {**OF_PARTS, **BESIDE}
    create(case, every)
    since = live_since(case, every)
    above = "SELECT n, count(*) AS times FROM ({}) s GROUP BY n".format(OF_PARTS["part_sums"])
    for statement in TOLD:
        database.execute(statement)
        check(case, every)
    is_untouched(case, every, since)
    for number, statement in enumerate(UNTOLD):
        database.execute(statement)
        database.execute(f"INSERT INTO beside VALUES ({1000 + number}, 1)")
        # Old rows stay readable all the while.
        assert database.rows("SELECT count(*) >= 0 FROM part_rows") == [(True,)]
        check(case, every)
        database.execute("UPDATE part SET v = v + 1 WHERE id % 3 = 0")
        check(case, every)
    is_untouched(case, BESIDE, since)
    create(case, {"part_above": "SELECT n, count(*) AS times FROM part_sums GROUP BY n"})
    # While nobody looked: found when the pipeline is back, before anything newer is shown.
    database.execute(
        "INSERT INTO part SELECT i, 1, 'back' FROM generate_series(501, 520) i"
        " ON CONFLICT DO NOTHING"
    )
    service.kill()
    database.execute("UPDATE part SET v = 9 WHERE id = 501; TRUNCATE part5")
    database.execute("INSERT INTO part VALUES (502, 5, 'again')")
    service.start()
    check(case, {**every, "part_above": above})
    is_untouched(case, BESIDE, since)
    drop(case, ["part_above", *every])


COLUMNS = """
CREATE TABLE wide (id int PRIMARY KEY, a int NOT NULL, b varchar(9), c numeric(8,2), d text);
INSERT INTO wide SELECT i, i, 'b' || i % 4, i / 3.0, 'd' || i % 3 FROM generate_series(1, 200) i;
"""
OF_WIDE = {
    "over_a": "SELECT count(*) AS n FROM wide WHERE a > 20",
    "shows_a": "SELECT id, a FROM wide WHERE a > 150",
    "over_b": "SELECT length(b) AS size, count(*) AS n FROM wide GROUP BY 1",
    "over_c": "SELECT id, c > 10 AS is_much FROM wide",
    "over_d": "SELECT d, count(*) AS n FROM wide GROUP BY d",
    "ids": "SELECT count(*) AS n, max(id) AS last FROM wide",
}


def failed(case: Case, name: str) -> dict:
    return case[0].await_status(name, "failed", 30)["error"]


@pytest.mark.whole
def test_columns_in_use(case: Case) -> None:
    """Of another kind: an exact refusal where the view shows it. Dropped and added again: another
    column, though nothing of its name and type has changed."""
    database = case[1]
    database.execute(COLUMNS)
    create(case, OF_WIDE)
    since = live_since(case, OF_WIDE)
    change = (
        "UPDATE wide SET a = a + 1, c = c + 1 WHERE id % 5 = {0}; DELETE FROM wide WHERE id = {0}"
    )
    queries = dict(OF_WIDE)
    database.execute(
        f"{change.format(1)}; ALTER TABLE wide ALTER a TYPE float8; {change.format(2)}"
    )
    error = failed(case, "shows_a")
    assert error["code"] == "source.column_changed" and "double" in error["title"] + str(error)
    del queries["shows_a"]
    check(case, queries)
    is_untouched(case, {"over_b": "", "over_d": "", "ids": ""}, since)
    for number, ddl in enumerate(
        (
            "ALTER TABLE wide ALTER b TYPE text",
            "ALTER TABLE wide ALTER c TYPE numeric(12,3)",
            "ALTER TABLE wide ALTER a TYPE float8 USING a * 2",
            "ALTER TABLE wide ALTER a DROP NOT NULL; INSERT INTO wide VALUES (900, NULL)",
            "ALTER TABLE wide DROP COLUMN d; ALTER TABLE wide ADD COLUMN d text DEFAULT 'new'",
        ),
        3,
    ):
        database.execute(f"{change.format(number)}; {ddl}; {change.format(number + 10)}")
        check(case, queries)
    is_untouched(case, {"ids": ""}, since)
    database.execute("ALTER TABLE wide DROP COLUMN d")
    assert failed(case, "over_d")["code"] == "source.column_dropped"
    del queries["over_d"]
    database.execute("ALTER TABLE wide DROP CONSTRAINT wide_pkey, ADD COLUMN k serial PRIMARY KEY")
    database.execute("UPDATE wide SET a = 1 WHERE k = 70; INSERT INTO wide (id, a) VALUES (7, 8)")
    error = failed(case, "over_c")
    assert error["code"] == "source.key_changed" and "another key" in error["title"]
    del queries["over_c"]
    check(case, queries)
    drop(case, list(OF_WIDE))


OF_MOODS = {
    "mood_rows": "SELECT m, v FROM moody",
    "mood_groups": "SELECT m, count(*) AS n FROM moody GROUP BY m",
    "mood_keyed": "SELECT id, m FROM moody",
    "mood_past": "SELECT m FROM moody",
}


def test_labels_of_rows_without_a_key(case: Case) -> None:
    """A stored row is found by the hash of its text, which a new label changes; so does somebody
    who writes to the table."""
    service, database = case
    database.execute(
        "CREATE TYPE mood AS ENUM ('lo', 'hi'); CREATE TABLE moody (id int PRIMARY KEY, m mood,"
        " v int); INSERT INTO moody SELECT i, CASE WHEN i % 3 = 0 THEN 'hi' ELSE 'lo' END::mood,"
        " i % 2 FROM generate_series(1, 30) i"
    )
    for name, query in OF_MOODS.items():
        history = "1 day" if name == "mood_past" else "none"
        service.create(name, query, backfill="local", history=history)
    database.execute("CREATE VIEW of_ours AS SELECT m FROM mood_rows")
    database.execute("ALTER TYPE mood RENAME VALUE 'lo' TO 'low'")
    check(case, OF_MOODS)
    database.execute("DELETE FROM moody WHERE id < 5; UPDATE moody SET m = 'hi' WHERE id < 9")
    check(case, OF_MOODS)
    past = "SELECT count(*) FROM mood_past_history WHERE to_epoch IS NULL"
    assert database.rows(past) == database.rows("SELECT count(*) FROM moody")
    assert service.call("POST", "/views/mood_rows/pause?wait_s=30").json()["status"] == "paused"
    ((hidden,),) = database.rows(
        "SELECT table_oid::regclass::text FROM tidemark.tables WHERE name = 'mood_rows'"
    )
    database.forge(f"UPDATE {hidden} SET v = 7 WHERE v = 1; UPDATE moody SET v = 3 WHERE id = 9")
    assert service.call("POST", "/views/mood_rows/resume?wait_s=60").json()["status"] == "live"
    check(case, OF_MOODS)
    database.execute("UPDATE moody SET v = v + 1; DROP VIEW of_ours")
    check(case, OF_MOODS)
    drop(case, [*OF_MOODS])


NARROW = """
CREATE TABLE narrow (id int PRIMARY KEY, k varchar(4), a int, c numeric(8,2), t timestamp(0),
    h char(3), f real, v bit varying(4), l int[], i interval(0), e time(0));
CREATE TABLE beside_narrow (k varchar(4) PRIMARY KEY, w smallint);
INSERT INTO narrow SELECT i, 'k' || i % 4, i, i / 3.0, '2024-01-01'::timestamp + i * interval '1 h',
    'h' || i % 3, i / 4.0, B'101', ARRAY[i, NULL], i * interval '1 s', '10:00:00'
FROM generate_series(1, 40) i;
INSERT INTO beside_narrow SELECT 'k' || i, i FROM generate_series(0, 2) i;
CREATE ROLE narrow_reader;
"""
OF_NARROW = {
    "n_keyed": "SELECT id, a, k FROM narrow",
    "n_bag": "SELECT k, c, t, h, v, i, e FROM narrow",
    "n_groups": "SELECT k, count(*) AS n, sum(a) AS a, max(c) AS c, array_agg(a ORDER BY id) AS l"
    " FROM narrow GROUP BY k",
    "n_by_char": "SELECT h, min(t) AS t, sum(f) AS f FROM narrow GROUP BY h",
    "n_joined": "SELECT n.id, b.k, b.w, n.l FROM narrow n JOIN beside_narrow b ON b.k = n.k",
    "n_outer": "SELECT n.id, b.w FROM narrow n LEFT JOIN beside_narrow b USING (k)",
}
ABOVE_NARROW = {
    "n_above": "SELECT a, count(*) AS n FROM n_keyed WHERE id > 3 GROUP BY a",
    "n_above_that": "SELECT max(a) AS a, sum(n) AS n FROM n_above",
}
# Those that only change the catalog, and those that rewrite the table.
WIDER = (
    "ALTER TABLE narrow ALTER k TYPE varchar(40), ALTER c TYPE numeric(12,2), ALTER v TYPE"
    " bit varying(9), ALTER t TYPE timestamp(3), ALTER i TYPE interval(3);"
    " ALTER TABLE beside_narrow ALTER k TYPE text",
    "ALTER TABLE narrow ALTER id TYPE bigint, ALTER a TYPE bigint, ALTER c TYPE numeric,"
    " ALTER h TYPE char(9), ALTER f TYPE float8, ALTER l TYPE bigint[], ALTER e TYPE time",
    "ALTER TABLE narrow ALTER k TYPE text; ALTER TABLE beside_narrow ALTER w TYPE int",
)
CHANGE_NARROW = (
    "UPDATE narrow SET a = a + 1, c = c * 2 WHERE id % 5 = {0}; DELETE FROM narrow WHERE id = {0};"
    " INSERT INTO narrow (id, k, a) VALUES (100 + {0}, 'k{0}', 7);"
    " UPDATE beside_narrow SET w = w + 1 WHERE k = 'k{0}'"
)
TYPES_OF = """
SELECT array_agg(format_type(atttypid, atttypmod) ORDER BY attnum) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0
"""


@pytest.mark.whole
def test_wider_columns_are_followed(case: Case) -> None:
    """Also what views show themselves: their tables have the types of the query then."""
    service, database = case
    database.execute(NARROW)
    create(case, {**OF_NARROW, **ABOVE_NARROW})
    wanted = dict(OF_NARROW)
    keyed = f"({OF_NARROW['n_keyed']}) x"
    wanted["n_above"] = ABOVE_NARROW["n_above"].replace("n_keyed", keyed)
    above = f"({wanted['n_above']}) y"
    wanted["n_above_that"] = ABOVE_NARROW["n_above_that"].replace("n_above", above)
    database.execute("GRANT SELECT ON n_keyed TO narrow_reader; CREATE INDEX ours ON n_keyed (a)")
    for number, ddl in enumerate(WIDER, 1):
        change = CHANGE_NARROW.format
        database.execute(f"{change(number)}; {ddl}; {change(number + 5)}")
        # Old rows stay readable all the while.
        assert database.rows("SELECT count(*) > 0 FROM n_keyed") == [(True,)]
        check(case, wanted)
        for name, query in wanted.items():
            database.execute(f"CREATE VIEW as_asked AS {query}")
            types = (database.rows(TYPES_OF, (n,)) for n in (name, "as_asked"))
            assert next(types) == next(types), name
            database.execute("DROP VIEW as_asked")
        database.execute(change(number + 10))
        check(case, wanted)
    kept = "SELECT has_table_privilege('narrow_reader', 'n_keyed', 'SELECT'), to_regclass('ours')"
    assert database.rows(f"{kept} IS NOT NULL") == [(True, True)]
    service.kill()
    database.execute("ALTER TABLE narrow ALTER a TYPE numeric; " + CHANGE_NARROW.format(30))
    service.start()
    check(case, wanted)
    # What uses the view's table keeps it from being replaced, and is named.
    database.execute("CREATE VIEW on_bag AS SELECT c FROM n_bag")
    database.execute("ALTER TABLE narrow ALTER h TYPE text")
    error = failed(case, "n_bag")
    assert error["code"] == "view.has_dependents" and "on_bag" in str(error), error
    database.execute("DROP VIEW on_bag; " + CHANGE_NARROW.format(31))
    assert service.call("POST", "/views/n_bag/rebuild?wait_s=60").json()["status"] == "live"
    check(case, wanted)
    drop(case, [*reversed(ABOVE_NARROW), *OF_NARROW])
    database.execute("DROP ROLE narrow_reader")


@pytest.mark.whole
def test_labels_of_rows_on_their_way_to_the_sink(database: Database, tmp_path: Path) -> None:
    """The process ended between state and sink: the rows of the outbox have labels of before."""
    database.execute(
        "CREATE TYPE mood AS ENUM ('lo', 'hi'); CREATE TABLE moody (id int PRIMARY KEY, m mood,"
        " v int); INSERT INTO moody VALUES (1, 'lo', 1), (2, 'hi', 2)"
    )
    points = tmp_path / "points"
    points.mkdir()
    views = {"by_key": "SELECT id, m FROM moody", "by_row": "SELECT m, v FROM moody"}
    with RunningService(database.dsn, tmp_path, failpoints_folder=points) as service:
        case = service, database
        create(case, views)
        arm(points, "epoch.commit.after")
        database.execute("INSERT INTO moody VALUES (3, 'lo', 3)")
        service.await_so((points / f"epoch.commit.after{REACHED}").exists)
        service.kill()
        database.execute("ALTER TYPE mood RENAME VALUE 'lo' TO 'low'")
        service.start()
        check(case, views)
        database.execute("DELETE FROM moody WHERE id = 1; INSERT INTO moody VALUES (4, 'low', 4)")
        check(case, views)
        assert not [e for e in service.events() if e["event"] == "view.failed"]
