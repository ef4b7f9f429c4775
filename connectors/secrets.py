"""Secrets by reference: `${env:NAME}` and `${file:/path}` stand where a secret is wanted.

Options are kept in the catalog, shown by the API and written to logs, so a secret never stands in
them. It is looked up where it is used and kept nowhere. Invariant: no error holds a secret, and
what a user of the API refers to is of what `allow` permits: a reference must not be a way to read
any variable or file of the service.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote

from dataflow.errors import SourceError

_REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}")
# Shorter ones would be found in any text, and what is missing there would tell them.
LEAST_KNOWN = 6
_BEFORE, _BEHIND = r"(?<=[\"'=:])", r"(?=[\"'\s,;:&@)]|\Z)"


@dataclass(frozen=True)
class Allowed:
    """What references in options may name: variables by globs, files below folders."""

    variables: Sequence[str] = ("*",)
    folders: Sequence[str] = ("/",)

    def has(self, kind: str, name: str) -> bool:
        """Whether a variable or file may be referred to; links are followed first.

        >>> Allowed(["APP_*"], ["/run/secrets"]).has("env", "PATH")
        False
        >>> Allowed(["APP_*"], ["/run/secrets"]).has("file", "/run/secrets/../../etc/passwd")
        False
        """
        if kind == "env":
            return any(fnmatchcase(name, glob) for glob in self.variables)
        path = Path(os.path.realpath(name))
        return any(path.is_relative_to(os.path.realpath(folder)) for folder in self.folders)


_allowed = Allowed()
_known: set[str] = set()


def allow(variables: Sequence[str], folders: Sequence[str]) -> None:
    """Say once, when a process starts, what options may refer to; before it anything."""
    global _allowed
    _allowed = Allowed(tuple(variables), tuple(folders))


def resolve(text: str) -> str:
    """The text with each reference replaced by what it refers to.

    A file's last line end is no part of the secret. SourceError `secret.missing` when there is
    no such variable or file, `secret.forbidden` when options may not refer to it.

    >>> resolve("no reference")
    'no reference'
    """
    return _REFERENCE.sub(lambda found: _looked_up(found[1], found[2]), text)


def resolve_setting(text: str) -> str:
    """The same for the service's own settings, which may name whatever the service can read."""
    return _REFERENCE.sub(lambda found: _read(found[1], found[2]), text)


def is_reference(text: str) -> bool:
    """Whether a text is one reference and nothing else.

    >>> is_reference("${env:AWS_SECRET}"), is_reference("hunter2")
    (True, False)
    """
    return _REFERENCE.fullmatch(text) is not None


def escaped(uri: str) -> str:
    """A URI whose references are written as a URI's parser wants them.

    >>> escaped("postgresql://me:${file:/run/pw}@db/shop")
    'postgresql://me:%24%7Bfile%3A%2Frun%2Fpw%7D@db/shop'
    """
    return _REFERENCE.sub(lambda found: quote(found[0], safe=""), uri)


def refuse_plain(option: str, text: str) -> str:
    """The text, which must be a reference: a secret never stands in an option itself."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        what = f'option "{option}" must be a reference to a secret'
        raise SourceError("secret.plain", what, hint='write "${env:NAME}" or "${file:/path}"')
    _require_allowed(found[1], found[2])
    return text


def remember(secret: str) -> None:
    """Note a secret that this process holds, so that `hide` finds it wherever it stands."""
    if len(secret) >= LEAST_KNOWN:
        _known.add(secret)


def without(text: str, secret: str) -> str:
    """A text about a secret's use without that secret.

    One of LEAST_KNOWN letters or more is replaced wherever it stands; a shorter one only where it
    is a whole value, in quotes or after "=" or ":", and never inside a word.

    >>> without("password=a: a user has failed", "a"), without("xhunter2y", "hunter2")
    ('password=***: a user has failed', 'x***y')
    """
    if len(secret) >= LEAST_KNOWN:
        return text.replace(secret, "***")
    return re.sub(_BEFORE + re.escape(secret) + _BEHIND, "***", text) if secret else text


def hide(text: str) -> str:
    """The text with *** for every secret that this process has looked up.

    The second line behind the first, that no secret gets into a text that is shown.
    """
    for secret in tuple(_known):
        if secret in text:
            text = text.replace(secret, "***")
    return text


def _require_allowed(kind: str, name: str) -> None:
    if not _allowed.has(kind, name):
        what = f'the reference "${{{kind}:{name}}}" may not be used'
        hint = (
            "name a variable that TIDEMARK_SECRET_VARIABLES allows"
            if kind == "env"
            else "put the file where TIDEMARK_SECRET_FOLDERS allows it"
        )
        raise SourceError("secret.forbidden", what, hint=hint)


def _looked_up(kind: str, name: str) -> str:
    _require_allowed(kind, name)
    return _read(kind, name)


def _read(kind: str, name: str) -> str:
    if kind == "env":
        found = os.environ.get(name)
        if found is None:
            what = f'the secret "${{env:{name}}}" is missing'
            raise SourceError("secret.missing", what, hint="set the variable for the service")
    else:
        try:
            found = Path(name).read_text().removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            what = f'the secret "${{file:{name}}}" cannot be read'
            detail = type(error).__name__
            raise SourceError(
                "secret.missing", what, detail=detail, hint="check the file"
            ) from None
    remember(found)
    return found
