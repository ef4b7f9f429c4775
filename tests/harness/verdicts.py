"""What a failure says of the product: which kinds are final, whatever a second run would show.

A wrong answer, a leak or a crash may come once in a hundred runs and is a fault all the same. A
test says so by the kind of its error, or by standing in a folder in which nothing waits: there
each assertion compares an answer. All other failures may be races of the test with a slow machine.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tests.harness.postgres import Database

# Folders whose tests compare answers alone, without a server's time in between.
ANSWERS = ("equality", "property", "regressions", "simulation", "sql")
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class FinalError(AssertionError):
    """A failure that no second run makes good. kind: for readers."""

    kind: ClassVar[str] = ""


class WrongStateError(FinalError):
    """What a sink or a state shows is not what the oracle says."""

    kind = "wrong answer"


class LeakError(FinalError):
    """Something was left over, or has grown."""

    kind = "leak"


class CrashError(FinalError):
    """A process ended as only a broken program does."""

    kind = "crash"


@contextlib.contextmanager
def judged(error: type[FinalError]) -> Iterator[None]:
    """Make a failed assertion of the block, or of the decorated function, one of this kind."""
    try:
        yield
    except FinalError:
        raise
    except AssertionError as raised:
        raise error(str(raised)) from raised


def kind_of(raised: BaseException, folder: str) -> str:
    """Return the kind of a failure that is final; "" for one that may be a race.

    folder: of the test, the first one below tests/.
    """
    if isinstance(raised, FinalError):
        return raised.kind
    if folder in ANSWERS and isinstance(raised, AssertionError):
        return WrongStateError.kind
    return ""


def differing_rows(database: Database, name: str, query: str) -> list[tuple[Any, ...]]:
    """Return the rows that are not as often in a view's table as in its query's answer."""
    return database.rows(
        f"(({query}) EXCEPT ALL TABLE {name}) UNION ALL (TABLE {name} EXCEPT ALL ({query}))"
    )


def require_same_rows(database: Database, name: str, query: str) -> None:
    """WrongStateError where a view's table is not its query's answer in the same database."""
    found = differing_rows(database, name, query)
    if found:
        raise WrongStateError(f"{name} is not {query}: {len(found)} rows, {found[:5]}")


def require_no_crash(events: Sequence[Mapping[str, Any]]) -> None:
    """CrashError where a service's log has a process that was ended by its own fault.

    Tests kill by SIGKILL and SIGTERM alone.
    """
    for event in events:
        code = event.get("code")
        if event.get("event") == "process.ended" and isinstance(code, int):
            number = -code if code < 0 else code - 128
            if number in _CRASHES:
                raise CrashError(f"{event.get('name')} crashed: {signal.Signals(number).name}")
