"""The files of one Iceberg table, for the client: only those below the table's own location.

The client would choose a class for its files by properties that the table or the catalog names, and
that class its endpoints and credentials. This is the only one that the product hands to it.
Invariant: a location that a catalog, metadata or manifest names is opened, written or deleted only
if it lies below the table's location, which is made from the sink's options.
"""

from __future__ import annotations

import io
import re
from types import TracebackType

from pyiceberg.io import FileIO, InputFile, OutputFile

from connectors.objects.open_folder import parts_of
from connectors.objects.shared_storage import SharedStorage
from connectors.outside.texts import clean
from dataflow.errors import SinkError, SourceError

# Of one file of metadata or manifests, as stored and unpacked.
MAX_BYTES = 256 << 20
_FILE, _S3 = re.compile(r"\Afile:(//)?(?=/)"), re.compile(r"\As3[an]://")


class TableFiles(FileIO):
    """See FileIO. below: the table's folder in the storage. base: its location, as `plain` is."""

    def __init__(self, storage: SharedStorage, base: str, below: str) -> None:
        super().__init__()
        self._storage = storage
        self._base = f"{base}/"
        self._below = below

    def name_of(self, location: str) -> str:
        """Return the name of a location in the storage. SourceError path.forbidden."""
        found = plain(location)
        rest = found.removeprefix(self._base)
        if found == rest:
            raise self._forbidden(location)
        try:
            parts_of(rest)
        except SourceError:
            raise self._forbidden(location) from None
        return f"{self._below}/{rest}"

    def get(self, location: str) -> bytes:
        """Return a file. FileNotFoundError; SourceError path.forbidden, TemporaryError; SinkError
        sink.bad_metadata: it is too large.
        """
        content = self._storage.get(self.name_of(location), 0, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise SinkError(
                "sink.bad_metadata",
                "a file of the table's metadata is too large",
                detail=f"{clean(location, 200)} has more than {MAX_BYTES} bytes",
                hint="remove old snapshots and manifests of the table",
            )
        return content

    def put(self, location: str, content: bytes) -> None:
        """Write a file. SourceError path.forbidden, TemporaryError."""
        self._storage.put(self.name_of(location), content)

    def new_input(self, location: str) -> TableFile:
        """See FileIO. SourceError path.forbidden."""
        self.name_of(location)
        return TableFile(self, location)

    def new_output(self, location: str) -> TableFile:
        """See FileIO. SourceError path.forbidden."""
        return self.new_input(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """See FileIO. SourceError path.forbidden."""
        text = location if isinstance(location, str) else location.location
        self._storage.delete(self.name_of(text))

    def _forbidden(self, location: str) -> SourceError:
        return SourceError(
            "path.forbidden",
            f'the table names a file outside of its location: "{clean(location, 200)}"',
            detail=f"only files below {self._base} are used",
            hint="check who else can write to the catalog and to the table's files",
        )


class TableFile(InputFile, OutputFile):
    """See InputFile and OutputFile: a file that is read and written as a whole."""

    def __init__(self, files: TableFiles, location: str) -> None:
        super().__init__(location)
        self._files = files
        self._size: int | None = None

    def __len__(self) -> int:
        """Return its bytes."""
        return len(self._files.get(self.location)) if self._size is None else self._size

    def exists(self) -> bool:
        """See InputFile."""
        try:
            self._files.get(self.location)
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> io.BytesIO:
        """See InputFile. FileNotFoundError, SinkError sink.bad_metadata."""
        return io.BytesIO(self._files.get(self.location))

    def create(self, overwrite: bool = False) -> io.BytesIO:
        """See OutputFile. FileExistsError."""
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        return _Draft(self)

    def to_input_file(self) -> TableFile:
        """See OutputFile."""
        return self

    def write(self, content: bytes) -> None:
        """Write the whole file."""
        self._files.put(self.location, content)
        self._size = len(content)


class _Draft(io.BytesIO):
    """What is written to a file, which appears when this is closed without an error."""

    def __init__(self, file: TableFile) -> None:
        super().__init__()
        self._file: TableFile | None = file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._file = None
        self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.write(self.getvalue())
        super().close()


def plain(location: str) -> str:
    """Return a location as the sink's options write it: a path, or s3://bucket/name.

    Engines have several names for the same scheme. Nothing is decoded.

    >>> plain("file:/lake/t"), plain("file:///lake/t"), plain("s3a://b/t")
    ('/lake/t', '/lake/t', 's3://b/t')
    """
    return _S3.sub("s3://", _FILE.sub("", location))
