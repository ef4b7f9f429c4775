"""HTTP services as a source (see the contract `connectors/<type>/source`).

Each relation is a list of JSON objects that is asked for by interval and compared by key with what
it was. Nothing is reached before the first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from connectors.feed_source import DeclaredRelation
from connectors.http.client import Client
from connectors.http.options import HttpOptions, HttpRelation, read_options
from connectors.http.pages import read_pages, read_sample
from connectors.polled.contents import Fetched
from connectors.polled.rows import SAMPLES, RowReader, declared_relation, with_columns
from connectors.polled.source import Polled, PolledSource
from dataflow.schema import Relation

# Of a page from which columns are proposed: the API reads it, beside everything else.
SAMPLE_BYTES = 32 << 20


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

    limits = replace(found.limits, max_bytes=min(found.limits.max_bytes, SAMPLE_BYTES))

    def sample(name: str) -> list[bytes]:
        with Client(replace(found, limits=limits)) as client:
            return read_sample(client, declared[name], SAMPLES)

    return with_columns(options, [relation.rows for relation in found.relations], sample)


@dataclass(frozen=True)
class _Fetch:
    """Reads one relation; see `connectors.polled.feed.Fetch`."""

    options: HttpOptions
    relation: HttpRelation
    reader: RowReader

    def __call__(self, validators: Mapping[str, str]) -> Fetched:
        """See Fetch."""
        with Client(self.options) as client:
            answer = read_pages(client, self.relation, self.options.limits, validators)
        if answer.records is None:
            return Fetched(None, validators=validators)
        return self.reader.read(answer.records, answer.validators)
