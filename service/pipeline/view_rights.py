"""The rights of views' owners, checked again whenever PostgreSQL's catalog says that they changed.

A view with a database role's rights is computed once, for all its readers. Its owner must be
allowed to read what it reads, as when it was created. Once that is no longer so, the view leaves
the dataflow, with the views that read it; its rows stay, and nobody may read them. When the right
is back, the view is built again and shows the answer of then. A paused or failed view is checked
too, and stays paused or failed. Views that the service itself owns have its own rights: losing
those is an error of the source.
Invariant: rows are given back only after a check that found the right, and the digest of what it
rested on is stored with that. So a change is noticed also if it came while no service ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from connectors.postgres.analysis.rights_digest import Subjects, read_digests
from connectors.postgres.catalog import source_readers, withheld_rows
from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.schema.stored_roles import DROPPED
from connectors.postgres.session.session import Session
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from service.engine.definition import ViewDefinition
from service.factory.service_factory import ServiceFactory
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_failures import Failures
from service.runtime.log import log
from service.runtime.runtime import Runtime
from service.views.lifecycle import RESOLVED, DesiredState, ViewState
from service.views.view_lookup import rights_revoked
from service.views.wait_reasons import Waiting

# How often digests are read, at most; the pipeline has a turn at least every second.
POLL_S = 0.9
# How long one turn may check; the rest follows in the next turns.
CHECK_S = 0.2
# Views that have lost the right are checked again this often, whatever the catalog says.
AGAIN_S = 60.0
# And so often where a check said nothing about rights: a view that is read is not live yet.
UNDECIDED_S = 5.0
# Nothing changes their rows, so a check that said nothing about rights can wait.
_AT_REST = (ViewState.PAUSED, ViewState.FAILED)
_LOST = (
    *("source.privilege", "source.row_security", "source.role", "source.role_missing"),
    *("source.no_grant", "sink.privilege"),
)


class ViewRights:
    """Used by the pipeline's thread."""

    def __init__(
        self,
        *,
        reconciler: CatalogReconciler,
        failures: Failures,
        subscriptions: SourceSubscriptions,
        waiting: Waiting,
        control: Control,
        factory: ServiceFactory,
        runtime: Runtime,
    ) -> None:
        self._reconciler = reconciler
        self._failures = failures
        self._subscriptions = subscriptions
        self._waiting = waiting
        self._control = control
        self._factory = factory
        self._runtime = runtime
        self._source = Session(factory.settings.source)
        self._poll_at = 0.0
        self._subjects: dict[str, Subjects] = {}
        # By view: the digest at which a check said nothing about rights, and when one was made.
        self._undecided: dict[str, str] = {}
        self._checked_at: dict[str, float] = {}
        # Why views were stopped that the catalog did not call withheld when it was read.
        self._stopped: dict[str, Mapping[str, str]] = {}

    def withholds(self, row: ViewRow) -> bool:
        """Return True if a view is not built because its owner lost the right to what it reads.

        Another query is built, if the owner may read what that reads.
        """
        if row.change is not None:
            return False
        if row.withheld is None and row.identity not in self._stopped:
            return False
        self._waiting.note(row.identity, rights_revoked(row))
        return True

    def withheld_for(self, row: ViewRow, error: TidemarkError) -> bool:
        """Withhold a view's rows if it cannot be built again because its owner lost a right; return
        False for any other refusal, and for a view or a query that never was shown.
        """
        if error.code not in _LOST or row.change is not None or not row.fields:
            return False
        if not (row.created_by and self._factory.role_of(row.created_by)):
            return False
        log.warning("view.rights_revoked", view=row.title, why=error.described)
        # It rests on an unknown digest: the next turn checks it again, and takes the grants.
        self._stopped[row.identity] = self._note(row, error, "")
        return True

    def reconcile(self) -> None:
        """Check the views whose owners' rights have changed, for a while; stop or free them."""
        now = self._runtime.monotonic()
        if now < self._poll_at:
            return
        self._poll_at = now + POLL_S
        try:
            rows = [row for row in self._reconciler.rows if self._is_checked(row)]
            self._forget({row.identity for row in rows})
            if rows:
                self._reconcile(rows)
        except TidemarkError as error:
            if not error.is_temporary:
                raise
            log.warning("rights.retry", code=error.code)

    def _reconcile(self, rows: list[ViewRow]) -> None:
        for row in rows:
            live = self._reconciler.live(row.identity)
            if live is not None:
                self._subjects[row.identity] = subjects_of(live)
            if row.withheld is not None:
                self._stopped.pop(row.identity, None)
                withheld_rows.withhold(self._control, row.identity)
            elif row.identity in self._stopped:
                withheld_rows.note(self._control, row.identity, self._stopped[row.identity])
        digests = self._read_digests(rows)
        until = self._runtime.monotonic() + CHECK_S
        for row in rows:
            digest = digests[row.identity]
            if self._is_due(row, digest):
                self._check(row, digest)
            if self._runtime.monotonic() > until:
                return

    def _is_checked(self, row: ViewRow) -> bool:
        if not row.created_by or row.desired == DesiredState.DROPPED or row.change is not None:
            return False
        # A view that failed before it had a table has no rows.
        is_shown = row.status in RESOLVED and bool(row.fields)
        is_held = row.withheld is not None
        return (is_shown or is_held) and bool(self._factory.role_of(row.created_by))

    def _is_due(self, row: ViewRow, digest: str) -> bool:
        at = self._checked_at.get(row.identity)
        passed_s = AGAIN_S if at is None else self._runtime.monotonic() - at
        if digest == self._undecided.get(row.identity):
            return passed_s >= (AGAIN_S if row.status in _AT_REST else UNDECIDED_S)
        if row.withheld is None:
            return digest != row.rights and row.identity not in self._stopped
        # After a start the digest says nothing of what the view reads, which is not known yet.
        again_s = AGAIN_S if row.identity in self._subjects else UNDECIDED_S
        return passed_s >= again_s or digest != row.withheld.get("rights")

    def _check(self, row: ViewRow, digest: str) -> None:
        """Decide by the checks of a new view. TemporaryError if that is not possible now."""
        self._checked_at[row.identity] = self._runtime.monotonic()
        try:
            if row.created_by.startswith(DROPPED):
                raise _owner_is_gone(row)
            found = self._reconciler.define(row, self._reconciler.live(row.identity))
        except TidemarkError as error:
            if error.is_temporary:
                raise
            if error.code in _LOST:
                if self._is_as_read(row):
                    # The right may have gone after the digest was read: then that one is of a time
                    # at which it was there, and would not differ once it is back.
                    is_same = self._read_digests([row])[row.identity] == digest
                    self._stop(row, digest if is_same else "", error)
            else:
                self._undecided[row.identity] = digest
                log.info("rights.undecided", view=row.title, why=error.described)
            return
        self._undecided.pop(row.identity, None)
        self._subjects[row.identity] = subjects_of(found)
        if row.withheld is None:
            self._control.update_view(row.identity, rights=digest)
            return
        log.info("view.rights_returned", view=row.title)
        withheld_rows.give_back(self._control, row.identity, digest)
        self._waiting.over(row.identity)

    def _is_as_read(self, row: ViewRow) -> bool:
        """Return False if the view, or its owner's name, has changed since the catalog was read."""
        now = self._control.get_view(row.schema, row.name)
        return now is not None and (now.identity, now.created_by) == (row.identity, row.created_by)

    def _stop(self, row: ViewRow, digest: str, error: TidemarkError) -> None:
        """Withhold a view's rows, and those of the views that read it and are not the service's.

        Each of them is checked for itself before its rows are given back.
        """
        why = self._note(row, error, digest)
        live = self._reconciler.live(row.identity)
        if row.withheld is None:
            log.warning("view.rights_revoked", view=row.title, why=error.described)
        if row.withheld is not None or live is None:
            self._stopped[row.identity] = why
            return
        stopped = rights_revoked(replace(row, withheld=why))
        taken = self._failures.degrade([live], stopped)
        rows = [self._reconciler.row(d.identity) for d in taken]
        found = [r for r in rows if r is not None and self._factory.role_of(r.created_by)]
        self._stopped |= {r.identity: why for r in found}
        for one in found:
            withheld_rows.note(self._control, one.identity, why)
        self._subscriptions.complete_failed(taken)
        for one in found:
            withheld_rows.withhold(self._control, one.identity)

    def _note(self, row: ViewRow, error: TidemarkError, digest: str) -> Mapping[str, str]:
        """Record why a view's rows are withheld; return it. digest: of the lost right, if known."""
        why = {"detail": error.described, "hint": error.hint, "rights": digest}
        withheld_rows.note(self._control, row.identity, why)
        return why

    def _read_digests(self, rows: list[ViewRow]) -> dict[str, str]:
        queries = {r.identity: self._subjects.get(r.identity, Subjects(frozenset())) for r in rows}
        granted = source_readers.digest(self._control)
        found = read_digests(lambda sql, *given: self._source.rows(sql, given), queries)
        apart = self._factory.is_sink_apart
        there = read_digests(self._control.rows, queries) if apart else {}
        return {i: f"{digest} {there.get(i, '')} {granted}" for i, digest in found.items()}

    def _forget(self, identities: set[str]) -> None:
        for known in (self._subjects, self._undecided, self._checked_at, self._stopped):
            for identity in known.keys() - identities:
                del known[identity]


def subjects_of(definition: ViewDefinition) -> Subjects:
    """Return what decides who may run a view's query."""
    relations = {
        ("pg_class", r.oid) for r in definition.relations() if r.name.source == MAIN_SOURCE
    }
    used = {o.key for o in definition.names.objects or () if o.catalog in ("pg_class", "pg_proc")}
    views = {(name.schema, name.name) for name in definition.views_named()}
    return Subjects(frozenset(relations | used), frozenset(views))


def _owner_is_gone(row: ViewRow) -> TidemarkError:
    name = row.created_by.removeprefix(DROPPED)
    return TidemarkError(
        "source.role_missing",
        f'role "{name}", which created the view, was dropped',
        hint="drop the view; or give it to the role that has the name now, in the sink:"
        f" SELECT tidemark.bind_roles('{name}')",
    )
