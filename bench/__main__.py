"""`python -m bench [--only w2r,flink] [--quick]`: measure, store records, write bench/RESULTS.md.

`--only` takes workloads (w1, w2, w2r, q1, q2, q3), runners (ours, dictionaries, dbsp, pathway,
flink, flink-rocksdb, ...) and parts: growth, memory (the engine alone, W1 of 10^7 orders),
sharing, cap (the service under --memory), formats, kafka (its clients), kafka-path (the service
reading a topic), path, and subscribe (commit to event; two minutes). Without it everything runs:
about half an hour on two idle cores. `--quick` uses small sizes, as a smoke test; its figures are
stored elsewhere. `--show` prints the age of each record and measures nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import (
    formats,
    growth,
    kafka_clients,
    kafka_path,
    memory,
    path,
    report,
    sharing,
    streams,
    subscribe,
)
from bench.generate import HOME, prepare
from bench.record import RESULTS, commits_since, measuring, read_all
from bench.workloads import FULL, QUICK, WORKLOADS, Sizes

CAP, SHARING = "cap", "sharing"
PARTS = (
    *(growth.GROWTH, growth.MEMORY, SHARING, CAP, path.PATH),
    *(formats.FORMATS, kafka_clients.KAFKA, kafka_path.PART, subscribe.SUBSCRIBE),
)
CAP_MB = 512
CAP_LOAD, QUICK_LOAD = memory.Load(1_000_000, 1_000, 500, 30.0), memory.Load(5_000, 50, 5, 1.0)
# The whole path takes W1 with the changes that one run of it needs.
QUICK_PATH = Sizes(500, 2_000, 1_500, 0, 0)


def main(arguments: list[str]) -> int:
    """Measure, store the records and print the page."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="words, separated by commas")
    parser.add_argument("--quick", action="store_true", help="small sizes, a smoke test")
    parser.add_argument("--no-spark", action="store_true", help="leave out the Spark backfill")
    parser.add_argument("--seconds", type=float, default=10, help="how long each rate is held")
    parser.add_argument("--show", action="store_true", help="how old the records are")
    parser.add_argument("--write", action="store_true", help="write the page, measure nothing")
    parser.add_argument("--records", type=Path, help="another folder of records, with its page")
    options = parser.parse_args(arguments)
    folder = options.records or (HOME / "quick" if options.quick else RESULTS)
    page = report.PAGE if folder == RESULTS else folder / "RESULTS.md"
    if options.show:
        show(folder)
        return 0
    if not options.write:
        words = [word for word in options.only.split(",") if word]
        unknown = check(words)
        if unknown:
            parser.error(f"no such part or runner: {', '.join(unknown)}")
        measure(words, folder, options)
    print(report.write(page, folder))
    return 0


def check(words: Sequence[str]) -> list[str]:
    """Return the words that name no workload, runner or part."""
    known = {*WORKLOADS, *PARTS, *streams.RUNNERS, "flink"}
    return [word for word in words if word not in known]


def measure(words: Sequence[str], folder: Path, options: argparse.Namespace) -> None:
    """Run what the words name."""
    parts = [p for p in PARTS if p in words or not words]
    if not words or set(words) - set(PARTS):
        streams.run(streams.chosen(words), QUICK if options.quick else FULL, folder)
    growth.run(parts, folder, is_quick=options.quick)
    if kafka_clients.KAFKA in parts:
        kafka_clients.run(folder, is_quick=options.quick)
    if {kafka_clients.KAFKA, kafka_path.PART} & set(parts):
        kafka_path.run(folder, is_quick=options.quick)
    if SHARING in parts:
        orders = 2_000 if options.quick else 100_000
        with measuring(SHARING, "ours", {"orders": orders}, folder) as record:
            found = sharing.run(orders)
            record.figures = {n: sharing.text_of(n, r).splitlines() for n, r in found.items()}
    if CAP in parts:
        load = QUICK_LOAD if options.quick else CAP_LOAD
        with measuring(CAP, "service", asdict(load), folder) as record, scratch() as state:
            found, held_by = memory.run(load, CAP_MB, state)
            steps = [asdict(step) for step in found]
            record.figures = {"cap_mb": CAP_MB, "held_by": held_by, "steps": steps}
    if formats.FORMATS in parts:
        count = 500 if options.quick else 50_000
        with measuring(formats.FORMATS, "ours", {"records": count}, folder) as record:
            found = formats.run(count, 0.02 if options.quick else 1.0)
            record.figures = {name: asdict(rate) for name, rate in found.items()}
    if path.PATH in parts:
        sizes = QUICK_PATH if options.quick else FULL
        seconds = min(options.seconds, 1) if options.quick else options.seconds
        engines = ("local",) if options.no_spark else ("spark", "local")
        rows = prepare(WORKLOADS["w1"].rows, sizes)
        with measuring(path.PATH, "service", asdict(sizes), folder) as record:
            expected = path.PathSizes(
                sizes.customers, sizes.orders, seconds=seconds, engines=engines
            )
            record.figures = {"rows": [asdict(figure) for figure in path.run(rows, expected)]}
    if subscribe.SUBSCRIBE in parts:
        sizes = QUICK_PATH if options.quick else FULL
        expected = subscribe.sizes_of(sizes, options.seconds, is_quick=options.quick)
        rows = prepare(WORKLOADS["w1"].rows, sizes)
        with measuring(subscribe.SUBSCRIBE, "service", asdict(expected), folder) as record:
            record.figures = subscribe.run(rows, expected)


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder."""
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        yield Path(folder)


def show(folder: Path) -> None:
    """Print one line a record: its date, its revision, and how many product commits followed."""
    for record in read_all(folder):
        since = commits_since(record.revision)
        age = "unknown revision" if since is None else f"{since} commits of the product since"
        reported = f"{record.date}  {record.revision:10} {age:32} others {record.other_cores:.1f}"
        print(f"{record.name:32} {reported}  {record.missing or ''}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
