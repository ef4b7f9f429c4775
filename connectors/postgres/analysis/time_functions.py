"""Optional SQL functions for windows of time: `tidemark_time.tumble` and `tidemark_time.hop`.

They are plain SQL, so PostgreSQL runs a definition that calls them. In a view's query each call is
replaced by the body of its function before anything is planned: the plan is that of date_bin and
generate_series. Invariant: only functions with exactly these bodies are replaced.

They have a schema of their own. Everybody may call them, also the role without rights, which must
not use schema tidemark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from connectors.postgres.session.quoting import quote_text
from dataflow.lexer import Token, tokens

SCHEMA = "tidemark_time"
_TUMBLE = "SELECT date_bin(width, at, origin)"
# The first start is the earliest aligned one whose window has not ended.
_HOP = (
    "SELECT generate_series("
    "date_bin(slide, at - width, origin) + slide, date_bin(slide, at, origin), slide)"
)
_BODIES = {"tumble": _TUMBLE, "hop": _HOP}
_PARAMETERS = {"tumble": ("width", "at", "origin"), "hop": ("width", "slide", "at", "origin")}
_ORIGIN = "'epoch'"
# Arithmetic of timestamptz and interval depends on the time zone.
_VOLATILITY = {("hop", "timestamptz"): "STABLE"}
_COMMENTS = {
    "tumble": "The start of the window of this width that a time is in",
    "hop": "The starts of the windows of this width that a time is in, one at each slide",
}
_MISSING = re.compile(rf"\b{SCHEMA}\b")
_WORD = re.compile(r"\b(?:width|slide|at|origin)\b")
_INSTALLED = """
SELECT p.proname::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = %s AND p.proname::text = ANY (%s)
GROUP BY 1 HAVING count(*) = 2 AND bool_and((p.proname::text, p.prosrc) IN %s)
"""
NAMES = frozenset(_BODIES)
MISSING_HINT = "create the functions of this schema: tidemark init DSN --functions"


def statements() -> Iterator[str]:
    """Yield the statements that create the schema and its functions; they may run again."""
    yield f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
    yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO PUBLIC"
    for type in ("timestamp", "timestamptz"):
        for name, body in _BODIES.items():
            *given, _ = _PARAMETERS[name]
            parameters = [f"{p} {type if p == 'at' else 'interval'}" for p in given]
            types = ", ".join(p.split()[1] for p in [*parameters, f"origin {type}"])
            parameters.append(f"origin {type} DEFAULT {_ORIGIN}")
            returned = f"SETOF {type}" if name == "hop" else type
            volatility = _VOLATILITY.get((name, type), "IMMUTABLE")
            yield (
                f"CREATE OR REPLACE FUNCTION {SCHEMA}.{name}({', '.join(parameters)})"
                f" RETURNS {returned} LANGUAGE sql {volatility} PARALLEL SAFE AS {quote_text(body)}"
            )
            yield (f"COMMENT ON FUNCTION {SCHEMA}.{name}({types}) IS {quote_text(_COMMENTS[name])}")


def installed(cursor: Any) -> frozenset[str]:
    """Return the names of the functions that the database has, exactly as they are here."""
    cursor.execute(_INSTALLED, (SCHEMA, list(_BODIES), tuple(_BODIES.items())))
    return frozenset(name for (name,) in cursor.fetchall())


def called_by(routines: Sequence[str]) -> frozenset[str]:
    """Return which functions of the schema are among qualified names.

    >>> called_by(["count", "tidemark_time.hop"])
    frozenset({'hop'})
    """
    return frozenset(name for name in NAMES if f"{SCHEMA}.{name}" in routines)


def is_missing(query: str) -> bool:
    """Return whether a query that names an unknown schema or function means ours.

    >>> is_missing("SELECT Tidemark_Time.tumble('1 h', at) FROM t"), is_missing("SELECT 1")
    (True, False)
    """
    return _MISSING.search(query.lower()) is not None


def expand(text: str, names: frozenset[str]) -> str:
    """Return a canonical text with the calls of these functions replaced by their bodies.

    >>> print(expand("SELECT tidemark_time.tumble('01:00:00'::interval, t.at) AS w FROM t",
    ...              frozenset(["tumble"])))
    SELECT date_bin(('01:00:00'::interval), (t.at), ('epoch')) AS w FROM t
    >>> print(expand("FROM t, LATERAL tidemark_time.hop(a.w, b.s, f(t.at, 1)) h(s)",
    ...              frozenset(["hop"])))
    FROM t, LATERAL generate_series(date_bin((b.s), (f(t.at, 1)) - (a.w), ('epoch')) + (b.s), \
date_bin((b.s), (f(t.at, 1)), ('epoch')), (b.s)) h(s)
    """
    found = list(tokens(text))
    out: list[str] = []
    at = i = 0
    while i < len(found):
        call = found[i : i + 4]
        words = [t.text for t in call]
        is_call = words[:2] == [SCHEMA, "."] and words[3:] == ["("] and words[2] in names
        if not is_call:
            i += 1
            continue
        name = words[2]
        ends = _argument_ends(found, i + 4)
        starts = [call[3].offset, *(found[end].offset for end in ends[:-1])]
        arguments = [
            expand(text[start + 1 : found[end].offset].strip(), names)
            for start, end in zip(starts, ends, strict=True)
        ]
        out += [text[at : call[0].offset], _inlined(name, arguments)]
        at = found[ends[-1]].offset + 1
        i = ends[-1] + 1
    return "".join(out) + text[at:]


def _argument_ends(found: Sequence[Token], first: int) -> list[int]:
    """Return the positions of the commas between a call's arguments, and of its last bracket."""
    ends, depth = [], 0
    for i in range(first, len(found)):
        word = found[i].text
        if not depth and word in (",", ")"):
            ends.append(i)
            if word == ")":
                return ends
        depth += (word in ("(", "[")) - (word in (")", "]"))
    raise AssertionError("PostgreSQL's own text has an open bracket")


def _inlined(name: str, arguments: list[str]) -> str:
    """Return a function's body over arguments; the last one has a default."""
    given = [*arguments, _ORIGIN][: len(_PARAMETERS[name])]
    # Named notation, origin => x, puts the name before the value; its order may be any.
    values = dict(zip(_PARAMETERS[name], given, strict=True))
    named = {p: a for a in arguments if (p := a.split(" => ")[0]) in values and " => " in a}
    if named:
        first = [a for a in arguments if a not in named.values()]
        values = dict(zip(_PARAMETERS[name], first, strict=False))
        values |= {p: a.split(" => ", 1)[1] for p, a in named.items()}
        values.setdefault("origin", _ORIGIN)
    body = _BODIES[name].removeprefix("SELECT ")
    return _WORD.sub(lambda word: f"({values[word[0]]})", body)
