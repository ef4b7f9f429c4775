"""A pipeline process: `python -m service.supervisor.run_pipeline [GROUP]`.

Settings come from the environment. Exit codes:
0: stopped on request.
1: failed; the supervisor restarts it after a backoff.
3: refused; the catalog and the log have the reason; the supervisor restarts it after a backoff.
4: a restart cannot help; another version of the program, or another state, is needed first.
"""

from __future__ import annotations

import shutil
import sys

from connectors.spark import leftovers
from dataflow.errors import TidemarkError
from service.factory.service_factory import ServiceFactory
from service.pipeline.composition import compose
from service.runtime import deep_stack, signals
from service.runtime.disk_errors import disk_error
from service.runtime.log import configure, log
from service.runtime.memory_budget import calm_collector
from service.runtime.restart_policy import exit_code
from service.runtime.security_limits import protect
from service.runtime.settings import DEFAULT_GROUP, Settings, parent_pid
from service.views import handover_folder
from storage.errors import StorageError
from storage.parent_process import die_with_parent
from storage.process_title import set_title


def main(group: str = DEFAULT_GROUP) -> int:
    """Run until SIGTERM; return the exit code."""
    die_with_parent(parent_pid())
    # The reader, engine and sink threads hand work to each other: the default 5 ms adds latency.
    sys.setswitchinterval(0.0005)
    sys.setrecursionlimit(deep_stack.RUN)
    settings = Settings.load().for_group(group)
    name = "pipeline" if group == DEFAULT_GROUP else f"pipeline {group}"
    set_title(name)
    configure(settings.log_level, name, settings.log_format)
    protect(settings)
    factory = ServiceFactory(settings)
    calm_collector()
    factory.prepare_builds()
    leftovers.sweep()
    try:
        handover_folder.take_over(settings)
        settings.state.mkdir(parents=True, exist_ok=True)
        pipeline = compose(settings, factory)
        signals.stop_on_terminate(pipeline.stop, lambda: log.warning("pipeline.cut_short"))
        log.info("pipeline.started")
        pipeline.run()
        if pipeline.is_unused:
            # The group has no view left: nothing of it stays, its state last.
            factory.sink().forget_owner()
    except (TidemarkError, StorageError, OSError) as raised:
        error = disk_error(raised, "the pipeline") or raised
        if isinstance(error, OSError):
            raise
        code = exit_code(error)
        if code != 1:
            factory.report_failure(error)
        return code
    if pipeline.is_unused:
        shutil.rmtree(settings.state)
    log.debug("pipeline.stopped")
    return 0


if __name__ == "__main__":
    # Everything is closed; skip the interpreter's shutdown, which is slow.
    signals.end_now(main(*sys.argv[1:]))
