"""The Python face of a running Tidemark service.

    client = tidemark.connect("http://127.0.0.1:8000")
    view = client.create("revenue", "SELECT region, sum(amount) AS total FROM orders GROUP BY 1")
    for row in view.rows(where={"region": "north"}):
        print(row.region, row.total)
    for epoch in view.changes(timeout_ms=1000):
        print(epoch.inserted, epoch.deleted)

docs/PYTHON.md is the guide. Importing it loads no engine: only what talks to the service.
`tidemark.Engine()`, the whole of it inside a script (docs/ENGINE.md), is loaded when it is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataflow.errors import Position, TemporaryError, TidemarkError
from service.client.answers import (
    ClockCheck,
    Dataflow,
    DeadLetter,
    Difference,
    Estimate,
    Field,
    Health,
    HistoryCheck,
    LeftOut,
    LeftOutPage,
    Plan,
    Problem,
    ReadFilter,
    Relation,
    SinkState,
    SourceGrant,
    SourceRead,
    SourceReset,
    SourceState,
    SubscriptionState,
    Token,
    TokenFacts,
    Validation,
    VerifyResult,
    ViewState,
    Waited,
)
from service.client.changes import AsyncChanges, Changes
from service.client.clients import (
    AsyncClient,
    AsyncView,
    Client,
    View,
    connect,
    connect_async,
)
from service.client.conditions import Column, Condition, Order, col
from service.client.epochs import Change, Epoch
from service.client.reading import AsyncRows, Rows
from service.client.replica import Replica
from service.client.rows import DiffPage, Page, QueryAnswer, Row, RowSet
from service.client.values import Interval
from service.client.wire import DEFAULT_URL
from service.runtime.release import VERSION

if TYPE_CHECKING:
    from service.embedded.engine import Engine

__all__ = [
    "DEFAULT_URL",
    "AsyncChanges",
    "AsyncClient",
    "AsyncRows",
    "AsyncView",
    "Change",
    "Changes",
    "Client",
    "ClockCheck",
    "Column",
    "Condition",
    "Dataflow",
    "DeadLetter",
    "DiffPage",
    "Difference",
    "Engine",
    "Epoch",
    "Estimate",
    "Field",
    "Health",
    "HistoryCheck",
    "Interval",
    "LeftOut",
    "LeftOutPage",
    "Order",
    "Page",
    "Plan",
    "Position",
    "Problem",
    "QueryAnswer",
    "ReadFilter",
    "Relation",
    "Replica",
    "Row",
    "RowSet",
    "Rows",
    "SinkState",
    "SourceGrant",
    "SourceRead",
    "SourceReset",
    "SourceState",
    "SubscriptionState",
    "TemporaryError",
    "TidemarkError",
    "Token",
    "TokenFacts",
    "Validation",
    "VerifyResult",
    "View",
    "ViewState",
    "Waited",
    "col",
    "connect",
    "connect_async",
]

__version__ = VERSION


def __getattr__(name: str) -> Any:
    if name == "Engine":
        try:
            from service.embedded.engine import Engine
        except ModuleNotFoundError as error:
            if error.name != "service.embedded":
                raise
            raise TidemarkError(
                "package.missing",
                "tidemark.Engine is not part of the client",
                hint="install the whole: pip install tidemarkdb",
            ) from None
        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
