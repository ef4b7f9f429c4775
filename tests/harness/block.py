"""A SELECT while it is being made: features add to it, `build` makes it a part.

Invariant: what `ties` names distinguishes any two rows of the block, up to rows that are equal in
all that is selected; so an order that ends with it leaves nothing open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.harness.families import CANONICAL, CARRIED
from tests.harness.grammar import Listed, Relation, Sql, glued, plain


@dataclass
class Block:
    """Clauses of one SELECT.

    groups: None without GROUP BY and aggregates. grouping: "" for plain keys, else the text of a
    GROUP BY with {0} ... for the keys. wrap: (output, condition on it from outside).
    window: the one in which rows are counted where some may be equal.
    """

    ctes: list[str | Sql] = field(default_factory=list)
    is_recursive: bool = False
    relations: list[Relation] = field(default_factory=list)
    where: list[Sql] = field(default_factory=list)
    groups: list[Sql] | None = None
    grouping: str = ""
    calls: list[Sql] = field(default_factory=list)
    having: list[Sql] = field(default_factory=list)
    outputs: list[Sql] = field(default_factory=list)
    windows: list[str | Sql] = field(default_factory=list)
    distinct: str | Sql = ""
    tail: str | Sql = ""
    others: list[tuple[str, Sql]] = field(default_factory=list)
    wrap: tuple[int, str] | None = None
    window: tuple[str, str] | None = None

    def columns(self) -> list[Sql]:
        """Of all relations."""
        return [column for relation in self.relations for column in relation.columns]

    def atoms(self) -> list[Sql]:
        """What expressions of the select list are made of."""
        if self.groups is None:
            return self.columns()
        return [*self.groups, *self.calls]

    def around(self) -> list[Sql]:
        """Return what subqueries in the select list may read: when grouped, keys that are
        columns."""
        if self.groups is None:
            return self.columns()
        columns = {column.text() for column in self.columns()}
        return [key for key in self.groups if key.text() in columns]

    def ties(self) -> list[str]:
        """Return expressions that distinguish the rows; none when there is one row."""
        if self.groups is None:
            return [tie for relation in self.relations for tie in relation.ties]
        found = [tie(key) for key in self.groups]
        if self.grouping and self.groups:
            found.insert(0, f"grouping({', '.join(k.text() for k in self.groups)})")
        return found

    def is_unique(self) -> bool:
        """Whether no two rows are equal in `ties`."""
        if self.groups is None:
            return all(relation.is_unique for relation in self.relations)
        return not self.grouping

    def order(self, *first: str) -> str:
        """An ORDER BY that leaves nothing open, beginning with these."""
        parts = [*first, *self.ties()]
        if any(" OVER " in output.text() for output in self.outputs):
            # Rows that are equal in all else may differ in what a window counts.
            parts += [tie(output) for output in self.outputs]
        return f"ORDER BY {', '.join(parts)}" if parts else ""

    def build(self) -> Sql:
        """The query, its columns named c0, c1, ..."""
        columns = [Sql((o, f" AS c{i}")) for i, o in enumerate(self.outputs)]
        pieces: list[str | Sql] = ["SELECT "]
        if self.distinct:
            pieces += [self.distinct, " "]
        pieces.append(Listed(tuple(columns), least=1))
        if self.relations:
            pieces += [" FROM ", *glued([r.part for r in self.relations], " ")]
        pieces.append(Listed(tuple(self.where), before=" WHERE ", glue=" AND "))
        pieces += self._group_by()
        pieces.append(Listed(tuple(self.having), before=" HAVING ", glue=" AND "))
        if self.windows:
            pieces += [" WINDOW ", *glued(self.windows, ", ")]
        if self.tail:
            pieces += [" ", self.tail]
        query = Sql(tuple(pieces), "query")
        if self.wrap is not None:
            at, condition = self.wrap
            query = Sql(("SELECT * FROM (", query, f") ranked WHERE c{at} {condition}"), "query")
        for word, other in self.others:
            query = Sql(("(", query, f") {word} (", other, ")"), "query")
        if self.ctes:
            word = "WITH RECURSIVE " if self.is_recursive else "WITH "
            query = Sql((word, *glued(self.ctes, ", "), " ", query), "query")
        return query

    def _group_by(self) -> list[str | Sql]:
        if not self.groups:
            return []
        if not self.grouping:
            return [Listed(tuple(self.groups), before=" GROUP BY ")]
        text = self.grouping.format(*(key.text() for key in self.groups))
        return [f" GROUP BY {text}"]


def tie(term: Sql) -> str:
    """An expression that tells values apart which print differently."""
    if term.kind == "approx":
        return term.text()
    return f"({term.text()})::text"


def canonical(term: Sql) -> Sql:
    """The term in a form in which equal values print alike."""
    form = CANONICAL.get(term.kind)
    if form is None:
        return term
    before, after = form.split("{}")
    return Sql((before, term, after), term.kind)


def comparable(term: Sql) -> Sql:
    """The term in a form that DISTINCT and GROUP BY take."""
    if term.kind in CARRIED:
        return Sql(("(", term, " IS NULL)"), "bool")
    return canonical(term)


def derived(query: Sql, kinds: Sequence[str], alias: str, join: str = "") -> Relation:
    """A subquery in FROM, under an alias."""
    part = Sql((f"{join}(", query, f") {alias}"), can_go=bool(join))
    return named(part, kinds, alias)


def named(part: Sql, kinds: Sequence[str], alias: str) -> Relation:
    """A relation of columns c0, c1, ... of these families."""
    columns = tuple(plain(f"{alias}.c{i}", kind) for i, kind in enumerate(kinds))
    return Relation(part, alias, columns, tuple(tie(column) for column in columns))
