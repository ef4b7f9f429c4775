"""The boundary: no exception of what others sent leaves a connector without a code.

A library that reads an answer may raise anything: what it raises depends on whoever wrote the
answer. Invariant: what leaves a boundary is an error of ours, or a lack of memory. A fault may
pass, so its error is temporary: the reader begins again with growing pauses, and nothing else
stops.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn, TypeVar

from connectors.outside import texts
from connectors.outside.bounded import OverLimitError
from dataflow.errors import TemporaryError, TidemarkError

T = TypeVar("T")
Side = Literal["source", "sink"]
# Places of faults that are remembered, so that each is reported once.
_MOST_REPORTED = 1000
# The frames of a traceback that say where: the innermost ones.
_FRAMES = 3

Report = Callable[[Side, str, str, str], None]
_reported: set[tuple[str, str, str]] = set()
_lock = threading.Lock()


def _silent(_side: Side, _name: str, _fault: str, _at: str) -> None:
    """Report nothing: a process that installs no report has no log."""


_report: Report = _silent


def install(report: Report) -> None:
    """Set what logs a fault once a place: called with side, name, fault and place."""
    global _report
    _report = report


@contextmanager
def boundary(side: Side, name: str) -> Iterator[None]:
    """Let only errors of ours pass. name: of the source or sink.

    TemporaryError source.bad_answer, sink.bad_answer: anything else was raised within. It can also
    be the decorator of a function.

    >>> with boundary("source", "shop"):
    ...     raise KeyError("id")
    Traceback (most recent call last):
    dataflow.errors.TemporaryError: what source "shop" sent cannot be read [source.bad_answer]
    """
    try:
        yield
    except (TidemarkError, MemoryError):
        raise
    except Exception as error:
        _refuse(side, name, error)
    except BaseException as error:
        if not _is_panic(error):
            raise
        _refuse(side, name, error)


def each(side: Side, name: str, parts: Iterable[T]) -> Iterator[T]:
    """Yield what somebody else's answers give, one after the other, within the boundary."""
    with boundary(side, name):
        iterator = iter(parts)
    while True:
        # The consumer's own exceptions are not of the connector, so no boundary is around `yield`.
        with boundary(side, name):
            try:
                part = next(iterator)
            except StopIteration:
                return
        yield part


def bad_answer(side: Side, name: str, error: BaseException) -> TemporaryError:
    """Return the error that stands for an exception of a connector."""
    is_bound = isinstance(error, OverLimitError)
    return TemporaryError(
        "source.bad_answer" if side == "source" else "sink.bad_answer",
        f'what {side} "{texts.clean(name)}" sent cannot be read',
        detail=texts.shown(error) if is_bound else texts.described(error),
        hint="check the server; it is tried again with growing pauses",
    )


def _refuse(side: Side, name: str, error: BaseException) -> NoReturn:
    """Report an exception once, and raise the error that stands for it."""
    fault = texts.described(error)
    place = _where(error)
    key = (name, type(error).__name__, place)
    with _lock:
        is_new = key not in _reported and len(_reported) < _MOST_REPORTED
        if is_new:
            _reported.add(key)
    if is_new:
        _report(side, name, fault, place)
    raise bad_answer(side, name, error) from None


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))


def _is_panic(error: BaseException) -> bool:
    """Return whether a library in Rust has panicked: of no class that can be imported."""
    return type(error).__name__ == "PanicException"
