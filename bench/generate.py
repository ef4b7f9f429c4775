"""Generate the rows of all workloads from one seed, as columns on disk that every run reads.

`prepare` writes a folder once. Each table has `load` (its initial rows) and `changes`: an `.npy`
file a column for ours (texts as numbers of words), and Parquet for the peers. DuckDB computes the
oracle's answers from the same Parquet. It runs in a child process, so its memory does not count in
measurements.

Changes are in order and have whole old rows. Column `seq` numbers the changes of a workload (an
update is one change and two rows). `kind` is INSERT, OLD, NEW or DELETE as in `dataflow.changes`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import in_child
from bench.rows import DELETE, INSERT, NEW, OLD, WORDS, Columns, Generated
from bench.workloads import (
    AUCTION,
    BID,
    CUSTOMERS,
    ORDERS,
    PERSON,
    REGIONS,
    SEGMENTS,
    STATES,
    STATUSES,
    WORKLOADS,
    Sizes,
    Table,
    Workload,
)

HOME = Path(__file__).parent / "data"
FORMAT = 2  # of the folders: an older one is generated again
SEED = 42
STATUS_SHARES = (0.3, 0.3, 0.25, 0.05, 0.1)
CHANGE_COLUMNS = ("seq", "kind")


def prepare(rows: str, sizes: Sizes, home: Path = HOME) -> Generated:
    """Return the folder of the rows of this name and these sizes; a child process creates it if
    missing.
    """
    folder = home / f"{rows}-{sizes.label}"
    marker = folder / "counts.json"
    if not marker.exists() or json.loads(marker.read_text()).get("format") != FORMAT:
        in_child(_make, rows, sizes, folder)
    return Generated(folder)


def _make(rows: str, sizes: Sizes, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parts = _MAKERS[rows](sizes)
    generated = Generated(folder)
    counts = {"format": FORMAT}
    for (table, part), columns in parts.items():
        counts[f"{table.name}.{part}"] = len(columns[table.names[0]])
        where = folder / f"{table.name}.{part}"
        where.mkdir()
        for name, values in columns.items():
            np.save(where / f"{name}.npy", values)
    marker = folder / "counts.json"
    marker.write_text(json.dumps(counts))
    for (table, part), columns in parts.items():
        _write_parquet(generated, table, part, columns)
    for workload in WORKLOADS.values():
        if workload.rows == rows:
            found = json.dumps(_ask(generated, workload))
            (folder / f"answer_{workload.name}.json").write_text(found)


def _write_parquet(generated: Generated, table: Table, part: str, columns: Columns) -> None:
    kinds = dict(table.columns)
    arrays = {}
    for name, values in columns.items():
        if kinds.get(name) == "s":
            words = pa.array(generated.words(table, name))
            arrays[name] = words.take(pa.array(values))
        else:
            arrays[name] = pa.array(values)
    pq.write_table(pa.table(arrays), generated.parquet(table, part))


def _ask(generated: Generated, workload: Workload) -> list[tuple[list[object], list[object]]]:
    """Return [(key, values)] of the query over the final rows."""
    with duckdb.connect() as connection:
        for table in workload.tables:
            connection.execute(f"CREATE TABLE {table.name} AS {_final(generated, table)}")
        if workload.keys:
            rows = connection.execute(workload.query).fetchall()
            return [(list(r[: workload.keys]), _plain(r[workload.keys :])) for r in rows]
        columns = connection.execute(f"DESCRIBE {workload.query}").fetchall()
        sums = ", ".join(f"sum({columns[c][0]})" for c in workload.summed)
        found = connection.execute(f"SELECT count(*), {sums} FROM ({workload.query})")
        return [([], _plain(found.fetchall()[0]))]


def _final(generated: Generated, table: Table) -> str:
    names = ", ".join(table.names)
    parts = []
    if generated.parquet(table, "load").exists():
        parts.append(f"SELECT 1 AS w, {names} FROM '{generated.parquet(table, 'load')}'")
    if generated.parquet(table, "changes").exists():
        weight = f"CASE WHEN kind IN ({OLD}, {DELETE}) THEN -1 ELSE 1 END AS w"
        parts.append(f"SELECT {weight}, {names} FROM '{generated.parquet(table, 'changes')}'")
    return f"SELECT {names} FROM ({' UNION ALL '.join(parts)}) GROUP BY {names} HAVING sum(w) > 0"


def _plain(values: tuple[object, ...]) -> list[object]:
    return [v if isinstance(v, float) else int(v) for v in values]  # type: ignore[call-overload]


def _orders(sizes: Sizes) -> dict[tuple[Table, str], Columns]:
    rng = np.random.default_rng(SEED)
    customers = {
        "customer_id": np.arange(sizes.customers),
        "region": rng.integers(0, len(REGIONS), sizes.customers).astype(np.uint8),
        "segment": rng.integers(0, len(SEGMENTS), sizes.customers).astype(np.uint8),
    }
    orders = {
        "order_id": np.arange(sizes.orders),
        "customer_id": rng.integers(0, sizes.customers, sizes.orders),
        "status": rng.choice(len(STATUSES), sizes.orders, p=STATUS_SHARES).astype(np.uint8),
        "amount": rng.integers(100, 100_000, sizes.orders),
    }
    drawn = (
        rng.random((sizes.changes, 3)),
        rng.integers(0, sizes.customers, sizes.changes),
        rng.choice(len(STATUSES), sizes.changes, p=STATUS_SHARES).astype(np.uint8),
        rng.integers(0, len(STATUSES), sizes.changes).astype(np.uint8),
        rng.integers(100, 100_000, sizes.changes),
    )
    names = (*CHANGE_COLUMNS, *ORDERS.names)
    made = _order_changes(orders, *drawn)
    changes = dict(zip(names, made, strict=True))
    return {
        (CUSTOMERS, "load"): customers,
        (ORDERS, "load"): orders,
        (ORDERS, "changes"): changes,
    }


def _order_changes(
    orders: Columns,
    draws: np.ndarray,
    to_customer: np.ndarray,
    new_status: np.ndarray,
    to_status: np.ndarray,
    to_amount: np.ndarray,
) -> list[np.ndarray]:
    """Generate 50 % inserts, 35 % updates (of 10: 6 of the status, 3 of the amount, 1 of the
    customer) and 15 % deletes.
    """
    # Lists, whose items are much faster to read one by one.
    live = [list(row) for row in zip(*(values.tolist() for values in orders.values()), strict=True)]
    drawn = (to_customer, new_status, to_status, to_amount)
    following, found = len(live), []
    steps = zip(draws.tolist(), *(values.tolist() for values in drawn), strict=True)
    for i, ((kind, chosen, part), customer, first_status, status, amount) in enumerate(steps):
        at = int(chosen * len(live))
        if kind < 0.5:
            row = [following, customer, first_status, amount]
            following += 1
            live.append(row)
            found.append((i, INSERT, *row))
            continue
        row = live[at]
        if kind < 0.85:
            found.append((i, OLD, *row))
            if part < 0.6:
                row[2] = status
            elif part < 0.9:
                row[3] = amount
            else:
                row[1] = customer
            found.append((i, NEW, *row))
            continue
        found.append((i, DELETE, *row))
        last = live.pop()
        if at < len(live):
            live[at] = last
    types = (np.int64, np.uint8, np.int64, np.int64, np.uint8, np.int64)
    columns = zip(*found, strict=True)
    return [np.array(column, kind) for column, kind in zip(columns, types, strict=True)]


def _bids(sizes: Sizes) -> dict[tuple[Table, str], Columns]:
    return _auctions_and_bids(sizes.bids, retracted=0.0)


def _retracted(sizes: Sizes) -> dict[tuple[Table, str], Columns]:
    return _auctions_and_bids(sizes.bids, retracted=0.1)


def _auctions_and_bids(bids: int, retracted: float) -> dict[tuple[Table, str], Columns]:
    rng = np.random.default_rng(SEED + 1)
    auctions, bid = _nexmark(bids, retracted, rng.random((bids * 50 // 46 + 50, 4)))
    return {
        (AUCTION, "changes"): dict(zip((*CHANGE_COLUMNS, *AUCTION.names), auctions, strict=True)),
        (BID, "changes"): dict(zip((*CHANGE_COLUMNS, *BID.names), bid, strict=True)),
    }


def _nexmark(
    bids: int, retracted: float, draws: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Generate events: of 50, 1 person (only counted), 3 auctions, 46 bids. Some bids are
    retracted.

    Half of the bids are for the newest hundredth auction, the others for the 100 newest auctions.
    """
    auction: list[tuple[int, ...]] = []
    bid: list[tuple[int, ...]] = []
    recent: list[tuple[int, ...]] = []
    seq, persons, made = 0, 0, 0
    for i, (a, b, c, d) in enumerate(draws.tolist()):
        turn = i % 50
        if made == bids:
            break
        if turn == 0:
            persons += 1
        elif turn < 4:
            back = 0 if a < 0.75 else int(b * 100)
            seller, expires = max(0, persons - 1 - back), i + 1000 + int(d * 19_000)
            row = (seq, INSERT, len(auction), seller, 10 + int(c * 5), i, expires)
            auction.append(row)
            seq += 1
        else:
            of = (len(auction) - 1) // 100 * 100
            if a >= 0.5:
                of = max(0, len(auction) - 1 - int((a - 0.5) * 200))
            price = int(10 ** (c * 6) * 100)
            row = (seq, INSERT, made, of, int(b * persons), price, i)
            bid.append(row)
            recent.append(row)
            seq, made = seq + 1, made + 1
            if d < retracted:
                low = max(0, len(recent) - 20_000)
                chosen = low + int(d / retracted * (len(recent) - low))
                bid.append((seq, DELETE, *recent[chosen][2:]))
                last = recent.pop()
                if chosen < len(recent):
                    recent[chosen] = last
                seq += 1
    return _columns(auction), _columns(bid)


def _columns(rows: list[tuple[int, ...]]) -> list[np.ndarray]:
    return list(np.array(rows, np.int64).reshape(-1, 7).T)


def _people(sizes: Sizes) -> dict[tuple[Table, str], Columns]:
    """Return persons, each followed by three auctions; the newest person sells three of four."""
    rng = np.random.default_rng(SEED + 2)
    seq = np.arange(sizes.people)
    is_person = seq % 4 == 0
    persons = int(is_person.sum())
    auctions = sizes.people - persons
    newest = (seq // 4)[~is_person]
    back = np.where(rng.random(auctions) < 0.75, 0, rng.integers(0, 100, auctions))
    started = seq[~is_person]
    person = {
        "seq": seq[is_person],
        "id": np.arange(persons),
        "name": np.arange(persons),
        "city": rng.integers(0, len(WORDS["city"]), persons).astype(np.uint8),
        "state": rng.integers(0, len(STATES), persons).astype(np.uint8),
    }
    auction = {
        "seq": started,
        "id": np.arange(auctions),
        "seller": np.maximum(0, newest - back),
        "category": 10 + rng.integers(0, 5, auctions),
        "ts": started,
        "expires": started + rng.integers(1000, 20_000, auctions),
    }
    parts = {(PERSON, "changes"): person, (AUCTION, "changes"): auction}
    for columns in parts.values():
        columns["kind"] = np.full(len(columns["seq"]), INSERT, np.uint8)
    return parts


_MAKERS = {"orders": _orders, "bids": _bids, "retracted": _retracted, "people": _people}
