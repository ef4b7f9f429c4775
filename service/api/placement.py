"""Where a new view is maintained: in its group's process, or by Spark in a group of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from connectors.postgres.catalog.catalog import SourceRow
from dataflow.errors import SqlError
from service.api.models import ViewOptions
from service.engine.definition import ViewDefinition
from service.factory.on_spark import check_on_spark
from service.runtime.memory_budget import MEBIBYTE
from service.runtime.settings import DEFAULT_GROUP, Settings
from service.views.estimate_models import Estimate
from service.views.groups import spark_group

AUTO, LOCAL, SPARK = "auto", "local", "spark"


@dataclass(frozen=True)
class Placement:
    """What the options of a view become, and warnings about it."""

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

    "auto" chooses Spark for a state beyond TIDEMARK_SPARK_STATE_MB, where Spark can maintain the
    view. SqlError, TidemarkError as of `check_on_spark`.
    """
    local, group = Placement(LOCAL, options.group), spark_group(definition.identity)
    if options.runtime == SPARK:
        return Placement(SPARK, group, tuple(check_on_spark(definition, settings, sources())))
    state_mb = 0 if estimate is None else estimate.state_bytes // MEBIBYTE
    is_large = bool(settings.spark) and state_mb >= settings.spark_state_mb
    if options.runtime == LOCAL or not is_large or options.group != DEFAULT_GROUP:
        return local
    try:
        return Placement(SPARK, group, tuple(check_on_spark(definition, settings, sources())))
    except SqlError as error:
        why = f"its state may take {state_mb} MiB on this machine: {error.what}"
        return Placement(LOCAL, options.group, (why,))
