"""JSON records. Oracle: PostgreSQL's json_to_record over the same text, record by record."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from connectors.formats.declared import declare_columns
from connectors.formats.open_format import open_format
from connectors.formats.record_format import Decoded
from dataflow.errors import SourceError
from dataflow.values import to_text
from tests.harness.postgres import Database

FIELD = """
SET TimeZone = 'UTC'; SET extra_float_digits = 1;
CREATE FUNCTION field_of(doc text, path text[], type text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text; found json; key text;
BEGIN
  found := doc;
  FOREACH key IN ARRAY path LOOP
    found := found -> key;
  END LOOP;
  IF type = 'json' THEN
    RETURN nullif(found::text, 'null');
  END IF;
  EXECUTE format('SELECT CASE WHEN x IS NULL THEN NULL ELSE format(''%%s'', x) END
    FROM json_to_record(json_build_object(''x'', $1)) AS r(x %s)', type)
    INTO answer USING found;
  RETURN answer;
EXCEPTION WHEN OTHERS THEN RETURN '!' || SQLERRM;
END $$;
"""
COLUMNS = {
    "id": ("int8", ["id"]),
    "user_id": ("int4", ["user", "id"]),
    "user": ("jsonb", ["user"]),
    "city": ("text", ["user", "address", "city"]),
    "amount": ("numeric(12,2)", ["amount"]),
    "exact": ("numeric", ["exact"]),
    "price": ("float8", ["price"]),
    "ok": ("bool", ["ok"]),
    "note": ("varchar(40)", ["the note"]),
    "at": ("timestamptz", ["at"]),
    "raw": ("json", ["raw"]),
    "tags": ("text[]", ["tags"]),
    "grid": ("numeric(6,1)[]", ["grid"]),
}
SCALARS = [0, 1, -7, 2**53 + 1, 2**63 - 1, 2**63, 1.5, -0.0, 1e300, 12345.678, True, False, None]
SCALARS += ["", "x", 'é\n"\\/', "😀", "12", " 3 ", "1e2", "NaN", "t", "2024-02-29T01:02:03.5+02:00"]
SCALARS += ["null", "a b", "{}", [], {}, [1], [[1, 2], [3, 4.25]], [["a"], ["b", "c"]], {"id": "x"}]
SCALARS += [
    ["a", None, 'q"\\', "", "null", "ü{", True, 1.50],
    [[]],
    [[], []],
    "2024-01-01 00:00:00",
]
SCALARS += [{"id": 5, "address": {"city": "Köln"}}, {"address": {"city": {"x": [1, {}]}}}, [{}, 1]]


def columns_of(declared: dict[str, tuple[str, list[str]]]) -> Any:
    return declare_columns(
        [
            {"name": name, "type": type, "path": "$" + "".join(f"['{key}']" for key in path)}
            for name, (type, path) in declared.items()
        ]
    )


def rows_of(decoded: Decoded, columns: Any) -> dict[int, list[str | None]]:
    texts = [
        to_text(c.field.type, v).texts() for c, v in zip(columns, decoded.columns, strict=True)
    ]
    return dict(zip(decoded.records.tolist(), map(list, zip(*texts, strict=True)), strict=True))


def draw_record(draw: random.Random) -> str:
    record: dict[str, Any] = {}
    keys = [*{path[0] for _, path in COLUMNS.values()}, "other", "use", "user2"]
    for key in draw.sample(keys, draw.randint(0, len(keys))):
        record[key] = draw.choice(SCALARS)
    likely = {"id": 5, "user": {"id": 7, "address": {"city": "Ulm"}}, "amount": 1.005, "at": None}
    likely |= {"ok": True, "exact": 0.1, "price": 2.5, "the note": "n", "tags": ["a"], "grid": [1]}
    if draw.random() < 0.6:
        record = likely | {key: record[key] for key in list(record)[:1]}
    separators = draw.choice([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
    text = json.dumps(record, ensure_ascii=draw.random() < 0.5, separators=separators)
    if draw.random() < 0.1:
        text = text.replace('"id"', '"\\u0069d"', 1)
    if draw.random() < 0.1:
        text = text[:-1] + (", " if record else "") + '"id": 3, "user": {"id": 4}}'
    if draw.random() < 0.15:
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice(["", '"', ",", "}", "]", "0", "\\", "-"]) + text[at + 1 :]
    return draw.choice(["", " ", "\n"]) + text + draw.choice(["", " ", "\r\n"])


@pytest.mark.parametrize("seed", range(4))
def test_records_are_read_as_postgres_reads_them(database: Database, seed: int) -> None:
    draw = random.Random(seed)
    database.execute(FIELD)
    texts = [draw_record(draw) for _ in range(400)]
    columns = columns_of(COLUMNS)
    decoded = open_format({"format": "json"}, columns).decode([t.encode() for t in texts])
    found = rows_of(decoded, columns)
    bad = {one.number: one for one in decoded.bad}
    assert len(found) + len(bad) == len(texts)
    types, paths = zip(*COLUMNS.values(), strict=True)
    wanted: dict[int, list[str | None]] = {}
    for name, path in zip(types, paths, strict=True):
        answers = database.rows(
            "SELECT field_of(t, %s, %s) FROM unnest(%s::text[]) WITH ORDINALITY AS u(t, n)"
            " ORDER BY n",
            (path, name, texts),
        )
        for row, (answer,) in enumerate(answers):
            wanted.setdefault(row, []).append(answer)
    wrong = []
    for row, text in enumerate(texts):
        is_bad = any(answer is not None and answer.startswith("!") for answer in wanted[row])
        if is_bad != (row in bad) and not is_stricter(text, bad.get(row)):
            wrong.append((text, wanted[row], bad.get(row)))
        if row in found and not is_bad and found[row] != wanted[row]:
            wrong.append((text, wanted[row], found[row]))
    assert not wrong, "\n".join(map(str, wrong[:5]))
    assert len(found) > 60


def is_stricter(text: str, bad: Any) -> bool:
    """What we call bad, and PostgreSQL takes: records that are no objects, kinds of values that
    only happen to read as another."""
    if bad is None:
        return False
    if bad.code == "record.malformed":
        return not isinstance(json.loads(text), dict)
    return " where " in bad.reason


def decode(declared: list[dict[str, Any]], *records: bytes) -> Decoded:
    return open_format({"format": "json"}, declare_columns(declared)).decode(records)


def reasons(decoded: Decoded) -> list[tuple[int, str, str]]:
    return [(one.number, one.code, one.reason) for one in decoded.bad]


def test_one_bad_record_spoils_no_other() -> None:
    records = [b'{"a": 1}', b'{"a": "x"}', b'{"a": 2', b"\xff", b'{"a": 3}', b"[]", b"", b"null"]
    decoded = decode([{"name": "a", "type": "int4"}], *records)
    assert decoded.columns[0].to_list() == [1, 3]
    assert decoded.records.tolist() == [0, 4]
    assert [one.number for one in decoded.bad] == [1, 2, 3, 5, 6, 7]
    assert [one.code for one in decoded.bad[:3]] == [
        "record.value",
        "record.malformed",
        "record.malformed",
    ]
    assert "not an integer: 'x'" in decoded.bad[0].reason


def test_utf8_is_not_repaired_across_records() -> None:
    decoded = decode(
        [{"name": "a", "type": "text"}], b'{"a":"\xc3', b'\xa9"}', '{"a":"é"}'.encode()
    )
    assert decoded.columns[0].texts() == ["é"]
    assert [one.number for one in decoded.bad] == [0, 1]


def test_text_that_postgres_cannot_hold_is_bad() -> None:
    records = [rb'{"a":"\u0000"}', rb'{"a":"\ud800"}', rb'{"a":"\ud83d\ude00"}', rb'{"a":"\udc00"}']
    decoded = decode([{"name": "a", "type": "text"}], *records)
    assert decoded.columns[0].texts() == ["😀"]
    assert [one.number for one in decoded.bad] == [0, 1, 3]


def test_deep_values_and_odd_keys_take_the_slow_path_exactly() -> None:
    deep = "[" * 100 + "1.50" + "]" * 100
    record = f'{{"\\u0061": {deep} , "b": "x"}}'
    declared = [{"name": "a", "type": "json"}, {"name": "b", "type": "text"}]
    decoded = decode(declared, record.encode(), b'{"a": [ 1 ], "b": "\\n"}')
    assert decoded.columns[0].texts() == [deep, "[ 1 ]"]
    assert decoded.columns[1].texts() == ["x", "\n"]
    far = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert reasons(decode(declared, far)) == [(0, "record.malformed", "JSON nested too deeply")]


@pytest.mark.parametrize(
    ("type", "unit", "value", "expected"),
    [
        ("timestamptz", "ms", "1700000000123", "2023-11-14 22:13:20.123+00"),
        ("timestamp", "s", "1700000000.1234565", "2023-11-14 22:13:20.123457"),
        ("timestamp", "us", "-1", "1969-12-31 23:59:59.999999"),
        ("timestamp", "ns", "1700000000123456500", "2023-11-14 22:13:20.123457"),
        ("timestamptz", "ms", '"2024-01-01T00:00:00Z"', "2024-01-01 00:00:00+00"),
        ("date", "d", "19723", "2024-01-01"),
        ("date", "ms", "-1", "1969-12-31"),
        ("time", "us", "86400000000", "24:00:00"),
        ("time", "ms", "86400001", None),
        ("timestamp", "s", "9e15", None),
        ("timestamp", "d", "9223372036854775807", None),
        ("timestamp", "", "1700000000", None),
        ("date", "d", "1.5", None),
    ],
)
def test_numbers_as_times(type: str, unit: str, value: str, expected: str | None) -> None:
    columns = declare_columns([{"name": "a", "type": type, "unit": unit}])
    decoded = open_format({"format": "json"}, columns).decode([b'{"a": %s}' % value.encode()])
    found = to_text(columns[0].field.type, decoded.columns[0]).texts()
    assert found == ([] if expected is None else [expected])
    assert len(decoded.bad) == (expected is None)


def test_base64_null_and_not_null() -> None:
    declared = [
        {"name": "a", "type": "bytea", "encoding": "base64"},
        {"name": "b", "type": "int4", "nullable": False},
    ]
    decoded = decode(declared, b'{"a":"3q2+","b":1}', b'{"b":2}', b'{"a":"*","b":1}', b'{"a":""}')
    assert decoded.columns[0].to_list() == [b"\\xdeadbe", None]
    assert [(one.number, one.code) for one in decoded.bad] == [
        (2, "record.value"),
        (3, "record.null"),
    ]


def test_keys_and_removals() -> None:
    columns = declare_columns(
        [{"name": "n", "type": "text"}, {"name": "id", "type": "int8", "in": "key"}]
    )
    options = {"format": "json", "key": {"format": "text"}}
    values = [b'{"n":"a"}', None, b'{"n":"b"}', None, b"{"]
    decoded = open_format(options, columns).decode(values, [b"1", b"2", None, b"x", b"5"])
    assert decoded.records.tolist() == [0, 1]
    assert decoded.removes is not None and decoded.removes.tolist() == [False, True]
    assert [c.to_list() for c in decoded.columns] == [[b"a", None], [1, 2]]
    assert [(one.number, one.code) for one in decoded.bad] == [
        (2, "record.no_key"),
        (3, "record.value"),
        (4, "record.malformed"),
    ]


def test_a_record_without_value_is_bad_where_nothing_stands_in_keys() -> None:
    columns = declare_columns([{"name": "a", "type": "text"}])
    decoded = open_format({"format": "json"}, columns).decode([None, b'{"a":"x"}'])
    assert [one.code for one in decoded.bad] == ["record.no_value"] and len(decoded) == 1


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        ({"name": "a", "type": "interval"}, "format.type"),
        ({"name": "a", "type": "jsonb[]"}, "format.type"),
        ({"name": "a", "type": "numeric(1001)"}, "format.type"),
        ({"name": "a", "type": "timestamp(3)"}, "format.type"),
        ({"name": "a", "type": "text", "path": "a"}, "format.path"),
        ({"name": "a", "type": "text", "path": "$.a[0]"}, "format.path"),
        ({"name": "", "type": "text"}, "format.column"),
        ({"name": "a", "type": "text", "unit": "ms"}, "format.column"),
        ({"name": "a", "type": "text", "encoding": "base64"}, "format.column"),
        ({"name": "a", "type": "text", "of": 1}, "format.column"),
        ({"name": "a", "type": "text", "in": "header"}, "format.column"),
        ({"name": "a", "type": "text", "in": "key"}, "format.option"),
    ],
)
def test_what_cannot_be_declared_is_refused(declared: dict[str, Any], code: str) -> None:
    with pytest.raises(SourceError) as refused:
        open_format({"format": "json"}, declare_columns([declared]))
    assert refused.value.code == code and refused.value.hint


def test_no_records() -> None:
    assert len(decode([{"name": "a", "type": "text"}])) == 0
