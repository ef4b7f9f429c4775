"""A client of schema registries with Confluent's REST interface.

The meaning of a schema id never changes, so schemas are cached by id forever. Invariant: an
unreachable registry is a TemporaryError, never a bad record. Options hold references to secrets,
and no error contains a secret.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from connectors import netguard, secrets
from dataflow.errors import SourceError, TemporaryError

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
OPTIONS = {"url", "user", "password", "token", "ca", "certificate", "key", "timeout_s"}
HEADER_BYTES = 5
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


class SchemaRegistry:
    """One registry. Used by one thread; nothing is reached before the first call."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        unknown = sorted(set(options) - OPTIONS)
        url = str(options.get("url", ""))
        if unknown or not url.startswith(("http://", "https://")):
            what = f'the registry has no option "{unknown[0]}"' if unknown else "no registry URL"
            hint = f"known: {', '.join(sorted(OPTIONS))}; url is http:// or https://"
            raise SourceError("format.option", what, hint=hint)
        for name in ("password", "token"):
            if name in options:
                secrets.refuse_plain(f"registry.{name}", str(options[name]))
        self._options = options
        self._url = url.rstrip("/")
        self._client: httpx.Client | None = None
        self._by_id: dict[int, RegisteredSchema] = {}

    def by_id(self, id: int) -> RegisteredSchema | None:
        """Return the schema of an id, requested once; None if the registry has none.

        TemporaryError registry.unreachable. SourceError registry.login, registry.refused.
        """
        if id not in self._by_id:
            found = self._call("GET", f"/schemas/ids/{id}", missing=None)
            if found is None:
                return None
            self._by_id[id] = self._schema(id, found, 0)
        return self._by_id[id]

    def by_subject(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        """Return a version of a subject. SourceError registry.not_found."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        found = self._call("GET", path, missing=None)
        if found is None:
            raise SourceError(
                "registry.not_found",
                f'the registry has no version {version} of subject "{subject}"',
                hint="check subject and version; subjects of topics are <topic>-value, <topic>-key",
            )
        return self._schema(int(found["id"]), found, int(found["version"]))

    def register(self, subject: str, text: str, type: str = AVRO) -> int:
        """Register a schema in the subject unless it exists; return its id.

        SourceError registry.refused: it is invalid or incompatible.
        """
        body = {"schema": text} if type == AVRO else {"schema": text, "schemaType": type}
        answer = self._call("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        return int(answer["id"])

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _schema(self, id: int, found: Mapping[str, Any], version: int) -> RegisteredSchema:
        references: dict[str, str] = {}
        for one in found.get("references") or ():
            inner = self.by_subject(one["subject"], one["version"])
            references |= {**inner.references, one["name"]: inner.text}
        return RegisteredSchema(
            id, found.get("schemaType", AVRO), found["schema"], references, version
        )

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, missing: Any = ...
    ) -> Any:
        if self._client is None:
            self._client = self._connect()
        # Checked for every request, as a name may have a new address. Redirects are not followed.
        netguard.check_url(self._url)
        try:
            answer = self._client.request(method, self._url + path, json=body)
        except httpx.TransportError as error:
            detail = f"{type(error).__name__}: {error}"
            raise self._away(detail) from None
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise self._away(f"HTTP {answer.status_code}")
        if answer.status_code in (401, 403):
            raise SourceError(
                "registry.login",
                f"the schema registry {self._url} rejects the login",
                detail=f"HTTP {answer.status_code}",
                hint="check user and password, or the token",
            )
        if answer.status_code == 404 and missing is None:
            return None
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status_code != 200 or not isinstance(found, dict):
            message = found.get("message", "") if isinstance(found, dict) else answer.text[:200]
            raise SourceError(
                "registry.refused",
                f"the schema registry {self._url} refuses {method} {path}",
                detail=f"HTTP {answer.status_code}: {message}",
                hint="check that the URL is a schema registry's and that the schema is compatible",
            )
        return found

    def _away(self, detail: str) -> TemporaryError:
        what = f"the schema registry {self._url} does not answer"
        return TemporaryError("registry.unreachable", what, detail=detail)

    def _connect(self) -> httpx.Client:
        options = self._options
        headers, auth = dict(_HEADERS), None
        if "token" in options:
            headers["Authorization"] = f"Bearer {secrets.resolve(str(options['token']))}"
        elif "user" in options:
            password = secrets.resolve(str(options.get("password", "")))
            auth = httpx.BasicAuth(secrets.resolve(str(options["user"])), password)
        for name in ("ca", "certificate", "key"):
            netguard.check_certificate(str(options.get(name) or ""))
        try:
            verify = ssl.create_default_context(cafile=options.get("ca"))
            if "certificate" in options:
                verify.load_cert_chain(options["certificate"], options.get("key"))
        except OSError as error:
            raise SourceError(
                "format.option",
                "the registry's certificates cannot be read",
                detail=str(error),
                hint="ca, certificate and key are paths of PEM files",
            ) from None
        return httpx.Client(
            headers=headers,
            auth=auth,
            verify=verify,
            timeout=float(options.get("timeout_s", 10)),
            follow_redirects=False,
            # Schemas are requested once; nothing would close an idle connection.
            limits=httpx.Limits(max_keepalive_connections=0),
            # A proxy from the environment would resolve names itself and bypass our guard.
            trust_env=False,
        )


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
