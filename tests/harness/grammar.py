"""Queries as parts that can be left out one by one: what generated queries are made of.

Invariant: `text` of a query depends on its parts alone, and `smaller` only ever takes away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ColumnSpec:
    """A column of a relation; samples are literals of values that were found in it."""

    name: str
    family: str
    samples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Term:
    """A SQL expression of a family. is_plain: a column as it stands."""

    sql: str
    family: str
    is_plain: bool = False
    samples: tuple[str, ...] = ()


@dataclass(frozen=True)
class FromPart:
    """One relation of FROM. kind: "" for the first, else how it joins; conditions are ANDed."""

    alias: str
    source: str | Select
    columns: tuple[ColumnSpec, ...]
    kind: str = ""
    conditions: tuple[str, ...] = ()

    def text(self) -> str:
        """As in a FROM clause."""
        source = self.source if isinstance(self.source, str) else f"({self.source.text()})"
        if not self.kind:
            return f"{source} {self.alias}"
        if self.kind == "CROSS JOIN":
            return f"CROSS JOIN {source} {self.alias}"
        return f"{self.kind} {source} {self.alias} ON {' AND '.join(self.conditions) or 'true'}"


@dataclass(frozen=True)
class Select:
    """One SELECT; union is another one of the same columns."""

    relations: tuple[FromPart, ...]
    outputs: tuple[Term, ...]
    where: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    having: tuple[str, ...] = ()
    is_distinct: bool = False
    union_kind: str = "UNION ALL"
    union: Select | None = None

    def text(self) -> str:
        """As SQL, with output columns c0, c1, ..."""
        columns = ", ".join(f"{term.sql} AS c{i}" for i, term in enumerate(self.outputs))
        sql = f"SELECT {'DISTINCT ' if self.is_distinct else ''}{columns}"
        sql += " FROM " + " ".join(part.text() for part in self.relations)
        for word, parts, glue in (
            ("WHERE", self.where, " AND "),
            ("GROUP BY", self.groups, ", "),
            ("HAVING", self.having, " AND "),
        ):
            if parts:
                sql += f" {word} {glue.join(parts)}"
        if self.union is not None:
            sql += f" {self.union_kind} {self.union.text()}"
        return sql

    def smaller(self) -> list[Select]:
        """This query with one part less; not all of them are valid SQL."""
        found: list[Select] = []
        if self.union is not None:
            found += [replace(self, union=None), self.union]
            found += [replace(self, union=u) for u in self.union.smaller()]
        if self.is_distinct:
            found.append(replace(self, is_distinct=False))
        for name in ("where", "having", "groups", "outputs", "relations"):
            parts = getattr(self, name)
            for i in range(len(parts)):
                if len(parts) > 1 or name not in ("outputs", "relations"):
                    found.append(replace(self, **{name: parts[:i] + parts[i + 1 :]}))
        for i, part in enumerate(self.relations):
            found += [self._with(i, smaller) for smaller in _smaller_parts(part)]
        return found

    def _with(self, index: int, part: FromPart) -> Select:
        relations = (*self.relations[:index], part, *self.relations[index + 1 :])
        return replace(self, relations=relations)


def _smaller_parts(part: FromPart) -> list[FromPart]:
    found = [
        replace(part, conditions=part.conditions[:i] + part.conditions[i + 1 :])
        for i in range(len(part.conditions))
        if len(part.conditions) > 1
    ]
    if part.kind not in ("", "JOIN", "CROSS JOIN"):
        found.append(replace(part, kind="JOIN"))
    if isinstance(part.source, Select):
        found += [replace(part, source=s) for s in part.source.smaller()]
    return found
