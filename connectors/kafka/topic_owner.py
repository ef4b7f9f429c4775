"""Whose the topics of a sink are, and whether they still are those that it has written to.

Invariant: a sink writes to topics in which the first mark that is kept is its own, under the ids
that they had when it began: what was deleted, or made anew under the same name, is refused by
name, and of two sinks that are given one topic just one writes rows.
"""

from __future__ import annotations

import time
import uuid

from connectors.kafka.client import Client
from connectors.kafka.epoch_markers import ANSWER_S, Standing, read_first, read_standing
from connectors.kafka.topic_options import TopicOptions
from connectors.kafka.topic_setup import TopicSetup, topic_not_empty
from connectors.kafka.topics import Topics
from dataflow.errors import SinkError, TemporaryError


class TopicOwner:
    """Of one sink. identity: of the sink, new for each creation; writer: of this process."""

    def __init__(self, client: Client, options: TopicOptions, identity: str) -> None:
        self.identity = identity
        self.writer = uuid.uuid4().hex
        self._client = client
        self._options = options
        self._has_claimed = False
        self._topics: Topics | None = None
        self._ids = ("", "")

    def standing(self) -> Standing | None:
        """As the marks say, which must be there."""
        return read_standing(self._client, self._options.marks, self.identity)

    def mark(self, epoch: int | None, partitions: int) -> Standing:
        """What a mark of ours says."""
        return Standing(epoch, self.identity, self.writer, partitions, self._ids[0])

    def check(self, standing: Standing | None, *, has_rows: bool) -> None:
        """Before anything is made: nobody has taken over, and what was written is there.

        SinkError sink.fenced, sink.lost. has_rows: whether the rows' topic is there.
        """
        options = self._options
        if standing is None:
            if self._has_claimed:
                raise _lost(options.marks, "our marks were in it")
            return
        # Marks that have all expired say nothing of a writer.
        is_our_sink = standing.sink == self.identity
        if self._has_claimed and is_our_sink and standing.writer != self.writer:
            raise SinkError(
                "sink.fenced",
                f'another service writes to topic "{options.topic}" for this sink',
                hint="stop one of the two",
            )
        if standing.epoch is not None and not has_rows:
            raise _lost(options.topic, f"epoch {standing.epoch} was in it")

    def meet(self, standing: Standing | None) -> None:
        """The topics that there are now are ours. SinkError sink.lost where the rows' is not the
        one that the marks speak of; TemporaryError where one that was made is not told of."""
        self._topics = Topics(self._client)
        self._ids = self._found(self._topics)
        deadline = time.monotonic() + ANSWER_S
        while not all(self._ids):
            if time.monotonic() > deadline:
                what = f'topic "{self._options.topic}" was made and is not told of yet'
                raise TemporaryError("sink.unreachable", what)
            time.sleep(0.02)
            self._ids = self._found(self._topics)
        if standing is None or standing.epoch is None or standing.topic in ("", self._ids[0]):
            return
        why = f"it was made anew since epoch {standing.epoch} was written"
        raise _lost(self._options.topic, why)

    def claimed(self, epoch: int | None) -> None:
        """Our mark is there. SinkError sink.topic_not_empty where another sink's, of those that
        began before any row was written, came first."""
        if epoch is None and read_first(self._client, self._options.marks).sink != self.identity:
            raise topic_not_empty(self._options.marks, "another sink has begun to write to it")
        self._has_claimed = True

    def has_same_topics(self) -> bool:
        """Whether what was acknowledged just now lies in the topics that we met."""
        return self._topics is not None and self._found(self._topics) == self._ids

    def require_ours(self, setup: TopicSetup) -> None:
        """Before topics are deleted. SinkError sink.topic_not_ours."""
        rows, marks = self._found(Topics(self._client))
        standing = self.standing() if marks else None
        if standing is not None and standing.epoch is None:
            standing = read_first(self._client, self._options.marks)
        if standing is not None and standing.sink not in ("", self.identity):
            raise _not_ours(self._options.marks, "another sink has written to it")
        if standing is None and rows and not setup.is_empty():
            raise _not_ours(self._options.topic, "no mark says who wrote its rows")

    def _found(self, topics: Topics) -> tuple[str, str]:
        """The ids of the topics of rows and marks, empty where there is none."""
        found = topics.describe((self._options.topic, self._options.marks))
        rows, marks = (found.get(n) for n in (self._options.topic, self._options.marks))
        return rows.id if rows else "", marks.id if marks else ""


def _lost(topic: str, detail: str) -> SinkError:
    return SinkError(
        "sink.lost",
        f'topic "{topic}" is gone',
        detail=detail,
        hint="delete the sink's other topic too, then drop the sink and add it again",
    )


def _not_ours(topic: str, detail: str) -> SinkError:
    return SinkError(
        "sink.topic_not_ours",
        f'topic "{topic}" is not deleted: it is not known to be the sink\'s',
        detail=detail,
        hint="drop the sink without its topics",
    )
