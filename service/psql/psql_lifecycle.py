"""Replace, rebuild, pause, resume, rename, move, change of runtime and cancel for psql.

Each is the API's operation (service/api/lifecycle_requests.py), for the view's owner.
Invariant: a request is executed once. After an API process was killed, the next one finds a change
that it began by its kind, and by a request time after that of the psql request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.catalog.requests import Outcome, Request
from dataflow.errors import TidemarkError
from service.access.authorization import of_session
from service.api.lifecycle_requests import AcceptedRequest, Life
from service.api.models import ChangeRuntime, ReplaceView
from service.psql.psql_errors import failure_of
from service.psql.psql_operations import NoOptions, Owned, Poll, Subject, parsed
from service.runtime.view_names import path_name
from service.views.lifecycle import DesiredState, ViewState
from service.views.requested_changes import MOVE

# Changes that plan a query, so their warnings are reported.
_PLANNING = ("replace", "rebuild", MOVE)


class CascadeOptions(BaseModel):
    """cascade: also the views that read it."""

    model_config = ConfigDict(extra="forbid")

    cascade: bool = False


class Replace(Subject, ReplaceView):
    """The arguments of replace_view; options: those to change."""


class Cascade(Subject):
    """The arguments of pause_view and resume_view."""

    options: CascadeOptions


class Rename(Subject):
    """The arguments of rename_view."""

    new_name: str = Field(min_length=1)
    options: NoOptions


class Move(Subject):
    """The arguments of move_view."""

    new_schema: str = Field(min_length=1)
    options: NoOptions


class Runtime(Subject, ChangeRuntime):
    """The arguments of change_runtime."""

    options: NoOptions


class Alone(Subject):
    """The arguments of rebuild_view and cancel_change."""

    options: NoOptions


class LifeOperations:
    """The operations by procedure name; thread-safe."""

    def __init__(self, control: Control, owned: Owned, life: Life) -> None:
        self._control = control
        self._owned = owned
        self._life = life
        self.by_name: Mapping[str, Callable[[Request], Poll]] = {
            "replace_view": self._replace,
            "rebuild_view": self._rebuild,
            "pause_view": self._pause,
            "resume_view": self._resume,
            "rename_view": self._rename,
            "move_view": self._move,
            "change_runtime": self._runtime,
            "cancel_change": self._cancel,
        }

    def _replace(self, request: Request) -> Poll:
        body = parsed(Replace, request.arguments)
        by = of_session(request)
        return self._change(
            request,
            body.name,
            "replace",
            lambda name: [self._life.replace(name, body.query, dict(body.options), by=by)],
        )

    def _rebuild(self, request: Request) -> Poll:
        body = parsed(Alone, request.arguments)
        by = of_session(request)
        return self._change(
            request, body.name, "rebuild", lambda name: self._life.rebuild(name, by=by)
        )

    def _pause(self, request: Request) -> Poll:
        body = parsed(Cascade, request.arguments)
        row = self._subject(request, body.name)
        if request.status == "running" and row.desired == DesiredState.PAUSED:
            accepted = [AcceptedRequest(row.identity, row.title, status=ViewState.PAUSED)]
        else:
            name = path_name(row.schema, row.name)
            by = of_session(request)
            accepted = self._life.pause(name, by=by, cascade=body.options.cascade)
        return lambda _: self._poll(accepted, f"view {row.title} is paused")

    def _resume(self, request: Request) -> Poll:
        body = parsed(Cascade, request.arguments)
        by, cascade = of_session(request), body.options.cascade
        return self._change(
            request,
            body.name,
            "resume",
            lambda name: self._life.resume(name, by=by, cascade=cascade),
        )

    def _rename(self, request: Request) -> Poll:
        body = parsed(Rename, request.arguments)
        by = of_session(request)
        return self._change(
            request,
            body.name,
            "rename",
            lambda name: [self._life.rename(name, body.new_name, by=by)],
        )

    def _move(self, request: Request) -> Poll:
        body = parsed(Move, request.arguments)
        by = of_session(request)
        return self._change(
            request,
            body.name,
            "rename",
            lambda name: [self._life.move(name, body.new_schema, by=by)],
        )

    def _runtime(self, request: Request) -> Poll:
        body = parsed(Runtime, request.arguments)
        by = of_session(request)
        return self._change(
            request,
            body.name,
            MOVE,
            lambda name: [self._life.change_runtime(name, body.runtime, by=by)],
        )

    def _cancel(self, request: Request) -> Poll:
        body = parsed(Alone, request.arguments)
        row = self._subject(request, body.name)
        is_done = request.status == "running" and row.change is None
        if not is_done:
            by = of_session(request)
            self._life.cancel(path_name(row.schema, row.name), by=by)
        return lambda _: Outcome(f"view {row.title}: the change is cancelled")

    def _change(
        self,
        request: Request,
        text: str,
        kind: str,
        begin: Callable[[str], Sequence[AcceptedRequest]],
    ) -> Poll:
        row = self._subject(request, text)
        if request.status == "running" and self._is_begun(request, row, kind):
            change = row.change or {}
            accepted: Sequence[AcceptedRequest] = [
                AcceptedRequest(row.identity, row.title, change.get("id", ""))
            ]
        else:
            accepted = begin(path_name(row.schema, row.name))
        said = f"view {row.title}: {kind} is done"
        if kind not in _PLANNING:
            return lambda _: self._poll(accepted, said)
        return lambda rows: self._poll(accepted, said, rows.get(row.identity))

    def _is_begun(self, request: Request, row: ViewRow, kind: str) -> bool:
        """Return True if this request already began the change, which may be done since."""
        replacing = row.replacing or {}
        # "asked_at": the earlier name, in a change that was requested before an upgrade.
        at = replacing.get("requested_at", replacing.get("asked_at", 0))
        if replacing.get("kind") == kind and at >= request.requested_at:
            return True
        # A completed change is no longer in `replacing`: compare the view with its earlier state.
        return row.change is None and [row.version, row.title] != self._noted(request)

    def _noted(self, request: Request) -> list[object]:
        """Return the view's version and title at the first begin; store them then."""
        rows = self._control.rows(
            "UPDATE tidemark.requests AS r SET result = coalesce(result, "
            "(SELECT jsonb_build_object('was', jsonb_build_array(v.version, "
            "v.schema || '.' || v.name)) FROM tidemark.views AS v WHERE v.identity = r.target))"
            " WHERE id = %s RETURNING result -> 'was'",
            request.id,
        )
        return rows[0][0] or []

    def _subject(self, request: Request, text: str) -> ViewRow:
        """Return the view, which the caller must own."""
        row = self._owned.find(request, text)
        if row is None:
            raise TidemarkError("view.not_found", f"view {text} was dropped")
        self._owned.note(request, row.identity)
        self._noted(request)
        return row

    def _poll(
        self, accepted: Sequence[AcceptedRequest], said: str, planned: ViewRow | None = None
    ) -> Outcome | None:
        """Return the outcome; None while in progress. planned: the view, if planned again."""
        try:
            if not all(self._life.is_done(a) for a in accepted):
                return None
            return Outcome(said, warnings=() if planned is None else planned.warnings)
        except TidemarkError as error:
            if error.is_temporary:
                raise
            return failure_of(error)
