"""The contract of record formats: raw records in, columns of declared fields out.

Invariant: every record is a row, a removal, ignored by the format's own rules (such as a Debezium
heartbeat), or rejected with a reason. No value is guessed or truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from dataflow.delta import Column
from dataflow.errors import TidemarkError


@dataclass(frozen=True)
class BadRecord:
    """A malformed record. code: stable, see docs/ERRORS.md. reason: for people."""

    number: int
    code: str
    reason: str


@dataclass
class Decoded:
    """Decoded records, in their order.

    columns: one value a row for each declared field, in the physical forms of dataflow/types.py.
    records: int64[rows], the number of the record that each row comes from. removes: bool[rows],
    True if the record removes the row of its key: then only the key's columns are filled. None if
    the format knows no removals. unchanged: column -> bool[rows], True if the record says that the
    value is unchanged (a large value that Debezium omits); there the column is NULL, and the
    earlier row of the key has the value. None if nothing was omitted. truncations: numbers of the
    records that remove all earlier rows.
    """

    columns: list[Column]
    records: np.ndarray
    bad: list[BadRecord] = field(default_factory=list)
    removes: np.ndarray | None = None
    unchanged: dict[int, np.ndarray] | None = None
    truncations: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def joined_facts(self, answers: Sequence[Any]) -> dict[str, Any]:
        """Return the further attributes of a format, of several answers one after the other."""
        return {}


class RecordFormat(Protocol):
    """One format with the declared fields of a relation. Used by one thread."""

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
    ) -> Decoded:
        """Decode all records at once; None is a record without a value (a tombstone).

        TemporaryError: a dependency of the format (a registry) is unreachable; nothing was decoded.
        """
        ...


Raws = Sequence[bytes | None]
Answer = TypeVar("Answer", bound=Decoded)

# Records that are decoded together, in bytes: their values are objects of up to 200 bytes for each
# byte of a record, until they are columns.
SLICE_BYTES = 2 << 20
# A longer record is rejected unread: a broker may send one of a gigabyte.
MOST_RECORD_BYTES = 64 << 20


def decode_apart(
    decode: Callable[[Raws, Raws | None], Answer], values: Raws, keys: Raws | None
) -> Answer:
    """Return `decode`'s result; a record on which it fails unexpectedly is rejected alone.

    At most SLICE_BYTES of records are decoded at a time, or one record.
    """
    faults = _too_long(values) | _too_long(keys or ())
    if faults:
        return _without(faults, lambda v, k: decode_apart(decode, v, k), values, keys)
    parts = []
    for begin, end in _slices(values):
        part_keys = None if keys is None else keys[begin:end]
        parts.append((begin, _decode_part(decode, values[begin:end], part_keys)))
    return joined(parts)


def _too_long(parts: Raws) -> dict[int, str]:
    reason = f"it has more than {MOST_RECORD_BYTES >> 20} MB"
    return {n: reason for n, raw in enumerate(parts) if raw and len(raw) > MOST_RECORD_BYTES}


def _slices(values: Raws) -> list[tuple[int, int]]:
    """Return [begin, end) of records that together have at most SLICE_BYTES, at least one."""
    sizes = np.fromiter((0 if one is None else len(one) for one in values), np.int64, len(values))
    if int(sizes.sum()) <= SLICE_BYTES:
        return [(0, len(values))]
    ends, total = [0], np.concatenate([[0], np.cumsum(sizes)])
    while ends[-1] < len(values):
        at = int(np.searchsorted(total, total[ends[-1]] + SLICE_BYTES, side="right")) - 1
        ends.append(max(at, ends[-1] + 1))
    return list(pairwise(ends))


def joined(parts: Sequence[tuple[int, Answer]]) -> Answer:
    """Return what parts of the records were decoded to. parts: with the number of the first one."""
    answers = [answer for _, answer in parts]
    if len(answers) == 1:
        return answers[0]
    columns = zip(*(answer.columns for answer in answers), strict=True)
    removes = [answer.removes for answer in answers if answer.removes is not None]
    return replace(
        answers[0],
        columns=[Column.concat(list(pieces)) for pieces in columns],
        records=np.concatenate([answer.records + begin for begin, answer in parts]),
        bad=[replace(b, number=b.number + begin) for begin, answer in parts for b in answer.bad],
        removes=np.concatenate(removes) if removes else None,
        unchanged=_unchanged(answers),
        truncations=[number + begin for begin, answer in parts for number in answer.truncations],
        **answers[0].joined_facts(answers),
    )


def _unchanged(answers: Sequence[Decoded]) -> dict[int, np.ndarray] | None:
    found = {at for answer in answers for at in answer.unchanged or ()}
    return {
        at: np.concatenate(
            [(a.unchanged or {}).get(at, np.zeros(len(a), np.bool_)) for a in answers]
        )
        for at in sorted(found)
    } or None


def _decode_part(
    decode: Callable[[Raws, Raws | None], Answer], values: Raws, keys: Raws | None
) -> Answer:
    try:
        return decode(values, keys)
    except (TidemarkError, MemoryError):
        raise
    except Exception:
        faults = _failing(decode, values, keys)
    return _without(faults, decode, values, keys)


def _without(
    faults: Mapping[int, str],
    decode: Callable[[Raws, Raws | None], Answer],
    values: Raws,
    keys: Raws | None,
) -> Answer:
    """Return the result for the records without faults, in which the others are bad."""
    keep = [number for number in range(len(values)) if number not in faults]
    found = decode([values[n] for n in keep], None if keys is None else [keys[n] for n in keep])
    bad = [replace(one, number=keep[one.number]) for one in found.bad]
    bad += [BadRecord(n, code="record.malformed", reason=why) for n, why in faults.items()]
    return replace(
        found,
        records=np.array(keep, np.int64)[found.records],
        bad=sorted(bad, key=lambda one: one.number),
        truncations=[keep[number] for number in found.truncations],
    )


def _failing(
    decode: Callable[[Raws, Raws | None], Answer], values: Raws, keys: Raws | None
) -> dict[int, str]:
    """Return {record number: reason} of failing records; each is decoded alone."""
    faults: dict[int, str] = {}
    for number, value in enumerate(values):
        try:
            decode([value], None if keys is None else [keys[number]])
        except (TidemarkError, MemoryError):
            raise
        except Exception as error:
            faults[number] = f"it cannot be read: {type(error).__name__}: {error}"[:200]
    return faults
