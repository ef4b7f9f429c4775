"""Draws of SQL literals: a draw is a function from a seeded random.Random to the text of a value.

Invariant: what a draw returns depends on the generator it is given alone, so that one seed names
one history of a database. Domains are small on purpose: joins must meet and groups must repeat.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random

Draw = Callable[[Random], str]

WORDS = [
    "amber",
    "basalt",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "iris",
    "jade",
    "kelp",
    "lagoon",
    "maple",
    "nectar",
    "onyx",
    "pearl",
    "quartz",
    "river",
    "slate",
    "tide",
]


def quote(text: str) -> str:
    """A SQL string literal.

    >>> quote("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def integers(low: int, high: int) -> Draw:
    """Whole numbers from low to high, both included."""
    return lambda rng: str(rng.randint(low, high))


def decimals(low: float, high: float, scale: int) -> Draw:
    """Decimal numbers with exactly `scale` digits after the point."""
    return lambda rng: f"{rng.uniform(low, high):.{scale}f}"


def floats(low: float, high: float) -> Draw:
    """Binary fractions, so that they print short and survive the way through real."""
    return lambda rng: repr(rng.randint(int(low * 8), int(high * 8)) / 8)


def choice(*texts: str) -> Draw:
    """One of these strings, as literals."""
    return lambda rng: quote(rng.choice(texts))


def raw(*expressions: str) -> Draw:
    """One of these SQL expressions, as they stand."""
    return lambda rng: rng.choice(expressions)


def words(count: int = 1) -> Draw:
    """`count` words, separated by blanks."""
    return lambda rng: quote(" ".join(rng.choice(WORDS) for _ in range(count)))


def booleans() -> Draw:
    """true or false."""
    return raw("true", "false")


def dates(first_year: int = 2023, last_year: int = 2024) -> Draw:
    """Dates in whole years."""

    def draw(rng: Random) -> str:
        year, month, day = (
            rng.randint(first_year, last_year),
            rng.randint(1, 12),
            rng.randint(1, 28),
        )
        return f"'{year}-{month:02}-{day:02}'"

    return draw


def instants(first_year: int = 2023, last_year: int = 2024) -> Draw:
    """Timestamps with microseconds, some exactly at midnight."""

    def draw(rng: Random) -> str:
        day = dates(first_year, last_year)(rng)[1:-1]
        if rng.random() < 0.1:
            return f"'{day} 00:00:00'"
        clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
        return f"'{day} {clock}.{rng.choice(['0', '5', '25', '000001', '999999'])}'"

    return draw


def nullable(draw: Draw, share: float = 0.2) -> Draw:
    """NULL for about this share of the draws."""
    return lambda rng: "NULL" if rng.random() < share else draw(rng)


def mixed(*draws: Draw) -> Draw:
    """One of these draws, each as likely."""
    return lambda rng: rng.choice(draws)(rng)


def uuids(count: int) -> Draw:
    """One of `count` fixed uuids."""
    return lambda rng: f"'00000000-0000-4000-8000-{rng.randrange(count):012x}'"


def arrays(draw: Draw, type_name: str, longest: int = 3) -> Draw:
    """Arrays of drawn elements, the empty one included."""

    def of(rng: Random) -> str:
        elements = ",".join(draw(rng) for _ in range(rng.randint(0, longest)))
        return f"ARRAY[{elements}]::{type_name}[]"

    return of


def documents() -> Draw:
    """Small JSON objects with nested members, some of them missing or null."""

    def draw(rng: Random) -> str:
        document: dict[str, object] = {"kind": rng.choice(WORDS[:4]), "n": rng.randint(0, 9)}
        if rng.random() < 0.5:
            document["user"] = {"id": rng.randint(1, 5), "name": rng.choice(WORDS)}
        if rng.random() < 0.3:
            document["tags"] = [rng.choice(WORDS[:5]) for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.2:
            document["flag"] = rng.choice([True, False, None])
        return quote(json.dumps(document))

    return draw


def long_texts(length: int) -> Draw:
    """Return texts that do not compress well, long enough to be stored out of line by
    PostgreSQL."""

    def draw(rng: Random) -> str:
        return quote("".join(rng.choice("0123456789abcdefghijklmnop") for _ in range(length)))

    return draw


def weighted(pairs: Sequence[tuple[float, Draw]]) -> Draw:
    """One of the draws, by weight."""
    weights = [weight for weight, _ in pairs]
    draws = [draw for _, draw in pairs]
    return lambda rng: rng.choices(draws, weights)[0](rng)
