"""What an estimate says, as pydantic models."""

from __future__ import annotations

from pydantic import BaseModel, Field


class StateModel(BaseModel):
    """One arrangement on disk: of a base table, or of an operator of the plan."""

    operator: str
    rows: int
    bytes: int


class EffectModel(BaseModel):
    """What one inserted or deleted row sets off, on average; an update is two of them."""

    rows_out: float = Field(description="rows of the view that change")
    rows_touched: float = Field(description="rows that are looked at or passed on inside")


class RiskModel(BaseModel):
    """An operator that may be dear."""

    operator: str
    why: str
    hint: str


class Estimate(BaseModel):
    """What a view would cost; docs/ESTIMATE.md says how far from the truth this is."""

    source_rows: int = Field(description="rows to be read")
    output_rows: int = Field(description="rows of the view")
    state_bytes: int = Field(description="on the service's disk")
    state: list[StateModel] = []
    largest_rows: int = Field(0, description="rows of the part of the plan with the most")
    largest_operator: str = Field("", description="which part that is")
    backfill_s: float
    engine: str = Field("", description="engine of the backfill: local or spark")
    road: str = Field(
        "",
        description="earlier name of `engine`, for one release",
        json_schema_extra={"deprecated": True},
    )
    speed: float = Field(1.0, description="of this machine, beside the one that was measured on")
    amplification: dict[str, EffectModel] = Field(description="by base table")
    risks: list[RiskModel]
    notes: list[str] = Field(default=[], description="what is known badly")
