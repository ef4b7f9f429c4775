"""Oracle: PostgreSQL's own rights: what a query may be completed with is what it could read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import http
from tests.harness.postgres import new_database
from tests.harness.psql import roles
from tests.harness.service import RunningService

TABLES = """
CREATE SCHEMA closed;
CREATE TABLE open (id int PRIMARY KEY, shown int, secret int);
CREATE TABLE hidden (id int PRIMARY KEY);
CREATE TABLE closed.inside (id int PRIMARY KEY);
CREATE TABLE "Odd.Name" (id int PRIMARY KEY, gone int, "a b" int);
ALTER TABLE "Odd.Name" DROP COLUMN gone;
CREATE TABLE parts (id int, of int REFERENCES open, also int REFERENCES hidden, note text);
CREATE MATERIALIZED VIEW copied AS SELECT id FROM open;
GRANT SELECT (id, shown) ON open TO {0};
GRANT SELECT ON parts TO {0};
GRANT SELECT ON closed.inside, "Odd.Name" TO {0};
"""


@pytest.mark.whole
def test_only_what_the_caller_may_read_is_named(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    ann = f"ann_{os.getpid()}"
    with (
        new_database(postgres) as database,
        roles(database, ann),
        RunningService(database.dsn, tmp_path) as service,
    ):
        database.execute(TABLES.format(ann))
        service.create("all_open", "SELECT id, secret FROM open", backfill="local")
        service.create("twice", "SELECT secret FROM open", backfill="local")
        admin = _token(service, "root", "admin")
        whole = _tables(service, admin)
        assert whole["public.open"] == ("table", ["id", "shown", "secret"])
        assert whole["public.all_open"] == ("view", ["id", "secret"])
        assert whole["public.twice"] == ("view", ["secret"])
        assert whole["closed.inside"] == ("table", ["id"])
        assert whole["public.Odd.Name"] == ("table", ["id", "a b"])
        names = {name.partition(".")[0] for name in whole}
        assert names == {"public", "closed"} and len(whole) == 8, whole
        of_ann = _token(service, "of_ann", "reader", admin, ann)
        assert _tables(service, of_ann) == {
            "public.open": ("table", ["id", "shown"]),
            "public.Odd.Name": whole["public.Odd.Name"],
            "public.parts": whole["public.parts"],
        }
        _check_facts(_facts(service, admin), _facts(service, of_ann))
        database.execute(f"GRANT SELECT ON all_open TO {ann}")
        assert _tables(service, of_ann)["public.all_open"] == ("view", ["id", "secret"])
        # It reads views alone, with whose rights they ever were made.
        reader = _token(service, "plain", "reader", admin)
        assert {kind for kind, _ in _tables(service, reader).values()} == {"view"}
        assert http.get(f"{service.url}/tables").status_code == 401


def _token(
    service: RunningService, name: str, role: str, by: str = "", db_role: str | None = None
) -> str:
    headers = {"Authorization": f"Bearer {by}"} if by else {}
    body = {"name": name, "role": role, "db_role": db_role}
    made = http.post(f"{service.url}/tokens", json=body, headers=headers, timeout=60)
    assert made.status_code == 201, made.text
    return made.json()["token"]


def _tables(service: RunningService, token: str) -> dict[str, tuple[str, list[str]]]:
    return {name: (t["kind"], t["columns"]) for name, t in _facts(service, token).items()}


def _facts(service: RunningService, token: str) -> dict[str, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"}
    answer = http.get(f"{service.url}/tables", headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return {f"{t['schema']}.{t['name']}": t for t in answer.json()["tables"]}


def _check_facts(whole: dict[str, dict[str, Any]], of_ann: dict[str, dict[str, Any]]) -> None:
    """What the catalogs of PostgreSQL say of each table, and a role sees no end of a reference that
    it may not read."""
    opened, parts = whole["public.open"], whole["public.parts"]
    assert opened["key"] == ["id"] and opened["replica_identity"] == "default"
    assert opened["is_published"]
    assert sorted((v["schema"], v["name"]) for v in opened["views"]) == [
        ("public", "all_open"),
        ("public", "twice"),
    ]
    assert opened["problem"] is None and opened["table_kind"] == "table"
    assert opened["fields"][0] == {"name": "id", "type": "integer", "nullable": False}
    assert [(r["columns"], r["table"], r["references"]) for r in parts["references"]] == [
        (["also"], "hidden", ["id"]),
        (["of"], "open", ["id"]),
    ]
    assert parts["problem"]["code"] == "source.no_replica_identity"
    assert not parts["is_published"] and parts["views"] == [] and parts["key"] == []
    assert whole["public.copied"]["problem"]["code"] == "source.relation_kind"
    assert whole["public.copied"]["replica_identity"] is None
    assert [r["table"] for r in of_ann["public.parts"]["references"]] == ["open"]
    assert of_ann["public.open"]["views"] == []
    assert [f["name"] for f in of_ann["public.open"]["fields"]] == ["id", "shown"]
