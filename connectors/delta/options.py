"""Options of a sink in a Delta Lake table, and how a table is reached.

Invariant: unknown, missing or contradictory options are refused before anything is reached. What
the client gets names the bucket's credentials, so that it never finds the service's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from connectors.lake.location import PAGE, Location, max_delay_s
from connectors.option_reader import OptionReader
from connectors.sink import SinkTable

MAX_DELAY_S = 10.0
# Of a file of rows, which the client reads by column and group of rows.
FILE_BYTES = 2 << 30
Mode = Literal["changes", "rows"]


@dataclass(frozen=True)
class DeltaOptions:
    """mode: `changes` appends changes, `rows` has the view's rows. partition_by: columns."""

    location: Location
    mode: Mode
    partition_by: tuple[str, ...]
    max_delay_s: float

    @staticmethod
    def of(options: Mapping[str, Any], table: SinkTable) -> DeltaOptions:
        """Read the options. SinkError sink.bad_option, secret.plain."""
        reader = OptionReader(options, "sink", page=PAGE)
        location = location_of(reader)
        mode = reader.choice("mode", ("changes", "rows"), "changes")
        initial = reader.choice("initial", ("rows", "changes"), "rows")
        if mode == "rows" and not table.key:
            hint = 'choose mode "changes": the view has no primary key'
            raise reader.refused("mode", "cannot be rows for this view", hint=hint)
        if mode == "rows" and initial != "rows":
            raise reader.refused("initial", "must be rows for mode rows")
        partition_by = tuple(map(str, reader.take("partition_by", list, [])))
        names = [field.name for field in table.fields]
        for name in partition_by:
            # A sink that is only removed has no columns.
            if names and name not in names:
                raise reader.refused("partition_by", "names no column of the view", detail=name)
        made = DeltaOptions(
            location, cast(Mode, mode), partition_by, max_delay_s(reader, MAX_DELAY_S)
        )
        reader.end()
        return made

    def client_options(self) -> dict[str, str]:
        """See `client_options`."""
        return client_options(self.location)


def location_of(reader: OptionReader) -> Location:
    """Return the place of a table. SinkError, SourceError *.bad_option."""
    location = Location.of(reader)
    if location.bucket.ca_file:
        hint = "let the variable SSL_CERT_FILE of the service name it"
        raise reader.refused("ca_file", "is not supported for tables", hint=hint)
    return location


def client_options(location: Location) -> dict[str, str]:
    """Return what the client needs to reach a bucket; {} for a folder. secret.missing."""
    if not location.is_bucket:
        return {}
    return location.bucket.storage_options(location.bucket_name, FILE_BYTES)
