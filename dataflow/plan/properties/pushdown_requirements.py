"""The requirements of a plan on each relation: the columns that it reads, and plain conditions on
them.

Invariant: rows that violate a condition are dropped directly above every scan of the relation, so a
source may omit them without changing any answer. Conditions that another system could evaluate
differently (text by a collation, padded text, arrays) are left out: extra rows are always correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan.nodes import Filter, Plan, Scan, inputs_of
from dataflow.plan.walk import conjuncts, nodes_of
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import SqlType, TypeKind

_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# The negation of a comparison; where it is NULL, neither holds.
_NEGATED = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "is null": "is not null",
    "is not null": "is null",
}
_INTS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)
_NAMES = {
    **dict.fromkeys(_INTS, "int"),
    **dict.fromkeys((TypeKind.FIXED, TypeKind.DECIMAL), "decimal"),
    **{
        kind: kind.value
        for kind in (
            TypeKind.BOOL,
            TypeKind.TEXT,
            TypeKind.DATE,
            TypeKind.TIMESTAMP,
            TypeKind.TIMESTAMPTZ,
            TypeKind.UUID,
        )
    },
    TypeKind.FLOAT8: "float",
}
_NUMBERS = ("int", "decimal")
# Under these, equal texts are equal bytes, but order is the collation's.
_OF_TEXT = ("=", "<>", "in")
_NOT_COMMON = "the view reads the relation a second time without it"


@dataclass(frozen=True)
class PushedCondition:
    """One condition. kind: bool, int, decimal, float, text, date, timestamp, timestamptz or uuid;
    values: as PostgreSQL prints them, none for "is null" and "is not null"."""

    column: str
    operator: str
    kind: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class ScanFilter:
    """A condition that is evaluated directly above scans of a relation.

    fields: those that its column references count. condition: in simple form, None if a source
    could not evaluate it; why_not: why a source must not omit rows by it, "" if it may.
    """

    predicate: Expression
    fields: tuple[Field, ...]
    condition: PushedCondition | None
    why_not: str


@dataclass(frozen=True)
class PushdownRequirements:
    """The requirements on one relation: the union of the columns read, the conditions common to all
    scans. unread: its other columns. filters: all conditions above any scan."""

    relation: RelationName
    columns: tuple[str, ...]
    conditions: tuple[PushedCondition, ...]
    unread: tuple[str, ...] = ()
    filters: tuple[ScanFilter, ...] = ()


def requirements_of(root: Plan) -> tuple[PushdownRequirements, ...]:
    """Return the requirements of a plan, after the rules, on the relations that it reads, each
    once."""
    relations: dict[RelationName, Relation] = {}
    columns: dict[RelationName, dict[str, None]] = {}
    readings: dict[RelationName, list[list[ScanFilter]]] = {}
    for scan, found in _readings(root):
        name = scan.relation.name
        relations.setdefault(name, scan.relation)
        read = [scan.relation.fields[i].name for i in scan.columns]
        columns.setdefault(name, {}).update(dict.fromkeys(read))
        readings.setdefault(name, []).append(found)
    return tuple(
        _required(relations[name], tuple(read), readings[name]) for name, read in columns.items()
    )


def _required(
    relation: Relation, columns: tuple[str, ...], readings: Sequence[Sequence[ScanFilter]]
) -> PushdownRequirements:
    """readings: the filters of each reader of a scan."""
    by_reading = [{f.condition: None for f in filters if f.condition} for filters in readings]
    common = [c for c in by_reading[0] if all(c in others for others in by_reading)]
    filters: dict[tuple[Expression, tuple[Field, ...]], ScanFilter] = {}
    for found in (f for one in readings for f in one):
        if found.condition is not None and found.condition not in common:
            found = replace(found, why_not=_NOT_COMMON)
        filters.setdefault((found.predicate, found.fields), found)
    unread = tuple(f.name for f in relation.fields if f.name not in columns)
    shown = tuple(filters.values())
    return PushdownRequirements(relation.name, columns, tuple(common), unread, shown)


def _readings(root: Plan) -> Iterator[tuple[Scan, list[ScanFilter]]]:
    """Return each scan with the filters of each of its readers."""
    nodes = nodes_of(root)
    if isinstance(root, Scan):
        yield root, []
    for node in nodes:
        for below in inputs_of(node):
            if isinstance(below, Scan):
                parts = conjuncts(node.predicate) if isinstance(node, Filter) else []
                yield below, [_filter(part, below) for part in parts]


def _filter(part: Expression, scan: Scan) -> ScanFilter:
    condition = _condition(part, scan)
    why_not = "" if condition else _why_not(part)
    return ScanFilter(part, scan.fields, condition, why_not)


def _why_not(part: Expression) -> str:
    """Return why a conjunct is no condition that another system could evaluate."""
    if isinstance(part, Call) and part.function == "not":
        return _why_not(part.arguments[0])
    is_compared = isinstance(part, Call) and part.function in (*_MIRRORED, "in")
    operands = part.arguments if isinstance(part, Call) and is_compared else ()
    plain = [o for o in operands if isinstance(_uncast(o), ColumnRef)]
    if len(plain) != 1 or not all(isinstance(o, Literal) for o in operands if o not in plain):
        return "it is no comparison of one column with constants"
    kind = plain[0].type.kind
    if kind is TypeKind.TEXT:
        return "the order and equality of this text depend on its collation in PostgreSQL"
    return f"PostgreSQL has its own way to compare values of {plain[0].type.name}"


def _condition(part: Expression, scan: Scan) -> PushedCondition | None:
    """Return one conjunct as a condition on a column, if it is one."""
    if isinstance(part, ColumnRef):
        found = _column(part, scan)
        return (
            PushedCondition(found[0], "=", "bool", ("t",)) if found and found[1] == "bool" else None
        )
    if not isinstance(part, Call) or not part.arguments:
        return None
    if part.function == "not":
        return _negated(part.arguments[0], scan)
    if part.function in ("is null", "is not null"):
        column = part.arguments[0]
        if isinstance(column, ColumnRef):
            name = scan.relation.fields[scan.columns[column.index]].name
            return PushedCondition(name, part.function, "text", ())
        return None
    first, *rest = part.arguments
    operator = part.function
    if operator in _MIRRORED and len(rest) == 1 and isinstance(first, Literal):
        first, rest, operator = rest[0], [first], _MIRRORED[operator]
    if operator != "in" and operator not in _MIRRORED:
        return None
    return _compared(first, operator, rest, scan)


def _negated(part: Expression, scan: Scan) -> PushedCondition | None:
    condition = _condition(part, scan)
    if condition is None or condition.operator not in _NEGATED:
        return None
    if condition.kind == "bool" and condition.operator == "=":
        other = "f" if condition.values == ("t",) else "t"
        return replace(condition, values=(other,))
    return replace(condition, operator=_NEGATED[condition.operator])


def _compared(
    first: Expression, operator: str, values: Sequence[Expression], scan: Scan
) -> PushedCondition | None:
    column = _column(first, scan)
    if column is None or not values:
        return None
    name, kind, type = column
    texts, kinds = [], set()
    for value in values:
        if not isinstance(value, Literal) or value.text is None:
            return None
        texts.append(value.text)
        kinds.add(_NAMES.get(value.type.kind))
    if kind == "text" and (not type.is_deterministic or operator not in _OF_TEXT):
        return None
    if kinds == {kind}:
        return PushedCondition(name, operator, kind, tuple(texts))
    if kind in _NUMBERS and kinds <= set(_NUMBERS):
        return PushedCondition(name, operator, "decimal", tuple(texts))
    return None


def _column(part: Expression, scan: Scan) -> tuple[str, str, SqlType] | None:
    """Return (name, kind, type) of a plain column, also of a varchar that is read as text."""
    part = _uncast(part)
    if not isinstance(part, ColumnRef):
        return None
    kind = _NAMES.get(part.type.kind)
    field = scan.relation.fields[scan.columns[part.index]]
    return None if kind is None else (field.name, kind, part.type)


def _uncast(part: Expression) -> Expression:
    """Return the column of a varchar that is read as text; others as they are."""
    if (
        isinstance(part, Call)
        and part.function == "cast"
        and len(part.arguments) == 1
        and part.type.kind is TypeKind.TEXT
        and isinstance(part.arguments[0], ColumnRef)
        and part.arguments[0].type.kind is TypeKind.TEXT
    ):
        return part.arguments[0]
    return part
