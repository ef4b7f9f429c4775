"""Webhook sinks, made from the user's options.

Invariant: `check` sends a signed test message, which the receiver must accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from connectors.http.webhook_messages import Messages
from connectors.http.webhook_options import WebhookOptions
from connectors.http.webhook_sink import WebhookSink
from connectors.sink import SinkTable


def make(options: Mapping[str, Any], table: SinkTable, identity: str, title: str) -> WebhookSink:
    """Return the sink of a view. SinkError sink.bad_option."""
    chosen = WebhookOptions.of(options)
    return WebhookSink(chosen, Messages(chosen, table, identity), title)


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    """Check the options of a new sink, and that its receiver accepts a test message; return them.

    SinkError sink.bad_option, webhook.refused, webhook.gone; SourceError host.forbidden,
    secret.missing; TemporaryError webhook.unreachable, webhook.unavailable.
    """
    with closing(make(options, table, "", title)) as sink:
        sink.open()
        sink.send_test()
    return dict(options)
