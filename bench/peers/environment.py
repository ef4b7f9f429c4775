"""A peer's own environment under bench/data: created once, and runs in it.

What is missing (a network, Java) raises PeerMissing and is skipped: our own figures never depend on
the peers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

HOME = Path(__file__).parent.parent / "data"
ROOT = Path(__file__).parent.parent.parent
INSTALL_S = 900.0
LEAST_JAVA = 17


class PeerMissing(Exception):
    """A peer that cannot run on this machine, and the reason."""


@dataclass(frozen=True)
class Peer:
    """name: of its environment. module: in bench.peers. package: pip's requirements. run_s: the
    longest run.
    """

    name: str
    module: str
    package: str
    needs_java: bool = False
    run_s: float = 600.0


FLINK = Peer("flink", "flink", "apache-flink==2.3.0", needs_java=True)
FLINK_TIME = replace(FLINK, module="flink_time", run_s=1_800.0)
PATHWAY = Peer("pathway", "pathway", "pathway==0.33.0")


def install(peer: Peer, home: Path = HOME) -> Path:
    """Return its Python, installed if missing; PeerMissing."""
    if peer.needs_java:
        _check_java(peer)
    folder = home / peer.name
    python, marker = folder / "bin" / "python", folder / "installed"
    if marker.exists() and marker.read_text() == peer.package:
        return python
    print(f"installing {peer.package} into {folder}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *peer.package.split()],
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerMissing(f"{peer.name}: not installed in {INSTALL_S:.0f} s") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise PeerMissing(f"{peer.name}: not installed: {reason}")
    marker.write_text(peer.package)
    return python


def run(peer: Peer, job: dict[str, Any], home: Path = HOME, **environment: str) -> dict[str, Any]:
    """Return the figures of a job in the peer's environment; PeerMissing has its log's end."""
    command = [str(install(peer, home)), "-m", f"bench.peers.{peer.module}", json.dumps(job)]
    return execute(peer.name, command, peer.run_s, home, environment)


def execute(
    name: str,
    command: Sequence[str],
    run_s: float,
    home: Path = HOME,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the JSON of a program's last line; PeerMissing has its log's end.

    run_s: how long it may take. home: of its log. environment: variables to set.
    """
    log_path = home / f"{name}.log"
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = child.communicate(timeout=run_s)
        except subprocess.TimeoutExpired as error:
            raise PeerMissing(f"{name}: no result in {run_s:.0f} s") from error
        finally:
            # Its JVM is in the same group and may outlive it.
            _end_group(child.pid)
            child.wait()
    lines = printed.strip().splitlines()
    if child.returncode or not lines:
        reported = log_path.read_text(errors="replace").strip().splitlines()[-3:]
        raise PeerMissing(f"{name}: ended with {child.returncode}: {' | '.join(reported)}")
    return json.loads(lines[-1])


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _check_java(peer: Peer) -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        reported = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerMissing(f"{peer.name}: Java {LEAST_JAVA} or newer is not there") from error
    found = re.search(r'version "(\d+)', reported.stderr + reported.stdout)
    if not found or int(found.group(1)) < LEAST_JAVA:
        raise PeerMissing(f"{peer.name}: Java {LEAST_JAVA} or newer is not there")
