"""Oracle: the parser of Prometheus' own client, and docs/METRICS.md, row for row."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.schema import Field
from dataflow.types import INT8
from service.api.api_metrics import ApiFigures, CountCalls
from service.api.models import ViewModel
from service.api.prometheus import MAX_VIEWS, ScrapeFacts, render
from service.metrics.metric_list import BY_NAME, METRICS
from service.metrics.metrics import PipelineMetrics

DOCS = Path(__file__).resolve().parents[3] / "docs" / "METRICS.md"
ROW = re.compile(r"^\| `(tidemark_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", re.MULTILINE)
TABLE = SinkTable("public", "one", (Field("n", INT8),), ())


def view(name: str, **facts: Any) -> ViewModel:
    fixed = {
        "query": "",
        "status": "live",
        "kind": "multiset",
        "key": [],
        "fields": [],
        "options": {},
        "group": "default",
        "warnings": [],
        "rows": 3,
        "positions": {},
        "lag_bytes": 0,
        "backfill": None,
        "plan": "",
        "errors": 0,
        "created_at": "",
        "live_at": None,
    }
    return ViewModel.model_validate({"name": name, "schema_name": "public", **fixed, **facts})


def samples(told: ScrapeFacts) -> dict[str, dict[tuple[str, ...], float]]:
    """By metric name the values by label values (labels by name); each series once."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(render(told).decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            known = found.setdefault(sample.name, {})
            assert labels not in known, f"{sample.name}{labels} is there twice"
            known[labels] = sample.value
    return found


def listed(names: set[str]) -> set[str]:
    """The metrics that samples belong to."""
    ends = ("_bucket", "_count", "_sum")
    plain = {n: next((n.removesuffix(e) for e in ends if n.endswith(e)), n) for n in names}
    return {n if n in BY_NAME else plain[n] for n in names}


def figures(folder: Path) -> dict[str, Any]:
    """Of a pipeline that has done one of everything."""
    metrics = PipelineMetrics(folder)
    committed_us = int((time.time() - 0.2) * 1e6)
    metrics.epoch_stepped(SourceBatch(9, [], 1, 2, commit_time_us=committed_us), 0.01)
    rows = Delta.of("i", [(1,), (2,)])
    metrics.epoch_written(
        SinkEpoch(Progress(1, {}), SinkRows([(TABLE, rows)]), commit_time_us=committed_us)
    )
    metrics.evaluated(10, 0.5)
    source = {"status": "running", "lag": 4, "lag_seconds": 0.0, "rows_total": 1}
    more = {"rejected_total": 2, "skipped_total": 3, "gaps_total": 1}
    metrics.sources = {"shop": {**source, **more}}
    metrics.sink_workers = {
        "public.one/topic": {"status": "live", "rows_total": 7, "skipped_total": 1}
    }
    metrics.sink_workers["public.one/topic"]["backlog_bytes"] = 11
    names = ("sink_waiting_epochs", "memory_limit_bytes", "state_disk_bytes", "outbox_bytes")
    names += ("abandoned_threads",)
    copies = ("bytes", "sent_bytes", "seconds", "interval_seconds")
    names += ("checkpoint_at", "checkpoints_total", "checkpoint_failures_total")
    metrics.gauges = dict.fromkeys((*names, *(f"checkpoint_{name}" for name in copies)), 1)
    wal = {"wal_retained_bytes": 1, "wal_kept_bytes": 1, "wal_budget_bytes": 2}
    return {**metrics.snapshot(), **wal}


def told(folder: Path, views: list[ViewModel] | None) -> ScrapeFacts:
    node = {"bytes": 300, "views": ["public.one", "public.two"]}
    seconds = ApiFigures()
    seconds.count(("GET", "/views", "200"), 0.01)
    return ScrapeFacts(
        groups={"default": figures(folder), "slow": None},
        dataflows={"default": {"nodes": [node]}},
        views=views,
        dead_letters={"shop": 5},
        restarts={"pipeline": 2},
        requests=seconds.facts(),
        free_bytes=1,
        version="0",
        sources={("default", "shop"): "stopped"},
    )


def test_every_metric_is_reported_and_documented(tmp_path: Path) -> None:
    building = {"parts_done": 1, "parts_total": 4, "remaining_s": 2.5}
    verified = {"result": "equal", "at": "2026-01-01T00:00:00+00:00"}
    verified |= {"missing": 0, "surplus": 0, "different": 0}
    views = [
        view("one", verification=verified, watermarks={"a.at": "2026-01-01T00:00:00+00:00"}),
        view("two", status="backfilling", backfill=building),
    ]
    found = samples(told(tmp_path, views))
    assert listed(set(found)) == set(BY_NAME)
    documented = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)), text)
        for name, kind, labels, text in ROW.findall(DOCS.read_text())
    ]
    assert sorted(documented) == sorted(METRICS)
    mentioned = set(re.findall(r"`(tidemark_\w+)`", DOCS.read_text()))
    assert mentioned == set(BY_NAME)
    assert all((m.kind == "counter") == m.name.endswith("_total") for m in METRICS)

    assert found["tidemark_pipeline_up"] == {("default",): 1, ("slow",): 0}
    assert found["tidemark_view_state_bytes"] == {("public.one",): 150, ("public.two",): 150}
    assert found["tidemark_view_backfill_ratio"] == {("public.two",): 0.25}
    assert found["tidemark_views"] == {("live",): 1, ("backfilling",): 1}
    assert found["tidemark_view_latency_seconds_bucket"][("0.1", "public.one")] == 0
    assert found["tidemark_view_latency_seconds_bucket"][("1.0", "public.one")] == 1
    assert 0.2 <= found["tidemark_lag_seconds"][("default",)] < 1
    assert found["tidemark_source_lag_bytes"] == {("default", "source"): 0}


def test_a_scrape_reports_what_it_can_without_the_catalog(tmp_path: Path) -> None:
    found = samples(told(tmp_path, None))
    assert found["tidemark_catalog_up"] == {(): 0}
    assert found["tidemark_pipeline_up"][("default",)] == 1
    assert "tidemark_view_live" not in found


def test_series_are_bounded(tmp_path: Path) -> None:
    names = [f"v{n}" for n in range(MAX_VIEWS + 7)]
    found = samples(told(tmp_path, [view(name) for name in names]))
    assert len(found["tidemark_view_live"]) == MAX_VIEWS
    assert found["tidemark_views_unlisted"] == {(): 7}
    assert found["tidemark_views"] == {("live",): MAX_VIEWS + 7}

    counted, app = ApiFigures(), FastAPI()
    app.get("/views/{name}")(lambda name: {})
    app.add_middleware(CountCalls, figures=counted)
    client = TestClient(app)
    for n in range(20):
        client.get(f"/views/v{n}")
        client.get(f"/no/such/{n}")
    client.request("BREW", "/views/v1")
    assert counted.facts()["answered"] == {
        ("GET", "/views/{name}", "200"): 20,
        ("GET", "other", "404"): 20,
        ("other", "/views/{name}", "405"): 1,
    }
