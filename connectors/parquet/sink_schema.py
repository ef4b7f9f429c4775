"""The options of a sink in Parquet files as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.lake.location_schema import LOCATION
from connectors.objects.bucket_schema import BUCKET
from connectors.option_schema import advanced, group, initial, max_delay_s, number, texts

SCHEMA = group(
    "Parquet files",
    "Files of changes in a folder or bucket, with manifests of whole epochs.",
    {
        "path": LOCATION,
        "partition_by": texts("Partitions", "Columns whose values become folders."),
        "initial": initial(),
        "max_file_mb": advanced(
            number("Largest file", "About.", 128, unit="MB", minimum=1, maximum=4096)
        ),
        "max_delay_s": max_delay_s(10),
        **BUCKET,
    },
    ("path",),
) | {"x-promise": "Exactly once, for readers of the manifests."}
