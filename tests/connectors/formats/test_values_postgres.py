"""Values of records. Oracle: PostgreSQL's own input of the same text, value and refusal alike."""

from __future__ import annotations

import random

import pytest

from connectors.formats.columns import column_of_texts
from connectors.formats.declared import declared_type
from dataflow.delta import Column
from dataflow.values import to_text
from tests.harness.postgres import Database

TRY_CAST = """
SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET bytea_output = 'hex';
SET extra_float_digits = 1;
CREATE FUNCTION cast_or_null(value text, type text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text;
BEGIN
  IF type LIKE 'json%' THEN
    EXECUTE format('SELECT (%L::%s)::text', value, type) INTO answer;
  ELSE
    -- A cast cuts texts that are too long; the input of the type does not.
    EXECUTE format('SELECT format(''%%s'', x) FROM json_to_record($1) AS r(x %s)', type)
      INTO answer USING json_build_object('x', value);
  END IF;
  RETURN answer;
EXCEPTION WHEN OTHERS THEN RETURN '!' || SQLERRM;
END $$;
"""
NUMBERS = """0|1|-1|+5|007| 12 |12 3||-|+|1.|.5|-.5|.|1.5|2.5|-2.5|0.005|1e3|1E-3|1.005e1|1e|e5|
--1|+-1|-+inf|1_000|0.1|99999.995|999.994|999.995|-999.995|1e400|1e-400|-1e-400|0e500|1e131071|
9223372036854775807|9223372036854775808|-9223372036854775808|-9223372036854775809|32767|32768|
-32768|2147483647|-2147483649|NaN|nan|-NaN|inf|+inf|-Infinity|infinity|Infinityx|-0|-0.0|-0.00|
000.100|123456789012345678901234567890.123456789|1e-50|3.4028235e38|3.4028236e38|1e-45|7e-46|
16777217|0.1e1|12345678901234567|1.7976931348623157e308|1.7976931348623159e308|4.9e-324|2e-324|
0.99999|-0.004|-0.005|9.5|99.5|0e-20|1e+2|1 e2|999999999999999999|99999999999999999.5|٣"""
TIMES = """2024-01-05|2024-1-5|2024-02-30|2023-02-29|2024-02-29|0000-01-01|0001-01-01|
0044-03-15 BC|2024-13-01|2024-00-01|2024-01-00|infinity|-infinity|+infinity|INFINITY|
2024-01-05T10:20:30|2024-01-05T10:20:30Z|2024-01-05T10:20:30z|2024-01-05t10:20:30.123456789Z|
2024-01-05 10:20:30.1234565|2024-01-05 10:20:30.1234575|2024-01-05 10:20:30.9999995|
2024-01-05 10:20:30+02|2024-01-05 10:20:30-0530|2024-01-05 10:20:30+05:45|
2024-01-05 10:20:30 +05:45|2024-01-05 10:20:30+15:59:59|2024-01-05 10:20:30+16|
2024-01-05 10:20:30+16:00|2024-01-05 10:20|2024-01-05T10:20Z|2024-01-05 24:00:00|
2024-01-05 24:00:01|2024-01-05 23:59:60|2024-01-05 23:59:60.5|2024-01-05 12:00:61|
2024-01-05 12:60:00|2024-01-05 25:00:00|2024-01-05 10:20:30.|5874897-12-31|5874898-01-01|
294276-12-31 23:59:59.999999|294277-01-01|4714-11-24 BC|4714-11-23 BC|4714-11-24 00:00:00 BC|
12:13:14|12:13:14.5|12:13|24:00:00|24:00:00.000001|12:13:14Z|12:13:14+02|1:02:03|12:1:3|
x|2024|2024-01|2024-01-05T|2024-01-05  10:20:30|-2024-01-05|2024-01-05Z|2024-01-05 UTC|
2024-01-05 10:20:30 UTC|2024-01-05T10:20:30+|2024/01/05|9999-12-31 23:59:59.9999999||
2024-01-05T10:20:30,5|23:59:60|2024-01-05T10:20:30.12"""
TEXTS = """|a|abc|abcd|abc  |abcd  | ab|äöü|äöüx|😀😀😀|\\x|\\xDEADbeef|\\xDE AD|\\xD EAD|\\xDEA|
\\x0g|\\\\|\\000|\\377|\\400|\\8|ab\\|ä"""
UUIDS = """A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11|a0eebc999c0b4ef8bb6d6bb9bd380a11|
{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}|{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11|
a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11 |a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11|
a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11-|g0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11|a-0eebc999c0b4ef8bb6d|"""
BOOLS = "t|f|true|false|TRUE|tr|yes|no|on|off|of|o|1|0|2| t |y|n||truex|T"
JSONS = r"""{}|[]|null|true|"x"|1|{"a":1}|{"bb":1, "a":2, "bb" : 3}|
[1,2.50,1e3,1E-5,-0,-0.00,1.5e1]|"\u00e9\n\t\"\\\/\b"|"\u0000"|"\ud83d\ude00"|"\ud83d"|
{"a":{"c":[{}]}} |[1,]|{a:1}|nul|NaN|Infinity|[1e400]|01|1.|.5|-|"a|"	"|
{"é":1,"z":2,"ab":3}|"\u001f\u007f"|  [ 1 ]  |"\x"|{"a"}|
{"":1}|1e131071|1e131072|[[[[]]]]|"a" "b"||1e-16383|1e-16384"""
CASES = {
    NUMBERS: (
        *("int2", "int4", "int8", "float4", "float8", "numeric", "numeric(5,2)", "numeric(18,0)"),
        *("numeric(18,18)", "numeric(3,-2)", "numeric(40,5)", "numeric(2,4)", "numeric(30,30)"),
    ),
    TIMES: ("date", "time", "timestamp", "timestamptz"),
    TEXTS: ("text", "varchar(3)", "varchar", "char(3)", "char", "bytea"),
    UUIDS: ("uuid",),
    BOOLS: ("bool",),
    JSONS: ("json", "jsonb"),
}
# What PostgreSQL takes, and we leave to no guess: the form depends on its version, or is a word.
NOT_TAKEN = {
    *("1_000", "2024", "2024-01", "2024-01-05T", "2024-01-05Z", "2024-01-05 UTC", "2024/01/05"),
    *("-2024-01-05", "12:1:3", "1:02:03", "2024-01-05T10:20:30,5", "-NaN"),
}


@pytest.fixture
def oracle(database: Database) -> Database:
    database.execute(TRY_CAST)
    return database


def cast_all(oracle: Database, type_name: str, texts: list[str]) -> list[str]:
    """PostgreSQL's text of each cast, or ! and its error."""
    found = oracle.rows(
        "SELECT cast_or_null(t, %s) FROM unnest(%s::text[]) WITH ORDINALITY AS u(t, n) ORDER BY n",
        (type_name, texts),
    )
    return [row[0] for row in found]


def is_left_out(type_name: str, text: str) -> bool:
    return text in NOT_TAKEN or (type_name == "time" and "-" in text[1:7])


def compare(oracle: Database, type_name: str, texts: list[str]) -> int:
    """Every text of the type as we and PostgreSQL read it; how many were taken."""
    type, _ = declared_type(type_name)
    expected = cast_all(oracle, type_name, texts)
    column, faults = column_of_texts(type, Column.of("s", texts))
    answers = to_text(type, column).texts()
    wrong = []
    for row, (text, want, got) in enumerate(zip(texts, expected, answers, strict=True)):
        if want is None or want.startswith("!"):
            if row not in faults or got is not None:
                wrong.append((text, want, got))
        elif got != want and not (row in faults and is_left_out(type_name, text.strip())):
            wrong.append((text, want, got, faults.get(row)))
    assert not wrong, "\n".join(map(str, wrong))
    return len(texts) - len(faults)


@pytest.mark.parametrize(
    ("type_name", "cases"), [(name, texts) for texts, names in CASES.items() for name in names]
)
def test_values_are_those_of_postgres(oracle: Database, type_name: str, cases: str) -> None:
    texts = cases.replace("|\n", "|").split("|")
    assert compare(oracle, type_name, texts) > 2


@pytest.mark.parametrize("seed", range(3))
def test_random_numbers_are_those_of_postgres(oracle: Database, seed: int) -> None:
    draw = random.Random(seed)
    texts = []
    for _ in range(2000):
        whole = "".join(draw.choices("0123456789", k=draw.choice([0, 1, 1, 2, 3, 9, 20])))
        part = "".join(draw.choices("0123456789", k=draw.choice([0, 1, 2, 3, 6, 18])))
        text = draw.choice(["", "-", "-", "+"]) + whole
        text += f".{part}" if part or draw.random() < 0.1 else ""
        text += f"e{draw.randint(-30, 30)}" if draw.random() < 0.3 else ""
        texts.append(text)
    for type_name in ("numeric", "numeric(9,3)", "numeric(18,2)", "numeric(25,4)", "numeric(6,-1)"):
        compare(oracle, type_name, texts)
    compare(oracle, "int4", texts)
    compare(oracle, "float8", texts)
    compare(oracle, "float4", texts)


def test_a_bad_value_spoils_nothing_else() -> None:
    type, _ = declared_type("varchar(2)")
    column, faults = column_of_texts(type, Column.of("s", ["ab", "abc", None, "c\0", "d"]))
    assert column.to_list() == [b"ab", None, None, None, b"d"]
    assert sorted(faults) == [1, 3]


def test_bytes_that_are_no_text_are_bad() -> None:
    type, _ = declared_type("char(2)")
    column, faults = column_of_texts(type, Column.of("s", ["a", None, "b"]))
    assert column.to_list() == [b"a ", None, b"b "] and not faults
