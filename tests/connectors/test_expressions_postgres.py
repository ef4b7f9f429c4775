"""Oracle: a real PostgreSQL computes each expression row by row; ours must give the same text.

Value, display scale, NULL, and for a row that fails the same SQLSTATE and message.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
import psycopg2.extensions
import pytest

from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from dataflow.delta import Column
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.functions import has_kernel
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.expressions.keys import common_key_forms, key_form
from dataflow.types import BOOL, SESSION_SETTINGS, SqlType, TypeKind, sql_type
from dataflow.values import from_text, to_text
from tests.connectors.expression_cases import FAMILIES, KEY_PAIRS, KEYS, Case
from tests.connectors.expression_values import VALUES

ATTEMPT = """
CREATE FUNCTION attempt(expression text, last int)
RETURNS TABLE (id int, value text, state text, complaint text) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 0..last LOOP
    id := i; value := NULL; state := ''; complaint := '';
    BEGIN
      EXECUTE 'SELECT CASE WHEN x IS NOT DISTINCT FROM NULL THEN NULL ELSE format(''%s'', x) END'
        ' FROM (SELECT ' || expression || ' AS x FROM given WHERE id = $1 OFFSET 0) s'
        INTO value USING i;
    EXCEPTION WHEN OTHERS THEN state := SQLSTATE; complaint := SQLERRM;
    END;
    RETURN NEXT;
  END LOOP;
END $$
"""


class Server:
    """The evaluator of the expressions, and the session that is their oracle."""

    def __init__(self, connection: psycopg2.extensions.connection, dsn: str) -> None:
        self.evaluator = PostgresEvaluator(dsn)
        self.cursor = connection.cursor()
        for name, value in SESSION_SETTINGS.items():
            self.cursor.execute(f"SET {name} TO '{value}'")
        self.cursor.execute(ATTEMPT)
        self.types: dict[str, SqlType] = {}

    def type_of(self, expression: str, source: str = "") -> SqlType:
        """The type of an expression over a FROM clause, as the analyzer asks for it."""
        self.cursor.execute(f"CREATE TEMP VIEW asked AS SELECT {expression} AS x {source}")
        self.cursor.execute(
            "SELECT format_type(atttypid, atttypmod), atttypid::int, atttypmod FROM pg_attribute"
            " WHERE attrelid = 'asked'::regclass"
        )
        name, oid, typmod = self.cursor.fetchone()  # type: ignore[misc]
        self.cursor.execute("DROP VIEW asked")
        return sql_type(name, oid, typmod)

    def named(self, name: str) -> SqlType:
        """The type of this name."""
        if name not in self.types:
            self.types[name] = self.type_of(f"NULL::{name}")
        return self.types[name]

    def give(
        self, types: Sequence[SqlType], texts: Sequence[Sequence[str | None]]
    ) -> tuple[list[Column], int]:
        """Fill the table `given` with columns c0, c1 ...: its columns and number of rows."""
        columns = "".join(f", c{i} {t.name}" for i, t in enumerate(types))
        self.cursor.execute("DROP TABLE IF EXISTS given")
        self.cursor.execute(f"CREATE TEMP TABLE given (id int primary key{columns})")
        slots = ", ".join(["%s"] * (len(types) + 1))
        rows = list(zip(*texts, strict=True))
        for at in range(0, len(rows), 500):
            part = [(at + i, *row) for i, row in enumerate(rows[at : at + 500])]
            values = b", ".join(self.cursor.mogrify(f"({slots})", row) for row in part)
            self.cursor.execute(b"INSERT INTO given VALUES " + values)
        columns = []
        for i, type in enumerate(types):
            output = f"CASE WHEN c{i} IS DISTINCT FROM NULL THEN format('%s', c{i}) END"
            self.cursor.execute(f"SELECT {output} FROM given ORDER BY id")
            shown = Column.of("s", [row[0] for row in self.cursor.fetchall()])
            columns.append(from_text(type, shown))
        return columns, len(rows)

    def ask(self, sql: str, n: int) -> list[tuple[str | None, str, str]]:
        """(value, SQLSTATE, error) of an expression over each row of `given`."""
        self.cursor.execute("SELECT value, state, complaint FROM attempt(%s, %s)", (sql, n - 1))
        return self.cursor.fetchall()


@pytest.fixture(scope="module")
def server(every_postgres) -> Iterator[Server]:
    dsn = every_postgres.dsn_of("postgres")
    connection = psycopg2.connect(dsn)
    made = Server(connection, dsn)
    try:
        yield made
    finally:
        made.evaluator.close()
        connection.close()


def rows_for(types: Sequence[SqlType]) -> list[list[str | None]]:
    """Columns of every combination of the types' values and NULL."""
    domains = [[*VALUES[t.name], None] for t in types]
    if len(domains) > 2:
        domains = [[*domain[:6], None] for domain in domains]
    return [list(column) for column in zip(*itertools.product(*domains), strict=True)]


def bind(case: Case, server: Server) -> tuple[Call, str, list[Column], int]:
    """The call as the binder would make it, its sql over `given`, and its input."""
    names = [a for a in case.arguments if isinstance(a, str)]
    types = [server.named(name) for name in names]
    texts = rows_for(types)
    columns, n = server.give(types, texts)
    numbers = itertools.count()
    arguments: list[Expression] = []
    spelled = []
    for argument in case.arguments:
        if isinstance(argument, Literal):
            value = server.cursor.mogrify("%s", (argument.text,)).decode()
            arguments.append(argument)
            spelled.append(f"({value}::{argument.type.name})")
        else:
            i = next(numbers)
            arguments.append(ColumnRef(i, types[i]))
            spelled.append(f"c{i}")
    sql = case.sql.format(*spelled)
    result = server.type_of(sql, "FROM given")
    return Call(case.function, tuple(arguments), result), sql, columns, n


def same(ours: str | None, theirs: str | None, type: SqlType) -> bool:
    if ours == theirs or ours is None or theirs is None:
        return ours == theirs
    if type.kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
        return math.isclose(float(ours), float(theirs), rel_tol=1e-9)
    return False


def check(server: Server, call: Expression, sql: str, columns: list[Column], n: int) -> None:
    compiled = compile_expression(call, server.evaluator)
    column, errors = compiled.evaluate(columns, n)
    assert len(column) == n
    blank = column.take((~column.mask()).nonzero()[0])
    assert not blank.values.any(), "a NULL slot holds something"
    ours = to_text(call.type, column).texts()
    theirs = server.ask(sql, n)
    inputs = [c.texts() if c.data is not None else c.to_list() for c in columns]
    wrong = []
    for row, (value, state, complaint) in enumerate(theirs):
        failed = errors.by_row.get(row)
        expected = (state, complaint) if state else None
        if failed != expected or (not state and not same(ours[row], value, call.type)):
            given = tuple(column[row] for column in inputs)
            wrong.append(f"{given}: ours {failed or ours[row]!r}, theirs {expected or value!r}")
    assert not wrong, f"{sql} [{call.type.name}]: {len(wrong)} of {n}\n" + "\n".join(wrong[:8])


@pytest.mark.parametrize(
    "case",
    [
        # In the fast tier one of three, and the first of each family.
        pytest.param(c, id=f"{family}:{c}", marks=[pytest.mark.whole] if n % 3 else [])
        for family, cases in FAMILIES.items()
        for n, c in enumerate(cases)
    ],
)
def test_native_equals_postgres(case: Case, server: Server) -> None:
    call, sql, columns, n = bind(case, server)
    types = tuple(a.type for a in call.arguments)
    assert has_kernel(call.function, types, call.type), "nothing native to compare"
    check(server, call, sql, columns, n)
    # One row at a time takes the paths where a row looks like a constant.
    ours, errors = compile_expression(call, server.evaluator).evaluate(columns, n)
    for row in range(0, n, max(1, n // 7)):
        one = [c.take(slice_of(row)) for c in columns]
        column, one_errors = compile_expression(call, server.evaluator).evaluate(one, 1)
        assert column.to_list() == ours.take(slice_of(row)).to_list() or (
            str(column.to_list()) == str(ours.take(slice_of(row)).to_list())
        )
        assert one_errors.by_row.get(0) == errors.by_row.get(row)
    empty, none = compile_expression(call, server.evaluator).evaluate(
        [c.slice(0, 0) for c in columns], 0
    )
    assert len(empty) == 0 and not none
    check_as_branch(server, call, columns, n)


def check_as_branch(server: Server, call: Expression, columns: list[Column], n: int) -> None:
    """In every other row the value, in the rest NULL: both are of one form."""
    flags = Column(np.arange(n) % 2 == 0)
    condition = ColumnRef(len(columns), BOOL)
    branch = Call("case", (condition, call, Literal(None, call.type)), call.type)
    whole, failed = compile_expression(call, server.evaluator).evaluate(columns, n)
    half, half_failed = compile_expression(branch, server.evaluator).evaluate([*columns, flags], n)
    texts = to_text(call.type, whole).texts()
    assert to_text(call.type, half).texts() == [
        text if flag else None for text, flag in zip(texts, flags.values, strict=True)
    ]
    assert half_failed.by_row == {r: e for r, e in failed.by_row.items() if flags.values[r]}


def slice_of(row: int) -> np.ndarray:
    return np.array([row], np.int64)


def random_numeric(dice: random.Random) -> str:
    digits = dice.choice((1, 3, 4, 5, 8, 15, 17, 25))
    number = str(dice.randrange(10**digits))
    places = dice.choice((0, 0, 1, 2, 4, 6, 9, 18))
    return dice.choice(("", "-")) + (
        f"{number}.{'0' * dice.randrange(3)}{number[:places]}"
        if places and dice.random() < 0.5
        else f"0.{number.zfill(places + 1)}"
    )


@pytest.mark.parametrize("function", ["+", "-", "*", "/", "%", "<", "="])
def test_random_numerics(function: str, server: Server) -> None:
    dice = random.Random(7)
    types = [server.named("numeric")] * 2
    columns, n = server.give(types, [[random_numeric(dice) for _ in range(1500)] for _ in types])
    sql = f"(c0 {function} c1)"
    result = server.type_of(sql, "FROM given")
    call = Call(function, (ColumnRef(0, types[0]), ColumnRef(1, types[1])), result)
    check(server, call, sql, columns, n)
    # Few at a time, so that short numbers are not computed along with long ones.
    compiled = compile_expression(call, server.evaluator)
    whole = compiled.evaluate(columns, n)[0].to_list()
    for row in range(0, n, 3):
        part = [c.slice(row, row + 3) for c in columns]
        assert compiled.evaluate(part, 3)[0].to_list() == whole[row : row + 3]


@pytest.mark.parametrize("name", KEYS)
def test_key_form_is_equality(name: str, server: Server) -> None:
    type = server.named(name)
    texts = rows_for([type, type])
    columns, n = server.give([type, type], texts)
    keys = []
    for i, column in enumerate(columns):
        form = key_form(ColumnRef(0, type))
        assert form is not None
        key, errors = compile_expression(form, server.evaluator).evaluate([column], n)
        assert not errors, i
        check_as_branch(server, form, [column], n)
        keys.append(key)
    compare_keys(server, keys, texts, n)


@pytest.mark.parametrize(("left", "right"), KEY_PAIRS)
def test_common_key_forms_are_equality(left: str, right: str, server: Server) -> None:
    types = [server.named(left), server.named(right)]
    texts = rows_for(types)
    columns, n = server.give(types, texts)
    forms = common_key_forms(ColumnRef(0, types[0]), ColumnRef(1, types[1]))
    assert forms is not None
    keys = []
    for form in forms:
        key, errors = compile_expression(form, server.evaluator).evaluate(columns, n)
        assert not errors
        keys.append(key)
    compare_keys(server, keys, texts, n)


def compare_keys(server: Server, keys: list[Column], texts, n: int) -> None:
    theirs = server.ask("c0 = c1", n)
    left, right = keys
    assert left.kind == right.kind
    bits = [
        c.values.view("int64").tolist() if c.kind == "f" else c.to_list() for c in (left, right)
    ]
    valid = left.mask() & right.mask()
    for row in range(n):
        given = tuple(column[row] for column in texts)
        ours = ("t" if bits[0][row] == bits[1][row] else "f") if valid[row] else None
        assert ours == theirs[row][0], given
