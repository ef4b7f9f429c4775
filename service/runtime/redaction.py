"""Removes secrets from the texts of logs and problems: the second line of defense.

The first line keeps secrets out: options hold references, and DSNs are shown redacted. This one
catches what slips through in other programs' messages: secrets that this process has resolved, and
anything that looks like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from connectors.secrets import hide

_PATTERNS = (
    # user:password@ of a URL, also where the password has unescaped slashes
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s@]+@", re.IGNORECASE), r"\1***@"),
    # password=..., sasl.password: '...', "secret_key": "..."
    (
        re.compile(
            r"""((?:\b|_)(?:ssl|sasl\.)?(?:password|passwd|secret_key|secret_access_key|session_token"""
            r"""|access_token)["']?\s*[=:]\s*)(?!\*\*\*|\$\{|["']\$\{)("[^"]*"|'[^']*'|[^\s,;&"']+)""",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 ***"),
    (re.compile(r"\btdm_[0-9a-f]{12}_[\w-]{20,}"), "tdm_***"),
)
_HINTS = ("://", "assw", "ecret", "oken", "earer", "asic", "tdm_", "ASSW", "ECRET", "OKEN")


def scrub(text: str) -> str:
    """Return the text without its secrets.

    >>> scrub("cannot reach postgresql://me:hunter2@db/shop")
    'cannot reach postgresql://me:***@db/shop'
    >>> scrub("user=me password=hunter2 host=db, the password is wrong")
    'user=me password=*** host=db, the password is wrong'
    """
    text = hide(text)
    if any(word in text for word in _HINTS):
        for pattern, shown in _PATTERNS:
            text = pattern.sub(shown, text)
    return text


def scrubbed(value: Any) -> Any:
    """Return a JSON-like value with all its texts scrubbed, at any depth."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {name: scrubbed(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(one) for one in value]
    if isinstance(value, BaseException):
        return scrub(str(value))
    return value


def scrub_event(_logger: Any, _method: str, event: Any) -> Any:
    """Scrub every field of an event; a processor of structlog."""
    return {name: scrubbed(value) for name, value in event.items()}
