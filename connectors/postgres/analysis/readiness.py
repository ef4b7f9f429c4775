"""Readiness checks: what a database needs before it can be a source or a sink, one check per need.

`tidemark init` and `tidemark doctor` show them. Each check concerns a role, which need not be the
caller's. Invariant: nothing is changed here. A failed check has the error with which the service
itself would refuse; its hint is the command to run. `fix` is the same as a statement, if it only
changes rights of ours or a server setting.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from connectors.postgres.evaluation.query_role import QUERY_ROLE, lacking
from connectors.postgres.replication.given_publication import GivenPublication
from connectors.postgres.replication.publication import (
    UNREADABLE_PART,
    TableFacts,
    check_table,
    give_publication,
    others_publications,
)
from connectors.postgres.replication.slot import OLDEST_VERSION, a_standby
from connectors.postgres.replication.slot_errors import no_free_slot, no_free_wal_sender
from connectors.postgres.schema.schema_setup import give_schema_to, owners_of_schema
from connectors.postgres.session.hosting import RESTART, SELF_HOSTED, Hosting, hosting_of
from connectors.postgres.session.pooler import POOLER, connection_of
from connectors.postgres.session.quoting import LEADS_TO_SUPERUSER, quote_name
from connectors.postgres.session.session import Session
from dataflow.errors import SinkError, SourceError, TidemarkError
from dataflow.schema import RelationName

MIN_FREE_BYTES = 1 << 30
_ERRORS: dict[str, type[TidemarkError]] = {"source": SourceError, "sink": SinkError}
MIN_SLOT_WAL_MB = 1024
# What is suggested where the server invalidates the slot too early, and has too few slots.
_SLOT_WAL, _MORE = "10GB", 10
# Its parameters depend on the version.
_MESSAGE = """
SELECT p.oid::regprocedure::text, has_function_privilege(%s, p.oid, 'EXECUTE') FROM pg_proc AS p
WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace
  AND p.proargtypes[2] = 'text'::regtype
"""
_VERBS = ("ALTER", "BEGIN;", "CREATE", "GRANT", "REVOKE", "DO")

_ROLE = """
SELECT rolname, rolsuper, rolcanlogin,
    rolsuper OR rolreplication OR EXISTS (SELECT FROM pg_roles AS g
        WHERE g.rolname = 'rds_replication' AND pg_has_role(r.oid, g.oid, 'MEMBER')),
    has_database_privilege(oid, current_database(), 'CREATE'),
    has_database_privilege(oid, current_database(), 'TEMPORARY'), current_database()
FROM pg_roles AS r WHERE rolname = coalesce(%s, current_user)
"""
_TABLES = f"""
SELECT n.nspname, c.relname, c.oid, c.relkind, c.relreplident, c.relpersistence,
  EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary),
  c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid),
  c.relispartition, pg_has_role(r.oid, c.relowner, 'USAGE'), pg_get_userbyid(c.relowner),
  r.rolname,
  has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_table_privilege(r.oid, c.oid, 'SELECT'),
  c.relrowsecurity AND NOT (r.rolsuper OR r.rolbypassrls)
    AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE')),
  (SELECT array_agg(DISTINCT l.relkind::text || l.relreplident::text)
     FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid
     WHERE t.isleaf AND c.relkind = 'p'),
  NULL, {LEADS_TO_SUPERUSER.format("c.relowner")}, {UNREADABLE_PART.format("r.oid")}
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace, pg_roles AS r
WHERE r.rolname = %(role)s AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'tidemark')
  AND n.nspname !~ '^pg_' AND (%(tables)s::text[] IS NULL
    OR (n.nspname::text, c.relname::text) IN (
      SELECT coalesce((parse_ident(x))[array_length(parse_ident(x), 1) - 1], 'public'),
        (parse_ident(x))[array_length(parse_ident(x), 1)] FROM unnest(%(tables)s::text[]) AS x))
ORDER BY 1, 2
"""


@dataclass(frozen=True)
class Check:
    """One check. found: the current state; problem: the error, with the command to run as its hint.

    note: worth knowing although the check passes. fix: a statement that repairs it. as_whom: who
    runs the hint's command, "" if anybody may. is_optional: nothing requires it so far; can_wait:
    the service runs without it, and refuses what needs it.
    """

    name: str
    found: str = ""
    problem: TidemarkError | None = None
    note: str = ""
    fix: str = ""
    as_whom: str = ""
    is_optional: bool = False
    can_wait: bool = False


def check_source(
    session: Session,
    names: tuple[str, str],
    role: str | None = None,
    tables: Sequence[str] | None = None,
    *,
    is_given: bool = False,
) -> list[Check]:
    """Check everything that a source needs.

    names: of slot and publication. role: the service's, by default the session's. tables: those
    that views are to read, as SQL names, in schema public by default; None: all. is_given: an
    administrator made the publication.
    """
    slot, publication = names
    checks = _collect("source", session, [lambda: check_server_version(session)])
    if checks[0].problem is not None:
        return checks
    hosting = hosting_of(session)
    checks.append(Check("source: hosting", hosting.name, note=hosting.note))
    found = session.rows(_ROLE, (role,))
    if not found:
        return [*checks, _missing_role("source", role or "")]
    name = found[0][0]
    given = GivenPublication(session, publication) if is_given else None
    probes = [
        lambda: check_connection(session, hosting),
        lambda: check_wal_level(session, hosting),
        lambda: check_slots(session, slot, hosting),
        lambda: check_senders(session, slot, hosting),
        lambda: check_slot_limit(session, hosting),
        lambda: check_disk(session),
        *_role_checks(found[0], session, None if is_given else publication, hosting),
        *([] if is_given else _owner_checks(session, name, publication)),
        lambda: _query_role("source", session, name, _schemas_of(session, tables)),
    ]
    if given is not None:
        probes.append(lambda: _given_check(given))
    checks += _collect("source", session, probes)
    return [_with_whom(c, hosting) for c in (*checks, *check_tables(session, name, tables, given))]


def _with_whom(check: Check, hosting: Hosting) -> Check:
    """Name who runs a statement, where the check has not."""
    problem = check.problem
    is_sql = problem is not None and problem.hint.partition(" ")[0] in _VERBS
    return replace(check, as_whom=hosting.admin) if is_sql and not check.as_whom else check


def check_sink(session: Session, role: str | None, schemas: Sequence[str]) -> list[Check]:
    """Check everything that a sink needs; schemas: of future views."""
    checks = _collect("sink", session, [lambda: _sink_primary(session)])
    if checks[0].problem is not None:
        return checks
    found = session.rows(_ROLE, (role,))
    if not found:
        return [*checks, _missing_role("sink", role or "")]
    name, _, _, _, may_create, _, database = found[0]
    probes = [lambda: _control_schema(session, name, may_create, database)]
    probes += [lambda schema=schema: _view_schema(session, name, schema) for schema in schemas]
    probes.append(lambda: _query_role("sink", session, name, schemas))
    hosting = hosting_of(session)
    return [_with_whom(c, hosting) for c in (*checks, *_collect("sink", session, probes))]


def check_server_version(session: Session) -> Check:
    """Check for a primary of a supported version."""
    version = session.server_version
    found = f"PostgreSQL {version // 10000}.{version % 10000}"
    name = "source: server"
    if version < OLDEST_VERSION:
        hint = "use PostgreSQL 14 or newer"
        return Check(name, found, SourceError("source.version", f"{found} is too old", hint=hint))
    if session.rows("SELECT pg_is_in_recovery()")[0][0]:
        return Check(name, found, a_standby(session))
    return Check(name, found)


def check_connection(session: Session, hosting: Hosting) -> Check:
    """Check that the DSN leads to the server itself, not to a pooler of transactions."""
    name = "source: connection"
    try:
        reached, is_shared = connection_of(session)
    except TidemarkError as error:
        if not error.code.endswith(".pooler"):
            raise
        problem = SourceError(error.code, error.what, detail=error.detail, hint=hosting.direct)
        return Check(name, "a pooler", problem)
    if is_shared:
        problem = SourceError(
            "source.pooler",
            "the source is behind a pooler that gives each transaction another session",
            detail="neither replication nor the settings of a session pass through it",
            hint=hosting.direct,
        )
        return Check(name, "a pooler of transactions", problem)
    if reached == POOLER:
        note = "it is safe only if it pools whole sessions, and passes replication on: better,"
        return Check(name, "a pooler", note=f"{note} {hosting.direct}")
    return Check(name, "direct")


def check_wal_level(session: Session, hosting: Hosting) -> Check:
    """Check that changes can be decoded."""
    level, waits, where = session.rows(
        "SELECT setting, pending_restart, source FROM pg_settings WHERE name = 'wal_level'"
    )[0]
    if level == "logical":
        return Check("source: wal_level", level)
    command = hosting.set_to("wal_level", "logical", restarts=True)
    hint = hosting.restart.removeprefix("then ") if waits else command
    fix = "" if waits or hosting != SELF_HOSTED else command.removesuffix(f" {RESTART}")
    detail = ""
    if hosting == SELF_HOSTED and where == "command line":
        detail = "it is on the server's command line, which outranks ALTER SYSTEM: change it there"
    what = f'the source has wal_level "{level}"'
    problem = SourceError("source.wal_level", what, detail=detail, hint=hint)
    return Check("source: wal_level", level, problem, fix=fix)


def check_slots(session: Session, slot: str, hosting: Hosting) -> Check:
    """Check for a free slot, and one more while a view is created."""
    used, allowed, is_there = session.rows(
        "SELECT count(*), current_setting('max_replication_slots')::int,"
        " coalesce(bool_or(slot_name = %s), false) FROM pg_replication_slots",
        (slot,),
    )[0]
    return _space("max_replication_slots", (used, allowed, is_there), no_free_slot, hosting)


def check_senders(session: Session, slot: str, hosting: Hosting) -> Check:
    """Check for a free WAL sender, and one more while a view is created."""
    used, allowed, is_there = session.rows(
        "SELECT count(*), current_setting('max_wal_senders')::int, EXISTS (SELECT FROM"
        " pg_replication_slots WHERE slot_name = %s AND active) FROM pg_stat_replication",
        (slot,),
    )[0]
    return _space("max_wal_senders", (used, allowed, is_there), no_free_wal_sender, hosting)


def check_slot_limit(session: Session, hosting: Hosting) -> Check:
    """Check when PostgreSQL invalidates an unread slot."""
    limit, size = session.rows(
        "SELECT setting::bigint, current_setting('max_slot_wal_keep_size') FROM pg_settings"
        " WHERE name = 'max_slot_wal_keep_size'"
    )[0]
    name = "source: max_slot_wal_keep_size"
    if limit < 0:
        note = "unlimited: an unread slot can fill the disk; see TIDEMARK_WAL_BUDGET_MB"
        return Check(name, size, note=note)
    if limit < MIN_SLOT_WAL_MB:
        problem = SourceError(
            "source.slot_limit",
            f"the source invalidates the slot when it lags by {size}",
            detail="after that, the views have to be created again",
            hint=hosting.set_to("max_slot_wal_keep_size", _SLOT_WAL, restarts=False),
        )
        return Check(name, size, problem)
    return Check(name, size)


def check_disk(session: Session) -> Check:
    """Check the space for WAL, where the server's directory is visible from here."""
    name = "source: disk"
    (shown,) = session.rows(
        "SELECT CASE WHEN pg_has_role(current_user, 'pg_read_all_settings', 'USAGE')"
        " THEN current_setting('data_directory') END"
    )[0]
    try:
        free = shutil.disk_usage(Path(shown or "")).free if shown else None
    except OSError:
        free = None
    if free is None:
        return Check(name, "not visible from here", note="check the space for WAL on the server")
    found = f"{free >> 20} MiB free"
    if free >= MIN_FREE_BYTES:
        return Check(name, found)
    problem = SourceError(
        "source.no_space",
        "the source has little space left for WAL",
        detail=f"{found} below {shown}",
        hint="free some space: WAL accumulates there while the service is stopped",
    )
    return Check(name, found, problem)


def check_tables(
    session: Session,
    role: str,
    tables: Sequence[str] | None = None,
    given: GivenPublication | None = None,
) -> list[Check]:
    """Check the tables for a role: one check for all usable ones, one for each of the others.

    given: the publication that an administrator made.
    """
    found = _table_facts(session, role, tables)
    refused = _refused(found, given)
    checks = [
        Check(
            f"source: table {relation}",
            problem=refused[relation],
            as_whom=_by_whom(refused[relation], facts),
            is_optional=tables is None,
        )
        for relation, facts in found
        if relation in refused
    ]
    well = len(found) - len(checks)
    existing = {f"{relation.schema}.{relation.name}" for relation, _ in found}
    if tables is not None and len(existing) < len(set(tables)):
        what = f"{len(set(tables)) - len(existing)} of the named tables do not exist"
        problem = SourceError("source.table_missing", what, detail=f"found: {sorted(existing)}")
        checks.append(Check("source: tables", problem=problem))
    return [Check("source: tables", f"{well} of {len(found)} can be published"), *checks]


def _by_whom(error: SourceError, table: TableFacts) -> str:
    """Return who can do what a table's refusal asks for, "" for the usual administrator."""
    if error.code == "source.no_replica_identity":
        return f'the table\'s owner, role "{table.owner}"'
    if error.code in ("source.not_published", "source.publication_options"):
        return "the publication's owner, who has to own the table too"
    return ""


def refusals(
    session: Session, role: str, publication: str = ""
) -> dict[tuple[str, str], SourceError]:
    """Return by (schema, name) why the tables that a role could not publish are refused.

    publication: one that an administrator made, "" for the service's own.
    """
    given = GivenPublication(session, publication) if publication else None
    refused = _refused(_table_facts(session, role, None), given)
    return {(name.schema, name.name): error for name, error in refused.items()}


def _table_facts(
    session: Session, role: str, tables: Sequence[str] | None
) -> list[tuple[RelationName, TableFacts]]:
    selected = None if tables is None else list(tables)
    found = session.rows(_TABLES, {"role": role, "tables": selected})
    return [(RelationName("", s, name), TableFacts(*facts)) for s, name, *facts in found]


def _refused(
    tables: Sequence[tuple[RelationName, TableFacts]], given: GivenPublication | None
) -> dict[RelationName, SourceError]:
    refused = {}
    if given is not None and given.exists():
        refused = given.refusals([relation for relation, _ in tables])
    for relation, facts in tables:
        try:
            check_table(relation, facts, is_given=given is not None)
        except SourceError as error:
            refused[relation] = error
    return refused


def _role_checks(
    facts: tuple, session: Session, publication: str | None, hosting: Hosting
) -> list[Callable[[], Check]]:
    """publication: None if an administrator made it."""
    name, _, may_login, may_replicate, may_create, may_make_temporary, database = facts
    role, quoted_database = quote_name(name), quote_name(database)
    is_there = bool(session.rows("SELECT FROM pg_publication WHERE pubname = %s", (publication,)))
    ((message, may_write),) = session.rows(_MESSAGE, (name,))

    def probe(what: str, is_well: bool, missing: str, fix: str) -> Callable[[], Check]:
        problem = None
        if not is_well:
            problem = SourceError("source.privilege", f'role "{name}" {missing}', hint=fix)
        check = Check(f"source: {what}", name, problem, fix="" if is_well else fix)
        return lambda: check

    own = [
        probe(
            "publication",
            may_create or is_there,
            "may not create a publication",
            f"GRANT CREATE ON DATABASE {quoted_database} TO {role};",
        )
    ]
    return [
        *([] if publication is None else own),
        probe("login", may_login, "may not log in", f"ALTER ROLE {role} LOGIN;"),
        probe("REPLICATION", may_replicate, "may not replicate", hosting.let_replicate(name)),
        probe(
            "analysis of queries",
            may_make_temporary,
            "may not create temporary views, which the analysis of queries needs",
            f"GRANT TEMPORARY ON DATABASE {quoted_database} TO {role};",
        ),
        probe(
            "heartbeat",
            may_write,
            "may not write messages to the WAL, by which the stream moves on",
            f"GRANT EXECUTE ON FUNCTION {message} TO {role};",
        ),
    ]


def _owner_checks(session: Session, role: str, publication: str) -> list[Callable[[], Check]]:
    """Check publications left by a service that ran as another role.

    As with schema tidemark, only what a superuser owns is transferred automatically.
    """
    found = others_publications(session, publication, role)

    def probe(name: str, owner: str, is_super: bool) -> Callable[[], Check]:
        hint = f"ALTER PUBLICATION {quote_name(name)} OWNER TO {quote_name(role)};"
        fix = give_publication(name, role)
        what = f'publication "{name}" belongs to "{owner}", not to role "{role}"'
        problem = SourceError("source.privilege", what, hint=hint)
        check = Check(f"source: publication {name}", owner, problem, fix=fix if is_super else "")
        return lambda: check

    return [probe(*facts) for facts in found]


def _given_check(given: GivenPublication) -> Check:
    name = f"source: publication {given.name}"
    try:
        given.check()
    except SourceError as error:
        return Check(name, problem=error)
    return Check(name, "an administrator's, left as it is")


def _schemas_of(session: Session, tables: Sequence[str] | None) -> list[str]:
    """Return the schemas of tables named as SQL; [public] where none are named."""
    if not tables:
        return ["public"]
    found = session.rows(
        "SELECT DISTINCT coalesce((parse_ident(x))[array_length(parse_ident(x), 1) - 1], 'public')"
        " FROM unnest(%s::text[]) AS x ORDER BY 1",
        (list(tables),),
    )
    return [schema for (schema,) in found]


def _query_role(side: str, session: Session, role: str, schemas: Sequence[str]) -> Check:
    """Check the role as which users' functions run; without it, such views are refused."""
    name = f"{side}: role {QUERY_ROLE}"
    needed = lacking(session, role, schemas)
    if not needed:
        return Check(name, "without rights")
    hint = " ".join(needed)
    what = f'role "{QUERY_ROLE}" is missing or not set up for role "{role}"'
    detail = "users' functions run as this role for views that the service itself owns"
    problem = _ERRORS[side](f"{side}.privilege", what, detail=detail, hint=hint)
    return Check(name, "incomplete", problem, fix=hint, can_wait=True)


def _sink_primary(session: Session) -> Check:
    if session.rows("SELECT pg_is_in_recovery()")[0][0]:
        hint = "point the sink's DSN at the primary"
        problem = SinkError(
            "sink.read_only", "the sink is a standby and cannot be written", hint=hint
        )
        return Check("sink: server", "a standby", problem)
    return Check("sink: server", "writable")


def _control_schema(session: Session, role: str, may_create: bool, database: str) -> Check:
    """Check that schema tidemark and its contents are the role's, or that it may create them.

    Ownership is transferred to the role, never the reverse: membership in another owner would give
    more than the schema. A superuser's objects are transferred automatically. Any other owner may
    be the role of another service that still writes there.
    """
    name = "sink: schema tidemark"
    owners = owners_of_schema(session, role)
    lacking = [(owner, is_super) for owner, is_super, is_usable in owners if not is_usable]
    if not owners and may_create:
        return Check(name, "to be created")
    if owners and not lacking:
        return Check(name, f"owned by {', '.join(owner for owner, *_ in owners)}")
    if lacking:
        others = ", ".join(f'"{owner}"' for owner, _ in lacking)
        what = f'schema "tidemark" or its contents belong to {others}, not to role "{role}"'
        is_safe = all(is_super for _, is_super in lacking)
        detail = "" if is_safe else f"a service that runs as {others} would lose access"
        hint = give_schema_to(role)
        problem = SinkError("sink.privilege", what, detail=detail, hint=hint)
        return Check(name, others, problem, fix=hint if is_safe else "")
    hint = f"GRANT CREATE ON DATABASE {quote_name(database)} TO {quote_name(role)};"
    what = f'role "{role}" may not create schema "tidemark"'
    return Check(name, "missing", SinkError("sink.privilege", what, hint=hint), fix=hint)


def _view_schema(session: Session, role: str, schema: str) -> Check:
    name = f"sink: schema {schema}"
    found = session.rows(
        "SELECT has_schema_privilege(%s, oid, 'CREATE') FROM pg_namespace WHERE nspname = %s",
        (role, schema),
    )
    sql = quote_name(schema)
    if not found:
        hint = f"CREATE SCHEMA {sql} AUTHORIZATION {quote_name(role)};"
        what = f'schema "{schema}" does not exist in the sink'
        return Check(name, "missing", SinkError("sink.schema_missing", what, hint=hint), fix=hint)
    if found[0][0]:
        return Check(name, "views can be created in it")
    hint = f"GRANT USAGE, CREATE ON SCHEMA {sql} TO {quote_name(role)};"
    what = f'role "{role}" may not create tables in schema "{schema}" of the sink'
    return Check(name, "no CREATE", SinkError("sink.privilege", what, hint=hint), fix=hint)


def _space(
    setting: str,
    figures: tuple[int, int, bool],
    refusal: Callable[[str], SourceError],
    hosting: Hosting,
) -> Check:
    used, allowed, is_there = figures
    name, found = f"source: {setting}", f"{used} of {allowed} in use"
    free = allowed - used
    if not is_there and free < 1:
        error = refusal(f"all {allowed} are in use")
        way = hosting.set_to(setting, str(allowed + _MORE), restarts=True)
        detail = f"{error.detail}; {error.hint}"
        return Check(name, found, SourceError(error.code, error.what, detail=detail, hint=way))
    note = "one more is needed while a view is created" if free < 2 - is_there else ""
    return Check(name, found, note=note)


def _missing_role(side: str, role: str) -> Check:
    problem = _ERRORS[side](
        f"{side}.role_missing",
        f'role "{role}" does not exist',
        hint=f"create it: psql -v role={role} -f deploy/role.sql, or"
        f" CREATE ROLE {quote_name(role)} LOGIN PASSWORD '...'; and check again",
    )
    return Check(f"{side}: role", "missing", problem)


def _collect(side: str, session: Session, probes: Iterable[Callable[[], Check]]) -> list[Check]:
    """Run the checks; stop at the first that cannot run, and report that as a problem."""
    checks: list[Check] = []
    for probe in probes:
        try:
            checks.append(probe())
        except TidemarkError as error:
            checks.append(Check(f"{side}: reachable", problem=error))
            break
    return checks
