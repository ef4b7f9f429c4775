"""The daemon of a local session's Python processes: what tasks import is there before they fork.

Spark starts this module in place of `pyspark.daemon`, whose processes collect garbage after every
task: over all modules that they have imported. What the daemon has frozen is not looked at.
Kernels are loaded here once, not in each process. Executors elsewhere get our packages only with
their tasks, so they run Spark's own daemon.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

from connectors.spark import tasks  # noqa: F401  what the processes run
from connectors.spark.warming import warm, warm_files

if __name__ == "__main__":
    warm()
    warm_files()
    gc.collect()
    gc.freeze()
    manager()
