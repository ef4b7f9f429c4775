"""Spark outside of our process, on loopback: a standalone master with workers, a Connect server.

They find the packages of the tests, which product archives lack, and none of the product's, which
have to be sent to them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from connectors.postgres.embedded.server import free_port

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).resolve().parents[3]
HOST = "127.0.0.1"
START_S = 300.0
# Small JVMs: the tests' rows are few.
MEMORY = {"SPARK_DAEMON_MEMORY": "768m"}


def environment(folder: Path) -> dict[str, str]:
    """Of Spark's own programs: nothing of ours on Python's path but the tests."""
    only = folder / "only"
    only.mkdir(parents=True, exist_ok=True)
    if not (only / "tests").exists():
        (only / "tests").symlink_to(ROOT / "tests")
    wanted = {"PYTHONPATH": str(only), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
    return {**os.environ, **MEMORY, **wanted, "SPARK_HOME": str(HOME)}


@contextmanager
def program(folder: Path, name: str, *arguments: str, port: int | None) -> Iterator[Path]:
    """One of Spark's programs, from when it listens at the port until the end; its log."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments],
            env=environment(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_S
        while port is not None and not listens(port):
            assert child.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        yield log
    finally:
        end(child)


def end(child: subprocess.Popen) -> None:
    """Kill a program and all that it has started."""
    family: list[psutil.Process] = []
    if child.poll() is None:
        parent = psutil.Process(child.pid)
        family = [*parent.children(recursive=True), parent]
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    child.wait()
    psutil.wait_procs(family, timeout=10)


def listens(port: int) -> bool:
    """Whether someone listens at a port of loopback."""
    return any(
        c.status == psutil.CONN_LISTEN and c.laddr.port == port
        for c in psutil.net_connections("tcp")
    )


@contextmanager
def connect_server(folder: Path, port: int | None = None) -> Iterator[str]:
    """The sc:// URL of a Spark Connect server with two cores."""
    port = port or free_port()
    settings = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.ui.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    # Up to four tries of a task, as a cluster has them.
    master = ["--master", "local[2,4]"]
    submit = ["org.apache.spark.deploy.SparkSubmit", *master, *given]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with program(folder, "connect", *submit, *server, "spark-internal", port=port):
        yield f"sc://{HOST}:{port}"


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """The spark:// URL of a master with two workers of one core each."""
    with master(folder, free_port()) as url, worker(folder, "one", url), worker(folder, "two", url):
        yield url


@contextmanager
def master(folder: Path, port: int) -> Iterator[str]:
    """The spark:// URL of a master, which remembers nothing of one before it at this port."""
    at = ["--host", HOST, "--port", str(port), "--webui-port", str(free_port())]
    kind = "org.apache.spark.deploy.master.Master"
    with program(folder, "master", kind, *at, port=port):
        yield f"spark://{HOST}:{port}"


@contextmanager
def worker(folder: Path, name: str, url: str) -> Iterator[None]:
    """A worker of the master at `url`."""
    port, web = free_port(), free_port()
    at = ["--host", HOST, "--port", str(port), "--webui-port", str(web)]
    size = ["--cores", "1", "--memory", "768m", "--work-dir", str(folder / f"work-{name}")]
    deploy = "org.apache.spark.deploy.worker.Worker"
    with program(folder, f"worker-{name}", deploy, *at, *size, url, port=port):
        yield
