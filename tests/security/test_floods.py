"""Oracle: docs/SECURITY.md: what one caller asks for keeps nobody else waiting. Loads are bounded
in number and time, and stay on this machine."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from connectors.postgres.embedded import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

SLOW = "SELECT count(*) FROM wide a, wide b, wide c, wide d, wide e"
FLOOD = 60
QUERY_S = 8.0
IN_TIME_S = 2.0


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute(
            "CREATE TABLE wide (id int PRIMARY KEY);"
            "INSERT INTO wide SELECT generate_series(1, 2000); ANALYZE wide"
        )
        yield made


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("floods")
    settings = {"query_workers": 4, "query_workers_per_token": 2}
    with RunningService(place.dsn, folder, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(service: RunningService) -> dict[str, dict[str, str]]:
    made: dict[str, dict[str, str]] = {}
    for name, level in (("admin", "admin"), ("flooder", "reader"), ("other", "reader")):
        body = {"name": name, "role": level}
        url = f"{service.url}/tokens"
        answer = httpx.post(url, json=body, headers=made.get("admin"), timeout=60)
        made[name] = {"Authorization": f"Bearer {answer.json()['token']}"}
    return made


def test_a_flood_of_slow_queries_keeps_nobody_waiting(
    service: RunningService, place: Database, tokens: dict[str, dict[str, str]]
) -> None:
    url, answers = service.url, Counter[tuple[int, str]]()
    slow = {"query": SLOW, "timeout_s": QUERY_S, "wait_s": 0}

    def ask() -> None:
        answer = httpx.post(f"{url}/query", json=slow, headers=tokens["flooder"], timeout=90)
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
            assert httpx.get(f"{url}/health/live", timeout=IN_TIME_S).status_code == 200
            # Another token has a share of its own, and all else has other threads.
            body = {"query": "SELECT 1 AS x", "wait_s": 0}
            told = httpx.post(f"{url}/query", json=body, headers=tokens["other"], timeout=30)
            assert told.status_code == 200, told.text
            assert httpx.get(f"{url}/views", headers=tokens["other"]).status_code == 200
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
                    answer = httpx.get(
                        f"{service.url}/health/live", headers=headers, timeout=IN_TIME_S
                    )
                    assert answer.status_code == 200
        finally:
            stopped.set()
        for one in asked:
            one.result()
