"""What the views of a database need of functions, from its catalog.

Invariant: a view whose catalog row lacks this is assumed to read everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.postgres.embedded.function_tables import SCHEMA
from connectors.postgres.session.session import Session
from connectors.python.conditions import Condition, Requirement, agreed, read_condition
from service.views.lifecycle import DesiredState, ViewState

_VIEWS = f"""
SELECT v.schema, v.name, coalesce(c.relname, v.name), v.plan -> 'asks',
    coalesce(v.plan -> 'parents', '[]'), coalesce(v.plan -> 'reads', '[]')
FROM tidemark.views AS v
LEFT JOIN tidemark.tables AS t ON t.schema = v.schema AND t.name = v.name AND NOT t.is_staged
LEFT JOIN pg_class AS c ON c.oid = t.table_oid
WHERE v.desired <> '{DesiredState.DROPPED}' AND v.status <> '{ViewState.DROPPING}'
"""


@dataclass(frozen=True)
class ReadView:
    """One maintained view. table: with its rows, hidden for a multiset view. requirements: by
    function; None: everything. parents: the views that it reads directly."""

    schema: str
    name: str
    table: str
    requirements: Mapping[str, Requirement | None]
    parents: tuple[tuple[str, str], ...]


def read_views(session: Session) -> list[ReadView]:
    """Return all maintained views."""
    found = []
    for schema, name, table, facts, parents, reads in session.rows(_VIEWS):
        requirements: dict[str, Requirement | None] = {}
        if facts is None:  # created by a version that did not record it
            requirements = {relation: None for _, relation in reads}
        else:
            requirements |= requirements_of(facts)
        found.append(ReadView(schema, name, table, requirements, tuple((s, n) for s, n in parents)))
    return found


def need_of(
    requirements: Sequence[Requirement | None], columns: Sequence[str]
) -> Requirement | None:
    """Return the requirement that covers all readers of a function; None without readers."""
    if any(required is None for required in requirements):
        return Requirement(tuple(columns))
    return agreed([r for r in requirements if r is not None], columns)


def requirements_of(reads: Iterable[Mapping[str, Any]]) -> dict[str, Requirement]:
    """Return what a plan needs of each function (`plan_facts.requirement_facts`)."""
    found = {}
    for read in reads:
        if read["schema"] == SCHEMA:
            conditions = [read_condition(c) for c in read["conditions"]]
            simple: tuple[Condition, ...] = tuple(c for c in conditions if c is not None)
            found[read["name"]] = Requirement(tuple(read["columns"]), simple)
    return found


def functions_below(views: Sequence[ReadView], tables: Iterable[tuple[str, str]]) -> set[str]:
    """Return the functions that the views with these tables read, directly or through views."""
    by_name = {(v.schema, v.name): v for v in views}
    tables = set(tables)
    todo = [v for v in views if (v.schema, v.table) in tables]
    visited: set[tuple[str, str]] = set()
    found: set[str] = set()
    while todo:
        view = todo.pop()
        if (view.schema, view.name) not in visited:
            visited.add((view.schema, view.name))
            found |= view.requirements.keys()
            todo += [by_name[p] for p in view.parents if p in by_name]
    return found
