"""The file that says which views a run brings up to date, from what and to where.

Invariant: accepted settings are complete. What only a source, a query or a catalog can refuse is
refused there, before anything is written.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
)

from connectors.shuffle_storage import S3
from dataflow.errors import TidemarkError

# A name becomes a folder, and part of a table's properties.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
Text = Annotated[str, StringConstraints(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SinkSettings(_Strict):
    """Where a view's rows go: a table of a catalog, "namespace.name".

    deletes: how old rows are deleted, by their positions or by their keys.
    """

    type: Literal["iceberg"]
    catalog: Name
    table: Annotated[str, StringConstraints(pattern=r"^[^.\s]+(\.[^.\s]+)+$")]
    deletes: Literal["position", "equality"] = "position"


class ViewSettings(_Strict):
    """A view: its query, and where its rows go."""

    query: Text
    sink: SinkSettings


class SourceSettings(BaseModel):
    """A source; everything but its type are the options of its page in docs."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["delta", "files", "kafka"]

    @property
    def options(self) -> dict[str, Any]:
        """The options as its connector reads them."""
        return dict(self.model_extra or {})


class SparkSettings(_Strict):
    """A master, its own settings, and into how many buckets the state of a new view is cut."""

    master: Text = "local[2]"
    settings: dict[str, str] = {}
    buckets: Annotated[int, Field(ge=1, le=4096)] = 8


class Settings(_Strict):
    """All settings of a run.

    storage: a folder or s3:// URL for the state of views. key: of the MACs of its files, or a
    reference to it; none: the storage is trusted. database: a DSN of PostgreSQL, which
    plans queries and evaluates what has no kernel; none starts one for the run. catalogs: by name,
    the properties of an Iceberg catalog. epoch_rows: about how many changes are read at a time.
    """

    storage: Text
    key: Annotated[str, StringConstraints(min_length=1)] | None = None
    database: str | None = None
    epoch_rows: Annotated[int, Field(ge=1, le=10_000_000)] = 200_000
    spark: SparkSettings = SparkSettings()
    catalogs: dict[Name, dict[str, str]]
    sources: Annotated[dict[Name, SourceSettings], Field(min_length=1)]
    views: Annotated[dict[Name, ViewSettings], Field(min_length=1)]

    @field_validator("storage")
    @classmethod
    def _absolute(cls, url: str) -> str:
        return url if url.startswith(S3) else str(Path(url).absolute())


def read_settings(path: Path) -> Settings:
    """Read a file: TOML, or by its suffix JSON or YAML.

    TidemarkError batch.settings says where in it something is wrong.
    """
    given = _parsed(path)
    try:
        found = Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise _refusal(
            path, f"{at}: {first['msg']}", "see docs/SCALE.md for all settings"
        ) from None
    for name, view in found.views.items():
        if view.sink.catalog not in found.catalogs:
            known = ", ".join(sorted(found.catalogs)) or "none"
            what = f'views.{name}.sink.catalog: "{view.sink.catalog}" is not declared'
            raise _refusal(path, what, f"declare it below [catalogs]; declared: {known}")
    tables = [(view.sink.catalog, view.sink.table) for view in found.views.values()]
    for table in tables:
        if tables.count(table) > 1:
            what = f"views: two of them have the table {table[1]}"
            raise _refusal(path, what, "give each view its own table")
    return found


def _parsed(path: Path) -> Any:
    try:
        text = path.read_text()
        if path.suffix in (".yaml", ".yml"):
            return _from_yaml(path, text)
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise _refusal(path, str(error.strerror), "name a file that can be read") from None
    except ValueError as error:
        # Of the encoding, and of all three formats.
        hint = "write it as TOML, JSON or YAML, see docs/SCALE.md"
        raise _refusal(path, str(error), hint) from None


def _from_yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        hint = "pip install pyyaml, or write it as TOML (docs/SCALE.md)"
        raise _refusal(path, "YAML needs the package pyyaml", hint) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _refusal(path: Path, detail: str, hint: str) -> TidemarkError:
    return TidemarkError(
        "batch.settings",
        f'settings file "{path}" cannot be used',
        detail=re.sub(r"\s+", " ", detail),
        hint=hint,
    )
