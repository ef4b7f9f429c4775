"""Oracle: docs/VIEWS.md: the next version of a view begins where the sink shows the one before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from connectors.postgres.catalog.catalog import ViewRow
from service.pipeline.reconciler import CatalogReconciler
from storage.memory import MemoryStore

ASKED = {"id": "b", "kind": "version", "version": 2, "query": "SELECT 2", "options": {}}


def worker_of(row: ViewRow, live: Any) -> CatalogReconciler:
    """A desk whose catalog has one view, of which the engine has a version."""
    control: Any = SimpleNamespace(
        list_views=lambda: [row],
        list_sources=list,
        update_view=lambda *given, **told: True,
        change_view=lambda *given, **told: True,
        read_progress=lambda key: None,
        require_server=lambda: None,
    )
    settings = SimpleNamespace(group="default", sink_key=b"")
    parts: Any = SimpleNamespace(settings=settings, feed_source=None)
    engine: Any = SimpleNamespace(views={"v": live}, store=MemoryStore())
    desk = CatalogReconciler(control, engine, parts)
    assert desk.refresh()
    return desk


def test_a_version_waits_until_the_sink_has_the_one_before() -> None:
    """Both are staged in the same table, and the sink may not have taken the first rows yet."""
    definition = SimpleNamespace(identity="1", version=1, plan=SimpleNamespace(pinned={}))
    row = ViewRow("public", "v", "SELECT 0", "1", status="live", change=ASKED)
    desk = worker_of(row, definition)
    assert desk.to_build({}) == [row]
    build: Any = SimpleNamespace(definition=definition, initial_load=SimpleNamespace(count=3))
    desk.joined(build, 6)
    assert desk.to_build({}) == []
    desk.complete(5)
    assert desk.to_build({}) == []
    desk.complete(6)
    assert desk.to_build({}) == [row]


def test_a_view_to_be_built_again_waits_as_well() -> None:
    """It leaves the engine at once, while its epoch is still on its way to the sink."""
    definition = SimpleNamespace(identity="1", version=0, plan=SimpleNamespace(pinned={}))
    row = ViewRow("public", "v", "SELECT 0", "1", status="degraded")
    desk = worker_of(row, definition)
    build: Any = SimpleNamespace(definition=definition, initial_load=SimpleNamespace(count=3))
    desk.joined(build, 6)
    desk._engine.views.clear()
    assert desk.to_build({}) == []
    desk.complete(6)
    assert desk.to_build({}) == [row]
