"""TPC-DS: schema, rows and queries, as an old source distribution of sqlglot carries them.

They are fetched from the package registry and kept under bench/data; nothing of them is in this
repository. Invariant: what is changed of a query is only what keeps PostgreSQL from running it
as a view (names given twice, integers where it wants numeric).
"""

from __future__ import annotations

import ast
import csv
import gzip
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from sqlglot import exp, parse_one

from tests.harness.draw import quote
from tests.harness.schemas.base import TableSpec, TestSchema

PACKAGE = "sqlglot==25.0.0"
FOLDER = Path(__file__).parents[2] / "bench" / "data" / "tpcds"
FETCH_S = 300
FACTS = (
    *("store_sales", "store_returns", "catalog_sales", "catalog_returns"),
    *("web_sales", "web_returns", "inventory"),
)
KEYS = {
    "call_center": "cc_call_center_sk",
    "catalog_page": "cp_catalog_page_sk",
    "customer": "c_customer_sk",
    "customer_address": "ca_address_sk",
    "customer_demographics": "cd_demo_sk",
    "date_dim": "d_date_sk",
    "household_demographics": "hd_demo_sk",
    "income_band": "ib_income_band_sk",
    "item": "i_item_sk",
    "promotion": "p_promo_sk",
    "reason": "r_reason_sk",
    "ship_mode": "sm_ship_mode_sk",
    "store": "s_store_sk",
    "time_dim": "t_time_sk",
    "warehouse": "w_warehouse_sk",
    "web_page": "wp_web_page_sk",
    "web_site": "web_site_sk",
}
CHANGED = ("item", "customer_address", "date_dim", "store", "customer")
TYPES = {"string": "text", "double": "numeric(7,2)"}
# Rows that dimensions keep: those that the facts name come first.
DIMENSION_ROWS = 600


def fetch() -> Path:
    """Return the folder of schema, rows and queries. CalledProcessError where no registry is
    reached."""
    if (FOLDER / "helpers.txt").exists():
        return FOLDER
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "-d", folder, PACKAGE], check=True, timeout=FETCH_S)
        (archive,) = Path(folder).glob("sqlglot-*.tar.gz")
        with tarfile.open(archive) as opened:
            for member in opened:
                parts = Path(member.name).parts
                if "tpc-ds" in parts or parts[1:] == ("tests", "helpers.py"):
                    found = opened.extractfile(member)
                    if found is not None:
                        name = parts[-1].replace(".py", ".txt")
                        (FOLDER / name).write_bytes(found.read())
    return FOLDER


def columns_by_table(folder: Path) -> dict[str, dict[str, str]]:
    """For each table its columns with the types of PostgreSQL."""
    text = (folder / "helpers.txt").read_text()
    name = "TPCDS_SCHEMA = "
    found = ast.literal_eval(text[text.index(name) + len(name) :])
    return {t: {c: _type(c, k) for c, k in columns.items()} for t, columns in found.items()}


def queries(folder: Path) -> dict[str, str]:
    """Return the 99 queries by name, "q01" to "q99"."""
    text = (folder / "tpc-ds.sql").read_text()
    parts = re.split(r"-+\n-- TPC-DS (\d+)\n-+\n", text)[1:]
    found = {}
    for number, body in zip(parts[0::2], parts[1::2], strict=True):
        lines = [line for line in body.splitlines() if not line.startswith("#")]
        found[f"q{int(number):02}"] = _adapted("\n".join(lines).split(";")[0])
    return found


def schema(folder: Path, rows: int, seed: int) -> TestSchema:
    """Tables with up to `rows` rows in each fact, and what changes them."""
    columns = columns_by_table(folder)
    kept = {t: _rows(folder, t, columns[t], rows if t in FACTS else 1 << 30) for t in columns}
    _narrow(columns, kept, seed)
    ddl = "".join(_ddl(table, of) for table, of in columns.items())
    tuples = {
        t: ["(" + ", ".join(_literal(v) for v in row) + ")" for row in found]
        for t, found in kept.items()
        if found
    }
    specs = tuple(TableSpec(t, {}, (), len(kept[t])) for t in columns)
    return TestSchema(
        "tpcds",
        ddl,
        specs,
        templates=_templates(columns),
        changes_rows=False,
        inserts_rows=False,
        rows=tuples,
    )


def _adapted(query: str) -> str:
    """In PostgreSQL's words, with every output column named once."""
    tree = parse_one(query)
    for call in tree.find_all(exp.Round):
        call.set("this", exp.cast(call.this, "decimal"))
    ordered = tree if isinstance(tree, exp.Select) else None
    if ordered is not None:
        _name_once(ordered)
        _order_by_expressions(ordered)
    for number, subquery in enumerate(tree.find_all(exp.Subquery)):
        if isinstance(subquery.parent, exp.From | exp.Join) and not subquery.alias:
            subquery.set("alias", exp.TableAlias(this=exp.to_identifier(f"sub{number}")))
    return tree.sql(dialect="postgres")


def _name_once(select: exp.Select) -> None:
    seen: set[str] = set()
    for number, node in enumerate(list(select.expressions)):
        name = node.alias_or_name
        if name in seen or not name:
            inner = node.this if isinstance(node, exp.Alias) else node
            name = f"column_{number}"
            node.replace(exp.alias_(inner.copy(), name))
        seen.add(name)


def _order_by_expressions(select: exp.Select) -> None:
    """ORDER BY may not compute with output names in PostgreSQL: what they stand for instead."""
    order = select.args.get("order")
    named = {e.alias: e.this for e in select.expressions if isinstance(e, exp.Alias)}
    for ordered in order.expressions if order else ():
        if isinstance(ordered.this, exp.Column):
            continue
        for column in list(ordered.this.find_all(exp.Column)):
            if not column.table and column.name in named:
                column.replace(named[column.name].copy())


def _type(column: str, type: str) -> str:
    return "date" if column == "d_date" else TYPES.get(type, type)


def _rows(
    folder: Path, table: str, columns: dict[str, str], limit: int
) -> list[list[str | int | None]]:
    path = folder / f"{table}.csv.gz"
    with gzip.open(path, "rt") as lines:
        reader = csv.DictReader(lines, delimiter="|")
        found = []
        for row in reader:
            if len(found) >= limit:
                break
            found.append([_value(row.get(c), t) for c, t in columns.items()])
    return found


def _value(text: str | None, type: str) -> str | int | None:
    if text is None or text == "":
        return None
    return int(float(text)) if type == "bigint" else text


def _narrow(columns: dict[str, dict[str, str]], kept: dict[str, list], seed: int) -> None:
    """Of big dimensions the rows that facts name, and some more."""
    named = {
        value
        for table in (*FACTS, "customer")
        for row in kept[table]
        for value in row
        if isinstance(value, int)
    }
    rng = Random(seed)
    for table, key in KEYS.items():
        place = list(columns[table]).index(key)
        rows = kept[table]
        if len(rows) > DIMENSION_ROWS:
            expected = [r for r in rows if r[place] in named]
            rng.shuffle(rows)
            kept[table] = (expected + [r for r in rows if r[place] not in named])[
                : max(DIMENSION_ROWS, len(expected))
            ]


def _ddl(table: str, columns: dict[str, str]) -> str:
    shown = ", ".join(f"{name} {type}" for name, type in columns.items())
    if table in KEYS:
        return f"CREATE TABLE {table} ({shown}, PRIMARY KEY ({KEYS[table]}));\n"
    return f"CREATE TABLE {table} ({shown}); ALTER TABLE {table} REPLICA IDENTITY FULL;\n"


def _literal(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else quote(value)


def _templates(
    columns: dict[str, dict[str, str]],
) -> tuple[Callable[[Random], list[str]], ...]:
    return tuple(
        lambda rng, n=number: list(_changes(columns, rng, n)) for number in range(len(FACTS))
    )


def _changes(columns: dict[str, dict[str, str]], rng: Random, number: int) -> Iterator[str]:
    """Facts come, go and change; now and then a dimension changes under them."""
    fact = FACTS[number]
    amounts = [c for c, t in columns[fact].items() if t.startswith("numeric")]
    amounts = amounts or [c for c in columns[fact] if c.endswith("quantity_on_hand")]
    yield f"DELETE FROM {fact} WHERE {_some(fact, rng, 3)}"
    yield (
        f"INSERT INTO {fact} SELECT * FROM {fact} x WHERE {_some(fact, rng, 4, 'x.')}"  # copies
    )
    yield (
        f"UPDATE {fact} SET {rng.choice(amounts)} = {rng.randrange(90)} WHERE {_some(fact, rng, 5)}"
    )
    if rng.random() < 0.5:
        table = rng.choice(CHANGED)
        texts = [c for c, t in columns[table].items() if t in ("text", "bigint")]
        column = rng.choice([c for c in texts if c != KEYS[table]])
        yield (
            f"UPDATE {table} t SET {column} = (SELECT {column} FROM {table} ORDER BY "
            f"md5({KEYS[table]}::text || '{rng.randrange(1 << 20)}') LIMIT 1) "
            f"WHERE {_some(table, rng, 2, 't.')}"
        )


def _some(table: str, rng: Random, most: int, prefix: str = "") -> str:
    salt = rng.randrange(1 << 20)
    return (
        f"{prefix}ctid = ANY (ARRAY(SELECT y.ctid FROM {table} y "
        f"ORDER BY md5(y.ctid::text || '{salt}') LIMIT {rng.randint(1, most)}))"
    )
