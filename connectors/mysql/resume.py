"""Whether a log is continued at a file and offset, or at its GTIDs.

On the server that a position was taken from, file and offset are exact. GTIDs hold on its replicas
too, once one of them is promoted. Invariant: a file of another server, or of a server whose log
was begun again, is never read at an offset of the old one.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectors.mysql.options import MySqlOptions
from connectors.mysql.positions import GtidSet, LogPosition
from connectors.mysql.server import MARIADB, Server
from connectors.mysql.statements import Watch, Watched
from dataflow.errors import SourceError
from dataflow.schema import Relation


def watched(relations: Sequence[Relation], options: MySqlOptions) -> Watch:
    """Return the tables of these relations, as the log names them."""
    found = {}
    for relation in relations:
        table = options.table_of(relation.name.name)
        columns = frozenset(field.name.lower() for field in relation.fields)
        key = frozenset(relation.fields[c].name.lower() for c in relation.key)
        found[table.schema.lower(), table.table.lower()] = Watched(relation.name, columns, key)
    return found


def is_by_gtid(server: Server, positions: Sequence[LogPosition]) -> bool:
    """Return True if the log is to be read from the GTIDs of these positions.

    SourceError mysql.other_server: they are of another server, and have no GTIDs.
    """
    identity = server.identity()
    has_gtids = all(position.gtids for position in positions)
    if server.flavor != MARIADB and has_gtids:
        return True
    if all(_is_here(server, identity, position) for position in positions):
        return False
    if has_gtids:
        return True
    position = positions[0]
    raise SourceError(
        "mysql.other_server",
        f'mysql source "{server.name}" is another server, or its log was begun again',
        detail=f"position {position} is of server {position.server}, this is {identity}",
        hint="rebuild the views that read the source, or let it reach the old server again",
    )


def _is_here(server: Server, identity: str, position: LogPosition) -> bool:
    """Return True if the position is one of this server's own log."""
    if position.server != identity:
        return False
    if server.flavor != MARIADB:
        return True
    sql = "SELECT BINLOG_GTID_POS(%s, %s)"
    (found,) = server.rows(sql, (position.file, position.offset))[0]
    if found is None:
        # The file is gone; without GTIDs the server itself says so when it is asked for it.
        return not position.gtids
    return str(GtidSet.parse(found.decode())) == str(position.gtids)
