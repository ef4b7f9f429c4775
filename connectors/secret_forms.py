r"""The forms in which a secret stands in texts of others: escaped, percent-encoded, in Base64.

A server, a library or a log writes a secret in its own way: as JSON, as Python's repr, in a URL, in
an Authorization header. Invariant: `hidden` finds it in each of these, also where some characters
are escaped and others are not, and where an escape is escaped once more.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import lru_cache

MASK = "***"
# Shorter secrets would match in any text, and the gaps would reveal them.
LEAST_CHARACTERS = 6
# In longer secrets only characters that are usually escaped are looked for in other forms.
_MOST_CHARACTERS = 128
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-")
# Base64 with lines has at most so many characters in one.
_BASE64_LINE = 60
# One backslash, which may be escaped up to four times; bounded, for texts full of them.
_ESCAPE = r"\\\\{0,15}"
_LETTERS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\v": "v", "\a": "a"}
_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}


class SecretForms:
    """The forms of one secret of LEAST_CHARACTERS or more."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        content = secret.encode(errors="surrogatepass")
        is_long = len(secret) > _MOST_CHARACTERS
        units = [c if is_long and c.isascii() and c.isalnum() else _unit(c) for c in secret]
        self._escaped = re.compile(f"{''.join(units)}|{_hex_of(content)}")
        encodings = {content, secret.encode("latin-1", "ignore")}
        cores = [core for one in encodings if len(one) >= LEAST_CHARACTERS for core in _cores(one)]
        self._base64 = re.compile("|".join(cores))

    def hidden(self, text: str) -> str:
        """Return the text with *** for the secret in all its forms."""
        text = self._escaped.sub(MASK, text)
        if self._base64.search(text):
            text = "".join(self._without_base64(text))
        return self._without_begin(text)

    def _without_base64(self, text: str) -> Iterator[str]:
        """Yield the text's parts without each whole Base64 text that holds the secret."""
        done = 0
        for found in self._base64.finditer(text):
            if found.end() <= done:
                continue
            begin, end = found.span()
            while begin > done and text[begin - 1] in _BASE64:
                begin -= 1
            while end < len(text) and text[end] in _BASE64:
                end += 1
            yield text[done:begin] + MASK
            done = end
        yield text[done:]

    def _without_begin(self, text: str) -> str:
        """Return the text without the begin of the secret at its end, where it was cut."""
        rest = text.rstrip(".")
        for size in range(min(len(self._secret) - 1, len(rest)), LEAST_CHARACTERS - 1, -1):
            if rest.endswith(self._secret[:size]):
                return rest[:-size] + MASK + text[len(rest) :]
        return text


@lru_cache(maxsize=64)
def forms_of(secret: str) -> SecretForms:
    """Return the forms of a secret.

    >>> forms_of('p"ss/w+rd').hidden('{"a": "p\\\\"ss%2Fw%2Brd"}')
    '{"a": "***"}'
    >>> forms_of("hunter2!").hidden("Basic bWU6aHVudGVyMiE=, x")
    'Basic ***, x'
    """
    return SecretForms(secret)


def _unit(letter: str) -> str:
    """Return the expression of one character in any of its forms."""
    code, content = ord(letter), letter.encode(errors="surrogatepass")
    forms = ["".join(f"%(?:25)*{_digits(one)}" for one in content)]
    escapes = [_digits_of(f"u{unit:04x}") for unit in _utf16(letter)]
    numbers = [
        _ESCAPE.join(escapes),
        _digits_of(f"U{code:08x}"),
        rf"u\{{0*{_digits_of(f'{code:x}')}\}}",
    ]
    if code < 256:
        numbers.append(_digits_of(f"x{code:02x}"))
    if len(content) > 1:
        numbers.append(_ESCAPE.join(_digits_of(f"x{one:02x}") for one in content))
        forms += [re.escape(content.decode("latin-1")), "[?\ufffd]{1,4}"]
    numbers.append(_ESCAPE.join(f"{one:03o}" for one in content))
    if letter in _LETTERS:
        numbers.append(_LETTERS[letter])
    if not letter.isalnum():
        numbers.append(re.escape(letter))
    forms.append(f"{_ESCAPE}(?:{'|'.join(numbers)})")
    entities = [rf"#0*{code};?", rf"#[xX]0*{_digits_of(f'{code:x}')};?"]
    entities += [f"{_ENTITIES[letter]};"] if letter in _ENTITIES else []
    forms.append(f"&(?:amp;)*(?:{'|'.join(entities)})")
    # Last: "%" and "&" begin other forms of themselves.
    forms.append(re.escape(letter))
    if letter == " ":
        forms.append(r"\+")
    elif letter == "'":
        forms.insert(0, "''")
    return f"(?:{'|'.join(forms)})"


def _cores(content: bytes) -> Iterator[str]:
    """Yield expressions of what Base64 makes of a secret for each place that it may begin at."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + content).decode()
        # Only characters of which all bits are the secret's.
        core = encoded[(0, 2, 3)[before] : (before + len(content)) * 8 // 6]
        between = r"(?:\\[rn]|\s){0,4}" if len(core) > _BASE64_LINE else ""
        yield between.join(_BASE64_FORMS.get(letter, letter) for letter in core)


_BASE64_FORMS = {
    "+": rf"(?:[+-]|%(?:25)*2[bB]|{_ESCAPE}u002[bB])",
    "/": rf"(?:[/_]|%(?:25)*2[fF]|{_ESCAPE}(?:/|u002[fF]))",
}


def _hex_of(content: bytes) -> str:
    return "".join(map(_digits, content))


def _digits(byte: int) -> str:
    return _digits_of(f"{byte:02x}")


def _digits_of(text: str) -> str:
    """Return an expression of hexadecimal digits in either case; a first u or x stands as it is."""
    first, rest = (text[0], text[1:]) if text[0] in "uUx" else ("", text)
    return first + "".join(f"[{c}{c.upper()}]" if c in "abcdef" else c for c in rest)


def _utf16(letter: str) -> list[int]:
    content = letter.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(content[at : at + 2], "big") for at in range(0, len(content), 2)]
