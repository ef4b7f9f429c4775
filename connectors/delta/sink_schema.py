"""The options of a sink in a Delta Lake table as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.lake.location_schema import LOCATION
from connectors.objects.bucket_schema import BUCKET
from connectors.option_schema import choice, group, initial, max_delay_s, texts

SCHEMA = group(
    "Delta Lake",
    "A table of changes, or of the view's rows.",
    {
        "path": LOCATION,
        "mode": choice(
            "Mode",
            {"changes": "changes are appended", "rows": "the view's rows, merged by key"},
            "changes",
        ),
        "partition_by": texts("Partitions", "Partition columns of the table."),
        "initial": initial(),
        "max_delay_s": max_delay_s(10),
        **{name: one for name, one in BUCKET.items() if name != "ca_file"},
    },
    ("path",),
) | {"x-promise": "Exactly once, whole epochs."}
