"""Scores with many ties: what ORDER BY with LIMIT, OFFSET, WITH TIES and DISTINCT ON choose from.

Few different values, so that edges fall between equal rows; one table has no key and duplicates.
"""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TYPE medal AS ENUM ('none', 'bronze', 'silver', 'gold');
CREATE TABLE scores (
    id integer PRIMARY KEY,
    player integer,
    points numeric,
    speed double precision,
    game text COLLATE "en-x-icu",
    day date,
    medal medal NOT NULL,
    took interval
);
CREATE TABLE players (
    player integer PRIMARY KEY,
    name text NOT NULL,
    team smallint
);
CREATE TABLE visits (
    player integer,
    page text
);
ALTER TABLE visits REPLICA IDENTITY FULL;
"""

RANKED = TestSchema(
    name="ranked",
    ddl=DDL,
    tables=(
        TableSpec(
            "scores",
            {
                "id": draw.integers(1, 80),
                "player": draw.nullable(draw.integers(1, 7)),
                "points": draw.nullable(draw.raw("1.5", "1.50", "2", "2.00", "-3", "'NaN'", "10")),
                "speed": draw.nullable(draw.raw("0", "-0.0", "1.25", "'NaN'", "'-Infinity'")),
                "game": draw.nullable(draw.choice("chess", "Chess", "go", "Go!", "éa", "eb", "")),
                "day": draw.nullable(draw.dates()),
                "medal": draw.choice("none", "none", "bronze", "silver", "gold"),
                "took": draw.nullable(draw.choice("1 day", "24:00:00", "01:00:00", "1 mon")),
            },
            key=("id",),
            rows=50,
            weight=3,
        ),
        TableSpec(
            "players",
            {
                "player": draw.integers(1, 9),
                "name": draw.words(),
                "team": draw.nullable(draw.integers(1, 3)),
            },
            key=("player",),
            rows=7,
        ),
        TableSpec(
            "visits",
            {
                "player": draw.nullable(draw.integers(1, 5)),
                "page": draw.nullable(draw.choice("a", "b", "c", "")),
            },
            rows=25,
        ),
    ),
    truncates=("visits", "scores", "players, scores"),
)
