"""Which functions a maintained query may call.

Immutable ones always. Stable ones that depend only on settings which all our sessions pin
(types.SESSION_SETTINGS) count as immutable. Other stable ones are pinned, with a warning: without
columns when the view is created, with columns when the row arrives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dataflow.errors import SqlError
from dataflow.lexer import find_words, tokens
from dataflow.sql.bind.analysis import Analysis, Routine
from dataflow.sql.bind.scope import Context

_ENDS = ("", "_strict", "_unique", "_unique_strict")
# Stable in pg_proc only because they depend on TimeZone, DateStyle, IntervalStyle,
# extra_float_digits or bytea_output, or call the output functions of any type.
_PINNED = frozenset(
    {
        *("date", "time", "timetz", "timestamp", "timestamptz", "timezone", "overlaps"),
        *("date_trunc", "date_part", "extract", "date_bin", "to_char", "to_date", "to_timestamp"),
        *("make_timestamptz", "timestamptz_pl_interval", "interval_pl_timestamptz"),
        *("timestamptz_mi_interval", "date_add", "date_subtract"),
        *("concat", "concat_ws", "format", "quote_literal", "quote_nullable"),
        *("array_to_string", "array_to_json", "row_to_json", "to_json", "to_jsonb"),
        *("json_build_object", "json_build_array", "jsonb_build_object", "jsonb_build_array"),
        *(
            f"{j}_{a}{end}"
            for j in ("json", "jsonb")
            for a in ("agg", "object_agg")
            for end in _ENDS
        ),
        *("string_to_array", "text_to_array", "textanycat", "anytextcat", "array_to_text"),
        *("json_to_record", "json_to_recordset", "json_populate_record", "json_populate_recordset"),
        *("jsonb_to_record", "jsonb_to_recordset", "jsonb_populate_record"),
        *("jsonb_populate_recordset", "jsonb_path_query_tz", "jsonb_path_query_array_tz"),
        *(
            "generate_series",
            "jsonb_path_exists_tz",
            "jsonb_path_query_first_tz",
            "jsonb_path_match_tz",
        ),
    }
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "cmp")
_ZONED = ("date", "timestamp", "timestamptz")
# age(x) with one argument depends on the day of the call.
_CLOCK = frozenset({"age"})
_CLOCK_HINT = "write age(CURRENT_DATE, x), which is computed on the day when the view is created"
_ONCE = "is computed once, when the view is created"
_KEPT = (
    "is computed for each row when it arrives, and stored: later changes of what else it reads are "
    "ignored"
)

_WITH_SETTINGS = "is computed with TimeZone {} and DateStyle ISO"
_SYNTAX = {"timezone": "AT TIME ZONE", "overlaps": "OVERLAPS"}
_MOMENTS = ("'now'", "'today'", "'tomorrow'", "'yesterday'")


def check_moments(context: Context, canonical: str) -> None:
    """Warn of 'today' and similar words that PostgreSQL has converted to the present time."""
    for token in tokens(context.query):
        word = token.text.lower()
        if token.kind == "string" and word in _MOMENTS and word not in canonical.lower():
            context.warn_of(word, _ONCE)


def check_routines(context: Context, analysis: Analysis) -> None:
    """Refuse functions that cannot be maintained; warn of pinned ones.

    Stable functions of no column are computed once, as in PostgreSQL's materialized views.
    """
    for value in analysis.session_values:
        context.warn_of(value.upper(), _ONCE)
        context.has_stable = True
    for routine in analysis.routines:
        context.has_own |= is_own(routine)
        _check(context, routine)


def is_own(routine: Routine) -> bool:
    """Return whether a function is outside pg_catalog, so that its owner may replace it."""
    return "." in routine.name


def is_stable(routine: Routine) -> bool:
    """Return whether a call may give another result for the same arguments later."""
    return routine.volatility == "s" and not _is_pinned(routine.name)


def warn_of_stable(context: Context, routines: Sequence[Routine], *, is_constant: bool) -> bool:
    """Return whether an expression that calls these is stable; warn the user."""
    found = [r for r in routines if is_stable(r)]
    for routine in found:
        context.warn_of(_shown(context, routine), _ONCE if is_constant else _KEPT)
    return bool(found)


def _shown(context: Context, routine: Routine) -> str:
    """Return a function as the query writes it: by name, or as an operator, a cast or other
    syntax."""
    name = routine.name.split(".")[-1]
    is_named = re.search(rf'(?<![\w$]){re.escape(name)}"?\(', context.text, re.IGNORECASE)
    instead = _SYNTAX.get(name) or routine.stands_for
    return instead if instead and not is_named else f'"{routine.name}"'


def _check(context: Context, routine: Routine) -> None:
    position = find_words(context.query, [routine.name.split(".")[-1]])
    if routine.volatility == "v":
        raise SqlError(
            "sql.volatile_function",
            f'the function "{routine.name}" is volatile',
            hint="a view must give the same rows from the same tables; if the function does, "
            "declare it IMMUTABLE",
            position=position,
        )
    if routine.volatility == "s" and routine.name in _CLOCK:
        raise SqlError(
            "sql.not_maintained",
            f'the result of "{routine.name}" changes without any change of a table',
            hint=_CLOCK_HINT,
            position=position,
        )
    if is_stable(routine):
        context.has_stable = True
    elif routine.volatility == "s" and routine.kind != "a":
        settings = _WITH_SETTINGS.format(context.analyzer.time_zone)
        context.warn_of(_shown(context, routine), settings)


def _is_pinned(name: str) -> bool:
    if name in _PINNED:
        return True
    parts = name.split("_")
    if len(parts) == 3 and parts[1] in _COMPARISONS:
        return parts[0] in _ZONED and parts[2] in _ZONED
    return False
