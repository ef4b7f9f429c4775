"""Documents of a collection by its change stream, and the position that a relation has in it.

An event says which document has changed; the document itself is then read by the relation's filter,
and replaces its row or removes it. So events are small, a document that leaves the filter leaves
the relation, and the state's own row stands for what the document was before. Invariant: what was
read is never older than the event, so that the newest event of a document leaves its newest row.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from connectors.feed_source import REJECTED_KINDS, FeedPosition
from connectors.formats.declared import declare_columns
from connectors.mongodb.options import ID, CollectionRelation, MongoOptions
from connectors.polled.contents import Fetched, Step, without_keys_of
from connectors.polled.rows import RowOptions, RowReader
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pymongo.collection import Collection

# Events of a batch, and how long the server waits for the first one.
EVENTS, AWAIT_MS = 1000, 1000
# A position moves at most so often while nothing of the collection changes.
IDLE_S = 10.0
SCANNED_DOCUMENTS, SCANNED_BYTES = 10_000, 16 << 20
_AT = "at"
_OF_DOCUMENTS = ("insert", "update", "replace", "delete")
# Of the whole collection, after which the stream has ended or may end.
_OF_COLLECTION = ("drop", "rename", "dropDatabase", "invalidate")
# History lost, a token that the server does not have any more, and a stream that it gave up.
LOST = (286, 280, 260)


@dataclass(frozen=True)
class Changed(Fetched):
    """What a part of the stream has changed. rows: documents as they are now.

    removed: rows of which the key is filled, of documents that are gone or no longer meet the
    filter. is_whole: rows are all there are. at: the position in the stream after it.
    """

    removed: Delta | None = None
    is_whole: bool = False
    at: str = ""
    is_due: bool = True


@dataclass(frozen=True)
class StreamPosition:
    """Where reading of a relation stands. at: a resume token or a time, as MongoDB's JSON."""

    pin: str
    at: str
    poll: int = 0

    @classmethod
    def new(cls, at: str) -> StreamPosition:
        """Return the position of a relation that no view reads yet."""
        return cls(uuid.uuid4().hex[:12], at)

    @classmethod
    def read(cls, position: FeedPosition) -> StreamPosition:
        """Return what `position` gave."""
        return cls(str(position["pin"]), str(position[_AT]), int(position["poll"]))

    @property
    def position(self) -> dict[str, Any]:
        """The position of the relation."""
        return {"pin": self.pin, "poll": self.poll, _AT: self.at}

    @property
    def validators(self) -> dict[str, str]:
        """Where the stream is opened."""
        return {_AT: self.at}

    def notes(self) -> dict[str, bytes]:
        """Return nothing: the position is all there is."""
        return {}

    def after(self, relation: Relation, fetched: Fetched) -> Step:
        """Return what the events change; its position is this one if there was none."""
        assert isinstance(fetched, Changed) and fetched.rows is not None
        rejected = Delta.empty(REJECTED_KINDS)
        if not fetched.is_due or fetched.at == self.at:
            return Step(self, None, rejected, {})
        after = replace(self, at=fetched.at, poll=self.poll + 1)
        return Step(after, _changes(relation, fetched), rejected, {})


def _changes(relation: Relation, found: Changed) -> Changes | None:
    rows, removed = found.rows, found.removed
    assert rows is not None
    parts = [rows] if removed is None else [removed, rows]
    kinds = [np.full(len(rows), Changes.UPSERT, np.uint8)]
    if removed is not None:
        kinds.insert(0, np.full(len(removed), Changes.REMOVE, np.uint8))
    if found.is_whole:
        nothing = [Column.nulls(kind, 1) for kind in rows.kinds]
        parts.insert(0, Delta(nothing, np.ones(1, np.int64)))
        kinds.insert(0, np.full(1, Changes.TRUNCATE, np.uint8))
    whole = Delta.concat(parts)
    if not len(whole):
        return None
    return Changes(relation, np.concatenate(kinds), tuple(whole.columns))


class DocumentReader:
    """Turns documents into rows of a relation, and ids into the rows that they remove."""

    def __init__(self, options: RowOptions, relation: Relation) -> None:
        self._relation = relation
        self._rows = RowReader(options, relation)
        columns = declare_columns(options.columns)
        own = [n for n, c in enumerate(columns) if c.field.name in options.key]
        keyed = replace(options, columns=tuple(options.columns[n] for n in own))
        self._keys = RowReader(keyed, relation)
        self._own = [columns[n].field.name for n in own]

    def read_records(self, records: Sequence[bytes]) -> Fetched:
        """Return documents as JSON as rows. SourceError source.bad_record."""
        return self._rows.read(records, {})

    def removals(self, ids: Sequence[Any], rows: Delta) -> Delta:
        """Return rows of these ids that are not among `rows`, with their keys alone."""
        from connectors.mongodb.documents import records_of

        keys = self._keys.read(records_of([{ID: one} for one in ids]), {}).rows
        assert keys is not None
        found = dict(zip(self._own, keys.columns, strict=True))
        columns = [
            found[f.name] if f.name in found else Column.nulls(kind, len(keys))
            for f, kind in zip(self._relation.fields, rows.kinds, strict=True)
        ]
        return without_keys_of(self._relation, Delta(columns, keys.weights), rows)


@dataclass
class CollectionStream:
    """Reads one relation's changes; see `connectors.polled.feed.Fetch`. Used by one thread.

    connect: returns a client of a server that is there; guarded: turns what pymongo raises into
    our errors. is_idle_s: since when nothing was reported.
    """

    options: MongoOptions
    relation: CollectionRelation
    reader: DocumentReader
    connect: Callable[[], MongoClient]
    guarded: Callable[[CollectionRelation, Exception], Exception]
    _client: MongoClient | None = None
    _stream: Any = None
    _reported_at: float = field(default_factory=time.monotonic)

    def __call__(self, validators: Mapping[str, str]) -> Fetched:
        """Return what has changed since; wait for at most AWAIT_MS."""
        try:
            return self._next(validators[_AT])
        except Exception as error:
            self.close()
            raise self.guarded(self.relation, error) from None

    def close(self) -> None:
        """Close stream and client."""
        if self._client is not None:
            self._client.close()
        self._client = self._stream = None

    def _next(self, at: str) -> Fetched:
        from pymongo.errors import OperationFailure

        try:
            if self._stream is None:
                self._open(at)
            events = self._events()
        except OperationFailure as error:
            if error.code not in LOST:
                raise
            return self._read_again()
        if any(event["operationType"] in _OF_COLLECTION for event in events):
            return self._read_again()
        token = self._token()
        ids = list(_unique(event["documentKey"][ID] for event in events))
        found = self.reader.read_records(self._documents(ids))
        assert found.rows is not None
        removed = self.reader.removals(ids, found.rows) if ids else found.rows.slice(0, 0)
        is_due = bool(events) or time.monotonic() - self._reported_at >= IDLE_S
        if is_due:
            self._reported_at = time.monotonic()
        return Changed(
            found.rows,
            skipped=found.skipped,
            has_more=True,
            removed=removed,
            at=token_text(token) if token else at,
            is_due=is_due,
        )

    def _open(self, at: str) -> None:
        self._client = self.connect()
        where = stream_start(at)
        self._stream = self._collection().watch(
            [{"$project": {"operationType": 1, f"documentKey.{ID}": 1}}],
            max_await_time_ms=min(AWAIT_MS, int(500 * self.options.timeout_s)),
            batch_size=EVENTS,
            **where,
        )

    def _events(self) -> list[Mapping[str, Any]]:
        """Return the events that are there, or the first ones that come."""
        found: list[Mapping[str, Any]] = []
        while len(found) < EVENTS:
            if found and found[-1]["operationType"] in _OF_COLLECTION:
                break
            # Only the first one is waited for: the rest of its batch is there.
            event = self._stream.try_next()
            if event is None:
                break
            found.append(event)
            if not self._stream._cursor._has_next():
                break
        known = (*_OF_DOCUMENTS, *_OF_COLLECTION)
        for event in found:
            if event["operationType"] not in known:
                what = f'relation "{self.relation.name}": an event of an unknown kind'
                hint = "report it"
                raise SourceError(
                    "mongodb.unknown_event", what, detail=str(event["operationType"]), hint=hint
                )
        return found

    def _token(self) -> Mapping[str, Any] | None:
        """Return where the stream stands after its last event."""
        return self._stream.resume_token

    def _documents(self, ids: Sequence[Any]) -> list[bytes]:
        """Return the documents of these ids as JSON."""
        from connectors.mongodb.documents import records_of

        if not ids:
            return []
        where = {"$and": [{ID: {"$in": list(ids)}}, query_of(self.relation)]}
        return records_of(self._collection().find(where, shown(self.relation)))

    def _read_again(self) -> Fetched:
        """Return the whole relation as it is, with the stream from just before."""
        from connectors.mongodb.documents import records_of

        self.close()
        self._client = self.connect()
        at = now_of(self._client)
        most = self.options.max_rows
        found = records_of(
            self._collection().find(query_of(self.relation), shown(self.relation), limit=most + 1)
        )
        if len(found) > most:
            what = f'relation "{self.relation.name}" has more than {most:,} documents'
            hint = "narrow its filter, raise max_rows, or rebuild the views that read it"
            raise SourceError("mongodb.too_many_rows", what, hint=hint)
        read = self.reader.read_records(found)
        self._reported_at = time.monotonic()
        self.close()
        self._open(at)
        return Changed(read.rows, skipped=read.skipped, has_more=True, is_whole=True, at=at)

    def _collection(self) -> Collection:
        assert self._client is not None
        return collection_of(self._client, self.relation)


def scanned(
    client: MongoClient, relation: CollectionRelation, reader: DocumentReader
) -> Iterator[Delta]:
    """Yield all documents of a relation as rows."""
    from connectors.mongodb.documents import chunks_of

    found = collection_of(client, relation).find(query_of(relation), shown(relation))
    for chunk in chunks_of(found, SCANNED_DOCUMENTS, SCANNED_BYTES):
        yield _rows(reader.read_records(chunk))


def _rows(found: Fetched) -> Delta:
    assert found.rows is not None
    return found.rows


def collection_of(client: MongoClient, relation: CollectionRelation) -> Collection:
    """Return the collection, of which only what cannot be rolled back is read."""
    from pymongo.read_concern import ReadConcern

    from connectors.mongodb.documents import CODEC

    database = client[relation.database]
    concern = ReadConcern("majority")
    return database.get_collection(relation.collection, CODEC, read_concern=concern)


def query_of(relation: CollectionRelation) -> Any:
    """Return the filter, as `find` takes it."""
    from bson import json_util

    return json_util.loads(json_util.dumps(relation.filter))


def shown(relation: CollectionRelation) -> dict[str, bool] | None:
    """Return the fields of documents that are read; None for all."""
    fields = relation.fields()
    return None if fields is None else {ID: ID in fields, **dict.fromkeys(fields, True)}


def now_of(client: MongoClient) -> str:
    """Return the server's present, as a position. SourceError mongodb.no_change_streams."""
    reply = client.admin.command("ping")
    found = reply.get("operationTime")
    if found is None:
        raise no_change_streams("it does not tell its operation time")
    return f"time {found.time} {found.inc}"


def token_text(token: Mapping[str, Any]) -> str:
    """Return a resume token as a position."""
    from bson import json_util

    return json_util.dumps(token)


def stream_start(at: str) -> dict[str, Any]:
    """Return where a stream is opened, as `watch` takes it."""
    from bson import Timestamp, json_util

    if at.startswith("time "):
        _, seconds, number = at.split(" ")
        return {"start_at_operation_time": Timestamp(int(seconds), int(number))}
    return {"resume_after": json_util.loads(at)}


def no_change_streams(detail: str) -> SourceError:
    """Return the error for a server without change streams."""
    what = "the server has no change streams"
    hint = 'use a replica set or a sharded cluster, or changes: "poll"'
    return SourceError("mongodb.no_change_streams", what, detail=detail, hint=hint)


def _unique(ids: Any) -> Iterator[Any]:
    """Yield each id once; ids may be of any type of BSON."""
    from bson import json_util

    seen = set[str]()
    for one in ids:
        text = json_util.dumps(one)
        if text not in seen:
            seen.add(text)
            yield one
