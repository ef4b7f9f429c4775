"""The built files of the console and of /docs: served from memory, gzipped at first use.

They are part of the package (service/console/dist, built by `make console`). Names below /assets
contain a hash of the content, so browsers cache them forever. Browsers revalidate the pages by ETag
at each load.
Invariant: a page loads nothing from another host. Its Content-Security-Policy forbids that, and
inline scripts and style sheets too.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

DIST = Path(__file__).parent.parent / "console" / "dist"
PAGE = "index.html"
DOCS = "docs.html"
ASSETS = "assets"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        # Browsers write style attributes themselves when one types over coloured text.
        "style-src-attr 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_ALWAYS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
_IMMUTABLE = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@dataclass(frozen=True)
class ConsoleFile:
    """One file with its headers."""

    plain: bytes
    etag: str
    media_type: str
    cache: str

    @cached_property
    def zipped(self) -> bytes:
        """The gzipped content."""
        return gzip.compress(self.plain, 9, mtime=0)

    def answer(self, accepted: str, if_none_match: str) -> tuple[int, bytes, dict[str, str]]:
        """Return (status, body, headers) for a request's Accept-Encoding and If-None-Match.

        >>> page = ConsoleFile(b"x", "abc", "text/html", "no-cache")
        >>> page.answer("br, gzip;q=0.8", "")[1] == page.zipped, page.answer("gzip;q=0", "")[:2]
        (True, (200, b'x'))
        >>> page.answer("", 'W/"abc"')[:2]
        (304, b'')
        """
        is_zipped = _takes_gzip(accepted)
        etag = f'"{self.etag}-gzip"' if is_zipped else f'"{self.etag}"'
        headers = {**_ALWAYS, "Cache-Control": self.cache, "ETag": etag}
        tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
        if "*" in tags or etag in tags:
            return 304, b"", headers
        headers["Content-Type"] = self.media_type
        if is_zipped:
            headers["Content-Encoding"] = "gzip"
        return 200, self.zipped if is_zipped else self.plain, headers


def read_files(folder: Path = DIST) -> dict[str, ConsoleFile]:
    """Return all files by path below the folder; empty if the console was not built."""
    paths = [folder / PAGE, folder / DOCS, *sorted((folder / ASSETS).glob("*"))]
    return {p.relative_to(folder).as_posix(): _read(p) for p in paths if p.is_file()}


def _read(path: Path) -> ConsoleFile:
    plain = path.read_bytes()
    guessed = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    is_page = path.name in (PAGE, DOCS)
    return ConsoleFile(
        plain,
        hashlib.sha256(plain).hexdigest()[:20],
        "text/html; charset=utf-8" if is_page else _TYPES.get(path.suffix, guessed),
        _REVALIDATE if is_page else _IMMUTABLE,
    )


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        coding, _, weight = part.strip().partition(";")
        if coding in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
