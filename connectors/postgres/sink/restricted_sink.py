"""Read views' tables that other roles control, inside the sandbox.

Planning a query over a table computes the expressions of its indexes and statistics, which are its
owner's code. So the role without rights reads such a table through a temporary view of ours, bound
to the table itself and not to its name. Queries on it are planned and run in a frame. Invariant:
the transaction is rolled back in the end; nothing is written in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from connectors.postgres.evaluation import sandbox
from connectors.postgres.schema.sink_target import Target, target_of
from connectors.postgres.schema.trigger_guard import is_foreign, require_ours
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import PINNED_PATH
from connectors.sink import SinkTable
from dataflow.errors import SinkError

_IS_OF_TABLE = """
SELECT EXISTS (SELECT FROM pg_rewrite AS w
    JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
    JOIN tidemark.tables AS t ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.table_oid
    WHERE w.ev_class = %s::regclass AND (t.schema, t.name) = (%s, %s) AND NOT t.is_staged)
"""


def reading(
    cursor: Any, dsn: str, table: SinkTable, query: Callable[[Target], str], width: int
) -> str:
    """Return a query of the rows of a view's table; query: builds it from the target to read.

    dsn: of the cursor's session; width: the number of columns. The transaction has written nothing,
    and is read-only from here on. SinkError sink.foreign_object, and errors of `sandbox.enter`.
    """
    require_ours(cursor, table)
    target = target_of(table)
    if not is_foreign(cursor, table):
        cursor.execute("SET LOCAL transaction_read_only = on")
        return query(target)
    box = replace(sandbox.enter(cursor, dsn), path=PINNED_PATH)
    restricted = _lend(cursor, box, table)
    selected = query(replace(target, schema="pg_temp", name=restricted))
    names = ", ".join(f"c{i}" for i in range(width))
    box.make_view(cursor, f"{restricted}_asked", f"SELECT * FROM ({selected}) AS q ({names})")
    source = box.confine(cursor, f"{restricted}_asked")
    cursor.execute("SET LOCAL transaction_read_only = on")
    return f"SELECT * FROM {source}"


def _lend(cursor: Any, box: sandbox.Sandbox, table: SinkTable) -> str:
    """Create a temporary view of a table's columns that the sandbox's role may read; return its
    name."""
    target, name = target_of(table), f"tidemark_lent_{secrets.token_hex(8)}"
    columns = ", ".join(quote_name(c.name) for c in target.columns)
    cursor.execute(f"CREATE TEMP VIEW {name} AS SELECT {columns} FROM ONLY {target.sql}")
    cursor.execute(_IS_OF_TABLE, (f"pg_temp.{name}", table.schema, table.name))
    if not cursor.fetchone()[0]:
        raise SinkError(
            "sink.foreign_object",
            f'view "{table.title}" has a different table now',
            detail=f"{target.sql} is not the table that Tidemark created for the view",
            hint="rebuild the view, or drop it",
        )
    cursor.execute(f"GRANT SELECT ON pg_temp.{name} TO {quote_name(box.role)}")
    return name
