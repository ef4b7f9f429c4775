"""Pydantic models of REST's requests and responses; the OpenAPI description comes from here.

Invariant: fields may be added. A rename keeps the earlier name for one release and marks it
deprecated; no field changes its meaning. Requests forbid unknown fields, so that a misspelt option
is refused instead of ignored. Docstrings and descriptions are public: they appear in /docs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dataflow.types import UTC
from service.factory.planning import REFRESH
from service.runtime.settings import DEFAULT_GROUP
from service.views.estimate_models import Estimate
from service.views.groups import is_spark_group
from service.views.lifecycle import ViewState


def _number(value: object) -> object:
    """Accept JSON numbers only. ValueError for booleans and texts, which pydantic would convert.

    >>> _number(2.5)
    2.5
    """
    if isinstance(value, bool | str):
        raise ValueError("Input should be a number")
    return value


# For bodies; paths and query parameters are always text.
Whole = Annotated[int, BeforeValidator(_number)]
Number = Annotated[float, BeforeValidator(_number)]
# PostgreSQL's text cannot contain NUL.
Text = Annotated[str, Field(pattern="^[^\\x00]*$")]
# Of an option of a view, without its name; ViewOptions says which is which.
OptionValue = str | int | float | dict[str, str] | None


def _option(title: str, description: str, *, unit: str = "", is_rare: bool = True) -> Any:
    """Return what a form shows of an option (connectors/option_schema.py)."""
    shown: dict[str, Any] = {"x-unit": unit} if unit else {}
    shown |= {"x-advanced": True} if is_rare else {}
    return Field(title=title, description=description, json_schema_extra=shown)


def _unknown_option(name: object, value: object, names: Collection[str]) -> ValidationError:
    found = get_close_matches(str(name), names, n=1)
    meant = f'did you mean "{found[0]}"?' if found else f"there are {', '.join(names)}"
    refusal = PydanticCustomError("unknown_option", "no such option; {meant}", {"meant": meant})
    line = InitErrorDetails(type=refusal, loc=(str(name),), input=value)
    return ValidationError.from_exception_data("options", [line])


class ViewOptions(BaseModel):
    """Options of a view; the console's form is made from them."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _present_names(cls, given: object) -> object:
        """most_rows is the earlier name of max_rows; the next release removes it."""
        if not isinstance(given, dict) or "most_rows" not in given:
            return given
        named = {k: v for k, v in given.items() if k != "most_rows"}
        return {"max_rows": given["most_rows"], **named}

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, given: object) -> object:
        """Refuse an unknown option at its path, and name the one that may be meant."""
        names = [*cls.model_fields, "most_rows"]
        for name, value in given.items() if isinstance(given, dict) else ():
            if name not in names:
                raise _unknown_option(name, value, cls.model_fields)
        return given

    backfill: Annotated[
        Literal["auto", "spark", "local"],
        _option(
            "Backfill",
            "What reads the tables for the first time; auto uses the engine that is estimated to"
            " end sooner.",
            is_rare=False,
        ),
    ] = "auto"
    runtime: Annotated[
        Literal["local", "spark", "auto"],
        _option(
            "Runtime",
            "What maintains the view. spark: tasks of a Spark cluster, in a group of its own; auto"
            " does so if its state is large (docs/SCALE.md).",
            is_rare=False,
        ),
    ] = "local"
    group: Annotated[
        str,
        _option(
            "Group",
            "Views of one group show the same position. Each further group has its own pipeline"
            " process, slot and epochs; its views cannot read views of another group.",
            is_rare=False,
        ),
        Field(pattern=r"^[a-z][a-z0-9]{0,23}$"),
    ] = "default"
    history: Annotated[
        str | None,
        _option(
            "History",
            'How long the view\'s past is retained, such as "7 days"; "none" for not at all'
            " (docs/HISTORY.md).",
            is_rare=False,
        ),
        Field(
            pattern=r"^(none|[1-9][0-9]{0,5} (second|minute|hour|day|week)s?)$",
            examples=["7 days"],
        ),
    ] = None
    time_zone: Annotated[
        str,
        _option(
            "Time zone",
            "Of dates, intervals and casts of timestamptz, by PostgreSQL's name.",
            is_rare=False,
        ),
        Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_+/-]+$"),
    ] = UTC
    now: Annotated[
        Literal["pinned", "moving"],
        _option(
            "now()",
            "moving makes now() the clock of each epoch; pinned fixes it when the view is built"
            " (docs/TIME.md).",
        ),
    ] = "moving"
    refresh: Annotated[
        str | None,
        _option(
            "Refresh",
            'How often values of now() in the select list change, such as "10 s"; without it they'
            " are refused.",
        ),
        Field(pattern=f"^{REFRESH.pattern}$", examples=["10 s"]),
    ] = None
    max_rows: Annotated[
        Whole | None,
        _option(
            "Maximum rows",
            "Maximum estimated rows of any part of the plan; default 10,000,000,000.",
            unit="rows",
        ),
        Field(ge=1, le=1_000_000_000_000_000),
    ] = None
    changes_retention_s: Annotated[
        Whole | None,
        _option(
            "Changes retained",
            "How long the view's changes are retained, even without subscribers.",
            unit="s",
        ),
        Field(ge=1, le=31_536_000),
    ] = None
    lateness: Annotated[
        dict[Text, Text] | None,
        _option(
            "Lateness",
            'By "table.column" how much later than the greatest value a row may come, as text: "1'
            ' hour".',
        ),
        Field(min_length=1, max_length=16),
    ] = None
    late: Annotated[
        Literal["applied", "dead-letter", "error"],
        _option(
            "Late rows",
            "What becomes of a later row: applied leaves the view exact, dead-letter leaves the row"
            " out, error fails the view.",
        ),
    ] = "applied"
    lateness_by: Annotated[
        dict[Text, Text] | None,
        _option(
            "Lateness by",
            'By "table.column" the column of which each value counts on its own, the least of them'
            " for all.",
        ),
        Field(min_length=1, max_length=16),
    ] = None
    idle_timeout_s: Annotated[
        Number | None,
        _option(
            "Idle timeout",
            "After which a value of it that has no newer rows does not count.",
            unit="s",
        ),
        Field(gt=0, le=31_536_000),
    ] = None
    emit: Annotated[
        Literal["changes", "final"],
        _option(
            "Emit",
            "final sends subscribers and additional sinks each row once, when its window is"
            " closed.",
        ),
    ] = "changes"
    window: Annotated[
        dict[Text, Text] | None,
        _option("Window", "The output column that begins a window, and its length."),
        Field(min_length=1, max_length=1),
    ] = None
    retain: Annotated[
        Text | None,
        _option(
            "Retain",
            "How long after its end a window is frozen and its state freed.",
        ),
        Field(min_length=1, max_length=100, examples=["7 days"]),
    ] = None

    @field_validator("group")
    @classmethod
    def _is_free(cls, group: str) -> str:
        # Its slot name would collide with a service whose prefix ends in _source.
        if group == "source":
            raise ValueError("this name is reserved")
        if is_spark_group(group):
            raise ValueError("a view on Spark has this group of its own; leave it out")
        return group

    @model_validator(mode="after")
    def _spark_has_its_group(self) -> ViewOptions:
        if self.runtime == "spark" and self.group != DEFAULT_GROUP:
            raise ValueError('with runtime "spark" a view has a group of its own; leave it out')
        return self


class CreateView(BaseModel):
    """A view to create."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "name": "revenue_by_region",
                "query": "SELECT region, sum(amount) AS revenue FROM orders GROUP BY region",
                "options": {"backfill": "auto"},
            }
        },
    )

    name: str = Field(
        min_length=1,
        max_length=130,
        description="name, or schema.name; quoted as in SQL where needed",
    )
    query: str = Field(min_length=1, max_length=200_000, description="one SELECT")
    options: ViewOptions = Field(default_factory=lambda: ViewOptions.model_validate({}))


class ValidateView(BaseModel):
    """A query to analyze; nothing is created."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=200_000)
    options: ViewOptions = Field(default_factory=lambda: ViewOptions.model_validate({}))


class FieldModel(BaseModel):
    """One column of a view."""

    name: str
    type: str
    nullable: bool


def field_models(facts: Iterable[Mapping[str, Any]]) -> list[FieldModel]:
    """Return columns as the catalog stores them (service/engine/output_fields.py)."""
    return [FieldModel(name=f["name"], type=f["type"], nullable=f["nullable"]) for f in facts]


class ProblemModel(BaseModel):
    """An error (RFC 9457). code is stable. position: line and column in the query, from 1.

    option: the option or field of the request that is wrong, as a path (relations.orders.columns).
    """

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str = ""
    hint: str = ""
    position: dict[str, int] | None = None
    option: str | None = None


class HistoryModel(BaseModel):
    """The retained past of a view. table: what SQL reads. oldest_epoch, oldest_at: the oldest point
    that can be read."""

    table: str
    retained_s: float
    begun_epoch: int
    oldest_epoch: int
    oldest_at: str


class ConditionModel(BaseModel):
    """A simple condition on a column. operator: =, <>, <, <=, >, >=, in, is null, is not null.
    kind: how values are compared (int, decimal, float, text, bool, date, ...)."""

    column: str
    operator: str
    kind: str
    values: list[str] = Field(description="as PostgreSQL prints them")


class ReadFilterModel(BaseModel):
    """A condition on the rows of one table or relation. at_source: the source does not deliver
    other rows; else reason says why Tidemark applies it to the rows that it delivers."""

    sql: str = Field(description="the condition, as the plan has it")
    at_source: bool
    reason: str = Field(description="empty if it is applied at the source")


class ReadModel(BaseModel):
    """What a query reads of one table or relation.

    conditions: a row that fails one of them cannot change the view. Only simple conditions are
    listed; `filters` has all that are applied directly to its rows.
    """

    source: str
    schema_name: str = Field(alias="schema", serialization_alias="schema")
    name: str
    columns: list[str]
    unread_columns: list[str] = Field(default=[], description="its columns that are not read")
    columns_at_source: bool = Field(
        False, description="the source delivers no columns that no view reads"
    )
    columns_reason: str = Field("", description="why it delivers others too; empty if it does not")
    conditions: list[ConditionModel]
    filters: list[ReadFilterModel] = []


class ViewModel(BaseModel):
    """A view with its current status."""

    name: str
    schema_name: str = Field(serialization_alias="schema")
    query: str
    status: ViewState = Field(description="degraded: not being updated; `error` has the reason")
    kind: str = Field(description="keyed: a plain table; multiset: a view without a key")
    key: list[str]
    fields: list[FieldModel]
    options: dict[str, Any]
    group: str = Field(description="the group of views that show the same position")
    warnings: list[str]
    rows: int | None = Field(description="number of rows, estimated; null until live")
    positions: dict[str, str] = Field(description="the position that its rows show, by source")
    lag_bytes: int | None = Field(
        description="WAL at the source that is not yet visible; null if the source is unreachable"
    )
    backfill: dict[str, Any] | None = Field(description="progress while the view is built")
    plan: str = Field(description="summary of the plan")
    errors: int = Field(description="source rows left out because an expression fails for them")
    late_rows: int = Field(0, description="rows that came later than options.lateness allows")
    watermarks: dict[str, str] = Field(
        default={}, description="up to where the rows of each column with a lateness have come"
    )
    verification: dict[str, Any] | None = Field(
        default=None, description="the newest comparison with PostgreSQL's answer"
    )
    history: HistoryModel | None = Field(None, description="its past, if that is retained")
    error: ProblemModel | None = None
    created_at: str
    live_at: str | None = None
    version: int = Field(0, description="incremented by each replace and rebuild")
    reads: list[ReadModel] = Field(
        default=[],
        description="what it reads of each table or relation, and what of it the source"
        " itself applies",
    )
    replacing: dict[str, Any] | None = Field(
        None, description="the change in progress, or why the last one failed or was cancelled"
    )


class ReplaceView(BaseModel):
    """Another query for a view. options: those to change; the group cannot change."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "query": "SELECT region, sum(amount) AS revenue, count(*) AS orders "
                "FROM orders GROUP BY region"
            }
        },
    )

    query: str = Field(min_length=1, max_length=200_000, description="one SELECT")
    options: dict[str, OptionValue] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _are_options(cls, options: dict[str, OptionValue]) -> dict[str, OptionValue]:
        ViewOptions.model_validate(options)
        return options


class ChangeRuntime(BaseModel):
    """What is to maintain the view from now on."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"runtime": "spark"}})

    runtime: Literal["local", "spark"]


class RenameView(BaseModel):
    """A new name for a view, in the same schema."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"name": "revenue"}})

    name: str = Field(min_length=1, max_length=130, description="quoted as in SQL where needed")


class MoveView(BaseModel):
    """A new schema for a view."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"schema": "reports"}})

    schema_name: str = Field(min_length=1, max_length=130, alias="schema")


class ViewList(BaseModel):
    """Views ordered by name. next: `after` of the next page; null at the end."""

    views: list[ViewModel]
    next: str | None = None


class CreateSink(BaseModel):
    """An additional sink of a view. options: those of its type (docs/SINKS.md)."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "name": "events",
                "type": "kafka",
                "options": {"bootstrap_servers": "localhost:9092", "topic": "revenue"},
            }
        },
    )

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,63}$")
    type: str = Field("kafka", max_length=63)
    options: dict[str, Any] = Field(default_factory=dict)


class SinkModel(BaseModel):
    """An additional sink of a view, as of a second ago."""

    name: str
    view: str
    type: str
    status: str = Field(description="starting, live, retrying, failed or dropping")
    options: dict[str, Any]
    epoch: int | None = Field(description="the newest epoch written to it; null before the first")
    positions: dict[str, Any] = Field(description="the position that it shows, by source")
    backlog_bytes: int | None = Field(description="bytes on disk that wait to be written to it")
    error: ProblemModel | None = None
    created_at: str
    live_at: str | None = None


class SinkList(BaseModel):
    """Sinks of one view, oldest first. next: `after` of the next page; null at the end."""

    sinks: list[SinkModel]
    next: str | None = None


class Validation(BaseModel):
    """The view that the query would become."""

    kind: str
    key: list[str]
    why_no_key: str = Field(description="why the view has no primary key; empty if it has one")
    why_bag: str = Field(
        description="earlier name of `why_no_key`, for one release",
        json_schema_extra={"deprecated": True},
    )
    fields: list[FieldModel]
    warnings: list[str]
    in_postgres: list[str] = Field(description="expressions evaluated by PostgreSQL, in batches")
    estimated_source_rows: int
    backfill: str = Field(description="the engine of the backfill; `estimate` says why")
    runtime: str = Field("local", description="what would maintain it: local or spark")
    reads: list[ReadModel] = Field(default=[], description="what it reads of each table")
    asks: list[ReadModel] = Field(
        default=[],
        description="earlier name of `reads`, for one release",
        json_schema_extra={"deprecated": True},
    )
    plan: str
    estimate: Estimate | None = Field(None, description="estimated cost; null if unknown")
    now: Literal["pinned", "moving"] | None = Field(
        None, description="what now() is; null if the query does not use it"
    )
    time_zone: str = Field(UTC, description="of dates, intervals and casts of timestamptz")


class WaitAnswer(BaseModel):
    """The position that is visible now: the requested one or a later one."""

    position: str
    waited_ms: float


class RowPage(BaseModel):
    """A page of a view's rows, from one snapshot. next: `after` of the next page; null at the end.
    epoch, positions: of the snapshot; null and empty for a view that was paused before it was
    live."""

    fields: list[FieldModel]
    rows: list[dict[str, Any]]
    next: str | None
    epoch: int | None
    positions: dict[str, Any]


class Query(BaseModel):
    """A query to answer once. wait_s: how long to wait until its views show all earlier commits; 0:
    do not wait."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"query": "SELECT region, max(amount) FROM orders GROUP BY region"}
        },
    )

    query: str = Field(min_length=1, max_length=200_000, description="one SELECT")
    limit: Whole = Field(1_000, ge=1, le=10_000)
    timeout_s: Number = Field(10, ge=0.01, le=300)
    wait_s: Number = Field(10, ge=0, le=300)


class QueryAnswer(BaseModel):
    """views: epoch and positions of each group of views in the answer. position: of the source's
    WAL, if the query ran in the source database."""

    fields: list[FieldModel]
    rows: list[dict[str, Any]]
    has_more: bool
    views: dict[str, dict[str, Any]]
    position: str | None


class SharedPartModel(BaseModel):
    """A part of a view that other views share: it is computed and stored once.

    rows, bytes: stored, estimated. saved_bytes: saved by sharing, estimated.
    rows_in, rows_out: processed since the pipeline started.
    """

    what: str
    shared_with: list[str]
    rows: int
    bytes: int
    saved_bytes: int
    rows_in: int
    rows_out: int


class PlanAnswer(BaseModel):
    """The plan of a view, and its shared parts, as of a second ago."""

    text: str
    tree: dict[str, Any]
    in_postgres: list[str]
    shared: list[SharedPartModel] = []


class NodeModel(BaseModel):
    """One node of a running view: a table, another view, or an operator.

    inputs: ids of its input nodes. shared_with: the other views that use the node.
    rows, bytes: of its state, estimated. rows_in, rows_out, time_s: totals since the pipeline
    started; the difference of two answers gives a rate. Figures are null if the view does not run,
    or if another view computes the node.
    """

    id: str
    what: str = Field(description="table, view, scan, join, aggregate, ...")
    detail: str
    inputs: list[str]
    shared_with: list[str] = []
    rows: int | None = None
    bytes: int | None = None
    rows_in: int | None = None
    rows_out: int | None = None
    time_s: float | None = None


class DataflowAnswer(BaseModel):
    """The nodes of a view, inputs before their readers, the view's output last.

    at: time of the figures; since: start of the totals; in seconds since 1970, null without
    figures. Ids are stable while `since` is the same.
    """

    nodes: list[NodeModel]
    at: float | None
    since: float | None


class Live(BaseModel):
    """The API process responds."""

    status: str = "ok"


class Health(BaseModel):
    """The status of the service: "ok", "starting" or "degraded", with the reasons.

    pipeline: figures of the default group; groups: of the others. versions: of the program, the
    state and the control tables.
    """

    status: str
    versions: dict[str, str]
    pipeline: dict[str, Any] | None
    groups: dict[str, dict[str, Any] | None] = {}
    reasons: list[str]
