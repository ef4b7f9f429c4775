"""The result of a verification, as a pydantic model.

What was left out of both answers is always said: rows, and windows that are frozen.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class VerificationModel(BaseModel):
    """How a view compares with PostgreSQL's answer to its query, at the view's position.

    result: "equal"; "different"; or "open": rows differ, but PostgreSQL has several correct answers
    to the query, for the given reasons.
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
    reasons: list[str] = Field(default=[], description="why PostgreSQL may return other rows")
    positions: dict[str, str] = Field(description="position of the comparison, by source")
    took_ms: float
    at: str
