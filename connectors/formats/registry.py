"""A client of schema registries with Confluent's REST interface.

The meaning of a schema id never changes, so schemas are cached by id forever. Invariant: an
unreachable registry is a TemporaryError, never a bad record. Options hold references to secrets,
and no error contains a secret.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import orjson

from connectors import secrets
from connectors.outside import texts
from connectors.outside.address import AddressError, parse_url
from connectors.outside.bounded import Bounds, Meter, OverLimitError
from connectors.outside.http import (
    Answer,
    BadAnswerError,
    HttpClient,
    Trust,
    UnreachableError,
    basic,
    bearer,
)
from dataflow.errors import SourceError, TemporaryError

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
OPTIONS = {"url", "user", "password", "token", "ca", "certificate", "key", "timeout_s"}
HEADER_BYTES = 5
_KNOWN = f"known: {', '.join(sorted(OPTIONS))}; url is http:// or https://"
# Schemas are texts of people; imports beyond this depth are a circle.
_ANSWER = Bounds(out_bytes=8 << 20)
MAX_REFERENCES, MAX_DEPTH = 500, 20
# That are remembered: records may name any id.
MAX_SCHEMAS = 1_000
_SHOWN_BYTES, _MAX_TIMEOUT_S = 800, 600.0
_HEADERS = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry.

    references: name -> text of all its transitive imports, dependencies first. version: in its
    subject, 0 if it was found by its id.
    """

    id: int
    type: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    version: int = 0


class _Imports:
    """Counts what one schema imports: a registry may name schemas in a circle."""

    def __init__(self) -> None:
        self._count = self._depth = 0

    @contextmanager
    def one_more(self, refused: Callable[[str, str], SourceError]) -> Iterator[None]:
        """Count an import, and what it imports itself within. SourceError registry.refused."""
        self._count += 1
        self._depth += 1
        if self._count > MAX_REFERENCES or self._depth > MAX_DEPTH:
            raise refused(
                "a schema", f"it imports more than {MAX_REFERENCES} others, or in a circle"
            )
        yield
        self._depth -= 1


class SchemaRegistry:
    """One registry. Used by one thread; nothing is reached before the first call."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        unknown = sorted(set(options) - OPTIONS)
        url = str(options.get("url", ""))
        if unknown:
            what, hint = f'the registry has no option "{unknown[0]}"', _KNOWN
            raise SourceError("format.option", what, hint=hint)
        try:
            self._url = parse_url(url.rstrip("/"))
        except AddressError as error:
            raise SourceError("format.option", f"the registry's url {error}", hint=_KNOWN) from None
        for name in ("password", "token"):
            if name in options:
                secrets.refuse_plain(f"registry.{name}", str(options[name]))
        self._options = options
        self._client: HttpClient | None = None
        self._by_id: dict[int, RegisteredSchema] = {}

    def by_id(self, id: int) -> RegisteredSchema | None:
        """Return the schema of an id, requested once; None if the registry has none.

        TemporaryError registry.unreachable. SourceError registry.login, registry.refused.
        """
        if id not in self._by_id:
            path = f"/schemas/ids/{id}"
            found = self._call("GET", path, missing=None)
            if found is None:
                return None
            with self._readable(path):
                self._by_id[id] = self._schema(id, found, 0, _Imports())
            if len(self._by_id) > MAX_SCHEMAS:
                del self._by_id[next(iter(self._by_id))]
        return self._by_id[id]

    def by_subject(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        """Return a version of a subject. SourceError registry.not_found, registry.refused."""
        return self._of_subject(subject, version, _Imports())

    def _of_subject(self, subject: str, version: int | str, imports: _Imports) -> RegisteredSchema:
        path = f"/subjects/{quote(subject, safe='')}/versions/{quote(str(version), safe='')}"
        found = self._call("GET", path, missing=None)
        if found is None:
            raise SourceError(
                "registry.not_found",
                f"the registry has no version {texts.clean(str(version))} of subject "
                f'"{texts.clean(subject)}"',
                hint="check subject and version; subjects of topics are <topic>-value, <topic>-key",
            )
        with self._readable(path):
            return self._schema(int(found["id"]), found, int(found["version"]), imports)

    def register(self, subject: str, text: str, type: str = AVRO) -> int:
        """Register a schema in the subject unless it exists; return its id.

        SourceError registry.refused: it is invalid or incompatible.
        """
        body = {"schema": text} if type == AVRO else {"schema": text, "schemaType": type}
        path = f"/subjects/{quote(subject, safe='')}/versions"
        answer = self._call("POST", path, body)
        with self._readable(path):
            return int(answer["id"])

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    @contextmanager
    def _readable(self, path: str) -> Iterator[None]:
        """Refuse an answer that has not the fields of a schema. SourceError registry.refused."""
        try:
            yield
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._refused(
                path, f"its answer is no schema: {texts.described(error)}"
            ) from None

    def _schema(
        self, id: int, found: Mapping[str, Any], version: int, imports: _Imports
    ) -> RegisteredSchema:
        references: dict[str, str] = {}
        for one in found.get("references") or ():
            with imports.one_more(self._refused):
                inner = self._of_subject(str(one["subject"]), str(one["version"]), imports)
            references |= {**inner.references, str(one["name"]): inner.text}
        text, type = found["schema"], found.get("schemaType", AVRO)
        if not isinstance(text, str) or not isinstance(type, str):
            raise TypeError("schema and schemaType are no texts")
        return RegisteredSchema(id, type, text, references, version)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, missing: Any = ...
    ) -> Any:
        if self._client is None:
            self._client = self._connect()
        content = b"" if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"} if content else {}
        url = replace(self._url, path=self._url.path + path)
        try:
            with self._client.ask(
                method, url, headers=headers, content=content, meter=Meter(_ANSWER)
            ) as answer:
                status, found = answer.status, _parsed(answer)
        except UnreachableError as error:
            raise self._away(str(error)) from None
        if status >= 500 or status in (408, 429):
            raise self._away(f"HTTP {status}")
        if status in (401, 403):
            raise SourceError(
                "registry.login",
                f"the schema registry {self._url} rejects the login",
                detail=f"HTTP {status}",
                hint="check user and password, or the token",
            )
        if status == 404 and missing is None:
            return None
        if status != 200 or not isinstance(found, dict):
            text = found.get("message", "") if isinstance(found, dict) else found
            raise self._refused(f"{method} {path}", f"HTTP {status}: {texts.shown(text, 200)}")
        return found

    def _refused(self, request: str, detail: str) -> SourceError:
        return SourceError(
            "registry.refused",
            f"the schema registry {self._url} refuses {texts.clean(request)}",
            detail=detail,
            hint="check that the URL is a schema registry's and that the schema is compatible",
        )

    def _away(self, detail: str) -> TemporaryError:
        what = f"the schema registry {self._url} does not answer"
        return TemporaryError("registry.unreachable", what, detail=detail)

    def _connect(self) -> HttpClient:
        options, headers = self._options, dict(_HEADERS)
        if "token" in options:
            headers |= bearer(secrets.resolve(str(options["token"])))
        elif "user" in options:
            password = secrets.resolve(str(options.get("password", "")))
            headers |= basic(secrets.resolve(str(options["user"])), password)
        files = [str(options.get(name) or "") for name in ("ca", "certificate", "key")]
        try:
            # Schemas are requested once; nothing would close an idle connection.
            return HttpClient(
                timeout_s=_timeout_s(options.get("timeout_s", 10)),
                trust=Trust(*files),
                headers=headers,
                has_keepalive=False,
            )
        except SourceError as error:
            if error.code != "source.bad_option":
                raise
            raise SourceError(
                "format.option",
                "the registry's certificates cannot be read",
                detail=error.detail,
                hint="ca, certificate and key are paths of PEM files",
            ) from None


def _parsed(answer: Answer) -> Any:
    """Return the JSON of an answer; its beginning as a text if it has none."""
    if not 200 <= answer.status < 500:
        return ""
    try:
        content = answer.content()
    except (BadAnswerError, OverLimitError) as error:
        return str(error)
    try:
        return orjson.loads(content)
    except ValueError:
        return content[:_SHOWN_BYTES]


def _timeout_s(given: Any) -> float:
    """Return a time limit. SourceError format.option."""
    try:
        found = float(given)
    except (TypeError, ValueError):
        found = 0.0
    if not 0 < found <= _MAX_TIMEOUT_S:
        what, hint = "the registry's timeout_s is no time", f"seconds, up to {_MAX_TIMEOUT_S:g}"
        raise SourceError("format.option", what, hint=hint)
    return found


def split_header(record: bytes) -> tuple[int, bytes] | None:
    """Return (schema id, the rest) of a record in the registry's wire format, else None.

    >>> split_header(bytes([0, 0, 0, 0, 7, 42]))
    (7, b'*')
    """
    if len(record) < HEADER_BYTES or record[0] != 0:
        return None
    return struct.unpack(">I", record[1:HEADER_BYTES])[0], record[HEADER_BYTES:]


def wire_header(id: int) -> bytes:
    """Return the header of a record in the registry's wire format."""
    return b"\0" + struct.pack(">I", id)
