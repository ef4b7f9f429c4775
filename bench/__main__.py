"""`python -m bench [--quick] [--scale 0.1] [--only engine,path]`: one table of figures.

It is printed, and written to bench/RESULTS.md.

--quick runs every part at small sizes, as a smoke test: its figures mean nothing. Only a run at
full size is written down, unless --out names a file.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from bench import dictionaries, engine, generated, path, tpch
from bench.measure import Figure, in_child, machine
from bench.orders import Sizes

RESULTS = Path(__file__).parent / "RESULTS.md"
QUICK = Sizes(customers=500, orders=2_000, changes=1_500)
PARTS = ("engine", "path")


def main(arguments: list[str]) -> int:
    """Run, print, write down."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, a smoke test")
    parser.add_argument("--scale", type=float, default=1, help="share of the full row counts")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--no-spark", action="store_true", help="leave out the Spark road")
    parser.add_argument("--seconds", type=float, default=10, help="how long each rate is held")
    parser.add_argument("--out", type=Path, help="where the table goes, default bench/RESULTS.md")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else scaled(options.scale)
    facts = machine()
    started = time.monotonic()
    figures: list[Figure] = []
    by_hand = in_child(dictionaries.run, sizes)
    if "engine" in options.only:
        figures += engine.run(sizes, by_hand)
    if "path" in options.only:
        roads = ("local",) if options.no_spark else ("spark", "local")
        seconds = min(options.seconds, 1) if options.quick else options.seconds
        figures += path.run(path.PathSizes(sizes, seconds=seconds, roads=roads), by_hand.rss_mb)
    text = report(figures, facts, sizes, time.monotonic() - started)
    print(text)
    is_full = not options.quick and options.scale == 1
    out = options.out or (RESULTS if is_full else None)
    if out is not None:
        out.write_text(text)
    return 0


def scaled(share: float) -> Sizes:
    """The full workload times a share."""
    full = Sizes()
    return Sizes(*(int(share * n) for n in (full.customers, full.orders, full.changes)))


def report(figures: list[Figure], facts: list[str], sizes: Sizes, elapsed_s: float) -> str:
    """The figures as a Markdown page."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = ["# Measured", "", f"{date}, in {elapsed_s:.0f} s, by `make bench`.", "", *facts]
    lines += [
        "",
        f"Workload W1: {sizes.customers:,} customers, {sizes.orders:,} orders, then "
        f"{sizes.changes:,} changes (50 % inserts, 35 % updates, 15 % deletes) into a join with "
        "a group-by of 40 groups. A ratio above 1 is in our favour; peers ran in the same run.",
        "",
        "| part | figure | ours | peer | peer's | ratio |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_line(figure) for figure in figures]
    lines += tpch.section() + generated.section()
    return "\n".join(lines) + "\n"


def _line(figure: Figure) -> str:
    value = f"{_number(figure.value)} {figure.unit}"
    peer_value = "" if figure.peer_value is None else _number(figure.peer_value)
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2g}"
    cells = (figure.group, figure.what, value, figure.peer, peer_value, ratio)
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
