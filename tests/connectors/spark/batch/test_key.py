"""Oracle: whether the files of a run's storage can be read without the key of its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.objects.sealed_storage import SealedStorage, derived_key
from connectors.spark.batch.program import view_storage
from connectors.spark.batch.settings import read_settings
from dataflow.errors import TidemarkError

SETTINGS = """
storage = "{folder}/state"
{key}
[catalogs.lake]
type = "hadoop"
[sources.shop]
type = "files"
[views.revenue]
query = "SELECT 1"
sink = {{type = "iceberg", catalog = "lake", table = "shop.revenue"}}
"""


def written(folder: Path, key: str) -> Path:
    path = folder / "views.toml"
    path.write_text(SETTINGS.format(folder=folder, key=key))
    return path


def test_a_key_by_reference_seals_the_files(tmp_path: Path) -> None:
    key = "0123456789abcdef" * 2
    (tmp_path / "key").write_text(key + "\n")
    settings = read_settings(written(tmp_path, f'key = "${{file:{tmp_path}/key}}"'))
    storage = view_storage(settings, "revenue/one")
    assert isinstance(storage, SealedStorage)
    storage.put("manifest/1", b"one")
    assert view_storage(settings, "revenue/one").get("manifest/1") == b"one"
    assert storage.key == derived_key(key.encode(), "revenue/one")
    (tmp_path / "key").write_text("f" * 32)
    with pytest.raises(TidemarkError, match=r"spark\.unauthentic"):
        view_storage(settings, "revenue/one").get("manifest/1")


def test_a_short_key_is_refused_and_none_is_none(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, 'key = "short"'))
    with pytest.raises(TidemarkError, match=r"batch\.key"):
        view_storage(settings, "revenue/one")
    plain = view_storage(read_settings(written(tmp_path, "")), "revenue/one")
    assert not isinstance(plain, SealedStorage)
