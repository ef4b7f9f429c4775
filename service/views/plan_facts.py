"""What the catalog stores of a view's plan: for people, the console and later estimates.

Invariant: facts may be added; a row of an earlier version lacks the newer ones.
"""

from __future__ import annotations

from typing import Any

from dataflow.plan.explain import explain_text, explain_tree, expression_text
from dataflow.plan.nodes import ViewPlan
from dataflow.plan.properties.pushdown_requirements import PushedCondition, requirements_of
from dataflow.schema import VIEW_SOURCE
from dataflow.sharing import planned_nodes
from dataflow.sql.lower.lowering import lower
from service.engine.engine import ViewDefinition
from service.views.estimate_models import Estimate
from service.views.name_tracking import names_facts


def plan_facts(definition: ViewDefinition, estimate: Estimate | None) -> dict[str, Any]:
    """Return the `plan` column of tidemark.views. estimate: the one at creation."""
    plan = definition.plan
    return {
        "estimate": None if estimate is None else estimate.model_dump(exclude={"state"}),
        "text": explain_text(plan),
        "tree": explain_tree(plan),
        "nodes": planned_nodes(lower(plan.root)),
        "in_postgres": list(plan.evaluates),
        "reads": [[r.name.source, r.name.name] for r in definition.relations()],
        "asks": requirement_facts(plan),
        "names": names_facts(definition.names),
        "parents": [[p.schema, p.name] for p in definition.views_named()],
    }


def requirement_facts(plan: ViewPlan) -> list[dict[str, Any]]:
    """Return what a plan reads of each base relation, for `service/api/source_reads.py`."""
    return [
        {
            "source": required.relation.source,
            "schema": required.relation.schema,
            "name": required.relation.name,
            "columns": list(required.columns),
            "conditions": [_condition_facts(c) for c in required.conditions],
            "unread_columns": list(required.unread),
            "filters": [
                {
                    "sql": expression_text(f.predicate, f.fields),
                    "condition": None if f.condition is None else _condition_facts(f.condition),
                    "why_not": f.why_not,
                }
                for f in required.filters
            ],
        }
        for required in requirements_of(plan.root)
        if required.relation.source != VIEW_SOURCE
    ]


def _condition_facts(condition: PushedCondition) -> dict[str, Any]:
    return {
        "column": condition.column,
        "operator": condition.operator,
        "kind": condition.kind,
        "values": list(condition.values),
    }
