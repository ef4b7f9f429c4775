"""Oracle: what the functions make of each row, recomputed in plain Python over all rows there are.

The functions themselves run in a real PostgreSQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.graph import ViewDataflow
from dataflow.operators import table_function
from dataflow.plan.nodes import Plan, Scan, SetCall, TableFunction, Values
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import BOOL, INT4, INT8
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.postgres import Database

FIELDS = (Field("n", INT4), Field("k", INT4))
RELATION = Relation(RelationName("s", "public", "t"), 1, FIELDS, is_full=True)
SCAN = Scan(RELATION, (0, 1), FIELDS)
N, K = ColumnRef(0, INT4, "n"), ColumnRef(1, INT4, "k")
MADE = Field("made", INT4)
Row = tuple[int | None, ...]


@pytest.fixture
def evaluator(database: Database) -> Iterator[PostgresEvaluator]:
    made = PostgresEvaluator(database.dsn)
    yield made
    made.close()


@pytest.fixture(params=["memory", "rocks"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """The store as after a restart, each time it is called."""
    opened: list[Store] = []

    def again() -> Store:
        if request.param == "memory":
            opened[:] = opened or [MemoryStore()]
        else:
            if opened:
                opened.pop().close()
            opened.append(RocksStore(tmp_path / "state"))
        return opened[0]

    yield again
    opened[0].close()


def call(sql: str, *arguments: Expression) -> SetCall:
    return SetCall(sql, arguments, (MADE,), 1, (0,))


def function(input: Plan, *calls: SetCall, **options) -> TableFunction:
    fields = input.fields + tuple(f for c in calls for f in c.fields)
    has_ordinality = options.pop("has_ordinality", False)
    if has_ordinality:
        fields += (Field("ordinality", INT8, False),)
    is_outer = options.pop("is_outer", False)
    return TableFunction(input, calls, has_ordinality, is_outer, fields, **options)


def series(n: int | None) -> list[int]:
    return [] if n is None else list(range(1, n + 1))


def beside(rows: Row, *columns: list) -> list[Row]:
    longest = max(map(len, columns))
    padded = [c + [None] * (longest - len(c)) for c in columns]
    return [(*rows, *cells) for cells in zip(*padded, strict=True)]


def numbered(row: Row) -> list[Row]:
    made = beside(row, series(row[0]), series(row[1]))
    return [(*r, i) for i, r in enumerate(made, 1)]


def outer(row: Row) -> list[Row]:
    made = [(*row, m) for m in series(row[0]) if row[1] is not None and m > row[1]]
    return made or [(*row, None)]


FIRST, SECOND = call("generate_series(1, $1)", N), call("generate_series(1, $1)", K)
LARGER = Call(">", (ColumnRef(2, INT4), K), BOOL)
NESTED = call("generate_series(1, generate_series(1, $1))", N)
CASES: dict[str, tuple[TableFunction, Callable[[Row], list[Row]]]] = {
    "one": (function(SCAN, FIRST), lambda r: beside(r, series(r[0]))),
    "padded": (function(SCAN, FIRST, SECOND, has_ordinality=True), numbered),
    "outer": (function(SCAN, FIRST, is_outer=True, condition=LARGER), outer),
    "constant": (
        function(SCAN, call("generate_series(1, 2)")),
        lambda r: [(*r, 1), (*r, 2)],
    ),
    "selected": (
        function(SCAN, FIRST, call("$1 * generate_series(1, 3)", K), in_select=True),
        lambda r: beside(r, series(r[0]), [None if r[1] is None else r[1] * i for i in (1, 2, 3)]),
    ),
    "nested": (
        function(SCAN, NESTED, in_select=True),
        lambda r: [(*r, m) for n in series(r[0]) for m in series(n)],
    ),
    "alike": (function(SCAN, call("unnest(ARRAY[$1, $1])", N)), lambda r: [(*r, r[0])] * 2),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_follow_their_rows(
    name: str,
    reopen: Callable[[], Store],
    evaluator: PostgresEvaluator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_function, "SLICE_ROWS", 4)
    plan, made_of = CASES[name]
    random, errors = Random(name), ErrorRows()
    there: Counter[Row] = Counter()
    out: Counter[Row] = Counter()
    for epoch in range(12):
        if epoch % 5 == 0:
            store = reopen()
            flow = ViewDataflow(lower(plan), "v", store, evaluator, errors)
        change = _change(random, there, epoch)
        delta = flow.step({RELATION.name: Delta.of("ii", change.keys(), change.values())})
        store.commit()
        assert len(set(delta.rows())) == len(delta)
        for row, weight in delta.rows():
            out[row] += weight
        expected = Counter[Row]()
        for row, weight in there.items():
            for made in made_of(row):
                expected[made] += weight
        assert +out == expected
        assert all(weight >= 0 for weight in out.values())
    assert not errors.take().rows()


def _change(random: Random, there: Counter[Row], epoch: int) -> dict[Row, int]:
    """Rows that come and go, often and at once; all of them go once."""
    change: Counter[Row] = Counter()
    for row, weight in list(there.items()):
        if epoch == 7 or random.random() < 0.4:
            change[row] -= random.randint(1, weight) if epoch != 7 else weight
    for _ in range(random.choice([0, 1, 9])):
        row = tuple(random.choice([None, -1, 0, 1, 2, 5]) for _ in range(2))
        change[row] += random.randint(1, 3)
    kept = {row: weight for row, weight in change.items() if weight}
    there.update(kept)
    for row in [row for row, weight in there.items() if not weight]:
        del there[row]
    return kept


def test_a_row_that_fails_is_an_error_row_until_it_goes(evaluator: PostgresEvaluator) -> None:
    plan = function(SCAN, call("generate_series(1, 4, $1)", N))
    errors = ErrorRows()
    flow = ViewDataflow(lower(plan), "v", MemoryStore(), evaluator, errors)
    delta = flow.step({RELATION.name: Delta.of("ii", [(0, 1), (2, 1)], [2, 1])})
    assert sorted(delta.rows()) == [((2, 1, 1), 1), ((2, 1, 3), 1)]
    assert [(row[1], weight) for row, weight in errors.take().rows()] == [(b"22023", 2)]
    delta = flow.step({RELATION.name: Delta.of("ii", [(0, 1), (3, 1)], [-2, 1])})
    assert sorted(delta.rows()) == [((3, 1, 1), 1), ((3, 1, 4), 1)]
    assert [(row[1], weight) for row, weight in errors.take().rows()] == [(b"22023", -2)]


def test_an_outer_row_whose_condition_fails_is_an_error_row(evaluator: PostgresEvaluator) -> None:
    share = Call("/", (Literal("6", INT4), ColumnRef(2, INT4)), INT4)
    large = Call(">", (share, Literal("2", INT4)), BOOL)
    made = call("generate_series($1, 3)", N)
    plan = function(SCAN, made, is_outer=True, condition=large)
    errors = ErrorRows()
    flow = ViewDataflow(lower(plan), "v", MemoryStore(), evaluator, errors)
    delta = flow.step({RELATION.name: Delta.of("ii", [(0, 1), (1, 1), (3, 1)])})
    expected = [((1, 1, 1), 1), ((1, 1, 2), 1), ((3, 1, None), 1)]
    assert sorted(delta.rows(), key=str) == sorted(expected, key=str)
    assert [(row[1], weight) for row, weight in errors.take().rows()] == [(b"22012", 1)]


def test_functions_of_constants_are_called_once(evaluator: PostgresEvaluator) -> None:
    asked: list[int] = []

    class Counting(PostgresEvaluator):
        def evaluate_groups(self, sql, types, columns, groups, results):
            asked.append(len(groups))
            return super().evaluate_groups(sql, types, columns, groups, results)

    counting = Counting(evaluator.dsn)
    try:
        plan = function(SCAN, call("generate_series(1, 3)"))
        flow = ViewDataflow(lower(plan), "v", MemoryStore(), counting, ErrorRows())
        for n in range(3):
            assert len(flow.step({RELATION.name: Delta.of("ii", [(n, 1)])})) == 3
    finally:
        counting.close()
    assert asked == [1]


def test_rows_of_constants_come_once(
    reopen: Callable[[], Store], evaluator: PostgresEvaluator
) -> None:
    nothing = Values(((),), ())
    nodes = lower(function(nothing, call("generate_series(1, 3)")))
    store = reopen()
    flow = ViewDataflow(nodes, "v", store, evaluator, ErrorRows())
    assert sorted(flow.seed().rows()) == [((1,), 1), ((2,), 1), ((3,), 1)]
    store.commit()
    again = ViewDataflow(nodes, "v", reopen(), evaluator, ErrorRows())
    assert not again.seed().rows()
