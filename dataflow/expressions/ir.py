"""Scalar expressions, typed by PostgreSQL, as the plan carries them.

Every node has the SqlType that PostgreSQL gave it. An expression with a native kernel is a `Call`;
everything else is one `InPostgres` over plain columns, evaluated in batches by the database that
analyzed the view. Frozen and picklable: the pipeline and Spark compile the same tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dataflow.frozen import caches_hash
from dataflow.types import SqlType


@caches_hash
@dataclass(frozen=True)
class ColumnRef:
    """The input column at `index`; for a join condition the right columns follow the left ones."""

    index: int
    type: SqlType
    name: str = ""


@caches_hash
@dataclass(frozen=True)
class Literal:
    """A constant. text is PostgreSQL's text output of it, None for NULL."""

    text: str | None
    type: SqlType


@caches_hash
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


@caches_hash
@dataclass(frozen=True)
class InPostgres:
    """A subtree computed by PostgreSQL: sql with $1, $2 ... standing for the arguments.

    is_stable: it calls a stable function, whose result may differ at the next call. may_change: it
    calls a user-defined function, which its owner may replace.
    """

    sql: str
    arguments: tuple[Expression, ...]
    type: SqlType
    is_stable: bool = False
    may_change: bool = False


@caches_hash
@dataclass(frozen=True)
class OuterRef:
    """A column of the left row that an Apply passes to its right side. Level 0 is the nearest
    enclosing Apply, 1 the next one. A plan to be lowered has none."""

    level: int
    index: int
    type: SqlType
    name: str = ""


Expression = ColumnRef | Literal | Call | InPostgres | OuterRef


def children(expression: Expression) -> tuple[Expression, ...]:
    """Return the arguments of a node; () for a leaf."""
    return expression.arguments if isinstance(expression, Call | InPostgres) else ()


CHAIN = "chain "


def chain_of(
    first: Expression, operators: Sequence[str], arguments: Sequence[Expression]
) -> Expression:
    """Return a chain: the first value, then each operator with the next argument, all of the first
    one's type."""
    if not operators:
        return first
    if len(operators) == 1:
        return Call(operators[0], (first, arguments[0]), first.type)
    return Call(CHAIN + " ".join(operators), (first, *arguments), first.type)


def links_of(function: str) -> list[str]:
    """Return the operators of a chain; [] for another function.

    >>> links_of("chain + -"), links_of("+")
    (['+', '-'], [])
    """
    return function.split()[1:] if function.startswith(CHAIN) else []


def columns_of(expression: Expression) -> set[int]:
    """Return the input positions that an expression reads."""
    if isinstance(expression, ColumnRef):
        return {expression.index}
    return set().union(*(columns_of(child) for child in children(expression)))


def map_leaves(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return the expression with `change` applied to every column, outer reference and literal."""
    if isinstance(expression, Call | InPostgres):
        arguments = tuple(map_leaves(a, change) for a in expression.arguments)
        return replace(expression, arguments=arguments)
    return change(expression)


def remap(expression: Expression, position: dict[int, int]) -> Expression:
    """Return the same expression over an input whose column i now stands at position[i]."""

    def moved(leaf: Expression) -> Expression:
        if isinstance(leaf, ColumnRef):
            return ColumnRef(position[leaf.index], leaf.type, leaf.name)
        return leaf

    return map_leaves(expression, moved)


def substitute(expression: Expression, inputs: tuple[Expression, ...]) -> Expression:
    """Return the expression with every column reference i replaced by inputs[i]."""
    return map_leaves(expression, lambda e: inputs[e.index] if isinstance(e, ColumnRef) else e)
