"""Persons, auctions and bids in the shape of Nexmark; `arrived` is its processing time."""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TABLE person (
    id bigint PRIMARY KEY, name text NOT NULL, email text, city text, state text NOT NULL,
    date_time timestamp NOT NULL
);
CREATE TABLE auction (
    id bigint PRIMARY KEY, item text NOT NULL, initial_bid bigint NOT NULL, reserve bigint NOT NULL,
    date_time timestamp NOT NULL, expires timestamp NOT NULL, seller bigint NOT NULL,
    category bigint NOT NULL
);
CREATE TABLE bid (
    auction bigint NOT NULL, bidder bigint NOT NULL, price bigint NOT NULL, channel text NOT NULL,
    url text NOT NULL, date_time timestamp NOT NULL, arrived timestamptz NOT NULL
);
ALTER TABLE bid REPLICA IDENTITY FULL;
CREATE TABLE side_input (key bigint PRIMARY KEY, value text);
CREATE FUNCTION count_char(text, character) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    $$ SELECT (length($1) - length(replace($1, $2::text, '')))::bigint $$;
"""

_MOMENTS = draw.choice(
    *(f"2026-01-0{day} {hour:02}:{minute:02}:00" for day in (1, 2) for hour in (7, 13, 19)
      for minute in (0, 30))
)  # fmt: skip
_LATER = draw.choice("2026-01-02 09:00:00", "2026-01-03 00:00:00")
_URLS = draw.choice(
    "https://shop.example/a/bb/item.htm?query=1&channel_id=17",
    "https://shop.example/c/d/e/item.htm?query=1",
    "https://shop.example/x&channel_id=-5&y",
)

MARKET = TestSchema(
    name="market",
    ddl=DDL,
    tables=(
        TableSpec(
            "person",
            {
                "id": draw.integers(1, 14),
                "name": draw.words(2),
                "email": draw.nullable(draw.words()),
                "city": draw.nullable(draw.choice("Bend", "Reno", "Boise")),
                "state": draw.choice("OR", "ID", "CA", "WY"),
                "date_time": _MOMENTS,
            },
            key=("id",),
            rows=10,
        ),
        TableSpec(
            "auction",
            {
                "id": draw.integers(1, 16),
                "item": draw.words(),
                "initial_bid": draw.integers(1, 50),
                "reserve": draw.integers(20, 90),
                "date_time": _MOMENTS,
                "expires": _LATER,
                "seller": draw.integers(1, 14),
                "category": draw.integers(9, 11),
            },
            key=("id",),
            rows=12,
        ),
        TableSpec(
            "bid",
            {
                "auction": draw.integers(1, 16),
                "bidder": draw.integers(1, 14),
                "price": draw.integers(1, 40),
                "channel": draw.choice("apple", "Google", "facebook", "baidu", "channel-9"),
                "url": _URLS,
                "date_time": _MOMENTS,
                "arrived": _MOMENTS,
            },
            rows=70,
            weight=3,
        ),
        TableSpec(
            "side_input",
            {"key": draw.integers(0, 9), "value": draw.nullable(draw.words())},
            key=("key",),
            rows=6,
            weight=0.3,
        ),
    ),
)
