"""A receiver of webhooks on loopback that checks what comes, and holds the rows of one view.

It is written after Standard Webhooks 1.0 and docs/WEBHOOK_SINK.md: signatures, the order of epochs
and parts, and that a repeated id has the same body. `faults` lists what was wrong.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = b"a key of webhooks"
SECRET = "whsec_" + base64.b64encode(KEY).decode()

# The status to answer with, before or after the message is taken; 0 for no answer at all.
Answer = Callable[[dict[str, Any]], tuple[int, dict[str, str]]]


class Receiver:
    """Takes messages once by their ids, and holds the rows at the newest whole epoch."""

    def __init__(self) -> None:
        self.before: Answer = lambda _: (200, {})
        self.after: Answer = lambda _: (200, {})
        self.bodies: dict[str, bytes] = {}
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.requests = 0
        self.repeated = 0
        self.tests = 0
        self.largest = 0
        self.rows: Counter[str] = Counter()
        self.epoch: int | None = None
        self._waiting: Counter[str] = Counter()
        self._part = 0
        self.lock = threading.Lock()
        self.faults: list[str] = []
        own = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if len(body) < int(self.headers["content-length"]):
                    self.close_connection = True
                    return
                status, headers = own.take(dict(self.headers), body)
                if not status:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: Any) -> None: ...

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        assert not self.faults, self.faults

    def take(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        with self.lock:
            self.requests += 1
            try:
                message = self._checked({k.lower(): v for k, v in headers.items()}, body)
            except AssertionError as error:
                self.faults.append(str(error))
                raise
            answer = self.before(message)
            if answer[0] != 200:
                return answer
            self.taken.append(({k.lower(): v for k, v in headers.items()}, body))
            self._apply(headers, message, body)
            return self.after(message)

    def _checked(self, headers: dict[str, str], body: bytes) -> dict[str, Any]:
        name, moment = headers["webhook-id"], headers["webhook-timestamp"]
        signed = f"{name}.{moment}.".encode() + body
        expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        assert f"v1,{expected}" in headers["webhook-signature"].split(" "), "a wrong signature"
        assert self.bodies.get(name, body) == body, f"{name} has two bodies"
        assert abs(int(moment) - time.time()) < 300
        self.largest = max(self.largest, len(body))
        return json.loads(body)

    def _apply(self, headers: dict[str, str], message: dict[str, Any], body: bytes) -> None:
        name = next(v for k, v in headers.items() if k.lower() == "webhook-id")
        if name in self.bodies:
            self.repeated += 1
            return
        self.bodies[name] = body
        if message["type"] == "tidemark.test":
            self.tests += 1
            return
        data = message["data"]
        if data["part"] == 1:
            self._waiting, self._part = Counter(), 0
        try:
            assert data["part"] == self._part + 1, f"part {data['part']} after {self._part}"
            is_next = self.epoch is None or data["epoch"] > self.epoch or data["initial"]
            assert is_next, f"epoch {data['epoch']} after {self.epoch}"
        except AssertionError as error:
            self.faults.append(str(error))
        self._part = data["part"]
        for change in data["changes"]:
            self._waiting[json.dumps(change["row"], sort_keys=True)] += change["weight"]
        if data["last"]:
            before = Counter[str]() if data["initial"] else self.rows
            self.rows = before.copy()
            self.rows.update(self._waiting)
            self.rows = +self.rows
            self.epoch = data["epoch"]
