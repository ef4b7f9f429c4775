"""The console's built files, and the page /docs, as the API process serves them: in memory, and
gzipped once they are asked for.

They are part of the package (service/console/dist, made by `make console`). Names below /assets
hold a hash of their content and are kept by browsers for good; the page itself is asked for again
each time and answered by its ETag. It must never need anything from another host: the policy sent
with it forbids that, and inline scripts and sheets too.
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
        # Browsers themselves write style attributes while one types over coloured text.
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
_FOR_GOOD = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@dataclass(frozen=True)
class ConsoleFile:
    """One file with the headers that go with it."""

    plain: bytes
    etag: str
    media_type: str
    cache: str

    @cached_property
    def zipped(self) -> bytes:
        """What is sent to those who take gzip."""
        return gzip.compress(self.plain, 9, mtime=0)

    def answer(self, accepted: str, known: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers for a request's Accept-Encoding and If-None-Match.

        >>> page = ConsoleFile(b"x", "abc", "text/html", "no-cache")
        >>> page.answer("br, gzip;q=0.8", "")[1] == page.zipped, page.answer("gzip;q=0", "")[:2]
        (True, (200, b'x'))
        >>> page.answer("", 'W/"abc"')[:2]
        (304, b'')
        """
        is_zipped = _takes_gzip(accepted)
        etag = f'"{self.etag}-gzip"' if is_zipped else f'"{self.etag}"'
        headers = {**_ALWAYS, "Cache-Control": self.cache, "ETag": etag}
        tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
        if "*" in tags or etag in tags:
            return 304, b"", headers
        headers["Content-Type"] = self.media_type
        if is_zipped:
            headers["Content-Encoding"] = "gzip"
        return 200, self.zipped if is_zipped else self.plain, headers


def read_files(folder: Path = DIST) -> dict[str, ConsoleFile]:
    """All files by their path below the folder; empty where the console was not built."""
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
        _ASK_AGAIN if is_page else _FOR_GOOD,
    )


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        coding, _, weight = part.strip().partition(";")
        if coding in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
