"""SQL as parts that can be left out one by one: what generated queries are made of.

Invariant: the text of a part depends on its pieces alone, and `smaller` only ever takes away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sql:
    """Text in pieces. kind: parts below that have the same kind may stand in its place.

    can_go: the text around is well-formed without it. Text that must not be touched (the order
    that makes an answer the only one) is a plain string.
    """

    pieces: tuple[str | Sql, ...]
    kind: str = ""
    can_go: bool = False

    def text(self) -> str:
        """As SQL."""
        return "".join(p if isinstance(p, str) else p.text() for p in self.pieces)

    def below(self) -> Iterator[Sql]:
        """All parts inside, outer ones first."""
        for piece in self.pieces:
            if isinstance(piece, Sql):
                yield piece
                yield from piece.below()

    def smaller(self) -> list[Sql]:
        """This with one part less; not all of them are valid SQL."""
        found: list[Sql] = []
        for i, piece in enumerate(self.pieces):
            if isinstance(piece, str):
                continue
            if piece.can_go:
                found.append(self._with(i, ()))
            stand_ins = [p for p in piece.below() if p.kind and p.kind == piece.kind]
            found += [self._with(i, (p,)) for p in (*stand_ins, *piece.smaller())]
        return found

    def _with(self, at: int, pieces: tuple[str | Sql, ...]) -> Sql:
        return replace(self, pieces=(*self.pieces[:at], *pieces, *self.pieces[at + 1 :]))


@dataclass(frozen=True)
class Listed(Sql):
    """Pieces with glue between them; nothing at all without any, else `before` comes first."""

    before: str = ""
    glue: str = ", "
    least: int = 0

    def text(self) -> str:
        """As SQL."""
        if not self.pieces:
            return ""
        texts = (p if isinstance(p, str) else p.text() for p in self.pieces)
        return self.before + self.glue.join(texts)

    def smaller(self) -> list[Sql]:
        """Also without one of the pieces, while there are more than `least`."""
        found = super().smaller()
        if len(self.pieces) > self.least:
            found += [self._with(i, ()) for i in range(len(self.pieces))]
        return found


@dataclass(frozen=True)
class Query:
    """A whole query, the names of the features that it was made of, and its time zone."""

    sql: Sql
    features: tuple[str, ...] = ()
    time_zone: str = "UTC"

    def text(self) -> str:
        """As SQL."""
        return self.sql.text()

    def smaller(self) -> list[Query]:
        """This with one part less, the smallest first; not all of them are valid SQL."""
        queries = [p for p in self.sql.below() if p.kind == "query"]
        texts = {p.text(): p for p in (*queries, *self.sql.smaller())}
        texts.pop(self.text(), None)
        return [replace(self, sql=texts[t]) for t in sorted(texts, key=len)]


@dataclass(frozen=True)
class Relation:
    """One relation of FROM: how it joins, its columns as expressions, and what orders its rows.

    ties: expressions that together tell any two rows apart, up to rows that are equal in all
    that is selected. is_unique: no two rows are equal in them. is_table: a table itself.
    """

    part: Sql
    alias: str
    columns: tuple[Sql, ...]
    ties: tuple[str, ...]
    is_unique: bool = False
    is_table: bool = False


def plain(text: str, kind: str = "") -> Sql:
    """A part without parts."""
    return Sql((text,), kind)


def glued(parts: Sequence[str | Sql], glue: str) -> tuple[str | Sql, ...]:
    """The parts with glue between them, as pieces that stay."""
    pieces: list[str | Sql] = []
    for part in parts:
        pieces += [glue, part] if pieces else [part]
    return tuple(pieces)
