"""The OpenAPI description: FastAPI's description of the routes, plus problems and headers.

Invariant: every operation lists each problem that it may return as application/problem+json, with
an example.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service.access.operations import OPERATIONS, ROUTES, STREAMS
from service.api.openapi_examples import ANSWERS, PROBLEMS
from service.api.option_schemas import add_option_schemas
from service.api.problems import PROBLEM_TYPE

_SCHEMA = {"$ref": "#/components/schemas/ProblemModel"}
_KEYED = {("post", "/views"), ("post", "/sources"), ("post", "/views/{view}/sinks")}
_IF_NONE_MATCH = "known ETags: 304 while one of them is current"
_IF_MATCH = "an ETag of the resource: 412 if the resource has changed"
_IDEMPOTENCY = "repeating the key returns the same response, for a day"
# The problems that every operation may return; then those of operations that change something.
_ALWAYS = ("401", "403", "404", "422", "500", "503")
_CHANGING = ("400", "409", "412")


def describe(app: FastAPI) -> None:
    """Install the completed OpenAPI description in the application."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            for path, calls in schema["paths"].items():
                for method, call in calls.items():
                    _complete(path, method, call)
            schemas = schema["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            add_option_schemas(schemas)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described


def _complete(path: str, method: str, call: dict[str, Any]) -> None:
    responses = call["responses"]
    # FastAPI adds its own form of validation errors, which we do not send.
    responses.pop("422", None)
    codes = [*_ALWAYS, *(_CHANGING if method != "get" else ("400",))]
    if path.endswith(("/wait", "/rows")) or path == "/query":
        codes.append("504")
    if OPERATIONS[ROUTES[method.upper(), path]].is_dear:
        codes.append("429")
    if path.endswith(STREAMS):
        codes += ["409", "410"]
    for code in sorted(codes):
        responses[code] = _problem(code)
    responses["default"] = _problem("500")
    if path == "/metrics":
        responses["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    for answer in responses.values():
        for kind, content in answer.get("content", {}).items():
            example = ANSWERS.get(f"{method.upper()} {path}")
            if kind == "application/json" and example is not None:
                content.setdefault("example", example)
    _add_headers(path, method, call)


def _add_headers(path: str, method: str, call: dict[str, Any]) -> None:
    if method == "get" and not path.endswith((*STREAMS, "/metrics", "/health")):
        call["responses"]["304"] = {"description": "not modified"}
        _add_header(call, "If-None-Match", _IF_NONE_MATCH)
    if method in ("delete", "put"):
        _add_header(call, "If-Match", _IF_MATCH)
    if (method, path) in _KEYED:
        _add_header(call, "Idempotency-Key", _IDEMPOTENCY, r"^[\x21-\x7e]{1,255}$")


def _add_header(call: dict[str, Any], name: str, text: str, pattern: str = "") -> None:
    schema = {"type": "string", **({"pattern": pattern} if pattern else {})}
    header = {"name": name, "in": "header", "required": False, "description": text}
    call.setdefault("parameters", []).append({**header, "schema": schema})


def _problem(status: str) -> dict[str, Any]:
    title, example = PROBLEMS[status]
    shown = {"type": "about:blank", "status": int(status), **example}
    return {
        "description": title,
        "content": {PROBLEM_TYPE: {"schema": _SCHEMA, "example": shown}},
    }
