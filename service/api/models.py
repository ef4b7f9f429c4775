"""What REST takes and answers, as pydantic models: the OpenAPI description comes from here.

Fields may be added, never renamed or given another meaning: clients rely on them. What is taken
forbids unknown fields, so that a misspelt option is refused and not passed over.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from service.views.estimate_models import Estimate
from service.views.lifecycle import ViewState


def _number(value: object) -> object:
    """A number as JSON has it. ValueError for what pydantic would take for one.

    >>> _number(2.5)
    2.5
    """
    if isinstance(value, bool | str):
        raise ValueError("Input should be a number")
    return value


# In a body; in a path or a parameter everything is text.
Whole = Annotated[int, BeforeValidator(_number)]
Number = Annotated[float, BeforeValidator(_number)]
# PostgreSQL has no text with a NUL.
Text = Annotated[str, Field(pattern="^[^\\x00]*$")]


class ViewOptions(BaseModel):
    """Options of a view. backfill: "auto" takes Spark for large sources, else this machine.

    group: views of one group change together; each group beside the default one has a pipeline
    process, a slot and epochs of its own, and its views read no views of another.
    changes_retention_s: keep the view's changes for so long even while nobody reads them.
    most_rows: of how many rows a part of the plan may be estimated, 10,000,000,000 by default.
    """

    model_config = ConfigDict(extra="forbid")

    backfill: Literal["auto", "spark", "local"] = "auto"
    group: str = Field("default", pattern=r"^[a-z][a-z0-9]{0,23}$")
    changes_retention_s: Whole | None = Field(None, ge=1, le=31_536_000)
    most_rows: Whole | None = Field(None, ge=1, le=1_000_000_000_000_000)

    @field_validator("group")
    @classmethod
    def _is_free(cls, group: str) -> str:
        # Its slot would be that of a service whose prefix ends in _source.
        if group == "source":
            raise ValueError("no group can be called so")
        return group


class CreateView(BaseModel):
    """A view to be kept up to date."""

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
        description="name, or schema.name; quoted as in SQL if need be",
    )
    query: str = Field(min_length=1, max_length=200_000, description="one SELECT")
    options: ViewOptions = Field(default_factory=lambda: ViewOptions.model_validate({}))


class ValidateView(BaseModel):
    """A query to analyze without creating anything."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=200_000)


class FieldModel(BaseModel):
    """One column of a view."""

    name: str
    type: str
    nullable: bool


class ProblemModel(BaseModel):
    """An error (RFC 9457). code is stable; position is where in the query, both from 1."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str = ""
    hint: str = ""
    position: dict[str, int] | None = None


class ViewModel(BaseModel):
    """A view as it stands."""

    name: str
    schema_name: str = Field(serialization_alias="schema")
    query: str
    status: ViewState = Field(description="degraded: its rows stand still, and `error` says why")
    kind: str = Field(description="keyed: a plain table; bag: a view over rows with multiplicities")
    key: list[str]
    fields: list[FieldModel]
    options: dict[str, Any]
    group: str = Field(description="the views that change together with this one")
    warnings: list[str]
    rows: int | None = Field(description="about how many rows it holds; null until live")
    positions: dict[str, str] = Field(description="position that its rows show, by source")
    lag_bytes: int | None = Field(
        description="WAL written at the source and not yet shown; null while it is away"
    )
    backfill: dict[str, Any] | None = Field(description="progress while it is built")
    plan: str = Field(description="summary of the plan")
    errors: int = Field(description="source rows left out because an expression fails for them")
    verification: dict[str, Any] | None = Field(
        default=None, description="the newest comparison with PostgreSQL's own answer"
    )
    error: ProblemModel | None = None
    created_at: str
    live_at: str | None = None
    version: int = Field(0, description="counts the queries and rebuilds that it has had")
    replacing: dict[str, Any] | None = Field(
        None, description="the change under way, its progress, or why the newest one was given up"
    )


class ReplaceView(BaseModel):
    """Another query for a view. options: those that change; a view stays in its group."""

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
    options: dict[str, str | int] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _are_options(cls, options: dict[str, str | int]) -> dict[str, str | int]:
        ViewOptions.model_validate(options)
        return options


class RenameView(BaseModel):
    """Another name for a view, in the same schema."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"name": "revenue"}})

    name: str = Field(min_length=1, max_length=130, description="quoted as in SQL if need be")


class MoveView(BaseModel):
    """Another schema for a view."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"schema": "reports"}})

    schema_name: str = Field(min_length=1, max_length=130, alias="schema")


class ViewList(BaseModel):
    """Views by name. next: gives those behind them as `after`; null at the end."""

    views: list[ViewModel]
    next: str | None = None


class CreateSink(BaseModel):
    """Where a view is to go beside its table. options: of the type, docs/KAFKA_SINK.md has them."""

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
    """A further sink of a view as it stands, as it was a second ago."""

    name: str
    view: str
    type: str
    status: str = Field(description="starting, live, retrying, failed or dropping")
    options: dict[str, Any]
    epoch: int | None = Field(description="the newest epoch that it holds; null before the first")
    positions: dict[str, Any] = Field(description="position that it shows, by source")
    backlog_bytes: int | None = Field(description="what waits for it on disk")
    error: ProblemModel | None = None
    created_at: str
    live_at: str | None = None


class SinkList(BaseModel):
    """Sinks of one view, oldest first. next: as of views."""

    sinks: list[SinkModel]
    next: str | None = None


class ConditionModel(BaseModel):
    """A plain condition on a column. operator: =, <>, <, <=, >, >=, in, is null, is not null; kind:
    how the values are compared (int, decimal, float, text, bool, date, ...)."""

    column: str
    operator: str
    kind: str
    values: list[str] = Field(description="as PostgreSQL prints them")


class ReadModel(BaseModel):
    """What a query reads of one table or relation.

    conditions: a row that fails one of them cannot change the view. Only simple conditions are
    listed.
    """

    source: str
    schema_name: str = Field(alias="schema", serialization_alias="schema")
    name: str
    columns: list[str]
    conditions: list[ConditionModel]


class Validation(BaseModel):
    """What would be created."""

    kind: str
    key: list[str]
    why_no_key: str = Field(description="why the view has no primary key; empty if it has one")
    why_bag: str = Field(
        description="earlier name of `why_no_key`, for one release",
        json_schema_extra={"deprecated": True},
    )
    fields: list[FieldModel]
    warnings: list[str]
    in_postgres: list[str] = Field(description="expressions computed by PostgreSQL, in batches")
    estimated_source_rows: int
    backfill: str = Field(description="the engine that `auto` would choose")
    reads: list[ReadModel] = Field(default=[], description="what it reads of each table")
    asks: list[ReadModel] = Field(
        default=[],
        description="earlier name of `reads`, for one release",
        json_schema_extra={"deprecated": True},
    )
    plan: str
    estimate: Estimate | None = Field(None, description="estimated cost; null if unknown")


class WaitAnswer(BaseModel):
    """The position that is visible now, at or past the one asked for."""

    position: str
    waited_ms: float


class RowPage(BaseModel):
    """Some rows of a view, of one snapshot. next: gives the page behind them; null at the end.
    epoch, positions: what they show; null and none of a view that was paused when it was not
    live."""

    fields: list[FieldModel]
    rows: list[dict[str, Any]]
    next: str | None
    epoch: int | None
    positions: dict[str, Any]


class Query(BaseModel):
    """A query to be answered once. wait_s: how long views that it reads may take to show what was
    committed before it; 0: as they are."""

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
    """views: epoch and positions of each group of views, as the answer shows them; position: of
    the source's log at that moment, when the answer is from the source's database."""

    fields: list[FieldModel]
    rows: list[dict[str, Any]]
    has_more: bool
    views: dict[str, dict[str, Any]]
    position: str | None


class SharedPartModel(BaseModel):
    """A part of a view that other views read too: computed and kept once, not once for each.

    rows, bytes: about what is kept. saved_bytes: about what else would be kept again.
    rows_in, rows_out: that passed it since the pipeline's start.
    """

    what: str
    shared_with: list[str]
    rows: int
    bytes: int
    saved_bytes: int
    rows_in: int
    rows_out: int


class PlanAnswer(BaseModel):
    """How a view is computed, and what of it is shared, as it was a second ago."""

    text: str
    tree: dict[str, Any]
    in_postgres: list[str]
    shared: list[SharedPartModel] = []


class NodeModel(BaseModel):
    """One node of a view as it runs: rows of a table, a view that is read, or an operator.

    inputs: ids of the nodes whose rows come in. shared_with: the other views that it runs for.
    rows, bytes: about what it keeps. rows_in, rows_out: that passed it, time_s: that its steps
    took, all since the pipeline's start: rates are differences of two answers. All are null for a
    view that does not run, and for what another view computes.
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
    """The nodes of a view, each after what it reads, the view's output last.

    at: when the figures were taken, since: when the totals began, in seconds since 1970; null
    where there are no figures. Ids are the same as long as `since` is.
    """

    nodes: list[NodeModel]
    at: float | None
    since: float | None


class Live(BaseModel):
    """The API answers; that is all."""

    status: str = "ok"


class Health(BaseModel):
    """Whether the service works: "ok", "starting" or "degraded", and why.

    pipeline: figures of the default group; groups: of the others. versions: of the program, and
    those of the state and the control tables that it works with.
    """

    status: str
    versions: dict[str, str]
    pipeline: dict[str, Any] | None
    groups: dict[str, dict[str, Any] | None] = {}
    reasons: list[str]
