"""Oracle: the application's own OpenAPI description."""

from __future__ import annotations

from pathlib import Path

from service.api.app import ROUTERS, create_app
from service.api.route_table import RouteTable
from service.api.routes.rows import OPEN_PATH
from service.runtime.settings import Settings


def test_routes_are_known_as_they_are_described(tmp_path: Path) -> None:
    app = create_app(Settings.load(source="dbname=unused", state=tmp_path))
    routes = [route for router in ROUTERS for route in router.routes]
    table = RouteTable(routes, open_paths=[OPEN_PATH])
    described = app.openapi()["paths"]
    assert len(described) > 25
    for path, calls in described.items():
        # Names in braces stand for themselves as well.
        found = table.find(path)
        assert found is not None and found.path == path
        assert found.described == {method.upper() for method in calls}
        for method, call in calls.items():
            names = {p["name"] for p in call.get("parameters", ()) if p["in"] == "query"}
            is_open = path == OPEN_PATH
            assert found.parameters[method.upper()] == (None if is_open else names)
            asked = [*names, "nosuch"]
            assert found.unknown(method.upper(), asked) == ([] if is_open else ["nosuch"])
    assert table.find("/assets/x.js") is None
