"""The one Spark session of a process, started at its first use.

A session takes seconds to start and about a gigabyte, so it is lazy, stays warm and is shared. Its
driver is ours, on this machine or on a cluster, or a Spark Connect server's. Invariants: with a
local master every listener is on loopback. After `stop` (or our death) no JVM and no worker of ours
is left. Spark's output goes to a file in the session's directory, never to the terminal. Executors
on other machines get our packages from us.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from connectors import secrets
from connectors.spark.cluster import APPLICATION
from connectors.spark.java import check_java
from connectors.spark.job_watch import GONE, JobWatch, is_unreachable
from connectors.spark.leftovers import log_option, new_directory, sweep, temporary_files_in
from connectors.spark.master import is_connect, is_local
from dataflow.errors import TemporaryError, TidemarkError

STOP_TIMEOUT_S = 20.0
_WAIT_S = 0.1
# A socket's path has at most 107 bytes, and Spark's names of sockets about 42 of them.
_MAX_SOCKET_FOLDER = 60
_LOOPBACK = "127.0.0.1"
_REPOSITORY = Path(__file__).resolve().parent.parent.parent
DAEMON = "connectors.spark.daemon"
_PACKAGES = ("connectors", "dataflow", "storage")
# A killed worker counts as one attempt of its task.
_TRIES = 4
# A call of a Connect client is tried for about half a minute.
_CONNECT_TRIES, _CONNECT_PAUSE_MS = 20, 2_000
# Spark shows values of such settings as *** in event logs and on its pages.
_SECRET_NAMES = "(?i)secret|password|passwd|token|credential|access[.]?key|dsn"
_OURS = {
    "spark.sql.adaptive.enabled": "false",  # our buckets are exactly the partitions
    # A row is a whole page: few of them fill an Arrow batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
}
# Said in Spark's log after so long without an executor for a job.
_STARVATION = {"spark.starvation.timeout": "10s"}
_LOG_NAME = "spark.log"
_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c: %m%n%ex
"""


class LazySession:
    """A session that starts when it is first requested.

    master: "local[n]", a cluster's URL, or that of a Spark Connect server (sc://host:port).
    settings: Spark's own, overriding ours. Thread-safe.
    """

    def __init__(self, master: str = "local[2]", settings: Mapping[str, str] | None = None) -> None:
        self.master = master
        self._settings = dict(settings or {})
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._directory: Path | None = None
        self._cores = 0
        # Runs and watches all jobs.
        self.jobs = JobWatch(self)
        # On a local master, held by a step of a work while its tasks run.
        self.step_lock = threading.Lock()

    @property
    def is_started(self) -> bool:
        """True if there is a session to use or to stop."""
        return self._session is not None

    @property
    def is_local(self) -> bool:
        """True if the tasks run on this machine, in our JVM's workers."""
        return is_local(self.master)

    @property
    def is_connect(self) -> bool:
        """True if the driver is a Spark Connect server's."""
        return is_connect(self.master)

    @property
    def grows(self) -> bool:
        """True if Spark adds and removes executors by itself."""
        return self._settings.get("spark.dynamicAllocation.enabled", "").lower() == "true"

    @property
    def log_path(self) -> Path | None:
        """Spark's own log; None before a session starts."""
        return None if self._directory is None else self._directory / _LOG_NAME

    @property
    def cores(self) -> int:
        """How many tasks run in parallel, as Spark reported at the start; 0 before it."""
        return self._cores

    def get(self, while_waiting: Callable[[], object] | None = None) -> SparkSession:
        """Return the session. TidemarkError spark.no_java, spark.start_failed.

        while_waiting: called repeatedly until the session is ready; if it raises, the waiting ends
        but the start continues: the next call finds the session ready.
        """
        if while_waiting is None:
            return self._get()
        found: list[SparkSession | BaseException] = []
        starter = threading.Thread(target=self._get_into, args=(found,), daemon=True)
        starter.start()
        while starter.is_alive():
            while_waiting()
            starter.join(_WAIT_S)
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    def _get_into(self, found: list[SparkSession | BaseException]) -> None:
        try:
            found.append(self._get())
        except BaseException as error:
            found.append(error)

    def _get(self) -> SparkSession:
        with self._lock:
            if self._session is not None and not self._answers():
                self._discard()
            if self._session is None:
                if not self.is_connect:
                    check_java()
                self._session = self._start()
            return self._session

    def is_alive(self) -> bool:
        """Return False once the session's JVM or Connect server cannot be reached."""
        with self._lock:
            return self._session is not None and self._answers()

    def end(self, session: SparkSession) -> None:
        """End the session at once, if it is still this one: its jobs fail, and get() starts
        another. Nothing is waited for, whatever the cluster does.
        """
        # Taken before the check: the JVM of the next session is never killed for this one.
        child = getattr(SparkContext._gateway, "proc", None)
        if self._session is not session:
            return
        if self.is_connect:
            session.interruptAll()
        elif child is not None:
            child.kill()

    def stop(self) -> None:
        """End session, JVM and workers; get() may start a new session."""
        self.jobs.stop()
        with self._lock:
            if self._session is not None and self._answers():
                self._session.stop()
            self._discard()

    def _answers(self) -> bool:
        session: Any = self._session
        assert session is not None
        try:
            if self.is_connect:
                return bool(session.version)
            # Spark stops it if the master ends the application.
            return _is_alive() and not session.sparkContext._jsc.sc().isStopped()
        except GONE:
            return False

    def _discard(self) -> None:
        session, self._session = self._session, None
        if self.is_connect:
            if session is not None:
                with suppress(*GONE):
                    session.client.close()  # type: ignore[attr-defined]
        else:
            SparkContext._active_spark_context = None
            SparkSession._instantiatedSession = None
            _end_gateway()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def log_text(self) -> str:
        """Return the output of Spark and its JVM so far."""
        if self._directory is None:
            return ""
        paths = sorted(self._directory.glob("*.log"))
        return "".join(path.read_text(errors="replace") for path in paths)

    def _start(self) -> SparkSession:
        sweep()
        directory = self._directory = new_directory()
        (directory / "log4j2.properties").write_text(_LOG4J.format(path=directory / _LOG_NAME))
        try:
            if self.is_connect:
                return self._connect(directory)
            return self._launch(directory)
        except Exception as error:
            detail = f"{error}\n{self.log_text()[-2000:]}".strip()
            self._discard()
            what = f'spark session on "{self.master}" did not start'
            if not self.is_local and is_unreachable(detail):
                hint = "no action needed if it is a short failure: the start is tried again"
                raise TemporaryError(
                    "spark.start_failed", what, detail=detail, hint=hint
                ) from error
            hint = "see the detail, or set options.backfill=local to run without Spark"
            raise TidemarkError("spark.start_failed", what, detail=detail, hint=hint) from error

    def _launch(self, directory: Path) -> SparkSession:
        conf = SparkConf(loadDefaults=False)
        for name, value in {**self._defaults(directory), **self._settings}.items():
            conf.set(name, value)
        with _surroundings(self.is_local), (directory / "jvm.log").open("ab") as log:
            streams: dict[str, Any] = {"stdout": log, "stderr": log}
            with temporary_files_in(directory):
                gateway = launch_gateway(conf, streams)
            SparkContext._ensure_initialized(gateway=gateway)
            # Not before: launch arguments are visible in the JVM's command line.
            for name, value in self._settings.items():
                conf.set(name, secrets.resolve_setting(value))
            context = SparkContext.getOrCreate(conf)
        if not self.is_local:
            context.addPyFile(str(pack(directory)))
        self._cores = context.defaultParallelism
        if self.grows:
            # What it may have: the tasks of a work are what Spark adds executors for.
            most = int(self._settings.get("spark.dynamicAllocation.maxExecutors", "0"))
            self._cores = most * int(self._settings.get("spark.executor.cores", "1")) or self._cores
        return SparkSession(context)

    def _connect(self, directory: Path) -> SparkSession:
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession as RemoteSession

        session = RemoteSession.builder.remote(secrets.resolve_setting(self.master)).create()
        # By default a client tries for ten minutes, and sleeps up to one of them.
        policy = DefaultPolicy(max_retries=_CONNECT_TRIES, max_backoff=_CONNECT_PAUSE_MS)
        session.client.set_retry_policies([policy])
        for name, value in {**_OURS, **self._settings}.items():
            session.conf.set(name, secrets.resolve_setting(value))
        session.addArtifacts(str(pack(directory)), pyfile=True)
        found = session.range(0, 1 << 16).selectExpr("spark_partition_id() AS p").distinct()
        self._cores = found.count()
        return session  # type: ignore[return-value]

    def _defaults(self, directory: Path) -> dict[str, str]:
        settings = {
            "spark.app.name": APPLICATION,
            "spark.master": _with_tries(self.master),
            "spark.driver.extraJavaOptions": log_option(directory),
            "spark.pyspark.python": sys.executable,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.redaction.regex": _SECRET_NAMES,
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            **_OURS,
            **_STARVATION,
            "spark.local.dir": str(directory),
            # Over TCP an exchange with a Python process waits 40 ms for a delayed acknowledgement.
            "spark.python.unix.domain.socket.enabled": "true",
        }
        if self.is_local:
            if len(str(directory)) <= _MAX_SOCKET_FOLDER:
                settings["spark.python.unix.domain.socket.dir"] = str(directory)
            settings["spark.executorEnv.PYTHONPATH"] = str(_REPOSITORY)
            settings["spark.python.daemon.module"] = DAEMON
            settings["spark.driver.host"] = _LOOPBACK
            settings["spark.driver.bindAddress"] = _LOOPBACK
        return settings


def pack(folder: Path) -> Path:
    """Return an archive of the packages that tasks run, for executors on other machines."""
    path = folder / "tidemark_packages.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            for module in sorted((_REPOSITORY / package).rglob("*.py")):
                archive.write(module, module.relative_to(_REPOSITORY))
    return path


def _with_tries(master: str) -> str:
    """Add retries to a local master, which otherwise gives a task one attempt.

    >>> _with_tries("local[2]"), _with_tries("local"), _with_tries("spark://host:7077")
    ('local[2,4]', 'local[1,4]', 'spark://host:7077')
    """
    found = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{found[1] or 1},{_TRIES}]" if found else master


@contextmanager
def _surroundings(is_local: bool) -> Iterator[None]:
    """Set the environment that the JVM and its workers inherit, and restore ours afterwards.

    The SIGINT handler is restored too: a context started in the main thread installs its own.
    """
    variables = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    paths = [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if is_local:
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    before = {name: os.environ.get(name) for name in variables}
    interrupt = signal.getsignal(signal.SIGINT)
    os.environ.update(variables)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _is_alive() -> bool:
    """Return False once the JVM is gone: out of memory, or killed."""
    gateway = SparkContext._gateway
    child = getattr(gateway, "proc", None)
    if gateway is None or (child is not None and child.poll() is not None):
        return False
    try:
        # A killed JVM closes its connections first: the process may still exist for a while.
        gateway.jvm.java.lang.System.nanoTime()  # type: ignore[union-attr]
    except GONE:
        return False
    return True


def _end_gateway() -> None:
    """End the JVM: stopping a session leaves it running for the next one."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    child = getattr(gateway, "proc", None)
    with suppress(Py4JError, OSError):  # a JVM that is gone has nothing to shut down
        gateway.shutdown()
    if child is None:
        return
    child.stdin.close()  # the JVM ends when this pipe does
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
