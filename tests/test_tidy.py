"""Oracle: STYLE as rules over the syntax tree of every file, with ruff and pyright beside it.

A file or function may be longer than the limit when its docstring says why, in a sentence with
"long because" (or "longer because"); there may be only a handful of those.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from connectors.view_states import DesiredState, ViewState

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("storage", "dataflow", "connectors", "service")
OTHERS = ("tests", "bench", "examples")
OURS = (*PRODUCT, *OTHERS, "tidemark")

FILE_LINES = 700
FUNCTION_LINES = 60
POSITIONAL_PARAMETERS = 5
DOCSTRING_LINES = 12
SMALL_FILE_LINES = 60
README_LINES = 150
EXCUSES = 8

# What the layers above may know of the dataflow without running it.
WORDS = tuple(
    f"dataflow.{name}"
    for name in (
        "delta",
        "notes",
        "window_close",
        "schema",
        "frozen",
        "types",
        "changes",
        "values",
        "long_integers",
        "errors",
        "expressions.evaluator",
    )
)
# What every connector may use.
SHARED = ("connectors.formats", "connectors.polled", "connectors.objects", "connectors.lake")
SHARED += ("connectors.outside",)
SHARED += ("storage.failpoints", "storage.clock", "storage.backoff", "storage.parent_process")
SHARED += ("storage.reserve", "storage.process_title", "connectors.apart")
# Beyond that: PostgreSQL's analyzer answers in the words of the planner; the Spark tasks run the
# operators themselves and write their state.
MORE = {
    "connectors.postgres": (
        "dataflow.sql.bind.analysis",
        "dataflow.lexer",
        "dataflow.mismatched_types",
        "dataflow.expressions.ir",
    ),
    "connectors.spark": ("dataflow", "storage"),
    # Records are read by the same loops as PostgreSQL's texts.
    "connectors.formats": ("dataflow.float_text",),
    "connectors.polled": ("storage.bulk",),
    # Every database of others that is PostgreSQL is refused if it is the service's own.
    "connectors.dbapi": ("connectors.postgres.session",),
    "connectors.iceberg": ("connectors.postgres.session",),
}
# A program of its own beside the service: like it, it puts connectors together.
PROGRAM = "connectors/spark/batch/"
# The packages of each folder, lowest first: each imports only itself and those before it.
# "." stands for the modules beside the packages, where they have a place in the order.
LAYERS = {
    "dataflow": ("expressions", "plan", "operators", "sql"),
    "dataflow/sql": ("parse", "bind", "rules", "lower", "."),
    "connectors/postgres": (
        *("session", "types", "evaluation", "schema", "replication", "analysis", "snapshot"),
        *("sink", "additional", "catalog", "query", "embedded", "removal", "."),
        "remote",
    ),
    "service": (
        *("runtime", "metrics", "engine", "views", "ingest", "backfill", "factory", "access"),
        *("sinks", "subscriptions", "checkpoint", "verify", "pipeline", "api", "setup", "psql"),
        *("client", "supervisor", "embedded", "demo", "cli"),
    ),
}
# Those of the operators, and which others each may import; all may import what lies at the root.
OPERATOR_PACKAGES = {
    "ordered": (),
    "joins": ("ordered",),
    "aggregates": ("ordered",),
    "windows": ("ordered", "aggregates"),
    "lateness": ("ordered", "aggregates"),
    "recursion": (),
    "tables": (),
}
HOMES = {
    "rocksdict": ("storage",),
    "sqlglot": ("dataflow/sql",),
    "psycopg2": ("connectors/postgres",),
    "adbc_driver_postgresql": ("connectors/postgres",),
    "pymongo": ("connectors/mongodb",),
    "bson": ("connectors/mongodb",),
    "pyspark": ("connectors/spark",),
    "py4j": ("connectors/spark",),
    "confluent_kafka": ("connectors/kafka",),
    "kafka": ("connectors/kafka",),
    "pymysql": ("connectors/mysql",),
    "websockets": ("connectors/stream",),
    "pymysqlreplication": ("connectors/mysql",),
    "msgspec": ("connectors/formats",),
    "fastavro": ("connectors/formats",),
    "obstore": ("connectors/files", "connectors/objects"),
    "deltalake": ("connectors/delta",),
    "pyiceberg": ("connectors/iceberg",),
    "sqlalchemy": ("connectors/iceberg",),
    # Clients and servers of other programs: a connector asks through connectors/outside alone.
    "clickhouse_connect": (),
    "httpcore": ("connectors/outside",),
    "httpx": ("service",),
    "google": ("connectors/formats",),
    "grpc_tools": ("connectors/formats",),
    "fastapi": ("service",),
    "starlette": ("service",),
    "uvicorn": ("service",),
    "pydantic": ("service", "connectors/spark/batch"),
    "typer": ("service",),
    "rich": ("service",),
    "prometheus_client": ("service",),
}
NOT_IN_DATAFLOW = ("time", "random", "threading", "asyncio", "socket", "os", "logging")
# Words that the field does not have, or has for something else (docs/GLOSSARY.md).
PRIVATE_WORDS = {
    *("desk", "told", "tell", "tells", "untold", "headway", "bury", "anew", "mending", "renewal"),
    *("renewals", "likeness", "agenda", "pace", "room", "rooms", "unwanted", "shadow", "shadows"),
    *("asking", "pins", "lent", "look", "looks", "confined", "follower", "followers", "gathered"),
    *("road", "roads", "asked", "homes", "mend", "mended", "loose", "bag", "bags", "wants", "say"),
    *("wanted", "borne", "bears", "behind", "place"),
}
# In names of log events and failpoints besides.
PRIVATE_EVENT_WORDS = {
    *("bell", "dies", "forget", "given", "heal", "left", "moves", "muted", "ours", "return"),
    *("returns", "standings"),
}
# What users type already, and what a protocol of Python's calls so.
PUBLIC_NAMES = (
    *("told", "tell", "look_up", "_look_up", "road", "why_bag", "place"),
    "is_in_place",
)
# In names of tests, which are sentences, these are plain English.
WORDS_OF_TESTS = {"say", "place"}
# What docstrings, comments and pages say in the field's words instead.
PRIVATE_PHRASES = re.compile(
    r"\b(told|untold|anew|for good|go(?:es)? on|stands? still|way back|further sinks?|roads?|bags?"
    r"|is let go|headway|mend(?:s|ed|ing)?|return return)\b",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:root|home|work|Users)/\w")
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in [
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("repo1", "maven", "org"),
            ("repo", "maven", "apache", "org"),
            ("registry", "npmjs", "org"),
            ("deb", "debian", "org"),
        ]
    )
)
UNFINISHED = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r"\b")
# The states of a view have one owner. The same words are also other things: states of what is named
# here, parts of identifiers, and, for the client, what REST answers.
STATES_OWNER = "connectors/view_states.py"
OTHER_STATES = {
    "connectors/postgres/analysis/analyzer.py": "an SQLSTATE without a name",
    "connectors/postgres/embedded/engine_query.py": "an SQLSTATE without a name",
    "connectors/postgres/query/one_shot.py": "an SQLSTATE without a name",
    "connectors/postgres/catalog/sink_records.py": "an additional sink",
    "connectors/postgres/catalog/requests.py": "a request of psql",
    "connectors/spark/records.py": "a task of Spark",
    "dataflow/operators/tables/remember.py": "an arrangement",
    "dataflow/operators/tables/remember_answers.py": "an arrangement",
    "service/backfill/build_status.py": "a phase of a build",
    "service/views/requested_changes.py": "a change of a view",
    "service/sinks/sink_worker.py": "an additional sink",
    "service/sinks/sink_workers.py": "an additional sink",
    "service/api/health.py": "the service",
    "service/api/openapi_examples.py": "an example",
    "service/api/prometheus.py": "an additional sink",
    "service/api/routes/system.py": "the service",
    "service/api/sink_catalog.py": "an additional sink",
    "service/verify/comparison.py": "a comparison",
    "service/client/answers.py": "an answer of REST",
    "service/client/service_calls.py": "an answer of REST",
}
TEXT_SUFFIXES = (
    *(".py", ".md", ".toml", ".sh", ".sql", ".yml", ".yaml", ".xml", ".json", ".html"),
    *(".ts", ".tsx", ".css"),
)
# Built from what is written by hand beside it.
BUILT = ROOT / "service" / "console" / "dist"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file: several rules walk each file."""
    return list(ast.walk(tree_of(path)))


@cache
def product_files() -> list[Path]:
    found = [p for name in PRODUCT for p in sorted((ROOT / name).rglob("*.py"))]
    return [*found, ROOT / "tidemark.py"]


@cache
def plain_files() -> list[Path]:
    """The files whose names, docstrings and comments use the field's words: all but the tests."""
    return [
        *product_files(),
        *sorted(p for n in ("bench", "examples") for p in written_in(ROOT / n)),
    ]


@cache
def all_files() -> list[Path]:
    found = [p for name in OTHERS for p in written_in(ROOT / name)]
    return product_files() + sorted(found)


def written_in(folder: Path) -> Iterator[Path]:
    """The files of a folder, but for bench/data: the peers' environments, not ours."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and path != ROOT / "bench" / "data":
            yield from path.rglob("*.py")
        elif path.suffix == ".py":
            yield path


def text_files() -> list[Path]:
    """Everything that is written by hand: what git knows of, else what lies in our folders."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        names = [ROOT / line for line in listed.stdout.splitlines()]
    else:
        names = [p for p in ROOT.rglob("*") if ".venv" not in p.parts]
    named = [p for p in names if p.suffix in TEXT_SUFFIXES or p.name in ("Makefile", "run")]
    return sorted(p for p in named if p.is_file() and BUILT not in p.parents)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name), `from a import b` as a.b."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def may_import(path: Path, imported: str) -> bool:
    """Whether a product file may import this name of ours."""
    parts = name_of(path).split("/")
    room = parts[0]
    if room == "service" or name_of(path) == "tidemark.py":
        allowed: tuple[str, ...] = (*PRODUCT, "tidemark")
    elif room == "storage":
        allowed = ("storage",)
    elif room == "dataflow":
        allowed = ("dataflow", "storage")
    elif parts[1] == "outside":
        # What all connectors pass knows none of them.
        allowed = ("connectors.outside", "connectors.netguard", "connectors.secrets")
        allowed += ("connectors.option_reader", "connectors.table_options", "dataflow.errors")
    else:
        own = f"connectors.{parts[1]}"
        if name_of(path).startswith(PROGRAM):
            own = "connectors"
        more = MORE.get(f"connectors.{parts[1]}", ())
        allowed = (*WORDS, *contracts(), *SHARED, own, *more)
    if imported == "storage":
        # The package itself only checks the version of the kernels.
        return True
    return any(is_within(imported, package) for package in allowed)


@cache
def contracts() -> tuple[str, ...]:
    """The modules beside the connectors' folders, which all of them may use."""
    return tuple(f"connectors.{p.stem}" for p in (ROOT / "connectors").glob("*.py"))


def report(faults: list[str]) -> None:
    assert not faults, "\n" + "\n".join(faults)


def test_imports_go_one_way() -> None:
    faults = []
    for path in product_files():
        for line, imported in imports_of(path):
            if imported.split(".")[0] in OURS and not may_import(path, imported):
                faults.append(f"{name_of(path)}:{line}: imports {imported}")
    report(faults)


@pytest.mark.parametrize("folder", LAYERS)
def test_packages_are_layered(folder: str) -> None:
    root, layers = ROOT / folder, LAYERS[folder]
    packages = {p.name for p in root.iterdir() if (p / "__init__.py").exists()}
    assert packages == {*layers} - {"."}
    modules = {module_of(path): path for path in root.rglob("*.py")}
    at = {module: layer_of(path, root) for module, path in modules.items()}
    faults = []
    for module, path in modules.items():
        own = at[module]
        for line, imported in imports_of(path):
            found = imported if imported in at else imported.rpartition(".")[0]
            if found not in at or not {own, at[found]} <= {*layers}:
                continue
            if layers.index(at[found]) > layers.index(own):
                faults.append(f"{name_of(path)}:{line}: imports {imported}")
    report(faults)


def layer_of(path: Path, root: Path) -> str:
    first, *rest = path.relative_to(root).parts
    return first if rest else "."


def test_packages_say_what_they_are_for() -> None:
    """And where to start reading."""
    faults = []
    for folder in LAYERS:
        for path in sorted((ROOT / folder).glob("*/__init__.py")):
            if len((ast.get_docstring(tree_of(path)) or "").split()) < 8:
                faults.append(f"{name_of(path)}: no docstring that says what belongs here")
    report(faults)


def test_the_operators_are_layered() -> None:
    faults = []
    root = ROOT / "dataflow" / "operators"
    assert {p.name for p in root.iterdir() if (p / "__init__.py").exists()} == {*OPERATOR_PACKAGES}
    for path in sorted(root.rglob("*.py")):
        own = path.parent.name if path.parent != root else ""
        allowed = {own, *OPERATOR_PACKAGES.get(own, ())}
        forbidden = [f"dataflow.operators.{n}" for n in OPERATOR_PACKAGES if n not in allowed]
        for line, imported in imports_of(path):
            if any(is_within(imported, package) for package in forbidden):
                faults.append(f"{name_of(path)}:{line}: imports {imported}")
    report(faults)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_for_types(path: Path) -> set[int]:
    """Lines that only a type checker reads."""
    found: set[int] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def import_graph() -> dict[str, set[str]]:
    """Each module of ours with those that it imports anywhere in it, also within functions.

    In tests what is imported for types alone does not count.
    """
    paths = {module_of(path): path for path in all_files()}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        ignored = imports_for_types(path) if module.startswith("tests.") else set()
        found = {name for line, name in imports_of(path) if line not in ignored}
        modules = {n if n in paths else n.rpartition(".")[0] for n in found}
        graph[module] = {n for n in modules if n in paths and n != module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """What is left when modules that import nothing left, or that nothing left imports, go."""
    left = {module: set(imported) for module, imported in graph.items()}
    while True:
        used = set().union(*left.values())
        gone = {module for module, imported in left.items() if not imported or module not in used}
        if not gone:
            break
        left = {m: imported - gone for m, imported in left.items() if m not in gone}
    return [[module, *sorted(imported)] for module, imported in sorted(left.items())]


def test_no_modules_import_each_other() -> None:
    report([f"{module} imports {', '.join(rest)}" for module, *rest in cycles(import_graph())])


def test_a_cycle_is_found_and_what_leads_to_it_is_not() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert cycles(graph) == [["b", "c"], ["c", "b"]]


def test_a_library_has_one_home() -> None:
    faults = []
    for path in product_files():
        for line, imported in imports_of(path):
            homes = HOMES.get(imported.split(".")[0])
            if homes is not None and not any(
                name_of(path).startswith(home + "/") for home in homes
            ):
                faults.append(f"{name_of(path)}:{line}: {imported} belongs in {', '.join(homes)}")
    report(faults)


def test_a_run_of_the_dataflow_is_repeatable() -> None:
    faults = []
    for path in sorted((ROOT / "dataflow").rglob("*.py")):
        for line, imported in imports_of(path):
            if imported.split(".")[0] in NOT_IN_DATAFLOW:
                faults.append(f"{name_of(path)}:{line}: imports {imported}")
    report(faults)


def test_the_wall_clock_has_one_home() -> None:
    """Somebody may set it: what waits or expires by it waits for a day, or loses one."""
    asked = re.compile(r"\btime\.time(_ns)?\b|\bdatetime\.now\b|\butcnow\b")
    faults = []
    for path in product_files():
        is_shown_only = "demo" in path.stem or path.stem in ("embedded", "clock")
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if asked.search(line) and not is_shown_only:
                faults.append(f"{name_of(path)}:{number}: use storage.clock, or time.monotonic")
    report(faults)


def test_states_of_views_have_one_owner() -> None:
    """A state is written by its name in the enum, in SQL too."""
    states = {*ViewState, *DesiredState}
    in_sql = re.compile(rf"\b(status|desired)\W[^;]{{0,40}}?'({'|'.join(sorted(states))})'")
    faults, met = [], set()
    for path in product_files():
        for node in nodes_of(path):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            if node.value in states or in_sql.search(node.value):
                met.add(name_of(path))
                if name_of(path) not in (STATES_OWNER, *OTHER_STATES):
                    faults.append(f"{name_of(path)}:{node.lineno}: a state: {node.value[:40]!r}")
    report(faults + [f"{name}: has no such word any more" for name in OTHER_STATES.keys() - met])


def test_the_status_of_views_has_one_writer() -> None:
    writes = re.compile(r"UPDATE tidemark\.views SET\b.*?\bstatus =", re.DOTALL)
    found = set()
    for path in product_files():
        for node in nodes_of(path):
            is_text = isinstance(node, ast.JoinedStr | ast.Constant)
            if is_text and writes.search(ast.unparse(node).partition("WHERE")[0]):
                found.add(name_of(path))
    assert found == {"connectors/postgres/schema/view_status.py"}


def says_why_long(docstring: str | None) -> bool:
    return bool(docstring) and bool(re.search(r"\blong(er)?\s+because\b", docstring or ""))


def test_files_and_functions_are_short() -> None:
    faults, excused = [], 0
    for path in all_files():
        lines = len(path.read_text().splitlines())
        if lines > FILE_LINES:
            if says_why_long(ast.get_docstring(tree_of(path))):
                excused += 1
            else:
                faults.append(f"{name_of(path)}: {lines} lines")
        for function in functions_of(path):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES:
                if says_why_long(ast.get_docstring(function)):
                    excused += 1
                else:
                    faults.append(
                        f"{name_of(path)}:{function.lineno}: {function.name}: {lines} lines"
                    )
    report(faults)
    assert excused <= EXCUSES


def test_positional_parameters_are_few() -> None:
    faults = []
    for path in product_files():
        for function in functions_of(path):
            names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
            if names[:1] in (["self"], ["cls"]):
                names = names[1:]
            if len(names) > POSITIONAL_PARAMETERS and not is_called_otherwise(function):
                faults.append(
                    f"{name_of(path)}:{function.lineno}: {function.name}: {len(names)} parameters"
                )
    report(faults)


def is_called_otherwise(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A command, whose parameters are options."""
    decorators = [ast.unparse(d) for d in function.decorator_list]
    return any(d.endswith(".command()") for d in decorators)


def test_modules_say_what_they_are_for() -> None:
    faults = []
    product = set(product_files())
    for path in all_files():
        docstring = ast.get_docstring(tree_of(path))
        if docstring is None:
            if path.name != "__init__.py" or path.read_text().strip():
                faults.append(f"{name_of(path)}: no docstring")
            continue
        lines = len(docstring.splitlines())
        size = len(path.read_text().splitlines())
        shortest = 3 if size > SMALL_FILE_LINES and path in product else 1
        if not shortest <= lines <= DOCSTRING_LINES:
            faults.append(f"{name_of(path)}: docstring of {lines} lines")
    report(faults)


def test_every_test_file_names_its_oracle() -> None:
    faults = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "oracle" not in (ast.get_docstring(tree_of(path)) or "").lower():
            faults.append(name_of(path))
    report(faults)


def public_definitions(
    body: list[ast.stmt],
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("_"):
                continue
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def test_public_names_have_docstrings() -> None:
    """What implements a contract needs none: the name is documented where the contract stands."""
    faults, documented = {}, set()
    for path in product_files():
        for node in public_definitions(tree_of(path).body):
            is_overload = "overload" in [ast.unparse(d) for d in node.decorator_list]
            if ast.get_docstring(node) is not None:
                documented.add(node.name)
            elif not is_overload:
                faults[f"{name_of(path)}:{node.lineno}: {node.name}"] = node.name
    report([fault for fault, name in faults.items() if name not in documented])


def test_no_error_is_dropped() -> None:
    faults = []
    for path in all_files():
        for node in nodes_of(path):
            where = f"{name_of(path)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.ExceptHandler):
                is_silent = all(isinstance(s, ast.Pass) or is_ellipsis(s) for s in node.body)
                if is_silent or node.type is None:
                    faults.append(f"{where}: except that hides errors")
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                everything = {"Exception", "BaseException"}
                if everything & {ast.unparse(argument) for argument in node.args}:
                    faults.append(f"{where}: suppresses every error")
    report(faults)


def is_ellipsis(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is Ellipsis
    )


def words_of(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [word.lower() for word in spaced.split("_") if word]


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of what a file defines: itself, classes, functions, parameters, variables."""
    yield 1, path.stem
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def test_names_are_the_fields_words() -> None:
    """docs/GLOSSARY.md has them; what fails lists the private words by how often they occur."""
    found: dict[str, list[str]] = {}
    for path in plain_files():
        for line, name in names_in(path):
            for word in set(words_of(name)) & PRIVATE_WORDS:
                if name not in PUBLIC_NAMES:
                    found.setdefault(word, []).append(f"{name_of(path)}:{line}: {name}")
    by_count = sorted(found.items(), key=lambda item: -len(item[1]))
    report([f"{word}, {len(at)} times: {', '.join(at[:5])}" for word, at in by_count])


def event_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of the log events and failpoints that a file names."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            if called == "failpoint" or called.startswith("log."):
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield node.lineno, part.value


def test_events_and_failpoints_are_the_fields_words() -> None:
    found = [(p, *event) for p in product_files() for event in event_names(p)]
    assert len(found) > 200
    report(
        [
            f"{name_of(path)}:{line}: {name}"
            for path, line, name in found
            if {*re.split(r"[._]", name)} & (PRIVATE_WORDS | PRIVATE_EVENT_WORDS)
        ]
    )


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


def test_names_of_tests_are_the_fields_words() -> None:
    faults = []
    product = set(product_files())
    for path in all_files():
        if path not in product:
            names = [f.name for f in functions_of(path) if f.name.startswith("test_")]
            for name in (path.stem, *names):
                if set(words_of(name)) & (PRIVATE_WORDS - WORDS_OF_TESTS):
                    faults.append(f"{name_of(path)}: {name}")
    report(faults)


def described_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file's docstrings and comments, numbered from 1."""
    rows: set[int] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if first is not None and ast.get_docstring(node) is not None:
                rows.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if number in rows or line.lstrip().startswith("#"):
            yield number, line


def messages_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings of more than one word: messages, hints, help and SQL."""
    described = {number for number, _ in described_lines(path)}
    for node in ast.walk(tree_of(path)):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and " " in node.value and node.lineno not in described:
            yield node.lineno, node.value


def prose_lines(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page without code and link targets."""
    text = re.sub(
        r"```.*?```", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.DOTALL
    )
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, re.sub(r"`[^`]*`|\([^()]*\.md[^()]*\)", "", line)


def test_prose_is_in_the_fields_words() -> None:
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
    lines = [(p, *line) for p in plain_files() for line in described_lines(p)]
    lines += [(p, *line) for p in plain_files() for line in messages_of(p)]
    lines += [(p, *line) for p in pages for line in prose_lines(p)]
    report([f"{name_of(p)}:{n}: {text}" for p, n, text in lines if PRIVATE_PHRASES.search(text)])


def test_nothing_is_unfinished_and_nothing_names_a_machine() -> None:
    faults = []
    for path in text_files():
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            for pattern in (UNFINISHED, MACHINE_PATHS, REGISTRY_HOSTS):
                found = pattern.search(line)
                if found:
                    faults.append(f"{name_of(path)}:{number}: {found.group()}")
    report(faults)


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--no-cache", "."),
        ("ruff", "format", "--no-cache", "--check", "."),
        ("pyright",),
    ],
    ids=["ruff check", "ruff format", "pyright"],
)
def test_tools_find_nothing(command: tuple[str, ...]) -> None:
    program = Path(sys.executable).parent / command[0]
    answer = subprocess.run(
        [program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
