"""The recovery at a pipeline's start, which brings sink and state to one position.

If the sink lags, the outbox is replayed. If the state lags (a machine crash lost its newest
writes), the sources are stepped up to the sink's positions with the sink muted. Until then the
state retains its epoch number, by which the next start detects the lag. A sink that lacks more than
the outbox has was rewound, and is left unchanged (`sink_rewind`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from connectors.sink import Progress, Sink, SinkEpoch, ViewChange
from dataflow.errors import InvariantError, SinkError
from dataflow.schema import RelationName
from service.engine.engine import Engine
from service.metrics.metrics import PipelineMetrics
from service.pipeline.sink_writer import SinkWriter
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime
from service.views.lifecycle import ViewState


def recover(
    engine: Engine,
    sink: Sink,
    metrics: PipelineMetrics,
    left_out: Collection[RelationName],
    waiting_bytes: int,
    *,
    is_older: bool = False,
    runtime: Runtime = RUNTIME,
) -> tuple[SinkWriter, dict[str, Any]]:
    """Return the sink's writer, and for each source the position up to which the sink has
    everything.

    left_out: failed views, of which nothing more is written. waiting_bytes: for epochs on their way
    to the sink. is_older: the sink's catalog lacks views of the state: then a lagging sink was
    rewound, even if the outbox has epochs of these numbers. In that case the writer's epoch is
    lower than the engine's.
    """
    found = sink.read_progress()
    in_sink = engine.positions.floor if found is None else found.epoch
    writer = SinkWriter(sink, in_sink, metrics, waiting_bytes, runtime=runtime)
    epochs: list[SinkEpoch] | None = []
    if is_elsewhere(engine, found) or (is_older and in_sink < engine.epoch):
        epochs = None
    elif in_sink < engine.epoch:
        epochs = lacking(engine, sink, in_sink)
    if epochs is None:
        # Further than the sink is, whatever the number of its epoch.
        engine.positions.set_epoch(max(engine.epoch, engine.positions.awaited, in_sink + 1))
        log.error("sink.rewound", state_epoch=engine.epoch, sink_epoch=in_sink)
        return writer, {}
    if epochs:
        log.info("recover.outbox", epochs=len(epochs), sink_epoch=in_sink)
        writer.leave_out(left_out)
        for epoch in for_current_views(epochs, engine):
            writer.submit(epoch)
        writer.forgive()
    elif found is not None and in_sink > engine.epoch:
        log.warning("recover.replay", state_epoch=engine.epoch, sink_epoch=in_sink)
        own = engine.positions.by_source
        return writer, {s: p for s, p in found.positions.items() if p != own.get(s)}
    elif found is not None and 0 < engine.position < found.positions.get(engine.source, 0):
        # First read again since a state was lost, with views that the sink does not have yet.
        log.warning("recover.replay", state_epoch=engine.epoch, sink_epoch=in_sink)
        return writer, {engine.source: found.positions[engine.source]}
    return writer, {}


def for_current_views(epochs: Sequence[SinkEpoch], engine: Engine) -> Iterator[SinkEpoch]:
    """Yield the epochs with the statuses that views have now.

    A view that has left the engine since it joined, to be rebuilt, is not reported live by the
    epoch that shows it, since those after it continue without it.
    """
    live = {definition.identity for definition in engine.views.values()}
    changed = [change for epoch in epochs for change in epoch.ddl.changes]
    stays = live | {c.identity for c in changed if c.status == ViewState.PAUSED}
    for epoch in epochs:
        changes = (c if c.identity in stays else _degraded(c) for c in epoch.ddl.changes)
        yield replace(epoch, ddl=replace(epoch.ddl, changes=tuple(changes)))


def _degraded(change: ViewChange) -> ViewChange:
    if change.status != ViewState.LIVE:
        return change
    # The catalog has, or gets, the reason.
    facts = {k: v for k, v in change.facts.items() if k not in ("code", "detail", "hint")}
    return replace(change, facts=facts, status=ViewState.DEGRADED.value)


def is_elsewhere(engine: Engine, found: Progress | None) -> bool:
    """Return True if the state has never been, and cannot get, to the sink's position.

    Epoch numbers alone do not show it, since a state may be lost and start again.
    """
    floor = engine.positions.floor
    in_sink, positions = (floor, {}) if found is None else (found.epoch, found.positions)
    if engine.position > positions.get(engine.source, engine.position):
        return in_sink > engine.epoch or in_sink < engine.positions.awaited
    if in_sink > engine.epoch:
        # Positions of external sources have no order here.
        is_bare = engine.positions.by_source.keys() <= {engine.source}
        return in_sink < engine.positions.awaited and not is_bare
    entry = engine.find_epoch(in_sink)
    if entry is None:
        return False
    return entry.progress.as_stored() != positions


def lacking(engine: Engine, sink: Sink, in_sink: int) -> list[SinkEpoch] | None:
    """Return the epochs that a sink at this epoch lacks.

    None if the outbox lacks some, or they contain more than rows that the sink once had, or initial
    rows that are gone.
    """
    try:
        epochs = engine.outbox(in_sink)
    except InvariantError as error:
        if error.code != "state.outbox_gap":
            raise
        return None
    acknowledged = engine.positions.acknowledged
    for epoch in epochs:
        if epoch.is_non_idempotent and epoch.repair is None and in_sink < acknowledged:
            return None
        if not all(sink.is_staged(swap.table, swap.token) for swap in epoch.ddl.swaps):
            return None
    return epochs


def require_known(engine: Engine, sink: Sink) -> None:
    """Check that the sink has progress: without any, it is not the one that was written. SinkError
    sink.empty.
    """
    floor = engine.positions.floor
    is_lost = engine.epoch > floor and sink.read_progress() is None
    if is_lost and lacking(engine, sink, floor) is None:
        raise SinkError(
            "sink.empty",
            "the sink has no progress of what the state has written to it",
            detail=f"the state is at epoch {engine.epoch}",
            hint="the sink is another database, or a copy from before the first view: give the"
            " service the one that it had; if that is lost, start with an empty --state",
        )
