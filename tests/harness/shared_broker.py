"""One Kafka broker for all workers of a test run: a JVM for each would cost seconds and memory.

The first worker that asks starts a keeper, a process that owns the broker and outlives any worker.
Each worker holds a shared lock on the file `users`, which the kernel releases however the worker
ends. Once the keeper gets that lock alone, nobody uses the broker, and it ends it. Invariant: a
worker that holds the lock and finds `facts.json` has a broker until it lets go of the lock.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Self

import psutil

from connectors.kafka.broker_settings import Ports
from connectors.kafka.embedded import EmbeddedKafka

ROOT = Path(__file__).parent.parent.parent
START_TIMEOUT_S = 120.0


class SharedKafka(EmbeddedKafka):
    """A running broker of the keeper's, which no test may stop: `own_broker` is for that."""

    def __init__(self, facts: Mapping[str, object]) -> None:
        super().__init__(is_secured=True)
        self._ports = Ports(*facts["ports"])  # type: ignore[misc]
        self._directory = Path(str(facts["directory"]))
        self._pid = int(str(facts["pid"]))

    @property
    def pid(self) -> int:
        return self._pid if self.is_running else 0

    @property
    def is_running(self) -> bool:
        return psutil.pid_exists(self._pid)

    def start(self) -> Self:
        return self

    def stop(self) -> NoReturn:
        raise AssertionError("other workers use this broker: take own_broker")

    kill = close = restart = stop


@contextmanager
def shared_broker(folder: Path, settings: Mapping[str, object]) -> Iterator[SharedKafka]:
    """Use the broker of the run whose workers share `folder`; the first starts it."""
    folder.mkdir(exist_ok=True)
    facts = folder / "facts.json"
    with (folder / "users").open("w") as users:
        with (folder / "starting").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            # Waits while a keeper ends the broker of workers that have all gone.
            fcntl.flock(users, fcntl.LOCK_SH)
            if not facts.exists():
                _start_keeper(folder, settings)
        yield SharedKafka(json.loads(facts.read_text()))


def _start_keeper(folder: Path, settings: Mapping[str, object]) -> None:
    command = [sys.executable, "-m", "tests.harness.shared_broker", str(folder)]
    with (folder / "log").open("w") as log:
        keeper = subprocess.Popen(
            [*command, json.dumps(dict(settings))],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (folder / "facts.json").exists():
        is_late = time.monotonic() > deadline
        if keeper.poll() is not None or is_late:
            keeper.kill()
            raise AssertionError(f"the shared broker did not start: {(folder / 'log').read_text()}")
        time.sleep(0.02)


def keep(folder: Path, settings: Mapping[str, object]) -> None:
    """Run the broker until no worker holds the lock on `users`."""
    with EmbeddedKafka(settings, is_secured=True) as broker:
        found = {"ports": broker._ports, "directory": str(broker.directory), "pid": broker.pid}
        new = folder / "facts.new"
        new.write_text(json.dumps(found))
        new.replace(folder / "facts.json")
        with (folder / "users").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            (folder / "facts.json").unlink()
            broker.close()


if __name__ == "__main__":
    keep(Path(sys.argv[1]), json.loads(sys.argv[2]))
