"""Calls about the service, sources and tokens, each described once for Client and AsyncClient.

Every call raises TidemarkError with the service's code, detail, hint and position in the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import quote

from service.client.answers import (
    DeadLetter,
    Health,
    SourceReset,
    SourceState,
    Token,
    TokenFacts,
    Validation,
    ViewState,
)
from service.client.calls import Call, Reply, call, call_for_view
from service.client.rows import QueryAnswer
from service.client.view_calls import each, into, is_done, once, without_none
from service.client.view_options import ViewOptions

# Declaring a source connects to it, which may take as long as its timeouts.
SOURCE_S = 60.0


class ServiceCalls:
    """All calls except those of one view."""

    @call_for_view
    def create(
        self,
        name: str,
        query: str,
        *,
        wait_s: float = 60,
        idempotency_key: str | None = None,
        **options: Unpack[ViewOptions],
    ) -> Call[str]:
        """Create a view and wait until it is live, at most wait_s; return the view.

        name: `name` or `schema.name`, quoted as in SQL where needed. options: see `ViewOptions`. A
        view that fails while it is built stays listed as failed until it is dropped. TidemarkError
        view.name_taken, request.invalid for an unknown option, sql.*, source.*.
        """
        return Call(
            method="POST",
            path="/views",
            read=_created,
            params={"wait_s": wait_s},
            body={"name": name, "query": query, "options": without_none(options)},
            headers=once(idempotency_key),
            wait_s=wait_s,
        )

    @call
    def views(self) -> Call[list[ViewState]]:
        """Return all views with their status, by name."""
        return Call(method="GET", path="/views", read=each(ViewState, "views"))

    @call
    def validate(self, query: str, **options: Unpack[ViewOptions]) -> Call[Validation]:
        """Return what a query would become, with warnings and estimate; nothing is created.

        options: as of `create`.
        """
        body = {"query": query, "options": without_none(options)}
        return Call(method="POST", path="/views/validate", read=into(Validation), body=body)

    @call
    def query(
        self, query: str, *, limit: int = 1000, timeout_s: float = 10, wait_s: float = 10
    ) -> Call[QueryAnswer]:
        """Return the rows of one SELECT over tables and views (docs/REST.md).

        limit: at most 10,000 rows. wait_s: how long to wait until views show all earlier commits;
        0: do not wait. TidemarkError query.*, sql.*, view.wait_timeout.
        """
        return Call(
            method="POST",
            path="/query",
            read=lambda reply: QueryAnswer.of(reply.body),
            body={"query": query, "limit": limit, "timeout_s": timeout_s, "wait_s": wait_s},
            wait_s=timeout_s + wait_s,
        )

    @call
    def health(self) -> Call[Health]:
        """Return the service's status (ok, starting or degraded) and its reasons."""
        return Call(method="GET", path="/health", read=into(Health), also=(503,))

    @call
    def metrics(self) -> Call[str]:
        """Return all metrics as Prometheus text (docs/METRICS.md)."""
        return Call(method="GET", path="/metrics", read=lambda reply: reply.content.decode())

    # --- external sources ----------------------------------------------------------------------

    @call
    def create_source(
        self,
        name: str,
        type: str,
        options: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
    ) -> Call[SourceState]:
        """Declare a source (docs/SOURCES.md); queries name its relations `name.relation`.

        type: one of those of docs/SOURCES.md, such as kafka or postgres. options: see its page.
        """
        return Call(
            method="POST",
            path="/sources",
            read=into(SourceState),
            body={"name": name, "type": type, "options": dict(options)},
            headers=once(idempotency_key),
            wait_s=SOURCE_S,
        )

    @call
    def discover_source(self, type: str, options: Mapping[str, Any]) -> Call[dict[str, Any]]:
        """Return the options with columns proposed from samples; nothing is created."""
        return Call(
            method="POST",
            path="/sources/discover",
            read=lambda reply: reply.body["options"],
            body={"type": type, "options": dict(options)},
            wait_s=SOURCE_S,
        )

    @call
    def sources(self) -> Call[list[SourceState]]:
        """Return all external sources, by name."""
        return Call(method="GET", path="/sources", read=each(SourceState, "sources"))

    @call
    def source(self, name: str) -> Call[SourceState]:
        """Return one source with its status. TidemarkError source.not_found."""
        return Call(method="GET", path=_source(name), read=into(SourceState))

    @call
    def change_source(self, name: str, options: Mapping[str, Any]) -> Call[SourceState]:
        """Change a source's options; relations that views read must not change."""
        return Call(
            method="PUT",
            path=_source(name),
            read=into(SourceState),
            body={"options": dict(options)},
            wait_s=SOURCE_S,
        )

    @call
    def drop_source(self, name: str) -> Call[bool]:
        """Drop a source that no view reads."""
        return Call(method="DELETE", path=_source(name), read=is_done)

    @call
    def retry_source(self, name: str) -> Call[SourceState]:
        """Retry an unreachable or stopped source now; its status shows the result."""
        return Call(method="POST", path=f"{_source(name)}/retry", read=into(SourceState))

    @call
    def reset_source(
        self, name: str, relation: str, start: Any, *, wait_s: float = 60
    ) -> Call[SourceReset]:
        """Read a relation from another start; its views are paused, then built again.

        start: of Kafka "earliest", "latest", {"timestamp": ...} or {"offsets": {...}}. Call again
        while `waits_for` of the answer names views. TidemarkError source.no_start.
        """
        return Call(
            method="POST",
            path=f"{_source(name)}/reset",
            read=into(SourceReset),
            body={"relation": relation, "start": start},
            params={"wait_s": wait_s},
            wait_s=wait_s + SOURCE_S,
        )

    @call
    def grant_source(self, name: str, role: str, *, relation: str = "") -> Call[SourceState]:
        """Let a role read a source, or one relation of it (docs/SOURCES.md).

        role: of the sink; "public": every role. TidemarkError source.not_owner, source.no_role,
        source.no_relation.
        """
        return Call(
            method="POST",
            path=f"{_source(name)}/grants",
            read=into(SourceState),
            body={"role": role, "relation": relation},
        )

    @call
    def revoke_source(self, name: str, role: str, *, relation: str = "") -> Call[SourceState]:
        """Take one grant back. TidemarkError source.grant_missing, source.not_owner."""
        return Call(
            method="DELETE",
            path=f"{_source(name)}/grants",
            read=into(SourceState),
            params={"role": role, "relation": relation},
        )

    @call
    def dead_letters(
        self, source: str = "", relation: str = "", *, limit: int = 100, after: str = ""
    ) -> Call[list[DeadLetter]]:
        """Return malformed records, by position. after: the last position of the previous page."""
        return Call(
            method="GET",
            path="/dead-letters",
            read=each(DeadLetter, "dead_letters"),
            params={"source": source, "relation": relation, "limit": limit, "after": after},
        )

    @call
    def retry_dead_letters(
        self,
        source: str,
        relation: str = "",
        positions: Sequence[str] = (),
        *,
        places: Sequence[str] = (),
    ) -> Call[int]:
        """Request that records are decoded again; return their number.

        positions: of one relation. places: earlier name of positions.
        """
        return _chosen("retry", source, relation, [*positions, *places])

    @call
    def drop_dead_letters(
        self,
        source: str,
        relation: str = "",
        positions: Sequence[str] = (),
        *,
        places: Sequence[str] = (),
    ) -> Call[int]:
        """Delete records; return their number."""
        return _chosen("drop", source, relation, [*positions, *places])

    # --- tokens --------------------------------------------------------------------------------

    @call
    def create_token(
        self,
        name: str,
        role: str,
        *,
        db_role: str | None = None,
        expires_days: float | None = None,
    ) -> Call[Token]:
        """Create a token; only this response contains it.

        role: reader, operator or admin. db_role: the database role whose rights apply to its views;
        None: the service's.
        """
        body = {"name": name, "role": role, "db_role": db_role, "expires_days": expires_days}
        return Call(method="POST", path="/tokens", read=into(Token), body=body)

    @call
    def tokens(self) -> Call[list[TokenFacts]]:
        """Return all tokens, including revoked ones, oldest first."""
        return Call(method="GET", path="/tokens", read=each(TokenFacts, "tokens"))

    @call
    def revoke_token(self, name: str) -> Call[bool]:
        """Revoke a token."""
        return Call(method="DELETE", path=f"/tokens/{quote(name, safe='')}", read=is_done)


def _created(reply: Reply) -> str:
    view = ViewState.of(reply.body)
    if view.status == "failed" and view.error is not None:
        raise view.error.error
    return view.path


def _source(name: str) -> str:
    return f"/sources/{quote(name, safe='')}"


def _chosen(what: str, source: str, relation: str, positions: Sequence[str]) -> Call[int]:
    return Call(
        method="POST",
        path=f"/dead-letters/{what}",
        read=lambda reply: reply.body["count"],
        body={"source": source, "relation": relation, "positions": list(positions)},
    )
