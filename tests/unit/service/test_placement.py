"""Oracle: the table of docs/SCALE.md, written out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from connectors.postgres.catalog.catalog import SourceRow
from dataflow.errors import SqlError
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT8
from service.api import placement
from service.api.models import ViewOptions
from service.api.placement import placed
from service.factory.on_spark import read_here
from service.ingest.declared_sources import connector, relation_facts, relations_of
from service.runtime.settings import Settings

IDENTITY = "0123456789abcdef" * 2
OWN_GROUP = "spark0123456789abcdef"


@dataclass
class Definition:
    """What is asked of one."""

    identity: str = IDENTITY


PLANNED = Definition()


@dataclass
class Estimate:
    """What is asked of one."""

    state_bytes: int
    engine: str = "spark"
    engine_s: dict[str, float] = field(default_factory=lambda: {"local": 9.0, "spark": 3.0})
    engine_reason: str = "its figures"


@pytest.mark.parametrize(
    ("runtime", "master", "state_mb", "is_able"),
    list(
        itertools.product(
            ("local", "spark", "auto"), ("", "local[2]"), (None, 99, 100, 5_000), (True, False)
        )
    ),
)
def test_where_a_view_is_maintained(
    monkeypatch: pytest.MonkeyPatch, runtime: str, master: str, state_mb: int | None, is_able: bool
) -> None:
    asked: list[str] = []

    def check(definition: Definition, settings: Settings, sources: list) -> list[str]:
        asked.append(definition.identity)
        if not settings.spark or not is_able:
            raise SqlError("spark.unsupported", "it cannot")
        return ["one bucket"]

    monkeypatch.setattr(placement, "check_on_spark", check)
    monkeypatch.setattr(placement, "plan_on_spark", lambda definition: PLANNED)
    settings = Settings.model_validate(
        {"source": "dbname=x", "spark": master, "spark_state_mb": 100}
    )
    estimate = None if state_mb is None else Estimate(state_mb << 20)
    options = ViewOptions.model_validate({"runtime": runtime})
    wants = runtime == "spark" or (runtime == "auto" and bool(master) and (state_mb or 0) >= 100)
    if runtime == "spark" and not (master and is_able):
        with pytest.raises(SqlError):
            placed(Definition(), options, estimate, settings=settings, sources=list)  # type: ignore[arg-type]
        return
    found = placed(Definition(), options, estimate, settings=settings, sources=list)  # type: ignore[arg-type]
    assert asked == ([IDENTITY] if wants else [])
    if wants and is_able:
        assert (found.runtime, found.group, found.warnings) == ("spark", OWN_GROUP, ("one bucket",))
        assert found.definition is PLANNED
    else:
        assert found.definition is not PLANNED
        assert (found.runtime, found.group) == ("local", "default")
        # Who asked for "auto" learns why the view is not where it should be.
        assert any("it cannot" in warning for warning in found.warnings) == wants


@pytest.mark.parametrize("backfill", ["auto", "local", "spark"])
@pytest.mark.parametrize("is_sooner", [True, False])
def test_auto_takes_spark_only_where_a_view_is_built_sooner(
    monkeypatch: pytest.MonkeyPatch, backfill: str, is_sooner: bool
) -> None:
    """What does not fit into memory has the engine "spark", however slow (test_engine_choice)."""
    monkeypatch.setattr(placement, "check_on_spark", lambda *_: [])
    monkeypatch.setattr(placement, "plan_on_spark", lambda definition: PLANNED)
    settings = Settings.model_validate({"source": "dbname=x", "spark": "spark://host:7077"})
    engine = ("spark" if is_sooner else "local") if backfill == "auto" else backfill
    seconds = {"local": 20.0, "spark": 10.0 if is_sooner else 30.0}
    estimate = Estimate(1 << 50, engine, seconds)
    options = ViewOptions.model_validate({"runtime": "auto", "backfill": backfill})
    found = placed(Definition(), options, estimate, settings=settings, sources=list)  # type: ignore[arg-type]
    assert found.runtime == ("spark" if is_sooner else "local")
    assert any("its figures" in warning for warning in found.warnings) == (not is_sooner)


def test_a_view_with_a_group_stays_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "check_on_spark", lambda *_: pytest.fail("it was asked"))
    settings = Settings.model_validate({"source": "dbname=x", "spark": "local[2]"})
    options = ViewOptions.model_validate({"runtime": "auto", "group": "mine"})
    found = placed(Definition(), options, Estimate(1 << 50), settings=settings, sources=list)  # type: ignore[arg-type]
    assert (found.runtime, found.group) == ("local", "mine")


def test_a_warning_for_each_relation_that_executors_do_not_read(tmp_path: Path) -> None:
    """Topics by their options, folders always; tables have no other way, so they are not named."""
    columns = [{"name": "id", "type": "int8"}]
    debezium = {"mode": "upsert", "key": ["id"], "format": "debezium-json", "columns": columns}
    topics = {"people": debezium, "clicks": {"format": "json", "columns": columns}}
    options = {"bootstrap_servers": "127.0.0.1:1", "topics": topics}
    folder = {"relations": {"orders": {"path": f"{tmp_path}/*.csv", "columns": columns}}}
    rows = [
        SourceRow("source", "dbname=x"),
        SourceRow("shop", "", type="kafka", options=options),
        SourceRow("in", "", type="files", options=folder),
    ]
    for row in rows[1:]:
        for one in connector(row.type).declare(row.options):
            fields = [Field(name, INT8) for name, _ in one.columns]
            row.relations.append(relation_facts(one, fields))
    relations = [relation for row in rows[1:] for relation in relations_of(row)]
    table = Relation(RelationName("source", "public", "customers"), 1, (Field("id", INT8),), ())
    found = read_here((*relations, table), rows)
    assert [warning.partition(",")[0] for warning in found] == [
        '"shop.people" is read by the view\'s process',
        '"in.orders" is read by the view\'s process',
    ]
    assert all("because" in warning for warning in found)
