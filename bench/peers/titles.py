"""What the pages call the peers, and which of our runs compares with theirs."""

from __future__ import annotations

from typing import Any

# By runner; in braces what its figures say of themselves.
PEERS = {
    "dictionaries": "plain Python dictionaries, nothing durable",
    "dbsp": "dbsp {version}, in memory, nothing durable",
    "pathway": "Pathway {version}, {threads} thread(s)",
    "flink-hashmap": "Flink {version}, hashmap, nothing durable",
    "flink-rocksdb": "Flink {version}, RocksDB, mini-batch, no checkpoints",
    "flink-rocksdb-checkpoints": "Flink {version}, RocksDB, a checkpoint each 10 s",
}
IDENTITIES = {"full": "old rows sent whole", "default": "upserts by key"}


def title(runner: str, figures: dict[str, Any]) -> str:
    """Return what a peer is called."""
    return PEERS[runner].format(**{"version": "", "threads": "", **figures})


def reference(runner: str, ours: dict[str, Any]) -> dict[str, Any]:
    """Return our run that compares with a peer: whole old rows for both, or for neither."""
    if runner == "dictionaries":
        return ours["default"]
    return ours.get("full", ours["default"])
