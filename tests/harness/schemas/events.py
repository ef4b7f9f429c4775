"""Events with the types that most engines leave out: json, arrays, uuid, bytea, domains."""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TYPE mood AS ENUM ('sad', 'fine', 'glad');
CREATE DOMAIN level AS integer CHECK (VALUE BETWEEN 0 AND 10);
CREATE TABLE events (
    id uuid PRIMARY KEY,
    kind text NOT NULL,
    at timestamptz NOT NULL,
    payload jsonb,
    raw json,
    tags text[],
    numbers integer[],
    body bytea,
    span interval,
    day date,
    clock time,
    zoned time with time zone,
    address inet,
    mood mood,
    level level,
    range int4range,
    stamp timestamp
);
CREATE TABLE devices (
    device uuid,
    since timestamp,
    label varchar(12),
    mood mood NOT NULL DEFAULT 'fine',
    settings jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (device, since)
);
CREATE FUNCTION word_count(document text) RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(array_length(regexp_split_to_array(document, '\\s+'), 1), 0) $$;
"""

_KINDS = draw.choice("click", "view", "buy", "Error: disk full", "error: CPU hot")
_MOODS = draw.choice("sad", "fine", "glad")
_SINCE = draw.choice("2024-01-01 00:00:00", "2024-01-02 03:04:05.25", "0044-03-15 12:00:00 BC")

EVENTS = TestSchema(
    name="events",
    ddl=DDL,
    tables=(
        TableSpec(
            "events",
            {
                "id": draw.uuids(80),
                "kind": _KINDS,
                "at": draw.weighted(
                    [(8, draw.instants()), (1, draw.raw("'infinity'", "'-infinity'"))]
                ),
                "payload": draw.nullable(draw.documents(), 0.15),
                "raw": draw.nullable(draw.documents(), 0.3),
                "tags": draw.nullable(draw.arrays(draw.words(), "text"), 0.2),
                "numbers": draw.nullable(
                    draw.arrays(draw.nullable(draw.integers(0, 9)), "integer"), 0.2
                ),
                "body": draw.nullable(draw.raw("'\\x00ff10'", "'\\x'", "'\\xdeadbeef'")),
                "span": draw.nullable(
                    draw.choice("1 day", "-2 hours", "3 mons 4 days 05:06:07.5", "00:00:00.000001")
                ),
                "day": draw.nullable(
                    draw.weighted(
                        [
                            (8, draw.dates()),
                            (
                                1,
                                draw.choice(
                                    "infinity", "-infinity", "0044-03-15 BC", "5874897-12-31"
                                ),
                            ),
                        ]
                    )
                ),
                "clock": draw.nullable(
                    draw.choice("00:00:00", "24:00:00", "12:34:56.789", "23:59:59.999999")
                ),
                "zoned": draw.nullable(draw.choice("12:00:00+02", "12:00:00-05:30", "00:00:00Z")),
                "address": draw.nullable(
                    draw.choice("10.0.0.1", "10.1.0.0/16", "::1", "fe80::/10")
                ),
                "mood": draw.nullable(_MOODS),
                "level": draw.nullable(draw.integers(0, 10)),
                "range": draw.nullable(draw.choice("[1,5)", "empty", "[3,)", "(,7]")),
                "stamp": draw.nullable(draw.mixed(draw.instants(), _SINCE)),
            },
            key=("id",),
            rows=60,
            weight=2,
        ),
        TableSpec(
            "devices",
            {
                "device": draw.uuids(80),
                "since": _SINCE,
                "label": draw.nullable(draw.words()),
                "mood": _MOODS,
                "settings": draw.documents(),
            },
            key=("device", "since"),
            rows=40,
        ),
    ),
    truncates=("devices",),
)
