"""The two kinds of the Python client behind one face, for tests that hold for both alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tidemark
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tidemark import TidemarkError

ATTEMPTS = 20


@dataclass
class Face:
    """A client of one of the two kinds: `ask` waits for what a call of it gives."""

    client: Any
    ask: Callable[[Any], Any]
    place: Database
    service: RunningService
    folder: Path
    connect: Callable[[str], Any]
    others: list[Any] = field(default_factory=list)

    def through(self, url: str) -> Any:
        """Another client of this kind, by another way."""
        self.others.append(self.connect(url))
        return self.others[-1]

    def view(self, name: str) -> Any:
        return self.client.view(name)

    def collect(self, found: Any, count: int | None = None) -> list[Any]:
        """What an iterator of one of the two kinds gives."""
        if hasattr(found, "__anext__") or hasattr(found, "__aiter__"):
            return self.ask(_collected(found, count))
        taken = []
        for each in found:
            taken.append(each)
            if len(taken) == count:
                break
        return taken

    def same_as_rest(self, call: Callable[[], Any], path: str) -> Any:
        """The answer of a call that must say what REST says at `path`. Figures that the pipeline
        writes about once a second may change between the two, so REST is read on both sides."""
        for _ in range(ATTEMPTS):
            before = self.service.call("GET", path).json()
            found = self.ask(call())
            if before == self.service.call("GET", path).json():
                assert found.told == before
                return found
        raise AssertionError(f"{path} changed in each of {ATTEMPTS} attempts")

    def refused(self, found: Callable[[], Any]) -> str:
        """The code that a call is refused with."""
        with pytest.raises(TidemarkError) as caught:
            self.ask(found())
        return caught.value.code


async def _collected(found: Any, count: int | None) -> list[Any]:
    taken: list[Any] = []
    async for each in found:
        taken.append(each)
        if len(taken) == count:
            break
    return taken


@contextmanager
def faces(kind: str, service: RunningService, place: Database, folder: Path) -> Iterator[Face]:
    """The face of a "sync" or "async" client."""
    if kind == "sync":
        with tidemark.connect(service.url + "/") as client:
            face = Face(client, lambda answer: answer, place, service, folder, tidemark.connect)
            yield face
            for other in face.others:
                other.close()
        return
    with asyncio.Runner() as runner:

        def ask(answer: Any) -> Any:
            async def wait() -> Any:
                return await answer

            return runner.run(wait()) if isinstance(answer, Awaitable) else answer

        later = tidemark.connect_async(service.url)
        face = Face(later, ask, place, service, folder, tidemark.connect_async)
        yield face
        for client in (later, *face.others):
            ask(client.aclose())


def next_of(changes: Any) -> Any:
    """The next epoch, or what is to be awaited for it."""
    return anext(changes) if hasattr(changes, "__anext__") else next(changes)
