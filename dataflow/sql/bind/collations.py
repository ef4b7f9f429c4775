"""Comparisons that no collation can be found for: PostgreSQL fails once there are rows to compare.

Two columns of different collations meet and the query names none. Such a view would fail long
after it was made, so it is refused.
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
    """Whether values of these types have more than one collation beside the default."""
    return len({type.collation for type in types} - {""}) > 1


def check_collations(analyzer: Analyzer, root: Plan) -> None:
    """SqlError for what is evaluated in PostgreSQL and fails there whatever its values are."""
    for node in nodes_of(root):
        for expression in in_postgres(node):
            types = [a.type for a in expression.arguments]
            if is_mixed(types):
                sql = with_arguments(expression.sql, lambda i: f"c{i}")
                analyzer.check_collations(types, [sql])
