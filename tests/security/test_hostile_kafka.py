"""Oracle: docs/SECURITY.md: whatever a broker sends, this process continues, and what happens is an
error of the one source or sink, with a code; the same broker's right answers give its records."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from connectors.apart import child_process, frames
from connectors.feed_source import FeedSource
from connectors.kafka import source as connector
from connectors.kafka.client_process import KIND
from connectors.kafka.options import read_options
from connectors.kafka.sink import check as check_sink
from dataflow.errors import TemporaryError, TidemarkError
from service.ingest.declared_sources import connector as service_connector
from tests.connectors.kafka.reading import relations_of, topic_options
from tests.connectors.kafka.writing import KEYED
from tests.harness.tiers import count
from tests.harness.waiting import WITHIN_S, wait_until
from tests.security.kafka_broker import (
    API_VERSIONS,
    FETCH,
    GZIP,
    METADATA,
    SNAPPY,
    TOPIC,
    HostileBroker,
    batch,
)
from tests.security.mutating_proxy import flipped

SEEDS = count("TIDEMARK_TEST_MUTATIONS", 4, 60)
FIRST = count("TIDEMARK_TEST_SEED", 1, 1)
VALUES = [b'{"id":%d,"name":"a"}' % number for number in range(5)]
RECORDS = batch(VALUES)
# Snappy begins with the length of what it unpacks to: almost 4 GiB.
SNAPPY_BOMB = b"\xf0\xff\xff\xff\x0f" + b"\0" * 100
POSITION = {"clicks": {"topic": "AAAAAAAAAAAAAAAAAAAAAA", "next": {"0": 0}}}


def source_of(broker: HostileBroker, **more: Any) -> FeedSource:
    given = {"bootstrap_servers": broker.bootstrap, "check_ms": 200, **more}
    given["topics"] = {"clicks": topic_options(TOPIC)}
    return service_connector("kafka").make("shop", given, relations_of(read_options(given)))


def read(broker: HostileBroker, *, within_s: float = WITHIN_S, **more: Any) -> int | TidemarkError:
    """How many rows a feed has, or how it fails, or 0 once the time is over."""
    source = source_of(broker, **more)
    is_ready = threading.Event()
    feed = source.open_feed(source.relations(), POSITION, {}, is_ready.set)
    rows, deadline = 0, time.monotonic() + within_s
    try:
        while rows < broker.count and time.monotonic() < deadline:
            is_ready.clear()
            found = feed.poll(1000)
            if found is None:
                is_ready.wait(0.2)
            else:
                rows += found.rows
    except TidemarkError as error:
        return error
    finally:
        feed.close()
    return rows


def children(of: int = 0) -> set[int]:
    """Pids of the children that a process's fork servers have forked."""
    servers = {pid for pid, parent in forked() if parent == (of or os.getpid())}
    return {pid for pid, parent in forked() if parent in servers}


def forked() -> Iterator[tuple[int, int]]:
    """(pid, that of its parent) of all fork servers and their children."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(") ")[2].split()
            if (path.parent / "cmdline").read_bytes().startswith(b"tidemark: kafka"):
                yield int(path.parent.name), int(fields[1])


def await_end_of(pids: set[int]) -> None:
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_right_answers_give_the_records() -> None:
    with HostileBroker(RECORDS, len(VALUES)) as broker:
        source = source_of(broker)
        source.check()
        assert source.is_replayable
        assert read(broker) == len(VALUES)


def test_an_answer_that_aborts_the_library_ends_only_its_process() -> None:
    bomb = batch(VALUES, compression=SNAPPY, packed=SNAPPY_BOMB)
    with HostileBroker(RECORDS, len(VALUES)) as good, HostileBroker(bomb, len(VALUES)) as broker:
        error = read(broker)
        assert isinstance(error, TemporaryError) and error.code == "source.process_ended"
        assert "signal 6 ended it" in error.detail and "rd_malloc" in error.detail
        assert error.hint and '"shop"' in error.what
        # Another source, and this one once its broker has come to its senses.
        assert read(good) == len(VALUES)
        broker.records = RECORDS
        assert read(broker) == len(VALUES)
    assert not children()


def test_a_batch_bomb_takes_no_memory_of_this_process() -> None:
    packed = gzip_of_zeros(1_500 << 20)
    bomb = batch(VALUES, compression=GZIP, packed=packed)
    before = peak_bytes()
    with HostileBroker(bomb, len(VALUES)) as broker:
        error = read(broker, within_s=4 * WITHIN_S)
    assert isinstance(error, TemporaryError) and error.code == "source.process_ended", error
    assert peak_bytes() - before < 200 << 20


@pytest.mark.parametrize("silent", [API_VERSIONS, METADATA, FETCH])
def test_a_broker_that_never_answers(silent: int) -> None:
    def change(key: int, answer: bytes) -> bytes | None:
        return None if key == silent else answer

    with HostileBroker(RECORDS, len(VALUES), change) as broker:
        # Whoever waits for records does not wait for an answer: nothing has come.
        found = read(broker, within_s=1.0 if silent == FETCH else WITHIN_S)
        if silent == FETCH:
            assert found == 0
        else:
            assert isinstance(found, TemporaryError) and found.code == "source.unreachable"
    assert not children()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_malformed_answers(seed: int) -> None:
    pick = random.Random(seed)

    def change(_key: int, answer: bytes) -> bytes:
        return flipped(answer, pick) if pick.random() < 0.3 else answer

    print(f"repeat: TIDEMARK_TEST_SEED={seed}")
    with HostileBroker(RECORDS, len(VALUES), change) as broker:
        found = read(broker, within_s=3.0)
        if isinstance(found, TidemarkError):
            assert found.code.startswith(("source.", "record.", "host.")), found
        broker.change = lambda _key, answer: answer
        assert read(broker) == len(VALUES)


def test_a_sink_is_refused_in_the_same_way() -> None:
    def change(key: int, answer: bytes) -> bytes | None:
        return None if key == METADATA else answer

    with HostileBroker(RECORDS, len(VALUES), change) as broker:
        options = {"bootstrap_servers": broker.bootstrap, "topic": TOPIC}
        with pytest.raises(TidemarkError) as caught:
            check_sink(options, KEYED, "public.v/events")
        assert caught.value.code == "sink.unreachable"


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with HostileBroker(RECORDS, len(VALUES)) as broker:
        source = source_of(broker)
        feed = source.open_feed(source.relations(), POSITION, {}, lambda: None)
        feed.poll(1)
        for pid in children():
            os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(child_process.Child.call, "__kwdefaults__", {"within_s": 0.5})
        with pytest.raises(TemporaryError) as caught:
            for _ in range(1000):
                feed.poll(1)
        assert caught.value.code == "source.process_ended" and "did not answer" in (
            caught.value.detail
        )
        feed.close()
    assert not children()


@pytest.mark.parametrize("side", ["source", "sink"])
def test_a_child_that_needs_too_much_memory(side: Any) -> None:
    use = child_process.Use(KIND, side, "shop", {}, memory_mb=64)
    with child_process.Child(use, "tests.security.kafka_broker:Hungry") as child:
        assert child.call("eat", 1 << 20) == 1 << 20
        with pytest.raises(TemporaryError) as caught:
            child.call("eat", 256 << 20)
        codes = {"source": "source.process_memory", "sink": "sink.process_memory"}
        assert caught.value.code == codes[side] and "64 MiB" in caught.value.detail
        assert child.has_failed


def test_children_end_with_the_process_that_has_started_them() -> None:
    program = (
        "import sys, time\n"
        "from tests.security.test_hostile_kafka import *\n"
        "broker = HostileBroker(RECORDS, len(VALUES)).__enter__()\n"
        "source = source_of(broker)\n"
        "feed = source.open_feed(source.relations(), POSITION, {}, lambda: None)\n"
        "feed.poll(1)\n"
        "print('polled', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "polled\n"
        of_it = children(process.pid)
        assert of_it
        process.kill()
    await_end_of(of_it)


def test_a_child_gets_no_environment_and_no_other_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEMARK_OF_THE_SERVICE", "hunter2hunter2")
    with HostileBroker(RECORDS, len(VALUES)) as broker:
        source = source_of(broker)
        feed = source.open_feed(source.relations(), POSITION, {}, lambda: None)
        feed.poll(1)
        assert children()
        for pid in children():
            assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
        feed.close()


@pytest.mark.parametrize(
    "made",
    [
        lambda: subprocess.Popen,
        lambda: os.system,
        lambda: connector.make,
        lambda: child_process.Child,
    ],
)
def test_what_comes_from_a_child_is_values_only(made: Callable[[], Any]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(theirs, ("value", made()))
        with pytest.raises(frames.EndedError, match="no value of a child"):
            frames.receive(ours)


def test_the_services_modules_do_not_load_the_library() -> None:
    program = (
        "import sys\n"
        "import service.pipeline.composition, service.api.app, connectors.kafka.source\n"
        "import connectors.kafka.sink, connectors.kafka.ranges_apart\n"
        "assert not [name for name in sys.modules if name.startswith('confluent_kafka')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def gzip_of_zeros(size: int) -> bytes:
    """A stream of gzip that unpacks to so many zeros; blocks of it are equal, so it is quick."""
    block, step = bytes(16 << 20), 16 << 20
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    parts = -(-size // step)
    checksum = 0
    for _ in range(parts):
        checksum = zlib.crc32(block, checksum)
    end = checksum.to_bytes(4, "little") + (parts * step % 2**32).to_bytes(4, "little")
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return head + first + again * (parts - 1) + packer.flush() + end


def peak_bytes() -> int:
    """The most memory that this process has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith("VmHWM"))
    return int(found.split()[1]) << 10
