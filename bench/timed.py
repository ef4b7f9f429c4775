"""Queries of time and their rows, in the forms of each engine that `bench.beside_flink` compares.

Rows arrive almost in the order of their times: by at most the table's disorder late, which is the
delay of Flink's watermark. Two other inputs are harder. `late`: one row of a hundred arrives later,
by ten to twenty times the disorder. `changed`: one row of ten is deleted or updated afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import numpy as np

from bench.windows import AUCTION, BEGIN_US, BID, EVENT, PERSON, QUERIES, rows_of
from dataflow.types import EPOCH_2000_US

IN_ORDER, LATE, CHANGED = "in order", "late", "changed"
INPUTS = (IN_ORDER, LATE, CHANGED)
SYMBOLS = 1_000
TRADE = ("id", "sym", "ts")
TABLES = {
    "event": EVENT,
    "person": PERSON,
    "auction": AUCTION,
    "bid": BID,
    "trades": TRADE,
    "ticks": TRADE,
}
MOMENTS = ("ts", "arrived")
# Seconds by which rows are out of order; a bid's second time is up to two seconds later.
DISORDER_S = {**dict.fromkeys(TABLES, 1), "event": 60}
ARRIVED_DELAY_S = 3
EVENT_EVERY_US, EVERY_US = 600_000, 1_000
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Query:
    """text: as PostgreSQL and we run it. batch: DuckDB's own, if it has a better form.

    windows: Flink's by its windows and joins of time, which give a result once. updating: Flink's
    by groups and joins alone, whose results change as ours do; "" if there is none. time: the
    column that is Flink's event time. keys: by table, a primary key that Flink's form needs.
    """

    tables: tuple[str, ...]
    text: str
    windows: str
    updating: str = ""
    batch: str = ""
    time: str = "ts"
    keys: Mapping[str, str] = field(default_factory=dict)


_BEGIN = (
    "TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start) * CAST(1000 AS BIGINT)"
)


def _tvf(kind: str, table: str, *sizes: str, time: str = "ts", key: str = "") -> str:
    by = f" PARTITION BY {key}" if key else ""
    return f"TABLE({kind}(TABLE {table}{by}, DESCRIPTOR({time}), {', '.join(sizes)}))"


def _floor(ms: int, column: str = "ts_ms") -> str:
    return f"{column} - MOD({column}, {ms})"


def _unnested(table: str, size_ms: int, hop_ms: int) -> str:
    begins = ", ".join(f"{_floor(hop_ms)} - {back}" for back in range(0, size_ms, hop_ms))
    return f"{table} CROSS JOIN UNNEST(ARRAY[{begins}]) AS w (begin_ms)"


_WINDOW = "GROUP BY window_start, window_end"
_SECONDS, _MINUTES = "INTERVAL '{}' SECOND", "INTERVAL '{}' MINUTE"
_TEN, _TWO = _SECONDS.format(10), _SECONDS.format(2)
_HOPS = f"""SELECT auction, window_start, window_end, COUNT(*) AS num
    FROM {_tvf("HOP", "bid", _TWO, _TEN)} GROUP BY auction, window_start, window_end"""
_UNNESTED = f"""SELECT auction, begin_ms, COUNT(*) AS num
    FROM {_unnested("bid", 10_000, 2_000)} GROUP BY auction, begin_ms"""
_TUMBLED = _tvf("TUMBLE", "{}", _TEN)


def _maintained(title: str, **forms: object) -> Query:
    """Return a query of `bench.windows` with the forms of Flink."""
    tables, text = QUERIES[title]
    return Query(tables, text, **forms)  # type: ignore[arg-type]


TIMED = {
    "tumbling, 1 minute": _maintained(
        "tumbling, 1 minute",
        windows=f"SELECT {_BEGIN}, COUNT(*), SUM(amount) "
        f"FROM {_tvf('TUMBLE', 'event', _MINUTES.format(1))} {_WINDOW}",
        updating=f"SELECT {_floor(60_000)}, COUNT(*), SUM(amount) "
        f"FROM event GROUP BY {_floor(60_000)}",
    ),
    "hopping, 5 of 1 minute": _maintained(
        "hopping, 5 of 1 minute",
        windows=f"SELECT {_BEGIN}, COUNT(*), SUM(amount) FROM "
        f"{_tvf('HOP', 'event', _MINUTES.format(1), _MINUTES.format(5))} {_WINDOW}",
        updating="SELECT begin_ms, COUNT(*), SUM(amount) "
        f"FROM {_unnested('event', 300_000, 60_000)} GROUP BY begin_ms",
    ),
    "sessions, gap of 30 minutes": _maintained(
        "sessions, gap of 30 minutes",
        windows="SELECT usr, MIN(ts_ms), MAX(ts_ms), COUNT(*) "
        f"FROM {_tvf('SESSION', 'event', _MINUTES.format(30), key='usr')} "
        "GROUP BY usr, window_start, window_end",
    ),
    "as-of join": Query(
        ("trades", "ticks"),
        """SELECT t.id, k.id AS tick FROM trades t LEFT JOIN LATERAL (
    SELECT i.id FROM ticks i WHERE i.sym = t.sym AND i.ts <= t.ts ORDER BY i.ts DESC LIMIT 1
) k ON true""",
        windows="SELECT t.id, k.id FROM trades t LEFT JOIN ticks FOR SYSTEM_TIME AS OF t.ts AS k "
        "ON k.sym = t.sym",
        batch="SELECT t.id, k.id AS tick FROM trades t ASOF LEFT JOIN ticks k "
        "ON k.sym = t.sym AND k.ts <= t.ts",
        keys={"ticks": "sym"},
    ),
    "interval join, 2 seconds": Query(
        ("trades", "ticks"),
        "SELECT t.id, k.id AS tick FROM trades t JOIN ticks k ON k.sym = t.sym AND k.ts "
        "BETWEEN t.ts - interval '2 seconds' AND t.ts + interval '2 seconds'",
        windows="SELECT t.id, k.id FROM trades t JOIN ticks k ON k.sym = t.sym "
        f"AND k.ts BETWEEN t.ts - {_TWO} AND t.ts + {_TWO}",
        updating="SELECT t.id, k.id FROM trades t JOIN ticks k ON k.sym = t.sym "
        "AND k.ts_ms BETWEEN t.ts_ms - 2000 AND t.ts_ms + 2000",
    ),
    "Nexmark q5": _maintained(
        "Nexmark q5",
        windows=f"""SELECT c.auction, {_BEGIN.replace("window_start", "c.window_start")}, c.num
FROM ({_HOPS}) c
JOIN (SELECT window_start, window_end, MAX(num) AS most FROM ({_HOPS}) {_WINDOW}) m
  ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num >= m.most""",
        updating=f"""SELECT c.auction, c.begin_ms, c.num FROM ({_UNNESTED}) c
JOIN (SELECT begin_ms, MAX(num) AS most FROM ({_UNNESTED}) GROUP BY begin_ms) m
  ON c.begin_ms = m.begin_ms AND c.num >= m.most""",
    ),
    "Nexmark q7": _maintained(
        "Nexmark q7",
        windows=f"""SELECT b.auction, b.price, b.bidder, b.ts_ms
FROM (SELECT * FROM {_TUMBLED.format("bid")}) b
JOIN (SELECT window_start, window_end, MAX(price) AS most
      FROM {_TUMBLED.format("bid")} {_WINDOW}) m
  ON b.window_start = m.window_start AND b.window_end = m.window_end AND b.price = m.most""",
        updating=f"""SELECT b.auction, b.price, b.bidder, b.ts_ms FROM bid b
JOIN (SELECT {_floor(10_000)} AS begin_ms, MAX(price) AS most
      FROM bid GROUP BY {_floor(10_000)}) m
  ON b.price = m.most AND {_floor(10_000, "b.ts_ms")} = m.begin_ms""",
    ),
    "Nexmark q8": _maintained(
        "Nexmark q8",
        windows=f"""SELECT p.id, p.name, {_BEGIN.replace("window_start", "p.window_start")}
FROM (SELECT id, name, window_start, window_end FROM {_TUMBLED.format("person")}
      GROUP BY id, name, window_start, window_end) p
JOIN (SELECT seller, window_start, window_end FROM {_TUMBLED.format("auction")}
      GROUP BY seller, window_start, window_end) a
  ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
        updating=f"""SELECT p.id, p.name, p.begin_ms
FROM (SELECT DISTINCT id, name, {_floor(10_000)} AS begin_ms FROM person) p
JOIN (SELECT DISTINCT seller, {_floor(10_000)} AS begin_ms FROM auction) a
  ON p.id = a.seller AND p.begin_ms = a.begin_ms""",
    ),
    "Nexmark q11": _maintained(
        "Nexmark q11",
        windows="SELECT bidder, COUNT(*), MIN(ts_ms), MAX(ts_ms) "
        f"FROM {_tvf('SESSION', 'bid', _TEN, key='bidder')} "
        "GROUP BY bidder, window_start, window_end",
    ),
    "Nexmark q12": _maintained(
        "Nexmark q12",
        windows=f"SELECT bidder, COUNT(*), {_BEGIN} "
        f"FROM {_tvf('TUMBLE', 'bid', _TEN, time='arrived')} "
        "GROUP BY bidder, window_start, window_end",
        updating=f"SELECT bidder, COUNT(*), {_floor(10_000, 'arrived_ms')} "
        f"FROM bid GROUP BY bidder, {_floor(10_000, 'arrived_ms')}",
        time="arrived",
    ),
}


@dataclass(frozen=True)
class Stream:
    """A table's changes in the order of arrival: rows, and +1 or -1 for each.

    seq: numbers the changes; the old and the new row of an update have the same.
    """

    columns: Columns
    weights: np.ndarray
    seq: np.ndarray

    def __len__(self) -> int:
        return len(self.weights)


def streams_of(kind: str, n: int, users: int) -> dict[str, Stream]:
    """Return the streams of one kind of input, by table; equal arguments give equal streams."""
    rng = np.random.default_rng(INPUTS.index(kind))
    return {name: _stream(name, rows, kind, rng) for name, rows in _rows_in_order(n, users).items()}


def _rows_in_order(n: int, users: int) -> dict[str, Columns]:
    rows = rows_of(n, users)
    rows["event"]["ts"] = BEGIN_US + np.arange(n) * EVENT_EVERY_US
    # Flink's event times have milliseconds.
    rows["bid"]["arrived"] -= rows["bid"]["arrived"] % 1_000
    rng, half = np.random.default_rng(11), n // 2
    # No two ticks have the same time: each query has exactly one answer.
    for at, name in enumerate(("trades", "ticks")):
        rows[name] = {
            "id": np.arange(half),
            "sym": rng.integers(0, SYMBOLS, half),
            "ts": BEGIN_US + (2 * np.arange(half) + at) * EVERY_US,
        }
    return rows


def _stream(name: str, rows: Columns, kind: str, rng: np.random.Generator) -> Stream:
    n, disorder_us = len(rows["id"]), DISORDER_S[name] * 1_000_000
    arrival = rows["ts"] + rng.integers(0, disorder_us, n)
    if kind == LATE:
        is_late = rng.random(n) < 0.01
        arrival += is_late * rng.integers(10 * disorder_us, 20 * disorder_us, n)
    order = np.argsort(arrival, kind="stable")
    columns, arrival = {c: v[order] for c, v in rows.items()}, arrival[order]
    if kind != CHANGED:
        return Stream(columns, np.ones(n, np.int64), np.arange(n))
    changed = np.flatnonzero(rng.random(n) < 0.1)
    updated = changed[rng.random(len(changed)) < 0.5]
    later = rng.integers(1, 20 * disorder_us, n)
    other = rng.integers(0, n, len(updated))
    parts = [
        (columns, arrival, 1),
        (_taken(columns, changed), (arrival + later)[changed], -1),
        ({c: v[updated if c in ("id", *MOMENTS) else other] for c, v in columns.items()},
         (arrival + later)[updated], 1),
    ]  # fmt: skip
    weights = np.concatenate([np.full(len(at), weight) for _, at, weight in parts])
    moments = np.concatenate([at for _, at, _ in parts])
    whole = {c: np.concatenate([part[c] for part, _, _ in parts]) for c in columns}
    # An old row comes just before its new one.
    order = np.lexsort((weights, whole["id"], moments))
    whole, weights, moments = _taken(whole, order), weights[order], moments[order]
    is_new = (np.diff(whole["id"], prepend=-1) != 0) | (np.diff(moments, prepend=0) != 0)
    return Stream(whole, weights, np.cumsum(is_new))


def _taken(columns: Columns, index: np.ndarray) -> Columns:
    return {c: v[index] for c, v in columns.items()}


def milliseconds(us: np.ndarray) -> np.ndarray:
    """Return milliseconds since 1970 of microseconds since 2000."""
    return (us + EPOCH_2000_US) // 1_000


def in_duckdb(connection: duckdb.DuckDBPyConnection, streams: Mapping[str, Stream]) -> None:
    """Create the tables with the rows that are left at the end of the streams."""
    connection.execute(
        "CREATE OR REPLACE MACRO date_bin(w, t, origin) AS "
        "time_bucket(CAST(w AS interval), t, CAST(origin AS timestamp))"
    )
    for name, stream in streams.items():
        given = {**_in_ms(stream.columns), "weight": stream.weights}
        connection.register("given", given)
        names = [f"{c}_ms" if c in MOMENTS else c for c in TABLES[name]]
        shown = [f"make_timestamp_ms({c}_ms) AS {c}" if c in MOMENTS else c for c in TABLES[name]]
        connection.execute(
            f"CREATE OR REPLACE TABLE {name} AS SELECT {', '.join(shown)} FROM given "
            f"GROUP BY {', '.join(names)} HAVING sum(weight) > 0"
        )
        connection.unregister("given")


def _in_ms(columns: Columns) -> Columns:
    return {
        f"{c}_ms" if c in MOMENTS else c: milliseconds(v) if c in MOMENTS else v
        for c, v in columns.items()
    }


def for_flink(query: Query, streams: Mapping[str, Stream], folder: Path) -> list[str]:
    """Write the query's streams as Flink reads them; return the statements that declare them."""
    folder.mkdir(parents=True, exist_ok=True)
    statements = []
    for name in query.tables:
        stream = streams[name]
        is_changed = bool((stream.weights < 0).any())
        path = folder / f"{name}.{'json' if is_changed else 'csv'}"
        columns = _in_ms(stream.columns)
        if is_changed:
            path.write_text("".join(_debezium(columns, stream)))
        else:
            with duckdb.connect() as connection:
                connection.register("given", columns)
                connection.execute(
                    f"COPY (SELECT * FROM given) TO '{path}' (FORMAT csv, HEADER false)"
                )
        statements.append(_declared(query, name, list(columns), path, is_changed=is_changed))
    return statements


def _debezium(columns: Columns, stream: Stream) -> Iterator[str]:
    values = zip(*(v.tolist() for v in columns.values()), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in values]
    before, seq = None, stream.seq.tolist()
    for at, (row, weight) in enumerate(zip(rows, stream.weights.tolist(), strict=True)):
        if weight < 0:
            if at + 1 < len(seq) and seq[at + 1] == seq[at]:
                before = row
                continue
            change = {"before": row, "after": None, "op": "d"}
        else:
            change = {"before": before, "after": row, "op": "u" if before else "c"}
        before = None
        yield json.dumps(change) + "\n"


def _declared(query: Query, name: str, columns: list[str], path: Path, *, is_changed: bool) -> str:
    delay_s = ARRIVED_DELAY_S if query.time == "arrived" else DISORDER_S[name]
    key = query.keys.get(name, "id" if is_changed else "")
    parts = [f"{c} BIGINT" for c in columns]
    parts += [f"{c} AS TO_TIMESTAMP_LTZ({c}_ms, 3)" for c in MOMENTS if f"{c}_ms" in columns]
    parts.append(f"WATERMARK FOR {query.time} AS {query.time} - INTERVAL '{delay_s}' SECOND")
    if key:
        parts.append(f"PRIMARY KEY ({key}) NOT ENFORCED")
    form = "debezium-json" if is_changed else "csv"
    return (
        f"CREATE TEMPORARY TABLE {name} ({', '.join(parts)}) WITH "
        f"('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = '{form}')"
    )
