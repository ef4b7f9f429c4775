"""Secrets by reference: options hold `${env:NAME}` or `${file:/path}` instead of a secret.

Options are stored in the catalog, shown by the API and logged, so they must not contain secrets. A
secret is resolved where it is used and stored nowhere. Invariant: no error contains a secret. A
reference from an API user must match what `allow` permits; otherwise references could read any
variable or file of the service.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

from connectors.secret_forms import LEAST_CHARACTERS, forms_of
from dataflow.errors import SourceError, redact_by

_REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}")
_SURROGATES = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_BEFORE, _AFTER = r"(?<=[\"'=:])", r"(?=[\"'\s,;:&@)]|\Z)"


@dataclass(frozen=True)
class Allowed:
    """What references in options may name: variables by globs, files by folder."""

    variables: Sequence[str] = ("*",)
    folders: Sequence[str] = ("/",)

    def has(self, kind: str, name: str) -> bool:
        """Return True if a reference may name this variable or file; links are followed first.

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
# In a process that gets its secrets from another one: all that it may use, by reference.
_handed_over: Mapping[str, str] | None = None
# Longest first: a secret may be part of another one.
_known: list[str] = []


def allow(variables: Sequence[str], folders: Sequence[str]) -> None:
    """Set what options may refer to, once when a process starts; before that, anything."""
    global _allowed
    _allowed = Allowed(tuple(variables), tuple(folders))


def resolve(text: str) -> str:
    """Return the text with each reference replaced by its secret.

    A file's last line end is not part of the secret. SourceError `secret.missing`: no such variable
    or file. `secret.forbidden`: options may not refer to it. `secret.bad_text`: it has a line end
    or another control character, which no password or key has.

    >>> resolve("no reference")
    'no reference'
    """
    return _REFERENCE.sub(lambda found: _looked_up(found[1], found[2]), text)


def resolve_setting(text: str) -> str:
    """Resolve references in the service's own settings, which may name anything it can read."""
    return _REFERENCE.sub(lambda found: _read(found[1], found[2]), text)


def is_reference(text: str) -> bool:
    """Return True if a text is exactly one reference.

    >>> is_reference("${env:AWS_SECRET}"), is_reference("hunter2")
    (True, False)
    """
    return _REFERENCE.fullmatch(text) is not None


def has_reference(text: str) -> bool:
    """Return True if a text has a reference in it.

    >>> has_reference("Bearer ${env:TOKEN}"), has_reference("Bearer hunter2")
    (True, False)
    """
    return _REFERENCE.search(text) is not None


def resolve_all(value: Any) -> Any:
    """Return a value of JSON with the references in its texts replaced, as `resolve` does."""
    if isinstance(value, str):
        return resolve(value)
    if isinstance(value, Mapping):
        return {name: resolve_all(one) for name, one in value.items()}
    return [resolve_all(one) for one in value] if isinstance(value, list) else value


def resolved_in(value: Any) -> dict[str, str]:
    """Return the secrets that texts in a value refer to, by reference, for another process.

    value: of JSON, or of dataclasses with such values. Errors as those of `resolve`.

    >>> resolved_in({"password": "none", "servers": ["a:1"]})
    {}
    """
    if isinstance(value, str):
        found = _REFERENCE.finditer(value)
        return {one[0]: _looked_up(one[1], one[2]) for one in found}
    if is_dataclass(value):
        return resolved_in([getattr(value, field.name) for field in fields(value)])
    several = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        return {name: one for part in several for name, one in resolved_in(part).items()}
    return {}


def use(found: Mapping[str, str]) -> None:
    """Resolve these references from now on, and no others: a process of a connector has neither the
    service's environment nor business in its files.
    """
    global _handed_over
    _handed_over = dict(found)
    for secret in found.values():
        remember(secret)


def escaped(uri: str) -> str:
    """Return a URI with its references percent-encoded for a URI parser.

    >>> escaped("postgresql://me:${file:/run/pw}@db/shop")
    'postgresql://me:%24%7Bfile%3A%2Frun%2Fpw%7D@db/shop'
    """
    return _REFERENCE.sub(lambda found: quote(found[0], safe=""), uri)


def refuse_plain(option: str, text: str) -> str:
    """Return the text, which must be a reference: an option never holds a secret itself."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        what = f'option "{option}" must be a reference to a secret'
        hint = 'write "${env:NAME}" or "${file:/path}"'
        raise SourceError("secret.plain", what, hint=hint, option=option)
    _require_allowed(found[1], found[2])
    return text


def remember(secret: str) -> None:
    """Register a secret that this process uses, so that `hide` removes it from any text."""
    # A header is read without the spaces around it.
    for form in (secret, secret.strip()):
        if len(form) >= LEAST_CHARACTERS and form not in _known:
            _known.append(form)
            _known.sort(key=len, reverse=True)


def without(text: str, secret: str) -> str:
    """Return an error text without the secret that it is about.

    A secret of LEAST_CHARACTERS or more is replaced anywhere, in all its forms. A shorter one is
    replaced only as a whole value, in quotes or after "=" or ":", and never inside a word.

    >>> without("password=a: a user has failed", "a"), without("xhunter2y", "hunter2")
    ('password=***: a user has failed', 'x***y')
    """
    if len(secret) >= LEAST_CHARACTERS:
        return forms_of(secret).hidden(text)
    return re.sub(_BEFORE + re.escape(secret) + _AFTER, "***", text) if secret else text


def hide(text: str) -> str:
    """Return the text with *** for every secret that this process has resolved, in all its forms.

    Every error of ours passes through here when it is made, and every line of a log.
    """
    for secret in tuple(_known):
        text = forms_of(secret).hidden(text)
    return text


redact_by(hide)


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
    found = _read(kind, name)
    if _CONTROL.search(found):
        raise _bad_text(f"${{{kind}:{name}}}", "it has a line end or another control character")
    return found


def _bad_text(reference: str, detail: str) -> SourceError:
    what = f'the secret "{reference}" cannot be used'
    hint = "write it without a line end; a file may have one at its end"
    return SourceError("secret.bad_text", what, detail=detail, hint=hint)


def _read(kind: str, name: str) -> str:
    if _handed_over is not None:
        found = _handed_over.get(f"${{{kind}:{name}}}")
        if found is None:
            what = f'the secret "${{{kind}:{name}}}" is not among those of this process'
            raise SourceError("secret.missing", what, hint="report the error to the developers")
    elif kind == "env":
        # Bytes that are no UTF-8 become halves of surrogate pairs.
        found = os.environ.get(name)
        if found is None or _SURROGATES.search(found):
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
