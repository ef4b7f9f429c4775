"""A folder or a bucket with a sink's files, as pyarrow's own clients see it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from pyarrow import fs

from connectors.sink import SinkTable

ROOT = Path(__file__).parents[2]


@dataclass
class LakeFiles:
    """path, options: of the sinks, each below the path in a folder of its view's name. endpoint: of
    the bucket's server, "" for a folder."""

    path: str
    options: dict[str, Any] = field(default_factory=dict)
    endpoint: str = ""
    is_apart: bool = False

    def chosen(self, table: SinkTable) -> dict[str, Any]:
        """The options of a view's sink."""
        return {"path": f"{self.path}/{table.name}", **self.options}

    def files(self) -> fs.FileSystem:
        """A client of its own."""
        if not self.endpoint:
            return fs.LocalFileSystem()
        host = self.endpoint.removeprefix("http://")
        keys = {"access_key": "test", "secret_key": "test"}
        return fs.S3FileSystem(endpoint_override=host, scheme="http", region="us-east-1", **keys)

    def root(self, table: SinkTable) -> str:
        """As pyarrow names it."""
        return f"{self.path.removeprefix('s3://')}/{table.name}"

    def names(self, table: SinkTable, below: str = "") -> list[str]:
        """Paths of all files, relative to the sink's."""
        root = self.root(table)
        selector = fs.FileSelector(f"{root}/{below}", allow_not_found=True, recursive=True)
        found = [i for i in self.files().get_file_info(selector) if i.type == fs.FileType.File]
        return sorted(i.path.removeprefix(root + "/") for i in found)

    def content(self, table: SinkTable, name: str) -> bytes:
        """A whole file."""
        with self.files().open_input_file(f"{self.root(table)}/{name}") as file:
            return file.read()

    def lose(self, table: SinkTable) -> None:
        """Delete all files."""
        for name in self.names(table):
            self.files().delete_file(f"{self.root(table)}/{name}")


def killed(target: LakeFiles, kills: int, seed: int) -> None:
    """`sink_contract.check_kills` in a new process: the clients do not survive the fork of one
    that has used them."""
    kind = type(target)
    program = (
        "from connectors import netguard\n"
        f"from {kind.__module__} import {kind.__name__} as Target\n"
        "from tests.harness.sink_contract import FINITE, Model, check_kills\n"
        "netguard.install(netguard.Guard(folders=('/',), writable=('/',)))\n"
        f"target = Target(**{asdict(replace(target, is_apart=True))!r})\n"
        f"assert check_kills(target, lambda: Model(FINITE[:4]), {kills}, {seed}) >= 3\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]


def bucket_facts(url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any], str]:
    """Path, options and endpoint of a bucket of tests.harness.object_store."""
    base, _, query = url.partition("?")
    endpoint = f"http://{parse_qs(query)['endpoint_override'][0]}"
    for name in ("ACCESS", "SECRET"):
        monkeypatch.setenv(f"SECRET_{name}", "test")
    keys = {"access_key": "${env:SECRET_ACCESS}", "secret_key": "${env:SECRET_SECRET}"}
    return base, {"endpoint": endpoint, **keys}, endpoint
