"""A private Apache Kafka broker for the demo, the tests and the benchmarks.

`EmbeddedKafka` runs one node in KRaft mode (broker and controller) from the jars that
deploy/setup.sh fetched, on free loopback ports and in its own new directory. Invariant: nothing
outlives this process, not even after kill -9. A watchdog shell holds the other end of a pipe; when
this process is gone, it kills the broker and removes the directory. It never touches a broker that
it did not start.

`python -m connectors.kafka.embedded` starts one once and stores an archive of its loaded classes
beside the jars, which halves the time of every later start.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from connectors.child_server import ChildServer
from connectors.kafka.broker_settings import (
    STORE_PASSWORD,
    Ports,
    scram_records,
    settings_of,
    text_of,
)
from connectors.loopback import free_ports
from dataflow.errors import SourceError

JARS_VARIABLE = "TIDEMARK_KAFKA_JARS"
ARCHIVE = "classes.jsa"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
# Small and quick to start: a test's broker gains nothing from the second compiler.
JVM: tuple[str, ...] = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
)
STARTED = b"Kafka Server started"
PORT_TAKEN = ("Address already in use", "Socket server failed to bind")

# Wait until our end of the pipe is closed. /proc/*/comm protects a process that reused the pid.
_WATCH = """
read -r _
pid=$(cat "$1/pid" 2>/dev/null)
is_running() { [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = java ]; }
is_running && kill -KILL "$pid"
for _ in 1 2 3 4 5 6 7 8 9 10; do is_running || break; sleep 0.1; done
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"""


def jars_directory() -> Path:
    """Return the directory of the jars: TIDEMARK_KAFKA_JARS, or `kafka` in the Python
    environment.
    """
    named = os.environ.get(JARS_VARIABLE)
    return Path(named) if named else Path(sys.prefix) / "kafka"


def missing() -> str | None:
    """Return why no broker can be started here; None if one can."""
    if not any(jars_directory().glob("kafka_2.13-*.jar")):
        return "the jars of Apache Kafka are missing (deploy/setup.sh fetches them with Maven)"
    if _java("java") is None:
        return "Java is not installed"
    return None


class EmbeddedKafka(ChildServer):
    """One broker; settings override those of broker_settings.

    is_secured: add a second listener with TLS and SASL (PLAIN, SCRAM) for the users of
    broker_settings.USERS. jvm: more Java options. Topics are not created on use. SourceError
    kafka.no_broker, kafka.start_failed.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        is_secured: bool = False,
        jvm: Sequence[str] = (),
    ) -> None:
        reason = missing()
        if reason is not None:
            raise SourceError(
                "kafka.no_broker",
                'embedded broker "kafka" is not installed',
                detail=reason,
                hint="run deploy/setup.sh with access to Maven's registry",
            )
        super().__init__(PORT_TAKEN, STOP_TIMEOUT_S)
        self.is_secured = is_secured
        self._ports = Ports(0, 0, 0)
        self._jars = sorted(jars_directory().glob("*.jar"))
        self._settings = dict(settings or {})
        self._jvm = tuple(jvm)

    @property
    def bootstrap(self) -> str:
        """The "host:port" of the listener without authentication."""
        return f"127.0.0.1:{self._ports.plain}"

    @property
    def secured_bootstrap(self) -> str:
        """The "host:port" of the listener with TLS and SASL, if there is one."""
        return f"127.0.0.1:{self._ports.secured}"

    @property
    def ca_file(self) -> Path:
        """The certificate (PEM) that clients need to trust the secured listener."""
        return self.directory / "ca.pem"

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic. SourceError kafka.topic_failed."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        try:
            admin.create_topics([NewTopic(name, partitions, 1)])[name].result(START_TIMEOUT_S)
        except KafkaException as error:
            raise SourceError(
                "kafka.topic_failed", f'topic "{name}" cannot be created', detail=str(error)
            ) from None

    def stop(self) -> None:
        """Shut down cleanly and keep all files."""
        # A broker that a test has suspended cannot shut down.
        self._end(signal.SIGCONT, signal.SIGTERM)

    def restart(self) -> None:
        """Stop, and start on the same ports."""
        self.stop()
        self.start()

    def _not_started(self) -> SourceError:
        return SourceError("kafka.start_failed", 'embedded broker "kafka" is not started')

    def _make_directory(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="tidemark-kafka-"))
        self._watch_pipe(_WATCH, "tidemark-kafka-watch", {"cwd": "/"})
        if self.is_secured:
            self._make_certificate()

    def _take_ports(self) -> None:
        self._ports = Ports(*free_ports(3))
        self._format()

    def _format(self) -> None:
        shutil.rmtree(self.directory / "records", ignore_errors=True)
        settings = {**settings_of(self.directory, self._ports, self.is_secured), **self._settings}
        path = self.directory / "server.properties"
        path.write_text(text_of(settings))
        path.chmod(0o600)
        cluster = base64.urlsafe_b64encode(b"tidemark" + os.urandom(8)).decode().rstrip("=")
        command = [*self._command("kafka.tools.StorageTool"), "format", "-t", cluster]
        command += ["-c", str(path), "--standalone"]
        if self.is_secured:
            command += [word for record in scram_records() for word in ("--add-scram", record)]
        self._run(command, "the storage could not be formatted")

    def _make_certificate(self) -> None:
        """Make a key for the secured listener, and its self-signed certificate for the clients."""
        store = ["-keystore", str(self.directory / "keys.p12"), "-storepass", STORE_PASSWORD]
        keytool = [_java("keytool") or "keytool", "-J-XX:TieredStopAtLevel=1"]
        command = [*keytool, "-genkeypair", *store, "-storetype", "PKCS12", "-alias", "broker"]
        command += ["-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=tidemark"]
        command += ["-validity", "3650", "-ext", "san=ip:127.0.0.1,dns:localhost"]
        self._run(command, "no key could be created")
        command = [*keytool, "-exportcert", "-rfc", *store, "-alias", "broker"]
        self._run([*command, "-file", str(self.ca_file)], "no certificate could be created")

    def _run(self, command: list[str], failure: str) -> None:
        made = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
            umask=0o077,
        )
        if made.returncode:
            raise _failed(failure, made.stdout + made.stderr)

    def _command(self, program: str, jvm: Sequence[str] = ()) -> list[str]:
        # The archive is only valid for exactly this order of the jars.
        options, archive = list(JVM), jars_directory() / ARCHIVE
        if archive.exists():
            options.append(f"-XX:SharedArchiveFile={archive}")
        paths = os.pathsep.join(str(jar) for jar in self._jars)
        return [_java("java") or "java", *options, *jvm, "-cp", paths, program]

    def _launch(self) -> None:
        log_path = self.directory / "log"
        begin = log_path.stat().st_size if log_path.exists() else 0
        command = [*self._command("kafka.Kafka", self._jvm)]
        command.append(str(self.directory / "server.properties"))
        server = self._spawn(command, {"cwd": self.directory})
        (self.directory / "pid").write_text(str(server.pid))
        deadline = time.monotonic() + START_TIMEOUT_S
        with log_path.open("rb") as log:
            while True:
                log.seek(begin)
                if STARTED in log.read():
                    return
                if server.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise _failed("it did not start", self.log_text())
                time.sleep(0.01)


def make_archive() -> float:
    """Start a broker once and store its loaded classes; return the seconds of a start with them.

    Nothing is written if an archive exists.
    """
    archive = jars_directory() / ARCHIVE
    if not archive.exists() and missing() is None:
        # Write to a temporary name first: a broker that starts now sees the whole archive or none.
        new = archive.with_suffix(".new")
        with EmbeddedKafka(jvm=[f"-XX:ArchiveClassesAtExit={new}"]) as broker:
            broker.stop()
        if new.exists():
            new.replace(archive)
    begin = time.monotonic()
    with EmbeddedKafka():
        return time.monotonic() - begin


def _java(program: str) -> str | None:
    java_home = os.environ.get("JAVA_HOME")
    return shutil.which(program, path=f"{java_home}/bin") if java_home else shutil.which(program)


def _failed(what: str, output: str) -> SourceError:
    return SourceError(
        "kafka.start_failed",
        f'embedded broker "kafka": {what}',
        detail=output.strip()[-2000:],
        hint="the detail is the end of the broker's output",
    )


if __name__ == "__main__":
    print(f"kafka: started in {make_archive():.1f} s")
