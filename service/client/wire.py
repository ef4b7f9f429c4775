"""Calls over the network: requests for httpx, responses, and failures as errors.

Invariant: every exception of httpx and every foreign response becomes a TidemarkError with a code.
No request is sent twice.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from dataflow.errors import TemporaryError, TidemarkError
from service.client.answers import Problem
from service.client.calls import Call, Reply

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8000"
# Time for a call beyond the wait that it requests of the service.
MARGIN_S = 30.0
CONNECT_S = 10.0
# Statuses of a proxy that cannot reach the service.
BETWEEN = (502, 503, 504)
NETWORK_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)


@dataclass(frozen=True)
class Endpoint:
    """The service's URL and the caller's token. ca: a file of trusted certificates."""

    url: str
    token: str
    ca: str

    @classmethod
    def of(cls, url: str, token: str | None, ca: str | Path | None) -> Endpoint:
        """Return the endpoint. token: None uses the environment's TIDEMARK_TOKEN."""
        token_text = os.environ.get("TIDEMARK_TOKEN", "") if token is None else token
        if not (token_text.isascii() and token_text.isprintable()):
            raise TidemarkError(
                "auth.invalid",
                "the token is not valid: it contains characters that no token has",
                hint="pass it as `tidemark token create` printed it, without the line break",
            )
        return cls(url.rstrip("/"), token_text, str(ca or ""))

    def settings(self) -> dict[str, Any]:
        """Return the arguments of an httpx client."""
        arguments: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {self.token}"} if self.token else {},
            # A stream occupies a connection while it is read.
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        }
        if self.ca:
            arguments["verify"] = ssl.create_default_context(cafile=self.ca)
        return arguments

    def request(self, call: Call[Any]) -> dict[str, Any]:
        """Return a call as arguments of an httpx request."""
        return {
            "method": call.method,
            "url": self.url + call.path,
            "params": _params(call.params),
            "json": call.body,
            "headers": dict(call.headers),
            "timeout": httpx.Timeout(call.wait_s + MARGIN_S, connect=CONNECT_S),
        }

    def read(self, call: Call[T], answer: httpx.Response) -> T:
        """Return a call's result. TidemarkError of the service, service.not_tidemark."""
        if answer.is_success or answer.status_code in call.also:
            return call.read(Reply(answer.status_code, answer.content))
        raise self.refusal(answer)

    def refusal(self, answer: httpx.Response) -> TidemarkError:
        """Return the error of an unsuccessful response."""
        if "json" in answer.headers.get("content-type", ""):
            body = Reply(answer.status_code, answer.content).body
            if isinstance(body, dict):
                return Problem.of({"status": answer.status_code, **body}).error
        if answer.status_code in BETWEEN:
            return self.unreachable(f"{answer.status_code}: {answer.text[:200]}")
        return TidemarkError(
            "service.not_tidemark",
            f'the server at "{self.url}" is not a Tidemark service',
            detail=f"{answer.status_code}: {answer.text[:200]}",
            hint="check the URL",
        )

    def unreachable(self, error: Exception | str) -> TemporaryError:
        """Return the error for a missing response."""
        return TemporaryError(
            "service.unreachable",
            f'no response from "{self.url}"',
            detail=str(error) or type(error).__name__,
            hint="check that `tidemark serve` runs, and that it listens at this URL",
        )


def _params(params: Any) -> list[tuple[str, Any]]:
    pairs = params.items() if hasattr(params, "items") else params
    return [(name, value) for name, value in pairs if value is not None]
