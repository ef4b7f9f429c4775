"""SQL types as PostgreSQL names them, and the physical form of each in a column.

Physical form of a value, by TypeKind:
  BOOL                  bool
  INT2 INT4 INT8        int64
  FLOAT4 FLOAT8         float64 (a float4 is stored widened, exactly); NaN is always the same bits
  FIXED                 numeric(p,s), p <= 18, s >= 0: int64 value * 10^s; NaN is FIXED_NAN
  DATE                  int64 days since 2000-01-01; infinity is INT32 max/min as in PostgreSQL
  TIME                  int64 microseconds since midnight
  TIMESTAMP TIMESTAMPTZ int64 microseconds since 2000-01-01 (UTC); infinity is INT64 max/min
  all others            bytes: PostgreSQL's own text output in UTF-8, under the session settings
                        of SESSION_SETTINGS
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from storage.kinds import KIND_BOOL, KIND_BYTES, KIND_FLOAT, KIND_INT

FIXED_NAN = 2**63 - 1
FIXED_DIGITS = 18
# From 1970-01-01 to 2000-01-01, where dates and timestamps are counted from.
EPOCH_2000_US = 946_684_800_000_000

# The time zone of values' texts, and of views that ask for no other.
UTC = "UTC"

# Settings that the text of a value depends on, in either direction.
# connectors/postgres/session/session_settings.py explains the other settings.
SESSION_SETTINGS = {
    # Times with and without zone, and what stands for a zone in a text.
    "TimeZone": UTC,
    "timezone_abbreviations": "Default",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    # The shortest text that parses to the same number.
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    # NULL as an element of an array, else the text "NULL".
    "array_nulls": "on",
    # money; to_char and to_number; names of days and months.
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "xmlbinary": "base64",
    # Else a text that is no whole document is no xml.
    "xmloption": "content",
}


class TypeKind(Enum):
    """The physical kind of a type: how its values are stored and computed."""

    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    FIXED = "fixed"
    DECIMAL = "decimal"
    TEXT = "text"
    BPCHAR = "bpchar"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    INTERVAL = "interval"
    UUID = "uuid"
    BYTEA = "bytea"
    JSON = "json"
    JSONB = "jsonb"
    OPAQUE = "opaque"


_PHYSICAL = {
    TypeKind.BOOL: KIND_BOOL,
    TypeKind.INT2: KIND_INT,
    TypeKind.INT4: KIND_INT,
    TypeKind.INT8: KIND_INT,
    TypeKind.FLOAT4: KIND_FLOAT,
    TypeKind.FLOAT8: KIND_FLOAT,
    TypeKind.FIXED: KIND_INT,
    TypeKind.DATE: KIND_INT,
    TypeKind.TIME: KIND_INT,
    TypeKind.TIMESTAMP: KIND_INT,
    TypeKind.TIMESTAMPTZ: KIND_INT,
}

_BY_OID = {
    16: TypeKind.BOOL,
    17: TypeKind.BYTEA,
    18: TypeKind.OPAQUE,
    19: TypeKind.TEXT,
    20: TypeKind.INT8,
    21: TypeKind.INT2,
    23: TypeKind.INT4,
    25: TypeKind.TEXT,
    114: TypeKind.JSON,
    700: TypeKind.FLOAT4,
    701: TypeKind.FLOAT8,
    1042: TypeKind.BPCHAR,
    1043: TypeKind.TEXT,
    1082: TypeKind.DATE,
    1083: TypeKind.TIME,
    1114: TypeKind.TIMESTAMP,
    1184: TypeKind.TIMESTAMPTZ,
    1186: TypeKind.INTERVAL,
    2950: TypeKind.UUID,
    3802: TypeKind.JSONB,
}

NUMERIC_OID = 1700
FIRST_USERS_OID = 16384
ARRAY_HASH = "pg_catalog.hash_array_extended"

# Of the built-in types kept as text, those whose `=` is equality of their output: "char", oid, xid,
# cid, tid, regclass and similar types, macaddr, macaddr8, inet, cidr, bit, varbit, money, timetz,
# pg_lsn, tsvector, tsquery, and arrays of types that are identical.
_TEXT_EQUALITY = frozenset(
    {18, 26, 27, 28, 29, 650, 774, 790, 829, 869, 1266, 1560, 1562, 2205, 2206, 3220, 3614, 3615}
    | {1000, 1001, 1003, 1005, 1007, 1009, 1015, 1016, 1115, 1182, 1183, 1185, 2951}
)


@dataclass(frozen=True)
class SqlType:
    """One PostgreSQL type.

    name is format_type(oid, typmod), always valid in a cast: "numeric(12,2)", "integer", "mood".
    is_bytewise: text order and equality are the order of the bytes (collation C or POSIX).
    is_enum: an enum, so that equal text is equal value.
    is_deterministic: False under a collation that calls texts of different bytes equal.
    hashing: of an OPAQUE type, PostgreSQL's function of (value, seed) that agrees with its `=`.
    null_paths: where a value may have NULL for a row, which hashes as a row of NULLs does: the SQL
    selections of a row type's columns that are rows, '."home"'; of an array of rows those of an
    element, with "" for itself.
    base: of a domain, or an array of one, the type without its conditions.
    """

    name: str
    oid: int
    typmod: int
    kind: TypeKind
    scale: int = 0
    is_bytewise: bool = True
    collation: str = ""
    is_enum: bool = False
    is_deterministic: bool = True
    hashing: str = ""
    base: SqlType | None = None
    null_paths: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_users(self) -> bool:
        """Whether the type is user-defined rather than created by initdb."""
        return self.oid >= FIRST_USERS_OID

    @property
    def stored(self) -> SqlType:
        """The type of our own column that stores such values: without the constraints of domains,
        which their owner may change at any time."""
        return self if self.base is None else self.base

    @property
    def physical(self) -> str:
        """The physical kind of a column of this type."""
        return _PHYSICAL.get(self.kind, KIND_BYTES)

    @property
    def may_be_turkic(self) -> bool:
        """Whether the collation may change the case of the ASCII letter i as Turkic ones do.

        One in a schema of its own may have any locale; so may a database's default, which has a
        schema in `collation` if its locale is Turkic.
        """
        return "." in self.collation or is_turkic(self.collation.strip('"'))

    @property
    def is_text_equal(self) -> bool:
        """Whether an OPAQUE type's `=` is equality of its text."""
        if self.kind is not TypeKind.OPAQUE or not self.is_deterministic:
            return False
        return self.is_enum or self.oid in _TEXT_EQUALITY


# Types by oid, in families, with the arrays of each: a column of one may become another of it,
# and its values stay what they are.
_FAMILIES = (
    # Whole numbers and numeric; real and double precision.
    frozenset({21, 23, 20, 1700}),
    frozenset({1005, 1007, 1016, 1231}),
    frozenset({700, 701}),
    frozenset({1021, 1022}),
    # char(n), varchar(n) and text; bit(n) and bit varying(n); cidr and inet.
    frozenset({1042, 1043, 25}),
    frozenset({1014, 1015, 1009}),
    frozenset({1560, 1562}),
    frozenset({1561, 1563}),
    frozenset({650, 869}),
    frozenset({651, 1041}),
)


def is_one_family(left: SqlType, right: SqlType) -> bool:
    """Return whether a column of one type may become one of the other and mean the same.

    Lengths and precisions may differ, and integer may be bigint or numeric; the order of texts, and
    types that users made, may not be others.

    >>> is_one_family(INT4, INT8), is_one_family(fixed(8, 2), NUMERIC), is_one_family(INT4, TEXT)
    (True, True, False)
    """
    if left == right:
        return True
    if (left.collation, left.is_deterministic) != (right.collation, right.is_deterministic):
        return False
    if left.oid == right.oid:
        return True
    return any({left.oid, right.oid} <= family for family in _FAMILIES)


def is_turkic(locale: str) -> bool:
    """Return whether a locale, or a collation named like one, has a dotless i.

    >>> [is_turkic(name) for name in ("tr_TR.utf8", "az-x-icu", "tr", "trv", "en-x-icu", "")]
    [True, True, True, False, False, False]
    """
    language = locale.lower()
    return language[:2] in ("tr", "az") and not language[2:3].isalpha()


def sql_type(
    name: str, oid: int, typmod: int = -1, *, is_bytewise: bool = True, collation: str = ""
) -> SqlType:
    """Return the SqlType of an oid and typmod, as pg_attribute gives them.

    >>> sql_type("numeric(12,2)", 1700, ((12 << 16) | 2) + 4).kind
    <TypeKind.FIXED: 'fixed'>
    """
    kind, scale = _BY_OID.get(oid, TypeKind.OPAQUE), 0
    if oid == NUMERIC_OID:
        kind = TypeKind.DECIMAL
        if typmod >= 4:
            precision, scale = ((typmod - 4) >> 16) & 0xFFFF, (typmod - 4) & 0x7FF
            scale = scale - 2048 if scale >= 1024 else scale
            if precision <= FIXED_DIGITS and scale >= 0:
                kind = TypeKind.FIXED
            else:
                scale = 0
    return SqlType(name, oid, typmod, kind, scale, is_bytewise, collation)


BOOL = sql_type("boolean", 16)
INT2 = sql_type("smallint", 21)
INT4 = sql_type("integer", 23)
INT8 = sql_type("bigint", 20)
FLOAT4 = sql_type("real", 700)
FLOAT8 = sql_type("double precision", 701)
NUMERIC = sql_type("numeric", 1700)
TEXT = sql_type("text", 25)
DATE = sql_type("date", 1082)
TIME = sql_type("time without time zone", 1083)
TIMESTAMP = sql_type("timestamp without time zone", 1114)
TIMESTAMPTZ = sql_type("timestamp with time zone", 1184)
INTERVAL = sql_type("interval", 1186)
JSONB = sql_type("jsonb", 3802)


def fixed(precision: int, scale: int) -> SqlType:
    """numeric(precision, scale)."""
    typmod = ((precision << 16) | scale) + 4
    return sql_type(f"numeric({precision},{scale})", NUMERIC_OID, typmod)
