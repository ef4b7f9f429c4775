"""The process of an engine: `python -m service.embedded.host`, a child of the user's process.

Protocol: one line of JSON on standard input has the options; one line of JSON on standard output
has the engine's addresses, or its error.
Invariant: when that input closes or the parent ends (also by kill -9), the service stops first,
then the private PostgreSQL. Nothing is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from dataflow.errors import TidemarkError
from service.embedded.location import EngineLocation
from service.runtime.private_files import keep_private


def main() -> int:
    """Serve until the parent ends; return 1 if the start failed, after reporting why."""
    parent = os.getppid()
    keep_private()
    # A handler that does nothing, since the private PostgreSQL would inherit what is ignored.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = json.loads(sys.stdin.buffer.readline())
    # Only the protocol may appear on the pipe that the parent reads.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _serve(request, answers, parent)
    except TidemarkError as error:
        facts = {"code": error.code, "what": error.what, "detail": error.detail}
        facts |= {"hint": error.hint, "is_temporary": error.is_temporary}
        print(json.dumps({"error": facts}), file=answers, flush=True)
        return 1
    return 0


def _serve(request: dict[str, Any], answers: IO[str], parent: int) -> None:
    folder = Path(request["state_dir"]) if request["state_dir"] else None
    if request["settings"]:
        from service.embedded import serving

        # Before anything is made.
        serving.refuse_unknown(request["settings"])
    with ExitStack() as resources:
        with ThreadPoolExecutor(1, "tidemark-open") as pool:
            location = EngineLocation(request["dsn"], folder)
            opened = pool.submit(resources.enter_context, location)
            # PostgreSQL starts meanwhile.
            from service.embedded import serving
        serving.serve(opened.result(), request["settings"], answers, parent)


if __name__ == "__main__":
    sys.exit(main())
