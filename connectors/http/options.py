"""The options of HTTP sources (docs/HTTP.md): read once, and refused by name.

Invariant: no option holds a secret itself. A header, parameter or body that needs one has a
reference, which is resolved for each request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from connectors.formats.declared import read_path
from connectors.option_reader import OptionReader
from connectors.polled.rows import RowOptions, SharedOptions, read_number, read_rows, read_shared
from connectors.url_options import read_headers, read_secret, read_texts, read_url

PAGE = "docs/HTTP.md"
MAX_ROWS = 1_000_000
LINK, CURSOR, NUMBER, OFFSET = "link", "cursor", "page", "offset"


@dataclass(frozen=True)
class Pagination:
    """How the next page is asked for; kind: "" if an answer is whole.

    parameter: of the URL, or `variable` of a GraphQL body. source: path of the next cursor in the
    answer, more: path of a flag that says whether there is one. first: number of the first page.
    size: rows of a page, 0 if unknown; size_parameter: to ask for so many.
    """

    kind: str = ""
    parameter: str = ""
    variable: str = ""
    source: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    first: int = 1
    size: int = 0
    size_parameter: str = ""


@dataclass(frozen=True)
class Request:
    """What is asked of the server. body: None, or JSON."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True)
class Limits:
    """timeout_s: of a request. max_bytes: of all answers to a poll. max_pages, max_rows: of a
    poll."""

    timeout_s: float = 30.0
    max_bytes: int = 256 << 20
    max_pages: int = 1000
    max_rows: int = MAX_ROWS


@dataclass(frozen=True)
class HttpRelation:
    """One relation. path: of the list of rows in an answer, () for the answer itself."""

    rows: RowOptions
    request: Request
    path: tuple[str, ...]
    pagination: Pagination

    @property
    def name(self) -> str:
        """Its name within the source."""
        return self.rows.name


@dataclass(frozen=True)
class HttpOptions:
    """A source. user, password, token: of all its requests; references. ca: a file, or ""."""

    relations: tuple[HttpRelation, ...]
    limits: Limits
    user: str = ""
    password: str = ""
    token: str = ""
    ca: str = ""


def read_options(options: Mapping[str, Any]) -> HttpOptions:
    """Return the options of a source. SourceError source.bad_option, secret.plain."""
    reader = OptionReader(options, "source", page=PAGE)
    base = read_url(reader, "url", reader.take("url", str))
    headers = read_headers(reader)
    query = read_texts(reader, "query")
    shared = read_shared(reader)
    limits = Limits(
        read_number(reader, "timeout_ms", 30_000, 600_000) / 1000,
        read_number(reader, "max_bytes", 256 << 20, 4 << 30),
        read_number(reader, "max_pages", 1000, 1_000_000),
        read_number(reader, "max_rows", MAX_ROWS, 100_000_000),
    )
    login = {name: read_secret(reader, name) for name in ("password", "token")}
    user, ca = reader.take("user", str, ""), reader.take("ca", str, "")
    if bool(user) != bool(login["password"]) or (user and login["token"]):
        raise reader.refused("user", "needs password, and excludes token")
    given = reader.take("relations", dict)
    reader.end()
    if not given:
        raise reader.refused("relations", "is empty", hint='give {"name": {"columns": [...]}}')
    defaults = _Defaults(base, headers, query, shared)
    found = [_relation(str(name), own, defaults) for name, own in given.items()]
    return HttpOptions(tuple(found), limits, user, login["password"], login["token"], ca)


@dataclass(frozen=True)
class _Defaults:
    """What relations have of their source."""

    url: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    shared: SharedOptions


def _relation(name: str, supplied: Any, defaults: _Defaults) -> HttpRelation:
    reader = OptionReader(supplied, "source", f"relations.{name}", PAGE)
    path = reader.take("path", str, "")
    url = read_url(reader, "path", defaults.url.rstrip("/") + path if path else defaults.url)
    body = reader.raw("body")
    method = reader.choice("method", ("GET", "POST"), "GET" if body is None else "POST")
    if body is not None and method == "GET":
        raise reader.refused("body", "needs the method POST")
    request = Request(
        url,
        method,
        {**defaults.headers, **read_headers(reader)},
        {**defaults.query, **read_texts(reader, "query")},
        body,
    )
    rows = read_rows(reader, name, defaults.shared)
    path_of_rows = read_path(reader.take("rows", str, "$"), "rows")
    pagination = _pagination(reader.under("pagination"), has_body=body is not None)
    reader.end()
    return HttpRelation(rows, request, path_of_rows, pagination)


def _pagination(reader: OptionReader | None, *, has_body: bool) -> Pagination:
    if reader is None:
        return Pagination()
    kind = reader.choice("type", (LINK, CURSOR, NUMBER, OFFSET), "")
    parameter, variable = reader.take("parameter", str, ""), ""
    source, more, first = (), (), 1
    if kind == CURSOR:
        variable = reader.take("variable", str, "")
        source = read_path(reader.take("from", str), "from")
        if flag := reader.take("more", str, ""):
            more = read_path(flag, "more")
        if bool(parameter) == bool(variable):
            raise reader.refused("parameter", "or variable must be given, and not both")
        if variable and not has_body:
            raise reader.refused("variable", "needs a body, whose variables it is among")
    elif kind in (NUMBER, OFFSET):
        parameter = parameter or kind
        first = read_number(reader, "first", 1 if kind == NUMBER else 0, 1 << 31, least=0)
    size = read_number(reader, "size", 0, 1 << 31, least=0)
    size_parameter = reader.take("size_parameter", str, "")
    if size_parameter and not size:
        raise reader.refused("size_parameter", "needs size")
    reader.end()
    return Pagination(kind, parameter, variable, source, more, first, size, size_parameter)
