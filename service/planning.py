"""From a query to a definition: the analyzer with the views it should know, and the planner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dataflow.sql.planner import plan_view

from connectors.postgres.control import ViewRow
from connectors.sink import SinkTable
from service import fields
from service.engine import ViewDefinition

if TYPE_CHECKING:
    from service.parts import Parts


def plan_definition(
    identity: str, name: tuple[str, str], query: str, parts: Parts, rows: Iterable[ViewRow]
) -> ViewDefinition:
    """Plan a query. rows: the catalog, whose views the query may read. SqlError, SourceError."""
    views = {
        (r.schema, r.name): fields.from_json(r.fields)
        for r in rows
        if r.fields and (r.schema, r.name) != name
    }
    with parts.analyzer(views) as analyzer:
        plan = plan_view(query, analyzer)
    return ViewDefinition(identity, SinkTable(*name, plan.root.fields, plan.key), query, plan)
