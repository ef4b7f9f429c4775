"""Where a new view is maintained: in its group's process, or by Spark in a group of its own.

Invariant: the plan that a new view gets in the catalog is the one that it is built with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from connectors.extras import require_package
from connectors.postgres.catalog.catalog import SourceRow
from dataflow.errors import SqlError
from service.api.models import ViewOptions
from service.engine.definition import ViewDefinition
from service.factory.on_spark import check_on_spark, plan_on_spark
from service.runtime.memory_budget import MEBIBYTE
from service.runtime.settings import DEFAULT_GROUP, Settings
from service.views.estimate_models import Estimate
from service.views.groups import spark_group

AUTO, LOCAL, SPARK = "auto", "local", "spark"


@dataclass(frozen=True)
class Placement:
    """What the options of a view become, its plan there, and warnings about it."""

    definition: ViewDefinition
    runtime: str
    group: str
    warnings: tuple[str, ...] = ()


def placed(
    definition: ViewDefinition,
    options: ViewOptions,
    estimate: Estimate | None,
    *,
    settings: Settings,
    sources: Callable[[], Sequence[SourceRow]],
) -> Placement:
    """Return where a view is maintained. settings: of the service. sources: lists the declared.

    definition: for `runtime: spark` with the views computed in it that it names. "auto" chooses
    Spark for a state beyond TIDEMARK_SPARK_STATE_MB, unless the view would be built sooner here and
    fits into memory; where Spark can maintain it, and it reads no other views, which it would have
    to compute. SqlError, TidemarkError as of `check_on_spark`; package.missing for
    `backfill: spark` without Spark's package.
    """
    if options.backfill == SPARK:
        require_package("pyspark", 'options.backfill "spark"')

    def on_spark() -> Placement:
        planned, group = plan_on_spark(definition), spark_group(definition.identity)
        warnings = check_on_spark(planned, settings, sources())
        return Placement(planned, SPARK, group, tuple(warnings))

    if options.runtime == SPARK:
        return on_spark()
    local = Placement(definition, LOCAL, options.group)
    state_mb = 0 if estimate is None else estimate.state_bytes // MEBIBYTE
    is_large = bool(settings.spark) and state_mb >= settings.spark_state_mb
    if options.runtime == LOCAL or not is_large or options.group != DEFAULT_GROUP:
        return local
    if estimate is not None and _is_slower_there(estimate, options.backfill):
        why = f"its state may take {state_mb} MiB on this machine, where it is built sooner than"
        return replace(local, warnings=(f"{why} by Spark: {estimate.engine_reason}",))
    try:
        return on_spark()
    except SqlError as error:
        why = f"its state may take {state_mb} MiB on this machine: {error.what}"
        return replace(local, warnings=(why,))


def _is_slower_there(estimate: Estimate, backfill: str) -> bool:
    """Return whether the machine of the service builds the view sooner, with enough memory.

    backfill: the view's option, by which the estimate has chosen an engine.
    """
    if backfill == AUTO:
        return estimate.engine != SPARK
    seconds = estimate.engine_s
    return SPARK not in seconds or seconds[SPARK] >= seconds[LOCAL]
