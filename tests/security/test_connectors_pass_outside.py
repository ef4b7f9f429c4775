"""Oracle: docs/contributing/CONNECTORS.md: every connector passes `connectors/outside`. The syntax
trees say which does something by itself; each exception stands here with its reason."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.outside.guarded import Guarded
from service.factory.sink_types import MODULES, sink_connector
from service.ingest.declared_sources import TYPES, connector

ROOT = Path(__file__).parents[2]
OUTSIDE = ROOT / "connectors" / "outside"
# What is only in `connectors/outside`: clients, sockets, TLS, readers of URLs, unpackers.
ALONE = (
    *("httpx", "httpcore", "http.client", "http.server", "requests", "urllib3", "aiohttp"),
    *("urllib.request", "urllib.parse.urlsplit", "urllib.parse.urlparse", "urllib.parse.urljoin"),
    *("socket", "ssl", "socketserver", "asyncio", "ftplib", "smtplib", "websockets", "obstore"),
    *("gzip", "zlib", "bz2", "lzma", "zipfile", "tarfile", "zstandard", "xml", "lxml"),
)
# What may be made elsewhere only where the address was checked before.
MADE = ("S3Store", "DeltaTable", "MongoClient", "create_engine", "make_dsn")
EXCEPTIONS: dict[str, dict[str, str]] = {
    "apart/child_process.py": {"socket": "a pair of this process and its child"},
    "apart/child_program.py": {"socket": "the same, in the child"},
    "apart/fork_server.py": {"socket": "the same, on its way to the child"},
    "apart/frames.py": {"socket": "the same"},
    "apart/starter.py": {"socket": "the same"},
    "files/bucket.py": {"obstore": "objects of a store that bucket_options has opened"},
    "files/stream.py": {
        "gzip": "packed files, in blocks",
        "zlib": "its exceptions",
    },
    "files/xml_records.py": {"xml": "expat, element by element, within limits of its own"},
    "iceberg/options.py": {"urllib.parse.urlsplit": "the DSN of a catalog, no URL of HTTP"},
    "loopback.py": {"socket": "a free port of this machine, for servers that we start"},
    "mysql/log.py": {"zlib": "checksums, and events that the server has packed"},
    "netguard.py": {"socket": "it is what resolves and checks"},
    "objects/bucket_options.py": {
        "obstore": "opens buckets, behind the relay",
        "S3Store()": "with the address that was checked, and the relay as its proxy",
    },
    "objects/object_storage.py": {"obstore": "buckets of the operator's own settings"},
    "objects/option_bucket.py": {"obstore": "the type of what bucket_options has opened"},
    "postgres/catalog/requests.py": {"socket": "wakes a thread of this process"},
    "postgres/replication/stream.py": {"socket": "the operator's own database"},
    "postgres/session/liveness_watchdog.py": {"socket": "the operator's own database"},
    "python/function.py": {"asyncio": "users' functions may be coroutines"},
    "spark/cluster.py": {"http.client": "the operator's own master, and one bounded answer"},
    "spark/batch/view_run.py": {"zlib": "notes that this program has packed"},
    "spark/maintained/tasks.py": {"socket": "the name of this machine"},
    "spark/session.py": {"zipfile": "packs our own code for executors"},
    "stream/websocket.py": {"websockets": "the protocol, over a socket of outside/sockets.py"},
    "iceberg/catalog.py": {"create_engine()": "over the sessions of postgres, and a checked file"},
    "postgres/embedded/engine_lock.py": {"make_dsn()": "of the user's own server"},
    "postgres/session/backend_probe.py": {"make_dsn()": "of a session, in a second one"},
    "postgres/session/foreign.py": {"make_dsn()": "of the login of outside/logins.py"},
    "postgres/session/session.py": {"make_dsn()": "of the settings, or a foreign one"},
    "delta/delta_sink.py": {"DeltaTable()": "behind the relay"},
    "delta/table_log.py": {"DeltaTable()": "behind the relay"},
    "mongodb/source.py": {"MongoClient()": "with the login of outside/logins.py"},
}
# A library that is only in child processes of `connectors/apart`, and where these are made.
APART, IN_CHILD = "confluent_kafka", "connectors/kafka/in_child.py"
# Who loads it nevertheless, for a broker of ours on this machine: the command `demo`.
OWN_BROKER = ("service/demo/demo_clicks.py", "service/demo/main_job.py", "service/cli/main.py")


def product_files() -> Iterator[Path]:
    for path in sorted((ROOT / "connectors").rglob("*.py")):
        if OUTSIDE not in path.parents:
            yield path


def uses_of(text: str) -> Iterator[tuple[int, str]]:
    """(line, which of ALONE and MADE) of a file."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = ast.unparse(node.func).split(".")[-1]
            names = [f"{called}()"] if called in MADE else []
        for name in names:
            for own in (*ALONE, *(f"{made}()" for made in MADE)):
                if f"{name}.".startswith(f"{own}."):
                    yield getattr(node, "lineno", 0), own


@functools.cache
def imports_of(text: str) -> frozenset[str]:
    """The modules that a file imports, and what it imports of them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def loading(texts: dict[str, str]) -> set[str]:
    """Those of the files, by path, that load the library by any way of imports."""
    modules = {path.removesuffix(".py").replace("/", "."): path for path in texts}
    imported = {path: imports_of(text) for path, text in texts.items()}
    found = {
        p for p, names in imported.items() if any(f"{n}.".startswith(f"{APART}.") for n in names)
    }
    while True:
        more = {
            path
            for path, names in imported.items()
            if any(modules.get(name) in found for name in names)
        }
        if more <= found:
            return found
        found |= more


def product_texts() -> dict[str, str]:
    paths = [p for top in ("connectors", "service") for p in (ROOT / top).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def test_kafkas_client_is_in_child_processes_only() -> None:
    texts = product_texts()
    found = loading(texts)
    assert IN_CHILD in found and "connectors/kafka/client.py" in found
    outside = {p for p in found if not p.startswith("connectors/kafka/")}
    assert outside == set(OWN_BROKER)
    faces = {f"connectors/kafka/{name}.py" for name in ("source", "sink", "ranges_apart")}
    assert not found & faces
    # The makers of children are named, never imported.
    others = [p for p, text in texts.items() if "connectors.kafka.in_child" in imports_of(text)]
    assert not others


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("from confluent_kafka import Consumer", True),
        ("import confluent_kafka.admin as a", True),
        ("def f():\n    from connectors.kafka.client import Client", True),
        ("from connectors.kafka import topics", True),
        ("from connectors.kafka import source", False),
        ("import confluent_kafkaesque", False),
    ],
)
def test_a_client_of_kafka_elsewhere_is_found(text: str, is_one: bool) -> None:
    texts = {**product_texts(), "service/engine/new.py": text}
    assert ("service/engine/new.py" in loading(texts)) == is_one


def test_no_connector_has_a_way_out_of_its_own() -> None:
    faults, met = [], set()
    for path in product_files():
        name = path.relative_to(ROOT / "connectors").as_posix()
        for line, used in uses_of(path.read_text()):
            met.add((name, used))
            if used not in EXCEPTIONS.get(name, {}):
                faults.append(f"connectors/{name}:{line}: {used}: pass connectors/outside")
    listed = {(name, used) for name, own in EXCEPTIONS.items() for used in own}
    faults += [f"connectors/{name}: uses no {used} any more" for name, used in sorted(listed - met)]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "import httpx",
        "from urllib.parse import urlsplit",
        "import urllib.request as x",
        "def f():\n    import ssl",
        "from http.client import HTTPConnection",
        "x = obstore.store.S3Store('b')",
        "import xml.etree.ElementTree",
    ],
)
def test_a_way_out_is_found(text: str) -> None:
    assert list(uses_of(text))


def test_what_is_not_one_is_not_found() -> None:
    for text in (
        "from urllib.parse import quote",
        "import httpish",
        "from connectors.http import x",
    ):
        assert not list(uses_of(text))


def test_the_service_reaches_connectors_through_the_boundary() -> None:
    for name in TYPES:
        # The clock is the only source that nobody else writes.
        assert isinstance(connector(name), Guarded) == (name != "clock"), name
    for name in MODULES:
        assert isinstance(sink_connector(name), Guarded), name
    faults = []
    for path in sorted((ROOT / "service").rglob("*.py")):
        text = path.read_text()
        if "import_module(" in text and path.name not in (
            *("declared_sources.py", "sink_types.py", "option_schemas.py", "packages.py"),
        ):
            faults.append(path.name)
    assert not faults
