"""Unique keys of a plan's output, carried from primary keys and GROUP BY through the operators.

One function for each kind of node derives the facts about its rows. An unknown fact costs keys,
never rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    InPostgres,
    Literal,
    OuterRef,
    children,
    columns_of,
)
from dataflow.plan.nodes import (
    Aggregate,
    AsOfJoin,
    Distinct,
    Filter,
    Join,
    Plan,
    Project,
    Recursive,
    Remember,
    Scan,
    SemiJoin,
    SetOperation,
    Shard,
    SingleRow,
    TableFunction,
    ThresholdFilter,
    ThresholdFlag,
    TopK,
    UnionAll,
    Values,
    Window,
    fold,
)
from dataflow.plan.properties.key_facts import NO_COLUMNS, Key, Keys, is_plain
from dataflow.plan.properties.nullability import is_nullable, nulls_reach, rejects_null
from dataflow.plan.walk import conjuncts
from dataflow.schema import Field
from dataflow.types import TypeKind

_INTEGERS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)
_ONE_ROW = Keys((NO_COLUMNS,))


def keys_of(plan: Plan) -> Keys:
    """Return the facts about a plan's output."""
    return fold(plan, _keys)


def _keys(plan: Plan, inputs: tuple[Keys, ...]) -> Keys:
    derive = _DERIVED.get(type(plan))
    found = derive(plan, *inputs) if derive else Keys(())
    declared = {i for i, f in enumerate(plan.fields) if not f.is_nullable}
    return replace(found, present=found.present | declared).minimized(len(plan.fields))


def _scan(plan: Scan) -> Keys:
    key = plan.relation.key
    if not key or not set(key) <= set(plan.columns):
        return Keys(())
    return Keys((frozenset(plan.columns.index(i) for i in key),))


def _values(plan: Values) -> Keys:
    if len(plan.rows) <= 1:
        return Keys((NO_COLUMNS,), constants=_constants(plan.rows[0] if plan.rows else ()))
    keys = []
    for i, field in enumerate(plan.fields):
        different = {row[i] for row in plan.rows}
        if is_plain(field.type) and len(different) == len(plan.rows):
            keys.append(frozenset({i}))
    return Keys(tuple(keys))


def _constants(expressions: tuple[Expression, ...]) -> tuple[tuple[int, str | None], ...]:
    return tuple(
        (i, e.text)
        for i, e in enumerate(expressions)
        if isinstance(e, Literal) and is_plain(e.type)
    )


def _where(known: Keys, condition: Expression | None) -> Keys:
    """Return the facts about the rows for which a condition is true."""
    equal, constants, follows = list(known.equal), list(known.constants), list(known.determined)
    for part in conjuncts(condition):
        if isinstance(part, ColumnRef):
            constants.append((part.index, "t"))
        elif not isinstance(part, Call):
            continue
        elif part.function == "not" and isinstance(part.arguments[0], ColumnRef):
            constants.append((part.arguments[0].index, "f"))
        elif part.function in ("=", "is not distinct from"):
            for a, b in (part.arguments, part.arguments[::-1]):
                if not isinstance(a, ColumnRef) or not is_plain(a.type):
                    continue
                if isinstance(b, Literal | OuterRef):
                    # The row around a subquery also has one value.
                    follows.append((NO_COLUMNS, frozenset({a.index})))
                if isinstance(b, Literal) and b.type == a.type:
                    constants.append((a.index, b.text))
                elif isinstance(b, ColumnRef) and b.type == a.type:
                    equal.append((a.index, b.index))
    present = known.present | rejects_null(condition)
    return Keys(known.keys, tuple(equal), tuple(follows), tuple(constants), present)


def _project(plan: Project, below: Keys) -> Keys:
    positions = _positions_of(plan.expressions, below)
    shown = frozenset(positions)
    keys = [_moved(key, positions) for key in below.keys if key <= shown]
    if not keys and below.is_once(shown):
        keys.append(_moved(below.reduced(shown), positions))
    equal = [
        (positions[a][0], positions[b][0])
        for a, b in below.equal
        if a in positions and b in positions
    ]
    equal += [(same[0], other) for same in positions.values() for other in same[1:]]
    determined = []
    for source, _ in below.determined:
        if source <= shown:
            known = below.closure(source)
            follows = _moved(known & shown, positions) | _computed_from(plan, known)
            determined.append((_moved(source, positions), follows))
    constants = [(p, text) for c, text in below.constants for p in positions.get(c, ())]
    constants += _constants(plan.expressions)
    tight = tuple(
        Field(f.name, f.type, f.is_nullable and i not in below.present)
        for i, f in enumerate(plan.input.fields)
    )
    present = frozenset(i for i, e in enumerate(plan.expressions) if not is_nullable(e, tight))
    return Keys(tuple(keys), tuple(equal), tuple(determined), tuple(constants), present)


def _positions_of(expressions: tuple[Expression, ...], below: Keys) -> dict[int, list[int]]:
    """Return the position of each input column, or of one equal to it, among the expressions."""
    positions: dict[int, list[int]] = {}
    for i, expression in enumerate(expressions):
        while isinstance(expression, Call) and _is_integer_cast(expression):
            expression = expression.arguments[0]
        if isinstance(expression, ColumnRef):
            positions.setdefault(expression.index, []).append(i)
    # Run twice to follow a chain of equal columns in any order.
    for a, b in (*below.equal, *below.equal):
        for x, y in ((a, b), (b, a)):
            if x not in positions and y in positions:
                positions[x] = positions[y]
    return positions


def _is_integer_cast(call: Call) -> bool:
    """Return whether it is a cast between integers, which preserves the value and its text."""
    kinds = (call.type.kind, *(a.type.kind for a in call.arguments))
    return call.function == "cast" and all(k in _INTEGERS for k in kinds)


def _computed_from(plan: Project, known: Key) -> Key:
    """Return the computed columns that depend only on output columns of plain types."""
    plain = {i for i in known if is_plain(plan.input.fields[i].type)}
    return frozenset(
        i
        for i, e in enumerate(plan.expressions)
        if children(e) and columns_of(e) <= plain and not _is_stable(e)
    )


def _is_stable(expression: Expression) -> bool:
    if isinstance(expression, InPostgres) and expression.is_stable:
        return True
    return any(map(_is_stable, children(expression)))


def _moved(columns: Key, positions: dict[int, list[int]]) -> Key:
    return frozenset(positions[i][0] for i in columns)


def _join(plan: Join, left: Keys, right: Keys) -> Keys:
    n = len(plan.left.fields)
    own, others = left, right.shifted(n)
    left_columns = {c for c in map(_column, plan.left_keys) if c is not None}
    right_columns = {c + n for c in map(_column, plan.right_keys) if c is not None}
    matched = _matched(plan.residual)
    left_columns |= {c for c, others in matched if c < n and all(i >= n for i in others)}
    right_columns |= {c for c, others in matched if c >= n and all(i < n for i in others)}
    keys: list[Key] = []
    for a in own.keys:
        for b in others.keys:
            # In a full join, a padded row of either input must differ from those of the other.
            if plan.kind != "full" or a & own.present or b & others.present:
                keys.append(a | b)
    if plan.kind in ("inner", "left") and others.is_once(right_columns):
        keys += own.keys
    if plan.kind in ("inner", "right") and own.is_once(left_columns):
        keys += others.keys
    if plan.kind in ("right", "full"):
        own = _padded(own)
    if plan.kind in ("left", "full"):
        others = _padded(others)
    equal = [*own.equal, *others.equal]
    present = own.present | others.present
    if plan.kind == "inner":
        for a, b in zip(plan.left_keys, plan.right_keys, strict=True):
            present |= nulls_reach(a) | {i + n for i in nulls_reach(b)}
            if isinstance(a, ColumnRef) and isinstance(b, ColumnRef) and a.type == b.type:
                equal.append((a.index, b.index + n))
    facts = Keys(
        tuple(keys),
        tuple(equal),
        own.determined + others.determined,
        own.constants + others.constants,
        present,
    )
    return _where(facts, plan.residual) if plan.kind == "inner" else facts


def _matched(condition: Expression | None) -> list[tuple[int, Key]]:
    """Return columns whose value a condition equates with something else: that one's columns.

    A query's ON is such a condition until the rules have made keys of its equalities.
    """
    found = []
    for part in conjuncts(condition):
        if isinstance(part, Call) and part.function == "=":
            for a, b in (part.arguments, part.arguments[::-1]):
                column = _column(a)
                if column is not None and is_plain(a.type):
                    found.append((column, frozenset(columns_of(b))))
    return found


def _padded(known: Keys) -> Keys:
    """Return the facts that still hold after padding with NULLs: those that follow from columns
    never NULL."""
    determined = tuple((s, c) for s, c in known.determined if s & known.present)
    constants = tuple((c, text) for c, text in known.constants if text is None)
    return Keys((), known.equal, determined, constants, NO_COLUMNS)


def _threshold_filter(plan: ThresholdFilter, below: Keys, threshold: Keys) -> Keys:
    del threshold
    return replace(below, present=below.present | nulls_reach(plan.value))


def _as_of_join(plan: AsOfJoin, left: Keys, right: Keys) -> Keys:
    """Return the left input's facts: the join does not multiply a left row."""
    n = len(plan.left.fields)
    present = left.present
    if plan.kind == "inner":
        present |= {i + n for i in right.present} | nulls_reach(plan.value)
        present |= {i for key in plan.left_keys for i in nulls_reach(key)}
    return replace(left, present=present)


def _semi_join(plan: SemiJoin, left: Keys, right: Keys) -> Keys:
    if plan.kind != "semi":
        return left
    n = len(plan.left.fields)
    present = {i for key in plan.left_keys for i in nulls_reach(key)}
    present |= {i for i in rejects_null(plan.residual) if i < n}
    own = [p for p in conjuncts(plan.residual) if all(i < n for i in columns_of(p))]
    for part in own:
        left = _where(left, part)
    return replace(left, present=left.present | present)


def _aggregate(plan: Aggregate, below: Keys) -> Keys:
    positions = _positions_of(plan.groups, below)
    shown = frozenset(positions)
    keys = [frozenset(range(len(plan.groups)))]
    keys += [_moved(key, positions) for key in below.keys if key <= shown]
    determined = [
        (_moved(source, positions), _moved(below.closure(source) & shown, positions))
        for source, _ in below.determined
        if source <= shown
    ]
    equal = [
        (positions[a][0], positions[b][0])
        for a, b in below.equal
        if a in positions and b in positions
    ]
    constants = [(p, text) for c, text in below.constants for p in positions.get(c, ())]
    present = frozenset(p for c in below.present for p in positions.get(c, ()))
    return Keys(tuple(keys), tuple(equal), tuple(determined), tuple(constants), present)


def _distinct(plan: Distinct, below: Keys) -> Keys:
    return replace(below, keys=(*below.keys, frozenset(range(len(plan.fields)))))


def _set_operation(plan: SetOperation, left: Keys, right: Keys) -> Keys:
    """Return the left input's facts; for an intersection also the right one's, whose rows are
    equal."""
    if plan.kind == "intersect":
        left = replace(
            left,
            keys=(*left.keys, *right.keys),
            constants=(*left.constants, *right.constants),
            present=left.present | right.present,
        )
    if plan.is_all:
        return left
    return replace(left, keys=(*left.keys, frozenset(range(len(plan.fields)))))


def _union_all(plan: UnionAll, *inputs: Keys) -> Keys:
    """Return the key of every input, together with a column in which each input has a different
    constant."""
    equal = set(inputs[0].equal).intersection(*(i.equal for i in inputs))
    constants = set(inputs[0].constants).intersection(*(i.constants for i in inputs))
    present = inputs[0].present.intersection(*(i.present for i in inputs))
    keys: list[Key] = []
    texts = [dict(i.constants) for i in inputs]
    for column in range(len(plan.fields)):
        if not all(column in t for t in texts):
            continue
        if len({t[column] for t in texts}) < len(inputs) or not all(i.keys for i in inputs):
            continue
        whole = frozenset({column}).union(*(i.keys[0] for i in inputs))
        common = [k for k in inputs[0].keys if all(i.is_once(k) for i in inputs)]
        keys += [k | {column} for k in common] or [whole]
    return Keys(tuple(keys), tuple(equal), (), tuple(constants), present)


def _recursive(plan: Recursive, base: Keys, step: Keys) -> Keys:
    del base, step
    return Keys((frozenset(range(len(plan.fields))),) if plan.is_distinct else ())


def _top_k(plan: TopK, below: Keys) -> Keys:
    """Return the input's keys; with at most one row a partition, also the partition's columns."""
    columns = frozenset(e.index for e in plan.partition if isinstance(e, ColumnRef))
    if plan.limit != 1 or plan.with_ties or len(columns) < len(set(plan.partition)):
        return below
    return replace(below, keys=(*below.keys, columns))


def _table_function(plan: TableFunction, below: Keys) -> Keys:
    """Return the input's keys, each extended by the ordinality; none without one."""
    if not plan.has_ordinality:
        return replace(below, keys=())
    last = len(plan.fields) - 1
    return replace(below, keys=tuple(key | {last} for key in below.keys))


def _window(plan: Window, below: Keys) -> Keys:
    """Return the input's keys, and a partition's columns together with its row_number()."""
    n = len(plan.input.fields)
    partition = [e.index for e in plan.partition if isinstance(e, ColumnRef)]
    if len(partition) < len(plan.partition):
        return below
    numbers = [n + i for i, c in enumerate(plan.calls) if c.function == "row_number"]
    keys = [frozenset(partition) | {i} for i in numbers]
    return replace(below, keys=(*below.keys, *keys))


def is_total(plan: TopK | AsOfJoin) -> bool:
    """Return whether partition and order alone determine the rows taken: then no other column
    matters."""
    if isinstance(plan, AsOfJoin):
        partition, input = plan.right_keys, plan.right
    elif plan.with_ties and plan.offset == 0:
        return True
    else:
        partition, input = plan.partition, plan.input
    expressions = (*partition, *(k.expression for k in plan.order))
    columns = frozenset(e.index for e in expressions if isinstance(e, ColumnRef))
    below = keys_of(input)
    closure = below.closure(columns)
    return any(key <= closure for key in below.keys)


def _column(expression: Expression) -> int | None:
    """Return the column whose value a join key compares, also inside its key form."""
    if isinstance(expression, ColumnRef):
        return expression.index
    if isinstance(expression, Call) and expression.function in ("key form", "cast"):
        # A cast to the common form of a join key is injective.
        return _column(expression.arguments[0])
    return None


_DERIVED: dict[type, Callable[..., Keys]] = {
    Scan: _scan,
    Values: _values,
    SingleRow: lambda plan, below: _ONE_ROW,
    Filter: lambda plan, below: _where(below, plan.predicate),
    ThresholdFilter: _threshold_filter,
    ThresholdFlag: lambda plan, below, threshold: below,
    Remember: lambda plan, below: below,
    AsOfJoin: _as_of_join,
    SemiJoin: _semi_join,
    Project: _project,
    Join: _join,
    Aggregate: _aggregate,
    SetOperation: _set_operation,
    Distinct: _distinct,
    UnionAll: _union_all,
    Recursive: _recursive,
    TopK: _top_k,
    Shard: lambda plan, below: below,
    Window: _window,
    TableFunction: _table_function,
}
