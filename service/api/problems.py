"""Errors as problem+json (RFC 9457), and the HTTP status of each error code.

Invariant: only this module maps codes to statuses. A code without an entry is 503 if temporary, 400
for SQL errors, else 422. Problems contain no secret that this process knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi.responses import JSONResponse

from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.postgres.catalog.sink_records import SinkRow
from dataflow.errors import SqlError, TemporaryError, TidemarkError
from service.api.models import ProblemModel
from service.runtime.redaction import scrub

PROBLEM_TYPE = "application/problem+json"
_STATUS = {
    "view.not_found": 404,
    "view.name_taken": 409,
    "view.has_children": 409,
    "view.bad_name": 400,
    "view.wait_timeout": 504,
    "sink.name_taken": 409,
    "source.not_found": 404,
    "source.name_taken": 409,
    "source.in_use": 409,
    "source.no_grant": 403,
    "sink.exists": 409,
    "sink.not_found": 404,
    "view.not_live": 409,
    "view.rights_revoked": 409,
    "view.not_paused": 409,
    "view.paused": 409,
    "view.busy": 409,
    "view.no_change": 409,
    "view.cancelled": 409,
    "view.cycle": 409,
    "view.has_sinks": 409,
    "view.has_dependents": 409,
    "view.children_refuse": 409,
    "position.bad": 400,
    "console.not_found": 404,
    "rows.unknown_column": 400,
    "rows.bad_filter": 400,
    "rows.bad_order": 400,
    "rows.bad_page": 400,
    "rows.bad_value": 400,
    "history.none": 409,
    "history.too_old": 410,
    "history.lost": 410,
    "history.not_reached": 409,
    "history.bad_point": 400,
    "subscription.not_found": 404,
    "subscription.exists": 409,
    "subscription.too_many": 409,
    "query.not_allowed": 403,
    "auth.rights": 403,
    "auth.role": 403,
    "auth.db_role": 403,
    "view.not_owner": 403,
    "changes.bad_token": 400,
    "changes.too_slow": 408,
    "changes.expired": 410,
    "changes.view_dropped": 410,
    "changes.view_replaced": 410,
    "changes.view_failed": 409,
    "token.not_found": 404,
    "token.name_taken": 409,
    "token.first_not_admin": 409,
    "host.forbidden": 403,
    "path.forbidden": 403,
    "module.forbidden": 403,
    "secret.forbidden": 403,
    "source.own_database": 403,
    "sink.own_database": 403,
}


class Refused(Exception):
    """A refused request, with its problem. headers: of the response."""

    def __init__(
        self,
        code: str,
        status: int,
        what: str,
        *,
        detail: str = "",
        hint: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what)
        self.headers = headers
        self.problem = ProblemModel(title=what, status=status, code=code, detail=detail, hint=hint)


def problem_of_row(row: ViewRow | SourceRow | SinkRow) -> ProblemModel | None:
    """Return the problem in a catalog row of a view, sink or source; None if there is none."""
    if row.code is None:
        return None
    return ProblemModel(
        title=row.detail or row.code, status=422, code=row.code, hint=row.hint or ""
    )


def problem_json(error: TidemarkError) -> bytes:
    """Return the problem of an error as JSON."""
    return problem_of(error).model_dump_json(exclude_none=True).encode()


def problem_of(error: TidemarkError) -> ProblemModel:
    """Return the problem of a TidemarkError."""
    if isinstance(error, TemporaryError) or error.is_temporary:
        status = 503
    elif isinstance(error, SqlError):
        status = 400
    else:
        status = _STATUS.get(error.code, 422)
    position = error.position
    return ProblemModel(
        title=error.what,
        status=status,
        code=error.code,
        detail=error.detail,
        hint=error.hint,
        position=None if position is None else {"line": position.line, "column": position.column},
        option=error.option or None,
    )


def answer(problem: ProblemModel, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a problem as a response, without secrets."""
    facts = problem.model_dump(exclude_none=True)
    shown = {name: scrub(v) if isinstance(v, str) else v for name, v in facts.items()}
    return JSONResponse(shown, status_code=problem.status, headers=headers, media_type=PROBLEM_TYPE)
