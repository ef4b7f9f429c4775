"""What REST takes and answers about sources and dead letters, as pydantic models.

A source's options are its connector's own and read by it alone (docs/SOURCES.md).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.api.models import FieldModel, ProblemModel, Text


def _storable(value: Any) -> Any:
    """Options without texts that the catalog, PostgreSQL's jsonb, has no place for."""
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("a text holds a NUL or half of a surrogate pair")
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
    """A source beside the database: its relations are named `source.relation` in queries."""

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
    type: Literal["kafka", "files", "clock"]
    options: Options = Field(description="as the type's page in the documentation says")


class ChangeSource(BaseModel):
    """Other options of a source; relations that views read must stay what they are."""

    model_config = ConfigDict(extra="forbid")

    options: Options


class DiscoverSource(BaseModel):
    """Options of a source whose relations lack columns."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["kafka", "files", "clock"]
    options: Options


class Discovered(BaseModel):
    """The options with proposed columns, to be looked at and then given to POST /sources."""

    options: dict[str, Any]


class RelationModel(BaseModel):
    """What can be read of a source."""

    name: str
    fields: list[FieldModel]
    key: list[str]
    append_only: bool = Field(description="rows are only ever added")
    views: list[str] = Field(description="the views that read it")
    dead_letters: int = Field(description="records that are not rows")


class SourceModel(BaseModel):
    """A source as it stands."""

    name: str
    type: str
    options: dict[str, Any]
    relations: list[RelationModel]
    status: str = Field(description="running; retrying: away just now; stopped: needs someone")
    error: ProblemModel | None = None
    rows_read: int = Field(description="since the start of the pipeline")
    lag: int | None = Field(description="about how many records were not read yet; null: unread")
    positions: dict[str, Any] = Field(description="how far each relation is visible in the sink")
    created_at: str


class SourceList(BaseModel):
    """Sources by name. next: gives those behind them as `after`; null at the end."""

    sources: list[SourceModel]
    next: str | None = None


class DeadLetterModel(BaseModel):
    """A record that is not a row, whole: as text as far as it is text, and in base64."""

    source: str
    relation: str
    place: str = Field(description="partition:offset, or path:line")
    group: str = Field(description="the group of views that reads the source")
    code: str
    reason: str
    key: str | None
    key_base64: str | None
    value: str | None
    value_base64: str | None
    desired: str | None = Field(description="retry or drop, when that was asked for")
    first_seen: str


class DeadLetterList(BaseModel):
    """Some dead letters, by source, relation and place; `after` of the next page is its last."""

    dead_letters: list[DeadLetterModel]


class ChooseDeadLetters(BaseModel):
    """Which dead letters: of a source, of one relation, some places of one relation."""

    model_config = ConfigDict(extra="forbid")

    source: Text
    relation: Text = ""
    places: list[Text] = []


class Chosen(BaseModel):
    """How many were chosen; they are gone once they are rows, or dropped."""

    count: int
