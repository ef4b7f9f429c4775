"""`python -m bench.engine_start [--rounds N]`: seconds from a new Python to a usable engine.

Each round is a script of its own, as a user starts it: imports, `tidemark.Engine()` with a private
PostgreSQL, a function, and the first rows of a first view. Printed are the medians since the start
of the process, and the CPU seconds of all processes of the round, which other load changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

_SCRIPT = """
import json, sys, time
began, steps = float(sys.argv[1]), {}
def step(name):
    steps[name] = time.time() - began
import tidemark
step("import tidemark")
engine = tidemark.Engine()
step("Engine()")
engine.register("users", [{"id": 1, "country": "GB"}], key="id")
view = engine.view("SELECT country, count(*) AS n FROM users GROUP BY country")
assert view.rows().to_list() == [("GB", 1)]
step("rows of a view")
engine.close()
step("close()")
print(json.dumps(steps))
"""


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = [_round() for _ in range(parser.parse_args(arguments).rounds)]
    for name in rounds[0]:
        print(f"{name:20} {median(one[name] for one in rounds):6.2f} s")
    return 0


def _round() -> dict[str, float]:
    """Return the seconds of each step, and the CPU seconds of all."""
    before = os.times()
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.getenv("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(time.time())],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    after = os.times()
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    return {**json.loads(done.stdout), "CPU of all": spent}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
