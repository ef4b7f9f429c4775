"""Sink and state brought to one position when the pipeline starts (DESIGN 4).

Where the sink is behind, the outbox is replayed; where the state is (a crash of the machine lost
its newest writes), the sources are stepped up to the sink's positions with the sink muted. Until
then the state keeps the number of its own epoch: by that the next start knows that it is behind.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from connectors.sink import Sink
from dataflow.schema import RelationName
from service.engine import Engine
from service.host import HOST, Host
from service.log import log
from service.metrics import PipelineMetrics
from service.writer import SinkWriter


def recover(
    engine: Engine,
    sink: Sink,
    metrics: PipelineMetrics,
    left_out: Collection[RelationName],
    waiting_bytes: int,
    *,
    host: Host = HOST,
) -> tuple[SinkWriter, dict[str, Any]]:
    """The sink's writer, and for each source the position up to which the sink has all already.

    left_out: views that have failed, of which nothing more is written. waiting_bytes: what epochs
    on their way to the sink may take.
    """
    found = sink.read_progress()
    in_sink = 0 if found is None else found.epoch
    writer = SinkWriter(sink, in_sink, metrics, waiting_bytes, host=host)
    if in_sink < engine.epoch:
        epochs = engine.outbox(in_sink)
        log.info("recover.outbox", epochs=len(epochs), sink_epoch=in_sink)
        writer.leave_out(left_out)
        for epoch in epochs:
            writer.submit(epoch)
        writer.forgive()
    elif found is not None and in_sink > engine.epoch:
        log.warning("recover.muted", state_epoch=engine.epoch, sink_epoch=in_sink)
        own = engine.positions.by_source
        return writer, {s: p for s, p in found.positions.items() if p != own.get(s)}
    return writer, {}
