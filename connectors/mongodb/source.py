"""MongoDB as a source (see the contract `connectors/<type>/source`).

Each relation is the documents that a filter finds in a collection, read by interval and compared by
key. Nothing is reached before the first use. Invariant: only the declared servers are reached, not
those that they name as members of their set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from connectors import netguard, secrets
from connectors.feed_source import DeclaredRelation
from connectors.mongodb.options import CollectionRelation, MongoOptions, read_options
from connectors.polled.contents import Fetched
from connectors.polled.rows import SAMPLES, RowReader, declared_relation, with_columns
from connectors.polled.source import Polled, PolledSource
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import Relation

if TYPE_CHECKING:
    from pymongo import MongoClient

BATCH_DOCUMENTS = 10_000
_OF_LOGIN = (13, 18)
_SHOWN = 300


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the relations that the options declare."""
    return [declared_relation(relation.rows) for relation in read_options(options).relations]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> PolledSource:
    """Return the source, with its declared relations. SourceError source.bad_option."""
    found = read_options(options)
    polled = [Polled(r.rows, partial(_Fetch, found, r)) for r in found.relations]
    return PolledSource(name, relations, polled)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with columns proposed for each relation that has none."""
    found = read_options(options)
    declared = {relation.name: relation for relation in found.relations}
    sample = lambda name: read(found, declared[name], None, SAMPLES)  # noqa: E731
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
) -> list[bytes]:
    """Return at most `count` documents as JSON. fields: of them, None for all.

    SourceError mongodb.login, mongodb.refused, host.forbidden; TemporaryError mongodb.unreachable.
    """
    from bson import json_util
    from pymongo.errors import ConnectionFailure, PyMongoError

    from connectors.mongodb.documents import records_of

    where = json_util.loads(json_util.dumps(relation.filter))
    shown = None if fields is None else {"_id": "_id" in fields, **dict.fromkeys(fields, True)}
    failure: TidemarkError | None = None
    for host, port in options.servers:
        try:
            [address, *_] = netguard.check_host(host, port)
            with _client(options, host, address, port) as client:
                found = client[relation.database][relation.collection].find(
                    where, shown, limit=count, batch_size=BATCH_DOCUMENTS
                )
                return records_of(found)
        except ConnectionFailure as error:
            failure = _away(host, port, error)
        except TemporaryError as error:
            failure = error
        except PyMongoError as error:
            raise _refused(relation, error) from None
    assert failure is not None
    raise failure


def _client(options: MongoOptions, host: str, address: str, port: int) -> MongoClient:
    from pymongo import MongoClient

    netguard.check_certificate(options.ca)
    login: dict[str, Any] = {}
    if options.login.user:
        login = {
            "username": secrets.resolve(options.login.user),
            "password": secrets.resolve(options.login.password),
            "authSource": options.login.source,
        }
    timeout_ms = int(1000 * options.timeout_s)
    tls: dict[str, Any] = {"tls": True} if options.is_tls else {}
    if options.is_tls and options.ca:
        tls["tlsCAFile"] = options.ca
    return MongoClient(
        # A certificate is the name's; without one, the very address that was checked is opened.
        host if options.is_tls else address,
        port,
        directConnection=True,
        serverSelectionTimeoutMS=timeout_ms,
        connectTimeoutMS=timeout_ms,
        socketTimeoutMS=timeout_ms,
        readPreference="secondaryPreferred",
        tz_aware=True,
        **login,
        **tls,
    )


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
