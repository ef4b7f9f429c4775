"""The options of databases with a Python module as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import any_json, by_name, group, text
from connectors.polled.row_schema import ROWS, SHARED, max_rows

RELATION = group(
    "Relation",
    "The rows of a query.",
    {
        "query": text("Query", "A SELECT; each reading runs it.", **{"x-lines": 4}),
        "parameters": any_json("Parameters", "JSON list of values of its placeholders, in order."),
        **ROWS,
    },
    ("query", "key", "columns"),
)
SCHEMA = group(
    "Any database with a Python module",
    "Queries that a module of the DB-API runs by interval.",
    {
        "module": text("Module", "One that the operator allows.", examples=["sqlite3", "pyodbc"]),
        "connect": any_json(
            "Connection",
            "JSON object: what the module's connect is called with; secrets are ${env:NAME}.",
            examples=['{"host": "crm.example.com", "password": "${env:CRM}"}'],
        ),
        "relations": by_name("Relations", "Each is what queries name source.relation.", RELATION),
        **SHARED,
        "max_rows": max_rows(),
    },
    ("module", "relations"),
)
