"""The entry point: from the user's query to a view's plan.

PostgreSQL analyzes the query, the binder builds a plan of its canonical form, rules rewrite the
plan, and its invariants are checked. Invariant: every refusal happens here, before any part of a
view exists.
"""

from __future__ import annotations

from dataflow.errors import InvariantError, SourceError, SqlError
from dataflow.lexer import find_words, one_query
from dataflow.plan.check import check_plan
from dataflow.plan.explain import evaluated_in_postgres, in_postgres
from dataflow.plan.nodes import Plan, ViewPlan
from dataflow.plan.properties.view_key import tightened, view_key
from dataflow.plan.walk import nodes_of
from dataflow.sql.bind.analysis import Analysis, Analyzer
from dataflow.sql.bind.binder import bind_query
from dataflow.sql.bind.collations import check_collations
from dataflow.sql.bind.join_keys import check_join_keys
from dataflow.sql.bind.relations import renamed
from dataflow.sql.bind.rounds import check_recursions
from dataflow.sql.bind.routines import check_moments, check_routines
from dataflow.sql.bind.scope import Context, NotInScope
from dataflow.sql.bind.search_cycle import check_records
from dataflow.sql.parse.canonical_form import parse
from dataflow.sql.rules import rewrite
from dataflow.types import UTC


def plan_view(query: str, analyzer: Analyzer) -> ViewPlan:
    """Return the plan of a view.

    Raise SqlError if the query is invalid (with PostgreSQL's message and position) or cannot be
    maintained, SourceError if a relation cannot be replicated. analyzer must be open during the
    call.
    """
    analysis = analyzer.analyze(one_query(query))
    context = Context(analyzer, analysis.text, query).calling(analysis)
    check_routines(context, analysis)
    check_moments(context, analysis.text)
    try:
        plan = bind_query(context, parse(analysis.text))
    except NotInScope as error:
        raise context.refuse(
            f'the column "{error}" cannot be followed', "select columns of tables and views"
        ) from error
    except SourceError as error:
        if error.position is None and error.what.count('"') >= 2:
            error.position = find_words(query, [error.what.split('"')[1].split(".")[-1]])
        raise
    plan = with_fields(plan, analysis)
    check_plan(plan)
    root = rewrite(plan)
    check_plan(root)
    check_join_keys(query, root)
    check_recursions(root)
    check_records(context, root)
    check_collations(analyzer, root)
    _check_texts(root, analyzer.time_zone)
    if root.fields != plan.fields:
        raise InvariantError("sql.plan", "a rule changed the fields of a view")
    root = tightened(root)
    return ViewPlan(
        root,
        view_key(root),
        tuple(context.warnings),
        evaluated_in_postgres(root),
        tuple(context.pinned.items()),
        analyzer.time_zone,
        row_types=tuple(context.row_types.values()),
    )


def _check_texts(root: Plan, time_zone: str) -> None:
    """Refuse values of users' types that PostgreSQL computes in a time zone: their text may show
    it."""
    if time_zone == UTC:
        return
    for node in nodes_of(root):
        for found in in_postgres(node):
            if found.type.is_users and not found.type.is_enum:
                raise SqlError(
                    "sql.time_zone",
                    f"a value of type {found.type.name} may show the time zone it is computed in",
                    detail=f'options.time_zone is "{time_zone}"; PostgreSQL computes {found.sql}',
                    hint="select its fields, or cast it to a built-in type",
                )


def with_fields(plan: Plan, analysis: Analysis) -> Plan:
    """Return the plan under the exact names of the analysis; check its types against
    PostgreSQL's."""
    for ours, theirs in zip(plan.fields, analysis.fields, strict=True):
        # The plan's collation is used: a maintained view keeps the one it was created with.
        if (ours.type.name, ours.type.kind) != (theirs.type.name, theirs.type.kind):
            raise InvariantError(
                "sql.plan",
                f'the column "{theirs.name}" is {theirs.type.name}, planned as {ours.type.name}',
            )
    return renamed(plan, [f.name for f in analysis.fields])
