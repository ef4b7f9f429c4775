"""Functions that the tests of Python sources call, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from connectors.python.conditions import Condition


class Person(NamedTuple):
    """A row."""

    id: int
    name: str | None
    size: float


def of_file(path: str) -> Iterator[dict[str, Any]]:
    """What a file of JSON holds now; it also prints."""
    print("reading", path)
    yield from json.loads(Path(path).read_text())


def disturbed(path: str, fault: str) -> Iterator[dict[str, Any]]:
    """What a file of JSON holds now, unless another file has the name of a fault."""
    found = json.loads(Path(path).read_text())
    try:
        name = Path(fault).read_text()
    except FileNotFoundError:
        name = ""
    yield from found[:5]
    if name == "exit":
        os._exit(0)
    if name == "hang":
        time.sleep(600)
    if name:
        raise ValueError(name)
    yield from found[5:]


async def later() -> AsyncIterator[Person]:
    """Rows of an asynchronous generator."""
    for number in range(3):
        await asyncio.sleep(0)
        yield Person(number, None, number / 2)


def columns(dynamic_columns: list[str] | None = None) -> list[dict[str, Any]]:
    """The columns that are read."""
    return [{"id": 1, "name": ",".join(dynamic_columns or ["all"])}]


def selected(
    path: str,
    dynamic_columns: list[str] | None = None,
    dynamic_where: Sequence[Condition] = (),
) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON that are needed; each call is noted in a file beside it."""
    where = [list(condition) for condition in dynamic_where]
    with Path(f"{path}.calls").open("a") as calls:
        calls.write(json.dumps([dynamic_columns, where], default=str) + "\n")
    for row in json.loads(Path(path).read_text()):
        if all(condition.holds(row[condition.column]) for condition in dynamic_where):
            yield row if dynamic_columns is None else {name: row[name] for name in dynamic_columns}


def selected_tuples(dynamic_columns: list[str]) -> list[tuple[Any, ...]]:
    """Tuples of the columns that are needed, in their order."""
    row = {"id": 7, "name": "seven", "size": 1.5}
    return [tuple(row[name] for name in dynamic_columns)]


def plain() -> list[tuple[Any, ...]]:
    """Tuples in the order of the columns."""
    return [(7, "seven", 1.5)]


def environment() -> list[dict[str, Any]]:
    """The variables that it can see."""
    return [{"id": 1, "name": ",".join(sorted(os.environ))}]


def started_with() -> list[dict[str, Any]]:
    """The environment that its process was started with, as the kernel shows it."""
    return [{"id": 1, "name": Path("/proc/self/environ").read_text().replace("\0", " ")}]


def fails() -> Iterator[dict[str, Any]]:
    """A row, and an error."""
    yield {"id": 1}
    raise ValueError("the well is dry")


def dies() -> list[Any]:
    """The end of the process."""
    print("last words")
    sys.stdout.flush()
    os._exit(3)


def hangs() -> list[Any]:
    """No end."""
    time.sleep(600)
    return []


def hangs_for(path: str) -> list[Any]:
    """No end, by the process whose number is in a file then."""
    part = Path(path).with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.rename(path)
    return hangs()


def wide() -> list[tuple[int, ...]]:
    """Rows with too many values."""
    return [(1, 2, 3, 4, 5)]


def endless() -> Iterator[dict[str, Any]]:
    """Rows without an end."""
    while True:
        yield {"id": 1, "name": "x" * 1_000_000}


def talks() -> Iterator[dict[str, Any]]:
    """Prints without an end."""
    while True:
        print("x" * 1_000_000)
    yield {}


def writes(text: str, times: int = 1) -> list[dict[str, Any]]:
    """Writes to the file of the answers itself, and ends at once."""
    with suppress(OSError):
        for _ in range(times):
            os.write(3, text.encode())
    os._exit(0)


def leaves_behind(path: str) -> list[dict[str, Any]]:
    """Leaves a process behind that never ends by itself."""
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    Path(path).write_text(str(child))
    return [{"id": 1}]


def odd(kind: str) -> list[dict[str, Any]]:
    """A row of one value that is rarely right."""
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    found = {
        "deep": deep,
        "cyclic": cyclic,
        "huge": 10**10_000,
        "surrogate": "\ud800",
        "nul": "a\0b",
        "bytes": b"\xff",
        "object": object(),
        "nan": float("nan"),
    }
    if kind == "name":
        return [{"id": 1, "\ud800": 2}]
    if kind == "exit":
        sys.exit(0)
    if kind == "text":
        raise ValueError("no\0 \ud800 thing")
    return [{"id": 1, "name": found[kind]}]
