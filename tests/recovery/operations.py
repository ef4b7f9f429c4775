"""What users do with views, at random, whether it can be done just then or not."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from typing import Any

import httpx

from tests.harness import http
from tests.recovery.scene import BUSY, OF_WIDE, SUMS, Scene

NAMES = ("alpha", "beta", "gamma")
QUERIES = [*SUMS, BUSY, OF_WIDE, "SELECT id, v FROM wide WHERE v > 4", "SELECT v, grp FROM big"]
KINDS = {
    "create": 6,
    "drop": 2,
    "replace": 4,
    "rebuild": 2,
    "pause": 2,
    "resume": 3,
    "verify": 1,
    "changes": 1,
    "insert": 2,
}
# Spark starts a JVM: now and then.
SPARK_SHARE = 0.04


class Operations:
    """Asks and never waits; what was refused for a reason with a name is no fault."""

    def __init__(self, scene: Scene, pick: random.Random) -> None:
        self._scene = scene
        self._pick = pick
        self._number = 0
        self._roads = ["local", "spark"] if shutil.which("java") else ["local"]
        self.done: Counter[str] = Counter()

    def do_any(self) -> None:
        """One of them."""
        pick = self._pick
        kind = pick.choices(list(KINDS), list(KINDS.values()))[0]
        name, query = pick.choice(NAMES), pick.choice(QUERIES)
        if kind == "insert":
            self._number += 1
            self._scene.database.execute(
                "INSERT INTO wide SELECT 10000 + %s, %s, 'more'; "
                "UPDATE big SET v = v + 1 WHERE id %% 500 = %s",
                (self._number, self._number % 9, self._number % 500),
            )
            self.done[kind] += 1
            return
        road = self._roads[-1] if pick.random() < SPARK_SHARE else "local"
        asked: dict[str, tuple[str, str, Any]] = {
            "create": (
                "POST",
                "/views?wait_s=0",
                {"name": name, "query": query, "options": {"backfill": road}},
            ),
            "drop": ("DELETE", f"/views/{name}?wait_s=0", None),
            "replace": ("POST", f"/views/{name}/replace", {"query": query}),
            "rebuild": ("POST", f"/views/{pick.choice((name, 'by_owner'))}/rebuild", None),
            "pause": ("POST", f"/views/{name}/pause", None),
            "resume": ("POST", f"/views/{name}/resume", None),
            "verify": ("POST", f"/views/{name}/verify", None),
            "changes": ("GET", f"/views/{name}/changes", None),
        }
        self._ask(kind, *asked[kind])

    def _ask(self, kind: str, method: str, path: str, body: Any) -> None:
        # Once: the process that is asked may be killed, or be killed meanwhile.
        url = f"{self._scene.service.url}{path}"
        try:
            with http.stream(method, url, json=body, timeout=8) as answer:
                status = answer.status_code
                assert status < 500 or status in (503, 504), answer.read()
                self.done[kind] += answer.is_success
        except httpx.TransportError:
            self.done["cut"] += 1

    def settle(self, timeout_s: float = 300) -> None:
        """Until nothing is in progress; then the scene knows what each view is to show."""
        scene, deadline = self._scene, time.monotonic() + timeout_s
        while True:
            found = [v for v in _views(scene) if v["name"] in NAMES or not _is_calm(v)]
            for view in found:
                if view["status"] == "failed":
                    raise AssertionError(f"{view}\n{scene.log()}")
                if view["status"] == "paused":
                    scene.service.call("POST", f"/views/{view['name']}/resume")
            if all(map(_is_calm, found)):
                break
            assert time.monotonic() < deadline, f"{found}\n{scene.log()}"
            scene.look(0.3)
        for name in NAMES:
            scene.queries.pop(name, None)
        scene.queries |= {v["name"]: v["query"] for v in found}


def _views(scene: Scene) -> list[dict[str, Any]]:
    answer = scene.service.call("GET", "/views?limit=100")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["views"] if isinstance(body, dict) else body


def _is_calm(view: dict[str, Any]) -> bool:
    is_going = (view.get("replacing") or {}).get("status") == "in progress"
    return view["status"] == "live" and not is_going
