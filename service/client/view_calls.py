"""What can be asked of one view, each call described once for View and AsyncView.

Every call raises TidemarkError with the service's code, detail and hint: view.not_found for all of
them, others as their texts say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from service.client.answers import (
    Dataflow,
    LeftOutPage,
    Plan,
    SinkState,
    VerifyResult,
    ViewState,
    Waited,
)
from service.client.calls import Call, Reply, call
from service.client.records import Record

R = TypeVar("R", bound=Record)
ACCEPTED = 202
VERIFY_S = 600.0


class ViewCalls:
    """name: as SQL writes it, with its schema or without; it follows rename and move."""

    name: str

    @property
    def _path(self) -> str:
        return f"/views/{quote(self.name, safe='')}"

    @call
    def state(self) -> Call[ViewState]:
        """The view as it stands: status, columns, key, rows, positions, lag."""
        return Call(method="GET", path=self._path, read=into(ViewState))

    @call
    def wait(self, position: str, *, timeout_s: float = 30) -> Call[Waited]:
        """Wait until every commit up to a WAL position of the source is visible in the view.

        position: as `SELECT pg_current_wal_flush_lsn()` tells it behind one's own write.
        TidemarkError view.wait_timeout.
        """
        return Call(
            method="GET",
            path=f"{self._path}/wait",
            read=into(Waited),
            params={"position": position, "timeout_s": timeout_s},
            wait_s=timeout_s,
        )

    @call
    def verify(self, *, limit: int = 20, timeout_s: float = VERIFY_S) -> Call[VerifyResult]:
        """Compare the view with PostgreSQL's own answer, at the position that the view shows.

        limit: of the rows that differ, so many are in `examples`. TidemarkError view.not_live and
        the verify.* of docs/ERRORS.md.
        """
        return Call(
            method="POST",
            path=f"{self._path}/verify",
            read=into(VerifyResult),
            params={"limit": limit},
            wait_s=timeout_s,
        )

    @call
    def plan(self) -> Call[Plan]:
        """How the view is computed, and what of it is shared with others."""
        return Call(method="GET", path=f"{self._path}/plan", read=into(Plan))

    @call
    def dataflow(self) -> Call[Dataflow]:
        """The nodes that compute the view as they run, with rows, bytes and seconds of each."""
        return Call(method="GET", path=f"{self._path}/dataflow", read=into(Dataflow))

    @call
    def errors(self, *, limit: int = 100, after: str | None = None) -> Call[LeftOutPage]:
        """Source rows left out because an expression fails for them, the newest first.

        after: `next` of the page before.
        """
        return Call(
            method="GET",
            path=f"{self._path}/errors",
            read=into(LeftOutPage),
            params={"limit": limit, "after": after},
        )

    # --- its life ------------------------------------------------------------------------------

    @call
    def replace(
        self,
        query: str,
        *,
        wait_s: float = 60,
        backfill: str | None = None,
        changes_retention_s: int | None = None,
    ) -> Call[ViewState]:
        """Give the view another query, without a time in which it cannot be read.

        Raises when the new version is refused or fails: the view is then what it was. After wait_s
        it may be still under way: `replacing` in the answer says how far it is. backfill,
        changes_retention_s: None leaves them as they are.
        """
        options = {"backfill": backfill, "changes_retention_s": changes_retention_s}
        return self._changed("replace", wait_s, {"query": query, "options": without_none(options)})

    @call
    def cancel(self) -> Call[ViewState]:
        """Give up the change that is under way; the view stays what it is."""
        return Call(method="DELETE", path=f"{self._path}/replace", read=into(ViewState))

    @call
    def rebuild(self, *, wait_s: float = 60) -> Call[ViewState]:
        """Compute the view anew and show the difference; the way out of "failed"."""
        return self._changed("rebuild", wait_s)

    @call
    def pause(self, *, cascade: bool = False, wait_s: float = 60) -> Call[ViewState]:
        """Leave the rows as they are; with cascade those of all views that read it too."""
        return self._changed("pause", wait_s, cascade=cascade)

    @call
    def resume(self, *, cascade: bool = False, wait_s: float = 60) -> Call[ViewState]:
        """Keep a paused view up to date again; with cascade the paused ones that read it too."""
        return self._changed("resume", wait_s, cascade=cascade)

    @call
    def rename(self, new: str, *, wait_s: float = 60) -> Call[ViewState]:
        """Give the view another name in its schema; views that read it follow, and `name` too."""
        return self._changed("rename", wait_s, {"name": new})

    @call
    def move(self, schema: str, *, wait_s: float = 60) -> Call[ViewState]:
        """Move the view to another schema; views that read it follow, and `name` too."""
        return self._changed("move", wait_s, {"schema": schema})

    @call
    def drop(self, *, wait_s: float = 60, drop_topics: bool = False) -> Call[bool]:
        """Drop the view with its table and state; False when that still goes on after wait_s.

        drop_topics: delete the topics of its sinks too.
        """
        return Call(
            method="DELETE",
            path=self._path,
            read=is_done,
            params={"wait_s": wait_s, "drop_topics": drop_topics},
            wait_s=wait_s,
        )

    # --- its further sinks ---------------------------------------------------------------------

    @call
    def create_sink(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        type: str = "kafka",
        wait_s: float = 60,
        idempotency_key: str | None = None,
    ) -> Call[SinkState]:
        """Send the view, which must be live, to a Kafka topic too (docs/KAFKA_SINK.md).

        Answers once it has begun, or wait_s is over. idempotency_key: of docs/REST.md.
        """
        return Call(
            method="POST",
            path=f"{self._path}/sinks",
            read=into(SinkState),
            params={"wait_s": wait_s},
            body={"name": name, "type": type, "options": dict(options)},
            headers=once(idempotency_key),
            wait_s=wait_s,
        )

    @call
    def sinks(self) -> Call[list[SinkState]]:
        """The sinks of the view beside its table, oldest first."""
        return Call(method="GET", path=f"{self._path}/sinks", read=each(SinkState, "sinks"))

    @call
    def sink(self, name: str) -> Call[SinkState]:
        """One sink as it stands. TidemarkError sink.not_found."""
        return Call(method="GET", path=self._sink_path(name), read=into(SinkState))

    @call
    def drop_sink(self, name: str, *, wait_s: float = 60, drop_topic: bool = False) -> Call[bool]:
        """Stop writing to a sink; False when that still goes on after wait_s."""
        return Call(
            method="DELETE",
            path=self._sink_path(name),
            read=is_done,
            params={"wait_s": wait_s, "drop_topic": drop_topic},
            wait_s=wait_s,
        )

    # --- what is asked for in several requests ----------------------------------------------

    def _sink_path(self, name: str) -> str:
        return f"{self._path}/sinks/{quote(name, safe='')}"

    def _changed(
        self, what: str, wait_s: float, body: Any = None, **asked: bool
    ) -> Call[ViewState]:
        def read(reply: Reply) -> ViewState:
            found = ViewState.of(reply.body)
            self.name = found.path
            return found

        return Call(
            method="POST",
            path=f"{self._path}/{what}",
            read=read,
            params={"wait_s": wait_s, **asked},
            body=body,
            wait_s=wait_s,
        )


def into(kind: type[R]) -> Callable[[Reply], R]:
    """Reads a record."""
    return lambda reply: kind.of(reply.body)


def each(kind: type[R], name: str) -> Callable[[Reply], list[R]]:
    """Reads the records of a list."""
    return lambda reply: [kind.of(told) for told in reply.body[name]]


def is_done(reply: Reply) -> bool:
    """Whether nothing is under way any more."""
    return reply.status != ACCEPTED


def once(key: str | None) -> Mapping[str, str]:
    """The header for a request that is carried out once, however often it is sent."""
    return {} if key is None else {"Idempotency-Key": key}


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in options.items() if value is not None}
