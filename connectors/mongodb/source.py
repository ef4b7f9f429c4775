"""MongoDB as a source (see the contract `connectors/<type>/source`).

Each relation is the documents that a filter finds in a collection, read by interval and compared by
key, or followed by its change stream. Nothing is reached before the first use. Invariant: only the
declared servers are reached, not those that they name as members of their set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, PyMongoError
from pymongo.hello import Hello

from connectors import secrets
from connectors.feed_source import (
    REJECTED_KINDS,
    DeclaredRelation,
    FeedPositions,
    FeedSource,
    FeedStart,
    undeclared,
)
from connectors.mongodb.change_stream import (
    CollectionStream,
    DocumentReader,
    StreamPosition,
    no_change_streams,
    now_of,
    query_of,
    scanned,
)
from connectors.mongodb.documents import CODEC, chunks_of, records_of
from connectors.mongodb.options import ID, CollectionRelation, MongoOptions, read_options
from connectors.outside.deadline import Deadline
from connectors.outside.logins import tls_context
from connectors.polled.contents import Fetched
from connectors.polled.feed import PolledFeed, Watch
from connectors.polled.rows import SAMPLES, RowReader, declared_relation, with_columns
from connectors.polled.schedule import PollSchedule
from connectors.polled.source import Polled, PolledSource
from connectors.source import SourceBatch
from connectors.table_options import Tls
from dataflow.delta import Delta
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import Relation

BATCH_DOCUMENTS = 10_000
# A message of the server may have so many bytes, whatever it says itself.
MOST_MESSAGE_BYTES = 48_000_000
# How long some documents, and a whole collection, may take.
SAMPLE_S, READ_S = 60, 1800
SAMPLE_BYTES = 16 << 20
_OF_LOGIN = (13, 18)
_NOT_REPLICATED, _TOO_LARGE = 40573, 10334
# The server shuts down, steps down, or has interrupted the operation.
_PASSING = (91, 189, 10107, 11600, 11602, 13435, 13436, 237, 43)
_SHOWN = 300
# Of a client's pool, which has no setting for either.
_CONTEXT, _METADATA = "_PoolOptions__ssl_context", "_PoolOptions__metadata"


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the relations that the options declare."""
    return [declared_relation(relation.rows) for relation in read_options(options).relations]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> FeedSource:
    """Return the source, with its declared relations. SourceError source.bad_option."""
    found = read_options(options)
    if found.is_streamed:
        return StreamedSource(name, found, relations)
    polled = [Polled(r.rows, partial(_Fetch, found, r)) for r in found.relations]
    return PolledSource(name, relations, polled)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with columns proposed for each relation that has none."""
    found = read_options(options)
    declared = {relation.name: relation for relation in found.relations}
    sample = lambda name: read(found, declared[name], None, SAMPLES, SAMPLE_BYTES)  # noqa: E731
    return with_columns(options, [relation.rows for relation in found.relations], sample)


@dataclass(frozen=True)
class _Fetch:
    """Reads one relation; see `connectors.polled.feed.Fetch`."""

    options: MongoOptions
    relation: CollectionRelation
    reader: RowReader

    def __call__(self, validators: Mapping[str, str]) -> Fetched:
        """See Fetch."""
        most = self.options.max_rows
        records = read(self.options, self.relation, self.relation.fields(), most + 1)
        if len(records) > most:
            what = f'relation "{self.relation.name}" has more than {most:,} documents'
            hint = "narrow its filter, or raise max_rows"
            raise SourceError("mongodb.too_many_rows", what, hint=hint)
        return self.reader.read(records, {})


def read(
    options: MongoOptions,
    relation: CollectionRelation,
    fields: Sequence[str] | None,
    count: int,
    some_bytes: int = 0,
) -> list[bytes]:
    """Return at most `count` documents as JSON. fields: of them, None for all.

    some_bytes: return about so many bytes at most, as a sample; 0 for all.

    SourceError mongodb.login, mongodb.refused, host.forbidden; TemporaryError mongodb.unreachable.
    """
    where = query_of(relation)
    shown = None if fields is None else {ID: ID in fields, **dict.fromkeys(fields, True)}
    failure: TidemarkError | None = None
    for host, port in options.servers:
        try:
            with _client(options, host, port) as client:
                collection = client[relation.database].get_collection(relation.collection, CODEC)
                found = collection.find(where, shown, limit=count, batch_size=BATCH_DOCUMENTS)
                if some_bytes:
                    return next(chunks_of(found, count, some_bytes), [])
                return records_of(found, Deadline(SAMPLE_S if count <= SAMPLES else READ_S))
        except ConnectionFailure as error:
            failure = _away(host, port, error)
        except TemporaryError as error:
            failure = error
        except PyMongoError as error:
            raise _refused(relation, error) from None
    assert failure is not None
    raise failure


class StreamedSource:
    """A FeedSource of change streams. relations: with resolved types.

    A document is read after its event, so another reading may find it changed: the source is not
    replayable.
    """

    is_replayable = False

    def __init__(self, name: str, options: MongoOptions, relations: Sequence[Relation]) -> None:
        self.name = name
        self._options = options
        self._relations = list(relations)
        self._declared = {relation.name: relation for relation in options.relations}
        self._readers: dict[str, DocumentReader] = {}
        self._schedules: dict[str, PollSchedule] = {}
        for relation in relations:
            own = self._declared.get(relation.name.name)
            if own is None:
                raise undeclared(name, relation)
            self._readers[own.name] = DocumentReader(own.rows, relation)
            self._schedules[own.name] = PollSchedule(0.0)

    def relations(self) -> Sequence[Relation]:
        """Return the declared relations."""
        return self._relations

    def check(self) -> None:
        """Open a stream of each relation, and read some of its documents."""
        for relation in self._relations:
            own = self._declared[relation.name.name]
            stream = self._stream(own)
            try:
                stream({"at": self._now(own)})
            finally:
                stream.close()
            self._readers[own.name].read_records(read(self._options, own, own.fields(), SAMPLES))

    def start_position(self, relation: Relation) -> FeedStart:
        """Return the server's present; what the snapshot finds later comes again as events."""
        at = self._now(self._declared[relation.name.name])
        return FeedStart(StreamPosition.new(at).position)

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> StreamedSnapshot:
        """Return the collections as they are when they are read."""
        return StreamedSnapshot(self._options, self._declared, self._relations, positions)

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> PolledFeed:
        """Return what the streams have after these positions."""
        watches = {}
        for relation in relations:
            name = relation.name.name
            stream = self._stream(self._declared[name])
            contents = StreamPosition.read(positions[name])
            schedule = self._schedules[name]
            watches[name] = Watch(relation, contents, stream, schedule, on_end=stream.close)
        return PolledFeed(self.name, watches, {}, on_ready)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """Return no changes: relations with change streams have no dead letters."""
        return SourceBatch(0, [], 0, 0, source=self.name)

    def _stream(self, relation: CollectionRelation) -> CollectionStream:
        connect = partial(connected, self._options)
        return CollectionStream(
            self._options, relation, self._readers[relation.name], connect, failure_of
        )

    def _now(self, relation: CollectionRelation) -> str:
        with connected(self._options) as client:
            try:
                return now_of(client)
            except Exception as error:
                raise failure_of(relation, error) from None


@dataclass
class StreamedPart:
    """All documents of a relation."""

    name: str
    options: MongoOptions
    declared: CollectionRelation
    relation: Relation
    columns: tuple[int, ...]

    def read(self) -> Iterator[Delta]:
        """See FeedPart."""
        reader = DocumentReader(self.declared.rows, self.relation)
        with connected(self.options) as client:
            try:
                for rows in scanned(client, self.declared, reader):
                    yield rows.project(self.columns)
            except Exception as error:
                raise failure_of(self.declared, error) from None

    def rejected(self) -> Delta:
        """See FeedPart: relations with change streams have no dead letters."""
        return Delta.empty(REJECTED_KINDS)


class StreamedSnapshot:
    """Collections as they are when they are read; the events since the position come again."""

    def __init__(
        self,
        options: MongoOptions,
        declared: Mapping[str, CollectionRelation],
        relations: Sequence[Relation],
        positions: FeedPositions,
    ) -> None:
        self._options = options
        self._declared = declared
        self._relations = {relation.name.name: relation for relation in relations}
        self._positions = positions

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[StreamedPart]:
        """See FeedSnapshot: a collection is one part, which no later process may take as read."""
        name = relation.name.name
        whole = self._relations[name]
        fields = [f.name for f in whole.fields]
        at_columns = tuple(fields.index(relation.fields[c].name) for c in columns)
        position = self._positions[name]
        title = f"{name}-{position['pin']}-{position['poll']}"
        return [StreamedPart(title, self._options, self._declared[name], whole, at_columns)]

    def close(self) -> None:
        """Do nothing: the snapshot holds nothing."""


def connected(options: MongoOptions) -> MongoClient:
    """Return a client of the first server that answers. TemporaryError, SourceError."""
    failure: TidemarkError | None = None
    for host, port in options.servers:
        client = None
        try:
            client = _client(options, host, port)
            client.admin.command("ping")
            return client
        except ConnectionFailure as error:
            failure = _away(host, port, error)
        except TemporaryError as error:
            failure = error
        except PyMongoError as error:
            if client is not None:
                client.close()
            raise _refused(options.relations[0], error) from None
        if client is not None:
            client.close()
    assert failure is not None
    raise failure


def failure_of(relation: CollectionRelation, error: Exception) -> Exception:
    """Return what pymongo raises as our error; others as they are."""
    if isinstance(error, ConnectionFailure):
        detail = secrets.hide(str(error))[:_SHOWN]
        what, hint = "MongoDB cannot be reached any more", "check servers and the network"
        return TemporaryError("mongodb.unreachable", what, detail=detail, hint=hint)
    code = getattr(error, "code", None)
    if code == _NOT_REPLICATED:
        return no_change_streams(secrets.hide(str(error))[:_SHOWN])
    if code == _TOO_LARGE:
        what = f'an event of relation "{relation.name}" is too large'
        hint = "shorten the documents' ids, or use changes: poll"
        return SourceError("mongodb.event_too_large", what, hint=hint)
    if code in _PASSING:
        what, detail = "MongoDB cannot answer now", secrets.hide(str(error))[:_SHOWN]
        return TemporaryError("mongodb.unreachable", what, detail=detail)
    return _refused(relation, error) if isinstance(error, PyMongoError) else error


def _client(options: MongoOptions, host: str, port: int) -> MongoClient:
    timeout_ms = int(1000 * options.timeout_s)
    _limit_messages()
    settings: dict[str, Any] = {
        **options.login.settings(host, port),
        "connect": False,
        "serverSelectionTimeoutMS": timeout_ms,
        "connectTimeoutMS": timeout_ms,
        "socketTimeoutMS": timeout_ms,
        "readPreference": "secondaryPreferred",
        "tz_aware": True,
    }
    if not options.is_tls:
        return _plain(MongoClient(**settings))
    context = tls_context(Tls(ca_file=options.ca), host)
    client = MongoClient(**{**settings, "tls": True})
    # The client has no setting for it: it verifies the name that it connects to, which is the
    # address that was checked.
    setattr(client.options.pool_options, _CONTEXT, context)
    assert client.options.pool_options._ssl_context is context
    return _plain(client)


def _plain(client: MongoClient) -> MongoClient:
    """Leave out what the client would say of the service's environment, as its cloud and region."""
    getattr(client.options.pool_options, _METADATA).pop("env", None)
    return client


@cache
def _limit_messages() -> None:
    """Let the library believe no larger limit of messages than MOST_MESSAGE_BYTES.

    It allocates what a message announces, up to the limit that the server's greeting names.
    """
    greeting: Any = Hello
    named = greeting.max_message_size.fget
    greeting.max_message_size = property(lambda hello: min(int(named(hello)), MOST_MESSAGE_BYTES))


def _away(host: str, port: int, error: Exception) -> TidemarkError:
    detail = secrets.hide(str(error))[:_SHOWN]
    what, hint = f"MongoDB at {host}:{port} cannot be reached", "check servers and the network"
    return TemporaryError("mongodb.unreachable", what, detail=detail, hint=hint)


def _refused(relation: CollectionRelation, error: Any) -> TidemarkError:
    detail = secrets.hide(str(error))[:_SHOWN]
    if getattr(error, "code", None) in _OF_LOGIN:
        what, hint = "MongoDB refuses the login", "check user, password, auth_source and its roles"
        return SourceError("mongodb.login", what, detail=detail, hint=hint)
    what = f'MongoDB refuses to read relation "{relation.name}"'
    return SourceError("mongodb.refused", what, detail=detail, hint="check filter and collection")
