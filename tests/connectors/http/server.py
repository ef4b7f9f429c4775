"""A real HTTP server on loopback whose answers a test sets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass
class Reply:
    """An answer; content: bytes, or anything to be written as JSON."""

    content: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Server:
    """`answer` is called for each request, in a thread of the server."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Reply] = lambda _: Reply([])
        own = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                text = self.rfile.read(int(self.headers.get("content-length", 0)))
                body = json.loads(text) if text else None
                asked = Asked(self.command, parts.path, query, dict(self.headers), body)
                own.asked.append(asked)
                reply = own.answer(asked)
                content = reply.content
                if not isinstance(content, bytes):
                    content = json.dumps(content).encode()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                if reply.status != 304:
                    self.wfile.write(content)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[Server]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
