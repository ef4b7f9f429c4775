"""Oracle: the model of tests.recovery.prefix at every state, a reader of changes that is never cut
off, and a view of now() that stays what it was, whatever the service's wall clock is set to."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.harness import figures
from tests.harness.change_stream import Fold
from tests.harness.postgres import Database
from tests.recovery.scene import Scene, repeat_command

DAY_S = 86_400.0
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "5"))
ROUNDS = max(1, int(os.environ.get("TIDEMARK_TEST_KILLS", "0")) // 100)
JUMPS = (DAY_S, -DAY_S, 40.0, -3600.0, 0.0)


@pytest.mark.whole
@pytest.mark.timeout(600 + 60 * ROUNDS)
def test_the_clock_is_set(database: Database, tmp_path: Path) -> None:
    command = repeat_command(__file__, TIDEMARK_TEST_SEED=SEED, TIDEMARK_TEST_KILLS=100 * ROUNDS)
    print(f"repeat: {command}")
    # Short: whatever expires by the wall clock would have long expired after a day.
    scene = Scene(database, tmp_path, SEED, changes_retention_s=60, verify_interval_s=30)
    with figures.counted("clock_jumps", command) as run:
        try:
            scene.begin()
            scene.create("recent", "SELECT id FROM wide WHERE now() > '2001-01-01'::timestamptz")
            scene.settled("recent")
            fold = Fold()
            scene.subscribed("rich", fold)
            name = fold.token.partition(".")[0]
            for _ in range(ROUNDS):
                for jump in JUMPS:
                    scene.set_clock(jump)
                    run.count += 1
                    scene.move_on(10)
                    scene.subscribed("rich", fold)
                    assert fold.token.partition(".")[0] == name, "the log was begun anew"
                    _await_health(scene)
                    if jump == -DAY_S:
                        # A start finds files that are from the future.
                        scene.service.kill_child("pipeline")
                        scene.service.kill_child("api")
                        scene.move_on(10)
            scene.finish()
            scene.subscribed("rich", fold)
            rows = database.rows("SELECT to_jsonb(r) FROM rich AS r")
            assert sorted(fold.rows.elements()) == sorted(
                json.dumps(row, sort_keys=True) for (row,) in rows
            )
        finally:
            run.epochs = scene.checker.distinct
            scene.close()


def _await_health(scene: Scene) -> None:
    deadline = time.monotonic() + 60
    while (answer := scene.service.call("GET", "/health").json())["status"] != "ok":
        assert time.monotonic() < deadline, answer
        scene.look(0.1)
