"""WAL positions: PostgreSQL's text form "16/B374D848" and the 64-bit number that it denotes."""

from __future__ import annotations


def parse_lsn(text: str) -> int:
    """Return the number of an LSN; ValueError if the text is not one.

    >>> hex(parse_lsn("16/B374D848"))
    '0x16b374d848'
    """
    high, slash, low = text.strip().partition("/")
    if not slash or not 0 < len(high) <= 8 or not 0 < len(low) <= 8:
        raise ValueError(f'"{text}" is not a WAL position like 0/1A2B3C')
    try:
        return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        raise ValueError(f'"{text}" is not a WAL position like 0/1A2B3C') from None


def format_lsn(position: int) -> str:
    """Return PostgreSQL's text of a position.

    >>> format_lsn(0x16B374D848)
    '16/B374D848'
    """
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
