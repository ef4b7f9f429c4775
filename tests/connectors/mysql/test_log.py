"""Oracle: the protocol's own documents, by events that are written here byte by byte."""

from __future__ import annotations

import struct
import zlib

import pytest

from connectors.mysql import log
from connectors.mysql.log import LogReader, LogRequest
from connectors.mysql.positions import Gtid, GtidSet, LogPosition, earliest
from connectors.mysql.transactions import Transaction
from connectors.outside.logins import MySqlLogin
from dataflow.errors import SourceError

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def _reader(found: list[Transaction]) -> LogReader:
    request = LogRequest(LogPosition("log.000001", 4, server="1"), {})
    return LogReader(MySqlLogin("127.0.0.1", 1, "nobody"), "shop", request, found.append)


def _event(kind: int, body: bytes = b"", offset: int = 200, flags: int = 0) -> bytes:
    size = 19 + len(body)
    return b"\0" + struct.pack("<IBIIIH", 1, kind, 1, size, offset, flags) + body


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (log.TRANSACTION_PAYLOAD, "mysql.compressed_event"),
        (log.INCIDENT, "mysql.incident"),
        (42, "mysql.unknown_event"),
        (200, "mysql.unknown_event"),
        (6, "mysql.unknown_event"),
    ],
)
def test_an_event_that_may_hold_changes_stops_the_source(kind: int, code: str) -> None:
    found: list[Transaction] = []
    with pytest.raises(SourceError) as raised:
        # Not even a flag that lets replicas ignore it.
        _reader(found)._packet(_event(kind, b"x" * 40, flags=0x80))
    assert raised.value.code == code and not found


def test_every_type_of_event_is_decided_on() -> None:
    reader = _reader([])
    known = {*log.IGNORED, *log.ROWS, *reader._handlers}
    known |= {log.ROTATE, log.INCIDENT, log.TRANSACTION_PAYLOAD, log.PARTIAL_UPDATE}
    assert not log.IGNORED & {*log.ROWS, *reader._handlers}
    # MySQL's enumeration to 8.4 without those of servers before 5.0, and MariaDB's.
    old = {0, 1, 6, 7, 8, 10, 12, 20, 21, 22}
    assert set(range(43)) - known == {*old, 42}
    assert set(range(160, 172)) <= known


def test_a_transaction_ends_with_its_commit() -> None:
    found: list[Transaction] = []
    reader = _reader(found)
    reader._packet(_event(log.MARIADB_GTID, struct.pack("<QIB", 7, 0, 0), 100))
    reader._packet(_event(log.ANNOTATE, b"x", 150))
    assert not found
    reader._packet(_event(log.XID, b"\0" * 8, 180))
    (one,) = found
    assert (one.end.offset, one.gtid, one.is_empty) == (180, Gtid("0", 7, 1), True)


def test_a_checksum_is_checked_and_a_long_file_has_large_offsets() -> None:
    found: list[Transaction] = []
    reader = _reader(found)
    reader._has_checksum = True
    whole = _event(log.XID, b"\0" * 12, 300)
    checksum = zlib.crc32(whole[1:-4]).to_bytes(4, "little")
    reader._packet(whole[:-4] + checksum)
    assert found[0].end.offset == 300
    with pytest.raises(SourceError) as raised:
        reader._packet(whole[:-5] + b"\1" + checksum)
    assert raised.value.code == "mysql.broken_event"
    reader._has_checksum = False
    reader._offset = (1 << 32) - 100
    reader._packet(_event(log.XID, b"\0" * 8, 20))
    assert found[1].end.offset == 20 + (1 << 32)


def test_compression_that_is_unknown_or_wrong_is_refused() -> None:
    reader = _reader([])
    data = zlib.compress(b"rows")
    assert reader._uncompressed(b"\x81\x04" + data) == b"rows"
    for broken, code in (
        (b"\x91\x04" + data, "mysql.compressed_event"),
        (b"\x81\x05" + data, "mysql.broken_event"),
        (b"\x81\x04" + data[:-3], "mysql.broken_event"),
    ):
        with pytest.raises(SourceError) as raised:
            reader._uncompressed(broken)
        assert raised.value.code == code


def test_sets_of_gtids() -> None:
    found = GtidSet.parse(f"{UUID.upper()}:1-3:5,\nffffffff-0000-0000-0000-000000000000:7")
    assert found.has(Gtid(UUID, 5)) and not found.has(Gtid(UUID, 4))
    assert str(found.plus(Gtid(UUID, 4)).both(GtidSet.parse(f"{UUID}:2-9"))) == f"{UUID}:2-5"
    domains = GtidSet.parse("0-1-5,3-1-9")
    assert domains.has(Gtid("3", 9, 2)) and not domains.has(Gtid("2", 1, 1))
    assert str(domains.plus(Gtid("0", 6, 2))) == "0-2-6,3-1-9"
    positions = [LogPosition("a.1", 9, domains), LogPosition("a.1", 4, GtidSet.parse("0-1-3"))]
    assert earliest(positions) == LogPosition("a.1", 4, GtidSet.parse("0-1-3"))
    assert LogPosition.of(positions[0].as_json()) == positions[0]
