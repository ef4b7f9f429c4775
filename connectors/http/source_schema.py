"""The options of an HTTP source as a JSON Schema (connectors/option_schema.py).

Requests, rows and pages of a relation are options beside those that polled sources share.
"""

from __future__ import annotations

from connectors.option_schema import (
    advanced,
    any_json,
    by_name,
    choice,
    group,
    number,
    pairs,
    secret,
    text,
)
from connectors.polled.row_schema import ROWS, SHARED, max_bytes, max_rows, timeout_ms

_PAGINATION = group(
    "Pages",
    "How the next page is found; without it, one answer has all rows.",
    {
        "type": choice(
            "Next page",
            {
                "link": "in the Link header",
                "cursor": "in the answer",
                "page": "the next number",
                "offset": "after the rows so far",
            },
        ),
        "parameter": text("Parameter", "Of the URL: the cursor, number or offset."),
        "variable": text("Variable", "Of a GraphQL body, instead of a parameter."),
        "from": text("Cursor", "Its path in the answer.", examples=["$.data.next"]),
        "more": text("More", "Path of a flag that says whether there is a next page."),
        "first": number("First", "Number of the first page: 1, an offset: 0.", minimum=0),
        "size": number("Size", "Of a page.", unit="rows", minimum=0),
        "size_parameter": text("Size parameter", "Of the URL, to ask for so many rows."),
    },
    ("type",),
)
RELATION = group(
    "Relation",
    "A list of JSON objects that the service returns.",
    {
        "path": text("Path", "Appended to the URL.", examples=["/orders"]),
        "query": pairs("Parameters", "Of the URL, beside those of the source."),
        "rows": text("Rows", "Where the list of rows is in the answer.", default="$"),
        **ROWS,
        "pagination": advanced(_PAGINATION),
        "headers": advanced(pairs("Headers", "Beside those of the source.")),
        "method": advanced(
            choice("Method", {"GET": "", "POST": ""}, None, "By default GET, with a body POST.")
        ),
        "body": advanced(any_json("Body", "JSON, such as a GraphQL query.")),
    },
    ("key", "columns"),
)
SCHEMA = group(
    "HTTP: REST and GraphQL",
    "Lists of objects that a service returns, read again by interval.",
    {
        "url": text(
            "URL", "Paths of relations are appended.", examples=["https://api.example.com/v1"]
        ),
        "token": secret("Token", "A bearer token, as a reference."),
        "user": text("User", "For a basic login."),
        "password": secret("Password", "For a basic login, as a reference."),
        "headers": pairs("Headers", "Sent with each request; a secret is ${env:NAME}."),
        "relations": by_name("Relations", "Each is what queries name source.relation.", RELATION),
        **SHARED,
        "query": advanced(pairs("Parameters", "Of every URL.")),
        "ca": advanced(text("Authority", "PEM file of certificates to trust.")),
        "timeout_ms": timeout_ms("a request", 30_000, 600_000),
        "max_bytes": max_bytes(),
        "max_pages": advanced(
            number("Most pages", "Of one reading; more is an error.", 1000, unit="pages", minimum=1)
        ),
        "max_rows": max_rows(),
    },
    ("url", "relations"),
)
