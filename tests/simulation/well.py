"""Checks that the whole simulation has recovered after the last fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.postgres.catalog.catalog import ViewRow
from service.views.name_tracking import names_in
from tests.simulation import clock
from tests.simulation.ddl_analysis import plain_columns_in
from tests.simulation.ddl_past import OF_TABLES, REASONS
from tests.simulation.ddl_tables import DdlServer
from tests.simulation.lateness import is_watched
from tests.simulation.reads import SCHEMA, reads
from tests.simulation.server import Server
from tests.simulation.shop import expanded
from tests.simulation.sink import SPOILT

if TYPE_CHECKING:
    from tests.simulation.world import World

# Codes of views that fail permanently once a table was changed (docs/DDL.md), and of what reads
# them.
BEYOND_HELP = {*REASONS, *OF_TABLES, "view.parent_failed"}


def why_not_well(world: World) -> str:
    """What is not as it should be."""
    database, is_changing = world.database, isinstance(world.server, DdlServer)
    if isinstance(world.server, DdlServer) and world.server.locked:
        return "somebody changes a table"
    if len(world.server.log) < 3 * world.steps or not (world.is_reported and world.is_written):
        return "the application still writes"
    for row in database.views:
        expected = {"live": "live", "paused": "paused", "dropped": "gone"}[row.desired]
        if row.status == "failed" and (row.code or "").startswith("sql."):
            # What it was to read was replaced between the look at its query and the asking.
            continue
        if row.status == "failed" and is_changing and row.code in BEYOND_HELP:
            # What it read is gone, or not what it was: that it has failed for a reason is known.
            continue
        is_in_use = (row.replacing or {}).get("code") == "source.name_in_use"
        if row.status == "failed" and row.code == "view.late_row":
            # A row came too late for it, which `Database.update` has made sure of.
            continue
        if row.status == "failed" and row.code == "view.over_budget":
            # Its rows depend on the order of its sources' rows: a rebuild is for its user to ask.
            continue
        if row.code in SPOILT and (is_in_use or _has_lost(world.server, row)):
            # It cannot be rebuilt, or not before another view is.
            continue
        if row.change is not None or row.status != expected:
            why = f"{row.code}: {row.detail}; change {row.change}"
            return f"{row.title} is {row.status}, not {expected}; {why}"
        found = database.tables.get((row.schema, row.name))
        if row.status == "paused" and "refusals" in world.parts:
            # Nobody writes to it; resumed, it gets a table again.
            continue
        is_lost = database.is_set_back and row.code == "sink.table_missing"
        if row.status == "paused" and found is None and is_lost:
            # A standby took over that never had it, and the pause came before the rebuild: the
            # catalog says so, and resumed, it gets a table again.
            continue
        if found is None or found.spoilt or found.identity != row.identity:
            return f"{row.title} has no table"
    process = world.process
    if process is None or process.is_dead or world.loop.now - world.restarts.started_at < 2:
        return "the service does not run"
    return _why_behind(world)


def _has_lost(server: Server, row: ViewRow) -> bool:
    """Whether a table or a column that a view's text names is not there any more."""
    if not isinstance(server, DdlServer):
        return False
    used = plain_columns_in(row.query)
    for read, was in ((r, t) for r in reads(row.query) for t in names_in(row.plan).tables):
        if read.name != was.name:
            continue
        now = server.now.get(f"t{was.oid}")
        called = read.called([name for _, name in was.columns])
        named = {n for (n, _), name in zip(was.columns, called, strict=True) if name in used}
        if now is None or any(now.column(number) is None for number in named):
            return True
    return False


def _why_late(world: World) -> str:
    """Return which view has not the rows of the present moment: a tick was left out."""
    database, oracle = world.database, world.oracle
    if world.clock is None or database.progress is None:
        return ""
    positions = database.progress.positions
    present = dict(positions)
    for name in (n for n in clock.CLOCKS if n in positions):
        at = clock.at_of(positions[name])
        assert at is not None
        # Where the machine's clock was set back, ours waits.
        present[name] = clock.position_at(max(at, world.clock.shown(name)))
    queries = {row.name: oracle.bound(row, database.progress.epoch) for row in database.views}
    for row in (row for row in database.views if row.status == "live"):
        query = expanded(queries[row.name], queries)
        if is_watched(row) or not any(f"{name}.now" in query for name in clock.CLOCKS):
            continue
        at = [oracle.answer(query, database.prefix, p) for p in (positions, present)]
        if at[0] != at[1]:
            return f"{row.title} is as of {positions}, not {present}"
    return ""


def reads_database(world: World) -> bool:
    """Whether a live view reads a table."""
    queries = {row.name: row.query for row in world.database.views}
    live = [row for row in world.database.views if row.status == "live"]
    return any(f"{SCHEMA}." in expanded(row.query, queries) for row in live)


def _why_behind(world: World) -> str:
    """Return the source changes that the sink does not show yet."""
    database = world.database
    queries = {row.name: row.query for row in database.views}
    for row in (row for row in database.views if row.status == "live"):
        query = expanded(row.query, queries)
        for (source, name), topic in world.broker.topics.items():
            offsets = database.progress.positions.get(source, {}) if database.progress else {}
            if f"{source}.{name}" in query and offsets.get(name) != topic.position():
                return f"{source}.{name} is at {offsets.get(name)} of {topic.position()}"
    if why := _why_late(world):
        return why
    if reads_database(world) and database.prefix != len(world.server.log):
        return f"the sink is at prefix {database.prefix} of {len(world.server.log)}"
    others = (one.why_behind() for one in (world.api, world.topics) if one is not None)
    return next(filter(None, others), "")
