"""Changes of all watched relations: one thread each lists and reads ahead, within a memory bound.

Invariant: `poll` returns the changes of a relation in order and without gaps. A thread that fails
reports its error after everything that it has read. The feed's lock guards what the threads and
`poll` share.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from connectors.feed_source import FeedPositions
from connectors.files.rejected import rejected_delta
from connectors.files.watch import FolderWatch, Piece, joined
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.errors import SourceError

AHEAD_BYTES = 32 << 20
# Listing takes at most this fraction of the time, however many files there are.
_MAX_LOOKING = 0.2


class _Reader:
    """The thread of one relation and its output; `read` and `error` are guarded by the
    feed's lock.

    has_succeeded: a piece was taken, or a listing has ended.
    """

    def __init__(self, watch: FolderWatch, pause_s: float, feed: FilesFeed) -> None:
        self.watch = watch
        self.has_succeeded = False
        self.read: deque[Piece] = deque()
        self.error: BaseException | None = None
        self._pause_s = pause_s
        self._feed = feed
        self._thread = threading.Thread(target=self._run, name="files", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                started = time.monotonic()
                for piece in self.watch.poll():
                    if not self._feed.put(self, piece):
                        return
                self.has_succeeded = True
                listed_s = time.monotonic() - started
                if self._feed.pause(max(self._pause_s, listed_s / _MAX_LOOKING)):
                    return
        except BaseException as error:
            self._feed.fail(self, error)


class FilesFeed:
    """Changes after the positions at which the watches were made.

    watches: by relation name, with the pause between two listings in seconds. dropped: notes that
    no longer belong to any relation.
    """

    def __init__(
        self,
        source: str,
        watches: Mapping[str, tuple[FolderWatch, float]],
        dropped: Mapping[str, None],
        on_ready: Callable[[], None],
    ) -> None:
        self._source = source
        self._dropped = dict(dropped)
        self._on_ready = on_ready
        self._lock = threading.Condition()
        self._held_bytes = 0
        self._is_closed = False
        self._was_dry = True
        self._readers = {n: _Reader(w, pause, self) for n, (w, pause) in watches.items()}
        for reader in self._readers.values():
            reader.start()

    @property
    def lag(self) -> int:
        """Files that were listed and are not fully emitted."""
        with self._lock:
            return sum(f.watch.waiting + bool(f.read) for f in self._readers.values())

    @property
    def skipped(self) -> int:
        """See SourceFeed."""
        return sum(f.watch.skipped for f in self._readers.values())

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed."""
        return all(f.has_succeeded and f.error is None for f in self._readers.values())

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """Return what has been read, in whole pieces; see SourceFeed."""
        with self._lock:
            pieces = self._take(max_rows, until or {})
            if not pieces:
                for reader in self._readers.values():
                    if reader.error is not None and not reader.read:
                        raise reader.error
            self._was_dry = not pieces
            self._lock.notify_all()
        return self._batch(pieces) if pieces or self._dropped else None

    def close(self) -> None:
        """End all threads."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        # A store that does not answer blocks a thread until its requests time out.
        if not all([f.join(60.0) for f in self._readers.values()]):
            what = f'a reader thread of source "{self._source}" does not stop'
            raise SourceError("source.reader", what, hint="restart the service")

    def put(self, reader: _Reader, piece: Piece) -> bool:
        """Add a piece; called by a watching thread. Wait for space; return False if the feed is
        closed.
        """
        size_bytes = piece.nbytes()
        with self._lock:
            while (
                not self._is_closed
                and self._held_bytes
                and (self._held_bytes + size_bytes > AHEAD_BYTES)
            ):
                self._lock.wait()
            if self._is_closed:
                return False
            self._held_bytes += size_bytes
            reader.read.append(piece)
        self._report_ready()
        return True

    def fail(self, reader: _Reader, error: BaseException) -> None:
        """Record the error; called by a watching thread as it ends."""
        with self._lock:
            reader.error = error
        self._report_ready()

    def pause(self, pause_s: float) -> bool:
        """Wait until the next listing; return True if the feed is closed."""
        with self._lock:
            return self._lock.wait_for(lambda: self._is_closed, pause_s)

    def _report_ready(self) -> None:
        with self._lock:
            is_reported, self._was_dry = self._was_dry, False
        if is_reported:
            self._on_ready()

    def _take(self, max_rows: int, until: FeedPositions) -> list[Piece]:
        pieces: list[Piece] = []
        rows = 0
        for name, reader in self._readers.items():
            last = until.get(name, {}).get("event")
            while reader.read and rows < max_rows:
                if last is not None and reader.read[0].event > last:
                    break
                piece = reader.read.popleft()
                reader.has_succeeded = True
                self._held_bytes -= piece.nbytes()
                rows += piece.rows
                pieces.append(piece)
        return pieces

    def _batch(self, pieces: list[Piece]) -> SourceBatch:
        dropped, self._dropped = self._dropped, {}
        return batch_of(self._source, pieces, dropped)


def batch_of(source: str, pieces: Sequence[Piece], dropped: Mapping[str, None]) -> SourceBatch:
    """Return the batch of pieces in order. dropped: notes that no longer belong to a relation."""
    changes: dict[str, list[Changes]] = {}
    positions: dict[str, Mapping[str, Any]] = {}
    notes: dict[str, bytes | None] = dict(dropped)
    rejected = []
    for piece in pieces:
        positions[piece.relation] = piece.position
        notes |= piece.notes
        rejected += piece.rejected
        if piece.changes is not None:
            changes.setdefault(piece.relation, []).append(piece.changes)
    return SourceBatch(
        0,
        [joined(parts) for parts in changes.values()],
        len(pieces),
        sum(piece.rows for piece in pieces),
        source=source,
        positions=positions,
        notes=notes,
        rejected=rejected_delta(rejected) if rejected else None,
    )
