"""A small server of MongoDB's wire protocol that has change streams, driven by the real pymongo.

No registry has MongoDB's own server, and FerretDB has no change streams. This one plays a replica
set of one member, in memory: documents, a log of events with resume tokens, and what a test breaks
of it. What it answers follows MongoDB's documentation (Wire Protocol, Change Streams, Change
Events).
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import bson
from bson import SON, Int64, Timestamp, json_util

HEAD = struct.Struct("<iiii")
OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013
HELLO = {
    "isWritablePrimary": True,
    "ismaster": True,
    "setName": "rs0",
    "hosts": ["member:27017"],
    "me": "member:27017",
    "maxBsonObjectSize": 16 << 20,
    "maxMessageSizeBytes": 48_000_000,
    "maxWriteBatchSize": 100_000,
    "minWireVersion": 0,
    "maxWireVersion": 25,
    "logicalSessionTimeoutMinutes": 30,
    "ok": 1.0,
}
HISTORY_LOST, NOT_REPLICATED = 286, 40573


class Refused(Exception):
    """An error of the server's."""

    def __init__(self, code: int, text: str, labels: list[str] | None = None) -> None:
        super().__init__(text)
        self.reply = {"ok": 0.0, "errmsg": text, "code": code, "errorLabels": labels or []}


class ReplicaSet:
    """Collections by their names, and the log of their events.

    is_replicated: False for a server without a set. batch: events of an answer, at most.
    """

    def __init__(self, *, is_replicated: bool = True) -> None:
        self.is_replicated = is_replicated
        self.batch = 1000
        self.commands: list[str] = []
        self.pipelines: list[Any] = []
        self.first = 0
        self._lock = threading.Condition()
        self._docs: dict[str, dict[str, dict[str, Any]]] = {}
        self._events: list[dict[str, Any]] = []
        self._cursors: dict[int, dict[str, Any]] = {}
        self._links: list[socket.socket] = []
        own = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                own._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]

    @contextmanager
    def running(self) -> Iterator[ReplicaSet]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self.cut()
            thread.join()

    # --- what a test does -----------------------------------------------------------------------

    def put(self, name: str, document: Mapping[str, Any], kind: str = "") -> None:
        """Insert or replace a document."""
        with self._lock:
            key = json_util.dumps(document["_id"])
            is_there = key in self._docs.setdefault(name, {})
            self._docs[name][key] = dict(document)
            self._log(name, kind or ("replace" if is_there else "insert"), document["_id"])

    def remove(self, name: str, id: Any) -> None:
        with self._lock:
            del self._docs[name][json_util.dumps(id)]
            self._log(name, "delete", id)

    def drop(self, name: str) -> None:
        with self._lock:
            self._docs.pop(name, None)
            self._log(name, "drop")
            self._log(name, "invalidate")

    def rename(self, name: str, to: str) -> None:
        with self._lock:
            self._docs[to] = self._docs.pop(name)
            self._log(name, "rename")
            self._log(name, "invalidate")

    def forget_history(self) -> None:
        """What has happened so far leaves the log; open cursors die."""
        with self._lock:
            self.first = len(self._events)
            self._cursors.clear()
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def _log(self, name: str, kind: str, id: Any = None) -> None:
        event = {"kind": kind, "name": name, "id": id}
        self._events.append(event)
        self._lock.notify_all()

    # --- the protocol ---------------------------------------------------------------------------

    def _serve(self, link: socket.socket) -> None:
        with self._lock:
            self._links.append(link)
        try:
            while head := _exactly(link, HEAD.size):
                size, number, _, kind = HEAD.unpack(head)
                body = _exactly(link, size - HEAD.size)
                if kind == OP_QUERY:
                    at = body.index(b"\0", 4) + 1 + 8
                    answer = bson.encode(self._answer(bson.decode(body[at:])))
                    content = struct.pack("<iqii", 8, 0, 0, 1) + answer
                    link.sendall(_message(number, OP_REPLY, content))
                    continue
                assert kind == OP_MSG, kind
                flags = struct.unpack_from("<I", body)[0]
                command = _sections(body[4 : -4 if flags & 1 else None])
                answer = bson.encode(self._answer(command))
                link.sendall(_message(number, OP_MSG, struct.pack("<I", 0) + b"\0" + answer))
        except OSError:
            return

    def _answer(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        name = next(iter(command))
        if name.lower() not in ("hello", "ismaster"):
            self.commands.append(name)
        try:
            found = getattr(self, f"_do_{name.lower()}")(command)
        except Refused as error:
            return error.reply
        time_now = {"operationTime": self._time(len(self._events))} if self.is_replicated else {}
        return {**found, "ok": 1.0, **time_now}

    def _time(self, at: int) -> Timestamp:
        return Timestamp(1_700_000_000, at + 1)

    def _do_hello(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        found = dict(HELLO)
        if not self.is_replicated:
            for name in ("setName", "hosts", "me"):
                del found[name]
        return found

    _do_ismaster = _do_hello

    def _do_ping(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    _do_endsessions = _do_ping

    def _do_killcursors(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            for number in command["cursors"]:
                self._cursors.pop(number, None)
        return {"cursorsKilled": command["cursors"]}

    def _do_find(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            stored = [dict(d) for d in self._docs.get(command["find"], {}).values()]
        found = [d for d in stored if _matches(d, command.get("filter", {}))]
        found = found[: command.get("limit") or None]
        shown = command.get("projection")
        if shown:
            names = {name for name, is_shown in shown.items() if is_shown}
            found = [{n: v for n, v in d.items() if n in names} for d in found]
        namespace = f"{command['$db']}.{command['find']}"
        return {"cursor": {"id": Int64(0), "ns": namespace, "firstBatch": found}}

    def _do_aggregate(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.is_replicated:
            text = "The $changeStream stage is only supported on replica sets"
            raise Refused(NOT_REPLICATED, text)
        stage = command["pipeline"][0]["$changeStream"]
        self.pipelines.append(command["pipeline"])
        at = len(self._events)
        if "resumeAfter" in stage:
            at = int(stage["resumeAfter"]["_data"], 16)
        elif "startAtOperationTime" in stage:
            at = stage["startAtOperationTime"].inc - 1
        if at < self.first:
            raise Refused(HISTORY_LOST, "Resume of change stream was not possible")
        with self._lock:
            number = len(self.commands) + 1000
            self._cursors[number] = {"at": at, "name": command["aggregate"]}
            return self._batch(number, command["$db"], "firstBatch")

    def _do_getmore(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        number = command["getMore"]
        deadline = time.monotonic() + command.get("maxTimeMS", 1000) / 1000
        with self._lock:
            while True:
                cursor = self._cursors.get(number)
                if cursor is None:
                    text = f"cursor id {number} not found"
                    raise Refused(43, text, ["ResumableChangeStreamError"])
                left_s = deadline - time.monotonic()
                if any(e["name"] == cursor["name"] for e in self._events[cursor["at"] :]):
                    break
                if left_s <= 0 or not self._lock.wait(left_s):
                    break
            return self._batch(number, command["$db"], "nextBatch")

    def _batch(self, number: int, database: str, title: str) -> Mapping[str, Any]:
        cursor = self._cursors[number]
        found: list[Any] = []
        is_over = False
        while cursor["at"] < len(self._events) and len(found) < self.batch and not is_over:
            event = self._events[cursor["at"]]
            cursor["at"] += 1
            if event["name"] == cursor["name"]:
                is_over = event["kind"] == "invalidate"
                found.append(self._shown(event, cursor["at"]))
        if is_over:
            del self._cursors[number]
        return {
            "cursor": {
                "id": Int64(0 if is_over else number),
                "ns": f"{database}.{cursor['name']}",
                title: found,
                "postBatchResumeToken": {"_data": f"{cursor['at']:016x}"},
            }
        }

    def _shown(self, event: Mapping[str, Any], at: int) -> Mapping[str, Any]:
        """As the stage `$project` of the pipeline leaves it."""
        found = SON([("_id", {"_data": f"{at:016x}"}), ("operationType", event["kind"])])
        if event["id"] is not None:
            found["documentKey"] = {"_id": event["id"]}
        return found


def _matches(document: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    for name, wanted in where.items():
        if name == "$and":
            if not all(_matches(document, one) for one in wanted):
                return False
            continue
        value = document.get(name)
        if isinstance(wanted, Mapping) and any(key.startswith("$") for key in wanted):
            for key, one in wanted.items():
                if key == "$in":
                    is_met = value in one
                else:
                    assert key == "$gt", key
                    is_met = value is not None and value > one
                if not is_met:
                    return False
        elif value != wanted:
            return False
    return True


def _sections(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    at = 0
    while at < len(body):
        kind = body[at]
        size = struct.unpack_from("<i", body, at + 1)[0]
        assert kind == 0, "no command here has a sequence of documents"
        found |= bson.decode(body[at + 1 : at + 1 + size])
        at += 1 + size
    return found


def _message(number: int, kind: int, content: bytes) -> bytes:
    return HEAD.pack(HEAD.size + len(content), 1, number, kind) + content


def _exactly(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = link.recv(size - len(found))
        if not part:
            return b""
        found += part
    return found
