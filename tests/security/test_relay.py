"""Oracle: docs/SECURITY.md: a bucket's client reaches its declared server, and nothing else."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator

import pytest

from connectors import netguard
from connectors.netguard import Guard
from connectors.outside.address import parse_url
from connectors.outside.relay import proxy_for
from tests.harness.hostile_server import Asked, HostileServer, answer


@pytest.fixture(autouse=True)
def guard_as_before() -> Iterator[None]:
    before = netguard._guard
    yield
    netguard.install(before)


def asked(proxy: str, request: str, *, token: str | None = None) -> bytes:
    """Return what the relay answers. token: another one than the proxy's."""
    url = parse_url(proxy, may_have_login=True)
    login = base64.b64encode(f"{url.user}:{token or url.password}".encode()).decode()
    with socket.create_connection((url.host, url.port), 30) as connection:
        head = f"{request}\r\nProxy-Authorization: Basic {login}\r\nHost: x\r\n\r\n"
        connection.sendall(head.encode())
        found = b""
        while part := connection.recv(65536):
            found += part
    return found


def test_the_declared_server_is_reached_and_no_other() -> None:
    trap = HostileServer("127.0.0.3", lambda _: answer(200, b"STOLEN"))
    own = HostileServer("127.0.0.2", lambda _: answer(200, b"MINE"))
    with trap.running(), own.running():
        proxy = proxy_for(parse_url(own.url))
        found = asked(proxy, f"GET {own.url}/a%20b?c=d HTTP/1.1")
        assert b" 200 " in found and found.endswith(b"MINE")
        (request,) = own.asked
        assert (request.method, request.target) == ("GET", "/a%20b?c=d")
        assert "proxy-authorization" not in request.headers
        for target in (
            f"GET {trap.url}/",
            f"GET http://127.0.0.2:{own.port}@127.0.0.3:{trap.port}/",
            rf"GET http://127.0.0.2:{own.port}\@127.0.0.3:{trap.port}/",
            f"GET http://127.3:{trap.port}/",
            f"CONNECT 127.0.0.3:{trap.port}",
            f"CONNECT 127.0.0.2:{trap.port}",
            "GET file:///etc/passwd",
            "GET /etc/passwd",
            "CONNECT 169.254.169.254:80",
        ):
            assert b" 403 " in asked(proxy, f"{target} HTTP/1.1").partition(b"\r\n")[0], target
        assert not trap.asked and len(own.asked) == 1


def test_a_tunnel_leads_to_the_declared_server() -> None:
    own = HostileServer("127.0.0.2", lambda _: answer(200, b"MINE"))
    with own.running():
        proxy = proxy_for(parse_url(own.url))
        request = f"CONNECT 127.0.0.2:{own.port} HTTP/1.1"
        url = parse_url(proxy, may_have_login=True)
        login = base64.b64encode(f"{url.user}:{url.password}".encode()).decode()
        with socket.create_connection((url.host, url.port), 30) as connection:
            head = f"{request}\r\nProxy-Authorization: Basic {login}\r\n\r\n"
            connection.sendall(head.encode())
            assert b" 200 " in connection.recv(65536)
            connection.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
            found = b""
            while part := connection.recv(65536):
                found += part
        assert found.endswith(b"MINE")


def test_the_relay_serves_nobody_else() -> None:
    own = HostileServer("127.0.0.2", lambda _: answer())
    with own.running():
        proxy = proxy_for(parse_url(own.url))
        for token in ("x", "", "tidemark"):
            found = asked(proxy, f"GET {own.url}/ HTTP/1.1", token=token or "none")
            assert b" 407 " in found
        assert not own.asked


def test_an_address_that_is_forbidden_by_now_is_not_opened() -> None:
    own = HostileServer("127.0.0.2", lambda _: answer())
    with own.running():
        proxy = proxy_for(parse_url(own.url))
        netguard.install(Guard(is_local=False))
        assert b" 403 " in asked(proxy, f"GET {own.url}/ HTTP/1.1")
        assert not own.asked
        netguard.install(Guard(is_local=False, hosts=("127.0.0.2",)))
        assert b" 200 " in asked(proxy, f"GET {own.url}/ HTTP/1.1")


def test_an_answer_without_end_is_cut() -> None:
    def endless(_: Asked) -> Iterator[bytes]:
        yield b"HTTP/1.1 500 X\r\n\r\n"
        while True:
            yield bytes(65536)

    own = HostileServer("127.0.0.2", endless)
    with own.running():
        proxy = proxy_for(parse_url(own.url), answer_bytes=4 << 20)
        assert len(asked(proxy, f"GET {own.url}/ HTTP/1.1")) <= 4 << 20
