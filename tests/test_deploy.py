"""Oracle: the list of metrics, the settings and the tracked files: whatever deploy/ names is there.

Nothing here can ask Docker, Kubernetes or Prometheus; what can be known without them is checked.
"""

from __future__ import annotations

import configparser
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from connectors.postgres.embedded.server import EmbeddedPostgres, free_port
from connectors.spark.batch.settings import read_settings
from connectors.spark.maintained.runtime import new_session
from service.cli.main import app as commands
from service.metrics.metric_list import BY_NAME
from service.runtime.release import VERSION
from service.runtime.settings import PREFIX, Settings
from service.setup.bootstrap import Desired, prepare
from tests.connectors.spark.clusters import HOME, HOST, end, program
from tests.harness.postgres import SERVER_SETTINGS, Database
from tests.harness.psql import as_role

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
VARIABLES = {PREFIX + name.upper() for name in Settings.model_fields}

# --- Prometheus and Grafana -----------------------------------------------------------------------

TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>\d+(?:\.\d+)?(?:e\d+)?(?![\w]))"""
    r"""|(?P<range>\[\d+[smhd]\])|(?P<word>[a-zA-Z_:][\w:]*)|(?P<mark>=~|!~|!=|==|<=|>=|[-+*/(){},=<>]))"""
)
FUNCTIONS = {
    "changes",
    "delta",
    "histogram_quantile",
    "increase",
    "max",
    "predict_linear",
    "rate",
    "sum",
    "topk",
    "vector",
}
WORDS = {"by", "or", "and", "le"}
SCRAPED = {"instance", "job"}


def tokens(query: str) -> list[tuple[str, str]]:
    """(kind, text) of each token; raises where there is something else."""
    found, at = [], 0
    while at < len(query.rstrip()):
        match = TOKEN.match(query, at)
        assert match and match.lastgroup, f"{query!r}: what is {query[at:]!r}?"
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def faults_of(query: str) -> Iterator[str]:
    """What is wrong with a query, as far as its tokens tell."""
    open_marks: list[str] = []
    found = tokens(query)
    labels: tuple[str, ...] | None = None
    is_grouping = False
    for (kind, text), (_, after) in zip(found, [*found[1:], ("", "")], strict=True):
        if text in ("(", "{"):
            open_marks.append(text)
        elif text in (")", "}"):
            pair = {")": "(", "}": "{"}[text]
            if not open_marks or open_marks.pop() != pair:
                yield f"{query}: {text} closes nothing"
            is_grouping = False
        if kind != "word":
            continue
        if "{" in open_marks:
            if text not in SCRAPED and (labels is None or text not in labels):
                yield f"{query}: no label {text}"
        elif text == "by":
            is_grouping = True
        elif is_grouping:
            known = {label for m in BY_NAME.values() for label in m.labels} | SCRAPED | {"le"}
            if text not in known:
                yield f"{query}: no label {text}"
        elif after in ("(", "by") or text in WORDS:
            if text not in FUNCTIONS | WORDS:
                yield f"{query}: no function {text}"
        elif text != "up":
            name = text.removesuffix("_bucket") if text not in BY_NAME else text
            labels = BY_NAME[name].labels if name in BY_NAME else None
            if name not in BY_NAME:
                yield f"{query}: no metric {text}"
    if open_marks:
        yield f"{query}: {open_marks} is left open"


def board() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana" / "tidemark.json").read_text())


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for panel in board()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (note["expr"] for note in board()["annotations"]["list"])
    for variable in board()["templating"]["list"]:
        inner = re.fullmatch(r"label_values\((.*), (\w+)\)", variable.get("definition", ""))
        if inner:
            yield f"sum by ({inner[2]}) ({inner[1]})"


def test_queries_of_board_and_alerts_are_of_our_metrics() -> None:
    found = list(queries())
    assert len(found) > 40
    assert [fault for query in found for fault in faults_of(query)] == []
    for wrong in (
        "tidemark_view_lives",
        "sum(tidemark_views",
        "rat(tidemark_views[5m])",
        'tidemark_views{view="a"}',
        "sum by (colour) (tidemark_views)",
    ):
        assert list(faults_of(wrong)), wrong


def test_every_alert_says_what_it_is_about_and_how_bad_it_is() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule
        assert rule["annotations"]["summary"], rule
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        metrics = [BY_NAME[t] for k, t in tokens(rule["expr"]) if k == "word" and t in BY_NAME]
        known = {label for metric in metrics for label in metric.labels} | SCRAPED
        assert named <= known, rule
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 12
    told = (ROOT / "docs" / "DEPLOY.md").read_text()
    assert [name for name in names if name not in told] == []


def test_panels_of_the_board_do_not_overlap() -> None:
    panels = board()["panels"]
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    assert len({panel["id"] for panel in panels}) == len(panels)


# --- containers and units ------------------------------------------------------------------------


def named_variables(text: str) -> set[str]:
    return set(re.findall(rf"\b{PREFIX}[A-Z_]+\b", text))


def test_variables_are_settings() -> None:
    faults = []
    for path in sorted(DEPLOY.rglob("*")):
        if path.is_file() and path.suffix in ("", ".yml", ".service", ".sh", ".env"):
            named = named_variables(path.read_text())
            faults += [f"{path.name}: {v}" for v in sorted(named - VARIABLES) if "_TEST_" not in v]
    assert faults == []


# --- compose, Kubernetes, systemd -----------------------------------------------------------------


def test_compose_and_manifests_are_whole() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    services, volumes = compose["services"], compose["volumes"]
    assert {"postgres", "kafka", "tidemark", "prometheus", "grafana"} == set(services)
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} is published to everyone"
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in volumes or (DEPLOY / source).exists(), volume
        assert ":" in service["image"] or "build" in service
        tag = service["image"].partition(":")[2].partition("$")[0]
        assert "build" in service or re.fullmatch(r"v?\d+\.\d+(\.\d+)?", tag), service["image"]
        for key, value in service.get("environment", {}).items():
            is_secret = "PASSWORD" in key or "password=" in str(value)
            assert not is_secret or re.search(r"\$\{[A-Z_]+:\?[^}]+\}$", str(value)), (name, key)
    built = services["tidemark"]["build"]
    assert (DEPLOY / built["context"] / built["dockerfile"]).is_file()
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert [(DEPLOY / "prometheus" / name).is_file() for name in scraped["rule_files"]] == [True]

    manifests = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "tidemark.yml").read_text()))
    (workload,) = [m for m in manifests if m["kind"] == "StatefulSet"]
    assert workload["spec"]["replicas"] == 1
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_that_a_pod_is_shut_in(pod, container)
    check_that_the_network_is_shut(manifests, workload)
    mounts = {m["name"] for m in container["volumeMounts"]}
    claims = {c["metadata"]["name"] for c in workload["spec"]["volumeClaimTemplates"]}
    assert mounts == claims | {v["name"] for v in pod["volumes"]}
    ports = {p["name"] for p in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
        assert container[probe]["httpGet"]["path"] == "/health/live"
    known = {c.name or c.callback.__name__ for c in commands.registered_commands if c.callback}
    assert set(container["args"]) <= known


def test_the_manifests_of_spark_fit_the_service() -> None:
    """Every reference of one document is to something in another; the right to start pods only."""
    folder = DEPLOY / "kubernetes"
    made = yaml.safe_load((folder / "kustomization.yml").read_text())
    assert all((folder / name).is_file() for name in made["resources"])
    documents = [
        document
        for name in made["resources"]
        for document in yaml.safe_load_all((folder / name).read_text())
    ]
    by_kind: dict[str, dict[str, Any]] = {}
    for document in documents:
        by_kind.setdefault(document["kind"], {})[document["metadata"]["name"]] = document
    (patch,) = made["patches"]
    assert patch["target"]["name"] in by_kind[patch["target"]["kind"]]
    operations = {op["path"].rpartition("/")[2]: op for op in yaml.safe_load(patch["patch"])}
    assert operations["serviceAccountName"]["value"] in by_kind["ServiceAccount"]
    settings = by_kind["ConfigMap"][operations["-"]["value"]["configMapRef"]["name"]]["data"]
    spark = Settings(
        source="", **{n.removeprefix("TIDEMARK_").lower(): v for n, v in settings.items()}
    )
    facts = spark.spark_settings
    assert spark.spark.startswith("k8s://") and spark.spark_storage.startswith("s3://")
    assert facts["spark.driver.host"].partition(".")[0] in by_kind["Service"]
    assert (
        facts["spark.kubernetes.authenticate.executor.serviceAccountName"]
        in by_kind["ServiceAccount"]
    )
    (binding,) = by_kind["RoleBinding"].values()
    assert binding["roleRef"]["name"] in by_kind["Role"]
    (role,) = by_kind["Role"].values()
    assert {r for rule in role["rules"] for r in rule["resources"]} == {"pods", "configmaps"}
    label = facts["spark.kubernetes.executor.label.app.kubernetes.io/component"]
    selected = by_kind["NetworkPolicy"]["tidemark-executors"]["spec"]["podSelector"]["matchLabels"]
    assert selected == {"app.kubernetes.io/component": label}
    image = facts["spark.kubernetes.container.image"]
    assert image.endswith(":" + VERSION)


def test_the_settings_of_the_cron_job_are_accepted(tmp_path: Path) -> None:
    text = (DEPLOY / "kubernetes" / "run.yml").read_text()
    views, job = yaml.safe_load_all(text)
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_that_a_pod_is_shut_in(pod, container)
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    folder, _, name = container["args"][0].rpartition("/")
    assert folder == mounts["views"] and pod["volumes"][0]["configMap"]["name"] in text
    path = tmp_path / name
    path.write_text(views["data"][name])
    settings = read_settings(path)
    (source,) = settings.sources.values()
    connector = importlib.import_module(f"connectors.{source.type}.source")
    assert [relation.key for relation in connector.declare(source.options)] == [("id",)]


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java here, Spark needs it")
def test_the_entry_point_of_executors_serves_a_driver(tmp_path: Path) -> None:
    """As Kubernetes starts it, for a driver whose master has no worker."""
    port, web, of_driver = free_port(), free_port(), free_port()
    at = ("--host", HOST, "--port", str(port), "--webui-port", str(web))
    with program(tmp_path, "master", "org.apache.spark.deploy.master.Master", *at, port=port):
        settings = {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.port": str(of_driver),
        }
        session = new_session(f"spark://{HOST}:{port}", settings)
        try:
            context = session.get().sparkContext
            given = {
                "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@{HOST}:{of_driver}",
                "SPARK_EXECUTOR_ID": "1",
                "SPARK_EXECUTOR_CORES": "1",
                "SPARK_EXECUTOR_MEMORY": "512m",
                "SPARK_APPLICATION_ID": context.applicationId,
                "SPARK_EXECUTOR_POD_IP": HOST,
                "SPARK_EXECUTOR_POD_NAME": "executor-1",
                "SPARK_RESOURCE_PROFILE_ID": "0",
                "SPARK_JAVA_OPT_0": f"-Dspark.driver.port={of_driver}",
                "SPARK_JAVA_OPT_1": "-Dtidemark.words=two words",
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": str(HOME),
            }
            script = DEPLOY / "spark_executor.sh"
            with (tmp_path / "executor.log").open("wb") as log:
                child = subprocess.Popen(
                    [script, "executor"], env={**os.environ, **given}, stdout=log, stderr=log
                )
            try:
                assert context.parallelize(range(4), 2).map(abs).collect() == [0, 1, 2, 3]
                words = psutil.Process(child.pid).cmdline()
                assert "-Dtidemark.words=two words" in words
            finally:
                end(child)
        finally:
            session.stop()
    refused = subprocess.run([DEPLOY / "spark_executor.sh", "driver"], capture_output=True)
    assert refused.returncode == 64 and b"driver" in refused.stderr


def check_that_a_pod_is_shut_in(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0 and pod["securityContext"]["runAsGroup"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not [v for v in pod["volumes"] if "hostPath" in v]
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"] is True and own["capabilities"] == {"drop": ["ALL"]}
    assert own["allowPrivilegeEscalation"] is False and own["privileged"] is False


def check_that_the_network_is_shut(manifests: list[Any], workload: dict[str, Any]) -> None:
    """In to the API alone, out to name servers, PostgreSQL and Kafka."""
    (policy,) = [m["spec"] for m in manifests if m["kind"] == "NetworkPolicy"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    ours = {p["containerPort"] for p in container["ports"]}
    assert all(rule.get("ports") for rule in (*policy["ingress"], *policy["egress"]))
    assert {p["port"] for rule in policy["ingress"] for p in rule["ports"]} == ours
    out = {p["port"]: rule for rule in policy["egress"] for p in rule["ports"]}
    assert set(out) == {53, 5432, 9092, 9093}
    assert out[53]["to"]


def test_the_role_of_compose_is_no_superuser() -> None:
    """The script as PostgreSQL's image runs it, then the service's own look at what it may."""
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    source = compose["services"]["tidemark"]["environment"]["TIDEMARK_SOURCE"]
    assert "user=tidemark " in source and "dbname=shop " in source
    assert compose["services"]["postgres"]["environment"]["POSTGRES_USER"] == "postgres"
    mounts = compose["services"]["postgres"]["volumes"]
    assert "./compose_role.sh:/docker-entrypoint-initdb.d/10-role.sh:ro" in mounts
    script = (DEPLOY / "compose_role.sh").read_text()
    with EmbeddedPostgres(settings=SERVER_SETTINGS) as server:
        admin = Database(server, "postgres")
        admin.execute("CREATE DATABASE shop")
        path = f"{server.program('psql').parent}:/usr/bin:/bin"
        own = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PATH": path}
        given = {"POSTGRES_USER": "postgres", "POSTGRES_DB": "shop", "SERVICE_PASSWORD": "a b'c"}
        ended = subprocess.run(
            ["sh", "-c", script.replace("/etc/tidemark/role.sql", str(DEPLOY / "role.sql"))],
            env={**own, **given},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        shop = Database(server, "shop")
        powers = "SELECT rolsuper, rolcreaterole, rolcreatedb, rolbypassrls, rolcanlogin"
        assert shop.rows(f"{powers} FROM pg_roles WHERE rolname = 'tidemark'") == [
            (False, False, False, False, True)
        ]
        known = shop.rows("SELECT rolpassword FROM pg_authid WHERE rolname = 'tidemark'")
        assert known[0][0].startswith("SCRAM-SHA-256$")
        as_role(shop, "shop", "CREATE TABLE orders (id int PRIMARY KEY)")
        as_role(shop, "shop", "GRANT SELECT ON orders TO tidemark")
        dsn = f"host=127.0.0.1 port={server.port} user=tidemark dbname=shop"
        steps = prepare(Desired(dsn, dsn, tables=("orders",)), is_dry=False)
        assert [s.check.name for s in steps if s.outcome == "to do"] == []


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "tidemark.service").read_text()
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    assert unit["Service"]["User"] == "tidemark"
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze here")
    env = tmp_path / "tidemark.env"
    env.write_text("")
    here = text.replace("/opt/tidemark/bin/tidemark", sys.executable)
    path = tmp_path / "tidemark.service"
    path.write_text(here.replace("/etc/tidemark/tidemark.env", str(env)))
    checked = subprocess.run(
        [program, "verify", "--man=no", "--recursive-errors=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    # Of units that it does not know here it may complain, never of ours.
    assert not [line for line in checked.stderr.splitlines() if "tidemark.service" in line]
    secured = subprocess.run(
        [program, "security", "--offline=true", "--threshold=30", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert secured.returncode == 0, secured.stdout[-400:] + secured.stderr


# --- the package ---------------------------------------------------------------------------------


def test_the_wheel_has_every_file_of_the_packages(tmp_path: Path) -> None:
    """What git knows of the packages is what an installed Tidemark has; and it starts there."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rooms = ("service/", "dataflow/", "storage/", "connectors/")
    names = [n for n in listed.stdout.splitlines() if (ROOT / n).is_file()]
    wanted = {n for n in names if n.startswith(rooms)} | {"tidemark.py"}
    source = tmp_path / "source"
    for name in wanted | {"pyproject.toml", "README.md"}:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    build = "from setuptools import build_meta as b; import sys; print(b.build_wheel(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    # Of the console what is built is wanted, not what it is built from.
    console = ("service/console/", "service/console/dist/")
    left = {n for n in wanted - packed if not n.startswith(console[0]) or n.startswith(console[1])}
    assert left - {"service/console/dist/SOURCES"} == set()
    started = subprocess.run(
        [sys.executable, "-I", "-c", _START, str(tmp_path / "installed"), "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 0, started.stderr
    version = wheel.name.split("-")[1]
    assert started.stdout.strip() == f"tidemark {version}"


_START = """
import sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
sys.path.insert(0, sys.argv.pop(1))
import service.cli.main
assert service.cli.main.__file__.startswith(sys.path[0]), service.cli.main.__file__
service.cli.main.main()
"""
