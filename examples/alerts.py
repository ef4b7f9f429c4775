"""Says when a row of a view goes beyond a limit, and when it comes back; with asyncio.

Run it: python examples/alerts.py revenue total 1000 --url http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import asyncio
from decimal import Decimal

import tidemark


async def watch(client: tidemark.AsyncClient, given: argparse.Namespace) -> None:
    """Keep the keys of the rows that are beyond the limit."""
    view = client.view(given.view)
    key = (await view.state()).key
    beyond: set[tuple[object, ...]] = set()
    async with view.changes(timeout_ms=given.timeout_ms) as changes:
        async for epoch in changes:
            now = beyond - {tuple(row[name] for name in key) for row in epoch.deleted}
            now |= {
                tuple(row[name] for name in key)
                for row in epoch.inserted
                if row[given.column] is not None and row[given.column] > given.limit
            }
            for name in sorted(now - beyond, key=str):
                print(f"{name}: {given.column} is above {given.limit}", flush=True)
            for name in sorted(beyond - now, key=str):
                print(f"{name}: {given.column} is not above {given.limit} any more", flush=True)
            beyond = now


async def main() -> None:
    """Watch until nothing has come for the time-out, or for ever."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("view")
    options.add_argument("column")
    options.add_argument("limit", type=Decimal)
    options.add_argument("--url", default=tidemark.DEFAULT_URL)
    options.add_argument("--timeout-ms", type=float, help="end when nothing has come for so long")
    given = options.parse_args()
    async with tidemark.connect_async(given.url) as client:
        await watch(client, given)


if __name__ == "__main__":
    asyncio.run(main())
