"""`python -m bench.traced_service serve`: the service, noting when an epoch reaches each stage.

It appends lines "stage nanoseconds" (of the monotonic clock, which all processes share) to the file
of BENCH_TRACE. The methods that mark a stage are wrapped from outside: the product has no hook.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connectors.postgres.replication.stream import ReplicationStream
from connectors.postgres.replication.table_facts import TableCatalog
from connectors.postgres.sink import postgres_sink
from service.cli.main import main
from service.engine.engine import Engine
from service.pipeline.pipeline import Pipeline
from service.pipeline.sink_writer import SinkWriter

TRACE = "BENCH_TRACE"
_BEFORE, _AFTER = "before", "after"
# The stage, what marks it, and whether its begin or its end does.
_MARKS: tuple[tuple[str, Any, str, str], ...] = (
    ("received", ReplicationStream, "_finish", _BEFORE),
    ("polled", ReplicationStream, "_take", _AFTER),
    ("checked", TableCatalog, "digest", _AFTER),
    ("decoded", ReplicationStream, "_decode", _AFTER),
    ("stepped", Engine, "step", _AFTER),
    ("committed", Engine, "commit", _AFTER),
    ("taken", SinkWriter, "_write", _BEFORE),
    ("composed", postgres_sink, "flush", _BEFORE),
    ("written", SinkWriter, "_write", _AFTER),
)


def trace(path: Path) -> None:
    """Note the stages from now on; they are in the file once a pipeline has ended."""
    noted: list[tuple[str, int]] = []

    def wrapped(stage: str, called: Callable[..., Any], moment: str) -> Callable[..., Any]:
        def noting(*given: Any, **named: Any) -> Any:
            if moment == _BEFORE:
                noted.append((stage, time.perf_counter_ns()))
            found = called(*given, **named)
            if moment == _AFTER:
                noted.append((stage, time.perf_counter_ns()))
            return found

        return noting

    for stage, owner, name, moment in _MARKS:
        setattr(owner, name, wrapped(stage, getattr(owner, name), moment))
    run = Pipeline.run

    def traced(pipeline: Pipeline) -> None:
        try:
            run(pipeline)
        finally:
            with path.open("a") as file:
                file.writelines(f"{stage} {at}\n" for stage, at in noted)

    setattr(Pipeline, "run", traced)  # noqa: B010


if __name__ == "__main__":
    trace(Path(os.environ[TRACE]))
    main()
