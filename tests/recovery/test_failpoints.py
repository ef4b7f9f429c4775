"""Oracle: the model of tests.recovery.prefix at every state of the sink, and PostgreSQL's own
answers in the end, after the service was killed at each named place; nothing is left behind."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.backfill.child_processes import ATTEMPTS
from tests.harness import figures
from tests.harness.failpoints import names_in_source
from tests.harness.postgres import Database
from tests.harness.tiers import is_fast
from tests.recovery.scenarios import LIVE
from tests.recovery.scene import Scene, repeat_command
from tests.recovery.special import (
    BUCKETS,
    CHECKPOINTS,
    HANDOVER,
    RUNS,
    SET_BACK,
    SINKS,
    SPECIAL,
    STARTS,
    STORAGE,
    UNINSTALL,
    Special,
)

# Another seed reaches other places; all of them with TIDEMARK_TEST_FAILPOINTS=all.
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "7"))
IS_ALL = os.environ.get("TIDEMARK_TEST_FAILPOINTS") == "all"
AT_ONCE = 1

pytestmark = pytest.mark.timeout(3600 if IS_ALL else 900)


def _command() -> str:
    wanted = {"TIDEMARK_TEST_FAILPOINTS": "all"} if IS_ALL else {"TIDEMARK_TEST_SEED": SEED}
    return repeat_command(__file__, **wanted)


def _later(point: str, pick: random.Random) -> str:
    """What is passed all the time is reached at any time."""
    if point.split(".")[0] in ("epoch", "state", "sink", "stream", "outbox", "checkpoint"):
        is_rare = point.startswith(("state.ingest", "state.create", "sink.stage", "sink.change"))
        return point if is_rare else f"{point}@{pick.randint(1, 4)}"
    return point


def _together(points: Sequence[str]) -> list[str]:
    """All at once, but those at which a build's process would die once more than it is begun."""
    own = [point for point in points if point.startswith("backfill.")]
    return [point for point in points if point not in own[ATTEMPTS - 1 :]]


def test_every_failpoint_has_a_scenario() -> None:
    reached = [p for s in LIVE for p in s.points] + [p for s in SPECIAL for p in s.points]
    reached += [*STORAGE, *CHECKPOINTS, *SET_BACK, *BUCKETS, *HANDOVER, *SINKS, *RUNS, *STARTS]
    reached += UNINSTALL
    assert sorted(reached) == sorted(set(names_in_source()))


def test_killed_while_it_runs(database: Database, tmp_path: Path) -> None:
    print(f"repeat: {_command()}")
    pick = random.Random(SEED)
    scene = Scene(database, tmp_path, SEED)
    with figures.counted("failpoints", _command()) as run:
        try:
            scene.begin()
            for scenario in LIVE[::4] if is_fast() else LIVE:
                if IS_ALL:
                    rounds = [[point] for point in scenario.points] + [_together(scenario.points)]
                else:
                    rounds = [pick.sample(scenario.points, min(AT_ONCE, len(scenario.points)))]
                for chosen in rounds:
                    print(f"{scenario.run.__name__}: {', '.join(chosen)}")
                    scenario.run(scene, [_later(point, pick) for point in chosen])
                    run.count += len(chosen)
            scene.finish()
            scene.drop_all()
        finally:
            run.epochs = scene.checker.distinct
            scene.close()


@pytest.mark.whole
@pytest.mark.parametrize(
    "scenario",
    [s for n, s in enumerate(SPECIAL) if IS_ALL or (n % 3 == SEED % 3 and not s.is_slow)],
    ids=lambda s: s.run.__name__,
)
def test_killed_on_the_way(
    scenario: Special, request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> None:
    print(f"repeat: {_command()}")
    with figures.counted("failpoints", _command()) as run:
        scenario.run(request, database, tmp_path)
        run.count = len(scenario.points)
