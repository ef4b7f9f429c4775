"""What a server and its tables must be, so that their log can be followed: checked by name.

Runs when a source is declared, changed or examined by `tidemark doctor`. Invariant: what is
accepted here is followed without loss as long as no session overrides the server's settings; if one
does, the log itself shows it, and the source stops there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from connectors.mysql.column_types import ServerTable, read_table
from connectors.mysql.options import TableOptions
from connectors.mysql.server import MARIADB, Server, setting
from dataflow.errors import SourceError
from dataflow.schema import Relation
from dataflow.types import TypeKind

# variable -> (values that are fine, statement that repairs it). Unknown variables are fine.
_NEEDED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "log_bin": (("ON", "1"), "set log_bin in the server's configuration, and restart it"),
    "binlog_format": (("ROW",), "SET GLOBAL binlog_format = 'ROW', and reconnect all writers"),
    "binlog_row_image": (
        ("FULL",),
        "SET GLOBAL binlog_row_image = 'FULL', and reconnect all writers",
    ),
    "binlog_row_metadata": (("FULL",), "SET GLOBAL binlog_row_metadata = 'FULL'"),
    "binlog_transaction_compression": (
        ("OFF", "0"),
        "SET GLOBAL binlog_transaction_compression = OFF, and reconnect all writers",
    ),
    "binlog_row_value_options": (
        ("",),
        "SET GLOBAL binlog_row_value_options = '', and reconnect all writers",
    ),
}
# The variables that a server must know: older ones do not write what is needed.
_REQUIRED = ("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata")
_ALL = ("ALL PRIVILEGES", "SUPER")
_FOLLOWS = ("REPLICATION SLAVE", "REPLICATION REPLICA")
_SEES_POSITION = ("REPLICATION CLIENT", "BINLOG MONITOR")
# Types whose equal values have equal bytes, so that they can identify rows.
_KEY_KINDS = {
    TypeKind.BOOL,
    TypeKind.INT2,
    TypeKind.INT4,
    TypeKind.INT8,
    TypeKind.FIXED,
    TypeKind.DECIMAL,
    TypeKind.TEXT,
    TypeKind.DATE,
    TypeKind.TIMESTAMP,
    TypeKind.TIMESTAMPTZ,
    TypeKind.INTERVAL,
    TypeKind.UUID,
    TypeKind.BYTEA,
}


def check_server(server: Server, server_id: int) -> None:
    """Check variables, privileges and the server's number. SourceError mysql.setting,
    source.privilege, mysql.server_id.
    """
    found = server.variables(*_NEEDED, "server_id")
    for name, (values, hint) in _NEEDED.items():
        value = found.get(name)
        if value is None and name in _REQUIRED:
            raise setting(server.name, name, f"unknown to {server.version}", "use a newer server")
        if value is not None and value.upper() not in values:
            raise setting(server.name, name, value, hint)
    if server_id and str(server_id) == found.get("server_id"):
        raise SourceError(
            "mysql.server_id",
            f'option "server_id" of mysql source "{server.name}" is the server\'s own number',
            detail=f"server_id is {server_id}",
            hint="leave it out for a random number, or choose one that no replica has",
        )
    check_privileges(server)


def check_privileges(server: Server) -> None:
    """Check the global privileges. SourceError source.privilege."""
    grants = [row[0].upper() for row in server.texts("SHOW GRANTS")]
    on_all = " ".join(grant for grant in grants if " ON *.* " in grant)
    if any(word in on_all for word in _ALL[:1]):
        return
    lacking = []
    if not any(word in on_all for word in _FOLLOWS):
        lacking.append("REPLICATION SLAVE")
    if not any(word in on_all for word in _SEES_POSITION) and "SUPER" not in on_all:
        lacking.append("BINLOG MONITOR" if server.flavor == MARIADB else "REPLICATION CLIENT")
    if lacking:
        raise SourceError(
            "source.privilege",
            f'mysql source "{server.name}": the user lacks {" and ".join(lacking)}',
            hint=f"GRANT {', '.join(lacking)} ON *.* TO the user",
        )
    # Reading the position is what needs the second one, whatever a role may have granted.
    server.log_end()


def check_table(server: Server, options: TableOptions, relation: Relation) -> ServerTable:
    """Check a table against its declaration, and that it can be read.

    SourceError source.table_missing, mysql.table_engine, mysql.cascading_key,
    source.column_dropped, mysql.unsupported_column, source.column_changed, source.key_changed,
    source.privilege.
    """
    table = find_table(server, options)
    for field in relation.fields:
        column = table.column(field.name)
        if column is None:
            raise SourceError(
                "source.column_dropped",
                f'table "{options.title}" has no column "{field.name}"',
                detail=f"it has {', '.join(c.name for c in table.columns)}",
                hint="declare the table's columns: tidemark sources discover mysql",
                relation=relation.name,
            )
        if not column.family or column.is_virtual:
            why = "is generated and not stored" if column.is_virtual else f"is {column.type}"
            raise SourceError(
                "mysql.unsupported_column",
                f'column "{field.name}" of table "{options.title}" cannot be read',
                detail=f"it {why}",
                hint="leave it out of the declared columns",
                relation=relation.name,
            )
        if not column.accepts(field.type):
            raise SourceError(
                "source.column_changed",
                f'column "{field.name}" of table "{options.title}" cannot be {field.type.name}',
                detail=f"it is {column.type}",
                hint=f"declare it as {column.proposed()}",
                relation=relation.name,
            )
    _check_key(table, options, relation)
    unlogged = server.unlogged(table.schema)
    if unlogged:
        hint = f'let the log have database "{table.schema}", and restart the server'
        raise setting(server.name, unlogged, f"such that {table.schema} is not logged", hint)
    server.rows(f"SELECT 1 FROM {title(table)} LIMIT 0")
    return table


def find_table(server: Server, options: TableOptions) -> ServerTable:
    """Return a table whose changes the log has. SourceError source.table_missing,
    mysql.table_engine, mysql.cascading_key.
    """
    table = read_table(server, options.schema, options.table)
    if table is None:
        raise SourceError(
            "source.table_missing",
            f'table "{options.title}" does not exist on the server of "{server.name}"',
            detail="or the user may not SELECT from it, or it is a view, a sequence or "
            "system-versioned",
            hint="check its name, and GRANT SELECT",
        )
    if table.engine.upper() != "INNODB":
        raise SourceError(
            "mysql.table_engine",
            f'table "{options.title}" has engine {table.engine}',
            detail="only InnoDB gives a consistent snapshot, and logs a transaction as a whole",
            hint="ALTER TABLE ... ENGINE = InnoDB",
        )
    if table.cascades:
        raise SourceError(
            "mysql.cascading_key",
            f'table "{options.title}" is changed by foreign keys, which is not logged',
            detail=f"ON DELETE or ON UPDATE of {', '.join(table.cascades)}",
            hint="let the foreign key be RESTRICT or NO ACTION, and delete rows explicitly",
        )
    return table


def usable_key(table: ServerTable, types: Mapping[str, TypeKind]) -> tuple[str, ...]:
    """Return the first key whose columns are all declared with a type that identifies rows."""
    for key in table.keys:
        if all(types.get(name) in _KEY_KINDS for name in key):
            return key
    return ()


def title(table: ServerTable) -> str:
    """Return the table's name as SQL."""
    from connectors.mysql.server import quoted

    return f"{quoted(table.schema)}.{quoted(table.name)}"


def _check_key(table: ServerTable, options: TableOptions, relation: Relation) -> None:
    names = [relation.fields[c].name for c in relation.key]
    for position in relation.key:
        field = relation.fields[position]
        if field.type.kind not in _KEY_KINDS or not field.type.is_deterministic:
            raise SourceError(
                "source.bad_option",
                f'option "tables.{options.relation}.key" names "{field.name}", which cannot be '
                "a key",
                detail=f"equal values of type {field.type.name} may have different bytes",
                hint="choose another unique key, or declare the table without one",
            )
    if names and not _is_key(names, table.keys):
        raise SourceError(
            "source.key_changed",
            f'columns {", ".join(names)} are no key of table "{options.title}"',
            detail="a key is unique, has no NULLs, and no column is indexed by its beginning only",
            hint="declare one of: " + ("; ".join(", ".join(k) for k in table.keys) or "no key"),
            relation=relation.name,
        )


def _is_key(names: Sequence[str], keys: Sequence[Sequence[str]]) -> bool:
    lowered = {name.lower() for name in names}
    return any(lowered == {name.lower() for name in key} for key in keys)
