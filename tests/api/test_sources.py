"""Oracle: docs/ERRORS.md and docs/SOURCES.md: every refusal about sources has its status and code,
and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import http
from tests.harness.postgres import new_database
from tests.harness.service import RunningService

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric(10,2)"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shop")
    (made / "a.csv").write_text("id,price\n1,2.50\n")
    return made


@pytest.fixture(scope="module")
def service(
    postgres: EmbeddedPostgres, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    with new_database(postgres) as database:
        database.execute("CREATE SCHEMA sales")
        where = tmp_path_factory.mktemp("service")
        with RunningService(database.dsn, where, allow_folders=f"{folder} /nowhere") as running:
            yield running


def _files(folder: Path, **more: Any) -> dict[str, Any]:
    relation = {"path": f"{folder}/*.csv", "columns": COLUMNS, **more}
    return {"relations": {"prices": relation}}


def _create(service: RunningService, name: str, options: dict[str, Any]) -> tuple[int, str]:
    body = {"name": name, "type": "files", "options": options}
    answer = service.call("POST", "/sources", body)
    return answer.status_code, answer.json().get("code", "")


REFUSALS = [
    ("Shop", {}, (422, "request.invalid")),
    ("sales", {}, (409, "source.name_taken")),
    ("source", {}, (409, "source.name_taken")),
    ("pg_shop", {}, (409, "source.name_taken")),
    ("tidemark", {}, (409, "source.name_taken")),
    ("shop", {"nosuch": 1}, (422, "source.bad_option")),
    ("shop", {"on_error": "perhaps"}, (422, "source.bad_option")),
    ("shop", {"columns": [{"name": "id", "type": "nosuch"}]}, (422, "format.type")),
    ("shop", {"columns": [{"name": "id", "type": "int); DROP"}]}, (422, "format.type")),
    ("shop", {"path": "/nowhere/at/all/*.csv"}, (422, "source.folder")),
]


@pytest.mark.parametrize(("name", "more", "refusal"), REFUSALS)
def test_refusals(
    service: RunningService,
    folder: Path,
    name: str,
    more: dict[str, Any],
    refusal: tuple[int, str],
) -> None:
    assert _create(service, name, _files(folder, **more)) == refusal
    assert service.call("GET", "/sources").json() == {"sources": [], "next": None}


@pytest.mark.parametrize(
    ("type_name", "refusal"),
    [
        ("int); DROP TABLE t; --", (400, "sql.bad_type")),
        ("nosuch", (400, "sql.undefined_object")),
    ],
)
def test_types_that_are_none(
    service: RunningService, type_name: str, refusal: tuple[int, str]
) -> None:
    """PostgreSQL is asked what a type is before the cluster is reached."""
    topic = {"format": "json", "columns": {"id": type_name}}
    options = {"bootstrap_servers": "127.0.0.1:1", "topics": {"clicks": topic}}
    body = {"name": "web", "type": "kafka", "options": options}
    answer = service.call("POST", "/sources", body)
    assert (answer.status_code, answer.json()["code"]) == refusal


def test_what_is_not_there(service: RunningService) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("PUT", "")):
        body = {"options": {}} if method == "PUT" else None
        answer = service.call(method, f"/sources/nosuch{path}", body)
        assert (answer.status_code, answer.json()["code"]) == (404, "source.not_found")
    chosen = {"source": "nosuch", "positions": ["a.csv:1"]}
    answer = service.call("POST", "/dead-letters/retry", chosen)
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")
    answer = service.call("POST", "/dead-letters/drop", {"source": "nosuch"})
    assert (answer.status_code, answer.json()["code"]) == (404, "source.not_found")


def test_a_relation_that_is_read_stays_what_it_is(service: RunningService, folder: Path) -> None:
    assert _create(service, "shop", _files(folder))[0] == 201
    assert _create(service, "shop", _files(folder)) == (409, "source.name_taken")
    service.create("prices", "SELECT id, price FROM shop.prices", backfill="local")
    fewer = {"options": _files(folder, columns=COLUMNS[:1])}
    answer = service.call("PUT", "/sources/shop", fewer)
    assert (answer.status_code, answer.json()["code"]) == (409, "source.in_use")
    same = {"options": _files(folder, on_error="skip")}
    answer = service.call("PUT", "/sources/shop", same)
    assert answer.status_code == 200, answer.text
    assert answer.json()["options"]["relations"]["prices"]["on_error"] == "skip"
    service.drop("prices")
    assert service.call("DELETE", "/sources/shop").status_code == 204
    assert service.call("GET", "/sources").json() == {"sources": [], "next": None}


def test_columns_are_proposed_from_samples(service: RunningService, folder: Path) -> None:
    options = {"relations": {"prices": {"path": f"{folder}/a.csv"}}}
    answer = service.call("POST", "/sources/discover", {"type": "files", "options": options})
    assert answer.status_code == 200, answer.text
    proposed = answer.json()["options"]["relations"]["prices"]["columns"]
    assert [column["name"] for column in proposed] == ["id", "price"]
    assert service.call("GET", "/sources").json() == {"sources": [], "next": None}


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_header_that_is_not_utf8(service: RunningService, folder: Path, encoding: str) -> None:
    (folder / f"{encoding}.tsv").write_bytes("id\tcafé\n1\tè\n".encode(encoding))
    columns = [COLUMNS[0], {"name": "café", "type": "text"}]
    options = _files(folder, path=f"{folder}/{encoding}.tsv", columns=columns, settle_ms=0)
    for on_error in ("fail", "dead_letter"):
        asked = {**options, "on_error": on_error}
        assert _create(service, "cafe", asked) == (422, "source.bad_sample")
        bare = {"relations": {"t": {"path": f"{folder}/{encoding}.tsv"}}}
        answer = service.call("POST", "/sources/discover", {"type": "files", "options": bare})
        assert (answer.status_code, answer.json()["code"]) == (422, "source.bad_sample")
    assert _create(service, "cafe", {**options, "encoding": encoding})[0] == 201
    service.call("DELETE", "/sources/cafe")


JSON = {"content-type": "application/json"}
TEXTS = ["\0", "a\0b", "\ud800", "x\udfff"]


@pytest.mark.parametrize("text", TEXTS)
def test_options_that_postgresql_cannot_store(
    service: RunningService, folder: Path, text: str
) -> None:
    columns = [{"name": f"i{text}", "type": "text"}]
    wanted = [
        *({"relations": {"t": {"path": f"{folder}/{text}*.csv"}}}, {text: 1}),
        {"relations": {text: {"path": f"{folder}/*.csv"}}},
        _files(folder, columns=columns),
        _files(folder, null=text),
    ]
    for type in ("files", "kafka"):
        for options in wanted:
            body = {"name": "odd", "type": type, "options": options}
            for path in ("/sources", "/sources/discover"):
                sent = {key: body[key] for key in body if path == "/sources" or key != "name"}
                answer = http.post(service.url + path, content=json.dumps(sent), headers=JSON)
                assert answer.status_code in (400, 422), (path, sent, answer.text)
                assert answer.json()["code"] == "request.invalid"
