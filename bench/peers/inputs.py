"""The rows as Flink reads them: CSV of tables that are only appended to, else Debezium's JSON.

Made once beside the other files, in a child, by DuckDB.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from bench.rows import DELETE, INSERT, NEW, OLD, Generated
from bench.workloads import Table, Workload

COPIES = 4


def flink_inputs(workload: Workload, rows: Generated) -> dict[str, str]:
    """Paths by table; for a stateless workload also `TABLE*N`, a folder with the rows N times."""
    found: dict[str, str] = {}
    with duckdb.connect() as connection:
        for table in workload.tables:
            has_old_rows = workload.has_old_rows and table is workload.stream[-1]
            path = rows.folder / f"{table.name}.{'jsonl' if has_old_rows else 'csv'}"
            if not path.exists():
                write = _write_json if has_old_rows else _write_csv
                part = path.with_suffix(".part")
                write(connection, rows, table, part)
                part.rename(path)
            found[table.name] = str(path)
    if len(workload.tables) == 1:
        table = workload.tables[0]
        found[f"{table.name}*{COPIES}"] = str(_copies(Path(found[table.name])))
    return found


@dataclass(frozen=True)
class Facts:
    """loaded: initial rows. passing: those of the streamed table that pass the query's filter.
    changes: later ones.
    """

    loaded: int
    passing: int
    changes: int


def facts(workload: Workload, rows: Generated) -> Facts:
    """Count over the Parquet files."""
    with duckdb.connect() as connection:

        def count(table: Table, part: str, where: str = "true") -> int:
            path = rows.parquet(table, part)
            if not path.exists():
                return 0
            query = f"SELECT count(*) FROM '{path}' WHERE {where}"
            return int(connection.execute(query).fetchall()[0][0])

        last = workload.stream[-1]
        where = "status <> 'cancelled'" if "status" in last.names else "true"
        return Facts(
            sum(count(t, "load") for t in workload.tables),
            count(last, "load", where),
            sum(count(t, "changes", f"kind <> {OLD}") for t in workload.stream),
        )


def _copies(path: Path) -> Path:
    folder = path.with_name(f"{path.stem}-{COPIES}")
    folder.mkdir(exist_ok=True)
    for number in range(COPIES):
        link = folder / f"{number}.csv"
        if not link.exists():
            link.hardlink_to(path)
    return folder


def _write_csv(
    connection: duckdb.DuckDBPyConnection, rows: Generated, table: Table, path: Path
) -> None:
    part = "load" if rows.parquet(table, "load").exists() else "changes"
    names = ", ".join(table.names)
    connection.execute(
        f"COPY (SELECT {names} FROM '{rows.parquet(table, part)}') TO '{path}' "
        "(FORMAT csv, HEADER false)"
    )


def _write_json(
    connection: duckdb.DuckDBPyConnection, rows: Generated, table: Table, path: Path
) -> None:
    """Write `before`, `after`, `op` a line; an update's old row is the row before its new one."""
    row = "{" + ", ".join(f"'{n}': {n}" for n in table.names) + "}"
    selects = []
    if rows.parquet(table, "load").exists():
        selects.append(
            f"SELECT -1 AS seq, {table.names[0]} AS rank, NULL AS before, {row} AS after, "
            f"'c' AS op FROM '{rows.parquet(table, 'load')}'"
        )
    selects.append(
        f"SELECT seq, 0 AS rank, "
        f"any_value({row}) FILTER (kind IN ({OLD}, {DELETE})) AS before, "
        f"any_value({row}) FILTER (kind IN ({INSERT}, {NEW})) AS after, "
        f"CASE max(CASE kind WHEN {INSERT} THEN 0 WHEN {DELETE} THEN 2 ELSE 1 END) "
        f"WHEN 0 THEN 'c' WHEN 2 THEN 'd' ELSE 'u' END AS op "
        f"FROM '{rows.parquet(table, 'changes')}' GROUP BY seq"
    )
    ordered = f"SELECT before, after, op FROM ({' UNION ALL '.join(selects)}) ORDER BY seq, rank"
    connection.execute(f"COPY ({ordered}) TO '{path}' (FORMAT json)")
