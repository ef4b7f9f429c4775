"""Hostile servers of the tests of logins: they ask for what they like, and keep what they get."""

from __future__ import annotations

import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

WAIT_S = 30.0


class Recorder:
    """A server on 127.0.0.1. port: its own. received: all bytes of all its clients."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]

    def read(self, client: socket.socket, count: int) -> bytes:
        """Read exactly so many bytes. EOFError."""
        found = b""
        while len(found) < count:
            part = client.recv(count - len(found))
            if not part:
                raise EOFError
            self.received += part
            found += part
        return found


@contextmanager
def serving(talk: Callable[[Recorder, socket.socket], None]) -> Iterator[Recorder]:
    """A server that talks with each client in turn, until it has nothing more to say."""
    recorder = Recorder()

    def run() -> None:
        while True:
            try:
                client, _ = recorder.listener.accept()
            except OSError:
                return
            recorder.connections += 1
            client.settimeout(WAIT_S)
            with client, suppress(OSError, EOFError):
                talk(recorder, client)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        recorder.listener.shutdown(socket.SHUT_RDWR)
        recorder.listener.close()
        thread.join(WAIT_S)


def postgres_asking(*requests: bytes) -> Callable[[Recorder, socket.socket], None]:
    """What a PostgreSQL does that asks for logins: the bodies of its authentication requests."""

    def talk(recorder: Recorder, client: socket.socket) -> None:
        while True:
            (size,) = struct.unpack("!I", recorder.read(client, 4))
            start = recorder.read(client, size - 4)
            # A request for TLS or GSS encryption, which it does not have.
            if len(start) != 4:
                break
            client.sendall(b"N")
        for request in requests:
            client.sendall(b"R" + struct.pack("!I", 4 + len(request)) + request)
            if not any(request):
                # The login is over.
                return
            recorder.read(client, 1)
            (size,) = struct.unpack("!I", recorder.read(client, 4))
            recorder.read(client, size - 4)

    return talk


def mysql_asking(plugin: bytes, *requests: bytes) -> Callable[[Recorder, socket.socket], None]:
    """What a MySQL does that names a plugin in its greeting, and then sends requests."""

    def talk(recorder: Recorder, client: socket.socket) -> None:
        # Protocol 41, long passwords, secure connections, plugins with their data; no TLS.
        capabilities = 0x00000200 | 0x00000001 | 0x00008000 | 0x00080000 | 0x00200000 | 0x8
        greeting = b"\x0a8.0.99\0" + struct.pack("<I", 7) + b"12345678\0"
        greeting += struct.pack("<H", capabilities & 0xFFFF) + b"\x2d" + struct.pack("<H", 2)
        greeting += struct.pack("<H", capabilities >> 16) + b"\x15" + bytes(10)
        greeting += b"901234567890\0" + plugin + b"\0"
        client.sendall(_packet(0, greeting))
        number = _read_packet(recorder, client)
        for request in requests:
            client.sendall(_packet(number + 1, request))
            number = _read_packet(recorder, client)

    return talk


def _packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes([number]) + body


def _read_packet(recorder: Recorder, client: socket.socket) -> int:
    head = recorder.read(client, 4)
    recorder.read(client, int.from_bytes(head[:3], "little"))
    return head[3]


class HttpRecorder(ThreadingHTTPServer):
    """Answers every request with 404. requests: method, path and headers of each."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: HttpRecorder
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_CONNECT = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """See BaseHTTPRequestHandler: nothing is printed."""


@contextmanager
def recording_http() -> Iterator[HttpRecorder]:
    """An HTTP server that keeps what it gets."""
    server = HttpRecorder()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(WAIT_S)


def certificate_of(folder: Path, name: str) -> tuple[Path, Path]:
    """Files with a certificate of a name, which is its own authority, and with its key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    (folder / "key.pem").write_bytes(key.private_bytes(*plain, serialization.NoEncryption()))
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return folder / "cert.pem", folder / "key.pem"


@contextmanager
def encrypted(port: int, certificate: Path, key: Path) -> Iterator[int]:
    """The port of a relay that speaks TLS, before a server that does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as client,
                socket.create_connection(("127.0.0.1", port)) as server,
            ):
                back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                back.start()
                _pass_on(client, server)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(WAIT_S)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
        target.shutdown(socket.SHUT_RDWR)
