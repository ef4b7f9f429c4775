"""The errors of a replication slot and its reader, shared by every module that finds them."""

from __future__ import annotations

from dataflow.errors import SourceError, TemporaryError

REBUILD_HINT = "run tidemark rebuild --all to recompute the views over a new slot"


def in_use(name: str, pid: int | None, reader: str = "") -> SourceError:
    """Return the refusal of a slot with another reader."""
    return SourceError(
        "source.slot_in_use",
        f'replication slot "{name}" has another reader',
        detail=f"the backend with pid {pid}" + (f" ({reader})" if reader else ""),
        hint="stop the other reader (perhaps a Tidemark of the same prefix), or choose a --prefix",
    )


def not_ended(name: str, pid: int | None) -> TemporaryError:
    """Return the error of a slot whose former reader, one of ours, has not ended yet."""
    return TemporaryError(
        "source.slot_in_use",
        f'the former reader of replication slot "{name}" has not ended yet',
        detail=f"the backend with pid {pid}" if pid else "it has ended by now",
        hint="nothing: it is tried again; a server under load takes a while",
    )


def no_free_slot(detail: str) -> SourceError:
    """Return the refusal when max_replication_slots is reached."""
    return SourceError(
        "source.no_free_slot",
        "the source has no free replication slot",
        detail=detail,
        hint="raise max_replication_slots (one for Tidemark, one more while a view is created),"
        " and restart the server; or drop unused slots",
    )


def no_free_wal_sender(detail: str) -> SourceError:
    """Return the refusal when max_wal_senders is reached."""
    return SourceError(
        "source.no_free_wal_sender",
        "the source has no free WAL sender",
        detail=detail,
        hint="raise max_wal_senders (one for Tidemark, one more while a view is created)"
        " and restart the server",
    )


def slot_wait_over(name: str, detail: str) -> TemporaryError:
    """Return the error of creating a slot when old transactions do not end."""
    return TemporaryError(
        "source.busy",
        f'replication slot "{name}" waits for running transactions',
        detail=detail,
        hint="SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start;",
    )
