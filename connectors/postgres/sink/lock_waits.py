"""Which sessions hold what an epoch waits for: for people, who have to end them.

Asked by another session than the one that waits, except between two tries. Invariant: nothing here
takes a lock on a table. What a role may not see of other sessions is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from connectors.sink import SinkTable

Run = Callable[..., Sequence[tuple[Any, ...]]]

# A session that waits for a row holds a lock on that very row, and waits for its transaction.
_WAITS = """
SELECT b.pid, s.usename, s.application_name, s.xact_start::timestamptz(0)::text,
    pg_blocking_pids(b.pid) AS blockers, w.relation::regclass::text,
    (SELECT string_agg(DISTINCT l.mode, ', ') FROM pg_locks AS l
        WHERE l.pid = b.pid AND l.granted AND l.relation = w.relation AND w.is_table),
    w.since::timestamptz(0)::text
FROM (
    SELECT a.pid, l.relation, NOT l.granted AS is_table, waiting.since FROM pg_stat_activity AS a
    CROSS JOIN LATERAL (SELECT min(waitstart) AS since, count(*) AS n FROM pg_locks
        WHERE pid = a.pid AND NOT granted) AS waiting
    LEFT JOIN LATERAL (SELECT relation, granted FROM pg_locks
        WHERE pid = a.pid AND relation IS NOT NULL AND (NOT granted OR locktype = 'tuple')
        ORDER BY granted LIMIT 1) AS l ON true
    WHERE a.application_name = %s AND a.datname = current_database() AND waiting.n > 0
) AS w
CROSS JOIN LATERAL (SELECT DISTINCT pid FROM unnest(pg_blocking_pids(w.pid)) AS pid) AS b
LEFT JOIN pg_stat_activity AS s ON s.pid = b.pid ORDER BY 1
"""
_HOLDERS = """
SELECT l.pid, min(s.usename), min(s.application_name), min(s.xact_start)::timestamptz(0)::text,
    pg_blocking_pids(l.pid), min(l.relation)::regclass::text,
    string_agg(DISTINCT l.mode, ', '), NULL::text, l.virtualtransaction
FROM tidemark.tables AS t
JOIN pg_locks AS l ON l.relation IN (t.table_oid, t.view_oid) AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
LEFT JOIN pg_stat_activity AS s ON s.pid = l.pid
WHERE (t.schema, t.name) = (%s, %s) AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.mode <> 'ShareUpdateExclusiveLock'
GROUP BY l.pid, l.virtualtransaction ORDER BY 1
"""


def read_waits(run: Run, application: str) -> str:
    """Return what the session of this application_name waits for; "" if it waits for no lock."""
    return _text(run(_WAITS, application))


def holders_of(cursor: Any, table: SinkTable) -> str:
    """Return which other sessions hold locks on a view's table, in the cursor's transaction."""
    cursor.execute(_HOLDERS, (table.schema, table.name))
    return _text(cursor.fetchall())


def read_holders(run: Run, table: SinkTable) -> dict[tuple[int, str], str]:
    """Return what to say of each transaction that holds a lock on a view's table; not of vacuums,
    which give way.

    Keys identify the transactions, however little the role may see of them.
    """
    found = run(_HOLDERS, table.schema, table.name)
    return {(row[0] or 0, row[8]): _text([row]) for row in found}


def _text(found: Sequence[tuple[Any, ...]]) -> str:
    if not found:
        return ""
    table, since = found[0][5], found[0][7]
    what = f"table {table}" if table else "another transaction"
    head = f"an epoch waits for {what} since {since}" if since else f"{what} is locked"
    return "; ".join([head, *map(_session, found[:3])])


def _session(row: tuple[Any, ...]) -> str:
    pid, user, application, since, blockers, _, modes = row[:7]
    if not pid:
        return "a prepared transaction holds it: see pg_prepared_xacts"
    text = f"session {pid} of user {user}" if user else f"session {pid}"
    if application:
        text += f' (application "{application}")'
    text += f" holds it ({modes})" if modes else " holds it"
    if since:
        text += f", in a transaction since {since}"
    if blockers:
        text += f", and waits itself for session {', '.join(map(str, blockers))}"
    return f"{text}; to end it: SELECT pg_terminate_backend({pid})"
