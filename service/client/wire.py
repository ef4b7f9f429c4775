"""How calls go over the network: requests for httpx, answers, and what goes wrong as errors.

Invariant: whatever httpx raises or a stranger answers becomes a TidemarkError with a code; nothing
is sent a second time.
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
# What a call may take beyond the wait that it asks the service for.
MARGIN_S = 30.0
CONNECT_S = 10.0
# What a proxy in between says while nothing is behind it.
BETWEEN = (502, 503, 504)
NETWORK_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)


@dataclass(frozen=True)
class Endpoint:
    """Where the service is and who asks. ca: a file of certificates that are trusted."""

    url: str
    token: str
    ca: str

    @classmethod
    def of(cls, url: str, token: str | None, ca: str | Path | None) -> Endpoint:
        """token: None takes that of the environment, TIDEMARK_TOKEN."""
        token_text = os.environ.get("TIDEMARK_TOKEN", "") if token is None else token
        if not (token_text.isascii() and token_text.isprintable()):
            raise TidemarkError(
                "auth.invalid",
                "the token is none: it has letters that no token has",
                hint="give it as `tidemark token create` has printed it, without its line's end",
            )
        return cls(url.rstrip("/"), token_text, str(ca or ""))

    def settings(self) -> dict[str, Any]:
        """What httpx needs to be told once."""
        told: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {self.token}"} if self.token else {},
            # A stream takes a connection for as long as it is read.
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        }
        if self.ca:
            told["verify"] = ssl.create_default_context(cafile=self.ca)
        return told

    def request(self, asked: Call[Any]) -> dict[str, Any]:
        """A call as httpx takes it."""
        return {
            "method": asked.method,
            "url": self.url + asked.path,
            "params": _params(asked.params),
            "json": asked.body,
            "headers": dict(asked.headers),
            "timeout": httpx.Timeout(asked.wait_s + MARGIN_S, connect=CONNECT_S),
        }

    def read(self, asked: Call[T], answer: httpx.Response) -> T:
        """The answer of a call. TidemarkError as the service tells it, service.not_tidemark."""
        if answer.is_success or answer.status_code in asked.also:
            return asked.read(Reply(answer.status_code, answer.content))
        raise self.refusal(answer)

    def refusal(self, answer: httpx.Response) -> TidemarkError:
        """What an answer without success says."""
        if "json" in answer.headers.get("content-type", ""):
            told = Reply(answer.status_code, answer.content).body
            if isinstance(told, dict):
                return Problem.of({"status": answer.status_code, **told}).error
        if answer.status_code in BETWEEN:
            return self.unreachable(f"{answer.status_code}: {answer.text[:200]}")
        return TidemarkError(
            "service.not_tidemark",
            f'what answers at "{self.url}" is not a Tidemark service',
            detail=f"{answer.status_code}: {answer.text[:200]}",
            hint="check the URL",
        )

    def unreachable(self, error: Exception | str) -> TemporaryError:
        """Nothing has answered."""
        return TemporaryError(
            "service.unreachable",
            f'no answer from "{self.url}"',
            detail=str(error) or type(error).__name__,
            hint="is `tidemark serve` up, and is this where it listens?",
        )


def _params(params: Any) -> list[tuple[str, Any]]:
    pairs = params.items() if hasattr(params, "items") else params
    return [(name, value) for name, value in pairs if value is not None]
