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
# A backslash, which may be escaped up to four times; bounded, for texts full of them. This and what
# else begins an escape may be percent-encoded in turn.
_BACKSLASHES = r"(?:\\|%(?:25)*5[cC]){1,16}"
_AMPERSAND, _HASH, _END = "(?:&|%(?:25)*26)", "(?:#|%(?:25)*23)", "(?:;|%(?:25)*3[bB])"
# Of one character of a secret, where it is looked for at the end of a text; and what may be left of
# an escape that was cut.
_MOST_ESCAPED = 16
_PARTIAL = re.compile(r"[%\\&#][0-9A-Za-z%\\&#;{]{0,31}|")
_LEAST_ENCODED = 8
_URL_SAFE = str.maketrans("-_", "+/")
_LETTERS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\v": "v", "\a": "a"}
_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}


class SecretForms:
    """The forms of one secret of LEAST_CHARACTERS or more."""

    def __init__(self, secret: str) -> None:
        content = secret.encode(errors="surrogatepass")
        is_long = len(secret) > _MOST_CHARACTERS
        self._secret = secret
        self._units = [c if is_long and c.isascii() and c.isalnum() else _unit(c) for c in secret]
        self._escaped = re.compile(f"{''.join(self._units)}|{_hex_of(content)}")
        encodings = {content, secret.encode("latin-1", "ignore")}
        cores = [core for one in encodings if len(one) >= LEAST_CHARACTERS for core in _cores(one)]
        self._base64 = re.compile("|".join(map(_base64_form, cores)))
        self._begin = re.compile("".join(self._units[:LEAST_CHARACTERS]))
        self._encoded = [*cores, content.hex()]

    def hidden(self, text: str) -> str:
        """Return the text with *** for the secret in all its forms."""
        text = self._escaped.sub(MASK, text)
        if self._base64.search(text):
            text = "".join(self._without_base64(text))
        cut = self._where_cut(text)
        return text if cut is None else text[:cut] + MASK + "." * (len(text) - len(_undotted(text)))

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

    def _ends(self, text: str, at: int) -> Iterator[int]:
        """Yield where the secret may end that begins at a place, from its shortest begin on."""
        ends = {at}
        for number, letter in enumerate(self._secret):
            if number >= LEAST_CHARACTERS:
                yield from ends
            unit = re.compile(self._units[number])
            found = (unit.match(text, end) for end in ends)
            # What begins an escape may also stand for itself.
            plain = {end + 1 for end in ends if text.startswith(letter, end)}
            ends = plain | {one.end() for one in found if one is not None}

    def _where_cut(self, text: str) -> int | None:
        """Return where a secret begins that the end of the text has cut; None if there is none."""
        text = _undotted(text)
        first = max(0, len(text) - _MOST_ESCAPED * len(self._units))
        for found in self._begin.finditer(text, first):
            if any(_PARTIAL.fullmatch(text, end) for end in self._ends(text, found.start())):
                return found.start()
        normal = text[first:].translate(_URL_SAFE)
        for whole, tail in ((w, t) for w in self._encoded for t in (normal, normal.lower())):
            at = tail.find(whole[:_LEAST_ENCODED])
            while at >= 0:
                if whole.startswith(tail[at:]):
                    while at and tail[at - 1] in _BASE64:
                        at -= 1
                    return first + at
                at = tail.find(whole[:_LEAST_ENCODED], at + 1)
        return None


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
    percent = "".join(f"%(?:25)*{_digits(one)}" for one in content)
    entities = [f"{_HASH}0*{code}{_END}?", f"{_HASH}[xX]0*{_digits_of(f'{code:x}')}{_END}?"]
    entities += [f"{_ENTITIES[letter]}{_END}"] if letter in _ENTITIES else []
    entity = f"{_AMPERSAND}(?:amp;)*(?:{'|'.join(entities)})"
    escapes = [
        _BACKSLASHES.join(_digits_of(f"u{unit:04x}") for unit in _utf16(letter)),
        _digits_of(f"U{code:08x}"),
        rf"u\{{0*{_digits_of(f'{code:x}')}\}}",
        _BACKSLASHES.join(f"{one:03o}" for one in content),
    ]
    if code < 256:
        escapes.append(_digits_of(f"x{code:02x}"))
    if letter in _LETTERS:
        escapes.append(_LETTERS[letter])
    if not letter.isalnum():
        escapes += [percent, entity, re.escape(letter)]
    forms = [f"{_BACKSLASHES}(?:{'|'.join(escapes)})", percent, entity]
    if len(content) > 1:
        parts = _BACKSLASHES.join(_digits_of(f"x{one:02x}") for one in content)
        forms += [_BACKSLASHES + parts, re.escape(content.decode("latin-1")), "[?\ufffd]{1,4}"]
    if letter == "'":
        forms += ["''", "(?:%(?:25)*27){2}"]
    elif letter == " ":
        forms.append(r"\+")
    # Last: "%" and "&" begin other forms of themselves.
    return f"(?:{'|'.join(forms)}|{re.escape(letter)})"


def _cores(content: bytes) -> Iterator[str]:
    """Yield what Base64 makes of a secret for each place that it may begin at."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + content).decode()
        # Only characters of which all bits are the secret's.
        yield encoded[(0, 2, 3)[before] : (before + len(content)) * 8 // 6]


def _base64_form(core: str) -> str:
    between = r"(?:\\[rn]|\s){0,4}" if len(core) > _BASE64_LINE else ""
    return between.join(_BASE64_FORMS.get(letter, letter) for letter in core)


def _undotted(text: str) -> str:
    """Return the text without the dots that show that it was cut."""
    return text.rstrip(".")


_BASE64_FORMS = {
    "+": rf"(?:[+-]|%(?:25)*2[bB]|{_BACKSLASHES}u002[bB])",
    "/": rf"(?:[/_]|%(?:25)*2[fF]|{_BACKSLASHES}(?:/|u002[fF]))",
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
