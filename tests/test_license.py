"""Oracle: the Apache License's own text by its digest, and the list of what the console has."""

from __future__ import annotations

import hashlib
import re
import tomllib

from service.api.console_files import DIST
from tests.test_documentation import ROOT

APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_license_is_whole_and_named() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert all((ROOT / name).is_file() for name in project["license-files"])


def test_what_others_wrote_is_named() -> None:
    """Each script with its license, whose text is beside it; and fonts, of which there are none."""
    notice = (ROOT / "NOTICE").read_text()
    parts = re.findall(r"^(\S+) [\d.]+ \(([\w.-]+)\)$", (DIST / "LICENSES.txt").read_text(), re.M)
    assert len(parts) > 10
    for name, license in parts:
        listed = notice.partition(f"\n{license}\n")[2].partition("\n\n")[0]
        assert f"  {name}" in listed.splitlines(), name
    named = set(re.findall(r"^  (\S+)$", notice, re.M))
    assert named == {name for name, _ in parts}
    styles = b"".join(path.read_bytes() for path in DIST.rglob("*.css"))
    fonts = [path for path in DIST.rglob("*") if path.suffix in (".woff", ".woff2", ".ttf", ".otf")]
    assert b"@font-face" not in styles and not fonts
