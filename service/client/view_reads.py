"""The rows and changes of a view, described once for View and AsyncView.

Invariant: nothing is read before the caller iterates over the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

from service.client.conditions import Order, Where, conditions_of, order_of, quoted
from service.client.course import ChangesOptions, Course
from service.client.reading import RowOptions
from service.client.view_calls import ViewCalls

RowsT = TypeVar("RowsT")
ChangesT = TypeVar("ChangesT")
PAGE_ROWS = 5_000
HEARTBEAT_S = 5.0
RECONNECT_S = 300.0


class ViewReads(ViewCalls, Generic[RowsT, ChangesT]):
    """The lazy reads of a view."""

    def rows(
        self,
        *,
        columns: Sequence[str] = (),
        where: Where | None = None,
        order: str | Order | Sequence[str | Order] = (),
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        as_of: str | None = None,
        min_position: str | None = None,
        wait_s: float = 30,
    ) -> RowsT:
        """Return the rows that meet all conditions, in order; they are read page by page.

        where: {"region": "north"}, or conditions such as `tidemark.col("total") >= 100`. order: as
        in REST, "total.desc,region", or `col("total").desc()`; the key is appended. limit: total
        rows. as_of: a time, a position or an epoch of the view's history. min_position, wait_s:
        wait until that commit is visible. TidemarkError view.not_live, rows.*, view.wait_timeout,
        history.*.
        """
        params = conditions_of(where)
        if columns:
            params.append(("columns", ",".join(quoted(name) for name in columns)))
        if order:
            params.append(("order", order_of(order)))
        if as_of:
            params.append(("as_of", as_of))
        if min_position:
            params += [("min_position", min_position), ("wait_s", str(wait_s))]
        waiting_s = wait_s if min_position else 0
        options = RowOptions(f"{self._path}/rows", tuple(params), limit, page_rows, waiting_s)
        return self._rows_of(options)

    def changes(
        self,
        *,
        snapshot: bool = True,
        resume: str | None = None,
        subscription: str = "",
        timeout_ms: float | None = None,
        progress: bool = False,
        on_gap: Literal["raise", "snapshot"] = "raise",
        heartbeat_s: float = HEARTBEAT_S,
        reconnect_s: float = RECONNECT_S,
    ) -> ChangesT:
        """Return the view's rows as one epoch, then each epoch that changes it, as it happens.

        snapshot: False starts with the next change. resume: the token of an epoch, to resume after
        it. subscription: a named reader, which resumes after what it has acknowledged. timeout_ms:
        end the iteration after this time without an epoch; None: never. progress: also return
        epochs without changes, with their positions. on_gap: if changes are no longer retained,
        raise the error, or return a snapshot again. heartbeat_s: silence of three times this means
        a lost connection. reconnect_s: how long to retry a lost connection, from the newest marker.
        TidemarkError changes.*, view.not_live, subscription.not_found, history.*.
        """
        options = ChangesOptions(
            path=f"{self._path}/changes",
            params={"snapshot": snapshot, "subscription": subscription or None},
            token_param="resume",
            resume=resume or "",
            timeout_s=None if timeout_ms is None else timeout_ms / 1000,
            heartbeat_s=heartbeat_s,
            reconnect_s=reconnect_s,
            has_progress=progress,
            begins_again=on_gap == "snapshot",
        )
        return self._changes_of(Course(options))

    def _stream_of(
        self, since: str, until: str, *, retractions: bool, timeout_ms: float | None
    ) -> ChangesT:
        """Return the epochs of `stream`."""
        options = ChangesOptions(
            path=f"{self._path}/stream",
            params={"since": since or None, "until": until or None, "retractions": retractions},
            token_param="since",
            resume="",
            timeout_s=None if timeout_ms is None else timeout_ms / 1000,
            heartbeat_s=HEARTBEAT_S,
            reconnect_s=RECONNECT_S,
            has_progress=False,
            begins_again=False,
        )
        return self._changes_of(Course(options))

    def _rows_of(self, options: RowOptions) -> RowsT:
        raise NotImplementedError

    def _changes_of(self, course: Course) -> ChangesT:
        raise NotImplementedError
