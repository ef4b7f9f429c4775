"""The SQL catalog of one Iceberg table, as far as the sink trusts it.

Iceberg's metadata names classes to import, endpoints, credentials and folders, and the catalog
names the metadata: whoever can write to either would have the service run their code. Invariant:
nothing that is read decides what is imported, reached or opened. The table lies where the sink's
options say, its files are opened by `TableFiles` alone, and of its properties only the sink's own
have an effect. Properties of others stay in the table as they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableResponse, StagedTable, Table, TableProperties
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from connectors.iceberg import postgres_catalog, sqlite_catalog
from connectors.iceberg.options import IcebergOptions
from connectors.iceberg.table_files import MAX_BYTES, TableFiles, plain
from connectors.outside.bounded import Bounds, Meter, unpacked
from connectors.outside.texts import clean
from dataflow.errors import SinkError, SourceError

SINK = "tidemark.sink"
# In effect whatever the table says. After so many commits, older metadata files are deleted.
STORED_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
# A conflict must be seen by the sink, not repeated on top of another writer's commit.
_EFFECTIVE = {**STORED_PROPERTIES, TableProperties.COMMIT_NUM_RETRIES: "0"}


class IcebergTable(Table):
    """A table as the sink uses it. stored: its properties as its metadata has them."""

    def __init__(self, stored: Mapping[str, str], **facts: Any) -> None:
        super().__init__(**facts)
        self.stored = stored


class SinkCatalog(SqlCatalog):
    """The catalog of one sink."""

    def __init__(self, options: IcebergOptions) -> None:
        # That of SqlCatalog opens whatever its properties name; this one has none.
        MetastoreCatalog.__init__(self, options.catalog_name)
        self._identifier = (*options.namespace, options.table)
        self._location = options.table_location
        self.files = TableFiles(
            options.location.storage(), plain(self._location), options.table_folder
        )
        self.engine = _engine(options)
        self._init_catalog()

    def found(self) -> IcebergTable | None:
        """Return the sink's table; None if there is none. SinkError sink.bad_metadata;
        SourceError path.forbidden.
        """
        try:
            table = self.load_table(self._identifier)
        except NoSuchTableError:
            return None
        assert isinstance(table, IcebergTable)
        return table

    def created(self, schema: pa.Schema, identity: str) -> IcebergTable:
        """Create the sink's table. TableAlreadyExistsError."""
        self.create_namespace_if_not_exists(self._identifier[:-1])
        metadata = new_table_metadata(
            self._convert_schema_if_needed(schema),
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
            self._location,
            {**STORED_PROPERTIES, SINK: identity},
        )
        path = f"{self._location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        self._write_metadata(metadata, self.files, path)
        table = self.register_table(self._identifier, path)
        assert isinstance(table, IcebergTable)
        return table

    def dropped(self) -> None:
        """Remove the table's entry. NoSuchTableError."""
        self.drop_table(self._identifier)

    # --- what the client asks for ------------------------------------------------------------

    def _load_file_io(
        self, properties: Mapping[str, str] | None = None, location: str | None = None
    ) -> TableFiles:
        return self.files

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> IcebergTable:
        location = orm_table.metadata_location
        if not location:
            raise bad_metadata("", "the catalog names none")
        metadata = self._read(location)
        stored = dict(metadata.properties)
        return IcebergTable(
            stored,
            identifier=self._identifier,
            metadata=_effective(metadata),
            metadata_location=location,
            io=self.files,
            catalog=self,
        )

    def _read(self, location: str) -> TableMetadata:
        """Return the metadata at a location. SinkError sink.bad_metadata; SourceError
        path.forbidden.
        """
        content = self.files.get(location)
        try:
            if location.endswith(".gz.metadata.json"):
                content = b"".join(unpacked([content], "gzip", Meter(Bounds(MAX_BYTES))))
            metadata = TableMetadataUtil.parse_raw(content.decode())
        except Exception as error:
            # Its text would quote the file.
            raise bad_metadata(location, type(error).__name__) from None
        if plain(metadata.location) != plain(self._location):
            raise SourceError(
                "path.forbidden",
                f'the table lies at "{clean(metadata.location, 200)}", not at "{self._location}"',
                hint="check who else can write to the catalog and to the table's files",
            )
        return metadata

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: tuple[str, ...],
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if not isinstance(current_table, IcebergTable):
            raise NoSuchTableError("the table is gone")
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        metadata = update_table_metadata(
            current_table.metadata, updates, metadata_location=current_table.metadata_location
        )
        version = self._parse_metadata_version(current_table.metadata_location) + 1
        locations = SimpleLocationProvider(self._location, {})
        return StagedTable(
            identifier=table_identifier,
            metadata=metadata.model_copy(update={"properties": dict(current_table.stored)}),
            metadata_location=locations.new_table_metadata_file_location(version),
            io=self.files,
            catalog=self,
        )

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """See SqlCatalog."""
        made = super().commit_table(table, requirements, updates)
        return made.model_copy(update={"metadata": _effective(made.metadata)})


def bad_metadata(location: str, detail: str) -> SinkError:
    """Return the error of metadata that cannot be read. detail: nothing of its content."""
    return SinkError(
        "sink.bad_metadata",
        "the metadata of the sink's Iceberg table cannot be used",
        detail=f"{clean(location, 200)}: {detail}" if location else detail,
        hint="drop the table, then drop the sink and add it again, with its rows",
    )


def _effective(metadata: TableMetadata) -> TableMetadata:
    """Return metadata of which no property has an effect that the sink has not chosen."""
    own = {SINK: metadata.properties[SINK]} if SINK in metadata.properties else {}
    return metadata.model_copy(update={"properties": {**_EFFECTIVE, **own}})


def _engine(options: IcebergOptions) -> Engine:
    options.check()
    if options.catalog_file:
        open_file = lambda: sqlite_catalog.connect(options.catalog_file)  # noqa: E731
        return create_engine("sqlite://", creator=open_file, poolclass=NullPool)
    open_database = lambda: postgres_catalog.connect(options.database, options.schema)  # noqa: E731
    return create_engine("postgresql+psycopg2://", creator=open_database, poolclass=NullPool)
