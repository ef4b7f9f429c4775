"""Sink and state brought to one position when the pipeline starts (DESIGN 4).

Where the sink is behind, the outbox is replayed; where the state is (a crash of the machine lost
its newest writes), the sources are stepped up to the sink's positions with the sink muted. Until
then the state keeps the number of its own epoch: by that the next start knows that it is behind.
A sink that lacks more than the outbox has was set back, and is left where it is (`set_back`).
"""

from __future__ import annotations

import json
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
    """The sink's writer, and for each source the position up to which the sink has all already.

    left_out: views that have failed, of which nothing more is written. waiting_bytes: what epochs
    on their way to the sink may take. is_older: the sink's catalog does not know views of the
    state: a sink that is behind was set back, even if the outbox has epochs of these numbers. The
    writer knows then how far it is: less far than the engine.
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
        log.error("sink.set_back", state_epoch=engine.epoch, sink_epoch=in_sink)
        return writer, {}
    if epochs:
        log.info("recover.outbox", epochs=len(epochs), sink_epoch=in_sink)
        writer.leave_out(left_out)
        for epoch in for_current_views(epochs, engine):
            writer.submit(epoch)
        writer.forgive()
    elif found is not None and in_sink > engine.epoch:
        log.warning("recover.muted", state_epoch=engine.epoch, sink_epoch=in_sink)
        own = engine.positions.by_source
        return writer, {s: p for s, p in found.positions.items() if p != own.get(s)}
    elif found is not None and 0 < engine.position < found.positions.get(engine.source, 0):
        # First read again since a state was lost, with views that the sink does not have yet.
        log.warning("recover.muted", state_epoch=engine.epoch, sink_epoch=in_sink)
        return writer, {engine.source: found.positions[engine.source]}
    return writer, {}


def for_current_views(epochs: Sequence[SinkEpoch], engine: Engine) -> Iterator[SinkEpoch]:
    """The epochs as they are now told: a view that has left the engine since it joined, to be built
    anew, is not called live by the one in which it did, since those after it move on without it."""
    live = {definition.identity for definition in engine.views.values()}
    stays = live | {c.identity for e in epochs for c in e.changes if c.status == ViewState.PAUSED}
    for epoch in epochs:
        changes = (c if c.identity in stays else _degraded(c) for c in epoch.changes)
        yield replace(epoch, changes=tuple(changes))


def _degraded(change: ViewChange) -> ViewChange:
    if change.status != ViewState.LIVE:
        return change
    # The catalog has, or gets, the reason.
    facts = {k: v for k, v in change.facts.items() if k not in ("code", "detail", "hint")}
    return replace(change, facts=facts, status=ViewState.DEGRADED.value)


def is_elsewhere(engine: Engine, found: Progress | None) -> bool:
    """Whether the sink is where the state has not come by, or has been: numbers of epochs alone do
    not say it, since a state may be lost and begin anew."""
    floor = engine.positions.floor
    in_sink, positions = (floor, {}) if found is None else (found.epoch, found.positions)
    if engine.position > positions.get(engine.source, engine.position):
        return in_sink > engine.epoch or in_sink < engine.positions.awaited
    if in_sink > engine.epoch:
        # Places of other sources are not put in order here.
        is_bare = engine.positions.by_source.keys() <= {engine.source}
        return in_sink < engine.positions.awaited and not is_bare
    entry = engine.find_epoch(in_sink)
    if entry is None:
        return False
    return json.loads(json.dumps(dict(entry.progress.positions))) != positions


def lacking(engine: Engine, sink: Sink, in_sink: int) -> list[SinkEpoch] | None:
    """What a sink at this epoch lacks; None where the outbox has not all of it, or it is more than
    rows that the sink has had, or first rows that it has not any more."""
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
        if not all(sink.is_staged(t, epoch.tokens.get(t.relation, "")) for t in epoch.swaps):
            return None
    return epochs


def require_known(engine: Engine, sink: Sink) -> None:
    """A sink without any progress is not the one that the state has written to. SinkError
    sink.empty."""
    floor = engine.positions.floor
    is_lost = engine.epoch > floor and sink.read_progress() is None
    if is_lost and lacking(engine, sink, floor) is None:
        raise SinkError(
            "sink.empty",
            "the sink knows nothing of what the state has written to it",
            detail=f"the state is at epoch {engine.epoch}",
            hint="the sink is another database, or a copy from before the first view: give the"
            " service the one that it had; if that is lost, start with an empty --state",
        )
