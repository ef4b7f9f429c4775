"""The options of a sink in an Iceberg table as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.lake.location_schema import LOCATION
from connectors.objects.bucket_schema import BUCKET
from connectors.option_schema import advanced, group, initial, max_delay_s, secret, text

_NOT_SUPPORTED = ("ca_file", "virtual_host")
SCHEMA = group(
    "Iceberg",
    "A table of changes, in an SQL catalog.",
    {
        "path": LOCATION,
        "catalog": text(
            "Catalog",
            "URL of the SQL catalog.",
            examples=["sqlite:////lake/catalog.db", "postgresql://user@host/database"],
        ),
        "password": secret("Password", "Of the catalog's database, as a reference."),
        "table": text("Table", "Namespace and name; by default tidemark and the view's name."),
        "initial": initial(),
        "catalog_name": advanced(text("Catalog's name", "In that database.", default="default")),
        "catalog_schema": advanced(
            text("Schema", "Of the catalog's tables in PostgreSQL.", default="public")
        ),
        "max_delay_s": max_delay_s(30),
        **{name: one for name, one in BUCKET.items() if name not in _NOT_SUPPORTED},
    },
    ("path", "catalog"),
) | {"x-promise": "Exactly once, whole epochs."}
