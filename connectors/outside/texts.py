"""Texts of others, made fit for errors, logs and tables where they enter.

PostgreSQL stores neither NUL nor halves of surrogate pairs, and a terminal obeys control
characters. Invariant: what `shown` and `clean` return can be stored, encoded and printed
everywhere, has one line and a bounded length.
"""

from __future__ import annotations

import re

from connectors import secrets

# Of the text of an error that somebody else has written.
SHOWN_CHARACTERS = 300
_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
# No text is longer before it is cleaned: hiding secrets passes over all of it.
_MOST_READ = 20


def shown(text: object, most: int = SHOWN_CHARACTERS) -> str:
    """Return what somebody else wrote as part of an error: clean, without secrets, cut.

    >>> shown("no\\x00thing  here\\n"), shown(b"caf\\xc3\\xa9 \\xff"), shown("a" * 9, most=4)
    ('no thing here', 'café �', 'aaaa...')
    """
    words = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    words = secrets.hide(words[: most * _MOST_READ])
    # Once more: a secret may have been interrupted by what is not printed.
    return clean(secrets.hide(clean(words, len(words))), most)


def clean(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Return a text in one line of at most so many characters, with nothing that is not printed.

    >>> clean("a\\tb\\u202ec\\ud800")
    'a b c�'
    """
    words = _SURROGATES.sub(_REPLACEMENT, text)
    if not words.isprintable():
        words = "".join(letter if letter.isprintable() else " " for letter in words)
    found = " ".join(words.split())
    return found if len(found) <= most else f"{found[:most]}..."


def is_storable(text: str) -> bool:
    """Return whether PostgreSQL can store a text: no NUL, and no half of a surrogate pair.

    >>> is_storable("a\\tb"), is_storable("a\\x00"), is_storable("\\udcff")
    (True, False, False)
    """
    return "\x00" not in text and _SURROGATES.search(text) is None


def storable(text: str) -> str:
    """Return a text that PostgreSQL can store: what it cannot is U+FFFD.

    For what is only shown or compared; a value of a row that is not storable is refused instead.

    >>> storable("a\\x00b")
    'a�b'
    """
    return _SURROGATES.sub(_REPLACEMENT, text.replace("\x00", _REPLACEMENT))


def described(error: BaseException, most: int = SHOWN_CHARACTERS) -> str:
    """Return an exception in one clean line, with its type.

    >>> described(ValueError("bad\\nlength"))
    'ValueError: bad length'
    """
    try:
        words = str(error)
    except Exception as broken:
        words = f"its text cannot be read ({type(broken).__name__})"
    return shown(f"{type(error).__name__}: {words}" if words else type(error).__name__, most)
