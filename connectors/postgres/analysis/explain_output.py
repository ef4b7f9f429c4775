"""What EXPLAIN (FORMAT JSON) says of a query, taken apart. Source: PostgreSQL manual, "EXPLAIN"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def relations_scanned(plan: Any) -> Iterator[tuple[str, str]]:
    """(schema, name) of what a plan of EXPLAIN (FORMAT JSON) scans, wherever it stands."""
    if isinstance(plan, list):
        for part in plan:
            yield from relations_scanned(part)
    elif isinstance(plan, dict):
        if "Relation Name" in plan:
            yield plan.get("Schema", ""), plan["Relation Name"]
        for part in plan.values():
            yield from relations_scanned(part)
