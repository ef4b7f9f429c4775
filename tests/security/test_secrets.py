"""Oracle: secrets planted where a secret may stand, and searched for in all that comes out of a
service: answers, logs at their loudest, metrics, the catalog, the state, the process list."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

import psutil
import pytest

from connectors.loopback import free_port
from connectors.postgres.embedded.server import EmbeddedPostgres
from service.runtime.redaction import scrub
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

CANARIES = {
    "source": "canary-6d1f-source",
    "kafka": "canary-77b2-kafka",
    "registry": "canary-1c9e-registry",
    "bucket": "canary-f00d-bucket",
    "file": "canary-4b1d-file",
    "spark": "canary-88aa-spark",
    "plain": "canary-p1a1-plain",
}


# What the careless server below was sent.
RECEIVED: list[str] = []


class _Echo(BaseHTTPRequestHandler):
    """A registry of an attacker's, or a careless one: it tells what it was told, in any form."""

    def do_GET(self) -> None:
        headers = dict(self.headers)
        texts = [str(headers), quote(str(headers)), json.dumps(headers), escape(str(headers))]
        login = headers.get("Authorization", "").removeprefix("Basic ")
        with suppress(ValueError):
            texts.append(base64.b64decode(login, validate=True).decode())
        RECEIVED.append("\n".join([*texts, unquote(self.path)]))
        told = json.dumps({"message": f"no: {texts} {self.path}"}).encode()
        self.send_response(418)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    do_POST = do_PUT = do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing is told."""


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute("CREATE TABLE t (id integer PRIMARY KEY, a integer)")
        made.execute("INSERT INTO t VALUES (1, 2)")
        yield made


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("service")
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "lake").write_text(CANARIES["file"] + "\n")
    (secrets / "source").write_text(CANARIES["source"] + "\n")
    variables = {"SECRET_KAFKA": "kafka", "SECRET_REGISTRY": "registry", "SECRET_LAKE": "bucket"}
    before = dict(os.environ)
    os.environ.update({name: CANARIES[key] for name, key in variables.items()})
    os.environ["HIDDEN_SPARK"] = CANARIES["spark"]
    # The server trusts everybody: what matters is that a password is there to be told.
    running = RunningService(
        f"{place.dsn} password=${{file:{secrets}/source}}",
        folder,
        secret_folders=secrets,
        log_level="debug",
        spark_conf="spark.hadoop.fs.s3a.secret.key=${env:HIDDEN_SPARK}",
    )
    os.environ.clear()
    os.environ.update(before)
    with running:
        yield running


def _kafka(**sasl: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{free_port()}",
        "topics": {"clicks": {"format": "json", "columns": {"id": "bigint"}}},
    }
    return {**options, "sasl": {"mechanism": "PLAIN", "username": "me", **sasl}}


def _source(name: str, kind: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "options": options}


def _bucket(secret: str, **more: Any) -> dict[str, Any]:
    keys = {"access_key": "${env:SECRET_LAKE}", "secret_key": secret}
    path = {"path": "s3://lake/*.csv", "columns": [{"name": "id", "type": "bigint"}]}
    endpoint = {"endpoint": f"http://127.0.0.1:{free_port()}"}
    return {"relations": {"r": {**path, **endpoint, **keys, **more}}}


def test_no_secret_comes_out(service: RunningService, place: Database, echo: str) -> None:
    """Everything is done that may fail with a secret in hand; then all outputs are searched."""
    told: list[str] = []

    def call(method: str, path: str, body: Any = None) -> int:
        answer = service.call(method, path, body)
        told.extend((answer.text, str(dict(answer.headers))))
        return answer.status_code

    made = service.call("POST", "/tokens", {"name": "admin", "role": "admin"}).json()["token"]
    service._client.headers["Authorization"] = f"Bearer {made}"
    lake = f"${{file:{service.state.parent}/secrets/lake}}"
    registry = {"url": echo, "user": "me", "password": "${env:SECRET_REGISTRY}"}
    bearer = {"url": echo, "token": "${env:SECRET_REGISTRY}"}
    avro = {"format": "avro", "columns": {"id": "bigint"}}
    for name, kind, options in [
        ("k1", "kafka", _kafka(password="${env:SECRET_KAFKA}")),
        ("k2", "kafka", _kafka(password=CANARIES["plain"])),
        ("k3", "kafka", _kafka(password={"x": CANARIES["plain"]})),
        ("k4", "kafka", _kafka(password="${env:TIDEMARK_SOURCE}")),
        ("k5", "kafka", _kafka(password="${env:HIDDEN_SPARK}")),
        ("k6", "kafka", _kafka(password="${file:/etc/passwd}")),
        ("k7", "kafka", _kafka(password="${file:/proc/self/environ}")),
        ("f1", "files", _bucket(lake)),
        ("f2", "files", _bucket(CANARIES["plain"])),
        ("f3", "files", _bucket(lake, format=CANARIES["file"])),
        ("r1", "kafka", {**_kafka(), "topics": {"c": {**avro, "registry": registry}}}),
    ]:
        body = _source(name, kind, options)
        assert call("POST", "/sources", body) in (403, 422, 503), name
        found = {"type": kind, "options": options}
        assert call("POST", "/sources/discover", found) in (200, 403, 422, 503), name
    assert call("POST", "/views?wait_s=60", {"name": "v", "query": "SELECT id, a FROM t"}) == 201
    for number, given in enumerate((registry, bearer)):
        options = {**_kafka(password="${env:SECRET_KAFKA}"), "format": "avro", "registry": given}
        options.pop("topics")
        call("POST", "/views/v/sinks", {"name": f"s{number}", "options": options})
    for path in (
        "/views",
        "/views/v",
        "/sources",
        "/overview",
        "/metrics",
        "/openapi.json",
        "/tokens",
    ):
        assert call("GET", path) == 200
    call("GET", "/health")
    call("GET", f"/views/nosuch/changes?access_token={made}")
    service.kill_child("pipeline")
    service.await_status("v")
    told += _left_behind(service, place)
    hidden = {**CANARIES, "token": made, "token's end": made.split("_", 2)[2]}
    hidden["basic"] = base64.b64encode(f"me:{CANARIES['registry']}".encode()).decode()
    whole = "\n".join(told)
    assert not [name for name, secret in hidden.items() if secret in whole]
    # What is searched has what it should have: names, references, the service's own words.
    for seen in ("${env:SECRET_KAFKA}", "secret.plain", "secret.forbidden", "pipeline.started"):
        assert seen in whole, seen


# What a file of a secret may have beside it, and characters that are written in many forms.
SHAPES = {
    "quoted": "canary \"q'\\u/o+t&e<d>%=",
    "long": "canary-l0ng" * 40,
    "unicode": "canäry-ünï-€😀",
    "inner": "canary-inn\ner",
    "return": "canary-carri\rage",
    "last": "canary-last-l1ne\n\n",
    "spaces": " canary-sp4ces ",
    "control": "canary-c0ntr\x01ol",
}
# Whatever of these is found is a secret, or the begin or the end of one. Files of the state are
# read as Latin-1, byte by byte; fewer than four bytes would be found there by chance.
_WORDS = ("canary", "canäry", "l0ng", "l1ne", "sp4ces", "c0ntr", "carri", "q'\\u", "ünï-", "t&e<d")
MARKS = dict.fromkeys((*_WORDS, *(word.encode().decode("latin-1") for word in _WORDS)))


def _sources_with(given: str, echo: str) -> list[tuple[str, dict[str, Any]]]:
    """Sources of every type that sends a secret, with this one."""
    columns = {"columns": [{"name": "id", "type": "bigint"}], "key": ["id"]}
    rows = {"relations": {"r": {"path": "/r", **columns}}}
    host = {"host": "127.0.0.1", "port": free_port(), "database": "d", "user": "u"}
    bucket = {"endpoint": echo, "access_key": given, "secret_key": given}
    file = {"path": "s3://lake/*.csv", "columns": columns["columns"]}
    return [
        ("http", {"url": echo, "token": given, **rows}),
        ("http", {"url": echo, "user": "me", "password": given, **rows}),
        ("http", {"url": echo, "headers": {"X-Api-Key": given}, **rows}),
        ("http", {"url": echo, "query": {"token": given}, **rows}),
        ("stream", {"url": echo, "token": given, **rows}),
        ("stream", {"url": echo, "query": {"token": given}, **rows}),
        ("stream", {"url": echo.replace("http", "ws"), "token": given, **rows}),
        ("clickhouse", {"url": echo, "user": "me", "password": given, **rows}),
        ("kafka", _kafka(password=given)),
        ("files", {"relations": {"r": {**file, **bucket}}}),
        ("delta", {"relations": {"r": {**file, "path": "s3://lake/x", **bucket}}}),
        ("mysql", {**host, "password": given, "tables": {"r": {}}}),
        ("postgres", {**host, "password": given, "tables": {"r": {}}}),
        ("mongodb", {**host, "password": given, "relations": {"r": columns}}),
    ]


def _sinks_with(given: str, echo: str) -> list[tuple[str, dict[str, Any]]]:
    host = {"host": "127.0.0.1", "port": free_port(), "database": "d", "user": "u"}
    bucket = {"endpoint": echo, "access_key": given, "secret_key": given}
    return [
        ("webhook", {"url": echo, "secret": given}),
        ("webhook", {"url": echo, "headers": {"Authorization": f"Bearer {given}"}}),
        ("clickhouse", {"url": echo, "password": given}),
        ("parquet", {"path": "s3://lake/p", **bucket}),
        ("delta", {"path": "s3://lake/d", **bucket}),
        ("mysql", {**host, "password": given}),
        ("postgres", {**host, "password": given}),
    ]


def test_no_shape_of_a_secret_comes_out(
    service: RunningService, place: Database, echo: str
) -> None:
    """Of every type of sources and sinks, whatever its secret has in it."""
    secrets = service.state.parent / "secrets"
    told: list[str] = []

    def call(path: str, body: Any) -> None:
        answer = service.call("POST", path, body)
        told.extend((answer.text, str(dict(answer.headers))))

    call("/views?wait_s=60", {"name": "shapes", "query": "SELECT id FROM t"})
    for name, secret in SHAPES.items():
        (secrets / name).write_text(secret + "\n")
        given = f"${{file:{secrets}/{name}}}"
        for number, (kind, options) in enumerate(_sources_with(given, echo)):
            call("/sources/discover", {"type": kind, "options": options})
            call("/sources", _source(f"{name}{number}", kind, options))
        for number, (kind, options) in enumerate(_sinks_with(given, echo)):
            body = {"name": f"{name}{number}", "type": kind, "options": options}
            call("/views/shapes/sinks", body)
    for path in ("/sources", "/views", "/views/shapes", "/views/shapes/sinks", "/overview"):
        told.append(service.call("GET", path).text)
    told += [service.call("GET", path).text for path in ("/health", "/metrics", "/dead-letters")]
    told += _left_behind(service, place)
    whole = "\n".join(told).replace(str(secrets), "")
    found = [mark for mark in MARKS if mark in whole or mark in unquote(whole)]
    assert not found, [whole[max(0, at - 400) : at + 40] for at in map(whole.find, found)]
    assert "Illegal header" not in whole
    # The server was sent them, and a secret that cannot be sent is refused by its reference.
    for mark in ('canary \\"q', "canary-l0ng"):
        assert any(mark in text for text in RECEIVED), mark
    assert "secret.bad_text" in whole and "/inner}" in whole


def _left_behind(service: RunningService, place: Database) -> list[str]:
    """Log, catalog, state, command lines, and what the server shows of our sessions."""
    told = [service.log_tail(10_000_000)]
    told += [str(row) for row in _catalog(place)]
    told += [
        path.read_bytes().decode("latin-1") for path in service.state.rglob("*") if path.is_file()
    ]
    told += [" ".join(p.cmdline()) for p in service._family()]
    told += [" ".join(p.cmdline()) for p in psutil.process_iter() if "tidemark" in p.name()]
    told += [q for (q,) in place.rows("SELECT query || application_name FROM pg_stat_activity")]
    return told


def _catalog(place: Database) -> Iterator[tuple[Any, ...]]:
    names = "SELECT relname FROM pg_class WHERE relnamespace = 'tidemark'::regnamespace"
    for (name,) in place.rows(f"{names} AND relkind IN ('r', 'v')"):
        yield from place.rows(f'SELECT t::text FROM tidemark."{name}" AS t')


SCRUBBED = [
    ("postgresql://me:pass/word@db:5432/x refuses", "pass/word"),
    ("dsn=postgres://u:p%40ss@h/d", "p%40ss"),
    ("user=me password='two words' host=h", "two words"),
    ('{"sasl.password": "hunter22"}', "hunter22"),
    ("{'secret_key': 'hunter22', 'x': 1}", "hunter22"),
    ("Authorization: Bearer abcdefgh12345", "abcdefgh12345"),
    ("GET /views/x/changes?access_token=tdm_000000000000_abc&x=1", "tdm_000000000000_abc"),
    ("aws_secret_access_key=hunter22/+", "hunter22"),
]


@pytest.mark.parametrize(("text", "secret"), SCRUBBED)
def test_the_second_line(text: str, secret: str) -> None:
    assert secret not in scrub(text) and "***" in scrub(text)


def test_the_second_line_leaves_words_alone(tmp_path: Path) -> None:
    for text in (
        "the password is wrong",
        'option "password" must be a reference',
        "password=${env:SECRET_X}",
        "https://docs.example/a:b@c",
        "SELECT password FROM users",
    ):
        assert scrub(text) == text
