"""Texts of the log, which are in the character set of their column, as UTF-8.

Single-byte character sets are converted by a table that the server itself makes, so that the log
and a query give the same text. Those of several bytes are converted by Python's codecs. Invariant:
a text that is invalid in its character set, or has none here, is a malformed value.
"""

from __future__ import annotations

from collections.abc import Mapping

from connectors.mysql.server import Server

UTF8 = ("utf8", "utf8mb3", "utf8mb4")
# Python's codecs of character sets with several bytes a character.
CODECS: Mapping[str, str] = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "gb18030": "gb18030",
    "big5": "big5",
}
_BYTES = 256
# No character: what a byte has none for.
_UNKNOWN = "\ufffe"


class Charsets:
    """The character sets of a server, by the ids of their collations; thread-safe once prepared."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._tables: dict[str, str] = {}

    @staticmethod
    def of(server: Server) -> Charsets:
        """Read the collations of a server."""
        names = {}
        for table in ("COLLATIONS", "COLLATION_CHARACTER_SET_APPLICABILITY"):
            columns = server.texts(
                "SELECT COLUMN_NAME FROM information_schema.COLUMNS "
                "WHERE TABLE_SCHEMA = 'information_schema' AND TABLE_NAME = %s",
                (table,),
            )
            # MariaDB from 10.10 has the ids of some collations in the second one alone.
            if ("ID",) in columns:
                rows = server.texts(
                    f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table}"
                )
                names |= {int(number): name for number, name in rows if number and name}
        return Charsets(names)

    def name(self, collation: int) -> str:
        """Return the character set of a collation, "" if the server does not know it."""
        return self._names.get(collation, "")

    def prepare(self, collation: int, server: Server) -> None:
        """Read the server's table of a single-byte character set, once."""
        name = self.name(collation)
        if not name or name in UTF8 or name in CODECS or name in self._tables:
            return
        cells = ", ".join(
            f"HEX(CONVERT(_{name} x'{byte:02x}' USING utf8mb4))" for byte in range(_BYTES)
        )
        (row,) = server.texts(f"SELECT {cells}")
        table = [bytes.fromhex(one).decode() for one in row]
        # What the server cannot convert is a question mark there.
        self._tables[name] = "".join(
            one if len(one) == 1 and (one != "?" or byte == ord("?")) else _UNKNOWN
            for byte, one in enumerate(table)
        )

    def is_utf8(self, collation: int) -> bool:
        """Return True if texts need no conversion."""
        return self.name(collation) in UTF8

    def decode(self, raw: bytes, collation: int) -> str:
        """Return a text. ValueError with the reason."""
        name = self.name(collation)
        if name in UTF8:
            return raw.decode()
        if name in CODECS:
            return raw.decode(CODECS[name])
        table = self._tables.get(name)
        if table is None:
            raise ValueError(f"its character set {name or collation} is unknown")
        text = raw.decode("latin-1").translate(table)  # type: ignore[arg-type]
        if _UNKNOWN in text:
            raise ValueError(f"not valid in {name}")
        return text
