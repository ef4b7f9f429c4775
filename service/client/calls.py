"""Calls of the REST API, each described once for the synchronous and the asynchronous client.

A method under `@call` returns a Call: what to send, and how to read the response. On a class that
Sends it becomes a function, on one that SendsLater a coroutine function, with the same parameters
and result type.
Invariant: request and response handling never depend on the sender.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from dataflow.errors import TidemarkError
from service.client.values import parse_json

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Reply:
    """A successful response."""

    status: int
    content: bytes

    @property
    def body(self) -> Any:
        """Its JSON content. TidemarkError service.not_tidemark."""
        try:
            return parse_json(self.content)
        except ValueError as error:
            raise TidemarkError(
                "service.not_tidemark",
                "the server at this URL is not a Tidemark service",
                detail=f"{self.status}: {self.content[:200].decode(errors='replace')}",
                hint="check the URL",
            ) from error


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One request. read: reads the response. also: statuses accepted besides success. wait_s: how
    long the service may wait before it responds."""

    method: str
    path: str
    read: Callable[[Reply], T]
    params: Mapping[str, Any] | tuple[tuple[str, str], ...] = ()
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    also: tuple[int, ...] = ()
    wait_s: float = 0


class Sends:
    """Sends calls and waits for the response."""

    def _send(self, call: Call[T]) -> T:
        raise NotImplementedError


class SendsLater:
    """Sends calls asynchronously."""

    async def _send(self, call: Call[T]) -> T:
        raise NotImplementedError


class call(Generic[P, T]):
    """A method that describes a call, as an attribute that sends it.

    >>> class Shop:
    ...     @call
    ...     def price(self, goods: str) -> Call[int]:
    ...         '''In cents.'''
    ...         return Call(method="GET", path=f"/{goods}", read=lambda reply: reply.body)
    >>> class Till(Shop, Sends):
    ...     def _send(self, call):
    ...         return call.read(Reply(200, b"7"))
    >>> Till().price(goods="tea"), Till.price.__doc__
    (7, 'In cents.')
    """

    def __init__(self, describe: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self._describe = describe
        _answer_of(describe)

    @overload
    def __get__(self, owner: None, kind: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, owner: Sends, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: SendsLater, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self._describe if owner is None else _sender(self._describe, owner)


class Named(Protocol[T_co]):
    """A client that makes view objects."""

    def view(self, name: str) -> T_co:
        """Return the view object of that name."""
        ...


class NamedSends(Named[T_co], Protocol[T_co]):
    """A synchronous client."""

    def _send(self, call: Call[T]) -> T: ...


class NamedSendsLater(Named[T_co], Protocol[T_co]):
    """An asynchronous client."""

    async def _send(self, call: Call[T]) -> T: ...


class call_for_view(Generic[P]):
    """Like `call`, for a call that returns a view's name: the result is `owner.view(name)`."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Call[str]]) -> None:
        self._describe = describe
        describe.__annotations__["return"] = "View"

    @overload
    def __get__(self, owner: None, kind: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, owner: NamedSends[T], kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, owner: NamedSendsLater[T], kind: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self._describe
        send = _sender(self._describe, owner)

        @functools.wraps(send)
        def make(*args: P.args, **kwargs: P.kwargs) -> Any:
            return owner.view(send(*args, **kwargs))

        @functools.wraps(send)
        async def make_later(*args: P.args, **kwargs: P.kwargs) -> Any:
            return owner.view(await send(*args, **kwargs))

        return make_later if isinstance(owner, SendsLater) else make


def _sender(describe: Callable[..., Call[Any]], owner: Any) -> Callable[..., Any]:
    """Return a function that sends the described call through its owner."""
    described = MethodType(describe, owner)

    @functools.wraps(described)
    def send(*args: Any, **kwargs: Any) -> Any:
        return owner._send(described(*args, **kwargs))

    return send


def _answer_of(describe: Callable[..., Any]) -> None:
    """Make help() show the result type instead of Call[...]."""
    annotation = describe.__annotations__.get("return", "")
    if isinstance(annotation, str) and annotation.startswith("Call["):
        describe.__annotations__["return"] = annotation[5:-1]
