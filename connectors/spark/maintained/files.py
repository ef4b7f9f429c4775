"""The files of an epoch in the shared storage: explicit, versioned forms without pickle.

A document is a head (magic, version, kind, checksum), facts as JSON, and a payload. A page file is
the payload of input, log and output: an index of (slot, tag, length), then pages with their own
checksums. Names, where x is unique: `epochs/E-b` what epoch E reads after batch b, fixed once it
exists, and `input/E-x` its pages, also those that source tasks have stored for it; `log/E/L-G-x`
what group G of level L was given; `answers/E-b/S` what PostgreSQL answered to slot S;
`base/L-B/E-x/` the state of bucket B of level L as of epoch E; `out/E-x` what the sink gets, also
from tasks; `manifest/E` the commit; `generation/N`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar, cast

import numpy as np
import orjson
import xxhash

from connectors.spark.frame import Row
from dataflow.errors import TidemarkError

_MAGIC = b"TMbk"
# Since version 2 a log may have sums of rows; since 3 an input may be in several files, keys of
# joins may be spread, and the version is part of the checksum; since 4 an output may be in several
# files; since 5 documents name each other by digests. Earlier versions are read as before.
_VERSION = 5
_HEAD = struct.Struct("<4sH6sIQ")  # magic, version, kind, bytes of the facts, checksum
_INDEX = np.dtype([("slot", "<i8"), ("tag", "<i4"), ("length", "<i8")])
_COUNT = struct.Struct("<IQ")  # rows of a page file, checksum of its index
_DIGITS = 12
_T = TypeVar("_T", bound="_Document")


def numbered(folder: str, number: int) -> str:
    """Return a name that sorts by its number.

    >>> numbered("manifest", 7)
    'manifest/000000000007'
    """
    return f"{folder}/{number:0{_DIGITS}d}"


def input_name(epoch: int, before: str) -> str:
    """Return the name of an epoch's input; before: the batch of the epoch before it.

    So an input is never taken for one of another history.
    """
    return f"{numbered('epochs', epoch)}-{before or 'none'}"


def number_of(name: str) -> int:
    """Return the number in the second part of a name; -1 if there is none.

    >>> number_of("log/000000000012/1-0-x"), number_of("manifest/other")
    (12, -1)
    """
    digits = name.split("/")[1].split("-")[0] if "/" in name else ""
    return int(digits) if digits.isdigit() else -1


def _checksum(version: int, content: bytes) -> int:
    """Return the checksum of a document; since version 3 it is also one of the version."""
    return xxhash.xxh3_64_intdigest(content, seed=version if version > 2 else 0)


@dataclass(frozen=True)
class _Document:
    """A file of facts with a payload."""

    def encode(self, payload: bytes = b"") -> bytes:
        """Return the bytes of the file."""
        facts = orjson.dumps(asdict(self))
        kind = type(self).__name__[:6].encode().ljust(6)
        check = _checksum(_VERSION, facts + payload)
        return _HEAD.pack(_MAGIC, _VERSION, kind, len(facts), check) + facts + payload

    @classmethod
    def decode(cls: type[_T], content: bytes) -> tuple[_T, bytes]:
        """Return (the document, its payload). TidemarkError spark.damaged_file."""
        try:
            magic, version, kind, length, check = _HEAD.unpack_from(content)
            end = _HEAD.size + length
            facts, payload = content[_HEAD.size : end], content[end:]
            if (magic, kind.rstrip()) != (_MAGIC, cls.__name__[:6].encode()):
                raise ValueError(f"it begins with {content[:12]!r}")
            if not 1 <= version <= _VERSION:
                raise ValueError(f"it has version {version}")
            if check != _checksum(version, facts + payload):
                raise ValueError("its checksum is wrong")
            found = orjson.loads(facts)
            known = {f.name for f in fields(cls)}
            if not found.keys() <= known:
                raise ValueError(f"it has unknown fields {sorted(found.keys() - known)}")
            return cls(**found), payload
        except (struct.error, ValueError, TypeError, KeyError) as error:
            raise damaged(f"a file of kind {cls.__name__}: {error}") from error


@dataclass(frozen=True)
class EpochInput(_Document):
    """What an epoch reads.

    batch: unique, so that a state that has stepped another epoch of this number is recognized.
    positions: of the sources after it, as JSON. data: the file of its pages; "" if they are this
    document's payload. ranges: by bucket, which bytes of it; only buckets with rows. parts: [file,
    ranges of it by bucket], of which the pages follow those of `data`. is_first: the view has no
    state before it. moved_to: so many buckets get the state, and nothing is read; 0 for an epoch
    that reads. spread: the keys of joins that are spread while it is stepped, as [stage, input,
    hash]; of an epoch that moves state, after it. before: the digest of the manifest before it, ""
    for the first epoch.
    """

    epoch: int
    batch: str
    buckets: int
    positions: Mapping[str, Any]
    data: str = ""
    ranges: Mapping[str, Sequence[int]] = field(default_factory=dict)
    is_first: bool = False
    moved_to: int = 0
    parts: Sequence[Sequence[Any]] = field(default_factory=list)
    spread: Sequence[Sequence[int]] = field(default_factory=list)
    before: str = ""

    def stored(self, bucket: int) -> Iterator[tuple[str, int, int]]:
        """Yield (file, first byte, end) of the pages of a bucket that `parts` have."""
        for name, ranges in self.parts:
            if str(bucket) in ranges:
                start, stop = ranges[str(bucket)]
                yield name, start, stop


@dataclass(frozen=True)
class Manifest(_Document):
    """The commit of an epoch: the state of every bucket is its base and the logs after it.

    epoch, batch, positions: as in its input; the batch of an epoch that only moves state is its
    own. generation: of the driver that committed it. input: whether it has an input. logs: [level,
    first bucket, end bucket, name]. answered: slots with a file of answers, each with its digest,
    but alone before version 5. given: the digest of its input. before: that of the manifest before
    it. out: the file for the sink, "" for none; outs: further ones. bases: by "level-bucket", the
    bases that together are its state. base_bytes, log_bytes: by the same, to decide when a base is
    rewritten. spread: as in its input, after the epoch.
    """

    epoch: int
    batch: str
    generation: int
    buckets: int
    positions: Mapping[str, Any]
    input: bool = True
    is_first: bool = False
    logs: Sequence[Sequence[Any]] = ()
    answered: Sequence[Any] = ()
    out: str = ""
    outs: Sequence[str] = ()
    bases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    base_bytes: Mapping[str, int] = field(default_factory=dict)
    log_bytes: Mapping[str, int] = field(default_factory=dict)
    spread: Sequence[Sequence[int]] = field(default_factory=list)
    given: str = ""
    before: str = ""

    def answers(self) -> dict[int, str]:
        """Return the digests of the files of answers by slot; "" where it is not known."""
        found: dict[int, str] = {}
        for given in self.answered:
            slot, digest = given if isinstance(given, list | tuple) else (given, "")
            found[slot] = digest
        return found


@dataclass(frozen=True)
class Base(_Document):
    """The state of one bucket of a level after an epoch.

    files: of `storage.bulk`, each whole for its arrangement unless several have its name: (name,
    file, rows, pages, first hashes in hex).
    """

    epoch: int
    batch: str
    files: Sequence[Sequence[Any]] = ()
    nbytes: int = 0


def digest_of(content: bytes) -> str:
    """Return what other documents name a file by."""
    return hashlib.sha256(content).hexdigest()


def require_digest(content: bytes, expected: str, name: str) -> None:
    """Require that a file is the one that another document names. TidemarkError spark.unauthentic.

    expected: "" where an earlier version named none.
    """
    if expected and digest_of(content) != expected:
        raise TidemarkError(
            "spark.unauthentic",
            f'"{name}" in the shared storage is not the file that the history names',
            detail="an earlier file of this name was put in its place; nothing of it was used",
            hint="the view is built again; check who else can write to this storage",
        )


def pack(rows: Iterable[Row]) -> bytes:
    """Return rows as a page file."""
    return b"".join(_packed(rows))


def _packed(rows: Iterable[Row]) -> list[bytes]:
    """Return the parts of a page file, to be joined."""
    found = list(rows)
    index = np.array([(slot, tag, len(page)) for slot, tag, page in found], _INDEX).tobytes()
    head = _COUNT.pack(len(found), xxhash.xxh3_64_intdigest(index))
    return [head, index, *(page for _, _, page in found)]


def pack_sections(pages: Mapping[int, Iterable[Row]]) -> tuple[bytes, dict[str, list[int]]]:
    """Return page files of buckets as one file, and by bucket which bytes [start, stop) it has."""
    ranges: dict[str, list[int]] = {}
    parts: list[bytes] = []
    at = 0
    for bucket, rows in sorted(pages.items()):
        section = _packed(rows)
        end = at + sum(map(len, section))
        ranges[str(bucket)] = [at, end]
        parts += section
        at = end
    return b"".join(parts), ranges


def unpack(content: bytes, slots: Collection[int] | None = None) -> Iterator[Row]:
    """Yield the rows of a page file, or only those of some slots. TidemarkError
    spark.damaged_file.
    """
    for slot, tag, page in unpack_views(content, slots):
        yield slot, tag, bytes(page)


def unpack_views(content: bytes, slots: Collection[int] | None = None) -> Iterator[Row]:
    """Yield rows as `unpack`, whose pages are not copies but views: only to be decoded."""
    try:
        count, check = _COUNT.unpack_from(content)
        at = _COUNT.size + count * _INDEX.itemsize
        index = content[_COUNT.size : at]
        if len(index) != count * _INDEX.itemsize or check != xxhash.xxh3_64_intdigest(index):
            raise ValueError("the index of its pages is damaged")
    except (struct.error, ValueError) as error:
        raise damaged(f"a page file of {len(content)} bytes: {error}") from error
    view = memoryview(content)
    for slot, tag, length in np.frombuffer(index, _INDEX).tolist():
        if slots is None or slot in slots:
            yield slot, tag, cast("bytes", view[at : at + length])
        at += length


def damaged(what: str) -> TidemarkError:
    """Return the error of a file in the shared storage that cannot be used."""
    return TidemarkError(
        "spark.damaged_file",
        "a file of the view's shared storage is damaged",
        detail=what[:500],
        hint="the view is built again; check the storage",
    )
