"""Pydantic models of REST for the past of views and its named readers.

Invariant: as in models.py, fields may be added, and requests forbid unknown ones.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.api.models import FieldModel, Whole


class PointModel(BaseModel):
    """A point of a view's past: the newest epoch at it, when that committed at the source, and the
    positions that its rows show."""

    epoch: int
    committed_at: str
    positions: dict[str, Any]


class DifferencePage(BaseModel):
    """Rows that `from` has and `to` lacks (weight -1), or the reverse (1), ordered by key.

    In a multiset view a weight may exceed one. next: `after` of the next page; null at the end.
    """

    model_config = ConfigDict(populate_by_name=True)

    fields: list[FieldModel]
    rows: list[dict[str, Any]]
    weights: list[int]
    begin: PointModel = Field(alias="from", serialization_alias="from")
    end: PointModel = Field(alias="to", serialization_alias="to")
    next: str | None


class CreateSubscription(BaseModel):
    """A named reader of a view. start: the point after which it reads: a time, a position, an
    epoch, or newest."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"name": "billing", "start": "newest"}}
    )

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,63}$")
    start: str = Field("newest", pattern=r"^[ -~]{1,100}$")


class Acknowledge(BaseModel):
    """The epoch that a reader has read completely."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"epoch": 42}})

    epoch: Whole = Field(ge=0, le=2**63 - 1)


class SubscriptionModel(BaseModel):
    """A named reader of a view.

    status: ready, or expired when the changes after its epoch are no longer retained. epoch: what
    it has acknowledged; newest_epoch: what the view shows.
    """

    view: str
    name: str
    status: str
    epoch: int
    newest_epoch: int | None
    oldest_epoch: int | None
    created_by: str
    created_at: str
    acknowledged_at: str


class SubscriptionList(BaseModel):
    """The named readers of a view, by name."""

    subscriptions: list[SubscriptionModel]
