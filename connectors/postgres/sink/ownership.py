"""The owner of a view's table in the sink.

The user who requested a view by CALL owns its table if the service's role may transfer ownership
(it is a superuser, or a member of that user's role). Otherwise the service keeps the table, and the
creator may read it and grant reading. Invariant: only the service writes. An owner has no INSERT,
UPDATE or DELETE by mistake, and may add indexes, grants and comments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg2

from connectors.postgres.schema.stored_roles import current_oid
from connectors.postgres.session.quoting import quote_name
from connectors.sink import SinkTable
from dataflow.errors import SinkError

# Only a member of the new owner may transfer a table, and that owner must be able to create tables
# in its schema. The service must inherit the role's rights, to drop the table later.
_CREATOR = f"""
SELECT r.rolname, current_user,
    has_schema_privilege(r.oid, %(schema)s, 'CREATE') AND pg_has_role(current_user, r.oid, 'USAGE')
    AND pg_has_role(current_user, r.oid, %(membership)s)
FROM tidemark.views AS v
JOIN pg_roles AS r ON r.oid = {current_oid("v.created_by", "v.created_oid")}
WHERE v.schema = %(schema)s AND v.name = %(name)s AND r.rolname <> current_user
"""


def give_to_creator(cursor: Any, table: SinkTable, relations: Iterable[tuple[str, str]]) -> None:
    """Make the view's creator the owner of its relations, or at least their first reader.

    relations: ("TABLE" or "VIEW", its name as SQL), the one that people read last. SinkError
    sink.owner.
    """
    membership = "SET" if cursor.connection.server_version >= 160000 else "MEMBER"
    names = {"schema": table.schema, "name": table.name, "membership": membership}
    cursor.execute(_CREATOR, names)
    found = cursor.fetchone()
    if found is None:
        return
    creator, service = quote_name(found[0]), quote_name(found[1])
    statements = []
    for word, name in relations:
        if not found[2]:
            statements = [f"GRANT SELECT ON {name} TO {creator} WITH GRANT OPTION"]
            continue
        statements += [
            f"ALTER {word} {name} OWNER TO {creator}",
            f"REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {name} FROM {creator}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {service}",
        ]
    try:
        for statement in statements:
            cursor.execute(statement)
    except psycopg2.Error as error:
        raise SinkError(
            "sink.owner",
            f'view "{table.title}" cannot be transferred to its creator "{found[0]}"',
            detail=str(error.diag.message_primary or error),
            hint="see the detail; drop the view and create it again",
        ) from None
