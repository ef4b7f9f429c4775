"""Oracle: docs/SECURITY.md, what sources and sinks may reach; addresses by the registries of IANA
and the clouds, files by what the kernel says an open file is."""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from connectors import netguard, secrets
from connectors.files.folder import LocalFolder
from connectors.files.options import read_options as read_files
from connectors.files.pattern import split_pattern
from connectors.formats.registry import SchemaRegistry
from connectors.kafka.client import Client
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.options import read_options as read_kafka
from connectors.kafka.topics import Topics
from connectors.netguard import Guard
from connectors.shuffle_storage import FolderExchange
from connectors.spark.segment import Job
from connectors.spark.stages import Cut
from connectors.spark.tasks import _load_job
from dataflow.errors import SourceError, TidemarkError
from service.runtime.security_limits import protect
from service.runtime.settings import Settings
from tests.harness.postgres import Database
from tests.harness.service import RunningService

# What a user writes -> whether it is reached by a service on loopback, and by one for others.
ADDRESSES = [
    ("169.254.169.254", False, False),
    ("169.254.0.1", False, False),
    ("[fe80::1]", False, False),
    ("[fd00:ec2::254]", False, False),
    ("100.100.100.200", False, False),
    ("168.63.129.16", False, False),
    ("[::ffff:169.254.169.254]", False, False),
    ("[::ffff:a9fe:a9fe]", False, False),
    ("[2002:a9fe:a9fe::]", False, False),
    ("[64:ff9b::a9fe:a9fe]", False, False),
    ("2852039166", False, False),  # 169.254.169.254 as one number
    ("0xa9fea9fe", False, False),
    ("169.254.43518", False, False),
    ("224.0.0.1", False, False),
    ("255.255.255.255", False, False),
    ("127.0.0.1", True, False),
    ("[2001:0:a9fe:a9fe::1]", False, False),  # Teredo, by that server
    ("[2001:0:c000:207:0:0:5601:5601]", False, False),  # Teredo, for 169.254.169.254
    ("[64:ff9b:1::a9fe:a9fe]", False, False),
    ("[::a9fe:a9fe]", False, False),
    ("[2001:db8::5efe:a9fe:a9fe]", False, False),
    ("0.1.2.3", False, False),
    # Spellings that only some readers know are refused, whatever they mean.
    ("127.1", False, False),
    ("2130706433", False, False),
    ("0x7f.1", False, False),
    ("0177.0.0.1", False, False),
    ("127.0.0.1.", False, False),
    ("[::1%lo]", False, False),
    ("localhost", True, False),
    ("[::1]", True, False),
    ("0.0.0.0", True, False),
    ("[::ffff:127.0.0.1]", True, False),
    ("[2002:7f00:1::]", True, False),
    ("[64:ff9b::7f00:1]", True, False),
    ("10.1.2.3", True, True),
    ("192.0.2.7", True, True),
    ("[2001:db8::7]", True, True),
]


@pytest.fixture(autouse=True)
def guard_as_before() -> Iterator[None]:
    before = netguard._guard
    yield
    netguard.install(before)


def _code(host: str) -> str:
    try:
        netguard.check_host(host)
        return ""
    except TidemarkError as error:
        return error.code


def test_addresses_by_what_they_mean() -> None:
    faults = []
    for is_local in (True, False):
        netguard.install(Guard(is_local=is_local))
        for host, *reached in ADDRESSES:
            wanted = "" if reached[0 if is_local else 1] else "host.forbidden"
            if _code(host) != wanted:
                faults.append(f"{host}, local {is_local}: {_code(host)!r}, not {wanted!r}")
    assert not faults, "\n".join(faults)
    assert _code("no-such-name.invalid") == "host.unknown"


def _own_addresses() -> list[str]:
    """The addresses of this machine's interfaces, as the kernel lists them."""
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    pairs = itertools.pairwise(lines)
    found = {line.split("-- ")[1].strip() for line, after in pairs if "host LOCAL" in after}
    return sorted(one for one in found if not one.startswith("127."))


def test_this_machines_interfaces_are_this_machine() -> None:
    netguard.install(Guard(is_local=False))
    found = _own_addresses()
    assert [_code(one) for one in found] == ["host.forbidden"] * len(found)
    for address in ("127.0.0.9", "127.255.255.254"):
        assert netguard._is_own(ipaddress.ip_address(address))
    for address in ("192.0.2.1", "10.255.255.254", "8.8.8.8", "2001:db8::1"):
        assert not netguard._is_own(ipaddress.ip_address(address))
    netguard.install(Guard(is_local=False, hosts=tuple(found)))
    assert [_code(one) for one in found] == [""] * len(found)


def test_a_name_server_that_does_not_answer_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, released = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> list[Any]:
        asked.set()
        released.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    monkeypatch.setattr(netguard, "RESOLVE_S", 0.05)
    assert _code("slow.example") == "host.unknown"
    assert asked.is_set()
    released.set()


def test_every_address_of_a_name_counts() -> None:
    both = [ipaddress.ip_address(text) for text in ("192.0.2.1", "169.254.169.254")]
    assert "link-local" in Guard().why_not("rebound.example", both)
    listed = Guard(hosts=("*.example",))
    assert "link-local" in listed.why_not("rebound.example", both)
    assert not listed.why_not("db.example", both[:1])
    assert listed.why_not("db.other", both[:1])
    assert not Guard(hosts=("169.254.0.0/16",)).why_not("x", both[1:])
    assert not Guard(hosts=("localhost",), is_local=False).why_not(
        "localhost", [ipaddress.ip_address("127.0.0.1")]
    )


FORBIDDEN_SOURCES = [
    {"bootstrap_servers": "169.254.169.254:80", "topics": {"t": {"format": "json"}}},
    {
        "bootstrap_servers": ["192.0.2.1:9092", "[fe80::1]:9092"],
        "topics": {"t": {"format": "json"}},
    },
]


def test_bootstrap_servers_and_buckets() -> None:
    for options in FORBIDDEN_SOURCES:
        read = read_kafka(options, needs_columns=False)
        with pytest.raises(SourceError) as refused:
            Client(read.connection, "source", "s").admin()
        assert refused.value.code == "host.forbidden"
    for more in (
        {"endpoint": "http://169.254.169.254"},
        {"endpoint": "http://user@169.254.169.254:80/x"},
        {"endpoint": "http://169.254.169.254", "virtual_host": True, "path": "s3://1/x.csv"},
        {"region": "x.evil.example/#"},
        {"path": "s3://evil.example/#/x.csv", "virtual_host": True, "endpoint": "http://[::1"},
        {"access_key": "${env:SECRET_KEY}"},
    ):
        relation = {"path": "s3://bucket/*.csv", **more}
        with pytest.raises(TidemarkError) as refused:
            read_files({"relations": {"r": relation}})[0].folder().list_files()
        assert refused.value.code in ("host.forbidden", "source.bad_option", "host.unknown"), more


def test_brokers_that_a_cluster_names(broker: EmbeddedKafka) -> None:
    """The servers that are given are fine; what the brokers call themselves is checked too."""
    options = {"bootstrap_servers": broker.bootstrap, "topics": {"t": {"format": "json"}}}
    client = Client(read_kafka(options, needs_columns=False).connection, "source", "s")
    topics = Topics(client)
    broker.create_topic("guarded", 1)
    assert topics.describe(["guarded"])
    netguard.install(Guard(is_local=False))
    client._checked.clear()
    with pytest.raises(SourceError) as refused:
        topics.describe(["guarded"])
    assert refused.value.code == "host.forbidden"


class _Redirecting(BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(302)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/stolen")  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is told."""


def test_redirects_of_a_registry_are_not_followed() -> None:
    with HTTPServer(("127.0.0.1", 0), _Redirecting) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        registry = SchemaRegistry({"url": f"http://127.0.0.1:{server.server_port}"})
        with pytest.raises(SourceError) as refused:
            registry.by_id(1)
        netguard.install(Guard(is_local=False))
        with pytest.raises(SourceError) as forbidden:
            registry.by_id(1)
        server.shutdown()
    assert refused.value.code == "registry.refused"
    assert forbidden.value.code == "host.forbidden"
    assert _Redirecting.asked == ["/schemas/ids/1"]


def _rows(pattern: str) -> list[bytes]:
    folder = read_files({"relations": {"r": {"path": pattern, "settle_ms": 0}}})[0].folder()
    found = []
    for stat in folder.list_files():
        with folder.open(stat) as file:
            found.append(file.read())
    return found


def _file_sources(path: Path) -> Iterator[dict[str, Any]]:
    """Ways to say a path in the options of a source of files."""
    relation = {"format": "csv", "header": False, "columns": [{"name": "line", "type": "text"}]}
    for written in (
        str(path),
        f"{path.parent}/../{path.parent.name}/{path.name}",
        f"/{path}",
        f"{path.parent}/[{path.name[0]}]{path.name[1:]}",
        f"{path.parent}/**/{path.name}",
    ):
        yield {"relations": {"lines": {"path": written, **relation}}}


def test_nothing_is_read_without_a_listed_folder(database: Database, tmp_path: Path) -> None:
    """Neither to declare a source, nor to propose its columns, by REST or by psql."""
    (tmp_path / "pass.csv").write_text("host:5432:shop:me:hunter2\n")
    (tmp_path / "linked").symlink_to("/etc")
    with RunningService(database.dsn, tmp_path / "service") as service:
        for path in (tmp_path / "pass.csv", Path("/etc/passwd"), tmp_path / "linked" / "passwd"):
            for options in _file_sources(path):
                body = {"type": "files", "options": options}
                made = service.call("POST", "/sources", {"name": "s", **body})
                del options["relations"]["lines"]["columns"]
                for answer in (made, service.call("POST", "/sources/discover", body)):
                    problem = answer.json()
                    assert (answer.status_code, problem["code"]) == (403, "path.forbidden"), problem
                    assert "TIDEMARK_ALLOW_FOLDERS" in problem["hint"]
                    assert "TIDEMARK_ALLOW_FOLDERS is empty" in problem["detail"]
                    assert "hunter2" not in answer.text and "root:" not in answer.text
        assert service.call("GET", "/sources").json()["sources"] == []
        options = next(_file_sources(Path("/etc/passwd")))
        statement = "CALL tidemark.create_source('s', 'files', %s)"
        with pytest.raises(psycopg2.Error) as refused:
            database.execute(statement, (json.dumps(options),))
        assert "TIDEMARK_ALLOW_FOLDERS" in (refused.value.diag.message_hint or "")


def test_certificates_lie_where_secrets_or_those_of_the_system_do(tmp_path: Path) -> None:
    own = tmp_path / "ca.pem"
    own.write_text("-----BEGIN CERTIFICATE-----\n")
    netguard.install(Guard(credentials=(str(tmp_path / "secrets"),)))
    kafka = {"bootstrap_servers": "192.0.2.1:9092", "topics": {"t": {"format": "json"}}}
    for name in ("ca_file", "certificate_file", "key_file"):
        read = read_kafka({**kafka, "tls": {name: str(own)}}, needs_columns=False)
        with pytest.raises(SourceError) as refused:
            read.connection.config()
        assert refused.value.code == "path.forbidden", name
    for name in ("ca", "certificate", "key"):
        with pytest.raises(SourceError) as refused:
            SchemaRegistry({"url": "http://192.0.2.1", name: str(own)}).by_id(1)
        assert refused.value.code == "path.forbidden", name
    bucket = {"path": "s3://bucket/*.csv", "endpoint": "http://192.0.2.1", "ca_file": str(own)}
    with pytest.raises(SourceError) as refused:
        read_files({"relations": {"r": bucket}})[0].folder().list_files()
    assert refused.value.code == "path.forbidden"
    assert "TIDEMARK_SECRET_FOLDERS" in refused.value.hint
    (tmp_path / "secrets").mkdir()
    own.rename(tmp_path / "secrets" / "ca.pem")
    netguard.check_certificate(str(tmp_path / "secrets" / "ca.pem"))
    netguard.check_certificate("/etc/ssl/certs")


def test_what_the_settings_say_holds_for_each_process(tmp_path: Path) -> None:
    """A relative folder is meant from where the service was started; copies are never rows."""
    copies, state = tmp_path / "copies", tmp_path / "state"
    settings = Settings.model_validate(
        {
            "source": "x",
            "state": state,
            "allow_folders": f"{tmp_path} relative",
            "checkpoint_to": str(copies),
            "secret_folders": "",
            "secret_variables": "",
        }
    )
    before = secrets._allowed
    protect(settings)
    try:
        assert [os.path.isabs(folder) for folder in netguard.installed().folders] == [True, True]
        for path in (state / "a.csv", copies / "default" / "1" / "a.csv"):
            with pytest.raises(SourceError) as refused:
                netguard.check_path(str(path))
            assert refused.value.code == "path.forbidden"
        netguard.check_path(str(tmp_path / "in"))
        for reference in ("${env:PATH}", "${env:SECRET_X}", "${file:/etc/passwd}"):
            with pytest.raises(SourceError) as refused:
                secrets.resolve(reference)
            assert refused.value.code == "secret.forbidden"
    finally:
        secrets.allow(before.variables, before.folders)


def _no_evaluator() -> Any:
    raise NotImplementedError


def test_workers_of_spark_allow_what_the_service_does() -> None:
    """A job brings it along: a worker is a process that reads no settings."""
    netguard.install(Guard(folders=("/srv/in",)))
    nothing = Cut((), ())
    job = pickle.dumps(Job(FolderExchange(Path("x")), (), "v", nothing, (), _no_evaluator, {}))
    netguard.install(Guard())
    _load_job(job)
    assert netguard.installed() == Guard(folders=("/srv/in",))


def test_a_rejected_row_is_read_again_from_where_it_lay(tmp_path: Path) -> None:
    """Not from where its file's name leads by now."""
    folder, shut = tmp_path / "in", tmp_path / "shut"
    folder.mkdir()
    shut.mkdir()
    (folder / "a.csv").write_text("x\n")
    (shut / "a.csv").write_text("y\n")
    netguard.install(Guard(folders=(str(folder),)))
    local = read_files({"relations": {"r": {"path": f"{folder}/*.csv", "settle_ms": 0}}})[0]
    (stat,) = local.folder().list_files()
    (folder / "a.csv").unlink()
    (folder / "a.csv").symlink_to(shut / "a.csv")
    for path in (stat.path, "../shut/a.csv"):
        with pytest.raises(SourceError) as refused:
            local.folder().open(replace(stat, path=path))
        assert refused.value.code == "path.forbidden"


def test_files_by_where_they_really_lie(tmp_path: Path) -> None:
    open_, shut, state = (tmp_path / name for name in ("open", "shut", "state"))
    for folder in (open_, shut, state):
        folder.mkdir()
        (folder / "a.csv").write_text(f"{folder.name}\n")
    (open_ / "linked").symlink_to(shut)
    (open_ / "file.csv").symlink_to(shut / "a.csv")
    everywhere = ("/",)
    netguard.install(Guard((), everywhere, (str(state),), credentials=("/run/secrets",)))
    assert _rows(f"{shut}/*.csv") == [b"shut\n"]
    for pattern in (
        f"{state}/*.csv",
        f"{tmp_path}/shut/../state/*.csv",
        "/proc/self/environ.csv",
        "/run/secrets/*.csv",
    ):
        with pytest.raises(SourceError) as refused:
            _rows(pattern)
        assert refused.value.code == "path.forbidden", pattern
    netguard.install(Guard(folders=(str(open_),)))
    assert _rows(f"{open_}/a.csv") == [b"open\n"]
    for pattern in (
        f"{open_}/file.csv",
        f"{open_}/linked/*.csv",
        f"{open_}/*/a.csv",
        f"{shut}/*.csv",
    ):
        with pytest.raises(SourceError) as refused:
            _rows(pattern)
        assert refused.value.code == "path.forbidden", pattern
    listed = LocalFolder(split_pattern(f"{open_}/*/*"), 0).list_files()
    assert [(one.path, one.size, one.code) for one in listed] == [("linked", 0, "path.forbidden")]
    os.unlink(open_ / "file.csv")
    os.unlink(open_ / "linked")
    assert _rows(f"{open_}/*.csv") == [b"open\n"]
    with pytest.raises(SourceError):
        netguard.check_certificate(str(shut / "a.csv"))
    netguard.check_certificate("/etc/ssl/certs")
