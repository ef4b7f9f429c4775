"""Oracle: a wheel that the test makes, whose files it knows."""

from __future__ import annotations

import json
import tomllib
import zipfile
from pathlib import Path

import pytest

from bench import install

MOST_CORE_MB = 250


def _wheel(folder: Path) -> Path:
    """A package of one module of 1.5 MB, built here: no registry is asked."""
    path, about = folder / "small-1-py3-none-any.whl", "small-1.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("small/__init__.py", "#" * 1_500_000)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return path


@pytest.mark.whole
def test_what_is_added_is_measured(tmp_path: Path) -> None:
    place = install._fresh(tmp_path / "venv")
    found = install._added(place, [str(_wheel(tmp_path))])
    assert found["packages"] == 1 and 1.5 <= found["mb"] < 1.6


def test_the_section_has_a_row_of_each(tmp_path: Path) -> None:
    assert install.section(tmp_path / "none.json") == []
    record = tmp_path / "install.json"
    of = {"mb": 1128.4, "seconds": 90.4, "packages": 60}
    record.write_text(json.dumps({"figures": {"installed": {"client": of, "core": of, "s3": of}}}))
    rows = [line for line in install.section(record) if line.endswith("| 1,128 | 90 | 60 |")]
    assert [row.split("|")[1].strip() for row in rows] == ["`tidemarkdb-client`", "core", "`s3`"]


def test_the_table_of_packages_is_written_from_the_figures() -> None:
    """With each extra that there is, but what only its developers need."""
    page = (install.ROOT / "docs" / "DEPLOY.md").read_text()
    assert "\n".join(install.table()) in page
    project = tomllib.loads((install.ROOT / "pyproject.toml").read_text())["project"]
    assert {*install.PURPOSES} == {install.CORE, *project["optional-dependencies"]} - {"dev"}
    core = json.loads(install.FIGURES.read_text())["figures"]["installed"][install.CORE]
    assert core["mb"] <= MOST_CORE_MB
