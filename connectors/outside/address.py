"""The grammar of addresses from outside: URLs, hosts, ports, folders and buckets.

Two readers of one text may find two hosts in it. So there is one reader, it refuses whatever others
could read in another way, and clients get the text that is rebuilt from its parts, never the text
that was given. Invariant: `parse_url(str(url)) == url`. What is allowed is `connectors.netguard`'s.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

HTTP = ("http", "https")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_URL_CHARACTERS = 8_192
_HOST_CHARACTERS, _MOST_PORT = 253, 65_535
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# A last label like these is a number, so the whole host would be an IPv4 address.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
# White space, control characters, halves of surrogate pairs, and what is never bare in a URL.
_NOT_IN_URL = re.compile("[\x00-\x20\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000]")
_NOT_IN_TEXT = re.compile('[\ud800-\udfff\ufeff\\\\<>"`]')
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
# Characters that stand for themselves in a path and a query, beside letters and digits.
_IN_PATH, _IN_QUERY = "/:@!$&'()*+,;=-._~%[]{}|^", "/:@!$&'()*+,;=-._~%?[]{}|^"


class AddressError(ValueError):
    """An address is refused; the text says why, to follow "the address" or an option's name."""


@dataclass(frozen=True)
class Url:
    """A checked URL. host: in lower case, an IPv6 address without brackets. port: never 0.

    path: as it is sent, percent-encoded: "" or from "/" on. query: likewise, without "?". user,
    password: decoded; only where they are allowed. Its text names no default port.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    query: str = ""
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        login = quote(self.user, safe="") if self.user else ""
        if self.password:
            login += ":" + quote(self.password, safe="")
        query = f"?{self.query}" if self.query else ""
        authority = f"{login}@{self.authority}" if login else self.authority
        return f"{self.scheme}://{authority}{self.path}{query}"

    @property
    def authority(self) -> str:
        """The host, in brackets if need be, with the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = _DEFAULT_PORTS.get(self.scheme) == self.port
        return host if is_default else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """What has to be equal for two URLs to lead to one server."""
        return self.scheme, self.host, self.port

    @property
    def shown(self) -> str:
        """The URL for errors: without login and query, which may hold secrets."""
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_url(
    text: str,
    schemes: Sequence[str] = HTTP,
    *,
    default_port: int = 0,
    may_have_login: bool = False,
) -> Url:
    """Return the parts of a URL. AddressError: it is not plain; see the module.

    default_port: of a scheme that has none by itself.

    >>> str(parse_url("HTTP://Shop.example:80/a?q=ü"))
    'http://shop.example/a?q=%C3%BC'
    >>> parse_url("http://a@b")
    Traceback (most recent call last):
    connectors.outside.address.AddressError: must not contain a login
    """
    _check_characters(text)
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    if found is None or scheme not in schemes:
        raise AddressError("must be " + " or ".join(f"{known}://host/..." for known in schemes))
    rest = text[found.end() :]
    end = next((at for at, letter in enumerate(rest) if letter in "/?#"), len(rest))
    authority, rest = rest[:end], rest[end:]
    if "#" in rest:
        raise AddressError("has a fragment")
    login, at, server = authority.rpartition("@")
    if at and not may_have_login:
        raise AddressError("must not contain a login")
    user, password = _login_of(login) if at else ("", "")
    host, port = _server_of(server)
    port = port or _DEFAULT_PORTS.get(scheme, default_port)
    if not port:
        raise AddressError("names no port")
    path, _, query = rest.partition("?")
    sent = _encoded(path, _IN_PATH), _encoded(query, _IN_QUERY)
    return Url(scheme, host, port, *sent, user=user, password=password)


def join_url(base: Url, reference: str) -> Url:
    """Return where a reference of an answer leads: a URL, a path, or parameters. AddressError.

    >>> base = parse_url("https://a.example/v1/items?page=1")
    >>> [str(join_url(base, to)) for to in ("?page=2", "/v2", "more")]
    ['https://a.example/v1/items?page=2', 'https://a.example/v2', 'https://a.example/v1/more']
    """
    _check_characters(reference)
    if _SCHEME.match(reference):
        return parse_url(reference, HTTP)
    if reference.startswith("//"):
        return parse_url(f"{base.scheme}:{reference}", HTTP)
    if re.match(r"[^/?#]*:", reference):
        raise AddressError("has another scheme than http and https")
    if reference.startswith("/"):
        path = reference
    elif reference.startswith("?"):
        path = base.path + reference
    else:
        path = f"{base.path.rpartition('/')[0]}/{reference}"
    origin = replace(base, path="", query="", user="", password="")
    return parse_url(f"{origin}{path}", (base.scheme,))


def parse_host(text: str) -> str:
    """Return a host in lower case: a name, or an address in its usual form. AddressError.

    An IPv6 address may be in brackets; they are no part of what is returned. Forms that only some
    readers know are refused: 0x7f.1, 2130706433, 127.1, 0177.0.0.1, a dot at the end, zones.

    >>> parse_host("DB.shop"), parse_host("[::1]"), parse_host("10.0.0.1")
    ('db.shop', '::1', '10.0.0.1')
    """
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in inner:
        if not re.fullmatch(r"[0-9A-Fa-f:.]+", inner):
            raise AddressError("has no plain IPv6 address; a zone cannot be named")
        try:
            return str(ipaddress.IPv6Address(inner))
        except ValueError:
            raise AddressError("has no valid IPv6 address") from None
    if inner != text:
        raise AddressError("has brackets without an IPv6 address")
    if not text:
        raise AddressError("names no host")
    if not text.isascii():
        raise AddressError("has a host with letters beyond ASCII; write it as xn--...")
    host = text.lower()
    labels = host.split(".")
    if len(host) > _HOST_CHARACTERS or not all(_LABEL.fullmatch(label) for label in labels):
        raise AddressError("has no valid host")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise AddressError("has an unusual spelling of an IPv4 address") from None
    return host


def parse_port(text: str) -> int:
    """Return a port, 1 to 65535. AddressError.

    >>> parse_port("5432")
    5432
    """
    if not _PORT.fullmatch(text) or int(text) > _MOST_PORT:
        raise AddressError("has no valid port")
    return int(text)


def parse_server(text: str, default_port: int = 0) -> tuple[str, int]:
    """Return host and port of "host:port". AddressError.

    >>> parse_server("db:5432"), parse_server("[::1]", 5432)
    (('db', 5432), ('::1', 5432))
    """
    _check_characters(text)
    host, port = _server_of(text)
    if not (port or default_port):
        raise AddressError("names no port")
    return host, port or default_port


def parse_folder(text: str) -> str:
    """Return an absolute path of this machine, without "." and doubled slashes. AddressError.

    No part of it is one that a later reader could decode into another: no "..", no "%2e".

    >>> parse_folder("/data//lake/")
    '/data/lake'
    """
    if not text.startswith("/"):
        raise AddressError("must be an absolute path")
    if _CONTROL.search(text) or _NOT_IN_TEXT.search(text):
        raise AddressError("has a character that no path may have")
    if _ESCAPE.search(text):
        raise AddressError('has an escape such as "%2e", which another program could decode')
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise AddressError('has ".." in it')
    return "/" + "/".join(parts)


def parse_object_url(text: str, scheme: str = "s3") -> tuple[str, str]:
    """Return bucket and prefix of s3://bucket/prefix; no slash is at the prefix's ends.
    AddressError.

    >>> parse_object_url("s3://lake/a/b/")
    ('lake', 'a/b')
    """
    if not text.startswith(f"{scheme}://"):
        raise AddressError(f"must be {scheme}://bucket/prefix")
    bucket, _, prefix = text.removeprefix(f"{scheme}://").partition("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise AddressError("does not name a valid bucket")
    if re.search("[?#]", prefix):
        raise AddressError("has parameters or a fragment")
    return bucket, parse_folder(f"/{prefix}")[1:]


def _check_characters(text: str) -> None:
    if len(text) > _URL_CHARACTERS:
        raise AddressError(f"has more than {_URL_CHARACTERS:,} characters")
    if found := _NOT_IN_URL.search(text) or _NOT_IN_TEXT.search(text):
        raise AddressError(f"has a character that no address has: {found[0]!r}")


def _server_of(text: str) -> tuple[str, int]:
    """Return host and port, 0 without one."""
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        host += bracket
    else:
        host, colon, rest = text.partition(":")
        rest = colon + rest
    if rest and not rest.startswith(":"):
        raise AddressError("has no valid host")
    return parse_host(host), parse_port(rest[1:]) if rest else 0


def _login_of(text: str) -> tuple[str, str]:
    if "@" in text:
        raise AddressError('has a second "@"')
    if "%" in _ESCAPE.sub("", text):
        raise AddressError('has a "%" without two hexadecimal digits')
    user, _, password = text.partition(":")
    try:
        found = unquote(user, errors="strict"), unquote(password, errors="strict")
    except UnicodeDecodeError:
        raise AddressError("has a login that is no UTF-8") from None
    if not user or any(_CONTROL.search(one) for one in found):
        raise AddressError("has no valid login")
    return found


def _encoded(text: str, kept: str) -> str:
    """Return a path or query with letters beyond ASCII percent-encoded, escapes as they are."""
    if "%" in _ESCAPE.sub("", text):
        raise AddressError('has a "%" without two hexadecimal digits')
    return quote(text, safe=kept)
