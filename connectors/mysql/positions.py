"""Places in a binary log: file and offset, and the GTIDs that are before them.

Of one server, file and offset order all transactions. GTIDs also hold after a failover: a
transaction is before a position if the position's set has its GTID. Invariant: a set only grows
along the log, so a transaction that is before a position is before every later one.

MariaDB's sets are the newest sequence number of each domain ("0-1-42,1-2-7"), MySQL's are
intervals of each server's UUID ("3e11fa47-...:1-5:8").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gtid:
    """The GTID of one transaction.

    origin: MariaDB's domain, or the UUID of a MySQL server. server: MariaDB's server_id, else 0.
    """

    origin: str
    number: int
    server: int = 0


@dataclass(frozen=True)
class GtidSet:
    """A set of GTIDs of one of both kinds.

    domains: of MariaDB, (server, newest number) by domain. intervals: of MySQL, closed intervals
    by UUID, sorted and apart.

    >>> str(GtidSet.parse("1-2-7,0-1-42"))
    '0-1-42,1-2-7'
    >>> found = GtidSet.parse("3E11FA47-71CA-11E1-9E33-C80AA9429562:1-3:5").plus(
    ...     Gtid("3e11fa47-71ca-11e1-9e33-c80aa9429562", 4))
    >>> str(found)
    '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5'
    """

    domains: Mapping[str, tuple[int, int]]
    intervals: Mapping[str, tuple[tuple[int, int], ...]]

    @staticmethod
    def parse(text: str) -> GtidSet:
        """Read the server's text; "" is the empty set. ValueError."""
        domains: dict[str, tuple[int, int]] = {}
        found: dict[str, list[tuple[int, int]]] = {}
        for one in filter(None, (part.strip() for part in text.replace("\n", "").split(","))):
            if ":" in one:
                origin, *spans = one.split(":")
                for span in spans:
                    first, _, last = span.partition("-")
                    found.setdefault(origin.lower(), []).append((int(first), int(last or first)))
            else:
                domain, server, number = one.split("-")
                domains[str(int(domain))] = (int(server), int(number))
        return GtidSet(domains, {origin: _joined(spans) for origin, spans in found.items()})

    def __str__(self) -> str:
        texts = [f"{d}-{s}-{n}" for d, (s, n) in sorted(self.domains.items(), key=_domain)]
        for origin, spans in sorted(self.intervals.items()):
            parts = [f"{a}-{b}" if b > a else str(a) for a, b in spans]
            texts.append(":".join([origin, *parts]))
        return ",".join(texts)

    def __bool__(self) -> bool:
        return bool(self.domains or self.intervals)

    def has(self, gtid: Gtid) -> bool:
        """Return True if a transaction is in the set."""
        if gtid.server:
            return gtid.number <= self.domains.get(gtid.origin, (0, 0))[1]
        return any(a <= gtid.number <= b for a, b in self.intervals.get(gtid.origin, ()))

    def plus(self, gtid: Gtid) -> GtidSet:
        """Return the set with one more transaction."""
        if gtid.server:
            return GtidSet(
                {**self.domains, gtid.origin: (gtid.server, gtid.number)}, self.intervals
            )
        spans = [*self.intervals.get(gtid.origin, ()), (gtid.number, gtid.number)]
        return GtidSet(self.domains, {**self.intervals, gtid.origin: _joined(spans)})

    def both(self, other: GtidSet) -> GtidSet:
        """Return the transactions that are in both sets.

        >>> str(GtidSet.parse("0-1-5,1-1-9").both(GtidSet.parse("0-1-7")))
        '0-1-5'
        """
        domains = {
            d: min(self.domains[d], other.domains[d], key=lambda one: one[1])
            for d in self.domains.keys() & other.domains.keys()
        }
        intervals = {}
        for origin in self.intervals.keys() & other.intervals.keys():
            spans = [
                (max(a, c), min(b, d))
                for a, b in self.intervals[origin]
                for c, d in other.intervals[origin]
                if max(a, c) <= min(b, d)
            ]
            if spans:
                intervals[origin] = _joined(spans)
        return GtidSet(domains, intervals)


NO_GTIDS = GtidSet({}, {})


@dataclass(frozen=True)
class LogPosition:
    """A place between two transactions of a log.

    file, offset: as the server names it. gtids: everything before it, empty where GTIDs are off.
    server: the UUID of a MySQL server, or MariaDB's server_id: whose file it is.
    """

    file: str
    offset: int
    gtids: GtidSet = NO_GTIDS
    server: str = ""

    @staticmethod
    def of(position: Mapping[str, Any]) -> LogPosition:
        """Read a FeedPosition."""
        gtids = GtidSet.parse(position.get("gtids", ""))
        return LogPosition(position["file"], position["offset"], gtids, position.get("server", ""))

    def as_json(self) -> dict[str, Any]:
        """Return it as a FeedPosition."""
        return {
            "file": self.file,
            "offset": self.offset,
            "gtids": str(self.gtids),
            "server": self.server,
        }

    def has(self, other: LogPosition, gtid: Gtid | None) -> bool:
        """Return True if the transaction that ends at `other` is before this position."""
        if gtid is not None and self.gtids:
            return self.gtids.has(gtid)
        return other.order <= self.order

    @property
    def order(self) -> tuple[int, str, int]:
        """What orders positions of one server; its files are numbered."""
        base, _, number = self.file.rpartition(".")
        return int(number) if number.isdigit() else 0, base, self.offset

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


def earliest(positions: list[LogPosition]) -> LogPosition:
    """Return the position after which every position has its changes."""
    found = min(positions, key=lambda one: one.order)
    gtids = found.gtids
    for one in positions:
        gtids = gtids.both(one.gtids)
    return LogPosition(found.file, found.offset, gtids, found.server)


def _joined(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def _domain(item: tuple[str, tuple[int, int]]) -> int:
    return int(item[0])
