"""Oracle: which rows a source delivers for all views of a group, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.pushdown import Pushdown
from service.api.source_reads import SourceReads, lines_of
from service.ingest import declared_sources
from service.ingest.declared_sources import keep_oids, pushdown_of

SELECTS = Pushdown("", "", {"at": "its function returns it as a number"})


def source(kind: str, pushdown: Pushdown | None = None) -> SourceRow:
    relation: dict[str, Any] = {"name": "t", "oid": 1}
    if pushdown is not None:
        relation["pushdown"] = pushdown.facts()
    return SourceRow("s", "", type=kind, relations=[relation])


def facts(*conditions: tuple[str, str, str], source: str = "s") -> dict[str, Any]:
    """What a plan reads of relation t."""
    simple = [
        {"column": column, "operator": operator, "kind": "int", "values": [value]}
        for column, operator, value in conditions
    ]
    filters = [
        {"sql": " ".join(c), "condition": s} for c, s in zip(conditions, simple, strict=True)
    ]
    return {
        "source": source,
        "schema": source,
        "name": "t",
        "columns": ["a", "at"],
        "unread_columns": ["b"],
        "conditions": simple,
        "filters": [
            *({**f, "why_not": ""} for f in filters),
            {"sql": "a + 1 = 2", "condition": None, "why_not": "too clever"},
        ],
    }


def view(
    name: str, *reads: dict[str, Any], status: str = "live", group: str = "default"
) -> ViewRow:
    return ViewRow(
        "public", name, "", name, options={"group": group}, status=status, plan={"asks": [*reads]}
    )


def shown(own: dict[str, Any], *readers: ViewRow, of: SourceRow) -> dict[str, str]:
    """Return the reason of each filter, "" for those that are applied at the source."""
    [read] = SourceReads(readers, [of]).of([own], "default")
    assert all(bool(f.reason) != f.at_source for f in read.filters)
    return {f.sql: f.reason for f in read.filters}


def test_conditions_that_a_source_takes_are_applied_there() -> None:
    found = shown(facts(("a", ">", "3"), ("at", "=", "1")), of=source("python", SELECTS))
    assert found == {
        "a > 3": "",
        "at = 1": "its function returns it as a number",
        "a + 1 = 2": "too clever",
    }


@pytest.mark.parametrize(
    ("others", "is_at_source"),
    [
        ([view("v", facts(("a", ">", "3")))], True),
        ([view("v", facts(("a", ">", "4")))], True),
        ([view("v", facts(("a", ">", "2")))], False),
        ([view("v", facts())], False),
        ([view("v", facts(), status="paused")], True),
        ([view("v", facts(source="other"))], True),
        ([view("v", facts(), group="b")], True),
    ],
)
def test_other_views_may_need_more(others: list[ViewRow], is_at_source: bool) -> None:
    reason = shown(facts(("a", ">", "3")), *others, of=source("python", SELECTS))["a > 3"]
    assert (reason == "") == is_at_source, reason
    assert is_at_source or "other views" in reason


@pytest.mark.parametrize("kind", sorted(declared_sources.TYPES))
def test_every_type_says_why_a_condition_is_not_applied(kind: str) -> None:
    """A source of an earlier version has no facts of its own."""
    assert shown(facts(("a", "=", "3")), of=source(kind))["a = 3"]


def test_the_lines_below_a_plan() -> None:
    [read] = SourceReads([], [source("kafka")]).of([facts(("a", "=", "3"))], "default")
    assert lines_of([read]) == [
        "reads s.t: a, at; not read: b",
        "  the source delivers other columns too: records are decoded whole",
        "  here a = 3: a topic is read whole",
        "  here a + 1 = 2: too clever",
    ]


def test_what_a_source_applies_does_not_make_it_another_relation() -> None:
    [before] = source("python", SELECTS).relations
    after = {"name": "t", "oid": 2, "pushdown": Pushdown("no", "no").facts()}
    assert keep_oids([after], [before]) == set()
    assert after["oid"] == before["oid"]
    assert pushdown_of(source("python", SELECTS), "t") == SELECTS
