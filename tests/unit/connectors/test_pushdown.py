"""Oracle: conditions evaluated row by row, as `Condition.holds` does."""

from __future__ import annotations

import datetime
from decimal import Decimal
from itertools import product
from random import Random

import pytest

from connectors.pushdown import (
    PushdownCondition,
    PushdownRequirement,
    covers,
    follows,
    united,
)
from connectors.python.conditions import condition_facts, read_condition
from tests.harness import tiers

SEEDS = tiers.count("TIDEMARK_PUSHDOWN_SEEDS", 20, 100)
DAYS = [f"2024-01-0{n}" for n in range(1, 5)]
# Of each column: the kinds of its conditions, constants, and the values of its rows.
COLUMNS = {
    "n": (["int", "decimal"], ["1", "2", "3"], [None, 0, 1, 2, 3, 4]),
    "d": (["decimal"], ["1.5", "2", "NaN"], [None, Decimal("1.5"), Decimal(2), Decimal("NaN")]),
    "t": (["text"], ["a", "b", "A"], [None, "a", "b", "c", "A"]),
    "day": (
        ["date"],
        [*DAYS, "infinity"],
        [None, *(datetime.date.fromisoformat(day) for day in DAYS)],
    ),
}
ORDERED = ["=", "<>", "<", "<=", ">", ">=", "in", "is null", "is not null"]
ROWS = [dict(zip(COLUMNS, row, strict=True)) for row in product(*(c[2] for c in COLUMNS.values()))]


def condition(draw: Random) -> PushdownCondition:
    column = draw.choice(list(COLUMNS))
    kinds, constants, _ = COLUMNS[column]
    operator = draw.choice(["=", "<>", "in", "is not null"] if column == "t" else ORDERED)
    if operator.startswith("is"):
        return PushdownCondition(column, operator, "text", ())
    count = draw.randint(1, 3) if operator == "in" else 1
    return PushdownCondition(
        column, operator, draw.choice(kinds), tuple(draw.sample(constants, count))
    )


def requirement(draw: Random) -> PushdownRequirement:
    columns = tuple(sorted(draw.sample(list(COLUMNS), draw.randint(1, 3))))
    found = tuple(condition(draw) for _ in range(draw.choice([0, 1, 1, 2, 3])))
    return PushdownRequirement(columns, found)


def holds(required: PushdownRequirement, row: dict[str, object]) -> bool:
    """Return True for a row that is needed; of a constant that Python lacks, as if it always is."""
    read = [read_condition(condition_facts(c)) for c in required.conditions]
    return all(c is None or c.holds(row[c.column]) for c in read)


def is_readable(required: PushdownRequirement) -> bool:
    return all(read_condition(condition_facts(c)) is not None for c in required.conditions)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_union_has_every_row_that_any_part_needs(seed: int) -> None:
    draw = Random(f"pushdown {seed}")
    for _ in range(10):
        parts = [requirement(draw) for _ in range(draw.randint(1, 4))]
        whole = united(parts)
        for part in parts:
            assert covers(whole, part), (whole, part)
            assert set(part.columns) <= set(whole.columns)
        assert PushdownRequirement.of(whole.facts()) == whole
        if not all(map(is_readable, parts)):
            continue
        rows = draw.sample(ROWS, 60)
        for row in rows:
            assert holds(whole, row) or not any(holds(p, row) for p in parts), (row, parts, whole)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_covers_a_need_has_its_rows(seed: int) -> None:
    draw = Random(f"covers {seed}")
    covered = 0
    for _ in range(300):
        wide, needed = requirement(draw), requirement(draw)
        if covers(wide, needed) and is_readable(needed) and is_readable(wide):
            covered += 1
            for row in draw.sample(ROWS, 60):
                assert holds(wide, row) or not holds(needed, row), (row, wide, needed)
    assert covered


def _is(column: str, operator: str, *values: str, kind: str = "int") -> PushdownCondition:
    return PushdownCondition(column, operator, kind, values)


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([[_is("a", "=", "1")], [_is("a", "=", "2")]], ["a in ('1', '2')"]),
        ([[_is("a", "=", "1")], [_is("a", "in", "1", "3")]], ["a in ('1', '3')"]),
        ([[_is("a", ">", "5")], [_is("a", ">=", "3")]], ["a >= '3'"]),
        ([[_is("a", ">", "5")], [_is("a", "<", "3")]], ["a is not null"]),
        ([[_is("a", "=", "9")], [_is("a", ">", "3")]], ["a > '3'"]),
        ([[_is("a", "=", "1")], [_is("a", ">", "3")]], ["a >= '1'"]),
        (
            [[_is("a", ">=", "1"), _is("a", "<", "5")], [_is("a", ">", "2"), _is("a", "<=", "9")]],
            ["a <= '9'", "a >= '1'"],
        ),
        ([[_is("a", "=", "1")], []], []),
        ([[_is("a", "=", "1")], [_is("b", "=", "1")]], []),
        ([[_is("a", "is null")], [_is("a", "=", "1")]], []),
        ([[_is("a", "<>", "1")], [_is("a", "<>", "1")]], ["a <> '1'"]),
        ([[_is("a", ">", "b", kind="text")], [_is("a", ">", "a", kind="text")]], ["a is not null"]),
    ],
)
def test_what_a_union_is(parts: list[list[PushdownCondition]], whole: list[str]) -> None:
    found = united([PushdownRequirement(("a",), tuple(conditions)) for conditions in parts])
    assert [c.text for c in found.conditions] == whole


def test_a_long_list_is_not_united() -> None:
    lists = [tuple(map(str, range(n, n + 600))) for n in (0, 600)]
    parts = [PushdownRequirement(("a",), (_is("a", "in", *values),)) for values in lists]
    found = [c.text for c in united(parts).conditions]
    assert found == ["a <= '1199'", "a >= '0'"]


def test_what_follows_from_a_condition() -> None:
    assert follows(_is("a", ">=", "3"), [_is("a", ">", "3")])
    assert not follows(_is("a", ">", "3"), [_is("a", ">=", "3")])
    assert follows(_is("a", ">", "3.5", kind="decimal"), [_is("a", "in", "4", "5")])
    assert not follows(_is("a", "=", "1"), [_is("b", "=", "1")])
