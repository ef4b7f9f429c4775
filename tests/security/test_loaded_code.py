"""Oracle: the only places that load code by a name or a pickle are those below, and each says whose
name or bytes they are; formats that can name code (Arrow, pandas) load none of it."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
LOADERS = {
    *("import_module", "__import__", "exec_module", "eval", "exec", "compile_command"),
    *("pickle.load", "pickle.loads", "Unpickler", "cloudpickle", "dill", "marshal.loads"),
    *("yaml.load", "yaml.unsafe_load", "shelve.open", "runpy.run_path", "runpy.run_module"),
}
# By file: whose names or bytes they are.
ALLOWED = {
    "connectors/apart/child_program.py": "our own modules, by a name that the service sends",
    "connectors/apart/fork_server.py": "our own modules, by names that the service sends",
    "connectors/apart/frames.py": "the service's requests; of a child, classes of a fixed list",
    "connectors/kafka/in_child.py": "parts and ranges that the service passes to its child",
    "connectors/dbapi/source.py": "modules of TIDEMARK_ALLOW_MODULES",
    "connectors/python/child.py": "modules of TIDEMARK_ALLOW_MODULES, in a process of its own",
    "connectors/spark/batch/planning.py": "our own connectors, by a type that is checked",
    "connectors/spark/maintained/connect_scheduler.py": "work of our driver, and Spark's rows",
    "connectors/spark/maintained/spark_scheduler.py": "work of our driver; in no file",
    "connectors/spark/maintained/tasks.py": "work of our driver; in no file",
    "connectors/spark/tasks.py": "work of our driver; in no file",
    "service/engine/encoding/version_1.py": "states of the first format; names no class",
    "service/engine/epoch_buffer.py": "a file of this very process, in the state",
    "service/client/packages.py": "pyarrow, pandas or polars, by their fixed names",
    "service/api/option_schemas.py": "our own modules, by a type of the registry",
    "service/ingest/declared_sources.py": "our own modules, by a type of the registry",
    "service/factory/sink_types.py": "our own modules, by a type of the registry",
    "service/factory/planning.py": "what the same line has pickled",
    "storage/__init__.py": "the native kernels, by their fixed name",
}


def _loaders(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            names = [node.attr, f"{owner}.{node.attr}"]
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        found |= LOADERS.intersection(names)
    return found


def test_code_is_loaded_in_known_places_only() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): names
        for folder in ("storage", "dataflow", "connectors", "service")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (names := _loaders(path))
    }
    assert found.keys() - ALLOWED.keys() == set(), "say whose names or bytes these are"
    assert ALLOWED.keys() - found.keys() == set(), "these load nothing any more"


class _Evil:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


NAMES = ["arrow.py_extension_type", "pandas.extension", "evil.type"]


@pytest.mark.parametrize("name", NAMES)
def test_arrow_and_pandas_name_no_code(name: str, tmp_path: Path) -> None:
    """Files and streams whose fields and schema carry a pickle."""
    ran = tmp_path / "ran"
    packed = pickle.dumps(_Evil(ran))
    facts = {"ARROW:extension:name": name, "ARROW:extension:metadata": packed}
    field = pa.field("a", pa.binary(), metadata=facts)
    schema = pa.schema([field], metadata={"pandas": packed})
    table = pa.table([pa.array([b"x"])], schema=schema)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), schema) as writer:
        writer.write_table(table)
    assert pq.ParquetFile(tmp_path / "a.parquet").read()["a"].to_pylist() == [b"x"]
    assert next(pq.ParquetFile(tmp_path / "a.parquet").iter_batches())["a"].to_pylist() == [b"x"]
    with pa.ipc.open_file(str(tmp_path / "a.arrow")) as reader:
        assert reader.read_all()["a"].to_pylist() == [b"x"]
    assert not ran.exists()
    pickle.loads(packed)
    assert ran.exists(), "the pickle does nothing"
