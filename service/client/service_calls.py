"""What can be asked of the service, each call described once for Client and AsyncClient.

Every call raises TidemarkError with the service's code, detail, hint and position in the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from service.client.answers import (
    DeadLetter,
    Health,
    SourceState,
    Token,
    TokenFacts,
    Validation,
    ViewState,
)
from service.client.calls import Call, Reply, call, call_for_view
from service.client.rows import QueryAnswer
from service.client.view_calls import each, into, is_done, once, without_none

# Declaring a source reaches it, which may take its time-outs.
SOURCE_S = 60.0


class ServiceCalls:
    """All calls that are not of one view."""

    @call_for_view
    def create(
        self,
        name: str,
        query: str,
        *,
        wait_s: float = 60,
        backfill: str = "auto",
        group: str = "default",
        changes_retention_s: int | None = None,
        most_rows: int | None = None,
        idempotency_key: str | None = None,
    ) -> Call[str]:
        """Create a view and wait until it is live; the view, which may still be in the making.

        name: `name` or `schema.name`, quoted as in SQL where needed. backfill: auto, spark or
        local. group: views of one group change together. most_rows: of how many rows a part of its
        plan may be estimated. Raises when the view fails while it is
        built; it then stays in the list, as failed, until it is dropped. TidemarkError
        view.name_taken, and the sql.*, source.* of docs/ERRORS.md with `position` in the query.
        """
        options = {
            "backfill": backfill,
            "group": group,
            "changes_retention_s": changes_retention_s,
            "most_rows": most_rows,
        }
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
        """All views as they stand, by name."""
        return Call(method="GET", path="/views", read=each(ViewState, "views"))

    @call
    def validate(self, query: str) -> Call[Validation]:
        """What a query would become, its warnings and what it would cost; nothing is created."""
        body = {"query": query}
        return Call(method="POST", path="/views/validate", read=into(Validation), body=body)

    @call
    def query(
        self, query: str, *, limit: int = 1000, timeout_s: float = 10, wait_s: float = 10
    ) -> Call[QueryAnswer]:
        """The rows of one SELECT over tables and views, once (docs/REST.md).

        limit: at most 10,000 rows. wait_s: how long views may take to show what was committed
        before; 0: as they are. TidemarkError query.*, sql.*, view.wait_timeout.
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
        """Whether views are kept up to date: status ok, starting or degraded, and why."""
        return Call(method="GET", path="/health", read=into(Health), also=(503,))

    @call
    def metrics(self) -> Call[str]:
        """All metrics as Prometheus text (docs/METRICS.md)."""
        return Call(method="GET", path="/metrics", read=lambda reply: reply.content.decode())

    # --- sources beside the database -----------------------------------------------------------

    @call
    def create_source(
        self,
        name: str,
        type: str,
        options: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
    ) -> Call[SourceState]:
        """Declare a source (docs/SOURCES.md); its relations are `name.relation` in queries.

        type: kafka or files. options: as the type's page says.
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
        """The options with columns proposed from samples, to be looked at; nothing is created."""
        return Call(
            method="POST",
            path="/sources/discover",
            read=lambda reply: reply.body["options"],
            body={"type": type, "options": dict(options)},
            wait_s=SOURCE_S,
        )

    @call
    def sources(self) -> Call[list[SourceState]]:
        """All sources beside the database, by name."""
        return Call(method="GET", path="/sources", read=each(SourceState, "sources"))

    @call
    def source(self, name: str) -> Call[SourceState]:
        """One source as it stands. TidemarkError source.not_found."""
        return Call(method="GET", path=_source(name), read=into(SourceState))

    @call
    def change_source(self, name: str, options: Mapping[str, Any]) -> Call[SourceState]:
        """Give a source other options; relations that views read must stay what they are."""
        return Call(
            method="PUT",
            path=_source(name),
            read=into(SourceState),
            body={"options": dict(options)},
            wait_s=SOURCE_S,
        )

    @call
    def drop_source(self, name: str) -> Call[bool]:
        """Forget a source that no view reads."""
        return Call(method="DELETE", path=_source(name), read=is_done)

    @call
    def retry_source(self, name: str) -> Call[SourceState]:
        """Try a source now that is away or stopped; its status says what became of it."""
        return Call(method="POST", path=f"{_source(name)}/retry", read=into(SourceState))

    @call
    def dead_letters(
        self, source: str = "", relation: str = "", *, limit: int = 100, after: str = ""
    ) -> Call[list[DeadLetter]]:
        """Records that are not rows of their relation, by place; `after`: the last one before."""
        return Call(
            method="GET",
            path="/dead-letters",
            read=each(DeadLetter, "dead_letters"),
            params={"source": source, "relation": relation, "limit": limit, "after": after},
        )

    @call
    def retry_dead_letters(
        self, source: str, relation: str = "", places: Sequence[str] = ()
    ) -> Call[int]:
        """Ask for records to be decoded again; how many. places: some of one relation alone."""
        return _chosen("retry", source, relation, places)

    @call
    def drop_dead_letters(
        self, source: str, relation: str = "", places: Sequence[str] = ()
    ) -> Call[int]:
        """Give records up for good; how many there are."""
        return _chosen("drop", source, relation, places)

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
        """Make a token; `token` in the answer is shown this once.

        role: reader, operator or admin. db_role: whose rights views created with it have; None:
        the service's.
        """
        body = {"name": name, "role": role, "db_role": db_role, "expires_days": expires_days}
        return Call(method="POST", path="/tokens", read=into(Token), body=body)

    @call
    def tokens(self) -> Call[list[TokenFacts]]:
        """All tokens that were ever made, oldest first."""
        return Call(method="GET", path="/tokens", read=each(TokenFacts, "tokens"))

    @call
    def revoke_token(self, name: str) -> Call[bool]:
        """End a token for good."""
        return Call(method="DELETE", path=f"/tokens/{quote(name, safe='')}", read=is_done)


def _created(reply: Reply) -> str:
    view = ViewState.of(reply.body)
    if view.status == "failed" and view.error is not None:
        raise view.error.error
    return view.path


def _source(name: str) -> str:
    return f"/sources/{quote(name, safe='')}"


def _chosen(what: str, source: str, relation: str, places: Sequence[str]) -> Call[int]:
    return Call(
        method="POST",
        path=f"/dead-letters/{what}",
        read=lambda reply: reply.body["count"],
        body={"source": source, "relation": relation, "places": list(places)},
    )
