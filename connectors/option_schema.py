"""Describe the options of a connector as a JSON Schema (draft 2020-12).

The service publishes the schemas in its OpenAPI description, and the console makes a form of each.
So every option has a title, which is a label, and a description; defaults are the reader's own.
Words beside JSON Schema: `x-secret` (a reference to a secret), `x-unit` (of a number),
`x-advanced` (rarely needed), `x-json` (any JSON; "text": or a plain text), `x-short` (the option of
an object that a plain value stands for), `x-promise` (what a sink promises). Invariant: a schema
names exactly the options that the reader knows (tests/connectors/test_option_schemas.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]
DAY_MS = 86_400_000
_REFERENCE = "${env:NAME}"
ON_ERROR = {
    "fail": "the source stops before the record",
    "skip": "the record is left out",
    "dead_letter": "the record is left out and stored, to retry it later",
}


def text(title: str, description: str, **more: Any) -> Schema:
    """Return a text. more: words of JSON Schema, such as default and examples."""
    return {"type": "string", **_named(title, description), **more}


def secret(title: str, description: str = "A reference to the secret.") -> Schema:
    """Return a reference to a secret, never the secret itself."""
    return text(title, description, **{"x-secret": True}, examples=[_REFERENCE, "${file:/path}"])


def number(
    title: str, description: str, default: float | None = None, *, unit: str = "", **more: Any
) -> Schema:
    """Return a number: whole, unless `type` says otherwise. unit: of the value, such as "ms"."""
    found = {"type": "integer", **_named(title, description), **_default(default), **more}
    return {**found, "x-unit": unit} if unit else found


def flag(title: str, description: str, *, default: bool = False) -> Schema:
    """Return true or false."""
    return {"type": "boolean", **_named(title, description), "default": default}


def choice(
    title: str, meanings: Mapping[str, str], default: str | None = None, description: str = ""
) -> Schema:
    """Return one of a few words, each with its meaning."""
    listed = "; ".join(f"{word}: {meaning}" for word, meaning in meanings.items() if meaning)
    described = f"{description} {listed}.".strip() if listed else description
    return {
        "type": "string",
        **_named(title, described),
        "enum": [*meanings],
        **_default(default),
    }


def texts(title: str, description: str, *, is_secret: bool = False, **more: Any) -> Schema:
    """Return a list of texts. is_secret: each is a reference to a secret."""
    item: Schema = {"type": "string", **({"x-secret": True} if is_secret else {})}
    return {"type": "array", **_named(title, description), "items": item, **more}


def pairs(title: str, description: str) -> Schema:
    """Return an object of texts by name."""
    item = {"type": ["string", "number"]}
    return {"type": "object", **_named(title, description), "additionalProperties": item}


def any_json(title: str, description: str, *, is_text: bool = False, **more: Any) -> Schema:
    """Return any JSON. is_text: what is no JSON is a text."""
    return {**_named(title, description), "x-json": "text" if is_text else "json", **more}


def group(
    title: str,
    description: str,
    options: Mapping[str, Schema],
    required: Sequence[str] = (),
    *,
    short: str | None = None,
) -> Schema:
    """Return an object of options. short: the one that a plain value stands for; "": true."""
    kinds: Any = "object" if short is None else ["object", "string" if short else "boolean"]
    return {
        "type": kinds,
        **_named(title, description),
        "properties": dict(options),
        "required": [*required],
        "additionalProperties": False,
        **({} if short is None else {"x-short": short}),
    }


def by_name(title: str, description: str, item: Schema) -> Schema:
    """Return an object whose names the user chooses; each value is as `item`."""
    found = {"type": "object", **_named(title, description), "additionalProperties": item}
    return {**found, "minProperties": 1}


def advanced(schema: Schema) -> Schema:
    """Return an option that is rarely needed."""
    return {**schema, "x-advanced": True}


def on_error(what: str = "records") -> Schema:
    """Return what happens with records that do not fit. what: the source's word for them."""
    described = f"What happens with {what} that do not fit their columns."
    return choice("Malformed records", ON_ERROR, "fail", described)


def inherited(schema: Schema) -> Schema:
    """Return an option of a relation that has its default from the source."""
    found = {name: value for name, value in schema.items() if name != "default"}
    return advanced({**found, "description": "Default: as of the source."})


def columns(*, has_paths: bool = True) -> Schema:
    """Return declared columns. has_paths: values are found in records by their paths."""
    column = {
        "name": text("Name", "Of the column."),
        "type": text("Type", "SQL type, as in CREATE TABLE.", examples=["bigint", "numeric(12,2)"]),
    }
    if has_paths:
        column |= {
            "path": text(
                "Path", "Where the value is; by default under its name.", examples=["$.user.id"]
            ),
            "in": advanced(
                choice(
                    "Part",
                    {"value": "", "key": ""},
                    "value",
                    "Of the record, that holds the value.",
                )
            ),
            "nullable": advanced(
                flag(
                    "May be NULL", "If not, a record without the value is malformed.", default=True
                )
            ),
            "unit": advanced(
                choice(
                    "Unit of numbers",
                    dict.fromkeys(("d", "s", "ms", "us", "ns"), ""),
                    None,
                    "Of dates and times: numbers since 1970 or midnight.",
                )
            ),
            "encoding": advanced(
                choice("Encoding", {"hex": "", "base64": ""}, "hex", "Of bytea in a text.")
            ),
        }
    item = group("Column", "A column of the relation.", column, ("name", "type"))
    return {
        "type": "array",
        **_named("Columns", "Name and SQL type of each column. They can be proposed from samples."),
        "items": item,
        "x-columns": True,
    }


def key(description: str) -> Schema:
    """Return the columns that identify a row."""
    return texts("Key", description, examples=[["id"]])


def tls(*, has_password: bool = False) -> Schema:
    """Return how a connection is encrypted. has_password: the private key may be encrypted."""
    files = {
        "ca_file": text("Authority", "PEM file of certificates to trust; default: the system's."),
        "certificate_file": advanced(text("Certificate", "PEM file of the client's certificate.")),
        "key_file": advanced(text("Private key", "PEM file of the certificate's key.")),
    }
    if has_password:
        files["key_password"] = advanced(secret("Password of the key"))
    verify = flag("Verify the host", "Compare the host's name with its certificate.", default=True)
    options = {**files, "verify_host": advanced(verify)}
    return group("TLS", "Encrypt the connection.", options, short="")


def buffer_bytes(description: str = "How much is read ahead.") -> Schema:
    """Return the limit of what is read ahead."""
    found = number("Buffer", description, 16 << 20, unit="bytes", minimum=1 << 16)
    return advanced(found)


def initial() -> Schema:
    """Return what a sink begins with."""
    meanings = {"rows": "with all rows of the view", "changes": "with the next change"}
    return choice("Begins", meanings, "rows", "What the sink begins with.")


def max_delay_s(default: float) -> Schema:
    """Return how long changes wait for more of them, in seconds."""
    described = "How long changes wait for more of them, so that each write has many."
    found = number("Longest delay", described, default, unit="s", minimum=0, maximum=3600)
    return advanced({**found, "type": "number"})


def _named(title: str, description: str) -> Schema:
    return {"title": title, "description": description}


def _default(value: Any) -> Schema:
    return {} if value is None else {"default": value}
