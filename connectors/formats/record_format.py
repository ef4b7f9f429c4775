"""The contract of record formats: raw records in, columns of declared fields out.

Invariant: every record is a row, a removal, ignored by the format's own rules (such as a Debezium
heartbeat), or rejected with a reason. No value is guessed or truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

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


def decode_apart(
    decode: Callable[[Raws, Raws | None], Answer], values: Raws, keys: Raws | None
) -> Answer:
    """Return `decode`'s result; a record on which it fails unexpectedly is rejected alone."""
    try:
        return decode(values, keys)
    except (TidemarkError, MemoryError):
        raise
    except Exception:
        faults = _failing(decode, values, keys)
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
