"""Oracle: docs/OPERATING.md: what stands how, and what is said of it, decided without a service."""

from __future__ import annotations

import time
from typing import Any

import pytest

from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.postgres.catalog.sink_records import SinkRow
from service.api.health import (
    StatusInputs,
    database_standing,
    service_standing,
    source_standing,
    view_standing,
)

DEPOT = SourceRow("depot", "", type="files")
REFUSED = {"title": "the slot is gone", "status": 503, "code": "source.slot_missing"}
BAD = {"code": "source.bad_record", "detail": "line 2 is no row", "hint": "repair it"}


def view(name: str, *reads: str, status: str = "live", **more: Any) -> ViewRow:
    plan = {"reads": [[source, "t"] for source in reads], "parents": more.pop("parents", [])}
    return ViewRow("public", name, "SELECT 1", name, status=status, plan=plan, **more)


def figures(age_s: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"steady_at": time.monotonic() - age_s, **more}


def fed(status: str, problem: dict[str, str] | None = None) -> dict[str, Any]:
    facts = {"status": status, "problem": problem, "error": ""}
    return {"default": figures(sources={"depot": facts})}


ORDERS = view("orders_of", "source")
PRICES = view("prices_of", "depot")
ABOVE = view("above", "view", parents=[["public", "prices_of"]])
HIGHER = view("higher", "view", parents=[["public", "above"]])
ALL = (ORDERS, PRICES, ABOVE, HIGHER)


def known(told: dict[str, Any], **more: Any) -> StatusInputs:
    return StatusInputs(told, views=ALL, sources=(DEPOT,), **more)


def states_of(found: StatusInputs) -> dict[str, tuple[str, str]]:
    """Status and code of each view."""
    each = {row.name: view_standing(found, row) for row in ALL}
    return {n: (s.status, "" if s.error is None else s.error.code) for n, s in each.items()}


def test_all_is_well() -> None:
    found = known(fed("running"))
    assert set(states_of(found).values()) == {("live", "")}
    assert service_standing(found) == ("ok", [])


def test_a_stopped_source_degrades_what_depends_on_it_alone() -> None:
    found = known(fed("stopped", BAD))
    stopped = ("degraded", "source.bad_record")
    assert states_of(found) == {
        "orders_of": ("live", ""),
        "prices_of": stopped,
        "above": stopped,
        "higher": stopped,
    }
    assert source_standing(found, DEPOT).status == "stopped"
    assert service_standing(found) == (
        "degraded",
        ['source "depot" is stopped: line 2 is no row [source.bad_record]'],
    )


def test_a_source_that_is_away_is_reported_by_its_views() -> None:
    found = known(fed("retrying", {"code": "kafka.unreachable", "detail": "gone", "hint": ""}))
    assert states_of(found)["higher"] == ("live", "kafka.unreachable")
    assert service_standing(found)[1] == ['source "depot" is away: gone [kafka.unreachable]']
    away = known({"default": figures(source_error="no answer [source.unreachable]")})
    assert states_of(away)["orders_of"] == ("live", "source.unreachable")
    assert database_standing(away, "default").status == "retrying"


def test_a_refused_pipeline() -> None:
    found = known({"default": figures(refused=REFUSED)})
    assert set(states_of(found).values()) == {("failed", "source.slot_missing")}
    assert source_standing(found, DEPOT).status == "stopped"
    assert service_standing(found) == ("degraded", ["the slot is gone [source.slot_missing]"])


def ended(*ages_s: float, code: int | None = 1, is_over: bool = False) -> dict[str, Any]:
    ends = [time.monotonic() - age for age in ages_s]
    return {"pipeline": {"is_over": is_over, "code": code, "ends": ends}}


@pytest.mark.parametrize(
    ("age_s", "process", "code"),
    [
        (0, ((), None, False), ""),
        (0, ((30,), 1, False), ""),
        (
            0,
            (
                (
                    50,
                    30,
                ),
                1,
                False,
            ),
            "",
        ),
        # It has not reported since, or ends again and again between its reports.
        (3, ((1,), 1, False), "pipeline.restarting"),
        (
            0,
            (
                (
                    40,
                    20,
                    5,
                ),
                1,
                False,
            ),
            "pipeline.restarting",
        ),
        (
            0,
            (
                (
                    400,
                    300,
                    200,
                ),
                1,
                False,
            ),
            "",
        ),
        (20, ((), None, False), "pipeline.silent"),
        (20, ((), 4, True), "pipeline.ended"),
    ],
)
def test_a_pipeline_that_ends(
    age_s: float, process: tuple[tuple[int, ...], int | None, bool], code: str
) -> None:
    ages_s, exit_code, is_over = process
    processes = ended(*ages_s, code=exit_code, is_over=is_over)
    found = known({"default": figures(age_s)}, processes=processes)
    assert set(states_of(found).values()) == {("degraded" if code else "live", code)}
    status, reasons = service_standing(found)
    assert (status, code in " ".join(reasons)) == ("degraded" if code else "ok", True)


def test_what_has_just_begun_is_starting_unless_it_ends_again_and_again() -> None:
    old: dict[str, Any] = {"default": figures(1000)}
    young = known(old, is_young=True)
    assert service_standing(young) == ("starting", [])
    assert set(states_of(young).values()) == {("live", "")}
    dying = known(old, is_young=True, processes=ended(2, 1, 0))
    assert service_standing(dying)[0] == "degraded"


@pytest.mark.parametrize("before", [None, figures(1000)])
def test_a_pipeline_that_has_just_begun_has_not_reported_yet(before: dict[str, Any] | None) -> None:
    begun = {"pipeline": {"ends": [], "started_at": time.monotonic() - 2}}
    assert service_standing(known({"default": before}, processes=begun)) == ("starting", [])
    begun["pipeline"]["started_at"] = time.monotonic() - 20
    found = known({"default": before}, processes=begun)
    assert set(states_of(found).values()) == {("degraded", "pipeline.silent")}


def test_another_group_is_named_and_degrades_its_own_views() -> None:
    other = view("other", "source", options={"group": "other"})
    told = {"default": figures(), "other": figures(refused=REFUSED)}
    found = StatusInputs(told, views=(ORDERS, other))
    assert view_standing(found, ORDERS).status == "live"
    assert view_standing(found, other).status == "failed"
    assert service_standing(found)[1] == ['group "other": the slot is gone [source.slot_missing]']


def test_failed_views_and_those_that_wait_are_reasons_but_not_without_end() -> None:
    bad = {"code": "view.failed", "detail": "no such column"}
    rows = [view(f"v{n:02}", "source", status="failed", **bad) for n in range(14)]
    _, reasons = service_standing(StatusInputs({"default": figures()}, views=rows))
    assert reasons[0] == 'view "public.v00" has failed: no such column [view.failed]'
    assert (len(reasons), reasons[-1]) == (11, "and 4 more views")
    waits = view("w", "source", status="backfilling", code="source.no_free_slot", detail="none")
    found = StatusInputs(
        {"default": figures()}, views=(waits, view("p", "source", status="paused"))
    )
    assert view_standing(found, waits).status == "backfilling"
    assert service_standing(found)[1] == [
        'view "public.w" is not live yet: none [source.no_free_slot]'
    ]


def test_a_sink_that_has_failed() -> None:
    facts = {"code": "kafka.topic", "detail": "it is gone"}
    row = SinkRow("public", "v", "events", "kafka", "1", "v", "default", status="failed", **facts)
    _, reasons = service_standing(StatusInputs({"default": figures()}, sinks=(row,)))
    assert reasons == ['sink "public.v/events" has failed: it is gone [kafka.topic]']


def test_a_sink_that_refuses_degrades_all_views() -> None:
    found = known({"default": figures(sink_error="it is read-only [sink.read_only]")})
    assert set(states_of(found).values()) == {("degraded", "sink.read_only")}


def test_a_view_whose_spark_does_not_get_on_is_degraded_with_its_reason() -> None:
    text = "Spark makes no progress: no task runs: Initial job has not accepted any resources"
    group = "spark0123456789abcdef"
    on_spark = view("v", "source", options={"group": group})
    built = view("w", "source", options={"group": group}, status="backfilling")
    facts = {"default": figures(), group: figures(spark_error=f"{text} [spark.waiting]")}
    found = StatusInputs(facts, views=(on_spark, built))
    standing = view_standing(found, on_spark)
    assert standing.error is not None
    assert (standing.status, standing.error.code) == ("degraded", "spark.waiting")
    assert text in standing.error.title
    assert view_standing(found, built).status == "backfilling"
    assert view_standing(found, built).error == standing.error
    assert service_standing(found) == (
        "degraded",
        [f'group "{group}": {text} [spark.waiting]'],
    )
    # A view of this process stays live while Spark keeps a backfill waiting.
    local = view("l", "source")
    found = StatusInputs({"default": figures(spark_error=text)}, views=(local,))
    assert view_standing(found, local).status == "live"
