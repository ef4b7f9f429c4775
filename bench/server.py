"""The workload inside PostgreSQL: tables, a procedure that applies changes, and PostgreSQL's peers.

The changes are in an unlogged table, so that applying them is one CALL and the client costs
nothing: only the server is measured.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from contextlib import contextmanager
from typing import Any

import psycopg2

from bench.dictionaries import tuples
from bench.rows import DELETE, INSERT, OLD, Generated
from bench.workloads import CUSTOMERS, ORDERS, WORKLOADS, Table

QUERY = WORKLOADS["w1"].query
_TYPES = {"i": "bigint", "s": "text"}
_OPS = {INSERT: "c", DELETE: "d"}
_STAGE = """
CREATE UNLOGGED TABLE changes (
    seq bigint PRIMARY KEY, op text NOT NULL, order_id bigint NOT NULL,
    customer_id bigint, status text, amount bigint
);
CREATE PROCEDURE apply_changes(low bigint, high bigint) LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT * FROM changes WHERE seq >= low AND seq < high ORDER BY seq LOOP
        IF r.op = 'c' THEN
            INSERT INTO orders VALUES (r.order_id, r.customer_id, r.status, r.amount);
        ELSIF r.op = 'u' THEN
            UPDATE orders SET customer_id = r.customer_id, status = r.status, amount = r.amount
            WHERE order_id = r.order_id;
        ELSE
            DELETE FROM orders WHERE order_id = r.order_id;
        END IF;
    END LOOP;
END $$;
"""
_TRIGGER = f"""
CREATE TABLE kept (
    region text, segment text, n bigint NOT NULL, total numeric NOT NULL,
    PRIMARY KEY (region, segment)
) WITH (fillfactor = 50);
INSERT INTO kept {QUERY};
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    r customers;
BEGIN
    IF tg_op <> 'INSERT' AND old.status <> 'cancelled' THEN
        SELECT * INTO r FROM customers WHERE customer_id = old.customer_id;
        UPDATE kept SET n = n - 1, total = total - old.amount
        WHERE region = r.region AND segment = r.segment;
    END IF;
    IF tg_op <> 'DELETE' AND new.status <> 'cancelled' THEN
        SELECT * INTO r FROM customers WHERE customer_id = new.customer_id;
        INSERT INTO kept VALUES (r.region, r.segment, 1, new.amount)
        ON CONFLICT (region, segment)
        DO UPDATE SET n = kept.n + 1, total = kept.total + excluded.total;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER keep AFTER INSERT OR UPDATE OR DELETE ON orders
FOR EACH ROW EXECUTE FUNCTION keep();
"""


@contextmanager
def session(dsn: str) -> Any:
    """Open an autocommit session."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def different_rows(cursor: Any, view: str, query: str) -> int:
    """Return how many rows of a view are too many or too few, once nobody writes."""
    cursor.execute(f"CREATE TEMP TABLE expected_rows AS {query}")
    cursor.execute(
        f"SELECT count(*) FROM ((TABLE {view} EXCEPT ALL TABLE expected_rows) "
        f"UNION ALL (TABLE expected_rows EXCEPT ALL TABLE {view})) AS different"
    )
    count = cursor.fetchone()[0]
    cursor.execute("DROP TABLE expected_rows")
    return count


def create_table(table: Table, *, full: bool = False) -> str:
    """Return the tables' DDL. full: REPLICA IDENTITY FULL, so old rows are sent whole."""
    columns = ", ".join(f"{name} {_TYPES[kind]} NOT NULL" for name, kind in table.columns)
    key = ", ".join(table.names[: table.key])
    identity = f"ALTER TABLE {table.name} REPLICA IDENTITY FULL;" if full else ""
    return f"CREATE TABLE {table.name} ({columns}, PRIMARY KEY ({key})); {identity}"


def fill(cursor: Any, rows: Generated) -> int:
    """Create tables, rows and staged changes; return how many changes there are."""
    cursor.execute(create_table(CUSTOMERS) + create_table(ORDERS) + _STAGE)
    _copy(cursor, "customers", tuples(rows, CUSTOMERS, "load"))
    _copy(cursor, "orders", tuples(rows, ORDERS, "load"))
    changes = [c for c in tuples(rows, ORDERS, "changes", "seq", "kind") if c[1] != OLD]
    staged = (
        (seq, _OPS.get(kind, "u"), *row)  # type: ignore[call-overload]
        for seq, kind, *row in changes
    )
    _copy(cursor, "changes", staged)
    cursor.execute("VACUUM ANALYZE")
    return len(changes)


def _copy(cursor: Any, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    text = io.StringIO()
    for row in rows:
        text.write("\t".join("\\N" if v is None else str(v) for v in row) + "\n")
    text.seek(0)
    cursor.copy_expert(f"COPY {table} FROM STDIN", text)


def apply_all(cursor: Any, low: int, high: int, per_transaction: int) -> list[float]:
    """Apply changes [low, high); return the seconds of each transaction."""
    seconds = []
    for start in range(low, high, per_transaction):
        started = time.perf_counter()
        cursor.execute("CALL apply_changes(%s, %s)", (start, min(start + per_transaction, high)))
        seconds.append(time.perf_counter() - started)
    return seconds


def add_trigger(cursor: Any) -> None:
    """Create a row trigger that maintains the view in table `kept`."""
    cursor.execute(_TRIGGER)


def drop_trigger(cursor: Any) -> None:
    """Drop what add_trigger created."""
    cursor.execute("DROP TRIGGER keep ON orders; DROP FUNCTION keep; DROP TABLE kept")


def refresh_seconds(cursor: Any, times: int) -> tuple[float, float]:
    """Return (seconds of CREATE MATERIALIZED VIEW, the fastest REFRESH of it)."""
    started = time.perf_counter()
    cursor.execute(f"CREATE MATERIALIZED VIEW matview AS {QUERY}")
    created = time.perf_counter() - started
    refreshed = []
    for _ in range(times):
        started = time.perf_counter()
        cursor.execute("REFRESH MATERIALIZED VIEW matview")
        refreshed.append(time.perf_counter() - started)
    cursor.execute("DROP MATERIALIZED VIEW matview")
    return created, min(refreshed)
