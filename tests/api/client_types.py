# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a type checker says of the Python client: read by pyright, strictly, and never run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import tidemark
from tidemark import AsyncRows, AsyncView, Condition, Epoch, Row, Rows, View, ViewState, col


def of_the_client(client: tidemark.Client) -> None:
    """Calls wait for what is answered."""
    view = client.create("v", "SELECT 1 AS a", wait_s=5, backfill="local")
    assert_type(view, View)
    assert_type(client.views(), list[ViewState])
    assert_type(client.query("SELECT 1")[0], Row)
    state = view.state()
    assert_type(state, ViewState)
    assert_type(state.fields[0].type, str)
    assert_type(view.pause(cascade=True), ViewState)
    assert_type(view.drop(), bool)
    client.create("v")  # type: ignore[call-arg]
    view.wait()  # type: ignore[call-arg]
    view.verify(limit="all")  # type: ignore[arg-type]


def of_rows_and_changes(view: View) -> None:
    """Rows are tuples whose values can be anything."""
    assert_type(view.rows(where=[col("a") > 1, ~col("b").is_null()], order=col("a").desc()), Rows)
    for row in view.rows(where={"a": [1, 2]}):
        assert_type(row, Row)
        assert_type(row.a, Any)
        assert_type(row[0], Any)
        assert_type(row["a"], Any)
    with view.changes(timeout_ms=10, on_gap="snapshot") as changes:
        for epoch in changes:
            assert_type(epoch, Epoch)
            assert_type(iter(epoch), Iterator[tuple[Row, int]])
            assert_type(epoch.inserted, list[Row])
    for replica in view.follow():
        assert_type(replica, tidemark.Replica)
    assert_type(col("a") == 1, Condition)
    view.changes(on_gap="perhaps")  # type: ignore[arg-type]


async def of_asyncio(client: tidemark.AsyncClient) -> None:
    """The same, awaited."""
    view = await client.create("v", "SELECT 1 AS a")
    assert_type(view, AsyncView)
    assert_type(await client.views(), list[ViewState])
    assert_type(await view.state(), ViewState)
    assert_type(view.rows(), AsyncRows)
    async for row in view.rows():
        assert_type(row, Row)
    async for epoch in view.changes():
        assert_type(epoch, Epoch)
    assert_type(await view.snapshot(), Epoch)
    async for replica in view.follow():
        assert_type(replica, tidemark.Replica)
