"""A backfill job handed to the Spark engine (connectors.spark.backfill), which knows no jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.partition_cache import OnProgress
from connectors.spark.result import BackfillResult
from dataflow.sql.lower.lowering import lower
from service.backfill.local_backfill import BackfillJob

if TYPE_CHECKING:
    from connectors.spark.backfill import SparkBackfill


def run_on_spark(
    engine: SparkBackfill, job: BackfillJob, on_progress: OnProgress, *, is_copied: bool = True
) -> BackfillResult:
    """Run the job as `SparkBackfill.run` describes."""
    return engine.run(
        nodes=lower(job.root),
        scope=job.scope,
        relations=job.relations,
        columns=job.columns,
        parts=job.parts,
        evaluator=job.evaluator,
        work_dir=job.work_dir,
        on_progress=on_progress,
        exchange=job.exchange,
        is_copied=is_copied,
    )
