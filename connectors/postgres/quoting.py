"""Names and strings as SQL text: what every statement that we write is made of."""

from __future__ import annotations

NAME_BYTES = 63


def quote_name(name: str) -> str:
    """An SQL identifier.

    >>> print(quote_name('we "ird'))
    "we ""ird"
    """
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """An SQL string literal.

    >>> print(quote_text("it's"))
    'it''s'
    """
    return "'" + text.replace("'", "''") + "'"


def clip_name(name: str, size: int = NAME_BYTES) -> str:
    """As many whole characters of a name as fit into `size` bytes of UTF-8."""
    return name.encode()[:size].decode(errors="ignore")
