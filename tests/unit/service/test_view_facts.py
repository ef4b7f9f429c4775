"""Oracle: docs/DDL.md: what the catalog tells of a view is what it was planned over last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectors.postgres.analysis.table_names import KnownNames, TableNames
from connectors.postgres.catalog.catalog import ViewRow
from connectors.sink import SinkTable
from dataflow.plan.nodes import Scan, ViewPlan
from dataflow.schema import Field, Relation, RelationName, stored
from dataflow.types import INT4, INT8
from service.engine import output_fields
from service.engine.definition import ViewDefinition
from service.views.name_tracking import names_in
from service.views.plan_facts import plan_facts
from service.views.requested_changes import table_of
from service.views.view_facts import changed_facts

COLUMN = Field("id", INT4, False)
NAMES = KnownNames("one", (TableNames(7, "public", "things", ((1, "id"),)),))


def planned(query: str = "SELECT id FROM things", **changes: Any) -> ViewDefinition:
    """A view of one table."""
    relation = Relation(RelationName("source", "public", "things"), 7, (COLUMN,), (0,))
    plan = ViewPlan(Scan(relation, (0,), (COLUMN,)), (0,), warnings=("said of the plan",))
    table = SinkTable("public", "v", (COLUMN,), (0,))
    found = ViewDefinition("1", table, query, plan, names=NAMES)
    return replace(found, **changes)


def row_of(definition: ViewDefinition) -> ViewRow:
    """What the catalog has of it since it was asked for."""
    return ViewRow(
        "public",
        "v",
        definition.query,
        "1",
        key=["id"],
        fields=output_fields.to_json(stored(definition.table.fields)),
        plan=plan_facts(definition, None) | {"estimate": {"rows": 3}},
        options={"backfill": "local"},
        warnings=["said of the plan", "said when it was asked for"],
    )


def test_nothing_is_reported_of_what_is_known() -> None:
    assert changed_facts(planned(), row_of(planned())) == {}


@pytest.mark.parametrize(
    "now",
    [
        planned("SELECT id FROM things_1"),
        planned(table=SinkTable("public", "v", (replace(COLUMN, is_nullable=True),), (0,))),
        planned(table=SinkTable("public", "v", (replace(COLUMN, type=INT8),), (0,))),
        # Another table of that name, and another column of it.
        planned(names=replace(NAMES, tables=(replace(NAMES.tables[0], oid=8),))),
        planned(names=replace(NAMES, tables=(replace(NAMES.tables[0], columns=((2, "id"),)),))),
    ],
    ids=["query", "may be NULL", "type", "table", "column"],
)
def test_earlier_reports_in_the_catalog_are_repeated(now: ViewDefinition) -> None:
    facts = changed_facts(now, row_of(planned()))
    assert facts["query"] == now.query
    assert facts["plan"]["estimate"] == {"rows": 3}, "it is from when the view was asked for"
    assert names_in(facts["plan"]) == now.names
    assert facts["options"] == {"backfill": "local"}


def test_another_instant_is_reported_and_the_earlier_report_stays() -> None:
    """A view that is built again has now() of then; what was said when it was asked for holds."""
    moment = replace(planned().plan, pinned=(("now()", "2026-11-25"),))
    now = planned(plan=moment)
    row = row_of(planned())
    facts = changed_facts(now, row)
    assert facts["plan"]["pinned"] == {"now()": "2026-11-25"}
    assert "warnings" not in facts
    known = replace(row, plan=facts["plan"])
    assert table_of(known) == now.table
    assert changed_facts(now, known) == {}
