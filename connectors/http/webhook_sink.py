"""A view as webhooks: signed messages with its changes, in order, at least once.

A receiver cannot say which messages it has, so the sink's progress is in the service's state: the
worker passes the newest acknowledged epoch to `open`, and what may have been sent after it is sent
again, with the same ids and bodies. A message is acknowledged by its answer's status. While the
process runs, acknowledged parts of an epoch are not sent again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from connectors import netguard
from connectors.http.webhook_messages import Message, Messages, key_of, signature
from connectors.http.webhook_options import SKIP, WebhookOptions
from connectors.outside.address import parse_url
from connectors.outside.http import Answer, HttpClient, Trust, UnreachableError
from connectors.outside.http_headers import retry_after_s
from connectors.polled.schedule import RetryLaterError
from connectors.secrets import resolve
from connectors.view_sink import Detachment, Interruption, ViewEpoch
from dataflow.errors import SinkError, TemporaryError
from storage import clock
from storage.backoff import Backoff
from storage.failpoints import failpoint

# Of one message, before the worker pauses and begins again.
ATTEMPTS = 5
RETRY_S, JITTER = (0.2, 5.0), (0.5, 1.0)
# A receiver that asks for more is asked again by the worker's own pauses.
MAX_PAUSE_S = 60.0
_GONE = 410
_BUSY = (408, 425, 429)
# The address or the login is wrong, not the message: none is skipped.
_NOT_THE_MESSAGE = (401, 403, 404, 405, 407)
MAX_RETRY_AFTER_S = 86_400.0


class WebhookSink:
    """One sink. skipped_total: messages that the receiver refused and that were left out."""

    def __init__(self, options: WebhookOptions, messages: Messages, title: str) -> None:
        self.skipped_total = 0
        self._options = options
        self._messages = messages
        self._title = title
        self._interrupted = Interruption()
        self._client: HttpClient | None = None
        self._acknowledged: set[str] = set()

    def open(self, known: int | None = None) -> int | None:
        """Return `known`. SinkError sink.bad_option; SourceError secret.missing, host.forbidden;
        TemporaryError host.unknown.
        """
        self.close()
        self._interrupted.check()
        self._keys()
        netguard.check_url(self._options.url)
        return known

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """Send the messages of epochs in order, each once the one before is acknowledged.

        TemporaryError webhook.unreachable, webhook.unavailable: some of them may have arrived.
        SinkError webhook.gone, webhook.refused.
        """
        for epoch in epochs:
            attempt = secrets.token_hex(4) if epoch.is_initial else ""
            for message in self._messages.of(epoch, attempt):
                if message.id not in self._acknowledged:
                    self._deliver(message)
                    self._acknowledged.add(message.id)
                    failpoint("webhook.message.after", _cut)
        self._acknowledged.clear()

    def send_test(self) -> None:
        """Send a message without changes once. Errors as of `write`."""
        self._send(self._messages.test())

    def remove(self) -> None:
        """Nothing is stored."""

    def detachment(self) -> Detachment:
        """See ViewSink."""
        return Detachment(kept=("what its receiver has been sent",))

    def detach(self) -> None:
        """Nothing is stored."""

    def interrupt(self) -> None:
        """Interrupt from any thread: a message on its way is cut off, and `write` ends."""
        self._interrupted.set()
        client = self._client
        if client is not None:
            client.abort()

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- one message -----------------------------------------------------------------------

    def _deliver(self, message: Message) -> None:
        backoff = Backoff(*RETRY_S, jitter=JITTER)
        for attempt in range(1, ATTEMPTS + 1):
            self._interrupted.check()
            try:
                self._send(message)
                return
            except RetryLaterError as error:
                pause_s = max(error.retry_after_s, backoff.next_s())
                if attempt == ATTEMPTS or pause_s > MAX_PAUSE_S:
                    raise
                self._interrupted.wait(pause_s)

    def _send(self, message: Message) -> None:
        timestamp_s = clock.wall_ns() // 10**9
        headers = {name: resolve(text) for name, text in self._options.headers.items()}
        headers |= {
            "content-type": "application/json",
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature(message, timestamp_s, self._keys()),
        }
        try:
            with self._connected().ask(
                "POST", parse_url(self._options.url), headers=headers, content=message.body
            ) as answer:
                self._check_status(answer, message)
        except UnreachableError as error:
            hint = "check that the receiver runs and is reachable from the service"
            what = f'the receiver of sink "{self._title}" cannot be reached'
            raise RetryLaterError(
                "webhook.unreachable", what, detail=str(error), hint=hint
            ) from None

    def _check_status(self, answer: Answer, message: Message) -> None:
        status = answer.status
        if answer.is_success:
            return
        named = f'the receiver of sink "{self._title}"'
        if status == _GONE:
            hint = "drop the sink, or let the receiver accept messages, and add it again"
            raise SinkError("webhook.gone", f"{named} wants no more messages", hint=hint)
        detail = f"HTTP {status} for message {message.id}: {answer.quoted()}"
        if status in _BUSY or status >= 500:
            error = RetryLaterError(
                "webhook.unavailable", f"{named} cannot take it now", detail=detail
            )
            header, now_s = answer.headers.get("retry-after", ""), clock.wall_ns() / 1e9
            error.retry_after_s = retry_after_s(header, MAX_RETRY_AFTER_S, now_s)
            raise error
        is_content = 400 <= status < 500 and status not in _NOT_THE_MESSAGE
        if is_content and self._options.on_refused == SKIP:
            self.skipped_total += 1
            return
        raise SinkError(
            "webhook.refused",
            f"{named} refuses a message",
            detail=detail,
            hint='correct the receiver and add the sink again, or choose on_refused "skip"',
        )

    def _connected(self) -> HttpClient:
        if self._client is None:
            trust = Trust(self._options.ca)
            self._client = HttpClient(timeout_s=self._options.timeout_s, trust=trust, side="sink")
            # Interrupted meanwhile, it would not have been aborted.
            self._interrupted.check()
        return self._client

    def _keys(self) -> list[bytes]:
        return [key_of(resolve(reference)) for reference in self._options.secrets]


def _cut(text: str) -> TemporaryError:
    return TemporaryError("webhook.unreachable", text)
