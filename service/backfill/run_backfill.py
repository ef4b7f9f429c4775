"""A process that builds views: `python -m service.backfill.run_backfill PIPE PARENT`.

Started by `children` with the number of its end of a pipe and the pid of its parent: jobs arrive
through the pipe; progress and results are sent back.
"""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Connection

from dataflow.errors import TidemarkError
from service.backfill.local_backfill import BackfillJob, backfill
from service.runtime import deep_stack
from storage.parent_process import die_with_parent
from storage.process_title import set_title


def main(pipe: Connection, parent: int) -> int:
    """Run one job after the other until the parent is gone; then return 0."""
    die_with_parent(parent)
    set_title("backfill")
    sys.setrecursionlimit(deep_stack.RUN)
    while True:
        try:
            begin, job = pipe.recv()
        except EOFError:
            return 0
        # With the first job alone.
        if begin is not None:
            begin()
        pipe.send("begun")
        pipe.send(_outcome(job, pipe))


def _outcome(job: BackfillJob, pipe: Connection) -> tuple[str, object]:
    try:
        return "result", backfill(job, lambda progress: pipe.send(("progress", progress)))
    except TidemarkError as error:
        return "error", error
    except Exception:
        detail = traceback.format_exc(limit=-6)
        return "error", TidemarkError("backfill.failed", "the backfill failed", detail=detail)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
