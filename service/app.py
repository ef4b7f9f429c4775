"""The REST application: routes, and errors as problem+json (RFC 9457).

It holds no state, the catalog in the sink database does. Invariant: whatever goes wrong, the
answer has a stable `code`, and never a trace or a secret.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dataflow.errors import SqlError, TemporaryError, TidemarkError
from service.catalog import Catalog
from service.log import log
from service.models import ProblemModel
from service.parts import Parts
from service.routes import sinks, sources, system, views
from service.settings import Settings
from service.sink_catalog import SinkCatalog
from service.source_catalog import SourceCatalog

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
    "sink.exists": 409,
    "sink.not_found": 404,
    "view.not_live": 409,
    "position.bad": 400,
}


def create_app(settings: Settings) -> FastAPI:
    """The application over one service's settings."""
    app = FastAPI(
        title="Tidemark",
        version="0.1.0",
        description="Keeps the answers of SQL queries up to date in plain PostgreSQL tables.",
        responses={"default": {"model": ProblemModel, "description": "a problem"}},
    )
    parts = Parts(settings)
    app.state.catalog = Catalog(settings, parts)
    app.state.sinks = SinkCatalog(parts)
    app.state.sources = SourceCatalog(settings, Parts(settings))
    app.include_router(views.router)
    app.include_router(sinks.router)
    app.include_router(sources.router)
    app.include_router(system.router)
    app.add_exception_handler(TidemarkError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    return app


def problem_of(error: TidemarkError) -> ProblemModel:
    """A TidemarkError as REST shows it."""
    if isinstance(error, TemporaryError) or error.is_temporary:
        status = 503
    elif isinstance(error, SqlError):
        status = 400
    else:
        status = _STATUS.get(error.code, 422)
    place = error.position
    return ProblemModel(
        title=error.what,
        status=status,
        code=error.code,
        detail=error.detail,
        hint=error.hint,
        position=None if place is None else {"line": place.line, "column": place.column},
    )


def _answer(problem: ProblemModel) -> JSONResponse:
    return JSONResponse(
        problem.model_dump(exclude_none=True),
        status_code=problem.status,
        media_type="application/problem+json",
    )


def _on_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TidemarkError)
    return _answer(problem_of(error))


def _on_bad_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _answer(
        ProblemModel(
            title="the request is not valid",
            status=422,
            code="request.invalid",
            detail=f"{where}: {first['msg']}",
            hint="see /docs for what each call takes",
        )
    )


def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _answer(
        ProblemModel(title=str(error.detail), status=error.status_code, code="request.invalid")
    )


def _on_bug(request: Request, error: Exception) -> JSONResponse:
    log.error("request.failed", path=request.url.path, exc_info=error)
    return _answer(
        ProblemModel(title="an error of the service itself", status=500, code="internal")
    )
