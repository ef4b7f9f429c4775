"""What a view needs to be maintained by Spark, and its parts in a process that does (decision 35).

Invariant: a view that passes `check_on_spark` can be stepped in buckets; what cannot be split is
a warning. Imports of Spark's client wait until a view needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from connectors.extras import require_package
from connectors.feed_source import BY_EXECUTORS, reader_of
from connectors.postgres.catalog.catalog import SourceRow
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.spark.java import check_spark
from dataflow.errors import InvariantError, SqlError, TidemarkError
from dataflow.expressions.evaluator import Evaluator
from dataflow.schema import Relation
from dataflow.sql.lower.lowering import lower
from dataflow.sql.rules.split_aggregates import split_aggregates
from dataflow.sql.rules.split_top_k import split_top_k
from service.engine.definition import ViewDefinition
from service.ingest.declared_sources import feed_source
from service.runtime.log import log
from service.runtime.settings import Settings
from storage.store import Store

if TYPE_CHECKING:
    from connectors.spark.maintained.layout import Layout
    from connectors.spark.session import LazySession
    from service.engine.bucket_views import BucketViews

# Begins the warnings of what one bucket maintains.
ONE_BUCKET = "Spark maintains this in one bucket, because it cannot be split: "
READ_HERE = "is read by the view's process"
# Below the state of a view's group.
CACHES, MOVING = "bucket-caches", "bucket-moves"


def evaluator_of(settings: Settings, definition: ViewDefinition) -> Callable[[], Evaluator]:
    """Return what evaluates a view's expressions without a kernel, in any process."""
    return functools.partial(
        PostgresEvaluator,
        settings.source,
        role=definition.role,
        time_zone=definition.plan.time_zone,
    )


def bucket_views(
    store: Store, settings: Settings, session: LazySession, while_waiting: Callable[[], object]
) -> BucketViews:
    """Return the views in buckets of a process. while_waiting: as of `BucketParts`.

    As for `ViewStorage`; TidemarkError package.missing.
    """
    require_package("pyspark", "a view that Spark maintains")
    from connectors.spark.maintained.growth import GrowthLimits
    from connectors.spark.maintained.runtime import new_scheduler
    from service.engine.bucket_views import BucketParts, BucketViews
    from service.factory.spark_storage import ViewStorage

    # First of all: without its storage a view waits, and needs no session for that.
    storage = ViewStorage(settings)
    scheduler = new_scheduler(session, settings.state / CACHES)

    def warm() -> None:
        try:
            scheduler.warm()
        except TidemarkError as error:
            # The first epoch starts it again, and reports what is wrong.
            log.warning("buckets.cold", code=error.code, why=error.described)

    parts = BucketParts(
        storage=storage.below,
        scheduler=scheduler,
        evaluator=functools.partial(evaluator_of, settings),
        buckets=settings.spark_buckets,
        folder=settings.state / MOVING,
        growth=GrowthLimits(settings.spark_bucket_mb << 20, settings.spark_buckets),
        while_waiting=while_waiting,
        warm=warm,
    )
    return BucketViews(store, parts)


def remove_buckets(settings: Settings) -> None:
    """Delete what the shared storage has of the group of these settings, which no process uses.

    As for `ViewStorage`.
    """
    from service.factory.spark_storage import ViewStorage

    if settings.spark_storage:
        storage = ViewStorage(settings).below("")
        for name in storage.names(""):
            storage.delete(name)


def check_on_spark(
    definition: ViewDefinition, settings: Settings, sources: Sequence[SourceRow]
) -> list[str]:
    """Return warnings for a view that Spark is to maintain. Nothing of it is left anywhere.

    sources: all that are declared.

    TidemarkError spark.off, spark.no_java, spark.storage_missing, spark.storage_unsafe,
    spark.storage_other, package.missing; SqlError spark.reads_views, spark.unsupported;
    TemporaryError spark.storage, spark.storage_absent.
    """
    if not settings.spark:
        raise TidemarkError(
            "spark.off",
            "no Spark maintains views here",
            hint='set TIDEMARK_SPARK to a master, such as "spark://host:7077" or "local[2]"',
        )
    if definition.parents():
        raise SqlError(
            "spark.reads_views",
            "a view that reads other views cannot go to Spark",
            detail=f"it reads {', '.join(map(str, definition.parents()))}",
            hint="create it with runtime spark: it computes them itself then",
        )
    check_spark(settings.spark, 'options.runtime "spark"')
    from connectors.spark.maintained.runtime import check_storage
    from service.factory.spark_storage import known_mark

    if settings.spark_storage:
        known_mark(settings)
    check_storage(settings.spark_storage, settings.spark)
    layout = layout_of(definition, settings)
    return [
        *(f"{ONE_BUCKET}{what}" for what in layout.single_stages()),
        *read_here(definition.relations(), sources),
    ]


def read_here(relations: Iterable[Relation], sources: Sequence[SourceRow]) -> list[str]:
    """Return a warning for each topic or folder that executors do not read. sources: all."""
    rows = {row.name: row for row in sources if not row.is_database and row.type != "clock"}
    found = []
    for relation in relations:
        if relation.name.source in rows:
            reader = reader_of(feed_source(rows[relation.name.source]), relation)
            if reader != BY_EXECUTORS:
                found.append(f'"{relation.name}" {READ_HERE}, the {reader}')
    return found


def plan_on_spark(definition: ViewDefinition) -> ViewDefinition:
    """Return a view that is to be built, with a plan for buckets."""
    root = split_aggregates(split_top_k(definition.plan.root))
    plan = replace(definition.plan, root=root)
    return replace(definition, plan=plan)


def layout_of(definition: ViewDefinition, settings: Settings) -> Layout:
    """Return the stages of a view. SqlError spark.unsupported."""
    from connectors.spark.maintained.layout import Layout, MaintainedView

    view = MaintainedView(
        definition.identity,
        lower(definition.plan.root),
        definition.scope,
        definition.relations(),
        {relation.name: columns for relation, columns in definition.reads()},
        evaluator_of(settings, definition),
    )
    try:
        layout = Layout(view, settings.spark_buckets)
        # Computed once, and refused here if some state has no exchange key.
        assert layout.specs is not None
    except InvariantError as error:
        raise SqlError(
            "spark.unsupported",
            "Spark cannot maintain this query",
            detail=error.described,
            hint="leave out options.runtime",
        ) from None
    return layout
