"""Calls about one view, each described once for View and AsyncView.

Every call raises TidemarkError with the service's code, detail and hint: view.not_found, and those
in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack
from urllib.parse import quote

from service.client.answers import (
    Dataflow,
    LeftOutPage,
    Plan,
    SinkState,
    SubscriptionState,
    VerifyResult,
    ViewState,
    Waited,
)
from service.client.calls import Call, Reply, call
from service.client.records import Record
from service.client.rows import DiffPage
from service.client.view_options import ViewOptions

R = TypeVar("R", bound=Record)
ACCEPTED = 202
VERIFY_S = 600.0


class ViewCalls:
    """name: as in SQL, with or without schema; `rename` and `move` update it."""

    name: str

    @property
    def _path(self) -> str:
        return f"/views/{quote(self.name, safe='')}"

    @call
    def state(self) -> Call[ViewState]:
        """Return the view's status, columns, key, rows, positions and lag."""
        return Call(method="GET", path=self._path, read=into(ViewState))

    @call
    def wait(self, position: str, *, timeout_s: float = 30) -> Call[Waited]:
        """Wait until every commit up to a WAL position of the source is visible in the view.

        position: the result of `SELECT pg_current_wal_flush_lsn()` after your commit.
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
        """Compare the view with PostgreSQL's answer at the view's position.

        limit: maximum number of differing rows in `examples`. TidemarkError view.not_live and the
        verify.* of docs/ERRORS.md.
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
        """Return the view's plan, and the parts that it shares with other views."""
        return Call(method="GET", path=f"{self._path}/plan", read=into(Plan))

    @call
    def dataflow(self) -> Call[Dataflow]:
        """Return the nodes that compute the view, with rows, bytes and seconds of each."""
        return Call(method="GET", path=f"{self._path}/dataflow", read=into(Dataflow))

    @call
    def errors(self, *, limit: int = 100, after: str | None = None) -> Call[LeftOutPage]:
        """Return error rows: left out because an expression fails for them, newest first.

        after: `next` of the previous page.
        """
        return Call(
            method="GET",
            path=f"{self._path}/errors",
            read=into(LeftOutPage),
            params={"limit": limit, "after": after},
        )

    # --- its past ------------------------------------------------------------------------------

    @call
    def diff(
        self, begin: str, end: str = "", *, limit: int = 1_000, after: str | None = None
    ) -> Call[DiffPage]:
        """Return what changed between two points of the view's history, a page of it.

        begin, end: a time, a position or an epoch; end "" is the newest epoch. after: `next` of the
        previous page. TidemarkError history.*.
        """
        return Call(
            method="GET",
            path=f"{self._path}/diff",
            read=lambda reply: DiffPage.of(reply.body),
            params={"from": begin, "to": end or None, "limit": limit, "after": after},
        )

    @call
    def subscribe(self, name: str, *, start: str = "newest") -> Call[SubscriptionState]:
        """Create a named reader of a view with a history; `changes(subscription=name)` reads it.

        start: the point after which it reads. TidemarkError subscription.exists, history.*.
        """
        return Call(
            method="POST",
            path=f"{self._path}/subscriptions",
            read=into(SubscriptionState),
            body={"name": name, "start": start},
        )

    @call
    def subscriptions(self) -> Call[list[SubscriptionState]]:
        """Return the named readers of the view, with the epoch that each has acknowledged."""
        path = f"{self._path}/subscriptions"
        return Call(method="GET", path=path, read=each(SubscriptionState, "subscriptions"))

    @call
    def acknowledge(self, name: str, epoch: int) -> Call[SubscriptionState]:
        """Move a named reader on to an epoch. TidemarkError subscription.not_found, history.*."""
        return Call(
            method="POST",
            path=f"{self._path}/subscriptions/{quote(name, safe='')}/acknowledge",
            read=into(SubscriptionState),
            body={"epoch": epoch},
        )

    @call
    def unsubscribe(self, name: str) -> Call[None]:
        """Drop a named reader. TidemarkError subscription.not_found."""
        path = f"{self._path}/subscriptions/{quote(name, safe='')}"
        return Call(method="DELETE", path=path, read=lambda _: None)

    # --- its life ------------------------------------------------------------------------------

    @call
    def replace(
        self,
        query: str,
        *,
        wait_s: float = 60,
        **options: Unpack[ViewOptions],
    ) -> Call[ViewState]:
        """Change the view's query; the view stays readable throughout.

        Raises if the new version is refused or fails; the view is then unchanged. If it is not done
        after wait_s, `replacing` in the result shows the progress. options: those to change, see
        `ViewOptions`; history "none" ends a history. TidemarkError request.invalid.
        """
        return self._changed("replace", wait_s, {"query": query, "options": without_none(options)})

    @call
    def cancel(self) -> Call[ViewState]:
        """Cancel the change in progress; the view is unchanged."""
        return Call(method="DELETE", path=f"{self._path}/replace", read=into(ViewState))

    @call
    def rebuild(self, *, wait_s: float = 60) -> Call[ViewState]:
        """Compute the view again from a new snapshot; this also recovers a failed view."""
        return self._changed("rebuild", wait_s)

    @call
    def pause(self, *, cascade: bool = False, wait_s: float = 60) -> Call[ViewState]:
        """Keep the rows and stop maintaining the view. cascade: also the views that read it."""
        return self._changed("pause", wait_s, cascade=cascade)

    @call
    def resume(self, *, cascade: bool = False, wait_s: float = 60) -> Call[ViewState]:
        """Maintain a paused view again. cascade: also the paused views that read it."""
        return self._changed("resume", wait_s, cascade=cascade)

    @call
    def rename(self, new: str, *, wait_s: float = 60) -> Call[ViewState]:
        """Rename the view in its schema; updates views that read it, and `name`."""
        return self._changed("rename", wait_s, {"name": new})

    @call
    def move(self, schema: str, *, wait_s: float = 60) -> Call[ViewState]:
        """Move the view to another schema; updates views that read it, and `name`."""
        return self._changed("move", wait_s, {"schema": schema})

    @call
    def change_runtime(self, runtime: str, *, wait_s: float = 60) -> Call[ViewState]:
        """Maintain the view by "spark", or "local", from now on; its state goes along.

        If it is not done after wait_s, `replacing` in the result shows the progress.
        """
        return self._changed("runtime", wait_s, {"runtime": runtime})

    @call
    def drop(
        self, *, wait_s: float = 60, drop_data: bool = False, drop_topics: bool = False
    ) -> Call[bool]:
        """Drop the view with its table and state; return False if not done after wait_s.

        drop_data: also delete what its sinks have written; drop_topics is its earlier name.
        """
        return Call(
            method="DELETE",
            path=self._path,
            read=is_done,
            params={"wait_s": wait_s, "drop_data": drop_data or drop_topics},
            wait_s=wait_s,
        )

    # --- its additional sinks ------------------------------------------------------------------

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
        """Also write the view, which must be live, to another target (docs/SINKS.md).

        type, options: of the target, such as a Kafka topic. Returns once the sink is live or
        failed, or after wait_s. idempotency_key: see docs/REST.md.
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
        """Return the view's additional sinks, oldest first."""
        return Call(method="GET", path=f"{self._path}/sinks", read=each(SinkState, "sinks"))

    @call
    def sink(self, name: str) -> Call[SinkState]:
        """Return one sink with its status. TidemarkError sink.not_found."""
        return Call(method="GET", path=self._sink_path(name), read=into(SinkState))

    @call
    def drop_sink(
        self,
        name: str,
        *,
        wait_s: float = 60,
        drop_data: bool = False,
        drop_topic: bool = False,
    ) -> Call[bool]:
        """Drop a sink; return False if not done after wait_s.

        drop_data: also delete what it has written; drop_topic is its earlier name.
        """
        return Call(
            method="DELETE",
            path=self._sink_path(name),
            read=is_done,
            params={"wait_s": wait_s, "drop_data": drop_data or drop_topic},
            wait_s=wait_s,
        )

    # --- helpers -----------------------------------------------------------------------------

    def _sink_path(self, name: str) -> str:
        return f"{self._path}/sinks/{quote(name, safe='')}"

    def _changed(
        self, what: str, wait_s: float, body: Any = None, **options: bool
    ) -> Call[ViewState]:
        def read(reply: Reply) -> ViewState:
            found = ViewState.of(reply.body)
            self.name = found.path
            return found

        return Call(
            method="POST",
            path=f"{self._path}/{what}",
            read=read,
            params={"wait_s": wait_s, **options},
            body=body,
            wait_s=wait_s,
        )


def into(kind: type[R]) -> Callable[[Reply], R]:
    """Return a function that reads a record."""
    return lambda reply: kind.of(reply.body)


def each(kind: type[R], name: str) -> Callable[[Reply], list[R]]:
    """Return a function that reads the records of a list."""
    return lambda reply: [kind.of(item) for item in reply.body[name]]


def is_done(reply: Reply) -> bool:
    """Return True if the request is done."""
    return reply.status != ACCEPTED


def once(key: str | None) -> Mapping[str, str]:
    """Return the header that makes a request idempotent."""
    return {} if key is None else {"Idempotency-Key": key}


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
