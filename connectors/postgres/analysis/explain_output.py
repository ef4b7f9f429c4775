"""Read the output of EXPLAIN (FORMAT JSON). Source: PostgreSQL manual, "EXPLAIN"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def relations_scanned(plan: Any) -> Iterator[tuple[str, str]]:
    """Yield (schema, name) of each relation that a plan of EXPLAIN (FORMAT JSON) scans, at any
    depth."""
    if isinstance(plan, list):
        for part in plan:
            yield from relations_scanned(part)
    elif isinstance(plan, dict):
        if "Relation Name" in plan:
            yield plan.get("Schema", ""), plan["Relation Name"]
        for part in plan.values():
            yield from relations_scanned(part)
