"""Oracle: the sources and HTTP's rules: what is committed was built from what lies beside it, is
small, and is served with the headers that let a browser keep it and forbid it the rest."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import httpx

from service.console_files import DIST, PAGE, read_files
from tests.console.conftest import Shop

CONSOLE = DIST.parent
SOURCES = (
    *("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"),
    "src",
)
FIRST_VIEW_BYTES = 100_000
ALL_BYTES = 350_000
ELSEWHERE = re.compile(rb"""(?:src|href|import|url\()\s*=?\s*["'(]?\s*(?:https?:)?//""")


def hash_of_sources() -> str:
    """As service/console/vite.config.ts makes it."""
    paths = [p for name in SOURCES for p in (CONSOLE / name, *(CONSOLE / name).rglob("*"))]
    files = {p.relative_to(CONSOLE).as_posix(): p for p in paths if p.is_file()}
    whole = hashlib.sha256()
    for name in sorted(files):
        content = hashlib.sha256(files[name].read_bytes()).hexdigest()
        whole.update(f"{name}\0{content}\n".encode())
    return whole.hexdigest()


def test_the_build_is_that_of_the_sources() -> None:
    built_from = (DIST / "SOURCES").read_text().strip()
    assert built_from == hash_of_sources(), "make console, and commit service/console/dist"


def test_the_build_is_small_and_asks_nobody_else() -> None:
    files = read_files()
    sizes = {name: len(found.zipped) for name, found in files.items()}
    page = files[PAGE].plain.decode()
    first = [name for name in files if name == PAGE or Path(name).name in page]
    assert sum(sizes.values()) < ALL_BYTES, sizes
    assert sum(sizes[name] for name in first) < FIRST_VIEW_BYTES, sizes
    assert not [name for name, found in files.items() if ELSEWHERE.search(found.plain)]
    assert "<script>" not in page and "style=" not in page


def test_files_are_served_to_be_kept(shop: Shop) -> None:
    with httpx.Client(base_url=shop.service.url) as client:
        page = client.get("/", headers={"accept-encoding": "gzip"})
        assert page.status_code == 200
        assert page.headers["cache-control"] == "no-cache"
        policy = page.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= {*policy}
        assert [p for p in policy if "unsafe" in p] == ["style-src-attr 'unsafe-inline'"]
        again = client.get("/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        script = re.search(r'src="(/assets/[^"]+\.js)"', page.text)
        assert script is not None
        answer = client.get(script[1], headers={"accept-encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip"
        assert "immutable" in answer.headers["cache-control"]
        plain = client.get(script[1], headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content == (DIST / script[1].lstrip("/")).read_bytes()
        assert gzip.compress(plain.content) != plain.content
        assert client.head("/").status_code == 200
        for path in ("/assets/nothing.js", "/assets/..%2Findex.html", "/assets/SOURCES"):
            missing = client.get(path)
            assert missing.status_code == 404, path


def test_an_overview_tells_all_views_and_pages_of_errors(shop: Shop) -> None:
    told = shop.service.call("GET", "/overview").json()
    views = {view["name"]: view for view in told["views"]}
    assert views["revenue"]["status"] == "live"
    assert views["ratios_of"]["errors"] == 2
    assert told["pipelines"][0]["is_up"] is True
    first = shop.service.call("GET", "/views/ratios_of/errors?limit=1").json()
    rest = shop.service.call("GET", f"/views/ratios_of/errors?after={first['next']}").json()
    found = [*first["errors"], *rest["errors"]]
    assert rest["next"] is None
    assert sorted(error["sqlstate"] for error in found) == ["22012", "22012"]
    assert len({error["id"] for error in found}) == 2
    bad = shop.service.call("GET", "/views/ratios_of/errors?after=nonsense")
    assert (bad.status_code, bad.json()["code"]) == (422, "request.invalid")
    assert shop.service.call("GET", "/views/nosuch/errors").status_code == 404
