"""The figures of docs/PERFORMANCE.md, from the same records as bench/RESULTS.md.

The page is written by hand, but for its blocks between `<!-- figures: NAME -->` and
`<!-- end of figures -->`: `python -m bench` fills them, so no figure is typed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import tpch_service
from bench.cells import number, rates, table
from bench.peers import titles
from bench.record import Record, read_all
from bench.workloads import EPOCH

HOME = Path(__file__).parent
PAGE = HOME.parent / "docs" / "PERFORMANCE.md"
BLOCK = re.compile(r"(<!-- figures: ([a-z -]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)

Records = Mapping[str, Record]

# Workloads of the engine, as a reader knows them.
QUERIES = {
    "q1": "a projection",
    "q2": "a filter",
    "q3": "a join of two filtered tables",
    "w1": "a join, then count and sum of 40 groups",
    "w2": "a join, max of each group, average of those; append-only",
    "w2r": "the same, with deletes",
}
_SENT = {"default": "new rows", "full": "old and new rows"}
# Queries of TPC-H by what their state consists of.
TPCH_KINDS = {
    "q6": "filter and sum of one table",
    "q1": "sums, averages and counts by group of one table",
    "q3": "join of three tables, sum, first ten",
    "q5": "join of six tables, sum",
    "q4": "EXISTS, count",
    "q13": "outer join, count of counts",
    "q17": "join with an average of its own groups",
    "q18": "IN over sums, first hundred",
    "q21": "EXISTS and NOT EXISTS over the same table",
}
# Also compared by bench.beside_flink.
TIME_KINDS = {
    "tumbling, 1 minute": "tumbling window, counts",
    "Nexmark q5": "hopping window, largest count",
    "Nexmark q7": "join with the largest of each window",
    "as-of join": "as-of join",
    "interval join, 2 seconds": "interval join",
    "sessions, gap of 30 minutes": "sessions",
}


def fill(text: str, records: Sequence[Record]) -> str:
    """Return the page's text with its blocks written again; ValueError for an unknown name."""
    by_name = {record.name: record for record in records}

    def block(found: re.Match[str]) -> str:
        if found[2] not in BLOCKS:
            raise ValueError(f"no figures are called {found[2]!r}")
        return found[1] + "\n".join(BLOCKS[found[2]](by_name)) + "\n" + found[3]

    return BLOCK.sub(block, text)


def write(page: Path = PAGE) -> None:
    """Fill the page's blocks from the stored records."""
    page.write_text(fill(page.read_text(), read_all()))


def _throughput(records: Records) -> list[str]:
    """The engine alone, by query, replica identity and size of epochs."""
    rows = []
    for part, title in QUERIES.items():
        record = records.get(f"{part}-ours")
        for identity, figures in record.figures.items() if record else ():
            for size, stage in figures["stages"].items():
                rate, rate_cpu = rates(stage)
                spread = [f"{stage[name]:.2f}" for name in ("p50_ms", "p99_ms")]
                cells = [f"{int(size):,}", number(rate), number(1e6 / rate_cpu), *spread]
                rows.append([title, _SENT[identity], *cells])
    names = ("view", "the source sends", "changes an epoch", "changes/s", "CPU µs a change")
    lines = table((*names, "an epoch takes, p50 ms", "p99 ms"), rows)
    return [*lines, "", _when(records, [f"{part}-ours" for part in QUERIES])]


def _windows(_: Records) -> list[str]:
    """Windows of time, and joins by order."""
    found, joins = _read("windows"), _read("ordered_joins")
    rows = []
    for name, one in found["queries"].items():
        cells = [f"{one['epoch_us'][size]:.1f}" for size in ("10000", "1000")]
        rows.append([name, *cells, f"{one['one_ms']:.2f}"])
    for name, one in joins["joins"].items():
        rows.append([name, "", f"{one['trades_1000_us']:.0f}", f"{one['trades_1_us'] / 1e3:.2f}"])
    names = ("view", "CPU µs a row, epochs of 10,000", "of 1,000", "one row alone, CPU ms")
    return [
        *table(names, rows),
        "",
        f"{found['rows']:,} events of {found['users']:,} users, by `python -m bench.windows` "
        f"({found['date']}, {found['revision']}); {joins['rows']:,} trades and as many ticks, by "
        f"`python -m bench.ordered_joins` ({joins['date']}, {joins['revision']}).",
    ]


def _tpch(_: Records) -> list[str]:
    """The cheapest, the middle and the most expensive of TPC-H's queries, and all of them in one
    service."""
    found, together = _read("tpch"), _read("tpch_service")
    costs = sorted((us, name) for name, us in found["change_s"].items() if name in found["query_s"])
    costs = [(s * 1e6, name) for s, name in costs if re.fullmatch(r"q\d+", name)]
    (least, cheap), (middle, median), (most, dear) = costs[0], costs[len(costs) // 2], costs[-1]
    alone, kinds = together["singles"], tpch_service.by_kind(together["refreshes"])
    slowest = max(kinds.values(), key=lambda each: each["visible_s"])
    cost = max(each["cpu_s"] / each["changes"] * 1e6 for each in kinds.values())
    return [
        f"TPC-H at scale {found['scale']}, {found['changes'] // found['refreshes']:,} changes an "
        f"epoch, each view for itself: from {least:.1f} CPU µs a change ({cheap}) over "
        f"{middle:.1f} ({median}, the median) to {most:.1f} ({dear}), pages read again included. "
        f"By `python -m bench.tpch`, {found['date']}.",
        "",
        f"All {together['views']} views in one service at scale {together['scale']}: all live "
        f"after {together['live_s']:.0f} s; a transaction of up to "
        f"{max(each['changes'] for each in kinds.values()):,.0f} changes is in all of them after "
        f"at most {slowest['visible_s']:.1f} s and takes at most {cost:.0f} CPU µs a change, a "
        f"changed line of an order is visible after {alone['p50_ms']:.0f} ms (p50) or "
        f"{alone['p99_ms']:.0f} ms (p99). The pipeline has at most {together['peak_mb']:,.0f} MB. "
        f"By `python -m bench.tpch_service`, {together['date']}.",
    ]


def _many_views(_: Records) -> list[str]:
    """Many views in one pipeline."""
    found = _read("many_views")
    return [
        f"{found['views']} views over {found['tables']} tables in one pipeline, "
        f"{found['rate']:,} single-row transactions a second: visible after "
        f"{found['p50_ms']:.1f} ms (p50), {found['p99_ms']:.1f} ms (p99); "
        f"{found['cpu_ms']:.2f} ms of CPU a change and {found['rss_mb']:,.0f} MB. "
        f"By `python -m bench.many_views`, {found['date']}.",
    ]


def _freshness(records: Records) -> list[str]:
    """From the commit at the source until the row is there."""
    rows = []
    path = records.get("path-service")
    if path is not None:
        by_rate: dict[str, dict[str, float]] = {}
        for one in path.figures["rows"]:
            if one["group"].startswith("commit to visible, "):
                rate = one["group"].split(", ", 1)[1]
                by_rate.setdefault(rate, {})[one["what"]] = one["value"]
        rows += [
            ["PostgreSQL", "table", rate, *(f"{spread[p]:.1f}" for p in ("p50", "p99"))]
            for rate, spread in by_rate.items()
        ]
    subscribe = records.get("subscribe-service")
    for one in subscribe.figures["latency"] if subscribe else ():
        spread = [f"{one['event'][name]:.1f}" for name in ("p50_ms", "p99_ms")]
        rate = f"{subscribe.sizes['rate']} changes/s" if subscribe else ""
        rows.append(["PostgreSQL", f"events, {one['readers']} readers", rate, *spread])
    topic = records.get("kafka-path-service")
    if topic is not None and not topic.missing:
        rows += _topic_waits(topic)
    names = ("path-service", "subscribe-service", "kafka-path-service")
    lines = table(("source", "seen in", "at", "p50 ms", "p99 ms"), rows)
    return [*lines, "", _when(records, names)]


def _topic_waits(record: Record) -> Iterator[list[str]]:
    """The waits of views over a topic, by what they compute and where they are read."""
    for view, figures in record.figures["views"].items():
        for rate in record.sizes["rates"]:
            found = figures[f"latency {rate}"]
            for where, spread in (("table", found), ("topic", found.get("topic"))):
                if spread:
                    times = [f"{spread[name]:.1f}" for name in ("p50_ms", "p99_ms")]
                    yield [f"Kafka, {view}", where, f"{rate:,} records/s", *times]


def _path(records: Records) -> list[str]:
    """Source to sink: what the whole service sustains, and how fast a view is built."""
    path = records.get("path-service")
    if path is None:
        return ["Not measured yet."]
    rows = []
    for one in path.figures["rows"]:
        if one["group"] in ("snapshot", "path", "memory"):
            beside = f"{one['peer']}: {number(one['peer_value'])}" if one["peer"] else ""
            rows.append([one["what"], number(one["value"], one["unit"]), beside])
    return [*table(("", "ours", "beside"), rows), "", _when(records, ["path-service"])]


def _memory(records: Records) -> list[str]:
    """Memory and cost as the state grows, with all of it in memory and with a cap."""
    sized = [(int(r.runner), r) for r in records.values() if r.part in ("growth", "memory")]
    grown = sorted(sized, key=lambda one: one[0])
    rows = []
    for orders, record in grown:
        figures = record.figures
        _, rate_cpu = rates(figures["stages"][1])
        spread = [f"{figures['stages'][2][name]:.2f}" for name in ("p50_ms", "p99_ms")]
        given = f"{figures['memory_mb']:,} MB"
        cells = [number(figures["peak_rss_mb"]), number(1e6 / rate_cpu), *spread]
        rows.append([f"{orders:,}", given, *cells])
    names = ("orders", "memory given", "peak MB of the engine", "CPU µs a change")
    lines = table((*names, "one change, p50 ms", "p99 ms"), rows)
    growth = [(orders, r.figures) for orders, r in grown if r.part == "growth"]
    if len(growth) > 1:
        (few, small), (many, large) = growth[0], growth[-1]
        bytes_a_row = (large["peak_rss_mb"] - small["peak_rss_mb"]) * 2**20 / (many - few)
        lines += ["", f"A further order takes {bytes_a_row:.0f} bytes of memory where all fits."]
    return [*lines, "", _when(records, [r.name for _, r in grown])]


def _disk(records: Records) -> list[str]:
    """Bytes of the state on disk, by kind of view."""
    estimate, time = _read("estimate"), records.get("time-ours")
    rows = []
    for name, kind in TPCH_KINDS.items():
        view = estimate["views"][name]
        read, found = view["estimated"]["read"], view["true"]
        per_row = (found["state_bytes"] / read, found["kept"] / read)
        rows.append([kind, f"TPC-H {name}", f"{per_row[0]:.0f}", f"{per_row[1]:.1f}"])
    if time is not None:
        for name, kind in TIME_KINDS.items():
            found = time.figures["queries"][name]
            rows.append([kind, name, f"{found['state_bytes'] / found['rows']:.0f}", ""])
    names = ("view", "measured with", "bytes on disk a source row", "rows stored a source row")
    lines = table(names, rows)
    note = f"TPC-H by `python -m bench.estimate` ({estimate['date']}, {estimate['revision']})."
    return [*lines, "", f"{note} The others: {_when(records, ['time-ours'])}"]


def _peers(records: Records) -> list[str]:
    """Ours beside each peer: how many times its cost, below 1 where the peer is better."""
    rows = []
    for part in ("w1", "w2", "w2r", "q1", "q2", "q3"):
        ours = records.get(f"{part}-ours")
        for runner in titles.PEERS:
            record = records.get(f"{part}-{runner}")
            if record is None or ours is None or record.missing:
                continue
            name = titles.title(runner, record.figures)
            for about, theirs, mine in _pairs(runner, record.figures, ours.figures):
                rows.append([part.upper(), name + about, *_ratios(theirs, mine)])
    names = [r.name for r in records.values() if r.part in QUERIES]
    lines = table(("workload", "beside", "changes/s: ours / its", "CPU: its / ours", ""), rows)
    return [*lines, "", _when(records, names)]


def _pairs(
    runner: str, theirs: Mapping[str, Any], ours: dict[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield (what distinguishes it, a peer's counted changes, ours); none with a wrong answer."""
    if "runs" not in theirs:
        mine = titles.reference(runner, ours)["stages"].get(str(EPOCH))
        if mine and theirs["fault"] is None:
            yield "", theirs, mine
        return
    for identity, run in theirs["runs"].items():
        for size, stage in run["stages"].items():
            mine = ours[identity]["stages"].get(size)
            if mine and run["fault"] is None:
                about = f", {titles.IDENTITIES[identity]}, epochs of {int(size):,}"
                yield about, stage, mine


def _ratios(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    (rate, rate_cpu), (my_rate, my_rate_cpu) = rates(dict(theirs)), rates(dict(mine))
    ratio, ratio_cpu = my_rate / rate, my_rate_cpu / rate_cpu
    verdict = "**behind**" if ratio_cpu < 1 else "behind by the clock" if ratio < 1 else ""
    return [f"{ratio:.2f}", f"{ratio_cpu:.2f}", verdict]


def _bounds(records: Records) -> list[str]:
    """What one process is bounded by."""
    found = _read("exchange")["epochs"]
    rows = []
    for epoch in found:
        bound = epoch["bound"]
        rows.append([f"{bound['changes']:,}", f"{bound['one_us']:.2f}", f"{bound['gain']:.2f}"])
    lines = table(("changes an epoch", "CPU µs a change", "gain of two workers at most"), rows)
    sized = [(int(r.runner), r.figures) for r in records.values() if r.part == "growth"]
    grown = sorted(sized, key=lambda one: one[0])
    if grown:
        costs = [1 / rates(figures["stages"][1])[1] for _, figures in grown]
        lines += [
            "",
            f"From {grown[0][0]:,} to {grown[-1][0]:,} orders the CPU time of a change grows "
            f"{costs[-1] / costs[0]:.1f} times.",
        ]
    path = records.get("path-service")
    for one in path.figures["rows"] if path else ():
        if one["what"] == "source, service running":
            lines += [
                "",
                f"PostgreSQL alone took {number(one['peer_value'])} changes/s of the benchmark's "
                f"writer, and {number(one['value'])} while it also sent them to Tidemark.",
            ]
    return lines


def _commands(records: Records) -> list[str]:
    """The command that measures each record again, and how long it last took."""
    by_part: dict[str, list[Record]] = {}
    for record in records.values():
        by_part.setdefault(record.part, []).append(record)
    rows = []
    for part, found in by_part.items():
        command = COMMANDS.get(part, f"python -m bench --only {part}")
        minutes = sum(record.seconds for record in found) / 60
        dates = sorted({f"{record.date[:10]}, {record.revision}" for record in found})
        rows.append([f"`{command}`", f"{max(minutes, 0.1):.1f}", "; ".join(dates)])
    for path in sorted(HOME.glob("*.json")):
        single = _read(path.stem)
        command = COMMANDS.get(path.stem, f"python -m bench.{path.stem}")
        minutes = f"{single['elapsed_s'] / 60:.1f}" if "elapsed_s" in single else ""
        known = [single[name] for name in ("date", "revision") if name in single]
        rows.append([f"`{command}`", minutes, ", ".join(known) or "not noted"])
    return table(("command", "minutes", "measured, at revision"), rows)


def _read(module: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HOME / f"{module}.json").read_text())
    return found


def _when(records: Records, names: Sequence[str]) -> str:
    """Return when, at which revision and under which other load records were measured."""
    found = [records[name] for name in names if name in records]
    if not found:
        return "Not measured yet."
    dates = sorted({f"{r.date[:10]} at {r.revision}" for r in found})
    busiest = max(r.other_cores for r in found)
    return f"Measured {', '.join(dates)}; other programs used at most {busiest:.1f} cores."


# By part or name of the record; else `python -m bench --only PART` or `python -m bench.NAME`.
COMMANDS = {
    "time": "python -m bench.beside_flink",
    "generated_queries": "make queries",
    "generated_temporal_queries": "make queries TEMPORAL=1",
}
BLOCKS: dict[str, Callable[[Records], list[str]]] = {
    "throughput": _throughput,
    "windows": _windows,
    "many views": _many_views,
    "tpch": _tpch,
    "freshness": _freshness,
    "path": _path,
    "memory": _memory,
    "disk": _disk,
    "peers": _peers,
    "bounds": _bounds,
    "commands": _commands,
}
