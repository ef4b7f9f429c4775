"""What a PostgreSQL server has besides rows: to compare it before and after."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database
from tests.harness.psql import psql_environment

# Of the whole server, and of a database. pg_dump has no slots, event triggers' states or roles.
_OF_SERVER = {
    "roles": "SELECT to_jsonb(r) - 'oid' FROM pg_roles AS r WHERE rolname !~ '^pg_'",
    "members": "SELECT roleid::regrole::text, member::regrole::text FROM pg_auth_members"
    " WHERE roleid::regrole::text !~ '^pg_'",
    "slots": "SELECT slot_name, plugin, database FROM pg_replication_slots",
    "databases": "SELECT datname, pg_get_userbyid(datdba) FROM pg_database WHERE NOT datistemplate",
    "privileges of databases": "SELECT datname, pg_get_userbyid(a.grantee), a.privilege_type"
    " FROM pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba))) AS a"
    " WHERE NOT datistemplate",
    "settings": "SELECT setdatabase, setrole::regrole::text, setconfig::text"
    " FROM pg_db_role_setting",
    "subscriptions": "SELECT subname FROM pg_subscription",
    "prepared": "SELECT gid FROM pg_prepared_xacts",
    "configuration": "SELECT name, setting FROM pg_file_settings"
    " WHERE sourcefile LIKE '%auto.conf'",
}
_OF_DATABASE = {
    "default privileges": "SELECT defaclrole::regrole::text, defaclnamespace::regnamespace::text,"
    " defaclobjtype, defaclacl::text FROM pg_default_acl",
    "publications": "SELECT pubname, to_jsonb(p) - 'oid' FROM pg_publication AS p",
    "event triggers": "SELECT evtname, evtenabled FROM pg_event_trigger",
    "triggers": "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal",
    "replica identities": "SELECT oid::regclass::text, relreplident FROM pg_class"
    " WHERE relkind IN ('r', 'p') AND relnamespace::regnamespace::text !~ '^(pg_|information)'",
    "large objects": "SELECT oid FROM pg_largeobject_metadata",
}


def contents(server: EmbeddedPostgres, databases: Sequence[str]) -> dict[str, Any]:
    """Return every object of a server and of these databases, by kind."""
    found: dict[str, Any] = {}
    admin = Database(server, "postgres")
    for kind, sql in _OF_SERVER.items():
        found[kind] = _sorted(admin.rows(sql))
    for name in databases:
        database = Database(server, name)
        for kind, sql in _OF_DATABASE.items():
            found[f"{name}: {kind}"] = _sorted(database.rows(sql))
        found[f"{name}: schema"] = _dumped(server, name)
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what is not the same: by kind, (only before, only after)."""
    found = {}
    for kind in before.keys() | after.keys():
        old, new = before.get(kind, []), after.get(kind, [])
        if old != new:
            found[kind] = [x for x in old if x not in new], [x for x in new if x not in old]
    return found


def _sorted(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return sorted(map(repr, rows))


def _dumped(server: EmbeddedPostgres, name: str) -> list[str]:
    done = subprocess.run(
        [str(server.program("pg_dump")), "--schema-only", "-d", server.dsn_of(name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=psql_environment(),
    )
    # Since 18, pg_dump writes a random key.
    lines = done.stdout.splitlines()
    return [x for x in lines if not x.startswith(("\\restrict", "\\unrestrict", "--"))]
