"""The result of a verification, as a pydantic model.

What was left out of both answers is always said: rows, and windows that are frozen.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class HistoryModel(BaseModel):
    """How a view's history compares with the view's table, in the snapshot of the comparison."""

    rows: int = Field(description="rows of the history, current and past ones")
    missing: int = Field(description="rows of the view that the history does not call current")
    surplus: int = Field(description="current rows of the history that the view lacks")
    different: int = Field(description="current rows whose key is in both, with other values")
    periods: int = Field(description="rows that end before they begin, or contradict their clocks")
    overlaps: int = Field(description="rows that begin before another one of their key has ended")
    examples: list[dict[str, Any]] = Field(
        default=[],
        description='wrong rows: "kind", "key", "expected" of the view, "found" in the history',
    )

    @property
    def described(self) -> str:
        """Return how many rows are wrong, by kind; "" if none is."""
        counts = self.model_dump(exclude={"rows", "examples"})
        return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


class VerificationModel(BaseModel):
    """How a view compares with PostgreSQL's answer to its query, at the view's position.

    result: "equal"; "different"; or "open": rows differ, but PostgreSQL has several correct answers
    to the query, for the given reasons. A history that is wrong makes it "different".
    """

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "view": "public.revenue",
                "result": "different",
                "rows": 4,
                "missing": 0,
                "surplus": 0,
                "different": 1,
                "alike": 0,
                "examples": [
                    {
                        "kind": "different",
                        "key": {"region": "north"},
                        "expected": {"region": "north", "revenue": "200.50"},
                        "found": {"region": "north", "revenue": "0.00"},
                    }
                ],
                "reasons": [],
                "positions": {"source": "0/1A2B3C8"},
                "took_ms": 41.7,
                "at": "2026-01-31T12:00:00+00:00",
            }
        }
    )

    view: str
    result: Literal["equal", "different", "open"]
    rows: int = Field(description="rows of the view, all of them compared")
    missing: int = Field(description="rows of PostgreSQL's answer that the view lacks")
    surplus: int = Field(description="rows of the view that are not in PostgreSQL's answer")
    different: int = Field(description="rows whose key is in both, with other values")
    alike: int = Field(description="rows equal in value, printed in another form (1.5 and 1.50)")
    examples: list[dict[str, Any]] = Field(
        default=[], description='differing rows: "kind", "key", "expected", "found", as texts'
    )
    left_out: int = Field(
        default=0, description="source rows left out of both: failing ones, and late ones"
    )
    retained_since: str | None = Field(
        default=None, description="windows that begin before it are frozen, and not compared"
    )
    history: HistoryModel | None = Field(
        default=None, description="findings in the view's history; none without a history"
    )
    reasons: list[str] = Field(default=[], description="why PostgreSQL may return other rows")
    positions: dict[str, str] = Field(description="position of the comparison, by source")
    took_ms: float
    at: str
