"""The Python face of a running Tidemark service: views as REST shows them, errors with their code.

    client = tidemark.connect("http://127.0.0.1:8000")
    client.create("revenue", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    client.wait("revenue", position)

The rows of a view are read from PostgreSQL, where they are a table. Invariant: a call either
answers what the service said or raises TidemarkError; nothing is tried again behind the caller.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import httpx

from dataflow.errors import Position, TemporaryError, TidemarkError

__all__ = ["DEFAULT_URL", "Client", "TemporaryError", "TidemarkError", "connect"]

__version__ = "0.1.0"
DEFAULT_URL = "http://127.0.0.1:8000"
# What a call may take beyond the wait that it asks the service for.
_MARGIN_S = 30.0
# Declaring a source reaches it, which may take its time-outs.
_SOURCE_S = 60.0


def connect(url: str = DEFAULT_URL, token: str | None = None) -> Client:
    """A client of the service at `url`; nothing is sent before its first call.

    token: by default that of the environment, TIDEMARK_TOKEN.
    """
    return Client(url, token)


class Client:
    """The calls of the REST API, each as one method; `with` closes the connection at the end.

    Names are `name` or `schema.name`, quoted as in SQL where needed. Every method raises
    TidemarkError with the service's code, detail, hint and position in the query; it is a
    TemporaryError when another try may succeed (`service.unreachable` when nothing answers).
    """

    def __init__(self, url: str = DEFAULT_URL, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        given = os.environ.get("TIDEMARK_TOKEN", "") if token is None else token
        self._headers = {"Authorization": f"Bearer {given}"} if given else {}
        self._session = httpx.Client(headers=self._headers)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._session.close()
        self._session = httpx.Client(headers=self._headers)

    def create(self, name: str, query: str, *, wait_s: float = 60, **options: str) -> dict:
        """Create a view and wait until it is live; the view, which may still be in the making.

        options: as REST takes them, `backfill="local"` for example. Raises when the view fails
        while it is built; it then stays in the list, as failed, until it is dropped.
        """
        body = {"name": name, "query": query, "options": options}
        view = self._call("POST", "/views", body, {"wait_s": wait_s}, wait_s)
        if view["status"] == "failed":
            raise _error_of(view["error"] or {"title": f'view "{name}" failed'})
        return view

    def views(self) -> list[dict]:
        """All views, by name."""
        return self._call("GET", "/views")["views"]

    def view(self, name: str) -> dict:
        """One view as it stands: status, columns, rows, position, lag, plan."""
        return self._call("GET", _path(name))

    def replace(self, name: str, query: str, *, wait_s: float = 60, **options: str) -> dict:
        """Give a view another query, without a time in which it cannot be read; the view.

        Raises when the new version is refused or fails: the view is then what it was. After
        wait_s it may be still under way: `replacing` in the answer says how far it is.
        """
        body = {"query": query, "options": options}
        return self._change(name, "replace", wait_s, body)

    def cancel(self, name: str) -> dict:
        """Give up the change that is under way for a view, which stays what it is."""
        return self._call("DELETE", _path(name) + "/replace")

    def rebuild(self, name: str, *, wait_s: float = 60) -> dict:
        """Compute a view anew and show the difference; the way out of "failed"."""
        return self._change(name, "rebuild", wait_s)

    def pause(self, name: str, *, cascade: bool = False, wait_s: float = 60) -> dict:
        """Leave a view's rows as they are; with cascade those of all views that read it too."""
        return self._change(name, "pause", wait_s, cascade=cascade)

    def resume(self, name: str, *, cascade: bool = False, wait_s: float = 60) -> dict:
        """Keep a paused view up to date again; with cascade the paused views that read it too."""
        return self._change(name, "resume", wait_s, cascade=cascade)

    def rename(self, name: str, new: str, *, wait_s: float = 60) -> dict:
        """Give a view another name in its schema; views that read it follow."""
        return self._change(name, "rename", wait_s, {"name": new})

    def move(self, name: str, schema: str, *, wait_s: float = 60) -> dict:
        """Move a view to another schema; views that read it follow."""
        return self._change(name, "move", wait_s, {"schema": schema})

    def _change(
        self, name: str, what: str, wait_s: float, body: dict | None = None, **asked: Any
    ) -> dict:
        asked = {"wait_s": wait_s, **asked}
        return self._call("POST", f"{_path(name)}/{what}", body, asked, wait_s)

    def drop(self, name: str, *, wait_s: float = 60, drop_topics: bool = False) -> bool:
        """Drop a view with its table and state; False when that still goes on after wait_s.

        drop_topics: delete the topics of its sinks too.
        """
        asked = {"wait_s": wait_s, "drop_topics": drop_topics}
        answer = self._send("DELETE", _path(name), None, asked, wait_s)
        return answer.status_code != httpx.codes.ACCEPTED

    def create_sink(self, view: str, name: str, options: dict, *, wait_s: float = 60) -> dict:
        """Send a live view to a Kafka topic too; the sink, once it has begun or wait_s is over."""
        body = {"name": name, "type": "kafka", "options": options}
        return self._call("POST", _path(view) + "/sinks", body, {"wait_s": wait_s}, wait_s)

    def sinks(self, view: str) -> list[dict]:
        """The sinks of a view beside its table, oldest first."""
        return self._call("GET", _path(view) + "/sinks")["sinks"]

    def drop_sink(
        self, view: str, name: str, *, wait_s: float = 60, drop_topic: bool = False
    ) -> bool:
        """Stop writing to a sink; False when that still goes on after wait_s."""
        path = f"{_path(view)}/sinks/{quote(name, safe='')}"
        asked = {"wait_s": wait_s, "drop_topic": drop_topic}
        return self._send("DELETE", path, None, asked, wait_s).status_code != httpx.codes.ACCEPTED

    def wait(self, name: str, position: str, timeout_s: float = 30) -> dict:
        """Wait until every commit up to a WAL position is visible in the view's table.

        position: as pg_current_wal_flush_lsn() tells it. TidemarkError view.wait_timeout.
        """
        asked = {"position": position, "timeout_s": timeout_s}
        return self._call("GET", _path(name) + "/wait", None, asked, timeout_s)

    def verify(self, name: str, *, limit: int = 20, timeout_s: float = 600) -> dict:
        """Compare a view with what PostgreSQL answers at the view's position: `result` ("equal",
        "different" or "open"), counts, and at most `limit` rows that differ."""
        return self._call("POST", _path(name) + "/verify", None, {"limit": limit}, timeout_s)

    def plan(self, name: str) -> dict:
        """How a view is computed: `text`, `tree`, and `in_postgres`, what PostgreSQL evaluates."""
        return self._call("GET", _path(name) + "/plan")

    def rows(
        self, name: str, *, columns: Sequence[str] = (), limit: int = 100, **asked: Any
    ) -> dict:
        """A page of a view's rows: `fields`, `rows`, `positions`, `next`.

        asked: conditions as column="operator.value", and order, after, min_position, wait_s.
        """
        quoted_columns = ('"' + c.replace('"', '""') + '"' for c in columns)
        asked = {**asked, "columns": ",".join(quoted_columns), "limit": limit}
        return self._call("GET", _path(name) + "/rows", None, asked, asked.get("wait_s", 30))

    def query(
        self, query: str, *, limit: int = 1000, timeout_s: float = 10, wait_s: float = 10
    ) -> dict:
        """The answer of one SELECT over tables and views, once: `fields`, `rows`, `has_more`."""
        body = {"query": query, "limit": limit, "timeout_s": timeout_s, "wait_s": wait_s}
        return self._call("POST", "/query", body, wait_s=timeout_s + wait_s)

    def validate(self, query: str) -> dict:
        """What a query would become, with its warnings; nothing is created."""
        return self._call("POST", "/views/validate", {"query": query})

    # --- tokens ----------------------------------------------------------------------------------

    def create_token(
        self,
        name: str,
        role: str,
        *,
        db_role: str | None = None,
        expires_days: float | None = None,
    ) -> dict:
        """Make a token; `token` in the answer is shown this once. role: reader, operator, admin."""
        body = {"name": name, "role": role, "db_role": db_role, "expires_days": expires_days}
        return self._call("POST", "/tokens", body)

    def tokens(self) -> list[dict]:
        """All tokens that were ever made, oldest first."""
        return self._call("GET", "/tokens")["tokens"]

    def revoke_token(self, name: str) -> None:
        """End a token for good."""
        self._send("DELETE", f"/tokens/{quote(name, safe='')}", None, None, 0)

    # --- sources beside the database -----------------------------------------------------------

    def create_source(self, name: str, type: str, options: dict[str, Any]) -> dict:
        """Declare a source ("kafka" or "files"); its relations are `name.relation` in queries."""
        body = {"name": name, "type": type, "options": options}
        return self._call("POST", "/sources", body, wait_s=_SOURCE_S)

    def discover_source(self, type: str, options: dict[str, Any]) -> dict:
        """The options with columns proposed from samples, to be looked at; nothing is created."""
        body = {"type": type, "options": options}
        return self._call("POST", "/sources/discover", body, wait_s=_SOURCE_S)["options"]

    def sources(self) -> list[dict]:
        """All sources beside the database, by name."""
        return self._call("GET", "/sources")["sources"]

    def source(self, name: str) -> dict:
        """One source as it stands: relations, status, positions, lag, dead letters."""
        return self._call("GET", f"/sources/{quote(name, safe='')}")

    def change_source(self, name: str, options: dict[str, Any]) -> dict:
        """Give a source other options; relations that views read must stay what they are."""
        path = f"/sources/{quote(name, safe='')}"
        return self._call("PUT", path, {"options": options}, wait_s=_SOURCE_S)

    def drop_source(self, name: str) -> None:
        """Forget a source that no view reads."""
        self._send("DELETE", f"/sources/{quote(name, safe='')}", None, None, 0)

    def dead_letters(
        self, source: str = "", relation: str = "", *, limit: int = 100, after: str = ""
    ) -> list[dict]:
        """Records that are not rows of their relation, by place; `after`: the last one before."""
        asked = {"source": source, "relation": relation, "limit": limit, "after": after}
        return self._call("GET", "/dead-letters", None, asked)["dead_letters"]

    def choose_dead_letters(
        self, desired: str, source: str, relation: str = "", places: Sequence[str] = ()
    ) -> int:
        """Ask for records to be tried again ("retry") or given up ("drop"); how many there are."""
        body = {"source": source, "relation": relation, "places": list(places)}
        return self._call("POST", f"/dead-letters/{desired}", body)["count"]

    def _call(
        self,
        method: str,
        path: str,
        body: dict | None = None,
        asked: dict[str, Any] | None = None,
        wait_s: float = 0,
    ) -> dict[str, Any]:
        return self._send(method, path, body, asked, wait_s).json()

    def _send(
        self,
        method: str,
        path: str,
        body: dict | None,
        asked: dict[str, Any] | None,
        wait_s: float,
    ) -> httpx.Response:
        try:
            answer = self._session.request(
                method, self.url + path, json=body, params=asked, timeout=wait_s + _MARGIN_S
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TemporaryError(
                "service.unreachable",
                f'no answer from "{self.url}"',
                detail=str(error),
                hint="is `tidemark serve` up, and is this where it listens?",
            ) from error
        if answer.is_success:
            return answer
        if "json" not in answer.headers.get("content-type", ""):
            raise TidemarkError(
                "service.not_tidemark",
                f'what answers at "{self.url}" is not a Tidemark service',
                detail=f"{answer.status_code}: {answer.text[:200]}",
                hint="check the URL",
            )
        raise _error_of(answer.json())


def _path(name: str) -> str:
    return f"/views/{quote(name, safe='')}"


def _error_of(problem: dict[str, Any]) -> TidemarkError:
    """The error that a problem (RFC 9457) of the service tells of."""
    place = problem.get("position")
    kind = TemporaryError if problem.get("status") == 503 else TidemarkError
    return kind(
        problem.get("code", "internal"),
        problem.get("title", ""),
        detail=problem.get("detail", ""),
        hint=problem.get("hint", ""),
        position=Position(place["line"], place["column"]) if place else None,
    )
