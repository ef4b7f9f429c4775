"""Where a PostgreSQL server runs, and who changes settings and rights there, with which command.

A managed service has no superuser and ignores ALTER SYSTEM: its settings are changed from outside,
some under another name. Invariant: what is recognized depends on roles, settings and the host's
name only, which everybody may read. Words in capitals in a command are the reader's to fill in.
Sources: the services' own pages on logical replication and server parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import psycopg2
from psycopg2.extensions import parse_dsn

from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import Session

# The role whose members may replicate where no attribute can be given.
RDS_REPLICATION = "rds_replication"
RESTART = "then restart the server"
_FACTS = """
SELECT ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY (%(roles)s)),
  ARRAY(SELECT s FROM unnest(%(settings)s::text[]) AS s WHERE current_setting(s, true) IS NOT NULL),
  EXISTS (SELECT FROM pg_proc WHERE proname = 'aurora_version'
    AND pronamespace = 'pg_catalog'::regnamespace),
  (SELECT bool_and(source = 'command line') FROM pg_settings WHERE name = ANY (%(started_with)s))
"""
# Patroni starts the server with all of these on its command line (its CMDLINE_OPTIONS).
_OF_PATRONI = ["cluster_name", "wal_level", "hot_standby", "max_worker_processes"]
_OF_PATRONI += ["track_commit_timestamp", "max_locks_per_transaction"]


@dataclass(frozen=True)
class Hosting:
    """A kind of hosting.

    admin: who runs statements that need more than the service's rights. change: the command that
    sets {name} to {value}; "" where it is PostgreSQL's own ALTER SYSTEM. restart: the command after
    a setting that needs one. logical: name and value of the setting that makes wal_level logical.
    fixed: what to do instead about a setting that no command changes. direct: how to reach the
    server itself. note: what to know of settings and slots there. roles, settings, hosts: by what
    it is recognized.
    """

    name: str
    admin: str = "a superuser"
    change: str = ""
    restart: str = RESTART
    logical: tuple[str, str] = ("wal_level", "logical")
    fixed: Mapping[str, str] = field(default_factory=dict)
    direct: str = "name the server itself in the DSN, not its pooler"
    note: str = ""
    roles: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def set_to(self, name: str, value: str, *, restarts: bool) -> str:
        """Return what sets a server setting, to be copied; it takes effect after that."""
        if name in self.fixed:
            return self.fixed[name]
        name, value = self.logical if name == "wal_level" else (name, value)
        if self.change:
            if value.endswith("GB"):
                value = str(int(value.removesuffix("GB")) << 10)
            command = self.change.format(
                name=name, value=value, when="pending-reboot" if restarts else "immediate"
            )
            return f"{command}; {self.restart}" if restarts else command
        value = value if value.isalnum() and not value[0].isdigit() else f"'{value}'"
        statement = f"ALTER SYSTEM SET {name} = {value};"
        return f"{statement} {RESTART}" if restarts else f"{statement} SELECT pg_reload_conf();"

    def let_replicate(self, role: str) -> str:
        """Return the statement that lets a role replicate."""
        if RDS_REPLICATION in self.roles:
            return f"GRANT {RDS_REPLICATION} TO {quote_name(role)};"
        return f"ALTER ROLE {quote_name(role)} REPLICATION;"


SELF_HOSTED = Hosting("self-hosted")
PATRONI = Hosting(
    "Patroni",
    change="patronictl edit-config CLUSTER --set postgresql.parameters.{name}={value}",
    restart="patronictl restart CLUSTER",
    note="a failover keeps the slot only if the standby has a copy of it (docs/FAILOVER.md)",
)
_RDS = Hosting(
    "Amazon RDS",
    admin="a member of rds_superuser",
    change="aws rds modify-db-parameter-group --db-parameter-group-name GROUP --parameters"
    " ParameterName={name},ParameterValue={value},ApplyMethod={when}",
    restart="aws rds reboot-db-instance --db-instance-identifier INSTANCE",
    logical=("rds.logical_replication", "1"),
    direct="use the endpoint of the instance: RDS Proxy passes no replication on",
    note="the parameter group must be one of your own: the default one cannot be changed",
    roles=("rds_superuser", RDS_REPLICATION),
    settings=("rds.logical_replication", "rds.extensions"),
    hosts=(".rds.amazonaws.com", ".rds.amazonaws.com.cn"),
)
_AURORA = Hosting(
    "Amazon Aurora",
    admin=_RDS.admin,
    change="aws rds modify-db-cluster-parameter-group --db-cluster-parameter-group-name GROUP"
    " --parameters ParameterName={name},ParameterValue={value},ApplyMethod={when}",
    restart="aws rds reboot-db-instance --db-instance-identifier WRITER",
    logical=_RDS.logical,
    direct="use the cluster's writer endpoint: RDS Proxy passes no replication on",
    note="the setting is the cluster's parameter group's, and the writer is rebooted",
    roles=_RDS.roles,
)
_CLOUD_SQL = Hosting(
    "Google Cloud SQL",
    admin="a member of cloudsqlsuperuser (postgres)",
    change="gcloud sql instances patch INSTANCE --database-flags={name}={value}",
    restart="the instance restarts by itself",
    logical=("cloudsql.logical_decoding", "on"),
    direct="use the instance's own port, not that of managed connection pooling",
    note="--database-flags replaces all flags: name those that are set, too",
    roles=("cloudsqlsuperuser",),
    settings=("cloudsql.logical_decoding", "cloudsql.iam_authentication"),
)
_AZURE = Hosting(
    "Azure Database for PostgreSQL",
    admin="the server's administrator (a member of azure_pg_admin)",
    change="az postgres flexible-server parameter set --resource-group GROUP --server-name SERVER"
    " --name {name} --value {value}",
    restart="az postgres flexible-server restart --resource-group GROUP --name SERVER",
    fixed={
        "max_slot_wal_keep_size": "it cannot be changed there: set TIDEMARK_WAL_BUDGET_MB and"
        " TIDEMARK_WAL_LIMIT=release instead"
    },
    direct="use port 5432 of the server: its PgBouncer is on 6432",
    note="max_slot_wal_keep_size is fixed at -1, and a server whose storage is nearly full becomes"
    " read-only: see TIDEMARK_WAL_BUDGET_MB",
    roles=("azure_pg_admin",),
    settings=("azure.extensions", "azure.accepted_password_auth_method"),
    hosts=(".postgres.database.azure.com",),
)
_SUPABASE = Hosting(
    "Supabase",
    admin="role postgres",
    change="supabase --experimental --project-ref PROJECT postgres-config update"
    " --config {name}={value}",
    restart="the command restarts the database",
    direct="use the direct connection (db.PROJECT.supabase.co, IPv6 or the IPv4 add-on): its pooler"
    " passes no replication on",
    note="wal_level is logical there already",
    roles=("supabase_admin",),
    hosts=(".supabase.co", ".supabase.com"),
)
_NEON = Hosting(
    "Neon",
    admin="a member of neon_superuser",
    fixed={
        "wal_level": "in the project's settings in the Neon console: Logical Replication, Enable"
        " (it cannot be undone, and restarts all computes)",
        **dict.fromkeys(
            ("max_replication_slots", "max_wal_senders", "max_slot_wal_keep_size"),
            "Neon sets it itself: ask its support",
        ),
    },
    direct="use the host without -pooler in its name",
    note="a slot that is inactive for about 40 hours is removed, and the compute never scales to"
    " zero while it is read",
    roles=("neon_superuser",),
    settings=("neon.tenant_id", "neon.timeline_id"),
    hosts=(".neon.tech",),
)
_CRUNCHY = Hosting(
    "Crunchy Bridge",
    admin="role postgres",
    change="in the cluster's configuration parameters (dashboard, or cb config-param set):"
    " postgres:{name}={value}",
    restart="restart the cluster",
    direct="use port 5432: its PgBouncer is on 5431 and admits no role that may replicate",
    note="wal_level is logical there already",
    hosts=(".postgresbridge.com",),
)
# The first that is recognized: Neon and Supabase have roles of others' names too.
MANAGED = (_AURORA, _RDS, _CLOUD_SQL, _AZURE, _SUPABASE, _NEON, _CRUNCHY)


def hosting_of(session: Session) -> Hosting:
    """Return where a session's server runs. Errors as of `Session.rows`."""
    facts = {
        "roles": [name for kind in MANAGED for name in kind.roles],
        "settings": [name for kind in MANAGED for name in kind.settings],
        "started_with": _OF_PATRONI,
    }
    ((roles, settings, is_aurora, is_of_patroni),) = session.rows(_FACTS, facts)
    host = _host_of(session.dsn)
    for kind in MANAGED:
        is_found = (
            not {*kind.roles}.isdisjoint(roles)
            or not {*kind.settings}.isdisjoint(settings)
            or (kind.hosts and host.endswith(kind.hosts))
        )
        if is_found and (is_aurora or kind is not _AURORA):
            return kind
    return PATRONI if is_of_patroni else SELF_HOSTED


def _host_of(dsn: str) -> str:
    """Return the first host that a DSN names, "" for none."""
    try:
        found = parse_dsn(dsn)
    except psycopg2.Error:
        return ""
    return str(found.get("host", "")).split(",")[0].lower()
