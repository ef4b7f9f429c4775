"""Compile an expression into nodes that evaluate it, one batch of rows at a time.

Invariant: the result of every row is PostgreSQL's: value, display scale, NULL or error. Compiling
folds constants, so a batch pays only for what depends on its rows. Compiling never evaluates in
PostgreSQL, and evaluating never changes the compiled tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tidemark_native.expressions import blank

from dataflow.delta import KIND_FLOAT, Column
from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import Evaluator, NoEvaluator, RowErrors
from dataflow.expressions.frame import Frame, Value, column_of, expand, value_of
from dataflow.expressions.functions import kernel_for
from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    InPostgres,
    Literal,
    OuterRef,
    links_of,
)
from dataflow.expressions.kernel import Kernel
from dataflow.expressions.nodes import (
    CallNode,
    CaseNode,
    ChainNode,
    CoalesceNode,
    ConstantNode,
    InputNode,
    LogicNode,
    Node,
    PostgresNode,
)
from dataflow.types import SqlType, TypeKind
from dataflow.values import from_text, one_nan


class Compiled:
    """An expression ready to be evaluated; type is its SqlType."""

    __slots__ = ("_column", "_evaluator", "_root", "type")

    def __init__(self, expression: Expression, evaluator: Evaluator) -> None:
        self.type = expression.type
        self._evaluator = evaluator
        self._column = expression.index if isinstance(expression, ColumnRef) else -1
        self._root = build(expression)

    def evaluate(self, columns: Sequence[Column], n: int) -> tuple[Column, RowErrors]:
        """Return the value of each of n rows (NULL where the row failed) and the rows that failed.

        columns are the input's, n rows each. Raise TemporaryError when PostgreSQL is needed and
        cannot be reached.
        """
        errors = RowErrors()
        if self._column >= 0:
            return columns[self._column], errors
        frame = Frame(columns, n, self._evaluator, errors)
        with np.errstate(all="ignore"):
            value = self._root.run(frame)
            if errors:
                failed = errors.mask(n)
                column = expand(column_of(_without(value, failed), self.type), n)
            else:
                column = expand(column_of(value, self.type), n)
        if column.kind == KIND_FLOAT:
            column = Column(one_nan(column.values), column.valid)
        return blanked(column), errors


def compile_expression(expression: Expression, evaluator: Evaluator) -> Compiled:
    """Compile an expression; subtrees without a kernel go to the evaluator.

    InvariantError for a Call without a kernel (see functions.has_kernel).
    """
    return Compiled(expression, evaluator)


def blanked(column: Column) -> Column:
    """Return the column with its NULL slots zero or empty, and no mask when nothing is NULL."""
    valid = column.valid
    if valid is None:
        return column
    if valid.all():
        return Column(np.ascontiguousarray(column.values), None, column.data)
    if column.data is not None:
        offsets, data = blank(column.values, column.data, valid)
        return Column(offsets, valid, data)
    values = np.where(valid, column.values, column.values.dtype.type(0))
    return Column(values, np.ascontiguousarray(valid))


def build(expression: Expression) -> Node:
    """Return the node of an expression, constants folded."""
    if isinstance(expression, ColumnRef):
        return InputNode(expression.index, expression.type)
    if isinstance(expression, Literal):
        return ConstantNode(_literal(expression))
    if isinstance(expression, OuterRef):
        raise InvariantError("plan.outer", f'no row outside to take "{expression.name}" from')
    arguments = [build(a) for a in expression.arguments]
    types = tuple(a.type for a in expression.arguments)
    if isinstance(expression, InPostgres):
        return PostgresNode(expression.sql, types, arguments, expression.type)
    return _folded(_call(expression, arguments), arguments)


def _call(call: Call, arguments: list[Node]) -> Node:
    if call.function in ("and", "or"):
        return LogicNode(call.function == "or", arguments)
    if call.function == "case":
        pairs = list(zip(arguments[0::2], arguments[1::2], strict=False))
        otherwise = arguments[-1] if len(arguments) % 2 else None
        return CaseNode(pairs, otherwise, call.type)
    if call.function == "coalesce":
        return CoalesceNode(arguments, call.type)
    types = tuple(a.type for a in call.arguments)
    if links := links_of(call.function):
        return ChainNode(_chained(links, types[1:], call.type), arguments)
    kernel = kernel_for(call.function, types, call.type)
    if kernel is None:
        names = ", ".join(t.name for t in types)
        raise InvariantError("plan.no_kernel", f'no kernel for "{call.function}" ({names})')
    return CallNode(kernel, arguments)


def _chained(links: Sequence[str], types: Sequence[SqlType], result: SqlType) -> list[Kernel]:
    """Return the kernel of each step of a chain."""
    known: dict[tuple[str, SqlType], Kernel] = {}
    for step in zip(links, types, strict=True):
        kernel = known.get(step) or kernel_for(step[0], (result, step[1]), result)
        if kernel is None:
            raise InvariantError("plan.no_kernel", f'no kernel for "{step[0]}" in a chain')
        known[step] = kernel
    return [known[step] for step in zip(links, types, strict=True)]


def _folded(node: Node, arguments: Sequence[Node]) -> Node:
    """Return the constant that a node of constants folds to; the node itself if it fails or needs
    PostgreSQL."""
    if not all(isinstance(a, ConstantNode) for a in arguments):
        return node
    errors = RowErrors()
    try:
        with np.errstate(all="ignore"):
            value = node.run(Frame((), 1, NoEvaluator(), errors))
    except RuntimeError:
        return node
    return node if errors else ConstantNode(value)


def _literal(literal: Literal) -> Value:
    if literal.text is None:
        return value_of(Column.nulls(literal.type.physical, 1), literal.type)
    text = literal.text
    if literal.type.kind is TypeKind.BOOL:
        text = {"true": "t", "false": "f"}.get(text, text)
    return value_of(from_text(literal.type, Column.of("s", [text])), literal.type)


def _without(value: Value, failed: np.ndarray) -> Value:
    """Return the value with failed rows NULL, n rows."""
    if len(value) != len(failed):
        value = value.take(np.zeros(len(failed), np.int64))
    valid = value.mask() & ~failed
    if isinstance(value, Column):
        return Column(value.values, valid, value.data)
    return value.with_valid(valid)
