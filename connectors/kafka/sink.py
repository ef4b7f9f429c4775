"""Sinks in Kafka, as the service's processes see them: the client is in a child process.

See `source.py` for the reason; the sink itself is `topic_sink.py`. Invariant: a sink that loses its
process continues as the same writer, so that of two services, one ends with sink.fenced.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from connectors.apart.child_process import ANSWER_S, CLOSE_S, Child, ChildFault, Items
from connectors.kafka.client_process import prepare, use_of
from connectors.kafka.topic_options import TopicOptions, detachment_of
from connectors.sink import SinkTable
from connectors.view_sink import Detachment, Interruption, ViewEpoch
from dataflow.errors import TidemarkError

# Of what the client still sends at the end of a transaction, while it moves on.
WRITE_S = 900.0


def make(options: Mapping[str, Any], table: SinkTable, identity: str, title: str) -> SinkApart:
    """See SinkConnector. SinkError sink.bad_option, secret.missing."""
    TopicOptions.of(options, table)
    prepare()
    return SinkApart(options, table, identity, title)


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    """See SinkConnector and connectors/kafka/make_sink.py."""
    TopicOptions.of(options, table)
    with Child(use_of("sink", title, options), "connectors.kafka.in_child:checker") as child:
        return child.call("check", options, table, title)


class SinkApart:
    """A ViewSink."""

    def __init__(
        self, options: Mapping[str, Any], table: SinkTable, identity: str, title: str
    ) -> None:
        self._made_of = (options, table, identity, title)
        self._use = use_of("sink", title, options)
        self._writer = uuid.uuid4().hex
        self._has_claimed = False
        self._interrupted = Interruption()
        self._child: Child | None = None

    def open(self, known: int | None = None) -> int | None:
        """See ViewSink."""
        epoch = self._call("open", known)
        self._has_claimed = True
        return epoch

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """See ViewSink."""
        bare = [replace(one, deltas=()) for one in epochs]
        self._call("write", bare, *(Items(one.deltas) for one in epochs), within_s=WRITE_S)

    def remove(self) -> None:
        """See ViewSink."""
        self._call("remove")

    def detachment(self) -> Detachment:
        """See ViewSink."""
        return detachment_of(TopicOptions.of(*self._made_of[:2]))

    def detach(self) -> None:
        """See ViewSink."""
        self._call("detach")

    def interrupt(self) -> None:
        """See ViewSink."""
        self._interrupted.set()
        child = self._child
        if child is not None:
            child.interrupt()

    def close(self) -> None:
        """See ViewSink."""
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(TidemarkError, ChildFault):  # the next `open` resolves what is left
            child.call("close", within_s=CLOSE_S)
        child.close()

    def _call(self, method: str, *arguments: Any, within_s: float = ANSWER_S) -> Any:
        self._interrupted.check()
        if self._child is None:
            made = (*self._made_of, (self._writer, self._has_claimed))
            self._child = Child(self._use, "connectors.kafka.in_child:sink", *made)
            if self._interrupted.is_set:
                self._child.interrupt()
        child = self._child
        try:
            return child.call(method, *arguments, within_s=within_s)
        finally:
            if child.has_failed:
                self._child = None
                child.close()
