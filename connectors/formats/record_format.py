"""The contract of record formats: raw records in, columns of declared fields out.

Invariant: every record is either a row, a removal, nothing by the format's own rules (a Debezium
heartbeat, say), or told as bad with a reason; no value is guessed or cut.
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
    """A record that is not a row. code: stable, as in docs/ERRORS.md; reason for people."""

    number: int
    code: str
    reason: str


@dataclass
class Decoded:
    """What n records say, in their order.

    columns: one value a row for each declared field, in the physical forms of dataflow/types.py.
    records: int64[rows], the number of the record that each row comes from.
    removes: bool[rows], True where the record removes the row of its key: then only the key's
    columns are filled. None where the format knows no removals.
    unchanged: column -> bool[rows], True where the record says that the value is as it was (a
    large value that Debezium leaves out); there the column is NULL, and the row before the
    record, by its key, has the value. None where nothing was left out.
    truncations: numbers of the records that remove all rows that come before them.
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
    """One format with the fields that were declared for a relation. Used by one thread."""

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
    ) -> Decoded:
        """All records at once; None is a record without a value (a tombstone).

        TemporaryError when what the format needs (a registry) is away: nothing was decoded.
        """
        ...


Raws = Sequence[bytes | None]
Answer = TypeVar("Answer", bound=Decoded)


def decode_apart(
    decode: Callable[[Raws, Raws | None], Answer], values: Raws, keys: Raws | None
) -> Answer:
    """What `decode` answers; a record over which it fails, as it never should, is bad, and takes
    no other along."""
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
    """Why, by the record's number; each is decoded alone."""
    faults: dict[int, str] = {}
    for number, value in enumerate(values):
        try:
            decode([value], None if keys is None else [keys[number]])
        except (TidemarkError, MemoryError):
            raise
        except Exception as error:
            faults[number] = f"it cannot be read: {type(error).__name__}: {error}"[:200]
    return faults
