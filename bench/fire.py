"""`python -m bench.fire [FILE ...]`: record what the product survived under fault injection.

Each FILE has JSON lines of tests/harness/figures.py, one a run. New runs are appended to
bench/fire.jsonl, and the page of results is written again. Without a FILE it is written from the
stored runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import report
from bench.fire_record import section, take


def main(arguments: list[str]) -> int:
    """Store new runs, write the page, and print the section."""
    parser = argparse.ArgumentParser(prog="python -m bench.fire", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="JSON lines that tests have written")
    options = parser.parse_args(arguments)
    taken = take(options.files)
    report.write()
    print("\n".join(section()), f"\n{taken} runs taken")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
