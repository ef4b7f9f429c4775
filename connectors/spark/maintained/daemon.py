"""The daemon of an executor's Python processes: everything is imported before it forks them.

Spark starts this module in place of `pyspark.daemon`, whose processes collect garbage after every
task: over all that they have imported, which takes longer than a small epoch. What the daemon has
frozen is not looked at. Kernels are loaded here once, not in each process.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

from connectors.spark.maintained import reading, tasks  # noqa: F401  what the processes run
from connectors.spark.warming import warm

if __name__ == "__main__":
    warm()
    gc.collect()
    gc.freeze()
    manager()
