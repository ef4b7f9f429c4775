"""Evaluate an Apply's right side for many left rows at once: columns that identify the left rows
are carried up.

Invariant: every operator separates the rows of different left rows: groups and partitions get the
carried columns, joins of two carrying inputs compare them (Neumann and Kemper, Unnesting Arbitrary
Queries, 2015). Subclasses define how the columns enter at the leaves.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.errors import InvariantError
from dataflow.expressions.functions import has_kernel
from dataflow.expressions.ir import Call, ColumnRef, Expression, InPostgres, OuterRef, map_leaves
from dataflow.expressions.keys import common_key_forms
from dataflow.plan.nodes import (
    Aggregate,
    AsOfJoin,
    Distinct,
    Filter,
    Join,
    Plan,
    Project,
    RecursionRef,
    Recursive,
    SemiJoin,
    SetOperation,
    TableFunction,
    TopK,
    UnionAll,
    Window,
    inputs_of,
)
from dataflow.plan.outer_refs import OWN, OwnReads, may_fail_often, own_columns
from dataflow.plan.trees import map_expressions, refs
from dataflow.schema import Field
from dataflow.sql.rules.empty_groups import over_empty
from dataflow.sql.rules.pull_conditions import is_unit, outer_key, pull_conditions
from dataflow.types import BOOL


class CannotCarry(Exception):
    """The plan depends on the left row in a way that its columns do not determine."""


class Carrier:
    """Evaluates a right side for many left rows at once.

    fields: those of the carried columns, set once something has been carried.
    """

    def __init__(self, reads: OwnReads) -> None:
        self.fields: tuple[Field, ...] = ()
        self._reads = reads
        self._recursions: dict[str, str] = {}
        self._known: dict[int, tuple[Plan, Plan]] = {}
        self._depends: dict[int, tuple[Plan, bool]] = {}

    def leaf(self, plan: Plan) -> Plan | None:
        """Return the plan with the carried columns if they enter here; None to try below."""
        raise NotImplementedError

    def value(self, index: int) -> Expression:
        """Return a column of the left row, over the carried columns. Raise CannotCarry."""
        raise NotImplementedError

    def one_group(self, plan: Aggregate) -> Plan:
        """Return an aggregate that has a row for each left row. Raise CannotCarry."""
        raise NotImplementedError

    def carry(self, plan: Plan) -> Plan:
        """Return the plan's rows for each carried row: its columns, then the carried ones."""
        if id(plan) not in self._known:
            self._known[id(plan)] = (plan, self._carry(plan))
        return self._known[id(plan)][1]

    def depends(self, plan: Plan) -> bool:
        """Return whether the plan's rows differ between carried rows."""
        if id(plan) not in self._depends:
            found = self._reads(plan) or (
                plan.name in self._recursions
                if isinstance(plan, RecursionRef)
                else any(self.depends(i) for i in inputs_of(plan))
            )
            self._depends[id(plan)] = (plan, found)
        return self._depends[id(plan)][1]

    def _carry(self, plan: Plan) -> Plan:
        found = self.leaf(plan)
        if found is not None:
            return found
        if isinstance(plan, RecursionRef):
            return RecursionRef(self._recursions[plan.name], (*plan.fields, *self.fields))
        if isinstance(plan, Join):
            return self._join(plan)
        if isinstance(plan, AsOfJoin):
            return self._as_of_join(plan)
        if isinstance(plan, SemiJoin):
            return self._semi_join(plan)
        if isinstance(plan, Recursive):
            return self._recursive(plan)
        if isinstance(plan, SetOperation):
            return replace(plan, left=self.carry(plan.left), right=self.carry(plan.right))
        if isinstance(plan, UnionAll):
            inputs = tuple(self.carry(i) for i in plan.inputs)
            return UnionAll(inputs, (*plan.fields, *self.fields))
        if isinstance(plan, Aggregate) and not plan.groups:
            return self.one_group(plan)
        return self._unary(plan)

    def _unary(self, plan: Plan) -> Plan:
        """Return a node of one input with `local` expressions and the carried columns passed on."""
        (below,) = inputs_of(plan)
        carried = self.carry(below)
        n = len(below.fields)
        keys, fields = self.keys(n), self.fields
        local = self.local_node(plan, carried)
        if isinstance(local, Filter | Distinct):
            return local
        if isinstance(local, Project):
            return replace(
                local, expressions=(*local.expressions, *keys), fields=(*plan.fields, *fields)
            )
        if isinstance(local, TopK):
            return replace(local, partition=(*local.partition, *keys))
        if isinstance(local, Aggregate):
            split = len(local.groups)
            made = (*plan.fields[:split], *fields, *plan.fields[split:])
            grouped = replace(local, groups=(*local.groups, *keys), fields=made)
            return _reordered(grouped, plan, split, len(keys))
        if isinstance(local, Window):
            made = (*carried.fields, *plan.fields[n:])
            windows = replace(local, partition=(*local.partition, *keys), fields=made)
            return _reordered(windows, plan, n, len(keys))
        if isinstance(local, TableFunction) and isinstance(plan, TableFunction):
            condition = plan.condition
            if condition is not None:
                # It also reads the calls' columns, which now follow the carried ones.
                positions = {i: i if i < n else i + len(keys) for i in range(len(plan.fields))}
                condition = self.local(_moved(condition, positions), n)
            made = (*carried.fields, *plan.fields[n:])
            return _reordered(replace(local, condition=condition, fields=made), plan, n, len(keys))
        raise InvariantError("plan.decorrelate", f"no rule carries a {type(plan).__name__}")

    def local_node(self, plan: Plan, carried: Plan) -> Plan:
        """Return a node of one input over its carried input, which provides the left row."""
        n = len(inputs_of(plan)[0].fields)
        return map_expressions(plan, lambda e: self.local(e, n), (carried,))

    def _join(self, plan: Join) -> Plan:
        """Carry inputs that depend on the left row, and preserved ones; compare the carried columns
        of both."""
        depends = [self.depends(plan.left), self.depends(plan.right)]
        keeps = [plan.kind in ("left", "full"), plan.kind in ("right", "full")]
        carries = [d or k for d, k in zip(depends, keeps, strict=True)]
        if not any(carries):
            carries[0] = True
        sides = [
            self.carry(side) if is_carried else side
            for side, is_carried in zip((plan.left, plan.right), carries, strict=True)
        ]
        n, m, k = len(plan.left.fields), len(plan.right.fields), len(self.fields)
        start = n + k if carries[0] else n
        positions = {i: i if i < n else i - n + start for i in range(n + m)}
        at = start + m if plan.kind == "right" or not carries[0] else n
        left_keys = tuple(self.local(e, n) for e in plan.left_keys)
        right_keys = tuple(self.local(e, m) for e in plan.right_keys)
        if all(carries):
            left_keys += self.keys(n)
            right_keys += self.keys(m)
        residual = plan.residual
        if residual is not None:
            residual = self.local(_moved(residual, positions), at)
        fields = _padded(plan.kind, sides[0], sides[1])
        joined = Join(plan.kind, sides[0], sides[1], left_keys, right_keys, residual, fields)
        own = [ColumnRef(positions[i], f.type, f.name) for i, f in enumerate(plan.fields)]
        retained = self.keys(at)
        if plan.kind == "full":
            other = self.keys(start + m)
            pairs = zip(retained, other, strict=True)
            retained = tuple(Call("coalesce", pair, pair[0].type) for pair in pairs)
        return Project(joined, (*own, *retained), (*plan.fields, *self.fields))

    def _as_of_join(self, plan: AsOfJoin) -> Plan:
        """Carry the left input; the right one reads no left row (see `find_as_of`)."""
        left = self.carry(plan.left)
        n, k = len(plan.left.fields), len(self.fields)
        joined = replace(plan, left=left, fields=(*left.fields, *plan.fields[n:]))
        own = refs(joined)
        shown = (*own[:n], *own[n + k :], *own[n : n + k])
        return Project(joined, shown, (*plan.fields, *self.fields))

    def _semi_join(self, plan: SemiJoin) -> Plan:
        if plan.kind == "not in" and self.depends(plan.right):
            plan = without_not_in(plan)
        left = self.carry(plan.left)
        n, k = len(plan.left.fields), len(self.fields)
        m = len(plan.right.fields)
        left_keys = tuple(self.local(e, n) for e in plan.left_keys)
        right, right_keys = plan.right, plan.right_keys
        if self.depends(plan.right):
            right = self.carry(plan.right)
            left_keys += self.keys(n)
            right_keys = (*(self.local(e, m) for e in right_keys), *self.keys(m))
        residual = plan.residual
        if residual is not None:
            positions = {i: i if i < n else i + k for i in range(n + m)}
            residual = self.local(_moved(residual, positions), n)
        return SemiJoin(plan.kind, left, right, left_keys, right_keys, residual)

    def _recursive(self, plan: Recursive) -> Plan:
        """Carry the columns through the rounds with the rows."""
        name = f"{plan.name} for each row"
        base = self.carry(plan.base)
        self._recursions[plan.name] = name
        self._depends.clear()
        try:
            step = self.carry(plan.step)
        finally:
            del self._recursions[plan.name]
            self._depends.clear()
        fields = (*plan.fields, *self.fields)
        return replace(plan, name=name, base=base, step=step, fields=fields)

    def keys(self, at: int) -> tuple[ColumnRef, ...]:
        """Return the carried columns, the first one at `at`."""
        fields = enumerate(self.fields)
        return tuple(ColumnRef(at + i, f.type, f.name) for i, f in fields)

    def local(self, expression: Expression, at: int) -> Expression:
        """Return the expression with the left row's columns read from the carried ones, the first
        at `at`."""

        def change(leaf: Expression) -> Expression:
            if isinstance(leaf, OuterRef) and leaf.level == OWN:
                return _moved(self.value(leaf.index), None, at)
            return leaf

        return map_leaves(expression, change)


class CarryRows(Carrier):
    """Carries the distinct rows of the columns that the right side reads: D of the paper.

    carried: the plan of these rows. values: for each column of the left row that is read, the
    expression over `carried` that gives it.
    """

    def __init__(self, carried: Plan, values: dict[int, Expression], reads: OwnReads) -> None:
        super().__init__(reads)
        self.fields = carried.fields
        self._carried = carried
        self._values = values

    def leaf(self, plan: Plan) -> Plan | None:
        """Cross join a plan that does not depend on the left row with the carried rows."""
        if self.depends(plan):
            return None
        if is_unit(plan):
            return self._carried
        fields = (*plan.fields, *self.fields)
        return Join("inner", plan, self._carried, (), (), None, fields)

    def value(self, index: int) -> Expression:
        """Return the column, always available."""
        return self._values[index]

    def one_group(self, plan: Aggregate) -> Plan:
        """Give every carried row its one row, even if its group is empty."""
        keys = self.keys(len(plan.input.fields))
        local = self.local_node(plan, self.carry(plan.input))
        assert isinstance(local, Aggregate)
        grouped = replace(local, groups=keys, fields=(*self.fields, *plan.fields))
        calls = refs(grouped)[len(keys) :]
        joined, values = over_empty(self._carried, grouped, self.keys(0), calls)
        return Project(joined, (*values, *self.keys(0)), (*plan.fields, *self.fields))


class CarryKeys(Carrier):
    """Carries the right side's own columns that conditions equate to the left row's.

    Rows that match no left row are carried too, so no expression over them may fail. outer: the
    left row's operands of the equalities, in key form.
    """

    def __init__(self, reads: OwnReads) -> None:
        super().__init__(reads)
        self.outer: tuple[Expression, ...] = ()

    def leaf(self, plan: Plan) -> Plan | None:
        """Add the inner operands of the conditions where they can be pulled up to."""
        if not self.depends(plan):
            raise CannotCarry
        pulled = pull_conditions(plan, self._reads) if self._reads(plan) else None
        if pulled is None:
            return None
        if any(own_columns(e) or may_fail_often(e) for e in pulled.outputs):
            raise CannotCarry
        pairs: dict[Expression, Expression] = {}
        for condition in pulled.conditions:
            sides = outer_key(condition)
            forms = common_key_forms(*sides) if sides else None
            # Two inner columns equal to one outer column need not be identical, only equal by `=`.
            if forms is None or forms[0] in pairs:
                raise CannotCarry
            pairs[forms[0]] = forms[1]
        if not self.outer:
            self.outer = tuple(pairs)
            self.fields = tuple(Field(f"outer {i}", e.type) for i, e in enumerate(self.outer))
        if set(pairs) != set(self.outer):
            raise CannotCarry
        inner = tuple(pairs[e] for e in self.outer)
        if [e.type for e in inner] != [f.type for f in self.fields]:
            raise CannotCarry
        return Project(pulled.base, (*pulled.outputs, *inner), (*plan.fields, *self.fields))

    def local(self, expression: Expression, at: int) -> Expression:
        """Accept only expressions that cannot fail. Raise CannotCarry."""
        if may_fail_often(expression):
            raise CannotCarry
        return super().local(expression, at)

    def value(self, index: int) -> Expression:
        """Refuse: the carried value equals the left row's by `=`, but may print differently."""
        raise CannotCarry

    def one_group(self, plan: Aggregate) -> Plan:
        """Refuse: a left row without a group would be lost."""
        raise CannotCarry


def _reordered(plan: Plan, like: Plan, split: int, k: int) -> Plan:
    """Return the plan with its carried columns, at `split`, moved to the end."""
    own = refs(plan)
    retained = own[split : split + k]
    carried = plan.fields[split : split + k]
    expressions = (*own[:split], *own[split + k :], *retained)
    return Project(plan, expressions, (*like.fields, *carried))


def _padded(kind: str, left: Plan, right: Plan) -> tuple[Field, ...]:
    fields = [left.fields, right.fields]
    for side, kinds in enumerate((("right", "full"), ("left", "full"))):
        if kind in kinds:
            fields[side] = tuple(Field(f.name, f.type) for f in fields[side])
    return fields[0] + fields[1]


def without_not_in(plan: SemiJoin) -> SemiJoin:
    """Rewrite `not in` as an anti join of rows that are equal or may be."""
    n = len(plan.left.fields)
    positions = {i: i + n for i in range(len(plan.right.fields))}
    sides = (plan.left_keys[0], _moved(plan.right_keys[0], positions))
    maybe = Call("is not false", (equality(*sides),), BOOL)
    return SemiJoin("anti", plan.left, plan.right, (), (), maybe)


def equality(left: Expression, right: Expression) -> Expression:
    """Return left = right of one type, in key form."""
    if not has_kernel("=", (left.type, right.type), BOOL):
        return InPostgres("($1 = $2)", (left, right), BOOL)
    return Call("=", (left, right), BOOL)


def _moved(expression: Expression, positions: dict[int, int] | None, by: int = 0) -> Expression:
    def change(leaf: Expression) -> Expression:
        if isinstance(leaf, ColumnRef):
            index = leaf.index + by if positions is None else positions[leaf.index]
            return replace(leaf, index=index)
        return leaf

    return map_leaves(expression, change)
