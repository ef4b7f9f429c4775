"""Oracle: what docs/DEPLOY.md promises of an install without the extras.

Each process here cannot import the packages of any extra, as if none were installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from connectors.extras import EXTRAS
from service.factory.sink_types import MODULES
from service.ingest.declared_sources import TYPES
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.test_documentation import ROOT

# Of sinks.
EXTRA_OF = {"delta": "lake", "iceberg": "lake", "kafka": "kafka"}
EXTRA_OF |= {"clickhouse": "clickhouse", "parquet": "arrow"}
# Names that are in the way of the packages' own.
ABSENT = f"""
import sys

ABSENT = {tuple(EXTRAS)!r}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(f"{{name}}.".startswith(f"{{one}}.") for one in ABSENT):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None


sys.meta_path.insert(0, Absent())
"""
CALL = (
    ABSENT
    + """
import json
from dataflow.errors import TidemarkError
found = {}
for name in NAMES:
    try:
        USE(name)
        found[name] = ""
    except TidemarkError as error:
        found[name] = f"{error.code} {error.hint}"
print(json.dumps(found))
"""
)
USE_FORMAT = """
from connectors.formats.open_format import open_format
from connectors.formats.discover import propose_columns
def USE(name):
    if name.startswith("propose "):
        propose_columns({"format": name.partition(" ")[2]}, [b'{"a": 1}'])
    else:
        open_format({"format": name}, [])
"""


def answers(names: Sequence[Any], use: str) -> dict[str, str]:
    """What happens at each name: a code and a hint, or nothing."""
    script = CALL.replace("for name in NAMES", f"{use}\nfor name in {names!r}")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def missing(extra: str) -> str:
    """The answer that names an extra."""
    hint = f"install it where the service runs: pip install 'tidemarkdb[{extra}]'"
    return f"package.missing {hint}"


def test_every_package_of_an_extra_is_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (whole,) = extras["all"]
    assert Requirement(whole).extras == {*EXTRAS.values()}
    assert {*EXTRAS.values()} <= set(extras)
    core = {Requirement(text).name for text in project["dependencies"]}
    for extra in EXTRAS.values():
        assert not core & {Requirement(text).name for text in extras[extra]}, extra


def test_sources_without_their_packages_name_the_extra() -> None:
    use = "from service.ingest.declared_sources import connector as USE"
    found = answers(list(TYPES), use)
    refused = {name: text for name, text in found.items() if text}
    assert refused == {name: missing(name) for name in ("kafka", "mongodb")}


def test_sinks_without_their_packages_name_the_extra() -> None:
    use = "from service.factory.sink_types import sink_connector as USE"
    assert answers(list(MODULES), use) == {
        name: missing(EXTRA_OF[name]) if name in EXTRA_OF else "" for name in MODULES
    }


def test_parquet_files_and_tables_without_arrow_name_the_extra() -> None:
    use = "from connectors.files.options import read_options\ndef USE(path):\n"
    use += "    read_options({'relations': {'r': {'path': path}}})"
    found = answers(["/data/*.csv", "/data/*.xml.gz", "/data/*.parquet"], use)
    assert found.pop("/data/*.parquet") == missing("arrow")
    assert not any("package.missing" in text for text in found.values())
    use = "from connectors.python.rows import arrow_table as USE"
    assert answers(["a table"], use) == {"a table": missing("arrow")}
    use = "from connectors.shuffle_storage import open_exchange as USE"
    assert answers(["/x", "s3://b/x"], use) == {"/x": "", "s3://b/x": missing("arrow")}
    use = "from service.client.rows import RowSet\ndef USE(name):\n    RowSet([], []).to_arrow()"
    hint = "install it where this script runs: pip install 'tidemarkdb[arrow]'"
    assert answers(["rows"], use) == {"rows": f"package.missing {hint}"}


def test_s3_without_its_package_names_the_extra(tmp_path: Path) -> None:
    use = "from connectors.objects.open_storage import open_storage as USE"
    found = answers([str(tmp_path), "s3://bucket/prefix"], use)
    assert found == {str(tmp_path): "", "s3://bucket/prefix": missing("s3")}
    use = "from connectors.files.options import read_options\ndef USE(path):\n"
    use += "    read_options({'relations': {'r': {'path': path}}})[0].folder()"
    found = answers(["/data/*.csv", "s3://bucket/*.csv"], use)
    assert found == {"/data/*.csv": "", "s3://bucket/*.csv": missing("s3")}


def test_record_formats_without_their_packages_name_the_extra() -> None:
    names = ["json", "csv", "text", "avro", "protobuf", "debezium-avro", "debezium-json"]
    found = answers([*names, *(f"propose {name}" for name in names)], USE_FORMAT)
    needing = {"avro": "avro", "debezium-avro": "avro", "protobuf": "protobuf"}
    for name, text in found.items():
        extra = needing.get(name.removeprefix("propose "))
        if extra:
            assert text == missing(extra), name
        else:
            assert "package.missing" not in text, name


def test_a_large_backfill_without_spark_is_local_and_says_why(tmp_path: Path) -> None:
    """What has work for a whole cluster."""
    settings = {"source": "dbname=x", "state": str(tmp_path), "spark_master": "spark://h:7077"}
    use = "from service.backfill.engine_choice import Work\n"
    use += "from service.factory.service_factory import ServiceFactory\n"
    use += "from service.runtime.settings import Settings\ndef USE(rows):\n"
    use += f"    settings = Settings.model_validate({settings!r} | {{'spark_rows': rows}})\n"
    use += "    found = ServiceFactory(settings).choose_engine(Work(1.5e9, 4.5e9), 'auto')\n"
    use += "    raise TidemarkError(found.engine, '', hint=found.reason)"
    why = "local Spark cannot be used: Spark needs a package that is not installed"
    for answer in answers([None, 1000], use).values():
        assert answer.startswith(f"{why} ({missing('spark').partition(' ')[2]})"), answer


TOTAL = "SELECT sum(amount) AS total FROM orders"


def refuse_spark(service: RunningService) -> None:
    """Spark, asked for by name, is refused by name."""
    for option in ("backfill", "runtime"):
        body = {"name": "there", "query": TOTAL, "options": {option: "spark"}}
        answer = service.call("POST", "/views", body)
        assert answer.status_code == 422 and answer.json()["code"] == "package.missing", answer.text
        assert answer.json()["hint"].endswith("pip install 'tidemarkdb[spark]'")
        assert f'options.{option} "spark"' in answer.json()["title"]


@pytest.mark.whole
def test_a_service_without_extras_keeps_views_up_to_date(
    database: Database, tmp_path: Path
) -> None:
    """Everything but what they are for."""
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "sitecustomize.py").write_text(ABSENT)
    database.execute("CREATE TABLE orders (id integer PRIMARY KEY, amount integer)")
    with_absent = RunningService(database.dsn, tmp_path)
    with_absent.set_variable("PYTHONPATH", str(tmp_path / "absent"))
    with_absent.set_variable("TIDEMARK_SPARK", "local[2]")
    with_absent.set_variable("TIDEMARK_SPARK_STORAGE", str(tmp_path / "buckets"))
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "a.csv").write_text("id,label\n1,one\n2,two\n")
    with with_absent as service:
        service.create("total", TOTAL)
        database.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 100) n")
        service.await_so(lambda: database.rows("SELECT total FROM total") == [(5050,)])
        options = {"bootstrap_servers": "127.0.0.1:1", "topics": {}}
        body = {"name": "events", "type": "kafka", "options": options}
        answer = service.call("POST", "/sources", body)
        assert answer.status_code == 422 and answer.json()["code"] == "package.missing"
        assert "tidemarkdb[kafka]" in answer.json()["hint"]
        refuse_spark(service)
        explained = service.call("POST", "/views/validate", {"query": TOTAL}).json()
        assert explained["backfill"] == "local"
        assert not any("Traceback" in line for line in service.log_tail().splitlines())


def test_the_list_of_extras_in_the_documentation_is_whole() -> None:
    text = (ROOT / "docs" / "DEPLOY.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert {*EXTRAS.values()} <= listed
