"""Oracle: the new names of public fields; the earlier ones must be there for one release, alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.api.app import create_app
from service.api.models import ViewOptions
from service.backfill.build_status import BuildStatus
from service.runtime.settings import EARLIER_NAMES, PREFIX, Settings

EARLIER = {
    "Validation": {"why_no_key": "why_bag", "reads": "asks"},
    "Estimate": {"engine": "road"},
    "DeadLetterModel": {"position": "place"},
    "ChooseDeadLetters": {"positions": "places"},
    "PipelineGlance": {"wal_retained_bytes": "wal_kept_bytes"},
}


def test_a_backfill_has_both_names() -> None:
    facts = BuildStatus().facts()
    assert facts["engine"] == facts["road"]
    assert facts["parts_reused"] == facts["parts_kept"]


def test_the_description_marks_the_earlier_names(tmp_path: Path) -> None:
    app = create_app(Settings.load(source="dbname=unused", state=tmp_path))
    schemas = app.openapi()["components"]["schemas"]
    for schema, names in EARLIER.items():
        properties = schemas[schema]["properties"]
        for new, old in names.items():
            assert "deprecated" not in properties[new]
            assert properties[old]["deprecated"] and f"`{new}`" in properties[old]["description"]


@pytest.mark.parametrize(("name", "earlier"), EARLIER_NAMES.items())
def test_a_setting_has_both_names(name: str, earlier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(Settings.load(source="x", **{earlier: 77}), name) == 77
    monkeypatch.setenv(PREFIX + earlier.upper(), "78")
    settings = Settings.load(source="x")
    assert getattr(settings, name) == 78
    # A child has both variables: the present name counts.
    monkeypatch.setenv(PREFIX + name.upper(), "79")
    assert getattr(Settings.load(source="x"), name) == 79
    assert PREFIX + earlier.upper() not in settings.to_environment()


def test_an_option_of_a_view_has_both_names() -> None:
    assert ViewOptions.model_validate({"most_rows": 7}).max_rows == 7
    assert ViewOptions.model_validate({"most_rows": 7, "max_rows": 8}).max_rows == 8
