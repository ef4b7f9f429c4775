"""Oracle: files with a known number of lines that are no rows."""

from __future__ import annotations

import threading
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from service.api.prometheus import ScrapeFacts, render
from service.engine.positions import Positions
from service.ingest.external_sources import ExternalSources
from service.metrics.metrics import PipelineMetrics
from storage.memory import MemoryStore
from tests.connectors.files.source_mirror import make_source

FAST = {"settle_ms": 0, "poll_interval_ms": 10}
WAIT_S = 30.0


def test_skipped_records_are_counted_across_feeds(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    columns = [{"name": "id", "type": "int8"}]
    relation = {"path": f"{folder}/*.jsonl", "columns": columns, "on_error": "skip"}
    source = make_source({**FAST, "relations": {"t": relation}})
    declared = source.relations()[0]
    positions, ready = Positions(MemoryStore(), "source"), threading.Event()
    positions.begin("in", {"t": source.start_position(declared)})
    feeds = ExternalSources(lambda name: source, positions, ready.set)
    feeds.open([(declared, [0])])

    def read(rows: int) -> None:
        while feeds.statuses()["in"].rows < rows:
            ready.clear()
            batch = feeds.poll(100, {})
            if batch is None:
                assert ready.wait(WAIT_S)
            else:
                positions.pass_over(batch, positions.epoch + 1)

    (folder / "a.jsonl").write_text('{"id": 1}\n{"id": "x"}\nno row\n')
    read(1)
    assert feeds.statuses()["in"].facts()["skipped_total"] == 2
    feeds.declared_again({"in"})
    assert feeds.statuses()["in"].skipped == 2
    (folder / "b.jsonl").write_text('no row\n{"id": 2}\n')
    read(2)
    facts = feeds.statuses()["in"].facts()
    feeds.close()
    assert (facts["skipped_total"], facts["rejected_total"]) == (3, 0)
    metrics = PipelineMetrics(tmp_path)
    metrics.sources = {"in": facts}
    text = render(ScrapeFacts({"main": metrics.snapshot()})).decode()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("source") == "in"
    }
    told = {name: found[f"tidemark_source_{name}_total"] for name in ("skipped", "records")}
    assert told == {"skipped": 3, "records": 2}
