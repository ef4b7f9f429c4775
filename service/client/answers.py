"""Records of the service's responses: views, sinks, sources, tokens, verifications, estimates.

Names are those of REST (docs/REST.md). Times are aware datetimes, sizes are in bytes, durations
have their unit in the name. Invariant: fields may be added; a rename keeps the earlier name as a
property for one release.
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
    """Why something has failed. code: of docs/ERRORS.md, stable; position: line, column, from 1;
    option: the path of the option that is wrong."""

    code: str = "internal"
    title: str = ""
    status: int = 500
    detail: str = ""
    hint: str = ""
    position: Mapping[str, int] | None = None
    option: str | None = None

    @property
    def error(self) -> TidemarkError:
        """The problem as an exception; a TemporaryError if a retry may succeed."""
        at = self.position
        kind = TemporaryError if self.status == 503 else TidemarkError
        return kind(
            self.code,
            self.title,
            detail=self.detail,
            hint=self.hint,
            position=Position(at["line"], at["column"]) if at else None,
            option=self.option or "",
        )


@dataclass(frozen=True, kw_only=True)
class ReadFilter(Record):
    """A condition on the rows of one source relation. at_source: the source delivers no other rows;
    else reason says why not."""

    sql: str
    at_source: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class SourceRead(Record):
    """What a view reads of one table or relation. unread_columns: its others. columns_at_source:
    the source delivers no columns that no view reads; else columns_reason says why not."""

    source: str
    schema: str
    name: str
    columns: tuple[str, ...]
    unread_columns: tuple[str, ...] = ()
    columns_at_source: bool = False
    columns_reason: str = ""
    filters: tuple[ReadFilter, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ViewState(Record):
    """A view with its current status.

    status: analyzing, backfilling, catching up, live, degraded (not being updated; `error` has the
    reason), paused, failed or dropping. kind: keyed (a table) or multiset (a view without a
    key). rows: estimated, None until live. positions: those that its rows show, by source.
    lag_bytes: WAL at the source that is not yet visible. errors: number of error rows. replacing:
    the change in progress, or why the last one failed or was cancelled. history: its retained past,
    or None. late_rows, watermarks: of a view with lateness, the watermarks as ISO 8601 by column.
    """

    EARLIER_VALUES: ClassVar[Mapping[str, Mapping[str, str]]] = {"kind": {"bag": "multiset"}}

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
    history: Mapping[str, Any] | None = None
    late_rows: int = 0
    watermarks: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[SourceRead, ...] = ()

    @property
    def path(self) -> str:
        """The quoted name for calls: `"schema"."name"`."""
        return path_name(self.schema, self.name)

    @property
    def is_live(self) -> bool:
        """Whether the view is up to date."""
        return self.status == "live"


def path_name(schema: str, name: str) -> str:
    """Return the quoted name for calls.

    >>> print(path_name("Sales", "By Day"))
    "Sales"."By Day"
    """
    return ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name))


@dataclass(frozen=True, kw_only=True)
class SubscriptionState(Record):
    """A named reader of a view. status: ready, or expired where its changes are gone.

    epoch: what it has acknowledged; newest_epoch: what the view shows.
    """

    view: str
    name: str
    status: str
    epoch: int
    newest_epoch: int | None
    oldest_epoch: int | None
    created_by: str
    created_at: datetime
    acknowledged_at: datetime


@dataclass(frozen=True, kw_only=True)
class SinkState(Record):
    """An additional sink of a view. status: starting, live, retrying, failed or dropping.

    epoch: the newest written, None before the first. backlog_bytes: waiting to be written.
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
    """A relation of a source. views: those that read it. dead_letters: number of malformed
    records."""

    name: str
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    append_only: bool
    views: tuple[str, ...]
    dead_letters: int


@dataclass(frozen=True, kw_only=True)
class SourceGrant(Record):
    """A grant of a source. relation: None is all. role: of the sink, "public" is every role."""

    relation: str | None
    role: str
    granted_by: str
    granted_at: datetime


@dataclass(frozen=True, kw_only=True)
class SourceState(Record):
    """An external source. status: running, retrying or stopped.

    rows_read: since the pipeline started. lag: unread records, estimated. declared_by: a role of
    the sink; None: the service. grants: who may read its rows besides these.
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
    declared_by: str | None = None
    grants: tuple[SourceGrant, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SourceReset(Record):
    """How far a reset is. views: the readers. waits_for: those that are not paused yet."""

    views: tuple[str, ...]
    waits_for: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DeadLetter(Record):
    """A malformed record. position: partition:offset, or path:line. key, value: as text where
    possible; whole in base64. desired: retry or drop, if requested."""

    EARLIER: ClassVar[Mapping[str, str]] = {"position": "place"}

    source: str
    relation: str
    position: str
    group: str
    code: str
    reason: str
    key: str | None
    key_base64: str | None
    value: str | None
    value_base64: str | None
    desired: str | None
    first_seen: datetime

    @property
    def place(self) -> str:
        """Deprecated: `position`."""
        return self.position


@dataclass(frozen=True, kw_only=True)
class LeftOut(Record):
    """An error row: a source row left out of a view because an expression fails for it."""

    id: str
    operator: str
    sqlstate: str
    message: str
    source_row: str
    count: int
    first_seen: datetime


@dataclass(frozen=True, kw_only=True)
class LeftOutPage(Record):
    """Error rows, newest first. next: `after` of the next page, None at the end."""

    errors: tuple[LeftOut, ...]
    next: str | None = None


@dataclass(frozen=True, kw_only=True)
class StateSize(Record):
    """The state on disk of one operator or base table."""

    operator: str
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Effect(Record):
    """The average effect of one inserted or deleted row."""

    rows_out: float
    rows_touched: float


@dataclass(frozen=True, kw_only=True)
class Risk(Record):
    """An operator that may be expensive."""

    operator: str
    why: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Estimate(Record):
    """The estimated cost of a view (docs/ESTIMATE.md). engine: local or spark; engine_s: the
    seconds of each. amplification: by base table. notes: which inputs are uncertain."""

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
    engine_s: Mapping[str, float] = field(default_factory=dict)
    engine_reason: str = ""

    @property
    def road(self) -> str:
        """Deprecated: `engine`."""
        return self.engine


@dataclass(frozen=True, kw_only=True)
class Validation(Record):
    """What a query would become as a view. why_no_key: why it would have no primary key, "" if it
    has one. in_postgres: expressions that PostgreSQL evaluates. now: moving or pinned; None if the
    query does not say now()."""

    EARLIER: ClassVar[Mapping[str, str]] = {"why_no_key": "why_bag"}
    EARLIER_VALUES: ClassVar[Mapping[str, Mapping[str, str]]] = {"kind": {"bag": "multiset"}}

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
    now: str | None = None
    time_zone: str = "UTC"
    runtime: str = "local"
    reads: tuple[SourceRead, ...] = ()

    @property
    def why_bag(self) -> str:
        """Deprecated: `why_no_key`."""
        return self.why_no_key


@dataclass(frozen=True, kw_only=True)
class Waited(Record):
    """The result of a wait. position: visible now, the requested one or a later one."""

    position: str
    waited_ms: float


@dataclass(frozen=True, kw_only=True)
class Difference(Record):
    """A differing row. kind: missing, surplus or different; in a history also period or overlap.
    expected: PostgreSQL's values, found:
    the view's; as texts."""

    kind: str
    key: Mapping[str, Any] | None = None
    expected: Mapping[str, str | None] | None = None
    found: Mapping[str, str | None] | None = None


@dataclass(frozen=True, kw_only=True)
class HistoryCheck(Record):
    """The findings in a view's history: counts of wrong rows, by kind. rows: all of the history."""

    rows: int
    missing: int
    surplus: int
    different: int
    periods: int
    overlaps: int
    examples: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClockCheck(Record):
    """A clock that has stopped (docs/VERIFY.md). due_by: when it must have ticked at the latest.

    missing, surplus, different: how PostgreSQL's answer then differs from that at the view's clock.
    """

    code: str
    source: str
    due_by: datetime
    missing: int
    surplus: int
    different: int


@dataclass(frozen=True, kw_only=True)
class VerifyResult(Record):
    """The comparison of a view with PostgreSQL's answer at the view's position (docs/VERIFY.md).

    result: equal, different or open (the query allows both answers). rows: number compared. alike:
    equal values that print differently. reasons: why PostgreSQL's own answer may vary. history:
    None for a view without one, and from an older service. clock: a clock that has stopped.
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
    history: HistoryCheck | None = None
    clock: ClockCheck | None = None
    reasons: tuple[str, ...] = ()
    positions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether the view equals PostgreSQL's answer, its history is right and its clock ticks."""
        return self.result == "equal"


@dataclass(frozen=True, kw_only=True)
class SharedPart(Record):
    """A part that other views share. saved_bytes: stored again without sharing, estimated."""

    what: str
    shared_with: tuple[str, ...]
    rows: int
    bytes: int
    saved_bytes: int
    rows_in: int
    rows_out: int


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """The plan of a view, as text and as a tree. in_postgres: evaluated by PostgreSQL."""

    text: str
    tree: Mapping[str, Any]
    in_postgres: tuple[str, ...]
    shared: tuple[SharedPart, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Node(Record):
    """One node of a running view. inputs: ids of its input nodes. time_s, rows_in, rows_out: since
    the pipeline started; None if another view computes it, or the view does not run."""

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
    """The nodes of a view, the output last. at: time of the figures, since: start of the totals, in
    seconds since 1970."""

    nodes: tuple[Node, ...]
    at: float | None
    since: float | None


@dataclass(frozen=True, kw_only=True)
class TokenFacts(Record):
    """A token's facts, without the token."""

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
    """A new token. token: shown only here; repr() omits it."""

    token: str = field(repr=False)
    facts: TokenFacts


@dataclass(frozen=True, kw_only=True)
class Health(Record):
    """The service's status: ok, starting or degraded, with reasons. pipeline: figures of the
    default group; groups: of the others. Without a token only status is set."""

    status: str
    versions: Mapping[str, str]
    pipeline: Mapping[str, Any] | None
    reasons: tuple[str, ...]
    groups: Mapping[str, Any] = field(default_factory=dict)
