"""Real servers of streams on loopback: a WebSocket server and one of server-sent events."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve


def text_of(message: Any) -> str:
    """A message as it is sent: texts as they are, all else as JSON."""
    return message if isinstance(message, str) else json.dumps(message)


class WebSocketServer:
    """Sends each message to whoever is connected then, and remembers what clients have sent."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.refuse: int = 0
        self._lock = threading.Condition()
        self._open: list[ServerConnection] = []
        self.opened: list[ServerConnection] = []
        self._server = serve(
            self._serve, "127.0.0.1", 0, process_request=self._request, compression="deflate"
        )
        self.port = self._server.socket.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}"

    @property
    def connected(self) -> int:
        return len(self._open)

    def await_connected(self, count: int = 1) -> None:
        """Wait until so many clients are connected."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self._open) >= count, 60)

    def await_opened(self, count: int) -> None:
        """Wait until so many connections were ever opened."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.opened) >= count, 60)

    def await_received(self, count: int) -> None:
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.received) >= count, 60)

    def send(self, message: Any) -> None:
        for connection in list(self._open):
            try:
                connection.send(text_of(message))
            except ConnectionClosed:
                continue

    def send_bytes(self, message: bytes) -> None:
        for connection in list(self._open):
            connection.send(message)

    def cut(self) -> None:
        """End all connections without a word."""
        with self._lock:
            gone, self._open = self._open, []
        for connection in gone:
            connection.close_socket()

    def _request(self, connection: ServerConnection, request: Any) -> Any:
        self.headers.append(dict(request.headers.raw_items()))
        self.paths.append(request.path)
        return connection.respond(self.refuse, "no\n") if self.refuse else None

    def _serve(self, connection: ServerConnection) -> None:
        with self._lock:
            self._open.append(connection)
            self.opened.append(connection)
            self._lock.notify_all()
        try:
            for message in connection:
                with self._lock:
                    self.received.append(json.loads(message))
                    self._lock.notify_all()
        except ConnectionClosed:
            return
        finally:
            with self._lock:
                if connection in self._open:
                    self._open.remove(connection)

    @contextmanager
    def running(self) -> Iterator[WebSocketServer]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.cut()
            self._server.shutdown()
            thread.join()


class EventServer:
    """A log of events; each client gets those after the Last-Event-ID that it names.

    is_replaying: False for a server that sends what comes from now on, whatever the client names.
    Events are (fields as lines); ids are their numbers from 1.
    """

    def __init__(self, *, is_replaying: bool = True) -> None:
        self.events: list[str] = []
        self.last_ids: list[str | None] = []
        self.head = ""
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked: list[dict[str, str]] = []
        self._is_replaying = is_replaying
        self._lock = threading.Condition()
        self._round = 0
        self._is_closed = False
        own = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                own._serve(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that has gone is no news."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def send(self, message: Any, *, event: str = "", has_id: bool = True) -> None:
        """Append an event, and send it to whoever is connected."""
        with self._lock:
            lines = [f"event: {event}"] if event else []
            lines += [f"id: {len(self.events) + 1}"] if has_id else []
            lines += [f"data: {line}" for line in text_of(message).split("\n")]
            self.events.append("\n".join(lines) + "\n\n")
            self._lock.notify_all()

    def send_raw(self, text: str) -> None:
        with self._lock:
            self.events.append(text)
            self._lock.notify_all()

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            self._round += 1
            self._lock.notify_all()

    def await_connected(self, count: int) -> None:
        """Wait until so many connections were made altogether."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.last_ids) >= count, 60)

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append({name.lower(): value for name, value in handler.headers.items()})
        last = handler.headers.get("Last-Event-ID")
        handler.send_response(self.status)
        kind = "text/event-stream" if self.status == 200 else "text/plain"
        for name, value in {"Content-Type": kind, **self.headers}.items():
            handler.send_header(name, value)
        handler.send_header("Connection", "close")
        handler.end_headers()
        if self.status != 200:
            return
        handler.close_connection = True
        with self._lock:
            at = int(last or 0) if self._is_replaying else len(self.events)
            mine = self._round
            self.last_ids.append(last)
            self._lock.notify_all()
        handler.wfile.write(b": hello\n" + self.head.encode())
        handler.wfile.flush()
        while True:
            with self._lock:
                while at >= len(self.events) and self._round == mine and not self._is_closed:
                    self._lock.wait()
                if self._round > mine or self._is_closed:
                    return
                found, at = self.events[at:], len(self.events)
            handler.wfile.write("".join(found).encode())
            handler.wfile.flush()

    @contextmanager
    def running(self) -> Iterator[EventServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            with self._lock:
                self._is_closed = True
                self._lock.notify_all()
            self._server.shutdown()
            self._server.server_close()
            thread.join()
