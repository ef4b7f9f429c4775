"""What leads a running service to each failpoint: operations under a writer that never rests.

A scenario sets the points that it is given, does something that reaches all of them, and waits
until they were reached and what was asked for is done all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.harness.change_stream import Fold
from tests.recovery.prefix import VIEWS
from tests.recovery.scene import BUSY, OF_WIDE, SUMS, Scene


@dataclass(frozen=True)
class Scenario:
    """points: those that it reaches while the service runs, all of them in one go."""

    points: tuple[str, ...]
    run: Callable[[Scene, Sequence[str]], None]


def _prepared(scene: Scene, name: str, query: str) -> None:
    """A view that is there already, before anything is set."""
    if name not in scene.queries:
        scene.create(name, query)
    scene.settled(name)


def stream(scene: Scene, points: Sequence[str]) -> None:
    """Nothing but the writer."""
    scene.arm(points)
    scene.await_reached(points)
    scene.move_on()


def build(scene: Scene, points: Sequence[str]) -> None:
    """A new view over what changes; another one where nothing did between its snapshot and it."""
    if "busy" in scene.queries:
        scene.drop("busy")
    scene.arm(points)
    scene.create("busy", BUSY)
    scene.settled("busy")
    for _ in range(4):
        if not scene.are_reached(points):
            scene.drop("busy")
            scene.create("busy", BUSY)
            scene.settled("busy")
    scene.await_reached(points, 0)


def replace(scene: Scene, points: Sequence[str]) -> None:
    """Another version of the same columns, then one of others, of a view that is read."""
    _prepared(scene, "sums", SUMS[0])
    now = scene.queries["sums"]
    wanted = [SUMS[1] if now == SUMS[0] else SUMS[0], SUMS[2], SUMS[0]]
    for query, armed in zip(wanted, (points, points, ()), strict=True):
        scene.arm(armed)
        scene.queries["sums"] = query
        scene.ask("sums/replace", {"query": query})
        # What is compared in place is not swapped, and so on: each version reaches some.
        view = scene.settled("sums")
        assert view["query"] == query, view
    scene.await_reached(points)


def pause(scene: Scene, points: Sequence[str]) -> None:
    """A pause; then the view is resumed and kept up to date again."""
    _prepared(scene, "sums", SUMS[0])
    scene.arm(points)
    scene.ask("sums/pause")
    scene.settled("sums", "paused")
    scene.await_reached(points)
    scene.ask("sums/resume")
    scene.settled("sums")


def rename(scene: Scene, points: Sequence[str]) -> None:
    """Another name, and back."""
    _prepared(scene, "sums", SUMS[0])
    scene.arm(points)
    scene.ask("sums/rename", {"name": "others"})
    scene.settled("others")
    scene.await_reached(points)
    scene.ask("others/rename", {"name": "sums"})
    scene.settled("sums")


def drop(scene: Scene, points: Sequence[str]) -> None:
    """A view goes."""
    _prepared(scene, "gone", OF_WIDE)
    scene.arm(points)
    scene.drop("gone")
    scene.await_reached(points)


def ddl(scene: Scene, points: Sequence[str]) -> None:
    """A column that a view uses becomes wider: the view is rebuilt."""
    _prepared(scene, "narrow", OF_WIDE)
    column = scene.database.rows(
        "SELECT atttypid::regtype::text FROM pg_attribute "
        "WHERE attrelid = 'wide'::regclass AND attname = 'v'"
    )
    scene.arm(points)
    other = "bigint" if column == [("integer",)] else "integer"
    scene.database.execute(f"ALTER TABLE wide ALTER COLUMN v TYPE {other}")
    scene.database.execute("INSERT INTO wide SELECT max(id) + 1, 8, 'x' FROM wide")
    scene.await_reached(points)
    scene.settled("narrow")


def subscription(scene: Scene, points: Sequence[str]) -> None:
    """A reader of changes, which are kept from the first one on; over all kills it knows the view's
    rows."""
    if "told" in scene.queries:
        scene.drop("told")
    scene.create("told", VIEWS["rich"])
    scene.settled("told")
    scene.arm(points)
    fold = Fold()
    scene.subscribed("told", fold)
    scene.await_reached(points)
    scene.subscribed("told", fold)
    assert min(fold.rows.values(), default=1) > 0


def asked_of_the_api(scene: Scene, points: Sequence[str]) -> None:
    """The API dies before it answers: what it was asked for is done, and a repetition is told."""
    for name in ("asked", "sums"):
        if name in scene.queries:
            scene.settled(name)
    if "asked" in scene.queries:
        scene.drop("asked")
    _prepared(scene, "sums", SUMS[0])
    scene.arm(points)
    body = {"name": "asked", "query": OF_WIDE, "options": {"backfill": "local"}}
    version = {"query": SUMS[1] if scene.queries["sums"] == SUMS[0] else SUMS[0]}
    scene.queries |= {"asked": OF_WIDE, "sums": version["query"]}
    for path, asked in (("/views", body), ("/views/sums/replace", version)):
        answer = scene.service.call("POST", f"{path}?wait_s=0", asked)
        assert answer.status_code in (201, 202, 409), answer.text
    scene.await_reached(points)
    scene.settled("asked")
    assert scene.settled("sums")["query"] == version["query"]


def supervisor(scene: Scene, points: Sequence[str]) -> None:
    """The supervisor dies when it has seen a child die; its children follow it."""
    scene.arm(points)
    scene.service.kill_child("pipeline")
    scene.await_reached(points)
    scene.service.await_end()
    scene.service.start()
    scene.move_on()


LIVE = [
    Scenario(
        (
            *("epoch.step.after", "epoch.commit.after", "stream.decode.after"),
            *("state.commit.before", "state.commit.after"),
            *("sink.commit.before", "sink.commit.after", "sink.written.before"),
            *("checkpoint.sync.before", "checkpoint.sync.after", "checkpoint.confirm.after"),
            "outbox.trim.before",
        ),
        stream,
    ),
    Scenario(
        (
            *("view.build.before", "build.snapshot.opened", "build.manifest.before"),
            *("backfill.part.before", "backfill.part.after"),
            *("backfill.files.before", "backfill.files.after"),
            *("build.stage.before", "sink.stage.filled", "build.stage.after"),
            *("build.catchup.before", "build.catchup.replay"),
            *("state.ingest.before", "state.ingest.unlisted", "state.ingest.after"),
            *("view.join.before", "view.join.after"),
        ),
        build,
    ),
    Scenario(("build.compare.before", "view.replace.installed", "sink.change.after"), replace),
    Scenario(("view.pause.before", "view.pause.after"), pause),
    Scenario(("view.rename.before", "view.rename.after"), rename),
    Scenario(("view.drop.state", "view.drop.table"), drop),
    Scenario(("ddl.refresh.after", "ddl.recovery.after"), ddl),
    Scenario(("changes.begin.headless", "changes.record.before"), subscription),
    Scenario(("api.view.created", "api.change.requested"), asked_of_the_api),
    Scenario(("supervisor.child.ended",), supervisor),
]
