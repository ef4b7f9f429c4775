"""A view's rows kept in memory for as long as somebody iterates.

Invariant: it ends with the time-out or an error that begins with the view itself; changes that are
not kept any more only mean that it begins with the rows again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

from dataflow.errors import TidemarkError
from service.client.changes import AsyncChanges, Changes
from service.client.replica import Replica

# The rows are there, but not what has changed in them.
BEGIN_AGAIN = ("changes.expired", "changes.interrupted", "changes.view_replaced")


def follow(open_changes: Callable[..., Changes], timeout_ms: float | None) -> Iterator[Replica]:
    """The same replica after each epoch."""
    replica = Replica()
    while True:
        try:
            with open_changes(timeout_ms=timeout_ms) as changes:
                for epoch in changes:
                    replica.apply(epoch)
                    yield replica
                return
        except TidemarkError as error:
            if error.code not in BEGIN_AGAIN:
                raise


async def follow_later(
    open_changes: Callable[..., AsyncChanges], timeout_ms: float | None
) -> AsyncIterator[Replica]:
    """The same for asyncio."""
    replica = Replica()
    while True:
        try:
            async with open_changes(timeout_ms=timeout_ms) as changes:
                async for epoch in changes:
                    replica.apply(epoch)
                    yield replica
                return
        except TidemarkError as error:
            if error.code not in BEGIN_AGAIN:
                raise
