"""Sections of the page besides streams: a single change, growth, memory, source to sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from bench import aims, beside_flink
from bench.aims import Judged, at_least, at_most
from bench.cells import answer, measured, number, rates, table
from bench.growth import COUNTED, SINGLE
from bench.record import Record

Section = Callable[[Sequence[Record], str], list[str]]


def single_changes(by_part: Mapping[str, Sequence[Record]], newest: str) -> list[str]:
    """Return the section on p50 and p99 of one change, from the runs of the workloads."""
    rows = []
    for part in ("w1", "w2r"):
        for record in by_part.get(part, ()):
            when = measured(record, newest)
            for runner, stage in _singles(record):
                is_judged = part == "w1" and record.runner == "ours"
                for name in ("p50", "p99"):
                    value = stage[f"{name}_ms"]
                    judged = at_most(aims.MAX_SINGLE_MS[name] if is_judged else None, value, " ms")
                    cells = [f"{value:.2f} ms", judged.aim, judged.verdict, when]
                    rows.append([part.upper(), runner, name, *cells])
    if not rows:
        return []
    titles = ("one change, engine alone", "", "", "takes", "aim", "", "measured")
    return ["", "## A single change", "", *table(titles, rows)]


def _singles(record: Record) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield who took single changes, and the percentiles; nothing for a peer that took none."""
    figures = record.figures
    if record.missing:
        return
    if record.runner == "ours":
        runs, about = figures, "ours, {} identity, durable"
    elif record.runner == "dbsp":
        runs, about = figures["runs"], "dbsp, {} identity, not durable"
    else:
        if record.runner == "pathway" and figures["p50_ms"] is not None:
            yield "Pathway, not durable", figures
        return
    for identity, run in runs.items():
        if run["fault"] is None and "1" in run["stages"]:
            yield about.format(identity), run["stages"]["1"]


def _growth(records: Sequence[Record], newest: str) -> list[str]:
    """The cost of a change as the state grows."""
    ordered = sorted(records, key=lambda r: int(r.runner))
    rows, wall, cpu = [], [], []
    for record in ordered:
        figures = record.figures
        counted, single = figures["stages"][COUNTED], figures["stages"][SINGLE]
        rate, rate_cpu = rates(counted)
        wall.append(1e6 / rate)
        cpu.append(1e6 / rate_cpu)
        rows.append(
            [
                f"{int(record.runner):,}",
                number(figures["load_rows"] / figures["load_s"]),
                f"{wall[-1]:.2f}",
                f"{cpu[-1]:.2f}",
                f"{single['p50_ms']:.2f}",
                f"{single['p99_ms']:.2f}",
                number(figures["peak_rss_mb"]),
                answer(figures["fault"]),
                measured(record, newest),
            ]
        )
    grown, grown_cpu = wall[-1] / wall[0], cpu[-1] / cpu[0]
    # A ratio that is to stay small: by CPU when the wall says otherwise on a busy machine.
    judged = at_most(aims.MAX_GROWTH, grown)
    if judged.verdict == aims.NOT_MET and grown_cpu <= aims.MAX_GROWTH:
        judged = Judged(judged.aim, aims.BY_CPU)
    titles = (
        *("orders", "loaded rows/s", "µs a change", "CPU µs", "one change, p50 ms", "p99 ms"),
        *("peak MB", "answer", "measured"),
    )
    return [
        "## Growth",
        "",
        "W1 with all pages in memory, epochs of 10,000 changes, default identity. From "
        f"{ordered[0].runner} to {ordered[-1].runner} orders a change costs {grown:.2f} times "
        f"({grown_cpu:.2f} by CPU time); aim {judged.aim}: {judged.verdict}.",
        "",
        *table(titles, rows),
    ]


def _memory(records: Sequence[Record], newest: str) -> list[str]:
    """W1 with little memory."""
    rows = []
    for record in records:
        figures = record.figures
        rate, rate_cpu = rates(figures["stages"][COUNTED])
        judged = at_most(aims.MAX_MEMORY_MB, figures["peak_rss_mb"], " MB")
        rows.append(
            [
                f"{int(record.runner):,}",
                f"{figures['memory_mb']} MB",
                number(figures["peak_rss_mb"]),
                number(rate),
                number(1e6 / rate_cpu),
                answer(figures["fault"]),
                *(judged.aim, judged.verdict, measured(record, newest)),
            ]
        )
    titles = ("orders of W1", "memory given", "peak MB of the whole engine process", "changes/s")
    titles = (*titles, "CPU µs a change", "answer", "aim", "", "measured")
    return ["## Memory of the engine", "", *table(titles, rows)]


def _sharing(records: Sequence[Record], newest: str) -> list[str]:
    """Views that share computation."""
    record = records[0]
    lines = [
        "## Sharing",
        "",
        f"Ten views over {record.sizes['orders']:,} orders, together in one dataflow and each by "
        f"itself, alternating in one run; CPU time. Measured {measured(record, newest)}.",
    ]
    for reported in record.figures.values():
        lines += ["", reported[0], "", *reported[1:]]
    return lines


def _cap(records: Sequence[Record], newest: str) -> list[str]:
    """The service under --memory."""
    record = records[0]
    cap = record.figures["cap_mb"]
    rows = []
    for step in record.figures["steps"]:
        judged = at_most(cap, step["peak_mb"], " MB")
        right = "right" if step["is_equal"] else "**wrong**"
        peak = number(step["peak_mb"])
        rows.append(
            [step["step"], f"{step['seconds']:.1f} s", peak, right, judged.aim, judged.verdict]
        )
    return [
        "## Memory of the service",
        "",
        f"The pipeline's process under `--memory {cap}`, limited {record.figures['held_by']}: "
        "the peak so far after each step, and every "
        f"view compared with PostgreSQL's answer. Measured {measured(record, newest)}.",
        "",
        *table(("step", "until visible", "peak MB", "answer", "aim", ""), rows),
    ]


def _path(records: Sequence[Record], newest: str) -> list[str]:
    """Source to sink through the real service."""
    record = records[0]
    rows = []
    for figure in record.figures["rows"]:
        value, peer = figure["value"], figure["peer_value"]
        ratio = None
        if peer and value:
            ratio = value / peer if figure["more_is_better"] else peer / value
        judged = _judge(figure["group"], figure["what"], figure["peer"], value, ratio)
        rows.append(
            [
                figure["group"],
                figure["what"],
                number(value, figure["unit"]),
                figure["peer"],
                number(peer),
                f"{ratio:.2g}" if ratio else "",
                *(judged.aim, judged.verdict),
            ]
        )
    titles = ("part", "figure", "ours", "peer", "its", "ratio", "aim", "")
    return [
        "## Source to sink",
        "",
        "The real service between two databases of one PostgreSQL server on this machine. Measured "
        f"{measured(record, newest)}.",
        "",
        *table(titles, rows),
    ]


def _judge(group: str, what: str, peer: str, value: float, ratio: float | None) -> Judged:
    if group.startswith("commit to visible") and peer.startswith("row trigger"):
        rate = int(group.split(",", 1)[1].split(" changes")[0].replace(",", ""))
        if rate in aims.VISIBLE_RATES:
            return at_most(aims.MAX_VISIBLE_MS[what], value, " ms")
    if what == "sustained to visible" and peer == "source, service running" and ratio:
        return at_least(aims.LEAST_SUSTAINED, ratio, unit=" of the source's")
    if what == "the pipeline's CPU meanwhile":
        return at_most(aims.MAX_CORES, value, " core")
    return Judged()


def _formats(records: Sequence[Record], newest: str) -> list[str]:
    """Decoding of records into columns."""
    record = records[0]
    rows = []
    sizes: list[str] = []
    for name, found in record.figures.items():
        *few, many = found["cpu_us"].items()
        sizes = [f"CPU µs a record, {size} at once" for size, _ in few]
        rate = 1e6 / many[1]
        judged = at_least(aims.LEAST_RECORDS_S.get(name), rate)
        cells = [f"{cpu_us:.1f}" for _, cpu_us in few]
        rows.append(
            [name, f"{found['record_bytes']:.0f}", number(rate), judged.aim, judged.verdict, *cells]
        )
    titles = ("format", "bytes a record", "records/s of CPU time, 10,000 at once", "aim", "")
    return [
        "## Record formats",
        "",
        "Nine fields (integers, a decimal, a float, a boolean, texts, a time, a date) from bytes "
        "to typed columns, one thread, by CPU time. The two last rows do less: their decimals, "
        "times and dates are still texts, and nothing is checked. "
        f"Measured {measured(record, newest)}.",
        "",
        *table((*titles, *sizes), rows),
    ]


def _kafka(records: Sequence[Record], newest: str) -> list[str]:
    """Records a second of Kafka clients, and of ours with its decoding."""
    rows = []
    for record in records:
        when = measured(record, newest)
        if record.missing:
            rows.append([record.runner, record.missing, "", "", "", when])
        for thing in ("read", "write"):
            figures = record.figures.get(thing)
            if figures:
                wall = figures["records"] / figures["wall_s"]
                cells = [number(wall), f"{1e6 * figures['cpu_s'] / figures['records']:.2f}"]
                peak = number(figures["peak_rss_mb"])
                rows.append([record.runner, _KAFKA_WORDS[thing], *cells, peak, when])
    lines = ["## Clients of Kafka", "", _KAFKA_NOTE, "", *table(_KAFKA_TITLES, rows)]
    for record in records:
        single = record.figures.get("single")
        if single:
            reported = f"p50 {single['p50_ms']:.2f} ms, p99 {single['p99_ms']:.2f} ms"
            lines += ["", f"One record at a time, from produce to its row in the feed: {reported}."]
    return lines


_KAFKA_TITLES = ("client", "", "records/s", "CPU µs a record", "peak MB", "measured")
_KAFKA_WORDS = {"read": "reads", "write": "writes"}
_KAFKA_NOTE = (
    "JSON records of about 200 bytes, one partition, a broker of our own on the same machine. "
    "`ours` is the feed of a source: it reads by confluent-kafka and decodes eight columns."
)


def _kafka_path(records: Sequence[Record], newest: str) -> list[str]:
    """From a topic through views into their tables, and into a topic."""
    record = records[0]
    lines = ["## From a topic through a view", "", _PATH_NOTE, ""]
    if record.missing:
        return [*lines, record.missing]
    rows = [[name, "", *_work(timed)] for name, timed in record.figures["floors"].items()]
    waits = []
    for view, figures in record.figures["views"].items():
        is_fed = any("topic" in one for one in figures.values() if isinstance(one, dict))
        least = aims.LEAST_TOPIC_DELTAS_S if is_fed else aims.LEAST_TOPIC_RECORDS_S
        rows.append([view, "backfill, local", *_work(figures["backfill"])])
        reported = "streamed, and into a topic" if is_fed else "streamed"
        rows.append([view, reported, *_work(figures["stream"], least)])
        for rate in record.sizes["rates"]:
            found = figures[f"latency {rate}"]
            core = f"{found['cpu_s'] / record.sizes['seconds']:.2f}"
            for where, spread in (("table", found), ("topic", found.get("topic"))):
                if spread:
                    times = [f"{spread[p]:.1f} ms" for p in ("p50_ms", "p99_ms")]
                    waits.append([view, f"{rate:,}", where, *times, core])
    idle = max(figures["idle_cores"] for figures in record.figures["views"].values())
    return [
        *lines,
        *table(("", "", "records/s of CPU time", "aim", "", "records/s by the clock"), rows),
        "",
        *table(("view", "records/s", "seen in its", "p50", "p99", "cores"), waits),
        "",
        f"With an idle topic: {100 * idle:.1f} % of a core at most. "
        f"Measured {measured(record, newest)}.",
    ]


def _work(timed: dict[str, float], least: float | None = None) -> list[str]:
    """Records a second of CPU, the aim and its verdict, and records a second of wall time."""
    by_cpu = timed["records"] / max(timed["cpu_s"], 0.01)
    judged = at_least(least, by_cpu)
    by_clock = timed["records"] / max(timed["wall_s"], 0.01)
    return [number(by_cpu), judged.aim, judged.verdict, number(by_clock)]


_PATH_NOTE = (
    "JSON records of about 200 bytes and nine fields, one partition, all columns decoded and "
    "checked; the filter lets a twelfth pass. CPU time is that of the pipeline with its children; "
    "a backfill starts a process, about a second of it. Streamed records are written meanwhile by "
    "the benchmark, so wall times include its producer. Views go to tables in PostgreSQL; waits "
    "begin when a record is passed to the producer."
)


def _subscribe(records: Sequence[Record], newest: str) -> list[str]:
    """Commit to event, and the cost of a change log."""
    record = records[0]
    sizes, waits = record.sizes, []
    for found in record.figures["latency"]:
        for name, what in _SUBSCRIBE_WORDS.items():
            spread, table_ms = found[name], found["table"]["p50_ms"]
            times = [f"{spread[p]:.2f} ms" for p in ("p50_ms", "p99_ms")]
            beside = "" if name == "table" else f"{spread['p50_ms'] - table_ms:+.2f} ms"
            api = f"{found['cores']['api']:.2f}" if name == "event" else ""
            waits.append([f"{found['readers']}", what, *times, beside, api])
    rates_by = {}
    for has_log in (False, True):
        runs = [rates(r) for r in record.figures["log"] if r["has_log"] == has_log]
        rates_by[has_log] = [median(r) for r in zip(*runs, strict=True)]
    costs = [
        [f"**{'with' if has_log else 'without'}** a log", number(rate), f"{1e6 / by_cpu:.2f}"]
        for has_log, (rate, by_cpu) in rates_by.items()
    ]
    (rate, by_cpu), (logged, logged_by_cpu) = rates_by[False], rates_by[True]
    costs.append(["with / without", f"{logged / rate:.3f}", f"{by_cpu / logged_by_cpu:.3f}"])
    return [
        "## Subscriptions",
        "",
        f"W1's view in the real service, {sizes['rate']} single-row commits a second for "
        f"{sizes['seconds']:.0f} s; all waits begin when the commit has returned. Readers take "
        "server-sent events, each by a connection of its own. The baseline, measured before each, "
        "is as many sessions that LISTEN to a row trigger's NOTIFY, which sends a key but no "
        "answer (below zero: received before the writer had its commit's answer). "
        f"Measured {measured(record, newest)}.",
        "",
        *table(("readers", "seen", "p50", "p99", "p50 after the table's", "API, cores"), waits),
        "",
        f"W1 written as fast as the source can, {sizes['changes']:,} changes a run, with a log "
        f"that nobody reads and without, alternating, medians of {sizes['pairs']}:",
        "",
        *table(("the whole path", "changes/s to visible", "pipeline's CPU µs a change"), costs),
    ]


_SUBSCRIBE_WORDS = {
    "floor": "baseline: NOTIFY at a listener",
    "table": "in the sink's table",
    "event": "**event at a reader**",
}

SECTIONS: dict[str, Section] = {
    "growth": _growth,
    "memory": _memory,
    "cap": _cap,
    "sharing": _sharing,
    "path": _path,
    "subscribe": _subscribe,
    "formats": _formats,
    "kafka": _kafka,
    "kafka-path": _kafka_path,
    beside_flink.PART: beside_flink.section,
}
