"""Which sink owns the topics, and whether they are still those that it has written to.

Invariant: a sink writes to topics whose oldest retained marker is its own, under the ids that they
had when it started. A deleted or recreated topic is refused by name. If two sinks are configured
with one topic, exactly one writes rows.
"""

from __future__ import annotations

import time
import uuid

from connectors.kafka.client import Client
from connectors.kafka.epoch_markers import ANSWER_S, Standing, read_first, read_standing
from connectors.kafka.topic_options import TopicOptions
from connectors.kafka.topic_setup import TopicSetup, topic_not_empty
from connectors.kafka.topics import Topics
from connectors.view_sink import fenced, lost
from dataflow.errors import SinkError, TemporaryError


class TopicOwner:
    """Ownership checks of one sink.

    identity: of the sink, new for each creation. writer: of the service's process; a new one by
    default. has_claimed: it has opened the sink before.
    """

    def __init__(
        self,
        client: Client,
        options: TopicOptions,
        identity: str,
        writer: str = "",
        *,
        has_claimed: bool = False,
    ) -> None:
        self.identity = identity
        self.writer = writer or uuid.uuid4().hex
        self._client = client
        self._options = options
        self._has_claimed = has_claimed
        self._topics: Topics | None = None
        self._ids = ("", "")

    def standing(self) -> Standing | None:
        """Return the content of the newest marker, which must exist."""
        return read_standing(self._client, self._options.markers, self.identity)

    def marker(self, epoch: int | None, partitions: int) -> Standing:
        """Return the content of a marker of this sink."""
        return Standing(epoch, self.identity, self.writer, partitions, self._ids[0])

    def check(self, standing: Standing | None, *, has_rows: bool) -> None:
        """Check before anything is created that nothing has taken over and nothing was lost.

        SinkError sink.fenced, sink.lost. has_rows: whether the rows' topic exists.
        """
        options = self._options
        if standing is None:
            if self._has_claimed:
                raise _lost(options.markers, "it held the sink's markers")
            return
        # If all markers have expired, the writer is unknown.
        is_our_sink = standing.sink == self.identity
        if self._has_claimed and is_our_sink and standing.writer != self.writer:
            raise fenced(f'topic "{options.topic}"')
        if standing.epoch is not None and not has_rows:
            raise _lost(options.topic, f"it held epoch {standing.epoch}")

    def record_topics(self, standing: Standing | None) -> None:
        """Record the ids of the existing topics.

        SinkError sink.lost: the rows' topic is not the one that the markers name. TemporaryError: a
        topic that was just created is not listed yet.
        """
        self.close()
        self._topics = Topics(self._client)
        self._ids = self._found(self._topics)
        deadline = time.monotonic() + ANSWER_S
        while not all(self._ids):
            if time.monotonic() > deadline:
                what = f'topic "{self._options.topic}" was created but is not listed yet'
                raise TemporaryError("sink.unreachable", what)
            time.sleep(0.02)
            self._ids = self._found(self._topics)
        if standing is None or standing.epoch is None or standing.topic in ("", self._ids[0]):
            return
        why = f"it was recreated after epoch {standing.epoch} was written"
        raise _lost(self._options.topic, why)

    def claimed(self, epoch: int | None) -> None:
        """Check that this sink owns the topics once its marker is written.

        SinkError sink.topic_not_empty: another sink that started before any row was written came
        first.
        """
        if epoch is None and read_first(self._client, self._options.markers).sink != self.identity:
            raise topic_not_empty(self._options.markers, "another sink has started to write to it")
        self._has_claimed = True

    def has_same_topics(self) -> bool:
        """Return True if the topics that just acknowledged records are those recorded by
        `record_topics`.
        """
        return self._topics is not None and self._found(self._topics) == self._ids

    def close(self) -> None:
        """Forget the recorded topics, with the client that asks for them."""
        topics, self._topics = self._topics, None
        if topics is not None:
            topics.close()

    def require_ours(self, setup: TopicSetup, *, is_left: bool = False) -> None:
        """Check ownership before topics are deleted. SinkError sink.topic_not_ours.

        is_left: the rows stay, so that rows without any marker are no reason to refuse.
        """
        rows, markers = self._found(Topics(self._client))
        standing = self.standing() if markers else None
        if standing is not None and standing.epoch is None:
            standing = read_first(self._client, self._options.markers)
        if standing is not None and standing.sink not in ("", self.identity):
            raise _not_ours(self._options.markers, "another sink has written to it")
        if standing is None and rows and not is_left and not setup.is_empty():
            raise _not_ours(self._options.topic, "no marker names the sink that wrote its rows")

    def _found(self, topics: Topics) -> tuple[str, str]:
        """Return the ids of the topics of rows and markers; empty if there is none."""
        found = topics.describe((self._options.topic, self._options.markers), within_s=0)
        rows, markers = (found.get(n) for n in (self._options.topic, self._options.markers))
        return rows.id if rows else "", markers.id if markers else ""


def _lost(topic: str, detail: str) -> SinkError:
    what = f'topic "{topic}" is missing or was recreated'
    return lost(detail, what, first="delete the sink's other topic too")


def _not_ours(topic: str, detail: str) -> SinkError:
    return SinkError(
        "sink.topic_not_ours",
        f'topic "{topic}" cannot be deleted: it may not be the sink\'s',
        detail=detail,
        hint="drop the sink without its topics",
    )
