"""A schema registry for tests: the public REST interface over HTTP on loopback.

Schemas by id, subjects with versions, references, basic auth, and the compatibility level
BACKWARD for Avro: the new schema must read what the newest one wrote.
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from fastavro.schema import SchemaParseException, parse_schema

_WIDER = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


class Registry:
    """Runs until it is closed; `stop` and `start` keep its schemas and its port."""

    def __init__(self, *, user: str = "", password: str = "") -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.login = base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self, None)

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                registry.answer(self, json.loads(self.rfile.read(size)))

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        self.requests.append(f"{request.command} {request.path}")
        if self.login and request.headers.get("Authorization") != f"Basic {self.login}":
            status, found = 401, {"error_code": 40101, "message": "Unauthorized"}
        else:
            path = [unquote(part) for part in request.path.strip("/").split("/")]
            status, found = self._route(path, body)
        raw = json.dumps(found).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        request.send_header("Content-Length", str(len(raw)))
        request.end_headers()
        request.wfile.write(raw)

    def _route(self, path: list[str], body: Any) -> tuple[int, Any]:
        match path:
            case ["schemas", "ids", id] if body is None:
                if not 1 <= int(id) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, self.schemas[int(id) - 1]
            case ["subjects", subject, "versions", version] if body is None:
                versions = self.subjects.get(subject, [])
                number = len(versions) if version == "latest" else int(version)
                if not 1 <= number <= len(versions):
                    return 404, {"error_code": 40402, "message": "Version not found"}
                id = versions[number - 1]
                place = {"subject": subject, "version": number, "id": id}
                return 200, {**place, **self.schemas[id - 1]}
            case ["subjects", subject, "versions"] if body is not None:
                return self._register(subject, body)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, body: dict[str, Any]) -> tuple[int, Any]:
        schema = {name: body[name] for name in ("schema", "schemaType", "references")
                  if body.get(name)}  # fmt: skip
        versions = self.subjects.setdefault(subject, [])
        is_avro = schema.get("schemaType", "AVRO") == "AVRO"
        if is_avro:
            try:
                new = json.loads(schema["schema"])
                if not schema.get("references"):
                    parse_schema(new)
            except (ValueError, SchemaParseException) as error:
                return 422, {"error_code": 42201, "message": f"Invalid schema: {error}"}
            if versions:
                old = json.loads(self.schemas[versions[-1] - 1]["schema"])
                if not can_read(new, old):
                    return 409, {"error_code": 409, "message": "Schema being registered is"
                                 " incompatible with an earlier schema"}  # fmt: skip
        if schema not in self.schemas:
            self.schemas.append(schema)
        id = self.schemas.index(schema) + 1
        if id not in versions:
            versions.append(id)
        return 200, {"id": id}


def can_read(reader: Any, writer: Any) -> bool:
    """Return whether Avro's rules of resolution let `reader` read what `writer` wrote."""
    if isinstance(writer, list):
        return all(can_read(reader, branch) for branch in writer)
    if isinstance(reader, list):
        return any(can_read(branch, writer) for branch in reader)
    reader = {"type": reader} if isinstance(reader, str) else reader
    writer = {"type": writer} if isinstance(writer, str) else writer
    if reader["type"] != writer["type"]:
        return reader["type"] in _WIDER.get(writer["type"], set())
    match reader["type"]:
        case "record":
            written = {one["name"]: one for one in writer["fields"]}
            for one in reader["fields"]:
                known = [n for n in (one["name"], *one.get("aliases", ())) if n in written]
                is_read = known and can_read(one["type"], written[known[0]]["type"])
                if not (is_read or (not known and "default" in one)):
                    return False
            return True
        case "array":
            return can_read(reader["items"], writer["items"])
        case "map":
            return can_read(reader["values"], writer["values"])
        case "enum":
            return set(writer["symbols"]) <= set(reader["symbols"]) or "default" in reader
        case "fixed":
            return reader["size"] == writer["size"]
    return True
