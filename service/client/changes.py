"""A view's changes as an iterator over whole epochs, synchronous and asynchronous.

Invariant: both execute the steps of one `Course` and make no decisions. A closed iterator can be
iterated again: it resumes after the last epoch. Not thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, Self, TypeVar

import httpx

from dataflow.errors import TidemarkError
from service.client.course import Course, Open, Pause, Read, Shut, Step, Steps
from service.client.epochs import Epoch
from service.client.wire import NETWORK_ERRORS, Endpoint

S = TypeVar("S")


class _Served(Generic[S]):
    """The common part. session: httpx's, of either kind."""

    def __init__(self, session: S, endpoint: Endpoint, course: Course) -> None:
        self._session = session
        self._endpoint = endpoint
        self._course = course
        self._stream: httpx.Response | None = None

    @property
    def resume(self) -> str:
        """The token to resume after the last returned epoch."""
        return self._course.resume


class Changes(_Served[httpx.Client]):
    """The epochs of a view: `for epoch in changes`.

    After a timeout, another `for` resumes after the last epoch. Use `with` or `close` to release
    the connection early. resume: the token to resume after the last returned epoch.
    """

    _chunks: Iterator[bytes] = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # After a `break` the stream would occupy a connection forever.
        with contextlib.suppress(*NETWORK_ERRORS, RuntimeError, AttributeError):
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Epoch:
        epoch = self._carried_out(self._course.next_epoch())
        if epoch is None:
            raise StopIteration
        return epoch

    def close(self) -> None:
        """Release the connection; the next epoch would open another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _carried_out(self, steps: Steps) -> Epoch | None:
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._do(step)
                except TidemarkError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    def _do(self, step: Step) -> bytes | None:
        try:
            match step:
                case Open():
                    self._open(step)
                case Read():
                    return next(self._chunks, None)
                case Pause(seconds):
                    time.sleep(seconds)
                case Shut():
                    with contextlib.suppress(*NETWORK_ERRORS):
                        self.close()
        except NETWORK_ERRORS as error:
            raise self._endpoint.unreachable(error) from error
        return None

    def _open(self, step: Open) -> None:
        self.close()
        request = self._session.build_request(**self._endpoint.request(step.call))
        stream = self._session.send(request, stream=True)
        if not stream.is_success:
            with contextlib.closing(stream):
                stream.read()
                raise self._endpoint.refusal(stream)
        set_read_timeout(request, step.read_timeout_s)
        self._stream, self._chunks = stream, stream.iter_raw()


class AsyncChanges(_Served[httpx.AsyncClient]):
    """The asynchronous form: `async for epoch in changes`, `async with` or `aclose()`."""

    _chunks: AsyncIterator[bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Epoch:
        epoch = await self._carried_out(self._course.next_epoch())
        if epoch is None:
            raise StopAsyncIteration
        return epoch

    async def aclose(self) -> None:
        """Release the connection; the next epoch would open another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def _carried_out(self, steps: Steps) -> Epoch | None:
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._do(step)
                except TidemarkError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    async def _do(self, step: Step) -> bytes | None:
        try:
            match step:
                case Open():
                    await self._open(step)
                case Read():
                    return await anext(self._chunks, None) if self._chunks else None
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Shut():
                    with contextlib.suppress(*NETWORK_ERRORS):
                        await self.aclose()
        except NETWORK_ERRORS as error:
            raise self._endpoint.unreachable(error) from error
        return None

    async def _open(self, step: Open) -> None:
        await self.aclose()
        request = self._session.build_request(**self._endpoint.request(step.call))
        stream = await self._session.send(request, stream=True)
        if not stream.is_success:
            async with contextlib.aclosing(stream):
                await stream.aread()
                raise self._endpoint.refusal(stream)
        set_read_timeout(request, step.read_timeout_s)
        self._stream, self._chunks = stream, stream.aiter_raw()


def set_read_timeout(request: httpx.Request, seconds: float) -> None:
    """Set the timeout for each read of a stream's body.

    This works after the request: httpx reads the request's timeouts again when the body begins.
    """
    timeouts: dict[str, Any] = request.extensions["timeout"]
    timeouts["read"] = seconds
