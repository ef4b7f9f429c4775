"""WITH RECURSIVE as one loop over all rounds: every row carries its round.

`loop_of` splits a Recursive into the plans outside its loop (the base, and all other inputs of the
step) and a body, in which the round is the last column of every row. Invariant: the body's rows of
one round are the step's over the rows of that round alone. So joins with outside rows preserve the
round, and operators that combine rows of the loop (groups, windows, set operations) do so within a
round. Pure plan transformation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dataflow.errors import SqlError
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal, columns_of, remap
from dataflow.expressions.keys import key_form
from dataflow.plan.nodes import (
    LOOP_INPUT,
    LOOP_ROUNDS,
    LOOP_ROWS,
    Aggregate,
    AggregateCall,
    AsOfJoin,
    Distinct,
    Filter,
    Join,
    Loop,
    Plan,
    Project,
    RecursionRef,
    Recursive,
    Remember,
    SemiJoin,
    SetOperation,
    TableFunction,
    TopK,
    UnionAll,
    Window,
    fold,
)
from dataflow.plan.walk import nodes_of
from dataflow.schema import Field
from dataflow.types import BOOL, INT8

ROUND = Field("round", INT8, False)


def loop_of(plan: Recursive) -> Loop:
    """Return the loop of a recursion. Raise SqlError for a step that cannot carry the round."""
    threader = _Threader(plan)
    body = threader.carry(plan.step)
    base, keys = plan.base, ()
    if plan.is_distinct:
        base, keys = _with_keys(base, plan.fields)
        body, _ = _with_keys(body, plan.fields)
    return Loop(plan.name, (base, *threader.inputs), body, keys, plan.fields)


def check_recursions(plan: Plan) -> None:
    """Raise SqlError for the first recursion that has no loop."""
    for node in nodes_of(plan):
        if isinstance(node, Recursive):
            loop_of(node)


def free_names(plan: Plan) -> frozenset[str]:
    """Return the enclosing recursions whose rows a plan reads."""
    return fold(plan, _free_names)


def _free_names(plan: Plan, inputs: tuple[frozenset[str], ...]) -> frozenset[str]:
    if isinstance(plan, RecursionRef):
        return frozenset((plan.name,))
    if isinstance(plan, Recursive):
        return inputs[0] | (inputs[1] - {plan.name})
    return frozenset[str]().union(*inputs)


def _with_keys(plan: Plan, fields: Sequence[Field]) -> tuple[Plan, tuple[int, ...]]:
    """Return the plan with key forms after its fields, and the positions that distinguish rows."""
    n, keys = len(fields), []
    added: list[Expression] = []
    for i, field in enumerate(fields):
        column = ColumnRef(i, field.type, field.name)
        form = key_form(column)
        if form is None:
            raise SqlError(
                "sql.not_maintained",
                f"UNION in WITH RECURSIVE over values of type {field.type.name} is not maintained",
                hint="select a cast of the value to text",
            )
        keys.append(i if form == column else n + len(added))
        if form != column:
            added.append(form)
    if not added:
        return plan, tuple(keys)
    refs = _refs(plan.fields)
    names = [Field(f"key {i}", e.type) for i, e in enumerate(added)]
    widened = (*refs[:n], *added, *refs[n:])
    return Project(plan, widened, (*plan.fields[:n], *names, *plan.fields[n:])), tuple(keys)


class _Threader:
    """Adds the round to the step of one recursion. inputs: what the step reads from outside."""

    def __init__(self, recursion: Recursive) -> None:
        self._names = {recursion.name: LOOP_ROWS}
        self._free: dict[int, frozenset[str]] = {}
        self._carried: dict[tuple[int, tuple[str, ...]], Plan] = {}
        self.inputs: list[Plan] = []

        def note(plan: Plan, inputs: tuple[frozenset[str], ...]) -> frozenset[str]:
            return self._free.setdefault(id(plan), _free_names(plan, inputs))

        self._is_inner = bool(fold(recursion, note))

    def carry(self, plan: Plan) -> Plan:
        """Return the plan's rows of each round, the round after its fields; a shared node stays
        shared."""
        position = (id(plan), tuple(self._names))
        if position not in self._carried:
            self._carried[position] = self._changed(plan)
        return self._carried[position]

    def _changed(self, plan: Plan) -> Plan:
        if not self._has_rounds(plan):
            return self._in_each_round(plan)
        if isinstance(plan, RecursionRef):
            return RecursionRef(self._names[plan.name], (*plan.fields, ROUND))
        change = _CHANGES.get(type(plan))
        if change is None:
            raise _refusal(f"a {type(plan).__name__.lower()} over its own rows")
        return change(self, plan)

    def _has_rounds(self, plan: Plan) -> bool:
        return not self._names.keys().isdisjoint(self._free[id(plan)])

    def _from_outside(self, plan: Plan) -> Plan:
        if plan not in self.inputs:
            self.inputs.append(plan)
        return RecursionRef(f"{LOOP_INPUT} {self.inputs.index(plan)}", plan.fields)

    def _rounds(self) -> Plan:
        """Return the rounds in which the step is computed: the first, and each whose previous one
        has rows."""
        if self._is_inner or len(self._names) > 1:
            raise _refusal("a step that makes rows from nothing, inside another recursion,")
        return RecursionRef(LOOP_ROUNDS, (ROUND,))

    def _in_each_round(self, plan: Plan) -> Plan:
        fields = (*plan.fields, ROUND)
        return Join("inner", self._from_outside(plan), self._rounds(), (), (), None, fields)

    def filter(self, plan: Filter) -> Plan:
        return Filter(self.carry(plan.input), plan.predicate)

    def project(self, plan: Project) -> Plan:
        below = self.carry(plan.input)
        return Project(below, (*plan.expressions, _last(below)), (*plan.fields, ROUND))

    def join(self, plan: Join) -> Plan:
        n = len(plan.left.fields)
        if plan.kind in ("inner", "right") and not self._has_rounds(plan.left):
            left, right = self._from_outside(plan.left), self.carry(plan.right)
            return replace(plan, left=left, right=right, fields=(*plan.fields, ROUND))
        left = self.carry(plan.left)
        fields = (*plan.fields[:n], ROUND, *plan.fields[n:])
        residual = _moved_right(plan.residual, n)
        joined = replace(plan, left=left, residual=residual, fields=fields)
        if plan.kind in ("inner", "left") and not self._has_rounds(plan.right):
            return _arranged(replace(joined, right=self._from_outside(plan.right)), n, plan.fields)
        right = self.carry(plan.right)
        joined = replace(
            joined,
            right=right,
            left_keys=(*plan.left_keys, _last(left)),
            right_keys=(*plan.right_keys, _last(right)),
            fields=(*fields, ROUND),
        )
        sides = (ColumnRef(n, INT8, ROUND.name), _last(joined))
        found: Expression = sides[plan.kind == "right"]
        if plan.kind == "full":
            found = Call("coalesce", sides, INT8)
        return _arranged(joined, n, plan.fields, found)

    def as_of_join(self, plan: AsOfJoin) -> Plan:
        n, left = len(plan.left.fields), self.carry(plan.left)
        fields = (*plan.fields[:n], ROUND, *plan.fields[n:])
        joined = replace(plan, left=left, fields=fields)
        if not self._has_rounds(plan.right):
            return _arranged(replace(joined, right=self._from_outside(plan.right)), n, plan.fields)
        right = self.carry(plan.right)
        joined = replace(
            joined,
            right=right,
            left_keys=(*plan.left_keys, _last(left)),
            right_keys=(*plan.right_keys, _last(right)),
            fields=(*fields, ROUND),
        )
        return _arranged(joined, n, plan.fields)

    def semi_join(self, plan: SemiJoin) -> Plan:
        left = self.carry(plan.left)
        residual = _moved_right(plan.residual, len(plan.left.fields))
        if not self._has_rounds(plan.right):
            right = self._from_outside(plan.right)
            return replace(plan, left=left, right=right, residual=residual)
        if plan.kind == "not in":
            raise _refusal("NOT IN over its own rows")
        right = self.carry(plan.right)
        left_keys, right_keys = (*plan.left_keys, _last(left)), (*plan.right_keys, _last(right))
        return SemiJoin(plan.kind, left, right, left_keys, right_keys, residual)

    def aggregate(self, plan: Aggregate) -> Plan:
        below, calls, n = self.carry(plan.input), plan.calls, len(plan.groups)
        if not plan.groups:
            below, calls = self._with_empty_rounds(below, calls)
        groups = (*plan.groups, ColumnRef(len(plan.input.fields), INT8, ROUND.name))
        fields = (*plan.fields[:n], ROUND, *plan.fields[n:])
        grouped = replace(plan, input=below, groups=groups, calls=calls, fields=fields)
        return _arranged(grouped, n, plan.fields)

    def _with_empty_rounds(
        self, plan: Plan, calls: tuple[AggregateCall, ...]
    ) -> tuple[Plan, tuple[AggregateCall, ...]]:
        """Add a row of NULLs for each round, which no call counts, so that the group exists."""
        flag = Field("is row", BOOL, False)
        n, rounds = len(plan.fields), self._rounds()
        fields = (*(Field(f.name, f.type) for f in plan.fields[:-1]), ROUND, flag)
        nulls = [Literal(None, f.type) for f in plan.fields[:-1]]
        rows = Project(plan, (*_refs(plan.fields), Literal("t", BOOL)), fields)
        empty = Project(rounds, (*nulls, _last(rounds), Literal("f", BOOL)), fields)
        is_row = ColumnRef(n, BOOL, flag.name)
        filtered = tuple(
            replace(c, filter=is_row if c.filter is None else Call("and", (is_row, c.filter), BOOL))
            for c in calls
        )
        return UnionAll((rows, empty), fields), filtered

    def distinct(self, plan: Distinct) -> Plan:
        return Distinct(self.carry(plan.input))

    def union_all(self, plan: UnionAll) -> Plan:
        return UnionAll(tuple(self.carry(i) for i in plan.inputs), (*plan.fields, ROUND))

    def set_operation(self, plan: SetOperation) -> Plan:
        return replace(plan, left=self.carry(plan.left), right=self.carry(plan.right))

    def top_k(self, plan: TopK) -> Plan:
        below = self.carry(plan.input)
        return replace(plan, input=below, partition=(*plan.partition, _last(below)))

    def window(self, plan: Window) -> Plan:
        below, n = self.carry(plan.input), len(plan.input.fields)
        fields = (*plan.fields[:n], ROUND, *plan.fields[n:])
        partition = (*plan.partition, _last(below))
        return _arranged(
            replace(plan, input=below, partition=partition, fields=fields), n, plan.fields
        )

    def widening(self, plan: TableFunction | Remember) -> Plan:
        """Return the node with the round as a column between the input's fields and its own."""
        below, n = self.carry(plan.input), len(plan.input.fields)
        fields = (*plan.fields[:n], ROUND, *plan.fields[n:])
        return _arranged(replace(plan, input=below, fields=fields), n, plan.fields)

    def recursive(self, plan: Recursive) -> Plan:
        """Return an inner recursion for each round: the round is a column of all of its rows."""
        base = self.carry(plan.base)
        around = self._names
        self._names = {**around, plan.name: plan.name}
        try:
            step = self.carry(plan.step)
        finally:
            self._names = around
        return replace(plan, base=base, step=step, fields=(*plan.fields, ROUND))


_CHANGES: dict[type, Callable[..., Plan]] = {
    Filter: _Threader.filter,
    Project: _Threader.project,
    Join: _Threader.join,
    AsOfJoin: _Threader.as_of_join,
    SemiJoin: _Threader.semi_join,
    Aggregate: _Threader.aggregate,
    Distinct: _Threader.distinct,
    UnionAll: _Threader.union_all,
    SetOperation: _Threader.set_operation,
    TopK: _Threader.top_k,
    Window: _Threader.window,
    TableFunction: _Threader.widening,
    Remember: _Threader.widening,
    Recursive: _Threader.recursive,
}


def _refs(fields: Sequence[Field]) -> tuple[ColumnRef, ...]:
    return tuple(ColumnRef(i, f.type, f.name) for i, f in enumerate(fields))


def _last(plan: Plan) -> ColumnRef:
    return ColumnRef(len(plan.fields) - 1, INT8, ROUND.name)


def _moved_right(residual: Expression | None, n: int) -> Expression | None:
    """Return a residual over (left, right) after the left input has gained one column at its end,
    n."""
    if residual is None:
        return None
    return remap(residual, {i: i + (i >= n) for i in columns_of(residual)})


def _arranged(
    plan: Plan, at: int, fields: tuple[Field, ...], found: Expression | None = None
) -> Plan:
    """Return the fields, then the round, of a plan that has the round at `found`."""
    retained = [ColumnRef(i + (i >= at), f.type, f.name) for i, f in enumerate(fields)]
    shown = found if found is not None else ColumnRef(at, INT8, ROUND.name)
    return Project(plan, (*retained, shown), (*fields, ROUND))


def _refusal(what: str) -> SqlError:
    return SqlError(
        "sql.not_maintained",
        f"{what} in the step of WITH RECURSIVE is not maintained",
        hint="compute that part outside the recursion",
    )
