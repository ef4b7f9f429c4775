"""A Python function, or any iterable, as a source of rows.

Three kinds: a function is called for each reading; a list, a table or another iterable is iterated
again; an iterator can be read only once. Coroutines and asynchronous generators run in their own
event loop. Invariant: an error in the user's code becomes one error with the row's number, its
cause attached.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from connectors.python.conditions import Requirement
from connectors.python.rows import Batch, Interrupted, batches, is_table
from dataflow.errors import TidemarkError

COLUMNS, WHERE = "dynamic_columns", "dynamic_where"


class Function:
    """A registered source of rows.

    takes: those of dynamic_columns and dynamic_where that are its parameters. is_once: an iterator,
    whose rows come only once.
    """

    def __init__(self, name: str, source: Any) -> None:
        self.name = name
        self._source = source
        self.is_called = callable(source) and not is_table(source)
        self.is_once = not self.is_called and _is_iterator(source)
        self.takes = frozenset(_dynamic_of(name, source) if self.is_called else ())

    def read(self, required: Requirement | None = None) -> Iterator[Batch]:
        """Yield the rows in batches.

        required: passed to a function that accepts it; None requests everything. TidemarkError
        function.failed, function.bad_row.
        """
        arguments: dict[str, Any] = {}
        if COLUMNS in self.takes:
            arguments[COLUMNS] = list(required.columns) if required is not None else None
        if WHERE in self.takes:
            arguments[WHERE] = list(required.conditions) if required is not None else []
        try:
            rows = self._source(**arguments) if self.is_called else self._source
            yield from batches(rows if is_table(rows) else _plain(rows))
        except Interrupted as error:
            raise self._failed(error.n, error.__cause__) from error.__cause__
        except TidemarkError as error:
            raise error if error.code != "function.bad_row" else self._named(error) from None
        except Exception as error:
            raise self._failed(0, error) from error

    def _failed(self, n: int, error: BaseException | None) -> TidemarkError:
        return TidemarkError(
            "function.failed",
            f'function "{self.name}" failed after row {n}',
            detail=f"{type(error).__name__}: {error}",
            hint="the table is unchanged; see the error's __cause__",
        )

    def _named(self, error: TidemarkError) -> TidemarkError:
        return TidemarkError(
            error.code,
            f'function "{self.name}": {error.what}',
            detail=error.detail,
            hint=error.hint,
        )


def _dynamic_of(name: str, source: Callable[..., Any]) -> list[str]:
    """Return the dynamic parameters of a function.

    TidemarkError function.bad_signature: another parameter has no default.
    """
    try:
        parameters = inspect.signature(source).parameters
    except (TypeError, ValueError):
        return []
    needed = [
        p.name
        for p in parameters.values()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in (COLUMNS, WHERE)
    ]
    if needed:
        raise TidemarkError(
            "function.bad_signature",
            f'function "{name}" cannot be called without arguments',
            detail=f"it needs {', '.join(needed)}",
            hint="bind them: functools.partial(fn, ...) or lambda: fn(...)",
        )
    return [p for p in (COLUMNS, WHERE) if p in parameters]


def _is_iterator(source: Any) -> bool:
    return hasattr(source, "__next__") or hasattr(source, "__anext__")


def _plain(rows: Any) -> Any:
    """Return an ordinary iterable of asynchronous rows."""
    if inspect.isawaitable(rows):
        return _plain(_in_a_loop(rows))
    if hasattr(rows, "__aiter__"):
        return _drained(aiter(rows))
    return rows


def _in_a_loop(awaitable: Any) -> Any:
    async def wait() -> Any:
        return await awaitable

    # The thread of a notebook already has a running loop.
    with ThreadPoolExecutor(1, "tidemark-async") as pool:
        return pool.submit(asyncio.run, wait()).result()


def _drained(rows: AsyncIterator[Any]) -> Iterator[Any]:
    runner = asyncio.Runner()

    async def following() -> Any:
        return await anext(rows, _END)

    with ThreadPoolExecutor(1, "tidemark-async") as pool:
        try:
            while (row := pool.submit(runner.run, following()).result()) is not _END:
                yield row
        finally:
            pool.submit(runner.close).result()


_END = object()
