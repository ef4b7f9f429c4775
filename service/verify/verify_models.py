"""The result of a verification, as a pydantic model.

What was left out of both answers is always said: rows, and windows that are frozen.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.verify.clock_check import StandingClock


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


class ClockModel(BaseModel):
    """A clock of a view of now() that has stopped: PostgreSQL's answer has changed since."""

    code: str = "verify.clock_stands"
    source: str = Field(description="the source that is the clock")
    due_by: str = Field(description="a moment by which the clock must have ticked")
    missing: int = Field(description="rows of PostgreSQL's answer at that moment, not at the clock")
    surplus: int = Field(description="rows of its answer at the clock, not at that moment")
    different: int = Field(description="rows whose key is in both answers, with other values")

    @classmethod
    def of(cls, standing: StandingClock) -> ClockModel:
        """Return the model."""
        found = standing.found
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=standing.until_us)
        return cls(
            source=standing.source,
            due_by=at.isoformat(),
            missing=found.missing,
            surplus=found.surplus,
            different=found.different,
        )

    @property
    def described(self) -> str:
        """Return since when the clock must have ticked, and what would differ."""
        counts = self.model_dump(include={"missing", "surplus", "different"})
        rows = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        return f"it had to tick by {self.due_by}: {rows}"


class VerificationModel(BaseModel):
    """How a view compares with PostgreSQL's answer to its query, at the view's position.

    result: "equal"; "different"; or "open": rows differ, but PostgreSQL has several correct answers
    to the query, for the given reasons. A history that is wrong, and a clock that has stopped,
    make it "different".
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
    clock: ClockModel | None = Field(
        default=None, description="the view's clock, if it has stopped beyond its tick"
    )
    reasons: list[str] = Field(default=[], description="why PostgreSQL may return other rows")
    positions: dict[str, str] = Field(description="position of the comparison, by source")
    took_ms: float
    at: str
