"""Oracle: the libraries that write a text in each of these forms. Nothing of the secret is left."""

from __future__ import annotations

import ast
import base64
import html
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape, quoteattr

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connectors import secrets
from connectors.secret_forms import LEAST_CHARACTERS, forms_of
from dataflow.errors import SourceError, TemporaryError

SHAPES = [
    "hunter2!",
    "p'a\"s\\s w/o+r&d<>%",
    "ünïcödé€😀x",
    "abcdef",
    "a%2Fb&amp;c\\u0041",
    "'''\"\"\"\\\\",
    "  lead and trail  ",
    "eyJhbGciOi" * 30 + "/+=",
]
# Encodings of the whole text, which need not be quoted.
FORMS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "percent": lambda s: quote(s, safe=""),
    "percent, slashes": quote,
    "percent, plus": quote_plus,
    "percent, lower": lambda s: _lower(quote(s, safe="")),
    "percent, twice": lambda s: quote(quote(s, safe=""), safe=""),
    "JSON": lambda s: json.dumps(s)[1:-1],
    "JSON, Unicode": lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
    "JSON, twice": lambda s: json.dumps(json.dumps(s)[1:-1])[1:-1],
    "JSON, thrice": lambda s: json.dumps(json.dumps(json.dumps(s)[1:-1])[1:-1])[1:-1],
    "repr": lambda s: repr(s)[1:-1],
    "ascii": lambda s: ascii(s)[1:-1],
    "repr, twice": lambda s: repr(repr(s)[1:-1])[1:-1],
    "repr of bytes": lambda s: repr(s.encode())[2:-1],
    "repr of bytes in JSON": lambda s: json.dumps(repr(s.encode())[2:-1])[1:-1],
    "HTML": html.escape,
    "XML": escape,
    "XML attribute": lambda s: quoteattr(s)[1:-1],
    "SQL": lambda s: s.replace("'", "''"),
    "conninfo": lambda s: s.replace("\\", "\\\\").replace("'", "\\'"),
    "escapes": lambda s: s.encode("unicode_escape").decode(),
    "repr, then percent": lambda s: quote(repr(s)[1:-1], safe=""),
    "JSON, then percent": lambda s: quote_plus(json.dumps(s)[1:-1]),
    "HTML, then percent": lambda s: quote(html.escape(s)),
    "repr, then XML": lambda s: escape(repr(s)[1:-1], {"'": "&apos;", '"': "&quot;"}),
    "hexadecimal": lambda s: s.encode().hex(),
    "hexadecimal, upper": lambda s: s.encode().hex().upper(),
}
# With all characters escaped; not looked for in very long secrets.
WHOLLY: dict[str, Callable[[str], str]] = {
    "percent": lambda s: "".join(f"%{c:02x}" for c in s.encode()),
    "entities": lambda s: "".join(f"&#{ord(c)};" for c in s),
    "entities, hexadecimal": lambda s: "".join(f"&#x{ord(c):X};" for c in s),
    "octal": lambda s: "".join(f"\\{c:03o}" for c in s.encode()),
}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test resolves is not known to the tests after it."""
    monkeypatch.setattr(secrets, "_known", [])


def _lower(text: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), text)


def _within(form: str) -> Iterator[str]:
    for around in ("{}", "a {} b", 'x="{}"', "https://me:{}@host/", "pre{}post", "{}, {}"):
        yield around.replace("{}", form)


@pytest.mark.parametrize("secret", SHAPES)
def test_a_secret_is_found_in_every_form(secret: str) -> None:
    every = {**FORMS, **(WHOLLY if len(secret) < 100 else {})}
    for name, form in every.items():
        for text in _within(form(secret)):
            shown = forms_of(secret).hidden(text)
            assert shown == text.replace(form(secret), "***"), (name, shown)


@pytest.mark.parametrize("secret", SHAPES)
def test_a_secret_is_found_in_base64(secret: str) -> None:
    for before in ("", "m", "me", "me:", "user"):
        for after in ("", "x", "yz", ":-)"):
            content = (before + secret + after).encode()
            for encoded in (base64.b64encode(content), base64.urlsafe_b64encode(content)):
                text = encoded.decode()
                for form in (text, text.rstrip("="), quote(text, safe=""), json.dumps(text)[1:-1]):
                    shown = forms_of(secret).hidden(f"Basic {form}, more")
                    kept = shown.removeprefix("Basic ").removesuffix(", more")
                    assert re.fullmatch(r"([\w-]*%2[BF])*\*\*\*(%3D)*", kept), (form, shown)
            lines = base64.encodebytes(content).decode()
            assert "***" in forms_of(secret).hidden(lines)


@given(st.text(min_size=LEAST_CHARACTERS, max_size=40), st.sampled_from(sorted(FORMS)))
@example("\\\\\\\\\\\\", "JSON, thrice")
@example("%25%25", "percent, twice")
def test_any_secret_is_found(secret: str, name: str) -> None:
    text = f"begin {FORMS[name](secret)} end"
    shown = forms_of(secret).hidden(text)
    # A secret of backslashes or spaces may have more of them around it.
    assert "***" in shown and (not secret.strip(" \\'\"") or secret not in shown)


def test_words_are_left_alone() -> None:
    text = "a host in the hostile inn &amp; 100%25 \\u0041 aHVudGVy hunter 2! \x00\ud800"
    assert forms_of("hunter2!").hidden(text) == text
    assert forms_of("abcdefgh").hidden("the abcdefg" + "hij") == "the ***ij"


@pytest.mark.parametrize(
    "text", ["\\", "%25", "&amp;", "&#0", "hunter2", "aHVudGVyMi", "%", "h \n"]
)
def test_hostile_texts_take_no_time(text: str) -> None:
    """Of 200,000 characters, in less than a minute; without bounds it would be hours."""
    for secret in ("hunter2\\\\%%&& end", "hunter2-hunter2" * 20):
        forms_of(secret).hidden(text * (200_000 // len(text)))


def test_a_secret_that_was_cut_is_hidden() -> None:
    assert forms_of("hunter2-hunter2").hidden("no: hunter2-hun...") == "no: ***..."
    assert forms_of("hunter2-hunter2").hidden("no: hunt") == "no: hunt"


# Beside one that is an escape itself: where it ends is ambiguous once it was cut.
@pytest.mark.parametrize("secret", [shape for shape in SHAPES if "&amp;" not in shape])
def test_a_secret_that_was_cut_is_hidden_in_every_form(secret: str) -> None:
    """Whoever quotes a server cuts what it says: each cut from the sixth character on."""
    begin = secret[:LEAST_CHARACTERS]
    forms = {name: (form(secret), form(begin)) for name, form in FORMS.items()}
    encoded = base64.b64encode(f"me:{secret}".encode()).decode()
    forms["Base64"] = encoded, encoded[:15]
    forms["Base64, safe"] = base64.urlsafe_b64encode(secret.encode()).decode(), encoded[:12]
    for name, (whole, least) in forms.items():
        for end in range(len(least), len(whole), 1 + len(whole) // 60):
            for dots in ("", "..."):
                shown = forms_of(secret).hidden(f"no: {whole[:end]}{dots}")
                kept = shown.removeprefix("no: ").removesuffix(dots)
                # A character may be whole, and more than that once its escape is escaped.
                assert re.fullmatch(r"\*\*\*[%\\0-9A-F]{0,4}", kept), (name, whole[:end], shown)


def test_a_secret_within_another_one_reveals_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", [])
    secrets.remember("middle-1")
    secrets.remember("begin-middle-1-end")
    assert secrets.hide("a begin-middle-1-end b middle-1") == "a *** b ***"


def test_every_error_hides_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", ["p'a\"ss/word"])
    for form in ("p'a\"ss/word", quote("p'a\"ss/word", safe=""), json.dumps("p'a\"ss/word")[1:-1]):
        error = TemporaryError("test.x", f"what {form}", detail=f"detail {form}", hint=f"do {form}")
        for text in (str(error), error.what, error.detail, error.hint, error.described):
            assert form not in text and "***" in text
    assert TemporaryError("test.x", "what", detail="plain").detail == "plain"


LOGGED = """
import logging, sys
from pathlib import Path
from connectors import secrets
from service.runtime import log

class Opaque:
    def __str__(self):
        return "opaque " + SECRET

SECRET = sys.argv[1]
secrets._known = [SECRET]
log.configure("debug", "test")
log.log.info("event", opaque=Opaque(), nested=[{SECRET: Opaque()}], path=Path("/x"))
try:
    raise KeyError(SECRET)
except KeyError:
    log.log.error("failed", exc_info=True)
logging.getLogger("library").warning("it says %s", Opaque())
raise ValueError(SECRET)
"""


def test_every_line_of_a_log_hides_secrets() -> None:
    """Also what is no text until it is written: objects, keys, exceptions of libraries."""
    # In a process of its own, whose log and hooks are the service's.
    told = subprocess.run(
        [sys.executable, "-c", LOGGED, "p'a\"ss/word"], capture_output=True, text=True
    )
    assert told.returncode == 1 and len(told.stderr.splitlines()) == 4, told.stderr
    assert told.stderr.count("***") >= 5 and "/x" in told.stderr
    assert "ss/word" not in told.stderr and "ss\\/word" not in told.stderr


# --- what is refused when it is resolved -----------------------------------------------------

BAD = {
    "line feed": "secret\nvalue",
    "carriage return": "secret\rvalue",
    "lines at the end": "secret\n\n",
    "NUL": "secret\0value",
    "escape": "secret\x1bvalue",
    "delete": "secret\x7f",
    "tabulator": "secret\tvalue",
}


@pytest.mark.parametrize("name", BAD)
def test_control_characters_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text(BAD[name])
    (tmp_path / "good").write_text("secret value\n")
    with pytest.raises(SourceError) as refused:
        secrets.resolve(f"${{file:{tmp_path}/bad}}")
    assert refused.value.code == "secret.bad_text"
    assert "value" not in f"{refused.value.described} {refused.value.hint}".replace(
        str(tmp_path), ""
    )
    assert secrets.resolve(f"${{file:{tmp_path}/good}}") == "secret value"


def test_a_variable_s_line_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_X", "secret-value\n")
    with pytest.raises(SourceError, match=r"secret\.bad_text") as refused:
        secrets.resolve("Bearer ${env:SECRET_X}")
    assert "secret-value" not in refused.value.described
    monkeypatch.setenv("SECRET_X", "secret-value")
    assert secrets.resolve("Bearer ${env:SECRET_X}") == "Bearer secret-value"


def test_bytes_that_are_no_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_X", b"secret\xff".decode(errors="surrogateescape"))
    with pytest.raises(SourceError, match=r"secret\.missing"):
        secrets.resolve("${env:SECRET_X}")


# --- core dumps ------------------------------------------------------------------------------


def test_a_process_of_the_service_is_not_dumped() -> None:
    program = (
        "from service.runtime.private_files import keep_private\n"
        "import ctypes, os, resource\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "keep_private()\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "print(os.path.lexists(f'/proc/self/fd/{os.open(\".\", 0)}'))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    # Before, it could be dumped.
    assert found.stdout.split(b"\n")[:3] == [b"1", b"(0, 0) 0", b"True"]


def test_repr_is_what_python_writes() -> None:
    """The forms are those of the libraries: each is read back to the secret."""
    for secret in SHAPES:
        assert ast.literal_eval(f'"{json.dumps(secret)[1:-1]}"') == secret or "😀" in secret
        assert html.unescape(WHOLLY["entities"](secret)) == secret
    assert httpx.QueryParams("a=" + FORMS["percent, plus"](SHAPES[1]))["a"] == SHAPES[1]
