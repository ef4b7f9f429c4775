"""The options of every type of sources and sinks in the OpenAPI description, as JSON Schemas.

A type's schema is `SCHEMA` of the module beside its connector, named after it (source_schema,
sink_schema). The modules import no client, so that a type is described where its package is
missing. `x-options-by-type` of the property `options` names the schema of each type.
"""

from __future__ import annotations

import importlib
from typing import Any

from connectors.option_schema import Schema
from service.factory.sink_types import MODULES
from service.ingest.declared_sources import TYPES, module_of

BY_TYPE = "x-options-by-type"


def source_schema(type_name: str) -> Schema:
    """Return the schema of the options of a type of sources."""
    return _schema_beside(module_of(type_name))


def sink_schema(type_name: str) -> Schema:
    """Return the schema of the options of a type of sinks."""
    return _schema_beside(MODULES[type_name])


def add_option_schemas(schemas: dict[str, Any]) -> None:
    """Add the schemas to the components of a description, and name them where they apply."""
    sources = {name: source_schema(name) for name in TYPES}
    _add(schemas, ("CreateSource", "DiscoverSource"), "SourceOptions", sources)
    _add(schemas, ("CreateSink",), "SinkOptions", {name: sink_schema(name) for name in MODULES})


def _add(
    schemas: dict[str, Any], models: tuple[str, ...], suffix: str, by_type: dict[str, Schema]
) -> None:
    names = {name: f"{name.capitalize()}{suffix}" for name in by_type}
    for name, schema in by_type.items():
        schemas[names[name]] = schema
    references = {name: f"#/components/schemas/{found}" for name, found in names.items()}
    for model in models:
        schemas[model]["properties"]["options"][BY_TYPE] = references


def _schema_beside(module: str) -> Schema:
    return importlib.import_module(f"{module}_schema").SCHEMA
