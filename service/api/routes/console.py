"""The console: its page at /, its files below /assets; and REST to be read and tried at /docs.

They hold nothing of anyone's rows, so they are served to everyone, who then has to bring a token
for what they ask. They are no part of REST's description.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dataflow.errors import TidemarkError
from service.api.console_files import ASSETS, DOCS, PAGE, ConsoleFile

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
def console_page(request: Request) -> Response:
    """The one page of the console."""
    return _answer(request, PAGE)


@router.api_route("/docs", methods=["GET", "HEAD"])
def docs_page(request: Request) -> Response:
    """The page that shows /openapi.json to people."""
    return _answer(request, DOCS)


@router.api_route("/assets/{name}", methods=["GET", "HEAD"])
def console_asset(request: Request, name: str) -> Response:
    """A script, style or picture of the console."""
    return _answer(request, f"{ASSETS}/{name}")


def _answer(request: Request, path: str) -> Response:
    files: dict[str, ConsoleFile] = request.app.state.console
    found = files.get(path)
    if found is None:
        raise TidemarkError(
            "console.not_found",
            f'the console has no file "{path}"',
            hint="reload the page" if files else "it was not built: make console",
        )
    asked = request.headers
    status, body, headers = found.answer(
        asked.get("accept-encoding", ""), asked.get("if-none-match", "")
    )
    return Response(body, status_code=status, headers=headers)
