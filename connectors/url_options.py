"""Options that sources with a URL share: the URL itself, headers, parameters, secrets.

Invariant: no option holds a secret itself. What looks like one by its name must have a reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from connectors.option_reader import OptionReader
from connectors.outside.address import AddressError, parse_url
from connectors.secrets import has_reference, is_reference

_SECRET = re.compile(
    r"auth|token|secret|passw|cookie|credential|(^|[_-])key$|api-?key", re.IGNORECASE
)
# Headers that are ours: they decide what the answer means.
_OWN_HEADERS = {"host", "content-length", "transfer-encoding", "connection", "if-none-match"}
_HINT = 'such as "Bearer ${env:API_TOKEN}" or "${file:/run/secrets/token}"'


def read_url(
    reader: OptionReader, option: str, text: str, schemes: Sequence[str] = ("http", "https")
) -> str:
    """Return a plain URL, rebuilt from its parts, without login and fragment. SourceError
    source.bad_option."""
    try:
        return str(parse_url(text, schemes))
    except AddressError as error:
        hint = "use user and password" if "login" in str(error) else ""
        raise reader.refused(option, str(error), hint=hint) from None


def read_headers(reader: OptionReader, own: Sequence[str] = ()) -> dict[str, str]:
    """Return option headers. own: more names, in lower case, that users cannot set."""
    found = read_texts(reader, "headers")
    refused = _OWN_HEADERS | set(own)
    for name in found:
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or name.lower() in refused:
            raise reader.refused("headers", f'has the name "{name}", which cannot be set')
        if any(letter in found[name] for letter in "\r\n\0"):
            raise reader.refused("headers", f'"{name}" has a line end in its value')
    return found


def read_texts(reader: OptionReader, option: str) -> dict[str, str]:
    """Return an object of texts. What looks like a secret by its name must have a reference."""
    found = reader.take(option, dict, {})
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise reader.refused(option, f'"{name}" must be a text or a number')
    refuse_secrets(reader, option, found)
    return {str(name): str(value) for name, value in found.items()}


def read_secret(reader: OptionReader, option: str) -> str:
    """Return a reference to a secret, "" without the option. SourceError source.bad_option."""
    found = reader.take(option, str, "")
    if found and not is_reference(found):
        raise reader.refused(option, "must refer to a secret", hint='write "${env:NAME}"')
    return found


def refuse_secrets(reader: OptionReader, option: str, value: Any) -> None:
    """Refuse JSON in which a value looks like a secret by its name and has no reference."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            is_leaf = isinstance(one, str | int | float) and not isinstance(one, bool)
            if is_leaf and _SECRET.search(str(name)) and not has_reference(str(one)):
                raise reader.refused(option, f'"{name}" must refer to a secret', hint=_HINT)
            refuse_secrets(reader, option, one)
    elif isinstance(value, list):
        for one in value:
            refuse_secrets(reader, option, one)
