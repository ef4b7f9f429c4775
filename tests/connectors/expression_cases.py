"""The table of expressions that are compared with PostgreSQL.

A case is (function, sql, arguments): sql has {0}, {1} ... for the arguments, each the name of a
type (a column with that type's edge values) or a Literal. Every argument is NULL in some rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.expressions.ir import Literal
from dataflow.types import INT4, INTERVAL, TEXT, SqlType

SHORT = {"int": "integer", "int2": "smallint", "int8": "bigint", "float": "double precision"}
TYPE_OF = {
    "stamp": "timestamp without time zone",
    "stamptz": "timestamp with time zone",
    "varchar": "character varying(10)",
    "char": "character(6)",
    "time": "time without time zone",
    "bool": "boolean",
    **SHORT,
}

Argument = str | Literal


@dataclass(frozen=True)
class Case:
    """One expression: what the binder calls it, what PostgreSQL computes, over which columns."""

    function: str
    sql: str
    arguments: tuple[Argument, ...]
    cast_to: str = ""

    def __str__(self) -> str:
        names = [a if isinstance(a, str) else repr(a.text) for a in self.arguments]
        return self.sql.format(*names)


def text(value: str) -> Literal:
    """A text constant."""
    return Literal(value, TEXT)


def number(value: int) -> Literal:
    """An integer constant."""
    return Literal(str(value), INT4)


def null(type: SqlType) -> Literal:
    """A typed NULL."""
    return Literal(None, type)


def case(function: str, sql: str, *arguments: Argument) -> Case:
    """A case with short type names."""
    return Case(
        function, sql, tuple(TYPE_OF.get(a, a) if isinstance(a, str) else a for a in arguments)
    )


def casts(source: str, *targets: str) -> list[Case]:
    """Casts of one type to several."""
    source = TYPE_OF.get(source, source)
    return [Case("cast", f"CAST({{0}} AS {t})", (source,), t) for t in targets]


def binary(functions: str, *pairs: tuple[str, str]) -> list[Case]:
    """Infix operators over pairs of types."""
    return [case(f, f"({{0}} {f} {{1}})", a, b) for f in functions.split() for a, b in pairs]


def calls(functions: str, *arguments: Argument) -> list[Case]:
    """Functions written as calls over the same arguments."""
    slots = ", ".join(f"{{{i}}}" for i in range(len(arguments)))
    return [case(f, f"{f}({slots})", *arguments) for f in functions.split()]


_INTS = ("int2", "int", "int8")
_INT_PAIRS = tuple((a, b) for a in _INTS for b in _INTS)
_FLOAT_PAIRS = (("float", "float"), ("real", "real"), ("real", "float"), ("float", "real"))
_NUMERICS = ("numeric", "numeric(12,2)", "numeric(18,6)", "numeric(15,0)", "numeric(24,8)")
_NUMERIC_PAIRS = tuple((a, b) for a in _NUMERICS for b in _NUMERICS)
_SAME = (
    *(("bool", "bool"), ("text", "text"), ("char", "char"), ("date", "date"), ("stamp", "stamp")),
    *(("stamptz", "stamptz"), ("date", "stamp"), ("stamptz", "date"), ("stamp", "stamptz")),
    *(("time", "time"), ("interval", "interval"), ("uuid", "uuid"), ("bytea", "bytea")),
)
_ORDER = "= <> < > <= >="

ARITHMETIC = [
    *binary("+ - * /", *_INT_PAIRS),
    *binary("%", ("int2", "int2"), ("int", "int"), ("int8", "int8")),
    *binary("+ - * /", *_FLOAT_PAIRS),
    *binary("+ - * / %", *_NUMERIC_PAIRS),
    *(case("-", "(- {0})", t) for t in (*_INTS, "float", "real", "numeric", "numeric(12,2)")),
    *(case("@", "(@ {0})", t) for t in ("int", "float", "numeric")),
    *(case("abs", "abs({0})", t) for t in (*_INTS, "float", "real", "numeric", "numeric(12,2)")),
    *calls("ceil ceiling floor round trunc sign sqrt exp ln log", "float"),
    *calls("ceil floor round trunc sign", "numeric"),
    *calls("ceil floor round trunc sign", "numeric(12,2)"),
    *calls("ceil floor round trunc sign abs", "numeric(24,8)"),
    *calls("mod", "int", "int"),
    *calls("mod", "numeric", "numeric(12,2)"),
    *(
        c
        for places in (0, 1, 2, 5, -2, 30)
        for t in ("numeric", "numeric(12,2)", "numeric(18,6)", "numeric(24,8)")
        for c in calls("round trunc", t, number(places))
    ),
    *calls("round", "numeric", "int2"),
]
COMPARISON = [
    *binary(_ORDER, *_INT_PAIRS, *_FLOAT_PAIRS, *_NUMERIC_PAIRS, *_SAME),
    *(
        case(f, f"({{0}} {f.upper()} {{1}})", a, b)
        for f in ("is distinct from", "is not distinct from")
        for a, b in (("int", "int8"), ("float", "float"), ("numeric", "numeric(12,2)"), *_SAME)
    ),
    *(
        case(f, f"{f}({{0}}, {{1}})", a, a)
        for f in ("nullif", "greatest", "least", "coalesce")
        for a in ("int", "float", "numeric", "text", "date", "stamp", "numeric(12,2)")
    ),
    *calls("greatest least coalesce nullif", "numeric", "numeric(12,2)")[:3],
    *calls("greatest least coalesce", "int", "int", number(5)),
    case("in", "({0} IN ({1}, {2}))", "int", number(7), number(-1)),
    case("in", "({0} IN ({1}, {2}))", "int", number(7), null(INT4)),
    case("in", "({0} IN ({1}, {2}))", "text", text("abc"), text("日本語")),
    case("in", "({0} IN ({1}))", "text", null(TEXT)),
]
BOOLEANS = [
    case("not", "(NOT {0})", "bool"),
    *(
        case(f"is {n}{what}", f"({{0}} IS {n.upper()}{what.upper()})", "bool")
        for n in ("", "not ")
        for what in ("null", "true", "false", "unknown")
    ),
    *(
        case(f"is {n}null", f"({{0}} IS {n.upper()}NULL)", t)
        for n in ("", "not ")
        for t in ("int", "text", "numeric", "jsonb", "numeric(12,2)")
    ),
    case("and", "({0} AND {1})", "bool", "bool"),
    case("or", "({0} OR {1})", "bool", "bool"),
    case("and", "({0} AND {1} AND {2})", "bool", "bool", "bool"),
    case("or", "({0} OR {1} OR {2})", "bool", "bool", "bool"),
    case("case", "CASE WHEN {0} THEN {1} ELSE {2} END", "bool", "int", "int"),
    case("case", "CASE WHEN {0} THEN {1} END", "bool", "text"),
    case("case", "CASE WHEN {0} THEN {1} ELSE {2} END", "bool", "numeric", "numeric(12,2)"),
    case("case", "CASE WHEN {0} THEN {1} WHEN {2} THEN {3} END", "bool", "date", "bool", "date"),
]
_PATTERNS = (
    "",
    "%",
    "abc",
    "a%",
    "%c",
    "%b%",
    "_",
    "a_c",
    "%_%_",
    "a\\%b%",
    "%\\\\d",
    "日_語",
    "%%b",
)
TEXTS = [
    *(
        case(f, f"({{0}} {f.upper()} {{1}})", t, text(p))
        for f in ("like", "not like")
        for p in _PATTERNS
        for t in ("text", "char")
    ),
    *(case("ilike", "({0} ILIKE {1})", "text", text(p)) for p in (*_PATTERNS, "%WORLD", "NAÏVE%")),
    case("not ilike", "({0} NOT ILIKE {1})", "text", text("A%")),
    case("like", "({0} LIKE {1})", "text", "text"),
    case("like", "({0} LIKE {1})", "text", text("a\\")),
    case("like", "({0} LIKE {1} ESCAPE {2})", "text", text("a#%b%"), text("#")),
    case("like", "({0} LIKE {1} ESCAPE {2})", "text", text("a%b_c\\d"), text("")),
    case("||", "({0} || {1})", "text", "text"),
    *calls("lower upper initcap length char_length octet_length reverse md5 ascii", "text"),
    *calls("length octet_length", "char"),
    *calls("btrim ltrim rtrim", "text"),
    *calls("btrim ltrim rtrim", "text", text("ac ")),
    *calls("btrim ltrim rtrim", "text", text("日")),
    *calls("btrim ltrim rtrim", "text", "text"),
    *(
        c
        for n in (-1, 0, 1, 2, 3, 100)
        for c in (
            *calls("left right repeat", "text", number(n)),
            *calls("lpad rpad", "text", number(n)),
            *calls("lpad rpad", "text", number(n), text("xy")),
            *calls("substr substring", "text", number(n)),
            *calls("substr substring", "text", number(n), number(2)),
            *calls("split_part", "text", text(","), number(n)),
        )
    ),
    *calls("substr left right", "text", "int2")[1:],
    *calls("substr", "text", number(2), number(-1)),
    *calls("substr", "text", "int", "int2"),
    *calls("split_part", "text", text(""), number(1)),
    *calls("replace translate", "text", text("b"), text("ZZ")),
    *calls("replace", "text", text(""), text("x")),
    *calls("strpos starts_with", "text", "text"),
    *calls("starts_with strpos", "text", text("a")),
    case("position", "position({1} in {0})", "text", text("本")),
    *calls("concat", "text", "int", "varchar"),
    *calls("concat_ws", text("-"), "text", "char", "int8"),
]
_FIELDS = (
    *("year", "month", "day", "quarter", "dow", "isodow", "doy", "week", "isoyear", "decade"),
    *("century", "millennium", "epoch", "hour", "minute", "second", "milliseconds", "microseconds"),
    *("julian", "timezone", "nonsense"),
)
DATES = [
    *(
        case("extract", f"EXTRACT({f} FROM {{1}})", text(f), t)
        for f in _FIELDS
        for t in ("date", "stamp", "stamptz", "interval")
    ),
    *(
        case("date_part", "date_part({0}, {1})", text(f), t)
        for f in _FIELDS
        for t in ("stamp", "interval")
    ),
    *(
        case("date_trunc", "date_trunc({0}, {1})", text(f), t)
        for f in (*_FIELDS, "second")
        if f not in ("julian", "doy")
        for t in ("stamp", "stamptz")
    ),
    *(
        case("date_bin", "date_bin({0}, {1}, {2})", Literal(stride, INTERVAL), t, t)
        for stride in ("00:15:00", "7 days", "2 days -12:00:00.000001", "1 mon", "00:00:00")
        for t in ("stamp", "stamptz")
    ),
    *calls("date_bin", "interval", "stamp", "stamp"),
    *binary("+ -", ("date", "int")),
    *binary("+", ("int", "date"), ("interval", "stamp"), ("interval", "date")),
    *binary("-", ("date", "date"), ("stamp", "stamp"), ("stamptz", "stamptz")),
    *binary("+ -", ("date", "interval"), ("stamp", "interval"), ("stamptz", "interval")),
    *calls("make_date", "int", number(2), number(29)),
    *calls("make_date", number(2024), "int", number(7)),
]
CASTS = [
    *(
        c
        for t in (*_INTS, "float", "real", "numeric", "numeric(12,2)", "numeric(18,6)")
        for c in casts(
            t,
            "smallint",
            "integer",
            "bigint",
            "real",
            "double precision",
            "numeric",
            "text",
            "numeric(12,2)",
            "numeric(4,1)",
            "numeric(18,6)",
            "numeric(30,10)",
            "numeric(5,-2)",
            "varchar(3)",
            "char(4)",
            "numeric(3,5)",
        )
    ),
    *casts("bool", "integer", "text", "varchar(2)"),
    *casts("int", "boolean"),
    *casts(
        "text",
        "smallint",
        "integer",
        "bigint",
        "double precision",
        "real",
        "numeric",
        "boolean",
        "date",
        "timestamp",
        "timestamptz",
        "uuid",
        "varchar(3)",
        "varchar",
        "char(4)",
        "text",
        "numeric(4,1)",
        "character(1)",
    ),
    *casts("char", "text", "varchar(4)", "char(3)", "char(8)"),
    *casts("varchar", "text", "char(4)", "varchar(2)"),
    *casts("date", "timestamp", "timestamptz", "text", "date"),
    *casts("stamp", "date", "timestamptz", "timestamp(0)", "timestamp(3)", "text"),
    *casts("stamptz", "date", "timestamp", "timestamptz(1)", "text"),
    *casts("time", "text"),
    *casts("interval", "text"),
    *casts("uuid", "text"),
    *casts("jsonb", "text"),
]
KEYS = [
    "boolean",
    "integer",
    "bigint",
    "real",
    "double precision",
    "numeric",
    "numeric(12,2)",
    "text",
    "character(6)",
    "date",
    "timestamp without time zone",
    "interval",
    "uuid",
    "bytea",
    "jsonb",
]
KEY_PAIRS = [
    *(("integer", "bigint"), ("smallint", "numeric(12,2)"), ("bigint", "numeric(12,2)")),
    *(("integer", "numeric"), ("numeric(12,2)", "numeric(18,6)"), ("numeric(12,2)", "numeric")),
    *(("numeric(15,0)", "numeric(12,2)"), ("real", "double precision"), ("integer", "real")),
    *(("bigint", "double precision"), ("numeric", "double precision"), ("numeric(15,0)", "bigint")),
    *(("date", "timestamp without time zone"), ("date", "timestamp with time zone")),
    *(("timestamp without time zone", "timestamp with time zone"), ("text", "character(6)")),
    *(("text", "character varying(10)"), ("character(6)", "character(6)"), ("numeric", "bigint")),
]
FAMILIES = {
    "arithmetic": ARITHMETIC,
    "comparison": COMPARISON,
    "booleans": BOOLEANS,
    "texts": TEXTS,
    "dates": DATES,
    "casts": CASTS,
}
