"""Joins by an equality that has no key form are refused by name.

Such a join would compare every left row with every right row in PostgreSQL. If another equality is
a key, it is an ordinary condition.
"""

from __future__ import annotations

import re

from dataflow.errors import Position, SqlError
from dataflow.expressions.ir import ColumnRef, Expression, InPostgres, columns_of
from dataflow.expressions.keys import key_form
from dataflow.lexer import find_words
from dataflow.plan.nodes import Join, Plan, SemiJoin
from dataflow.plan.trees import conjuncts
from dataflow.plan.walk import nodes_of
from dataflow.sql.bind.grouping import KEY_HINT, shown_type

_SIDE = r"\(*\$\d(?:(?! OR | AND )[^=<>])*"
_EQUALITY = re.compile(rf"{_SIDE} (?:=|OPERATOR\([^()]*\.=\)) {_SIDE}")


def check_join_keys(query: str, plan: Plan) -> None:
    """Raise SqlError sql.not_maintained for a join whose only equalities have no key form."""
    for node in nodes_of(plan):
        if isinstance(node, Join | SemiJoin) and not node.left_keys:
            _check_join(query, node)


def _check_join(query: str, plan: Join | SemiJoin) -> None:
    n = len(plan.left.fields)
    for part in conjuncts(plan.residual):
        if _is_equality(part, n):
            sides = [e for e in part.arguments if isinstance(e, ColumnRef)]  # type: ignore[union-attr]
            unknown = [s for s in sides if key_form(s) is None]
            shown = shown_type(unknown[0]) if unknown else "an equality under this collation"
            raise SqlError(
                "sql.not_maintained",
                f"{shown} is not maintained as a join key",
                hint=KEY_HINT,
                position=_position(query, [s.name for s in sides]),
            )


def _is_equality(part: Expression, n: int) -> bool:
    """Return whether PostgreSQL would compare one value of each input."""
    if not isinstance(part, InPostgres) or len(part.arguments) != 2:
        return False
    if not _EQUALITY.fullmatch(part.sql):
        return False
    a, b = (columns_of(e) for e in part.arguments)
    return bool(a and b) and (max(a) < n <= min(b) or max(b) < n <= min(a))


def _position(query: str, names: list[str]) -> Position | None:
    """Return the position of the equality if the text has it, else of the word that implies it."""
    for words in (*((n, "=") for n in names), ("using",), ("in", "("), ("exists",)):
        found = find_words(query, words)
        if found is not None:
            return found
    return None
