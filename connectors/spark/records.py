"""What the tasks of a backfill store for the driver: a record each, and the error of a failed one.

Both are JSON. The storage may be writable for others, and unpickling their content would run their
code. Invariant: reading a record makes values of the types below and nothing else.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dataflow.errors import (
    InvariantError,
    Position,
    SinkError,
    SourceError,
    SqlError,
    TemporaryError,
    TidemarkError,
    ViewError,
)
from dataflow.schema import RelationName
from storage.store import BulkFile

# Their location in the exchange of a run, and the prefix of the record names of parts.
DONE, FAILED = "done", "failed"
PART = "part-"
_KINDS: Mapping[str, type[TidemarkError]] = {
    kind.__name__: kind
    for kind in (
        TidemarkError,
        SqlError,
        SourceError,
        SinkError,
        TemporaryError,
        ViewError,
        InvariantError,
    )
}


@dataclass
class TaskRecord:
    """The record of a finished task in the job's exchange.

    files: their paths are names in the exchange, like those of `output`, files of one page. fed:
    the slots that get pages from the task. errors, rejected: a page each. rows, size_bytes: read by
    it, from the source or from stored parts.
    """

    files: list[BulkFile] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    fed: set[int] = field(default_factory=set)
    errors: bytes | None = None
    rejected: bytes | None = None
    rows: int = 0
    size_bytes: int = 0
    is_kept: bool = False

    def encode(self) -> bytes:
        """Return the record as JSON."""
        files = [{**vars(f), "first_hashes": _text(f.first_hashes)} for f in self.files]
        pages = {"errors": _text(self.errors), "rejected": _text(self.rejected)}
        facts = {**vars(self), **pages, "files": files, "fed": sorted(self.fed)}
        return json.dumps(facts).encode()

    @staticmethod
    def decode(content: bytes) -> TaskRecord:
        """Return the record that `encode` has written. TemporaryError backfill.torn."""
        with _torn_unless_read():
            facts = json.loads(content)
            for name in ("errors", "rejected"):
                facts[name] = _bytes(facts[name])
            for file in facts["files"]:
                file["first_hashes"] = _bytes(file["first_hashes"])
            facts["files"] = [BulkFile(**file) for file in facts["files"]]
            return TaskRecord(**{**facts, "fed": set(facts["fed"])})


def encode_error(error: TidemarkError) -> bytes:
    """Return an error as JSON: its kind by name, its code and its texts."""
    # A subclass of one package is stored as its base kind.
    kind = next(k.__name__ for k in type(error).__mro__ if k.__name__ in _KINDS)
    at, about = error.position, error.relation
    facts = {
        "kind": kind,
        "code": error.code,
        "what": error.what,
        "detail": error.detail,
        "hint": error.hint,
        "position": None if at is None else [at.line, at.column],
        "relation": None if about is None else [about.source, about.schema, about.name],
    }
    return json.dumps(facts).encode()


def decode_error(content: bytes) -> TidemarkError:
    """Return the error that `encode_error` has written. TemporaryError backfill.torn."""
    with _torn_unless_read():
        facts = json.loads(content)
        at, about = facts["position"], facts["relation"]
        return _KINDS[facts["kind"]](
            facts["code"],
            facts["what"],
            detail=facts["detail"],
            hint=facts["hint"],
            position=None if at is None else Position(*at),
            relation=None if about is None else RelationName(*about),
        )


@contextmanager
def _torn_unless_read() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TemporaryError(
            "backfill.torn",
            "the record of a backfill task is damaged",
            detail=f"{type(error).__name__}: {error}",
            hint="no action needed: the backfill is retried",
        ) from error


def _text(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _bytes(text: Any) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)
