"""Views' tables that others have a say in, read inside of the sandbox.

Whatever plans a query over a table computes the expressions of its indexes and statistics, which
are its owner's. So such a table is lent to the role without rights: by a temporary view of ours,
which is bound to the table itself and not to its name, and what is asked of it is planned and run
in a frame. Invariant: the transaction is rolled back in the end; nothing is written in it.
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
    """What to ask for the rows of a query over a view's table, which it is given as a target.

    dsn: of the cursor's session; width: how many columns the query has. The transaction has
    written nothing, and is read-only from here on. SinkError sink.foreign_object, and what
    `sandbox.enter` raises.
    """
    require_ours(cursor, table)
    target = target_of(table)
    if not is_foreign(cursor, table):
        cursor.execute("SET LOCAL transaction_read_only = on")
        return query(target)
    box = replace(sandbox.enter(cursor, dsn), path=PINNED_PATH)
    lent = _lend(cursor, box, table)
    asked = query(replace(target, schema="pg_temp", name=lent))
    names = ", ".join(f"c{i}" for i in range(width))
    box.make_view(cursor, f"{lent}_asked", f"SELECT * FROM ({asked}) AS q ({names})")
    source = box.confine(cursor, f"{lent}_asked")
    cursor.execute("SET LOCAL transaction_read_only = on")
    return f"SELECT * FROM {source}"


def _lend(cursor: Any, box: sandbox.Sandbox, table: SinkTable) -> str:
    """Make a temporary view of a table's columns, for the sandbox's role to read; its name."""
    target, name = target_of(table), f"tidemark_lent_{secrets.token_hex(8)}"
    columns = ", ".join(quote_name(c.name) for c in target.columns)
    cursor.execute(f"CREATE TEMP VIEW {name} AS SELECT {columns} FROM ONLY {target.sql}")
    cursor.execute(_IS_OF_TABLE, (f"pg_temp.{name}", table.schema, table.name))
    if not cursor.fetchone()[0]:
        raise SinkError(
            "sink.foreign_object",
            f'view "{table.title}" has another table now',
            detail=f"{target.sql} is not the table that was made for the view",
            hint="rebuild the view, or drop it",
        )
    cursor.execute(f"GRANT SELECT ON pg_temp.{name} TO {quote_name(box.role)}")
    return name
