"""Pydantic models of REST's requests and responses about sources and dead letters.

Only a source's connector interprets its options (docs/SOURCES.md).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.api.models import FieldModel, ProblemModel, Text
from service.ingest.declared_sources import SourceType


def _storable(value: Any) -> Any:
    """Refuse texts that PostgreSQL's jsonb cannot store."""
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("a text contains NUL or half of a surrogate pair")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _storable(key)
            _storable(inner)
    elif isinstance(value, list):
        for inner in value:
            _storable(inner)
    return value


Options = Annotated[dict[str, Any], AfterValidator(_storable)]


class CreateSource(BaseModel):
    """An external source; queries name its relations `source.relation`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "name": "prices",
                "type": "files",
                "options": {
                    "relations": {
                        "products": {
                            "path": "/srv/prices/*.csv",
                            "columns": [
                                {"name": "id", "type": "bigint"},
                                {"name": "price", "type": "numeric(10,2)"},
                            ],
                        }
                    }
                },
            }
        },
    )

    name: str = Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")
    type: SourceType
    options: Options = Field(description="options of the type, see its page in the documentation")


class ChangeSource(BaseModel):
    """Other options of a source; relations that views read must not change."""

    model_config = ConfigDict(extra="forbid")

    options: Options


class ResetSource(BaseModel):
    """Where a relation is to be read from."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"relation": "clicks", "start": "earliest"}}
    )

    relation: str
    start: Any = Field(
        description='as in the options of the type: of Kafka "earliest", "latest", '
        '{"timestamp": ...} or {"offsets": {...}}'
    )


class ResetState(BaseModel):
    """How far a reset is. waits_for: views that are not paused yet; call again until there is none.

    views: those that read the relation; they are built again once it is done.
    """

    views: list[str]
    waits_for: list[str]


class GrantSource(BaseModel):
    """Who may read a source, or one relation of it."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"role": "sales", "relation": "products"}}
    )

    role: Text = Field(min_length=1, description='a role of the sink; "public": every role')
    relation: Text = Field(default="", description="by default all relations, also later ones")


class GrantModel(BaseModel):
    """A grant of a source."""

    relation: str | None = Field(description="null: all relations, also later ones")
    role: str = Field(description='a role of the sink; "public": every role')
    granted_by: str = Field(description="a role, or the name of a token")
    granted_at: str


class DiscoverSource(BaseModel):
    """Options of a source whose relations lack columns."""

    model_config = ConfigDict(extra="forbid")

    type: SourceType
    options: Options


class Discovered(BaseModel):
    """The options with proposed columns, to review and send to POST /sources."""

    options: dict[str, Any]


class RelationModel(BaseModel):
    """A relation of a source."""

    name: str
    fields: list[FieldModel]
    key: list[str]
    append_only: bool = Field(description="rows are only ever added")
    views: list[str] = Field(description="the views that read it")
    dead_letters: int = Field(description="number of dead letters (malformed records)")


class SourceModel(BaseModel):
    """A source with its current status."""

    name: str
    type: str
    options: dict[str, Any]
    relations: list[RelationModel]
    status: str = Field(description="running; retrying: unreachable; stopped: needs your action")
    error: ProblemModel | None = None
    rows_read: int = Field(description="since the pipeline started")
    lag: int | None = Field(description="unread records, estimated; null if no view reads it")
    positions: dict[str, Any] = Field(description="position of each relation visible in the sink")
    declared_by: str | None = Field(
        default=None, description="the role that declared it; null: the service"
    )
    grants: list[GrantModel] = Field(
        default=[], description="who may read its rows, besides its declarer and the service"
    )
    created_at: str


class SourceList(BaseModel):
    """Sources ordered by name. next: `after` of the next page; null at the end."""

    sources: list[SourceModel]
    next: str | None = None


class DeadLetterModel(BaseModel):
    """A malformed record: as text as far as possible, and whole in base64."""

    source: str
    relation: str
    position: str = Field(description="partition:offset, or path:line")
    place: str = Field(
        description="earlier name of `position`, for one release",
        json_schema_extra={"deprecated": True},
    )
    group: str = Field(description="the group of views that reads the source")
    code: str
    reason: str
    key: str | None
    key_base64: str | None
    value: str | None
    value_base64: str | None
    desired: str | None = Field(description="retry or drop, if requested")
    first_seen: str


class DeadLetterList(BaseModel):
    """Dead letters by source, relation and position. The last position is `after` of the next
    page.
    """

    dead_letters: list[DeadLetterModel]


class ChooseDeadLetters(BaseModel):
    """A choice of dead letters: of a source, of a relation, or some positions of a relation."""

    model_config = ConfigDict(extra="forbid")

    source: Text
    relation: Text = ""
    positions: list[Text] = []
    places: list[Text] = Field(
        default=[],
        description="earlier name of `positions`, for one release",
        json_schema_extra={"deprecated": True},
    )


class Chosen(BaseModel):
    """The number of chosen records; they disappear once they are rows, or dropped."""

    count: int
