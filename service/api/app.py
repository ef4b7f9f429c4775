"""The REST application: routes, and errors as problem+json (RFC 9457).

It holds no state; the catalog in the sink database does. Invariant: every error response has a
stable `code`, and never a traceback or a secret.
"""

from __future__ import annotations

import socket

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dataflow.errors import TidemarkError
from service.access.authorization import Authorization, authorize
from service.access.tokens import Tokens
from service.api.api_metrics import ApiFigures, CountCalls
from service.api.call_limits import QueryLimits
from service.api.catalog import Catalog
from service.api.completion import Completion
from service.api.connector_calls import ConnectorCalls
from service.api.console_files import read_files
from service.api.conventions import Conventions
from service.api.lifecycle_requests import Life
from service.api.models import ProblemModel
from service.api.openapi import describe
from service.api.overview import Glances
from service.api.problems import Refused, answer, problem_of
from service.api.reading import Reading
from service.api.request_guard import Guard
from service.api.route_table import RouteTable
from service.api.routes import (
    changes,
    console,
    life,
    overview,
    rows,
    sinks,
    sources,
    subscriptions,
    system,
    tokens,
    verify,
    views,
)
from service.api.routes.rows import OPEN_PATH
from service.api.scrape import Scrape
from service.api.sink_catalog import SinkCatalog
from service.api.source_catalog import SourceCatalog
from service.api.start_reset import StartReset
from service.api.status_collector import Standings
from service.api.subscription_catalog import SubscriptionCatalog
from service.factory.planning import too_deep
from service.factory.service_factory import ServiceFactory
from service.runtime import release
from service.runtime.log import log
from service.runtime.settings import Settings
from service.subscriptions.change_feed import ChangeFeeds
from service.subscriptions.subscriptions import Subscriptions
from service.subscriptions.view_stream import ViewStreams
from service.verify.comparison import Verify

# In the order in which paths are matched.
ROUTERS = (
    overview.router,
    views.router,
    changes.router,
    rows.router,
    verify.router,
    life.router,
    sinks.router,
    sources.router,
    subscriptions.router,
    system.router,
    console.router,
    tokens.router,
)


def create_app(settings: Settings) -> FastAPI:
    """Return the application for one service's settings."""
    app = FastAPI(
        title="Tidemark",
        version=release.VERSION,
        description="Keeps the answers of SQL queries up to date in plain PostgreSQL tables.",
        responses={"default": {"model": ProblemModel, "description": "a problem"}},
        # FastAPI's own pages load scripts from another host; /docs is part of the console.
        docs_url=None,
        redoc_url=None,
    )
    factory = ServiceFactory(settings)
    authorization = Authorization(ServiceFactory(settings))
    app.state.authorization = authorization
    app.state.limits, calls = QueryLimits(settings), ConnectorCalls()
    app.state.connector_limits = QueryLimits(settings, "connector")
    app.state.standings = standings = Standings(settings, factory)
    app.state.catalog = Catalog(settings, factory, authorization, standings)
    app.state.life = Life(factory, authorization)
    app.state.sinks = SinkCatalog(factory, authorization, calls)
    app.state.sources = SourceCatalog(
        settings, ServiceFactory(settings), authorization, standings, calls
    )
    app.state.reset = StartReset(factory, authorization, app.state.sources, app.state.life)
    app.state.glances = Glances(
        factory, authorization, app.state.catalog, app.state.sources, standings
    )
    app.state.completion = Completion(ServiceFactory(settings), authorization)
    app.state.console = read_files()
    app.state.verify = Verify(settings, factory)
    app.state.reading = Reading(ServiceFactory(settings))
    app.state.is_stopping = lambda: False
    feeds = ChangeFeeds(lambda: app.state.is_stopping())
    app.state.subscription_catalog = SubscriptionCatalog(factory)
    app.state.subscriptions = Subscriptions(ServiceFactory(settings), feeds)
    app.state.streams = ViewStreams(factory, lambda: app.state.is_stopping())
    figures = ApiFigures()
    app.state.scrape = Scrape(settings, factory, app.state.catalog, figures, standings)
    app.state.tokens = Tokens(factory.control())
    app.state.factory = factory
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(authorize)])
    describe(app)
    routes = [route for router in ROUTERS for route in router.routes]
    table = RouteTable(routes, open_paths=[OPEN_PATH])
    # Middleware that is added last is outermost: the guard sees a request before Conventions.
    address = f"{socket.gethostname()} {settings.host}:{settings.port}"
    app.add_middleware(Conventions, table=table, control=factory.control(), server=address)
    app.add_middleware(
        Guard, settings=settings, tokens=app.state.tokens, authorization=authorization
    )
    # Outermost: refused requests count too.
    app.add_middleware(CountCalls, figures=figures)
    app.add_exception_handler(TidemarkError, _on_error)
    app.add_exception_handler(Refused, _on_refused)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RecursionError, _on_depth)
    app.add_exception_handler(Exception, _on_bug)
    return app


def _on_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TidemarkError)
    return answer(problem_of(error))


def _on_refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return answer(error.problem, error.headers)


def _on_bad_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    start, *path = first["loc"]
    return answer(
        ProblemModel(
            title="the request is not valid",
            status=422,
            code="request.invalid",
            detail=f"{where}: {first['msg']}",
            hint="see /docs for the parameters of each call",
            option=".".join(map(str, path)) or None if start == "body" else None,
        )
    )


def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return answer(
        ProblemModel(title=str(error.detail), status=error.status_code, code="request.invalid")
    )


def _on_depth(_request: Request, _error: Exception) -> JSONResponse:
    return answer(problem_of(too_deep()))


def _on_bug(request: Request, error: Exception) -> JSONResponse:
    log.error("request.failed", path=request.url.path, exc_info=error)
    return answer(ProblemModel(title="internal error of the service", status=500, code="internal"))
