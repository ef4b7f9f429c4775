"""Options of a webhook sink: where changes are posted, and how they are signed.

Invariant: no option holds a secret itself; references are resolved when something is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.http.options import read_headers, read_url
from connectors.option_reader import OptionReader
from connectors.polled.rows import read_number
from connectors.secrets import refuse_plain

PAGE = "docs/WEBHOOK_SINK.md"
STOP, SKIP = "stop", "skip"
# More signatures are a mistake: two are enough while a secret is replaced.
_MAX_SECRETS = 4
_OWN_HEADERS = ("content-type", "user-agent")


@dataclass(frozen=True)
class WebhookOptions:
    """One address. secrets: references; each of them signs. ca: a file, or "".

    part_rows, part_bytes: limits of one message, which has at least one row. on_refused: STOP or
    SKIP, for a message that the receiver refuses.
    """

    url: str
    secrets: tuple[str, ...]
    headers: Mapping[str, str]
    ca: str
    timeout_s: float
    part_rows: int
    part_bytes: int
    on_refused: str
    has_rows: bool

    @staticmethod
    def of(options: Mapping[str, Any]) -> WebhookOptions:
        """Read the options. SinkError sink.bad_option; SourceError secret.plain."""
        reader = OptionReader(options, "sink", page=PAGE)
        url = read_url(reader, "url", reader.take("url", str))
        named = reader.raw("secret")
        listed = named if isinstance(named, list) else [named]
        if not 0 < len(listed) <= _MAX_SECRETS or not all(isinstance(s, str) for s in listed):
            hint = 'write "${env:NAME}", or a list of two while you replace one'
            raise reader.refused("secret", "must refer to a secret", hint=hint)
        secrets = tuple(refuse_plain("secret", text) for text in listed)
        headers = read_headers(reader)
        for name in headers:
            if name.lower() in _OWN_HEADERS or name.lower().startswith("webhook-"):
                raise reader.refused("headers", f'has the name "{name}", which cannot be set')
        ca = reader.take("ca", str, "")
        limits = (
            read_number(reader, "timeout_ms", 10_000, 60_000) / 1000,
            read_number(reader, "part_rows", 1_000, 100_000),
            read_number(reader, "part_bytes", 256 << 10, 16 << 20),
        )
        on_refused = reader.choice("on_refused", (STOP, SKIP), STOP)
        initial = reader.choice("initial", ("rows", "changes"), "rows")
        reader.end()
        return WebhookOptions(
            url, secrets, headers, ca, *limits, on_refused=on_refused, has_rows=initial == "rows"
        )
