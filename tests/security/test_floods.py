"""Oracle: docs/SECURITY.md: what one caller asks for keeps nobody else waiting. Loads are bounded
in number and time, and stay on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import http
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

SLOW = "SELECT count(*) FROM wide a, wide b, wide c, wide d, wide e"
FLOOD = 60
QUEUE = 30
QUERY_S = 8.0
IN_TIME_S = 2.0


WIDE = (
    "CREATE TABLE wide (id int PRIMARY KEY);"
    "INSERT INTO wide SELECT generate_series(1, 2000); ANALYZE wide"
)


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute(WIDE)
        yield made


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("floods")
    # Few of the flood fit into the queue, which lasts for less than all of them take.
    limits = {"query_workers": 4, "query_workers_per_token": 2}
    settings = {**limits, "query_queue": QUEUE, "query_wait_s": 5}
    with RunningService(place.dsn, folder, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(service: RunningService) -> dict[str, dict[str, str]]:
    made: dict[str, dict[str, str]] = {}
    for name, level in (("admin", "admin"), ("flooder", "operator"), ("other", "operator")):
        body = {"name": name, "role": level}
        url = f"{service.url}/tokens"
        answer = http.post(url, json=body, headers=made.get("admin"), timeout=60)
        made[name] = {"Authorization": f"Bearer {answer.json()['token']}"}
    return made


def test_a_flood_of_slow_queries_keeps_nobody_waiting(
    service: RunningService, place: Database, tokens: dict[str, dict[str, str]]
) -> None:
    url, answers = service.url, Counter[tuple[int, str]]()
    slow = {"query": SLOW, "timeout_s": QUERY_S, "wait_s": 0}

    def ask() -> None:
        answer = http.post(f"{url}/query", json=slow, headers=tokens["flooder"], timeout=90)
        code = answer.json().get("code", "")
        if code == "request.too_many":
            assert answer.headers["retry-after"] and answer.json()["hint"]
        answers[answer.status_code, code] += 1

    with ThreadPoolExecutor(FLOOD) as pool:
        asked = [pool.submit(ask) for _ in range(FLOOD)]
        time.sleep(1)
        looked = 0
        while not all(one.done() for one in asked):
            started = time.monotonic()
            assert http.get(f"{url}/health/live", timeout=IN_TIME_S).status_code == 200
            # Another token has a share of its own, and all else has other threads.
            body = {"query": "SELECT 1 AS x", "wait_s": 0}
            told = http.post(f"{url}/query", json=body, headers=tokens["other"], timeout=30)
            assert told.status_code == 200, told.text
            assert http.get(f"{url}/views", headers=tokens["other"]).status_code == 200
            assert time.monotonic() - started < 3 * IN_TIME_S
            running = place.rows(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'tidemark query' AND state = 'active'"
            )
            assert running[0][0] <= 2
            looked += 1
            time.sleep(0.2)
        for one in asked:
            one.result()
    assert looked > 3
    assert set(answers) == {(503, "query.timeout"), (429, "request.too_many")}, answers
    assert sum(answers.values()) == FLOOD


def test_calls_at_once_are_served_in_turn(
    service: RunningService, tokens: dict[str, dict[str, str]]
) -> None:
    """As many as the queue and the workers of a token take."""
    body = {"query": "SELECT count(*) AS n FROM wide", "wait_s": 0}

    def ask(_: int) -> int:
        url = f"{service.url}/query"
        return http.post(url, json=body, headers=tokens["other"], timeout=90).status_code

    with ThreadPoolExecutor(QUEUE + 2) as pool:
        assert set(pool.map(ask, range(QUEUE + 2))) == {200}


def test_liveness_needs_no_thread_and_no_token(
    service: RunningService, tokens: dict[str, dict[str, str]]
) -> None:
    """Also while others keep the threads of all routes busy, and whatever token is sent."""
    wait = "/views/nosuch/wait?position=0/1"
    stopped = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=service.url, headers=tokens["other"], timeout=30) as client:
            while not stopped.is_set():
                client.get(wait)

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(ask) for _ in range(20)]
        try:
            for headers in ({}, {"Authorization": "Bearer tdm_000000000000_nobody"}):
                for _ in range(10):
                    answer = http.get(
                        f"{service.url}/health/live", headers=headers, timeout=IN_TIME_S
                    )
                    assert answer.status_code == 200
        finally:
            stopped.set()
        for one in asked:
            one.result()


# --- connections ----------------------------------------------------------------------------------

HEADERS_S, BODY_S, MARGIN_S = 2.0, 3.0, 2.5
HALF_OPEN = 400
POST = b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
# What is sent at first, and how long the connection may stay then.
BEGINNINGS = (
    (b"", HEADERS_S),
    (b"GET /health/live HTTP/1.1\r\nHost: local", HEADERS_S),
    (POST + b"Content-Length: 100\r\n\r\n{", BODY_S),
    # Refused by its name before it is whole.
    (POST.replace(b"localhost", b"elsewhere") + b"Content-Length: 100\r\n\r\n{", BODY_S),
    (POST + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a"', BODY_S),
)
WHOLE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _open(service: RunningService, sent: bytes) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", service.port), timeout=10)
    opened.sendall(sent)
    return opened


def _is_closed(opened: socket.socket) -> bool:
    """Whether the other side has closed, after it has said whatever it says."""
    opened.settimeout(0)
    try:
        while opened.recv(4096):
            continue
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.fixture(scope="module")
def hasty(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A service with short time-outs, few connections beyond the half-open ones, and no token."""
    folder = tmp_path_factory.mktemp("hasty")
    settings = {
        "header_timeout_s": HEADERS_S,
        "body_timeout_s": BODY_S,
        "connections": HALF_OPEN + 50,
    }
    with new_database(postgres) as made:
        made.execute(WIDE)
        with RunningService(made.dsn, folder, **settings) as running:
            yield running


def test_half_open_connections_are_closed_while_others_are_served(hasty: RunningService) -> None:
    opened: list[tuple[socket.socket, float]] = []
    started = time.monotonic()
    for number in range(HALF_OPEN):
        sent, stays_s = BEGINNINGS[number % len(BEGINNINGS)]
        opened.append((_open(hasty, sent), time.monotonic() + stays_s))
    assert time.monotonic() - started < HEADERS_S, "opening them took too long to tell anything"
    last = max(until for _, until in opened)
    left = opened
    try:
        while left:
            asked = time.monotonic()
            assert http.get(f"{hasty.url}/health/live", timeout=IN_TIME_S).status_code == 200
            assert time.monotonic() - asked < IN_TIME_S
            left = [(one, until) for one, until in left if not _is_closed(one)]
            assert time.monotonic() < last + MARGIN_S, f"{len(left)} are still open"
            time.sleep(0.1)
    finally:
        for one, _ in opened:
            one.close()


@pytest.mark.parametrize(("sent", "stays_s"), BEGINNINGS[1:])
def test_a_byte_now_and_then_buys_no_time(
    hasty: RunningService, sent: bytes, stays_s: float
) -> None:
    opened = _open(hasty, sent)
    until = time.monotonic() + stays_s + MARGIN_S
    with opened:
        while not _is_closed(opened):
            assert time.monotonic() < until
            with contextlib.suppress(OSError):
                opened.send(b"x")
            time.sleep(0.3)


@pytest.mark.whole
def test_whole_requests_have_their_time(hasty: RunningService) -> None:
    """A connection that asks again is not cut off, and neither is an answer that takes long."""
    with httpx.Client(base_url=hasty.url, timeout=30) as client:
        until = time.monotonic() + HEADERS_S + 1
        while time.monotonic() < until:
            assert client.get("/health/live").status_code == 200
            time.sleep(0.5)
        body = {"query": SLOW, "timeout_s": HEADERS_S + BODY_S, "wait_s": 0}
        assert client.post("/query", json=body).json()["code"] == "query.timeout"
    # Idle, or with half of another request, after an answer.
    for more in (b"", b"GET / HT"):
        with _open(hasty, WHOLE) as opened:
            time.sleep(0.5)
            opened.sendall(more)
            until = time.monotonic() + 5 + MARGIN_S
            while not _is_closed(opened):
                assert time.monotonic() < until
                time.sleep(0.1)


def test_a_late_body_is_reported(hasty: RunningService) -> None:
    with _open(hasty, POST + b"Content-Length: 100\r\n\r\n{") as opened:
        opened.settimeout(BODY_S + MARGIN_S)
        told = b"".join(iter(lambda: opened.recv(4096), b""))
    assert told.startswith(b"HTTP/1.1 408") and b"request.timeout" in told, told


def test_too_many_connections_close_idle_ones(hasty: RunningService) -> None:
    opened = [_open(hasty, b"") for _ in range(HALF_OPEN + 100)]
    try:
        assert http.get(f"{hasty.url}/health/live", timeout=IN_TIME_S).status_code == 200
        assert sum(map(_is_closed, opened[:200])) >= 50
        assert not any(map(_is_closed, opened[-50:]))
    finally:
        for one in opened:
            one.close()


MOST, MOST_OF_AN_ADDRESS = 100, 80


@pytest.fixture(scope="module")
def crowded(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A service with few connections, and fewer of one address, that closes none for its time."""
    limits = {"connections": MOST, "connections_per_address": MOST_OF_AN_ADDRESS}
    settings = {**limits, "header_timeout_s": 600}
    folder = tmp_path_factory.mktemp("crowded")
    with new_database(postgres) as made, RunningService(made.dsn, folder, **settings) as running:
        yield running


def _open_from(service: RunningService, address: str, number: int) -> list[socket.socket]:
    target = ("127.0.0.1", service.port)
    return [socket.create_connection(target, 30, (address, 0)) for _ in range(number)]


def _await_closed(opened: list[socket.socket], number: int) -> None:
    """Wait until so many of these connections are closed."""
    until = time.monotonic() + 60
    while sum(map(_is_closed, opened)) < number:
        assert time.monotonic() < until, sum(map(_is_closed, opened))
        time.sleep(0.05)


def test_one_address_takes_no_connections_of_others(crowded: RunningService) -> None:
    """Though those wait longer, here from three addresses of this machine."""
    with contextlib.ExitStack() as closing:

        def opened_from(address: str, number: int) -> list[socket.socket]:
            made = _open_from(crowded, address, number)
            for one in made:
                closing.callback(one.close)
            return made

        early = opened_from("127.0.0.2", 30)
        # Beyond what one address may have, its own oldest are closed.
        many = opened_from("127.0.0.3", MOST_OF_AN_ADDRESS + 20)
        _await_closed(many, 30)
        assert not any(map(_is_closed, early))
        # Beyond what all may have, those of the address that has most.
        late = opened_from("127.0.0.4", 10)
        _await_closed(many, 40)
        assert http.get(f"{crowded.url}/health/live", timeout=60).status_code == 200
        assert not any(map(_is_closed, early + late + many[-30:]))


def test_a_crowd_delays_no_call(crowded: RunningService) -> None:
    """One address keeps what it may have of them, whatever it opens."""
    opened = _open_from(crowded, "127.0.0.3", 2600)
    try:
        assert http.get(f"{crowded.url}/health/live", timeout=60).status_code == 200
        _await_closed(opened, 2600 - MOST_OF_AN_ADDRESS)
    finally:
        for one in opened:
            one.close()
