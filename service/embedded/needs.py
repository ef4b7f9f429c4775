"""What the views of a database read of functions, as its catalog says.

Invariant: a view of which that is not known reads everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.postgres.embedded.function_tables import SCHEMA
from connectors.postgres.session.session import Session
from connectors.python.conditions import Condition, Wish, agreed, read_condition
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
    """One maintained view. table: where its rows are, a hidden one for a bag; wishes: by function,
    None: everything; parents: the views that it reads itself."""

    schema: str
    name: str
    table: str
    wishes: Mapping[str, Wish | None]
    parents: tuple[tuple[str, str], ...]


def read_views(session: Session) -> list[ReadView]:
    """All views that there are."""
    found = []
    for schema, name, table, asks, parents, reads in session.rows(_VIEWS):
        wishes: dict[str, Wish | None] = {}
        if asks is None:  # made by a version that did not tell
            wishes = {relation: None for _, relation in reads}
        else:
            wishes |= wishes_of(asks)
        found.append(ReadView(schema, name, table, wishes, tuple((s, n) for s, n in parents)))
    return found


def need_of(wishes: Sequence[Wish | None], columns: Sequence[str]) -> Wish | None:
    """What serves all readers of a function; None when there are none."""
    if any(wish is None for wish in wishes):
        return Wish(tuple(columns))
    return agreed([w for w in wishes if w is not None], columns)


def wishes_of(asks: Iterable[Mapping[str, Any]]) -> dict[str, Wish]:
    """What a plan asks of each function (`service.views.plan_facts.asks_facts`)."""
    found = {}
    for asked in asks:
        if asked["schema"] == SCHEMA:
            conditions = [read_condition(c) for c in asked["conditions"]]
            simple: tuple[Condition, ...] = tuple(c for c in conditions if c is not None)
            found[asked["name"]] = Wish(tuple(asked["columns"]), simple)
    return found


def functions_below(views: Sequence[ReadView], tables: Iterable[tuple[str, str]]) -> set[str]:
    """The functions that the views with these tables read, themselves or through others."""
    by_name = {(v.schema, v.name): v for v in views}
    tables = set(tables)
    todo = [v for v in views if (v.schema, v.table) in tables]
    visited: set[tuple[str, str]] = set()
    found: set[str] = set()
    while todo:
        view = todo.pop()
        if (view.schema, view.name) not in visited:
            visited.add((view.schema, view.name))
            found |= view.wishes.keys()
            todo += [by_name[p] for p in view.parents if p in by_name]
    return found
