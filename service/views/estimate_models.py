"""Pydantic models of an estimate."""

from __future__ import annotations

from pydantic import BaseModel, Field


class StateModel(BaseModel):
    """One arrangement on disk: of a base table, or of an operator of the plan."""

    operator: str
    rows: int
    bytes: int


class EffectModel(BaseModel):
    """The average effect of one inserted or deleted row; an update is two of them."""

    rows_out: float = Field(description="rows of the view that change")
    rows_touched: float = Field(description="rows read or passed between operators")


class RiskModel(BaseModel):
    """An operator that may be expensive."""

    operator: str
    why: str
    hint: str


class Estimate(BaseModel):
    """What a view would cost; docs/ESTIMATE.md states how accurate this is."""

    source_rows: int = Field(description="rows to be read")
    output_rows: int = Field(description="rows of the view")
    stepped_rows: int = Field(0, description="rows passed between operators")
    state_bytes: int = Field(description="on the service's disk")
    state: list[StateModel] = []
    largest_rows: int = Field(0, description="rows of the largest part of the plan")
    largest_operator: str = Field("", description="the operator of that part")
    backfill_s: float
    engine: str = Field("", description="engine of the backfill: local or spark")
    road: str = Field(
        "",
        description="earlier name of `engine`, for one release",
        json_schema_extra={"deprecated": True},
    )
    engine_s: dict[str, float] = Field(
        default={}, description="seconds of the backfill by each engine that can be used"
    )
    engine_reason: str = Field("", description="why this engine: the figures and what is short")
    speed: float = Field(1.0, description="of this machine, relative to the calibration machine")
    amplification: dict[str, EffectModel] = Field(description="by base table")
    risks: list[RiskModel]
    notes: list[str] = Field(default=[], description="which figures are uncertain")
