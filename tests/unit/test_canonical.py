"""Oracle: PostgreSQL's own printing (ruleutils.c, format_type.c), by hand."""

from __future__ import annotations

import pytest
from sqlglot import exp

from dataflow.errors import SqlError
from dataflow.sql.parse.canonical_form import Canonical, parse
from dataflow.sql.parse.parse_chains import Chain

# Plain names to PostgreSQL, keywords elsewhere: printed without quotes.
NAMES = (
    *("date", "time", "interval", "text", "json", "map", "struct", "list", "format", "index"),
    *("pivot", "unpivot", "qualify", "final", "sample", "top", "rows", "range", "filter", "first"),
    *("last", "ignore", "respect", "within", "at", "start", "values_", "share", "key", "view"),
    *("exclude", "except_", "replace", "rename", "cluster", "sort", "settings", "temporary"),
    *("percent", "ordinality", "path", "columns", "passing", "language", "over", "escape"),
    *("comment", "copy", "kill", "describe", "summarize", "pragma", "cache", "load", "merge"),
    *("semi_", "anti", "asof", "straight_join", "lock", "next", "offset_", "match_condition"),
)
TYPES = (
    *("numeric(6,-2)", "numeric(3,5)", "interval second(1)", "interval hour to second(2)"),
    *("interval year to month", "interval day", "interval(3)", "bit varying(3)", "bit varying"),
    *("bit(3)", '"bit"', '"char"', "character(4)", "character varying(7)[]", "double precision"),
    *("timestamp(3) without time zone", "time with time zone[]", 'public."Odd ""Type"', "s.t[]"),
    *("geometry(Point,4326)", "real"),
)
WORDS = ("USER", "CURRENT_ROLE", "CURRENT_USER", "SESSION_USER", "SYSTEM_USER", "CURRENT_DATE")
WORDS += ("CURRENT_TIMESTAMP(3)", "LOCALTIME", "CURRENT_CATALOG", "CURRENT_SCHEMA")


@pytest.mark.parametrize("name", NAMES)
def test_words_in_lower_case_are_names(name: str) -> None:
    tree = parse(
        f" SELECT {name}.{name}, ({name}.{name} + 1) AS {name}, {name}({name}) AS f\n"
        f"   FROM (s.{name} {name}({name}, b)\n     LEFT JOIN t ON ((t.{name} = {name}.{name})))"
    )
    assert [c.name for c in tree.find_all(exp.Column)] == [name] * 5
    assert {c.table for c in tree.find_all(exp.Column)} == {name, "t", ""}
    (aliased, other) = list(tree.find_all(exp.Table))
    assert (aliased.db, aliased.name, aliased.alias, other.name) == ("s", name, name, "t")


@pytest.mark.parametrize("type", TYPES)
def test_types_are_read_as_they_are_printed(type: str) -> None:
    text = f" SELECT (t.a)::{type} AS x, ('a'::{type} || t.b) AS y FROM t"
    casts = list(parse(text).find_all(exp.Cast))
    assert [c.args["to"].args["text"] for c in casts] == [type, type]


@pytest.mark.parametrize("word", WORDS)
def test_values_of_the_session_are_no_columns(word: str) -> None:
    tree = parse(f' SELECT {word} AS x, "user" AS y, ({word} = t."user") AS z FROM t')
    assert [c.name for c in tree.find_all(exp.Column)] == ["user", "user"]
    assert f"{word} AS x" in tree.sql(dialect=Canonical)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT t.a BEYOND ALL FROM t",
        "SELECT (t.a FROM t",
        "SELECT t.a::: FROM t",
        "SELECT CASE WHEN t.a THEN 1 FROM t",
        "SELECT f( FROM t",
    ],
)
def test_what_is_not_read_is_reported_by_name(text: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)
    error = caught.value
    assert error.code == "sql.not_maintained"
    for word in ("Expect", "token", "sqlglot", "Col", "keyword", "\x1b"):
        assert word not in error.detail


def _depth(node: exp.Expr) -> int:
    """How many levels a tree has, without recursion."""
    found, waiting = 0, [(node, 1)]
    while waiting:
        inner, depth = waiting.pop()
        found = max(found, depth)
        waiting += [(child, depth + 1) for child in inner.iter_expressions()]
    return found


@pytest.mark.parametrize("links", ["+", "||", "+-*", "->"])
def test_long_chains_are_read_flat(links: str) -> None:
    n = 2_000
    words = [links if links in ("||", "->") else links[i % len(links)] for i in range(n)]
    text = "(" * n + "t.c" + "".join(f" {w} (t.c{i})::text)" for i, w in enumerate(words))
    tree = parse(f" SELECT {text} AS x\n   FROM t")
    assert _depth(tree) < 100
    (chain,) = tree.find_all(Chain)
    assert chain.args["words"] == words[-len(chain.args["words"]) :]
    assert [c.name for c in tree.find_all(exp.Column)].count("c1999") == 1
    begin, end = chain.meta["span"]
    assert f" SELECT {text} AS x"[begin:end] == text[1:-1]


def test_values_in_a_chain_are_retained() -> None:
    n = 40
    text = "(" * n + "a" + " + 1)" * 20 + "::bigint" + " - b)" * (n - 21) + " IS NULL)"
    tree = parse(f" SELECT {text} AS x FROM t")
    assert [c.name for c in tree.find_all(exp.Column)].count("b") == n - 21
    assert len(list(tree.find_all(exp.Cast))) == 1


def test_long_case_in_else_is_flat() -> None:
    n = 3_000
    text = "CASE WHEN a THEN b ELSE " * n + "c" + " END" * n
    tree = parse(f" SELECT {text} AS x FROM t")
    assert _depth(tree) < 100
    cases = list(tree.find_all(exp.Case))
    assert sum(len(c.args["ifs"]) for c in cases) == n
    begin, end = cases[0].meta["span"]
    assert f" SELECT {text}"[begin:end] == text
