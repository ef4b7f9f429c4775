"""A view in the terminal: its rows first, then each epoch as it happens.

Run it: python examples/follow_view.py revenue --url http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse

import tidemark


def main() -> None:
    """Print rows that come with "+" and rows that go with "-", and after each epoch how many there
    are."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("view")
    options.add_argument("--url", default=tidemark.DEFAULT_URL)
    options.add_argument("--timeout-ms", type=float, help="end when nothing has come for so long")
    given = options.parse_args()

    replica = tidemark.Replica()
    with (
        tidemark.connect(given.url) as client,
        client.view(given.view).changes(timeout_ms=given.timeout_ms) as changes,
    ):
        for epoch in changes:
            for row, weight in epoch:
                print(f"{weight:+d}  " + "  ".join(f"{n}={v}" for n, v in dict(row).items()))
            replica.apply(epoch)
            print(f"epoch {epoch.number} at {epoch.positions}: {len(replica)} rows", flush=True)


if __name__ == "__main__":
    main()
