"""Oracle: what the test has written to ClickHouse, and ClickHouse's own answers."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from connectors import netguard
from connectors.clickhouse import sink
from connectors.clickhouse import source as connector
from connectors.clickhouse.column_types import column_type, expression
from connectors.loopback import free_port
from connectors.netguard import Guard
from connectors.polled import cursor, schedule
from dataflow.changes import Changes
from dataflow.errors import SinkError, SourceError, TemporaryError
from tests.connectors.feed_mirror import FeedMirror, Row, make_source, texts_of
from tests.connectors.polled_mirror import PolledMirror
from tests.harness.clickhouse import ClickHouse, found_program
from tests.harness.sink_contract import FINITE, Model

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric(12,2)"}]
EVENTS = [
    {"name": "at", "type": "timestamptz"},
    {"name": "n", "type": "bigint"},
    {"name": "note", "type": "text"},
]


@pytest.fixture(scope="module", params=["server", pytest.param("chdb", marks=pytest.mark.whole)])
def clickhouse(request: pytest.FixtureRequest) -> Iterator[ClickHouse]:
    with ClickHouse(is_chdb=request.param == "chdb") as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FIRST_S", 0.05)


def options(url: str, relation: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"url": url, "poll_interval_ms": 20, "relations": {"t": relation}, **more}


def table(clickhouse: ClickHouse, columns: str, order: str = "tuple()") -> str:
    clickhouse.execute("DROP TABLE IF EXISTS things")
    clickhouse.execute(f"CREATE TABLE things ({columns}) ENGINE = MergeTree ORDER BY {order}")
    return "things"


class Added(FeedMirror):
    """The rows of a relation with a cursor, each change an insertion."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(make_source(connector, given))
        self.start()
        self.rows = self.snapshot()

    def snapshot(self) -> Counter[Row]:
        return Counter(
            row
            for relation, part in pickle.loads(pickle.dumps(self.parts()))
            for row in self.rows_of(relation, part)
        )

    def apply(self, changes: Changes) -> None:
        """See FeedMirror."""
        assert set(changes.kinds.tolist()) == {Changes.INSERT}
        self.rows.update(texts_of(changes.relation, changes.columns))

    def follow_to(self, expected: Counter[Row]) -> None:
        """Open a feed, and take what comes until the rows are these; then nothing more comes."""
        self.open()
        self.follow(lambda m: m.rows == expected)
        assert self.feed is not None
        for _ in range(6):
            if (batch := self.feed.poll(1000)) is not None:
                self.take(batch)
            self._ready.wait(0.02)
            self._ready.clear()
        self.close()
        assert self.rows == expected


def test_rows_are_compared_by_key(clickhouse: ClickHouse) -> None:
    name = table(clickhouse, "id UInt32, price Decimal(12,2)", "id")
    clickhouse.execute(f"INSERT INTO {name} VALUES (1, 1.5), (2, 7)")
    relation = {"table": name, "key": ["id"], "columns": COLUMNS}
    mirror = PolledMirror(make_source(connector, options(clickhouse.url, relation)))
    mirror.begin()
    assert set(mirror.rows["t"].values()) == {("1", "1.50"), ("2", "7.00")}
    mirror.open()
    clickhouse.execute(f"INSERT INTO {name} VALUES (3, 12345678.91)")
    mirror.follow(lambda m: len(m.rows["t"]) == 3)
    clickhouse.execute(f"TRUNCATE TABLE {name}")
    clickhouse.execute(f"INSERT INTO {name} VALUES (3, 1), (1, 1.5)")
    mirror.follow(lambda m: set(m.rows["t"].values()) == {("1", "1.50"), ("3", "1.00")})
    mirror.close()
    given = options(clickhouse.url, relation, max_rows=1)
    with pytest.raises(SourceError, match=r"clickhouse\.too_many_rows"):
        make_source(connector, given).check()
    with pytest.raises(SourceError, match=r"clickhouse\.too_large"):
        make_source(connector, options(clickhouse.url, relation, max_bytes=20)).check()


def test_the_newest_of_a_replacing_table(clickhouse: ClickHouse) -> None:
    clickhouse.execute("DROP TABLE IF EXISTS things")
    engine = "ENGINE = ReplacingMergeTree(v) ORDER BY id"
    clickhouse.execute(f"CREATE TABLE things (id UInt32, price Decimal(12,2), v UInt32) {engine}")
    clickhouse.execute("INSERT INTO things VALUES (1, 2, 2)")
    clickhouse.execute("INSERT INTO things VALUES (1, 1, 1)")
    relation = {"table": "things", "final": True, "key": ["id"], "columns": COLUMNS}
    mirror = PolledMirror(make_source(connector, options(clickhouse.url, relation)))
    mirror.begin()
    assert list(mirror.rows["t"].values()) == [("1", "2.00")]


def test_rows_above_a_cursor(clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ties that come later, equal rows, and chunks: none is lost or doubled."""
    monkeypatch.setattr(connector, "CHUNK_ROWS", 7)
    monkeypatch.setattr(cursor, "CHUNK_ROWS", 7)
    name, pick = table(clickhouse, "at DateTime, n UInt32, note String", "n"), random.Random(8)
    expected = Counter[tuple[str | None, ...]]()
    hours = zone_hours(clickhouse)

    def insert(seconds: list[int]) -> None:
        if not seconds:
            return
        rows = [(s, pick.randrange(3)) for s in seconds]
        values = ", ".join(f"('{clock(s)}', {n}, 'x')" for s, n in rows)
        clickhouse.execute(f"INSERT INTO {name} (at, n, note) VALUES {values}")
        expected.update(
            [(f"2024-01-01 00:{s // 60:02}:{s % 60:02}+00", str(n), "x") for s, n in rows]
        )

    def clock(second: int) -> str:
        # As the server's own zone says it.
        return f"2024-01-01 {hours:02}:{second // 60:02}:{second % 60:02}"

    relation = {"table": name, "cursor": "at", "columns": EVENTS}
    added = Added(options(clickhouse.url, relation))
    assert not added.rows
    newest = 0
    for _ in range(6):
        insert([newest] * pick.randrange(3) + [newest + k % 4 for k in range(pick.randrange(30))])
        newest += 3
        added.follow_to(expected)
        assert added.snapshot() == expected
    insert([newest] * 40)
    added.follow_to(expected)
    # Another view, and another process, begin with what there is.
    again = Added(options(clickhouse.url, relation))
    assert again.rows == expected
    insert([newest] * 3)
    again.follow_to(expected)
    # A row that comes later than the overlap is not seen; within it, it is.
    late = Added(options(clickhouse.url, {**relation, "overlap": 5}))
    insert([newest - 5, newest - 4])
    late.follow_to(expected)


def zone_hours(clickhouse: ClickHouse) -> int:
    """The hour of midnight of UTC in the server's zone."""
    return int(clickhouse.execute("SELECT toHour(toDateTime(1704067200))"))


PARTS = (0, 400, 900, 1100)
NANOSECONDS = [f"fromUnixTimestamp64Nano(toInt64({1_000_000_000 + n}))" for n in PARTS]


NAMES = (("n", "v"), ("newest", "n"), ("v", "newest"))


@pytest.mark.whole
def test_cursors_of_other_types(clickhouse: ClickHouse) -> None:
    """Also one that is finer than what PostgreSQL has; their names may be those of aliases."""
    kinds = [
        ("UInt64", "bigint", ["1", "7", "9000000000000000000"]),
        ("Date", "date", ["'2020-02-29'", "'2020-03-01'", "'2100-01-01'"]),
    ]
    if clickhouse.is_chdb:
        kinds.append(("DateTime64(9)", "timestamptz", NANOSECONDS))
    for (type, declared, values), (own, other) in zip(kinds, NAMES, strict=False):
        name = table(clickhouse, f"{own} {type}, {other} UInt8")
        columns = [{"name": own, "type": declared}, {"name": other, "type": "smallint"}]
        added = Added(options(clickhouse.url, {"table": name, "cursor": own, "columns": columns}))
        expected = Counter[tuple[str | None, ...]]()
        for number, value in enumerate(values):
            clickhouse.execute(f"INSERT INTO {name} VALUES ({value}, {number})")
            shown = value.strip("'")
            if declared == "timestamptz":
                shown = f"1970-01-01 00:00:01{'.000001' if number == 3 else ''}+00"
            expected[shown, str(number)] += 1
            added.follow_to(expected)
            assert added.snapshot() == expected
    name = table(clickhouse, "c String")
    columns = [{"name": "c", "type": "bigint"}]
    given = options(clickhouse.url, {"table": name, "cursor": "c", "columns": columns})
    with pytest.raises(SourceError, match=r"clickhouse\.cursor"):
        make_source(connector, given).check()


NUMBER = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
VALUES = {
    "u64 UInt64": ("toUInt64('18446744073709551615')", "18446744073709551615"),
    "i64 Int64": ("toInt64('-9223372036854775808')", "-9223372036854775808"),
    "d Decimal(18,4)": ("toDecimal64('12345678901234.5678', 4)", "12345678901234.5678"),
    "f Float64": ("0.1", "0.1"),
    "fn Float64": ("nan", "NaN"),
    "s String": ("'é\\n\"x'", 'é\n"x'),
    "fs FixedString(5)": ("toFixedString('ab', 5)", "ab"),
    "da Date": ("toDate('2024-02-29')", "2024-02-29"),
    "t DateTime": ("toDateTime(1709164800)", "2024-02-29 00:00:00+00"),
    "tz DateTime('America/New_York')": ("toDateTime(1709164800)", "2024-02-29 00:00:00+00"),
    "nu Nullable(Int32)": ("NULL", None),
    "nt Nullable(DateTime)": ("toNullable(toDateTime(1709164800))", "2024-02-29 00:00:00+00"),
    "e Enum8('a' = 1, 'b, c' = 2)": ("'b, c'", "b, c"),
    "i UUID": (f"toUUID('{NUMBER}')", NUMBER),
    "ar Array(Int32)": ("[1, -2]", "{1,-2}"),
    "at Array(DateTime)": ("[toDateTime(1709164800)]", '{"2024-02-29 00:00:00+00"}'),
    "aa Array(Array(String))": ("[['a'], ['b']]", "{{a},{b}}"),
}
NEWER = {
    "lc LowCardinality(Nullable(String))": ("'x'", "x"),
    "d64 DateTime64(6, 'Asia/Tokyo')": (
        "fromUnixTimestamp64Micro(toInt64(1709164800123456))",
        "2024-02-29 00:00:00.123456+00",
    ),
    "ns DateTime64(9)": (
        "fromUnixTimestamp64Nano(toInt64(1709164800123456789))",
        "2024-02-29 00:00:00.123456+00",
    ),
    "m Map(String, UInt64)": ("map('a', 1)", '{"a": "1"}'),
    "b Bool": ("true", "t"),
    "u256 UInt256": ("toUInt256('1') * 4", "4"),
    "v4 IPv4": ("toIPv4('10.0.0.1')", "10.0.0.1"),
    "d32 Date32": ("toDate32('1925-01-01')", "1925-01-01"),
}


def test_values_of_each_type(clickhouse: ClickHouse) -> None:
    """Discovered, declared as proposed, and read; the server's zone is another one."""
    values = VALUES | (NEWER if clickhouse.is_chdb else {})
    name = table(clickhouse, ", ".join(["id UInt8", *values]))
    listed = ", ".join(value for value, _ in values.values())
    clickhouse.execute(f"INSERT INTO {name} SELECT 1, {listed}")
    given = connector.discover(options(clickhouse.url, {"table": name, "key": ["id"]}))
    proposed = given["relations"]["t"]["columns"]
    assert proposed[:2] == [
        {"name": "id", "type": "smallint"},
        {"name": "u64", "type": "numeric(20,0)"},
    ]
    mirror = PolledMirror(make_source(connector, given))
    mirror.begin()
    [found] = mirror.rows["t"].values()
    assert dict(zip(values, found[1:], strict=True)) == {n: text for n, (_, text) in values.items()}
    columns = [{"name": "id", "type": "smallint"}, {"name": "s", "type": "bytea"}]
    query = {"query": f"SELECT id, s FROM {name}", "key": ["id"], "columns": columns}
    mirror = PolledMirror(make_source(connector, options(clickhouse.url, query)))
    mirror.begin()
    assert list(mirror.rows["t"].values()) == [("1", "\\xc3a90a2278")]
    query = {"query": "SELECT 1 AS a", "key": ["a"]}
    discovered = connector.discover(options(clickhouse.url, query))
    assert discovered["relations"]["t"]["columns"] == [{"name": "a", "type": "smallint"}]


def test_what_the_server_refuses(clickhouse: ClickHouse) -> None:
    name = table(clickhouse, "id UInt32, price Decimal(12,2)")
    relation = {"table": name, "key": ["id"], "columns": COLUMNS}
    for wrong in ({"table": "nowhere"}, {"columns": [*COLUMNS, {"name": "x", "type": "text"}]}):
        given = options(clickhouse.url, {**relation, **wrong})
        with pytest.raises(SourceError, match=r"clickhouse\.refused"):
            make_source(connector, given).check()
    query = "SELECT number AS id, throwIf(number = 99999) AS price FROM system.numbers LIMIT 200000"
    given = options(clickhouse.url, {"query": query, "key": ["id"], "columns": COLUMNS})
    with pytest.raises(SourceError, match=r"clickhouse\.refused"):
        # An error in the middle is not the end of the rows.
        make_source(connector, given).check()


def test_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    with ClickHouse() as server:
        server.execute("CREATE TABLE things (id UInt32, price Decimal(12,2)) ENGINE = Memory")
        relation = {"table": "things", "key": ["id"], "columns": COLUMNS}
        monkeypatch.setenv("SECRET_CH", "hunter22")
        login = {"user": "reader", "password": "${env:SECRET_CH}"}
        make_source(connector, options(server.url, relation, **login)).check()
        monkeypatch.setenv("SECRET_CH", "wrong pw")
        with pytest.raises(SourceError, match=r"clickhouse\.login") as refused:
            make_source(connector, options(server.url, relation, **login)).check()
        assert "wrong pw" not in str(refused.value)


def test_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(f"http://127.0.0.1:{free_port()}", {"key": ["id"], "columns": COLUMNS})
    with pytest.raises(TemporaryError, match=r"clickhouse\.unreachable"):
        make_source(connector, given).check()
    monkeypatch.setattr(netguard, "_guard", Guard(is_local=False))
    with pytest.raises(SourceError, match=r"host\.forbidden"):
        make_source(connector, given).check()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"relations": {}}, "relations"),
        ({"relations": {"t": {"columns": COLUMNS}}}, "relations.t.key"),
        ({"relations": {"t": {"table": "a", "query": "b"}}}, "relations.t.table"),
        ({"relations": {"t": {"query": "b", "final": True}}}, "relations.t.final"),
        ({"relations": {"t": {"cursor": "x", "columns": COLUMNS}}}, "relations.t.cursor"),
        ({"relations": {"t": {"cursor": "price", "columns": COLUMNS}}}, "relations.t.cursor"),
        ({"relations": {"t": {"cursor": "id", "key": ["id"], "columns": COLUMNS}}}, "key"),
        (
            {"relations": {"t": {"cursor": "id", "on_error": "dead_letter", "columns": COLUMNS}}},
            "relations.t.on_error",
        ),
        ({"colour": 1}, "colour"),
    ],
)
def test_options_that_are_wrong_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError) as refused:
        connector.declare({**options("http://x", {}), **change})
    assert refused.value.code == "source.bad_option" and f'{named}"' in refused.value.what


def test_types_as_clickhouse_names_them() -> None:
    for text, declared in {
        "Nullable(Decimal(10, 2))": "numeric(10,2)",
        "Decimal64(3)": "numeric(18,3)",
        "LowCardinality(Nullable(String))": "text",
        "Array(Nullable(UInt64))": "numeric(20,0)[]",
        "Array(Map(String, UInt8))": "jsonb",
        "Tuple(a UInt8, b String)": "jsonb",
        "Enum8('a\\'b, (' = 1, 'c' = 2)": "text",
        "SimpleAggregateFunction(sum, UInt64)": "numeric(20,0)",
        "AggregateFunction(uniq, UInt64)": "",
        "Array(AggregateFunction(uniq, UInt64))": "",
        "Time64(3)": "text",
    }.items():
        assert column_type(text).declared == declared, text
    nested = column_type("Array(Array(DateTime))")
    expected = "arrayMap(v1 -> arrayMap(v2 -> toString(v2, 'UTC'), v1), x)"
    assert expression("x", nested, "timestamptz[]") == expected


def test_a_server_that_is_too_old_for_a_sink_is_named() -> None:
    """Debian's is read as a source; its client refuses it in words of what it lacks."""
    if found_program() is None:
        pytest.skip("Debian's clickhouse-server is not installed")
    with ClickHouse() as server, pytest.raises(SinkError) as raised:
        sink.check({"url": server.url}, Model(FINITE[:2]).table, "t")
    assert (raised.value.code, "18.16" in raised.value.detail) == ("clickhouse.version", True)
