"""What the service answers, as records: views, sinks, sources, tokens, verifications, estimates.

Names are those of REST (docs/REST.md); times are aware datetimes, sizes are in bytes, durations
say their unit. Fields may be added, never renamed or given another meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from dataflow.errors import Position, TemporaryError, TidemarkError
from service.client.records import Record


@dataclass(frozen=True, kw_only=True)
class Field(Record):
    """One column. type: as PostgreSQL writes it, "numeric(12,2)" for example."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, kw_only=True)
class Problem(Record):
    """Why something has failed. code: of docs/ERRORS.md, stable; position: line, column, from 1."""

    code: str = "internal"
    title: str = ""
    status: int = 500
    detail: str = ""
    hint: str = ""
    position: Mapping[str, int] | None = None

    @property
    def error(self) -> TidemarkError:
        """It as an exception; a TemporaryError when another try may succeed."""
        at = self.position
        kind = TemporaryError if self.status == 503 else TidemarkError
        return kind(
            self.code,
            self.title,
            detail=self.detail,
            hint=self.hint,
            position=Position(at["line"], at["column"]) if at else None,
        )


@dataclass(frozen=True, kw_only=True)
class ViewState(Record):
    """A view as it stands.

    status: analyzing, backfilling, catching up, live, degraded (its rows stand still, `error` says
    why), paused, failed or dropping. kind: keyed (a table) or bag (rows with multiplicities). rows:
    about how many, None until live. positions: what its rows show, by source. lag_bytes: WAL
    written at the source and not yet shown. errors: source rows left out. replacing: the change
    under way, or why the newest one was given up.
    """

    name: str
    schema: str
    query: str
    status: str
    kind: str
    key: tuple[str, ...]
    fields: tuple[Field, ...]
    options: Mapping[str, Any]
    group: str
    warnings: tuple[str, ...]
    rows: int | None
    positions: Mapping[str, str]
    lag_bytes: int | None
    backfill: Mapping[str, Any] | None
    plan: str
    errors: int
    created_at: datetime
    live_at: datetime | None = None
    verification: Mapping[str, Any] | None = None
    error: Problem | None = None
    version: int = 0
    replacing: Mapping[str, Any] | None = None

    @property
    def path(self) -> str:
        """Its name as calls take it: `"schema"."name"`."""
        return path_name(self.schema, self.name)

    @property
    def is_live(self) -> bool:
        """Whether it is kept up to date just now."""
        return self.status == "live"


def path_name(schema: str, name: str) -> str:
    """A name as calls take it.

    >>> print(path_name("Sales", "By Day"))
    "Sales"."By Day"
    """
    return ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name))


@dataclass(frozen=True, kw_only=True)
class SinkState(Record):
    """A further sink of a view. status: starting, live, retrying, failed or dropping.

    epoch: the newest that it holds, None before the first. backlog_bytes: what waits for it.
    """

    name: str
    view: str
    type: str
    status: str
    options: Mapping[str, Any]
    epoch: int | None
    positions: Mapping[str, Any]
    backlog_bytes: int | None
    created_at: datetime
    live_at: datetime | None = None
    error: Problem | None = None


@dataclass(frozen=True, kw_only=True)
class Relation(Record):
    """What can be read of a source. views: those that read it; dead_letters: records that are no
    rows."""

    name: str
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    append_only: bool
    views: tuple[str, ...]
    dead_letters: int


@dataclass(frozen=True, kw_only=True)
class SourceState(Record):
    """A source beside the database. status: running, retrying or stopped.

    rows_read: since the pipeline's start. lag: about how many records were not read yet.
    """

    name: str
    type: str
    options: Mapping[str, Any]
    relations: tuple[Relation, ...]
    status: str
    rows_read: int
    lag: int | None
    positions: Mapping[str, Any]
    created_at: datetime
    error: Problem | None = None


@dataclass(frozen=True, kw_only=True)
class DeadLetter(Record):
    """A record that is not a row. place: partition:offset, or path:line. key, value: as far as they
    are text; whole in base64. desired: retry or drop, where that was asked for."""

    source: str
    relation: str
    place: str
    group: str
    code: str
    reason: str
    key: str | None
    key_base64: str | None
    value: str | None
    value_base64: str | None
    desired: str | None
    first_seen: datetime


@dataclass(frozen=True, kw_only=True)
class LeftOut(Record):
    """A source row that is left out of a view because an expression fails for it, `count` times."""

    id: str
    operator: str
    sqlstate: str
    message: str
    source_row: str
    count: int
    first_seen: datetime


@dataclass(frozen=True, kw_only=True)
class LeftOutPage(Record):
    """Rows left out, the newest first. next: what gives those behind them, None at the end."""

    errors: tuple[LeftOut, ...]
    next: str | None = None


@dataclass(frozen=True, kw_only=True)
class StateSize(Record):
    """What one operator, or one base table, keeps on disk."""

    operator: str
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Effect(Record):
    """What one inserted or deleted row sets off, on average."""

    rows_out: float
    rows_touched: float


@dataclass(frozen=True, kw_only=True)
class Risk(Record):
    """An operator that may be dear."""

    operator: str
    why: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Estimate(Record):
    """The estimated cost of a view (docs/ESTIMATE.md). engine: local or spark. amplification: by
    base table. notes: which inputs of the estimate are uncertain."""

    EARLIER: ClassVar[Mapping[str, str]] = {"engine": "road"}

    source_rows: int
    output_rows: int
    state_bytes: int
    backfill_s: float
    engine: str
    amplification: Mapping[str, Effect]
    risks: tuple[Risk, ...]
    state: tuple[StateSize, ...] = ()
    speed: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def road(self) -> str:
        """Deprecated: `engine`."""
        return self.engine


@dataclass(frozen=True, kw_only=True)
class Validation(Record):
    """What a query would become as a view. why_no_key: why it would have no primary key, "" if it
    has one. in_postgres: expressions that PostgreSQL evaluates."""

    EARLIER: ClassVar[Mapping[str, str]] = {"why_no_key": "why_bag"}

    kind: str
    key: tuple[str, ...]
    why_no_key: str
    fields: tuple[Field, ...]
    warnings: tuple[str, ...]
    in_postgres: tuple[str, ...]
    estimated_source_rows: int
    backfill: str
    plan: str
    estimate: Estimate | None = None

    @property
    def why_bag(self) -> str:
        """Deprecated: `why_no_key`."""
        return self.why_no_key


@dataclass(frozen=True, kw_only=True)
class Waited(Record):
    """position: what is visible now, at or past the one asked for; waited_ms: how long it took."""

    position: str
    waited_ms: float


@dataclass(frozen=True, kw_only=True)
class Difference(Record):
    """A row that differs. kind: missing, surplus or different; expected: PostgreSQL's, found: the
    view's, as texts."""

    kind: str
    key: Mapping[str, Any] | None = None
    expected: Mapping[str, str | None] | None = None
    found: Mapping[str, str | None] | None = None


@dataclass(frozen=True, kw_only=True)
class VerifyResult(Record):
    """A view beside PostgreSQL's own answer at the view's position (docs/VERIFY.md).

    result: equal, different or open. rows: of the view, all compared. alike: equal in value,
    printed otherwise. reasons: why PostgreSQL itself may answer in another way.
    """

    view: str
    result: str
    rows: int
    missing: int
    surplus: int
    different: int
    alike: int
    took_ms: float
    at: datetime
    examples: tuple[Difference, ...] = ()
    reasons: tuple[str, ...] = ()
    positions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether both are the same."""
        return self.result == "equal"


@dataclass(frozen=True, kw_only=True)
class SharedPart(Record):
    """A part of a view that other views read too. saved_bytes: what else would be kept again."""

    what: str
    shared_with: tuple[str, ...]
    rows: int
    bytes: int
    saved_bytes: int
    rows_in: int
    rows_out: int


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """How a view is computed: as text and as a tree. in_postgres: what PostgreSQL evaluates."""

    text: str
    tree: Mapping[str, Any]
    in_postgres: tuple[str, ...]
    shared: tuple[SharedPart, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Node(Record):
    """One node of a view as it runs. inputs: ids of nodes. time_s, rows_in, rows_out: since the
    pipeline's start; None where another view computes it, or nothing runs."""

    id: str
    what: str
    detail: str
    inputs: tuple[str, ...]
    shared_with: tuple[str, ...] = ()
    rows: int | None = None
    bytes: int | None = None
    rows_in: int | None = None
    rows_out: int | None = None
    time_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Dataflow(Record):
    """The nodes of a view, its output last. at, since: seconds since 1970, of the figures."""

    nodes: tuple[Node, ...]
    at: float | None
    since: float | None


@dataclass(frozen=True, kw_only=True)
class TokenFacts(Record):
    """A token as it stands; what it is itself was shown once."""

    id: str
    name: str
    role: str
    db_role: str | None
    created_by: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Token(Record):
    """A token that was made. token: shown this once, so it is not in its repr either."""

    token: str = field(repr=False)
    facts: TokenFacts


@dataclass(frozen=True, kw_only=True)
class Health(Record):
    """status: ok, starting or degraded, for these reasons. pipeline: figures of the default group,
    groups: of the others; without a token all of it but status is left out."""

    status: str
    versions: Mapping[str, str]
    pipeline: Mapping[str, Any] | None
    reasons: tuple[str, ...]
    groups: Mapping[str, Any] = field(default_factory=dict)
