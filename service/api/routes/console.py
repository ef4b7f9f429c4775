"""The console: its page at /, its files below /assets, and the REST reference at /docs.

The files contain no data, so everyone gets them; the calls that they make need a token. They are
not part of the OpenAPI description.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dataflow.errors import TidemarkError
from service.api.console_files import ASSETS, DOCS, PAGE, ConsoleFile

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
def console_page(request: Request) -> Response:
    """Serve the page of the console."""
    return _answer(request, PAGE)


@router.api_route("/docs", methods=["GET", "HEAD"])
def docs_page(request: Request) -> Response:
    """Serve the page that renders /openapi.json."""
    return _answer(request, DOCS)


@router.api_route("/assets/{name}", methods=["GET", "HEAD"])
def console_asset(request: Request, name: str) -> Response:
    """Serve a script, style sheet or image of the console."""
    return _answer(request, f"{ASSETS}/{name}")


def _answer(request: Request, path: str) -> Response:
    files: dict[str, ConsoleFile] = request.app.state.console
    found = files.get(path)
    if found is None:
        raise TidemarkError(
            "console.not_found",
            f'the console has no file "{path}"',
            hint="reload the page" if files else "the console was not built; run: make console",
        )
    requested = request.headers
    status, body, headers = found.answer(
        requested.get("accept-encoding", ""), requested.get("if-none-match", "")
    )
    return Response(body, status_code=status, headers=headers)
