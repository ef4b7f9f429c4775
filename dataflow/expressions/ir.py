"""Scalar expressions, typed by PostgreSQL, as the plan carries them.

Every node knows its SqlType, as PostgreSQL answered it. What has a native kernel is a `Call`;
everything else is one `InPostgres` over plain columns, evaluated in batches by the database that
analyzed the view. Frozen and picklable: the same tree is compiled in the pipeline and in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dataflow.frozen import keeps_hash
from dataflow.types import SqlType


@keeps_hash
@dataclass(frozen=True)
class ColumnRef:
    """The input column at `index`; for a join condition the right columns follow the left ones."""

    index: int
    type: SqlType
    name: str = ""


@keeps_hash
@dataclass(frozen=True)
class Literal:
    """A constant. text is PostgreSQL's text output of it, None for NULL."""

    text: str | None
    type: SqlType


@keeps_hash
@dataclass(frozen=True)
class Call:
    """A function, operator or cast that has a native kernel.

    function is the kernel's name: an operator as written ("+", "=", "and", "is null"), a function
    name as in pg_proc ("lower"), "cast" (to `type`), "in" (first argument in the rest), "like",
    "case" (when, then, when, then, ..., else), "coalesce", "extract" (first argument a text
    literal), "key form" (see expressions.keys), "chain" and operators, "chain + -": the first
    argument, then each operator with the next one, from left to right, all of type `type`.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: SqlType


@keeps_hash
@dataclass(frozen=True)
class InPostgres:
    """A subtree computed by PostgreSQL: sql with $1, $2 ... standing for the arguments.

    is_stable: it calls a stable function, whose result need not be the same a second time.
    may_change: it calls what somebody has made and may replace.
    """

    sql: str
    arguments: tuple[Expression, ...]
    type: SqlType
    is_stable: bool = False
    may_change: bool = False


@keeps_hash
@dataclass(frozen=True)
class OuterRef:
    """A column of the row that an Apply gives its right side: level 0 of the nearest Apply around,
    1 of the one around that. None is left when a plan is lowered."""

    level: int
    index: int
    type: SqlType
    name: str = ""


Expression = ColumnRef | Literal | Call | InPostgres | OuterRef


def children(expression: Expression) -> tuple[Expression, ...]:
    """The arguments of a node; () for a leaf."""
    return expression.arguments if isinstance(expression, Call | InPostgres) else ()


CHAIN = "chain "


def chain_of(
    first: Expression, operators: Sequence[str], arguments: Sequence[Expression]
) -> Expression:
    """The first value, then each operator with the next argument: all of the first one's type."""
    if not operators:
        return first
    if len(operators) == 1:
        return Call(operators[0], (first, arguments[0]), first.type)
    return Call(CHAIN + " ".join(operators), (first, *arguments), first.type)


def links_of(function: str) -> list[str]:
    """The operators of a chain; [] for another function.

    >>> links_of("chain + -"), links_of("+")
    (['+', '-'], [])
    """
    return function.split()[1:] if function.startswith(CHAIN) else []


def columns_of(expression: Expression) -> set[int]:
    """The input positions that an expression reads."""
    if isinstance(expression, ColumnRef):
        return {expression.index}
    return set().union(*(columns_of(child) for child in children(expression)))


def map_leaves(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The expression with `change` applied to every column, outer reference and literal."""
    if isinstance(expression, Call | InPostgres):
        arguments = tuple(map_leaves(a, change) for a in expression.arguments)
        return replace(expression, arguments=arguments)
    return change(expression)


def remap(expression: Expression, position: dict[int, int]) -> Expression:
    """The same expression over an input whose column i now stands at position[i]."""

    def moved(leaf: Expression) -> Expression:
        if isinstance(leaf, ColumnRef):
            return ColumnRef(position[leaf.index], leaf.type, leaf.name)
        return leaf

    return map_leaves(expression, moved)


def substitute(expression: Expression, inputs: tuple[Expression, ...]) -> Expression:
    """The expression with every column reference i replaced by inputs[i]."""
    return map_leaves(expression, lambda e: inputs[e.index] if isinstance(e, ColumnRef) else e)
