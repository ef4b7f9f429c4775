"""Which functions a maintained query may call.

Immutable ones always; stable ones when their result depends on nothing but the settings that all
our sessions pin (types.SESSION_SETTINGS). What depends on the moment, the user or the state of the
database cannot be kept up to date from the changes of tables, so it is refused by name.
"""

from __future__ import annotations

from dataflow.errors import SqlError
from dataflow.sql.analysis import Analysis, Routine
from dataflow.sql.scope import Context
from dataflow.sql.text import find_words, position_of, tokens

# Stable in pg_proc only because TimeZone, DateStyle, IntervalStyle, extra_float_digits or
# bytea_output have a say, or because they call the output functions of any type.
_PINNED = frozenset(
    {
        *("date", "time", "timetz", "timestamp", "timestamptz", "timezone", "overlaps"),
        *("date_trunc", "date_part", "extract", "date_bin", "to_char", "to_date", "to_timestamp"),
        *("make_timestamptz", "timestamptz_pl_interval", "interval_pl_timestamptz"),
        *("timestamptz_mi_interval", "date_add", "date_subtract"),
        *("concat", "concat_ws", "format", "quote_literal", "quote_nullable"),
        *("array_to_string", "array_to_json", "row_to_json", "to_json", "to_jsonb"),
        *("json_build_object", "json_build_array", "jsonb_build_object", "jsonb_build_array"),
        *("string_to_array", "text_to_array", "textanycat", "anytextcat", "array_to_text"),
        *("jsonb_path_exists_tz", "jsonb_path_query_first_tz", "jsonb_path_match_tz"),
    }
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "cmp")
_ZONED = ("date", "timestamp", "timestamptz")
_CLOCK = frozenset({"now", "transaction_timestamp", "statement_timestamp", "age", "pg_sleep"})
_CLOCK_HINT = "keep the moment out of the view: store the times, and compare where you read it"


_MOMENTS = ("'now'", "'today'", "'tomorrow'", "'yesterday'")


def check_moments(query: str, canonical: str) -> None:
    """Refuse 'today' and its like where PostgreSQL has read them as a time of now."""
    for token in tokens(query):
        word = token.text.lower()
        if token.kind == "string" and word in _MOMENTS and word not in canonical.lower():
            raise SqlError(
                "sql.not_maintained",
                f"{word} is another time at every moment",
                hint=_CLOCK_HINT,
                position=position_of(query, token.offset),
            )


def check_routines(context: Context, analysis: Analysis) -> None:
    """Refuse what a query calls and cannot be maintained; warn of what rests on pinned settings."""
    for value in analysis.session_values:
        raise context.refuse(
            f"{value.upper()} changes without any change of a table",
            _CLOCK_HINT,
            *value.lower().split(),
        )
    for routine in analysis.routines:
        _check(context, routine)


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
    if routine.returns_set:
        raise SqlError(
            "sql.not_maintained",
            f'the set-returning function "{routine.name}" is not maintained',
            hint="store its rows in a table",
            position=position,
        )
    if routine.volatility == "s" and not _is_pinned(routine.name):
        is_clock = routine.name in _CLOCK
        raise SqlError(
            "sql.not_maintained",
            f'the result of "{routine.name}" changes without any change of a table'
            if is_clock
            else f'the function "{routine.name}" is stable, not immutable',
            hint=_CLOCK_HINT
            if is_clock
            else "it may depend on settings, the user or other tables; if it does not, wrap it "
            "in an IMMUTABLE function",
            position=position,
        )
    if routine.volatility == "s":
        context.warn(f'"{routine.name}" is computed with TimeZone UTC and DateStyle ISO')


def _is_pinned(name: str) -> bool:
    if name in _PINNED:
        return True
    parts = name.split("_")
    if len(parts) == 3 and parts[1] in _COMPARISONS:
        return parts[0] in _ZONED and parts[2] in _ZONED
    return False
