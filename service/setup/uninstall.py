"""`tidemark uninstall`: remove everything that a service has made.

The plan is found first, and nothing is changed by that; a dry run prints it. Then it is carried out
in its order: what names other things goes after them, so that whatever a kill leaves is found by
the next run. Invariant: a service that runs is not touched. While it is being removed, its locks
are held: on its state and on its sink.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from connectors.postgres.catalog import sink_records
from connectors.postgres.catalog.catalog import Control, control_of
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.postgres.removal import source_removal
from connectors.postgres.removal.role_removal import RoleRemoval
from connectors.postgres.removal.sink_removal import Found, SinkRemoval, open_sink
from connectors.postgres.removal.source_removal import SourceRemoval
from connectors.postgres.session.session import Session
from connectors.removal import Removal
from connectors.view_sink import ViewSink
from dataflow.errors import TidemarkError
from service.factory.sink_types import sink_connector
from service.runtime.settings import Settings
from service.runtime.state_lock import StateLock, require_free
from service.setup import uninstall_files
from service.views.requested_changes import table_of
from storage.errors import StorageError
from storage.failpoints import failpoint

# With these a database is taken to be gone, or away for long: the rest is removed without it.
_GONE = frozenset(
    f"{side}.{kind}" for side in ("source", "sink") for kind in ("unreachable", "database")
)
_AGAIN = "stop it, then run tidemark uninstall again"
_SERVER = "SELECT system_identifier::text, current_database()::text FROM pg_control_system()"


@dataclass(frozen=True)
class Desired:
    """What to remove. role: the service's role; "": the owner of schema tidemark."""

    settings: Settings
    role: str = ""
    keeps_tables: bool = False
    drops_checkpoints: bool = False


@dataclass(frozen=True)
class Done:
    """A thing of the plan, carried out. error: why it is left to be removed by hand."""

    removal: Removal
    error: TidemarkError | None = None


class Uninstall:
    """`with Uninstall(desired) as it:`, then `plan`, and perhaps `carry_out`. For one thread."""

    def __init__(self, desired: Desired) -> None:
        self._desired = desired
        self._settings = desired.settings
        self._resources = ExitStack()
        self._sink: SinkRemoval | None = None
        self._found: Found | None = None

    def __enter__(self) -> Uninstall:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def plan(self) -> list[Removal]:
        """Return what there is, in the order of removal; nothing is changed.

        TidemarkError uninstall.running, uninstall.dependents, and what is said about a database
        that refuses; one that is gone is no error.
        """
        self._require_stopped_here()
        missing = self._open_sink()
        found, removals = self._found, missing
        if found is not None and self._sink is not None:
            if where := self._sink.running():
                raise _running(self._settings.prefix, "; ".join(where))
            self._sink.require_no_dependents(found, keeps_tables=self._desired.keeps_tables)
            removals += self._additional_sinks(self._sink)
        removals += self._source(found)
        if found is not None and self._sink is not None:
            removals += self._sink.views(found, keeps_tables=self._desired.keeps_tables)
        # The schema names the role whose privileges are revoked before.
        removals += self._roles(found)
        if found is not None and self._sink is not None:
            removals += self._sink.rest(found)
            if found.is_registered and not self._settings.state.is_dir():
                what = f'state directory "{self._settings.state}"'
                removals.append(Removal("state", what, note="there is none; name it with --state"))
        copies = self._desired.drops_checkpoints
        removals += uninstall_files.find(self._settings, drops_checkpoints=copies)
        return removals

    def carry_out(self, plan: list[Removal]) -> Iterator[Done]:
        """Yield each thing of the plan once it is removed, kept or left.

        TidemarkError uninstall.running: the service has started since; other errors of what the
        rest depends on: run it again.
        """
        self._hold()
        for removal in plan:
            if removal.act is None:
                yield Done(removal)
                continue
            try:
                removal.act()
            except TidemarkError as error:
                if not removal.command:
                    raise
                yield Done(removal, error)
            else:
                yield Done(removal)

    # --- locks -----------------------------------------------------------------------------

    def _require_stopped_here(self) -> None:
        try:
            require_free(self._settings.state)
        except StorageError as error:
            raise _running(self._settings.prefix, error.detail) from None

    def _hold(self) -> None:
        """Keep the service from starting until this ends."""
        settings = self._settings
        if settings.state.is_dir():
            location = f"tidemark uninstall, pid {os.getpid()} on {socket.gethostname()}"
            try:
                lock = StateLock(settings.state, location)
            except StorageError as error:
                raise _running(settings.prefix, error.detail) from None
            self._resources.callback(lock.close)
        if self._sink is not None and self._found is not None and not self._sink.hold(self._found):
            raise _running(settings.prefix, "it has started since the plan was made")

    # --- the sink --------------------------------------------------------------------------

    def _open_sink(self) -> list[Removal]:
        try:
            session = open_sink(self._settings.sink)
        except TidemarkError as error:
            if error.code not in _GONE:
                raise
            why = f"the sink does not answer ({error.code}); if it still exists"
            again = "run tidemark uninstall again once it answers"
            return [Removal("sink", "views and schema tidemark", None, why, again)]
        self._resources.callback(session.close)
        self._sink = SinkRemoval(session, self._settings.prefix)
        self._found = self._sink.find()
        return []

    def _additional_sinks(self, sink: SinkRemoval) -> list[Removal]:
        removals: list[Removal] = []
        with control_of(self._settings.sink, self._settings.prefix) as control:
            for row in sink_records.list_sinks(control):
                removals += self._additional_sink(control, row, sink)
        return removals

    def _additional_sink(self, control: Control, row: SinkRow, sink: SinkRemoval) -> list[Removal]:
        location = f"{row.type} sink {row.title}"
        try:
            views = {view.identity: view for view in control.list_views()}
            table = table_of(views[row.view_identity])
            made = sink_connector(row.type).make(row.options, table, row.identity, row.title)
            found = made.detachment()
        except (TidemarkError, KeyError) as error:
            code = error.code if isinstance(error, TidemarkError) else "its view is gone"
            by_hand = "docs/UNINSTALL.md says what sinks of this type leave"
            return [Removal(location, "what only the service needs", None, f"({code})", by_hand)]
        removals = [Removal(location, what) for what in found.kept]
        if found.removed:
            what = "; ".join(found.removed)
            act = partial(_detach, made, row.identity, sink)
            removals.insert(0, Removal(location, what, act, command=f"remove {what}"))
        return removals

    # --- source and roles ------------------------------------------------------------------

    def _source(self, found: Found | None) -> list[Removal]:
        settings = self._settings
        names = () if found is None else found.names
        others = frozenset[str]() if found is None else found.others_names
        session = Session(settings.source)
        try:
            given = settings.publication
            return SourceRemoval(session, settings.prefix, names, others, given).find()
        except TidemarkError as error:
            if error.code not in _GONE:
                raise
            return source_removal.unreached(settings.source, settings.prefix, names, error)
        finally:
            session.close()

    def _roles(self, found: Found | None) -> list[Removal]:
        """Return privileges and roles, in the databases that answer."""
        settings, role = self._settings, self._role(found)
        if found is not None and found.others:
            what = f'privileges of role "{role}"'
            others = ", ".join(found.others)
            return [Removal("sink", what, note=f"other services may need them: {others}")]
        ours = [] if found is None else [oid for view in found.views for oid in view.of_users]
        servers: dict[str, tuple[RoleRemoval, list[str]]] = {}
        removals: list[Removal] = []
        for location, dsn in {"sink": settings.sink, "source": settings.source}.items():
            session = Session(dsn, location)
            self._resources.callback(session.close)
            try:
                ((server, database),) = session.rows(_SERVER)
            except TidemarkError as error:
                if error.code not in _GONE:
                    raise
                continue
            if server in servers and database in servers[server][1]:
                continue
            here = RoleRemoval(session, location, role, ours if location == "sink" else [])
            removals += [*here.privileges(), *here.query_role()]
            servers.setdefault(server, (here, []))[1].append(database)
        for here, databases in servers.values():
            removals += [*here.drop_query_role(databases), *here.service_role()]
        return removals

    def _role(self, found: Found | None) -> str:
        if self._desired.role or found is not None:
            return self._desired.role or (found.role if found is not None else "")
        with closing(Session(self._settings.source)) as session:
            try:
                return session.rows("SELECT current_user::text")[0][0]
            except TidemarkError as error:
                if error.code not in _GONE:
                    raise
                return ""


def _detach(made: ViewSink, identity: str, sink: SinkRemoval) -> None:
    try:
        made.detach()
    finally:
        made.close()
    sink.forget_sink(identity)
    failpoint("uninstall.sink.after")


def _running(service: str, where: str) -> TidemarkError:
    return TidemarkError(
        "uninstall.running", f'service "{service}" is running', detail=where, hint=_AGAIN
    )
