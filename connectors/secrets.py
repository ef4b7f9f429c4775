"""Secrets by reference: `${env:NAME}` and `${file:/path}` stand where a secret is wanted.

Options are kept in the catalog, shown by the API and written to logs, so a secret never stands in
them. It is looked up where it is used and kept nowhere. Invariant: no error holds a secret.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from dataflow.errors import SourceError

_REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}")


def resolve(text: str) -> str:
    """The text with each reference replaced by what it refers to.

    A file's last line end is no part of the secret. SourceError `secret.missing` when there is
    no such variable or file.

    >>> resolve("no reference")
    'no reference'
    """
    return _REFERENCE.sub(lambda found: _looked_up(found[1], found[2]), text)


def is_reference(text: str) -> bool:
    """Whether a text is one reference and nothing else.

    >>> is_reference("${env:AWS_SECRET}"), is_reference("hunter2")
    (True, False)
    """
    return _REFERENCE.fullmatch(text) is not None


def refuse_plain(option: str, text: str) -> str:
    """The text, which must be a reference: a secret never stands in an option itself."""
    if not is_reference(text):
        what = f'option "{option}" must be a reference to a secret'
        raise SourceError("secret.plain", what, hint='write "${env:NAME}" or "${file:/path}"')
    return text


def _looked_up(kind: str, name: str) -> str:
    if kind == "env":
        found = os.environ.get(name)
        if found is None:
            what = f'the secret "${{env:{name}}}" is missing'
            raise SourceError("secret.missing", what, hint="set the variable for the service")
        return found
    try:
        return Path(name).read_text().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        what = f'the secret "${{file:{name}}}" cannot be read'
        detail = type(error).__name__
        raise SourceError("secret.missing", what, detail=detail, hint="check the file") from None
