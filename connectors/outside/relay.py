"""A relay for clients that open sockets by themselves: buckets are read by libraries in Rust.

Such a client resolves names itself and follows redirects wherever they lead. So it is given this
relay as its proxy. Invariants: a client reaches the hosts that were declared for it, and no others,
at addresses that the guard has checked. Nobody without the client's own token is served.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from connectors.outside import texts
from connectors.outside.address import AddressError, Url, parse_server
from connectors.outside.deadline import Deadline
from connectors.outside.sockets import open_socket
from dataflow.errors import TidemarkError

USER = "tidemark"
HEAD_BYTES = 64 << 10
HEAD_S, IDLE_S = 30.0, 300.0
MAX_CONNECTIONS = 512
_BLOCK_BYTES = 256 << 10
_REQUEST = re.compile(rb"([A-Z]{1,20}) ([!-~]{1,16384}) HTTP/1\.[01]\r\n")
_ABSOLUTE = re.compile(r"http://([^/?#]+)([/?].*)?")
_OF_PROXY = (b"proxy-authorization:", b"proxy-connection:", b"connection:", b"keep-alive:")

# A client that reads parts of objects, and lists of them, gets no more at a time.
ANSWER_BYTES = 256 << 20


@dataclass(frozen=True)
class Client:
    """What a client may reach, by host and port, and how much it may be sent at a time."""

    may_reach: Callable[[str, int], bool]
    answer_bytes: int


def proxy_for(url: Url, names: str = "", answer_bytes: int = ANSWER_BYTES) -> str:
    """Return the URL of the proxy through which a client reaches the server of a URL, and no other.

    names: a glob of more hosts, on the same port: buckets that are part of the host's name.
    answer_bytes: of one answer, encrypted or not; clients hold all of it, also of an error.
    """

    def is_allowed(host: str, port: int) -> bool:
        is_named = host == url.host or (bool(names) and fnmatchcase(host, names))
        return is_named and port == url.port

    key = f"{url.scheme}://{url.authority} {names} {answer_bytes}"
    return _relay().url_for(key, Client(is_allowed, answer_bytes))


class Relay:
    """Listens on a port of 127.0.0.1 of its own, in threads."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._tokens: dict[str, str] = {}
        self._clients: dict[str, Client] = {}
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def url_for(self, key: str, client: Client) -> str:
        """Return the relay's URL with the token of a client. key: the same for equal clients."""
        with self._lock:
            token = self._tokens.setdefault(key, secrets.token_urlsafe(24))
            self._clients[base64.b64encode(f"{USER}:{token}".encode()).decode()] = client
        return f"http://{USER}:{token}@127.0.0.1:{self._port}"

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            self._free.acquire()
            threading.Thread(
                target=self._serve, args=(client,), name="relayed", daemon=True
            ).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                _relayed(client, self._clients)
        except OSError:
            # Either side has gone; the other one sees that its connection has ended.
            client.close()
        finally:
            self._free.release()


_current: list[Relay] = []
_lock = threading.Lock()


def _relay() -> Relay:
    """Return the relay of this process: threads do not survive a fork."""
    with _lock:
        if not _current or _current[0].pid != os.getpid():
            _current[:] = [Relay()]
        return _current[0]


def _relayed(client: socket.socket, clients: dict[str, Client]) -> None:
    """Serve one connection of a client: one request, or one tunnel. OSError."""
    deadline = Deadline(HEAD_S)
    head, rest = _head(client, deadline)
    found = _REQUEST.match(head)
    known = clients.get(_token(head))
    if found is None or known is None:
        _refuse(client, 407, "the relay serves only the service that has started it")
        return
    method, target = found[1], found[2].decode("ascii")
    try:
        host, port, path = _parts(method, target)
        if not known.may_reach(host, port):
            raise AddressError("was not declared: a bucket's server may not lead to others")
        server = open_socket(host, port, deadline)
    except AddressError as error:
        _refuse(client, 403, f"the address {texts.clean(target.partition('?')[0])} {error}")
        return
    except TidemarkError as error:
        _refuse(client, 403, error.described)
        return
    except OSError as error:
        _refuse(client, 502, texts.described(error))
        return
    with server:
        if method == b"CONNECT":
            client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            server.sendall(_forwarded(method, path, head[found.end() :]))
        if rest:
            server.sendall(rest)
        _pass_on(client, server, known.answer_bytes)


def _head(client: socket.socket, deadline: Deadline) -> tuple[bytes, bytes]:
    """Return the head of a request, and what has come after it. OSError."""
    found = b""
    while b"\r\n\r\n" not in found:
        client.settimeout(deadline.remaining_s())
        part = client.recv(HEAD_BYTES)
        found += part
        if not part or len(found) > HEAD_BYTES:
            raise OSError("no whole head of a request has come")
    head, _, rest = found.partition(b"\r\n\r\n")
    return head + b"\r\n", rest


def _token(head: bytes) -> str:
    found = re.search(rb"\r\nproxy-authorization: *basic +([A-Za-z0-9+/=]+) *\r\n", head, re.I)
    return found[1].decode("ascii") if found else ""


def _parts(method: bytes, target: str) -> tuple[str, int, str]:
    """Return host, port and path of what a client asks a proxy for. AddressError."""
    if method == b"CONNECT":
        return *parse_server(target), ""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise AddressError("is no URL of HTTP")
    path = found[2] or "/"
    return *parse_server(found[1], 80), path if path.startswith("/") else f"/{path}"


def _forwarded(method: bytes, path: str, headers: bytes) -> bytes:
    """Return a request for the server itself, after whose answer it closes the connection."""
    kept = [line for line in headers.split(b"\r\n") if not line.lower().startswith(_OF_PROXY)]
    first = b"%s %s HTTP/1.1" % (method, path.encode("ascii"))
    return b"\r\n".join([first, *filter(None, kept), b"Connection: close", b"", b""])


def _pass_on(client: socket.socket, server: socket.socket, answer_bytes: int) -> None:
    """Pass bytes both ways until both sides have ended, or neither sends for long. OSError.

    answer_bytes: that the server may send before the client sends something again.
    """
    left = answer_bytes
    other = {client: server, server: client}
    for one in other:
        one.settimeout(IDLE_S)
    by_number = {one.fileno(): one for one in other}
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN)
    while ready := poll.poll(IDLE_S * 1000):
        for number, _ in ready:
            one = by_number[number]
            if part := one.recv(_BLOCK_BYTES):
                left = answer_bytes if one is client else left - len(part)
                if left < 0:
                    return
                other[one].sendall(part)
                continue
            if one is server:
                # Its answer is whole, so nothing more of the request is needed.
                return
            poll.unregister(number)
            server.shutdown(socket.SHUT_WR)


def _refuse(client: socket.socket, status: int, why: str) -> None:
    body = why.encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    client.sendall(f"{head}Content-Type: text/plain\r\n\r\n".encode() + body)
