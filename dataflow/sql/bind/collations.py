"""Comparisons without a determinable collation: PostgreSQL fails once there are rows to compare.

The query compares columns of different collations without naming one. Such a view would fail long
after its creation, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from dataflow.expressions.sql_text import with_arguments
from dataflow.plan.explain import in_postgres
from dataflow.plan.nodes import Plan
from dataflow.plan.walk import nodes_of
from dataflow.sql.bind.analysis import Analyzer
from dataflow.types import SqlType


def is_mixed(types: Iterable[SqlType]) -> bool:
    """Return whether values of these types have more than one collation beside the default."""
    return len({type.collation for type in types} - {""}) > 1


def check_collations(analyzer: Analyzer, root: Plan) -> None:
    """Raise SqlError for expressions that fail in PostgreSQL whatever their values."""
    for node in nodes_of(root):
        for expression in in_postgres(node):
            types = [a.type for a in expression.arguments]
            if is_mixed(types):
                sql = with_arguments(expression.sql, lambda i: f"c{i}")
                analyzer.check_collations(types, [sql])
