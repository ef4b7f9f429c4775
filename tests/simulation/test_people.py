"""Oracle: docs/VIEWS.md: of each view one change is in progress at most, a pause among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connectors.postgres.catalog import change_requests
from connectors.postgres.catalog.catalog import ViewRow
from dataflow.errors import TidemarkError
from service.access.authorization import Authorization
from service.access.tokens import OPEN
from service.api.lifecycle_requests import Life
from service.api.models import CreateSink
from service.api.sink_catalog import SinkCatalog
from service.engine import output_fields
from service.factory.planning import plan_definition
from service.views.view_facts import key_names, kind_of, require_parents
from tests.simulation.fibers import Process
from tests.simulation.parts import SimParts
from tests.simulation.run import simulated
from tests.simulation.shop import NESTED, QUERIES
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with simulated():
        made = World(1, faults=0)
        yield made
        made.loop.close()
        made.close()


def asked(world: World, ask: Any) -> Any:
    """What comes of it, in a fiber of its own."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(ask())
        except TidemarkError as error:
            found.append(error)

    world.loop.start(run, "people")
    world.loop.run(lambda: bool(found), 1_000)
    if isinstance(found[0], TidemarkError):
        raise found[0]
    return found[0]


def live_view(world: World, parts: SimParts) -> ViewRow:
    definition = plan_definition("1", ("public", "v"), QUERIES[0], parts, ())  # type: ignore[arg-type]
    plan = definition.plan
    row = ViewRow(
        *("public", "v", QUERIES[0], "1"),
        status="live",
        kind=kind_of(plan),
        key=key_names(plan),
        fields=output_fields.to_json(plan.root.fields),
        options={"group": "default"},
        plan={"parents": []},
    )
    world.database.views.append(row)
    return row


def test_a_view_that_is_being_paused_is_busy(world: World) -> None:
    parts: Any = SimParts(world, world.host(Process(0)))
    row, life = live_view(world, parts), Life(parts, Authorization(parts))
    asked(world, lambda: life.pause("public.v", by=OPEN))
    for ask in (
        lambda: life.replace("public.v", QUERIES[4], by=OPEN),
        lambda: life.rebuild("public.v", by=OPEN),
        lambda: life.rename("public.v", "w", by=OPEN),
    ):
        with pytest.raises(TidemarkError, match="is being changed") as refused:
            asked(world, ask)
        assert (refused.value.code, refused.value.detail) == ("view.busy", "a pause is in progress")
    query = NESTED[0].format("v")
    child = plan_definition("2", ("public", "c"), query, parts, world.database.views)
    with pytest.raises(TidemarkError, match="is not live") as refused:
        require_parents(child, world.database.views, "default")
    assert refused.value.detail == "it is being paused"
    assert world.database.views[0].change is None and row.change is None


def test_a_pause_does_not_pass_a_change(world: World) -> None:
    """Two who ask at once, both having seen the view as it was."""
    parts: Any = SimParts(world, world.host(Process(0)))
    row, life = live_view(world, parts), Life(parts, Authorization(parts))
    world.database.update(row.identity, {"change": {"id": "x", "kind": "version", "version": 1}})
    assert not asked(world, lambda: change_requests.request_pause(parts.control(), row.identity))
    with pytest.raises(TidemarkError, match="is being changed"):
        asked(world, lambda: life.pause("public.v", by=OPEN))
    assert world.database.views[0].desired == "live"


def test_no_sink_is_added_while_the_view_is_changed(world: World) -> None:
    """It would be told of the one version or the other, and of neither what came before."""
    parts = SimParts(world, world.host(Process(0)))
    life, sinks = Life(parts, Authorization(parts)), SinkCatalog(parts, Authorization(parts))
    row = asked(world, lambda: live_view(world, parts))
    asked(world, lambda: life.replace(row.title, QUERIES[2], by=OPEN))
    with pytest.raises(TidemarkError, match=r"view\.busy"):
        asked(world, lambda: sinks.add(row.title, CreateSink(name="s", type="kafka"), OPEN))
