"""Unique keys of a plan's output, carried from primary keys and GROUP BY through the operators.

A key is a set of output positions on which no two rows agree; the empty set says "at most one
row". A view gets a primary key only of columns that are never NULL.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.expressions.ir import Call, ColumnRef, Expression, InPostgres
from dataflow.expressions.keys import key_form
from dataflow.sql.plan import (
    Aggregate,
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
    SingleRow,
    TopK,
    Values,
    Window,
    fold,
)

Key = frozenset[int]
_MOST_KEYS = 16
_MOST_FACTS = 64


@dataclass(frozen=True)
class Keys:
    """The keys of an output, and what else is known of its rows.

    equal: pairs of columns that hold one value in every row. determined: (columns, the columns
    whose values follow from theirs).
    """

    keys: tuple[Key, ...]
    equal: tuple[tuple[int, int], ...] = ()
    determined: tuple[tuple[Key, Key], ...] = ()

    def __post_init__(self) -> None:
        # Each fact once, and no more than can matter: else they double with every self join.
        equal = {(min(pair), max(pair)) for pair in self.equal if pair[0] != pair[1]}
        follows: dict[Key, Key] = {}
        for source, columns in self.determined:
            follows[source] = follows.get(source, frozenset()) | columns
        determined = [(s, c) for s, c in follows.items() if not c <= s][:_MOST_FACTS]
        object.__setattr__(self, "keys", _fewest(self.keys))
        object.__setattr__(self, "equal", tuple(sorted(equal)))
        object.__setattr__(self, "determined", tuple(determined))

    def closure(self, columns: Key) -> Key:
        """All columns whose values follow from those of `columns`."""
        found = set(columns)
        size = -1
        while len(found) > size:
            size = len(found)
            for a, b in self.equal:
                if a in found or b in found:
                    found |= {a, b}
            for source, follows in self.determined:
                if source <= found:
                    found |= follows
        return frozenset(found)

    def reduced(self, columns: Key) -> Key:
        """Fewer columns that determine all of `columns`; later ones go first."""
        kept = set(columns)
        for column in sorted(columns, reverse=True):
            if column in self.closure(frozenset(kept - {column})):
                kept.remove(column)
        return frozenset(kept)


def view_key(plan: Plan) -> tuple[int, ...]:
    """The smallest key whose columns are never NULL; () when there is none (a bag)."""
    found = []
    for key in keys_of(plan).keys:
        fields = [plan.fields[i] for i in key]
        refs = [ColumnRef(i, plan.fields[i].type) for i in key]
        if key and not any(f.is_nullable for f in fields) and all(map(_is_sink_key, refs)):
            found.append(tuple(sorted(key)))
    return min(found, key=lambda k: (len(k), k)) if found else ()


def _is_sink_key(column: ColumnRef) -> bool:
    """Whether the sink's index tells the same values apart: not where only a hash does here."""
    form = key_form(column)
    return form is not None and not isinstance(form, InPostgres)


def keys_of(plan: Plan) -> Keys:
    """The keys of a plan's output."""
    return fold(plan, _keys)


def _keys(plan: Plan, inputs: tuple[Keys, ...]) -> Keys:
    if isinstance(plan, Scan):
        return _scan(plan)
    if isinstance(plan, Values):
        return Keys((frozenset(),)) if len(plan.rows) <= 1 else Keys(())
    if isinstance(plan, SingleRow):
        return Keys((frozenset(),))
    if isinstance(plan, Filter | Remember | SemiJoin):
        return inputs[0]
    if isinstance(plan, Project):
        return _project(plan, inputs[0])
    if isinstance(plan, Join):
        return _join(plan, *inputs)
    if isinstance(plan, Aggregate):
        return _aggregate(plan, inputs[0])
    if isinstance(plan, SetOperation):
        return _set_operation(plan, *inputs)
    if isinstance(plan, Window):
        return _window(plan, inputs[0])
    if isinstance(plan, TopK):
        return _top_k(plan, inputs[0])
    if isinstance(plan, Distinct):
        below = inputs[0]
        whole = below.reduced(frozenset(range(len(plan.fields))))
        return Keys(_fewest((*below.keys, whole)), below.equal, below.determined)
    if isinstance(plan, Recursive) and plan.is_distinct:
        return Keys((frozenset(range(len(plan.fields))),))
    return Keys(())


def _scan(plan: Scan) -> Keys:
    key = plan.relation.key
    if not key or not set(key) <= set(plan.columns):
        return Keys(())
    found = frozenset(plan.columns.index(i) for i in key)
    return Keys((found,), (), ((found, frozenset(range(len(plan.columns)))),))


def _project(plan: Project, below: Keys) -> Keys:
    places: dict[int, list[int]] = {}
    for i, expression in enumerate(plan.expressions):
        if isinstance(expression, ColumnRef):
            places.setdefault(expression.index, []).append(i)
    for a, b in below.equal:
        for x, y in ((a, b), (b, a)):
            if x not in places and y in places:
                places[x] = places[y]
    keys = [_moved(key, places) for key in below.keys if set(key) <= set(places)]
    equal = [(places[a][0], places[b][0]) for a, b in below.equal if a in places and b in places]
    equal += [(same[0], other) for same in places.values() for other in same[1:]]
    determined = [
        (_moved(source, places), _moved(below.closure(source) & set(places), places))
        for source, _ in below.determined
        if set(source) <= set(places)
    ]
    return Keys(_fewest(keys), tuple((a, b) for a, b in equal if a != b), tuple(determined))


def _moved(columns: Key, places: dict[int, list[int]]) -> Key:
    return frozenset(places[i][0] for i in columns)


def _join(plan: Join, left: Keys, right: Keys) -> Keys:
    n = len(plan.left.fields)
    left_columns = {_column(e) for e in plan.left_keys} - {None}
    right_columns = {_column(e) for e in plan.right_keys} - {None}
    is_left_once = any(key <= right_columns for key in right.keys)
    is_right_once = any(key <= left_columns for key in left.keys)
    right_keys = [frozenset(i + n for i in key) for key in right.keys]
    keys: list[Key] = [a | b for a in left.keys for b in right_keys]
    if is_left_once and plan.kind in ("inner", "left"):
        keys += left.keys
    if is_right_once and plan.kind in ("inner", "right"):
        keys += right_keys
    equal = []
    if plan.kind == "inner":
        equal = [*left.equal, *((a + n, b + n) for a, b in right.equal)]
        for a, b in zip(plan.left_keys, plan.right_keys, strict=True):
            if isinstance(a, ColumnRef) and isinstance(b, ColumnRef) and a.type == b.type:
                equal.append((a.index, b.index + n))
    elif plan.kind == "left":
        equal = list(left.equal)
    own = left.determined
    if plan.kind in ("right", "full"):
        own = _padded(own, plan.left)
    others = right.determined
    if plan.kind in ("left", "full"):
        others = _padded(others, plan.right)
    determined = own + tuple(
        (frozenset(i + n for i in a), frozenset(i + n for i in b)) for a, b in others
    )
    return Keys(_fewest(keys), tuple(equal), determined)


def _padded(determined: tuple[tuple[Key, Key], ...], plan: Plan) -> tuple[tuple[Key, Key], ...]:
    """What still holds beside rows of NULLs: columns that follow from some that are never NULL."""
    return tuple(
        (source, follows)
        for source, follows in determined
        if source and not any(plan.fields[i].is_nullable for i in source)
    )


def _aggregate(plan: Aggregate, below: Keys) -> Keys:
    places = {e.index: [i] for i, e in enumerate(plan.groups) if isinstance(e, ColumnRef)}
    computed = [i for i, e in enumerate(plan.groups) if not isinstance(e, ColumnRef)]
    plain = below.reduced(frozenset(places))
    key = _moved(plain, places) | frozenset(computed)
    keys = [_moved(k, places) for k in below.keys if set(k) <= set(places)]
    return Keys(_fewest([key, *keys]), (), ((key, frozenset(range(len(plan.fields)))),))


def _set_operation(plan: SetOperation, left: Keys, right: Keys) -> Keys:
    """Rows of the left side; those of an intersection are the right side's too.

    What a key determines is told by its form alone, so it holds for the rows that are shown.
    """
    keys = [*left.keys, *(right.keys if plan.kind == "intersect" else ())]
    if not plan.is_all:
        keys.append(left.reduced(frozenset(range(len(plan.fields)))))
    return Keys(tuple(keys), left.equal, left.determined)


def _window(plan: Window, below: Keys) -> Keys:
    """Every row stays once; row_number() tells the rows of a partition apart."""
    n = len(plan.input.fields)
    partition = [e.index for e in plan.partition if isinstance(e, ColumnRef)]
    numbers = [n + i for i, c in enumerate(plan.calls) if c.function == "row_number"]
    keys = list(below.keys)
    determined = list(below.determined)
    if len(partition) == len(plan.partition):
        keys += [below.reduced(frozenset(partition)) | {i} for i in numbers]
    every = frozenset(range(len(plan.fields)))
    determined += [(key, every) for key in keys]
    return Keys(_fewest(keys), below.equal, tuple(determined))


def _top_k(plan: TopK, below: Keys) -> Keys:
    """The input's, and the partition where that keeps one row."""
    columns = frozenset(e.index for e in plan.partition if isinstance(e, ColumnRef))
    if plan.limit != 1 or plan.with_ties or len(columns) < len(set(plan.partition)):
        return below
    determined = (*below.determined, (columns, frozenset(range(len(plan.fields)))))
    return Keys(_fewest((*below.keys, columns)), below.equal, determined)


def is_total(plan: TopK) -> bool:
    """Whether partition and order alone say which rows are taken: then no other column matters."""
    if plan.with_ties and plan.offset == 0:
        return True
    expressions = (*plan.partition, *(k.expression for k in plan.order))
    columns = frozenset(e.index for e in expressions if isinstance(e, ColumnRef))
    below = keys_of(plan.input)
    closure = below.closure(columns)
    return any(key <= closure for key in below.keys)


def _column(expression: Expression) -> int | None:
    """The column whose value a join key compares, also beneath its key form."""
    if isinstance(expression, ColumnRef):
        return expression.index
    if isinstance(expression, Call) and expression.function in ("key form", "cast"):
        # A cast to a join key's common form keeps different values different.
        return _column(expression.arguments[0])
    return None


def _fewest(keys: list[Key] | tuple[Key, ...]) -> tuple[Key, ...]:
    """The keys that hold no other key, the smallest first."""
    kept: list[Key] = []
    for key in sorted(set(keys), key=lambda k: (len(k), sorted(k))):
        if not any(other <= key for other in kept):
            kept.append(key)
    return tuple(kept[:_MOST_KEYS])
