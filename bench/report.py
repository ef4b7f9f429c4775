"""The page of results, made of the records alone: each table says when each row was measured.

It must never show a figure without its date, its revision and what else the machine did, nor
compare two rows of different revisions without saying so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import (
    engine_refresh,
    estimate,
    fire_record,
    generated,
    history,
    ordered_joins,
    report_parts,
    sandbox,
    single_records,
    ticks,
    tpch,
    windows,
)
from bench.aims import LEAST_CHANGES_S, LEAST_LOAD_ROWS_S, LEAST_RATIOS, at_least
from bench.cells import answer, measured, number, rates, table
from bench.record import RESULTS, Record, read_all
from bench.workloads import EPOCH, WORKLOADS, Workload

PAGE = Path(__file__).parent / "RESULTS.md"
LESSONS = Path(__file__).parent / "lessons.md"
_IDENTITIES = {"full": "old rows sent whole", "default": "default identity, old rows kept by us"}
_PEERS = {
    "dictionaries": "plain Python dictionaries, nothing durable",
    "pathway": "Pathway {version}, {threads} thread(s)",
    "flink-hashmap": "Flink {version}, hashmap, nothing durable",
    "flink-rocksdb": "Flink {version}, RocksDB, mini-batch, no checkpoints",
    "flink-rocksdb-checkpoints": "Flink {version}, RocksDB, a checkpoint each 10 s",
}


def write(page: Path = PAGE, folder: Path = RESULTS) -> str:
    """Write the page; its text."""
    text = compose(read_all(folder))
    page.write_text(text)
    return text


def compose(records: Sequence[Record]) -> str:
    """The page's text."""
    newest = max(records, key=lambda r: r.date).revision if records else ""
    lines = ["# Measured", "", *_preamble(records, newest)]
    by_part: dict[str, list[Record]] = {}
    for record in records:
        by_part.setdefault(record.part, []).append(record)
    for workload in WORKLOADS.values():
        if workload.name in by_part:
            lines += ["", *_stream(workload, by_part[workload.name], newest)]
    for part, section in report_parts.SECTIONS.items():
        if part in by_part:
            lines += ["", *section(by_part[part], newest)]
    lines += single_records.topics() + single_records.exchange()
    lines += tpch.section() + estimate.section() + generated.section()
    lines += ordered_joins.section() + engine_refresh.section() + sandbox.section()
    lines += history.section() + ticks.section() + windows.section()
    lines += fire_record.section()
    if LESSONS.exists():
        lines += ["", LESSONS.read_text().rstrip()]
    return "\n".join(lines) + "\n"


def _preamble(records: Sequence[Record], newest: str) -> list[str]:
    machines = sorted({r.machine for r in records})
    newest_revision = newest or "none yet"
    return [
        "Written by `python -m bench` from the records in bench/results, one a part and runner; a "
        "part is measured anew by `python -m bench --only PART,RUNNER`, and `--show` says how many "
        "commits ago each was.",
        "",
        *machines,
        "",
        f"The newest record is of revision {newest_revision}; one of another revision is marked "
        "**older**. `others` is how many cores other programs kept busy meanwhile: above 0.2, wall "
        "times say little and CPU times are to be read (column `ratio, CPU`). A ratio above "
        "1 is in our favour. All runners had the same generated rows; answers were compared with "
        "DuckDB's (Flink's in a small run before, since its big one drops what comes out). "
        "Ours is durable: one commit to RocksDB's log an epoch, without fsync. Flink's times have "
        "the reading of its files in them and Pathway's its Python connector; ours is handed "
        "columns, as our decoder makes them (the whole path below has the decoder in it).",
    ]


_TITLES = (
    *("runner", "changes/s", "CPU µs a change", "loaded rows/s", "peak MB", "answer"),
    *("ratio", "ratio, CPU", "aim", "", "measured"),
)


def _stream(workload: Workload, records: list[Record], newest: str) -> list[str]:
    """One workload: ours, then each peer with its ratios."""
    ours = next((r for r in records if r.runner == "ours"), None)
    lines = [
        f"## {workload.name.upper()}",
        "",
        f"{workload.title}. {_sizes(workload, records)}",
        "",
    ]
    rows: list[Sequence[str]] = []
    if ours is not None:
        for identity, figures in ours.figures.items():
            rows += _our_rows(workload, identity, figures, measured(ours, newest))
    for record in records:
        if record.runner in _PEERS:
            rows.append(_peer_row(workload, record, ours, newest))
    return lines + table(_TITLES, rows)


def _sizes(workload: Workload, records: list[Record]) -> str:
    sizes = records[0].sizes
    if workload.rows == "orders":
        return (
            f"{sizes['customers']:,} customers, {sizes['orders']:,} orders, "
            f"{sizes['changes']:,} changes; in epochs of {EPOCH:,} unless it says otherwise."
        )
    count = sizes["people"] if workload.rows == "people" else sizes["bids"]
    return f"{count:,} {'events' if workload.rows == 'people' else 'bids'}; epochs of {EPOCH:,}."


def _our_rows(
    workload: Workload, identity: str, figures: dict[str, Any], when: str
) -> list[list[str]]:
    rows = []
    reported = f", {_IDENTITIES[identity]}" if workload.has_old_rows else ""
    loaded = figures["load_rows"] / figures["load_s"] if figures["load_rows"] else None
    for size, stage in figures["stages"].items():
        rate, rate_cpu = rates(stage)
        is_main = int(size) == EPOCH
        name = f"ours{reported}" + ("" if is_main else f", epochs of {int(size):,}")
        judged = at_least(LEAST_CHANGES_S.get((workload.name, identity, int(size))), rate, rate_cpu)
        rows.append(
            [
                f"**{name}**" if is_main else name,
                number(rate),
                number(1e6 / rate_cpu),
                number(loaded) if is_main else "",
                number(figures["peak_rss_mb"]) if is_main else "",
                answer(figures["fault"]),
                *("", "", judged.aim, judged.verdict, when),
            ]
        )
    least = LEAST_LOAD_ROWS_S.get(workload.name)
    if least and loaded:
        judged = at_least(least, loaded, figures["load_rows"] / figures["load_cpu_s"], " rows/s")
        name = f"ours{reported}, the snapshot in process"
        aim = ("", "", judged.aim, judged.verdict, when)
        rows.append([name, "", "", number(loaded), "", "", *aim])
    return rows


def _peer_row(
    workload: Workload, record: Record, ours: Record | None, newest: str
) -> Sequence[str]:
    figures, when = record.figures, measured(record, newest)
    if record.missing is not None:
        return [record.runner, f"not measured: {record.missing}", *[""] * 8, when]
    rate, rate_cpu = rates(figures)
    ratio = ratio_cpu = None
    judged = at_least(None, 0)
    if ours is not None:
        mine = reference(record.runner, ours.figures)["stages"].get(str(EPOCH))
        if mine is not None:
            my_rate, my_rate_cpu = rates(mine)
            ratio, ratio_cpu = my_rate / rate, my_rate_cpu / rate_cpu
            least = LEAST_RATIOS.get((workload.name, record.runner))
            judged = at_least(least, ratio, ratio_cpu, "x")
    shown = {"version": "", "threads": "", **figures}
    loaded = figures["load_rows"] / figures["load_s"] if figures["load_rows"] else None
    return [
        _PEERS[record.runner].format(**shown),
        number(rate),
        number(1e6 / rate_cpu),
        number(loaded),
        number(figures["peak_rss_mb"]),
        answer(figures["fault"]),
        *(number(ratio), number(ratio_cpu), judged.aim, judged.verdict, when),
    ]


def reference(runner: str, ours: dict[str, Any]) -> dict[str, Any]:
    """Our run that a peer is held against: old rows come whole to both, or to neither."""
    if runner == "dictionaries":
        return ours["default"]
    return ours.get("full", ours["default"])
