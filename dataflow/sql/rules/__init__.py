"""Plan rewrites that preserve the rows: one rule per file, applied in the order of RULES.

A rule is a function from plan to plan. It may rely only on identities that hold for multisets with
NULLs. Invariant: the fields of the root (names, types, nullability in the sink) never change.
"""

from __future__ import annotations

from collections.abc import Callable

from dataflow.plan.nodes import Plan
from dataflow.sql.rules.compute_single import compute_single
from dataflow.sql.rules.connect_joins import connect_joins
from dataflow.sql.rules.decorrelate import decorrelate
from dataflow.sql.rules.factor_alternatives import factor_alternatives
from dataflow.sql.rules.find_intervals import find_intervals
from dataflow.sql.rules.find_join_keys import find_join_keys
from dataflow.sql.rules.find_sessions import find_sessions
from dataflow.sql.rules.find_thresholds import find_thresholds
from dataflow.sql.rules.flag_conditions import flag_conditions
from dataflow.sql.rules.limit_crossed import limit_crossed
from dataflow.sql.rules.limit_numbered import limit_numbered
from dataflow.sql.rules.merge_projects import merge_projects
from dataflow.sql.rules.prune_columns import prune_columns
from dataflow.sql.rules.push_filters import push_filters
from dataflow.sql.rules.push_on_conditions import push_on_conditions
from dataflow.sql.rules.remember_stable import remember_stable
from dataflow.sql.rules.separate_scans import separate_scans
from dataflow.sql.rules.sink_functions import sink_functions
from dataflow.sql.rules.strengthen_joins import strengthen_joins

RULES: tuple[Callable[[Plan], Plan], ...] = (
    decorrelate,
    separate_scans,
    factor_alternatives,
    merge_projects,
    push_filters,
    strengthen_joins,
    sink_functions,
    merge_projects,
    push_filters,
    connect_joins,
    push_on_conditions,
    push_filters,
    limit_numbered,
    find_join_keys,
    limit_crossed,
    find_thresholds,
    find_sessions,
    flag_conditions,
    compute_single,
    merge_projects,
    prune_columns,
    merge_projects,
    remember_stable,
    find_intervals,
)


def rewrite(plan: Plan) -> Plan:
    """Return the plan after all rules."""
    for rule in RULES:
        plan = rule(plan)
    return plan
