"""Settings that change how values and names are read, for roles and databases of tests."""

from __future__ import annotations

from collections.abc import Collection

from tests.harness.postgres import Database

# What a role or a database may have, each of which would change what is read or written.
HOSTILE = {
    "TimeZone": "Asia/Kolkata",
    "timezone_abbreviations": "India",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "array_nulls": "off",
    "lc_monetary": "POSIX",
    "lc_numeric": "POSIX",
    "lc_time": "POSIX",
    "xmlbinary": "hex",
    "xmloption": "document",
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "gin_fuzzy_search_limit": "1",
    "row_security": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "transaction_timeout": "1s",
    "restrict_nonsystem_relation_kind": "view",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_session_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
}
# Those that show in the texts of values, and end no session of a test.
OF_TEXTS = tuple(HOSTILE)[: tuple(HOSTILE).index("standard_conforming_strings")]


def make_hostile(
    place: Database, target: str, names: Collection[str] = tuple(HOSTILE)
) -> dict[str, str]:
    """Give a role or a database those of `names` that the server knows; which these are."""
    known = {n.lower() for (n,) in place.rows("SELECT name FROM pg_settings")}
    given = {n: value for n, value in HOSTILE.items() if n in names and n.lower() in known}
    words = (f"ALTER {target} SET {name} = '{value}'" for name, value in given.items())
    words = (w.replace("'SQL, DMY'", "SQL, DMY") for w in words)
    place.execute("; ".join(words))
    return given
