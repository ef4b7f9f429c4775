"""Oracle: the program itself. What the pages say of codes, commands, settings, routes, files and
SQL is compared with the code, the registry of functions, and PostgreSQL's answers."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import typer.main
from fastapi.routing import APIRoute
from psycopg2 import errorcodes

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from dataflow.errors import TidemarkError
from dataflow.plan.nodes import ViewPlan
from dataflow.sql.planner import plan_view
from dataflow.types import BOOL, INT4, INT8, TEXT
from service.api import routes as routes_
from service.cli.main import app
from service.runtime.settings import EARLIER_NAMES, PREFIX, Settings
from storage import failpoints
from storage.memory import MemoryStore
from tests.harness.changes import Statement, Transaction
from tests.harness.error_codes import ROOMS, codes_of
from tests.harness.log_events import events_of
from tests.harness.maintained import (
    MARKER,
    MARKER_QUERY,
    Maintained,
    ask,
    create_marker,
    plan_all,
    run_numbered,
)
from tests.harness.native_functions import casts_table, functions_table, is_native
from tests.harness.postgres import Database
from tests.harness.sql_examples import Example, read_examples
from tests.harness.unprovoked_codes import UNPROVOKED, provoked

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DECISIONS = DOCS / "contributing" / "decisions"
TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = ("storage", "dataflow", "connectors", "service", "tests", "bench", "deploy", "docs")
NAMED = re.compile(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./*-]*")
FILE = re.compile(r"`([\w-]+\.(?:py|md|sh|sql))`")
COMMAND = re.compile(
    r"(?:^|[`;(]\s*|/)tidemark ([a-z][a-z-]*(?: \| [a-z-]+)*)([^`;|#\n]*)", re.MULTILINE
)
OPTION = re.compile(r"(?<!\w)--[a-z][a-z-]*")
ROUTE = re.compile(r"(GET|POST|DELETE|PUT) (/[\w/{}-]*)")
ROW = re.compile(r"^\| (`[^|]*`) \|", re.MULTILINE)


def report(faults: list[str]) -> None:
    assert not faults, "\n" + "\n".join(faults)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# --- codes ------------------------------------------------------------------------------------


def documented_codes() -> set[str]:
    cells = ROW.findall((DOCS / "ERRORS.md").read_text())
    return {code for cell in cells for code in re.findall(r"`([^`]+)`", cell)}


def test_every_code_is_documented_and_every_documented_code_is_there() -> None:
    raised, faults = codes_of(ROOT)
    documented = documented_codes()
    faults += [
        f"{place}: {c} is not in ERRORS.md" for c, place in raised.items() if c not in documented
    ]
    faults += [f"ERRORS.md: nothing raises {c}" for c in sorted(documented - raised.keys())]
    report(faults)


def test_every_code_is_provoked_by_a_test_or_has_a_reason_why_not() -> None:
    documented, by_tests = documented_codes(), provoked(ROOT / "tests")
    listed = [code for codes in UNPROVOKED.values() for code in codes]
    faults = [f"{c}: no test provokes it" for c in documented - by_tests - {*listed}]
    faults += [f"{c}: a test provokes it" for c in listed if c in by_tests]
    faults += [f"{c}: it is not in ERRORS.md" for c in listed if c not in documented]
    report(sorted(faults) + [f"{c}: listed twice" for c in listed if listed.count(c) > 1])


def test_codes_named_anywhere_are_codes() -> None:
    known = documented_codes()
    groups = {code.split(".")[0] for code in known}
    known |= events_of(ROOT).keys()
    conditions = {name.lower() for name in vars(errorcodes) if name.isupper()}
    faults = []
    for page in PAGES:
        for code in re.findall(r"`([a-z]+\.[a-z_]+)`", page.read_text()):
            group, _, name = code.partition(".")
            is_condition = group == "sql" and name in conditions
            is_file = (ROOT / group).is_dir() or name in ("py", "md", "sh")
            if group in groups and code not in known and not is_condition and not is_file:
                faults.append(f"{name_of(page)}: {code}")
    report(faults)


# --- files, commands, settings, routes ----------------------------------------------------------


def test_links_lead_somewhere() -> None:
    faults = []
    for page in PAGES:
        for target in LINK.findall(page.read_text()):
            path, _, anchor = target.partition("#")
            if "://" in path:
                continue
            found = (page.parent / path).resolve() if path else page
            if not found.exists():
                faults.append(f"{name_of(page)}: {target}")
            elif anchor and anchor not in anchors_of(found):
                faults.append(f"{name_of(page)}: {target} has no such heading")
    report(faults)


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are shown on the web."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_each_decision_has_a_number_and_its_title_in_the_index() -> None:
    pages = sorted(p for p in DECISIONS.glob("*.md") if p != DECISIONS / "README.md")
    numbers = [int(p.name[:4]) for p in pages]
    assert len(set(numbers)) == len(numbers)
    titles = [p.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for p in pages]
    entries = [
        f"- {t.replace('. ', '. [', 1)}]({p.name})" for t, p in zip(titles, pages, strict=True)
    ]
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    found = [line.split(" (superseded")[0] for line in index.splitlines() if line[:2] == "- "]
    assert sorted(found) == sorted(entries)


def test_threads_are_named_on_their_page() -> None:
    page = (DOCS / "contributing" / "PROCESSES.md").read_text(encoding="utf-8")
    shown = {cell.split()[0].split("-VIEW")[0] for cell in re.findall(r"`([^`]+)`", page)}
    faults = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("service", "connectors", "dataflow", "storage")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in thread_names(ast.parse(path.read_text(encoding="utf-8")))
        if name not in shown
    ]
    report(faults)


def thread_names(tree: ast.Module) -> Iterator[str]:
    """The first words of the names of threads that a module makes."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        given = {each.arg: each.value for each in node.keywords}
        if called == "Thread" and "name" in given:
            name = given["name"]
        elif called in ("begin", "thread") and len(node.args) == 2:
            name = node.args[1]
        else:
            continue
        if isinstance(name, ast.JoinedStr):
            name = name.values[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value.split()[0].removesuffix("-")


def test_files_that_are_named_exist() -> None:
    names = {
        path.name
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        # The peers' environments are not ours.
        if ROOT / "bench" / "data" not in path.parents and path.is_file()
    }
    names |= {path.name for path in ROOT.iterdir()}
    faults = []
    for page in PAGES:
        text = page.read_text()
        for path in NAMED.findall(text):
            if not any(list(ROOT.glob(pattern)) for pattern in patterns_of(path)):
                faults.append(f"{name_of(page)}: {path}")
        faults += [f"{name_of(page)}: {f}" for f in FILE.findall(text) if f not in names]
    report(faults)


def patterns_of(path: str) -> list[str]:
    """What a path in running text may stand for: itself, or a module without its suffix."""
    plain = path.rstrip("./")
    return [plain, f"{plain}.py"]


def commands() -> dict[str, set[str]]:
    """The commands of the program, each with its options."""
    group: Any = typer.main.get_command(app)
    return {
        name: {o for p in command.params for o in p.opts if o.startswith("--")} | {"--help"}
        for name, command in group.commands.items()
    }


def test_commands_and_their_options_are_there() -> None:
    known, faults = commands(), []
    for page in (
        ROOT / "README.md",
        DOCS / "OPERATING.md",
        DOCS / "SQL.md",
        DOCS / "SOURCES.md",
        DOCS / "ERRORS.md",
    ):
        for names, rest in COMMAND.findall(page.read_text()):
            for name in names.split(" | "):
                options = OPTION.findall(rest)
                if name not in known:
                    faults.append(f"{name_of(page)}: tidemark {name}")
                else:
                    faults += [
                        f"{name_of(page)}: tidemark {name} {o}"
                        for o in options
                        if o not in known[name]
                    ]
    report(faults)


def test_readme_and_operating_name_every_command() -> None:
    pages = (ROOT / "README.md", DOCS / "OPERATING.md", DOCS / "SOURCES.md")
    text = "".join(page.read_text() for page in pages)
    report([f"tidemark {name}" for name in commands() if f"tidemark {name}" not in text])


def test_settings_are_documented_as_they_are() -> None:
    fields = Settings.model_fields
    told = {}
    for line in (DOCS / "OPERATING.md").read_text().splitlines():
        if line.startswith(f"| `{PREFIX}"):
            variable, option, default, _ = (cell.strip(" `") for cell in line.split("|")[1:-1])
            told[variable.removeprefix(PREFIX).lower()] = (option, default)
    assert told.keys() == fields.keys()
    serve = commands()["serve"]
    faults = []
    for name, (option, default) in told.items():
        flag = f"--{name.replace('_', '-')}"
        if option != (flag if flag in serve else ""):
            faults.append(f"{name}: the option is not {option}")
        actual = fields[name].default
        wanted = {
            "source": "(must be set)",
            "sink": "the source",
            "cache_mb": "a third of the memory",
            "spark_rows": "by the estimated time",
        }.get(name, str(actual))
        if default not in (wanted, wanted.removesuffix(".0")):
            faults.append(f"{name}: the default is {wanted}, not {default}")
    told_options = {f"--{name.replace('_', '-')}" for name in told}
    faults += [f"serve {option} is not told" for option in serve - told_options - {"--help"}]
    report(faults)


def test_variables_that_are_named_are_read() -> None:
    known = {
        PREFIX + name.upper() for name in (*Settings.model_fields, *EARLIER_NAMES.values())
    } | {
        f"{PREFIX}URL",
        f"{PREFIX}TOKEN",
        *(failpoints.VARIABLE, failpoints.FOLDER_VARIABLE),
    }
    named = {
        (name_of(page), variable)
        for page in PAGES
        for variable in re.findall(rf"{PREFIX}[A-Z_]+", page.read_text())
    }
    report([f"{p}: {v}" for p, v in sorted(named) if v not in known and "_TEST_" not in v])


def test_routes_that_are_named_are_there() -> None:
    modules = [
        importlib.import_module(f"service.api.routes.{m.name}")
        for m in iter_modules(routes_.__path__)
    ]
    routers = [m.router for m in modules if hasattr(m, "router")]
    routes = [r for router in routers for r in router.routes]
    known = {(m, r.path) for r in routes if isinstance(r, APIRoute) for m in r.methods}
    faults = []
    for page in PAGES:
        for method, path in ROUTE.findall(page.read_text()):
            if (method, path.rstrip("/")) not in known:
                faults.append(f"{name_of(page)}: {method} {path}")
    report(faults)


# --- events -----------------------------------------------------------------------------------


def test_events_are_documented_as_they_are_logged() -> None:
    cells = ROW.findall((DOCS / "LOGS.md").read_text())
    told = {event for cell in cells for event in re.findall(r"`([^`]+)`", cell)}
    known = events_of(ROOT)
    faults = [f"{place}: {e} is not in LOGS.md" for e, place in known.items() if e not in told]
    report(faults + [f"LOGS.md: nothing logs {event}" for event in sorted(told - known.keys())])


# --- doctests -------------------------------------------------------------------------------------


def modules_with_doctests() -> list[str]:
    paths = [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))]
    named = [p.relative_to(ROOT).with_suffix("") for p in paths if ">>> " in p.read_text()]
    return [".".join(p.parts) for p in named]


@pytest.mark.parametrize("module", modules_with_doctests())
def test_doctests(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted
    assert not outcome.failed


# --- SQL ----------------------------------------------------------------------------------------


EXAMPLES = read_examples(DOCS / "SQL.md")
TRANSACTIONS = (
    "INSERT INTO customers VALUES (4, 'Di', 'south', true, 'Oslo'), (5, 'Ed', 'east', false, NULL)",
    "INSERT INTO orders VALUES (13, 4, 99.99, '2024-05-01', '2024-05-03 22:30+00', ' a  b ')",
    "INSERT INTO orders VALUES (14, 4, 500, '2024-05-01'), (15, 9, 0.5, '2024-05-02')",
    "UPDATE orders SET amount = amount * 2, placed = placed + 30 WHERE customer_id = 1",
    "UPDATE customers SET region = 'east', city = 'Bari' WHERE id = 1",
    "DELETE FROM orders WHERE id = 12",
    "INSERT INTO blocked VALUES (1), (1), (NULL)",
    "DELETE FROM blocked WHERE customer_id IS NULL",
    "DELETE FROM customers WHERE id = 2",
    "INSERT INTO prices VALUES (1, 10), (2, 0.05)",
    "INSERT INTO visits VALUES (now(), 'a'), (now(), 'a'), (NULL, NULL)",
    "TRUNCATE orders",
)


def planned(database: Database, example: Example) -> ViewPlan | TidemarkError:
    try:
        with PostgresAnalyzer(database.dsn, "source") as analyzer:
            return plan_view(example.sql, analyzer)
    except TidemarkError as error:
        return error


def told_of(found: ViewPlan | TidemarkError, example: Example) -> list[str]:
    """What the page says of an example and the planner does not."""
    facts = example.facts
    if isinstance(found, TidemarkError) or "refused" in facts:
        code = found.code if isinstance(found, TidemarkError) else "planned"
        return [] if facts.get("refused") == code else [f"{code}: {found}"]
    key = " and ".join(found.root.fields[i].name for i in found.key)
    faults = []
    if (key != facts.get("key")) if key else ("multiset" not in facts):
        faults.append(f"key: {key or 'none'}")
    if not any(facts.get("warning", "") in w for w in found.warnings or [""]):
        faults.append(f"warnings: {found.warnings}")
    if not any(facts.get("in PostgreSQL", "") in e for e in found.evaluates or [""]):
        faults.append(f"in PostgreSQL: {found.evaluates}")
    if "in PostgreSQL" not in facts and found.evaluates:
        faults.append(f"in PostgreSQL: {found.evaluates}")
    return faults


def test_sql_examples_are_planned_or_refused_as_documented(every_database: Database) -> None:
    faults = []
    for example in EXAMPLES:
        if not example.is_query:
            every_database.execute(example.sql)
            continue
        found = told_of(planned(every_database, example), example)
        faults += [f"SQL.md:{example.line}: {fault}\n    {example.sql}" for fault in found]
    report(faults)


def test_sql_examples_equal_postgresql(database: Database) -> None:
    """All maintained examples at once, over the page's rows and then some transactions."""
    for example in EXAMPLES:
        if not example.is_query:
            database.execute(example.sql)
    kept = {f"line {e.line}": e for e in EXAMPLES if e.is_query and "refused" not in e.facts}
    queries = {MARKER: MARKER_QUERY, **{name: e.sql for name, e in kept.items()}}
    connection = database.connect()
    create_marker(connection)
    plans, refused = plan_all(database, queries)
    assert not refused
    maintained = Maintained(database, plans, MemoryStore())
    try:
        for name, example in kept.items():
            if example.shown is not None:
                rows = [tuple(str(c) for c in r) for r in maintained.answers[name].rows.elements()]
                assert sorted(rows) == sorted(example.shown), name
        comparable = {n: q for n, q in queries.items() if n == MARKER or kept[n].shown is None}
        for number, text in enumerate(TRANSACTIONS, start=1):
            run_numbered(connection, Transaction((Statement(text),)), number)
            maintained.follow(number)
            faults = maintained.compare(number, ask(connection, comparable))
            # What the page shows itself is where PostgreSQL has no one answer.
            wrong = [f for f in faults if f.query in comparable]
            assert not wrong, "\n".join(f"{f.query} after {f.transaction}: {f.what}" for f in wrong)
    finally:
        maintained.close()
        connection.close()


def table_of(title: str) -> list[str]:
    """The generated rows of a table of SQL.md."""
    text = (DOCS / "SQL.md").read_text()
    block = text.split(f"<!-- {title}: ")[1].split("<!-- end -->")[0]
    return [line for line in block.splitlines() if line.startswith("| `")]


def test_native_functions_are_those_of_the_registry(database: Database) -> None:
    hint = "python -m tests.harness.native_functions prints the tables"
    assert Counter(table_of("functions")) == Counter(functions_table(database)), hint
    assert Counter(table_of("casts")) == Counter(casts_table()), hint


def test_native_constructs_are_those_of_the_registry() -> None:
    assert is_native("and", (BOOL, BOOL), BOOL) and is_native("or", (BOOL, BOOL), BOOL)
    assert is_native("case", (BOOL, TEXT, TEXT), TEXT) and is_native("coalesce", (INT4, INT4), INT4)
    assert is_native("in", (INT4, INT4, INT4), BOOL) and is_native("nullif", (TEXT, TEXT), TEXT)
    for function in ("greatest", "least"):
        assert is_native(function, (INT8, INT8, INT8), INT8)
    for function in ("is null", "is not null"):
        assert is_native(function, (TEXT,), BOOL)
    for word in ("true", "false", "unknown"):
        assert is_native(f"is {word}", (BOOL,), BOOL) and is_native(f"is not {word}", (BOOL,), BOOL)
    for function in ("is distinct from", "is not distinct from"):
        assert is_native(function, (TEXT, TEXT), BOOL)
    assert is_native("concat", (TEXT, INT4), TEXT) and is_native("concat_ws", (TEXT, TEXT), TEXT)
