"""`tidemark init`: prepare a database for the service.

It checks all requirements, does what its privileges allow, and returns the rest as commands.
Invariant: it changes only privileges and the schema tidemark. It never changes a table: a replica
identity is its owner's choice. It changes a server setting only on request. Idempotent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from connectors.postgres.analysis import time_functions
from connectors.postgres.analysis.readiness import Check, check_sink, check_source
from connectors.postgres.replication.slot import object_name, slot_name
from connectors.postgres.schema import schema_setup
from connectors.postgres.session.hosting import RESTART
from connectors.postgres.session.session import Session, connect, translated
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from storage.failpoints import failpoint

_SETTING = "ALTER SYSTEM"


@dataclass(frozen=True)
class Desired:
    """What to prepare. source, sink: DSNs, preferably of an administrator. role: the service's;
    None: the DSN's own. tables: those that views will read; None: any. schemas: those of the views.
    may_alter_system: allow changes of server settings. has_functions: the source is to have the
    optional time functions. publication: one that an administrator made, "" for the service's own.
    """

    source: str
    sink: str
    role: str | None = None
    prefix: str = "tidemark"
    tables: tuple[str, ...] | None = None
    schemas: tuple[str, ...] = ("public",)
    may_alter_system: bool = False
    has_functions: bool = False
    publication: str = ""


@dataclass(frozen=True)
class Step:
    """A check after init's work. outcome: ok, done, to do, note. left: the command to run. why: the
    reason that init did not run it."""

    outcome: str
    check: Check
    left: str = ""
    why: str = ""


def prepare(desired: Desired, *, is_dry: bool) -> list[Step]:
    """Check, fix what is allowed (unless is_dry), check again, and return the steps."""
    source, sink = Session(desired.source), Session(desired.sink, "sink")
    try:
        before = [*_source(desired, source), *_sink(desired, sink)]
        tried: dict[str, str] = {}
        if not is_dry:
            may_set = desired.may_alter_system
            tried = _heal(_source(desired, source), source, may_alter_system=may_set)
            tried |= _heal(_sink(desired, sink), sink, may_alter_system=may_set)
        after = [*_source(desired, source), *_sink(desired, sink)] if tried else before
    finally:
        source.close()
        sink.close()
    ill = {check.name for check in before if check.problem is not None}
    steps = [_step(check, check.name in ill, tried.get(check.name)) for check in after]
    of_sink = [s for s in steps if s.check.name.startswith("sink:") and not s.check.can_wait]
    is_sink_well = all(s.outcome != "to do" for s in of_sink)
    if is_sink_well and not is_dry:
        steps.append(_make_schema(desired))
    if desired.has_functions:
        steps.append(_make_functions(desired, is_dry=is_dry))
    return steps


def checks_of(desired: Desired) -> list[Check]:
    """Return the checks only; for `tidemark doctor`."""
    source, sink = Session(desired.source), Session(desired.sink, "sink")
    try:
        return [*_source(desired, source), *_sink(desired, sink)]
    except TidemarkError as error:
        return [Check("checks", problem=error)]
    finally:
        source.close()
        sink.close()


def _source(desired: Desired, session: Session) -> list[Check]:
    names = (
        slot_name(session, desired.prefix, MAIN_SOURCE),
        desired.publication or object_name(desired.prefix, MAIN_SOURCE),
    )
    is_given = bool(desired.publication)
    return check_source(session, names, desired.role, desired.tables, is_given=is_given)


def _sink(desired: Desired, session: Session) -> Sequence[Check]:
    return check_sink(session, desired.role, desired.schemas)


def _heal(checks: Sequence[Check], session: Session, *, may_alter_system: bool) -> dict[str, str]:
    """Run the fixes of failed checks; return by name why PostgreSQL refused, "" if it did not.

    A server setting that must not be changed is reported, not tried: it concerns other databases.
    A GRANT without the privilege may give only a warning, so the caller checks again.
    """
    said = {}
    for check in checks:
        if check.problem is None or not check.fix or check.is_optional:
            continue
        if check.fix.startswith(_SETTING) and not may_alter_system:
            said[check.name] = "it concerns the whole server; use --alter-system to change it"
            continue
        try:
            session.execute(check.fix, doing=f"cannot run {check.fix}")
            if check.fix.startswith(_SETTING):
                session.execute("SELECT pg_reload_conf()")
            said[check.name] = ""
            failpoint("init.repair.after")
        except TidemarkError as error:
            said[check.name] = error.detail
    return said


def _step(check: Check, was_ill: bool, said: str | None) -> Step:
    if check.problem is None:
        well = "done" if was_ill else "ok"
        return Step("note" if check.note else well, check)
    hint = check.problem.hint
    if RESTART in hint and said == "":
        return Step("to do", check, "restart the server", "the setting is changed")
    return Step("note" if check.is_optional else "to do", check, hint, said or "")


def _make_schema(desired: Desired) -> Step:
    """Create schema tidemark as the service's role, so that the service can upgrade it."""
    name = "sink: schema tidemark"
    try:
        settings = {} if desired.role is None else {"role": desired.role}
        session = connect(desired.sink, side="sink", settings=settings)
        try:
            failpoint("init.schema.before")
            schema_setup.ensure(session)
        finally:
            session.close()
    except TidemarkError as error:
        return Step("to do", Check(name, problem=error), error.hint)
    return Step("done", Check(name, f"version {schema_setup.VERSION}"))


def _make_functions(desired: Desired, *, is_dry: bool) -> Step:
    """Create the optional time functions in the source, as the role of its DSN."""
    name = "source: time functions"
    found = f"schema {time_functions.SCHEMA}"
    try:
        connection = connect(desired.source, side="source")
        try:
            doing = "cannot create the time functions"
            with translated("source", doing), connection, connection.cursor() as cursor:
                if time_functions.installed(cursor) == time_functions.NAMES:
                    return Step("ok", Check(name, found))
                if is_dry:
                    missing = Check(name, "some are missing", note="run without --dry-run")
                    return Step("to do", missing)
                for statement in time_functions.statements():
                    cursor.execute(statement)
        finally:
            connection.close()
    except TidemarkError as error:
        return Step("to do", Check(name, problem=error), error.hint)
    return Step("done", Check(name, found))
