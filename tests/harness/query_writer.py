"""Random queries of chosen features over the tables of a random schema.

Invariant: a query depends on the seed, the schema and the features asked for alone. Its answer
is one that PostgreSQL defines: every order that matters is total, equal values that print
differently are never grouped, and no expression fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from tests.harness import features
from tests.harness.block import Block, canonical, comparable, derived
from tests.harness.changes import LINGUISTIC
from tests.harness.families import (
    CARRIED,
    COMMON,
    EXPRESSIONS,
    GROUPED,
    GROUPED_RARELY,
    LITERALS,
    TEMPORAL,
)
from tests.harness.features.registry import FEATURES, TAIL, WINDOW, Feature
from tests.harness.grammar import Query, Relation, Sql, plain
from tests.harness.hostile import Hostile
from tests.harness.turns import zone_of

_HOLES = re.compile(r"\{\{|\}\}|\{([=^]?)(\w*)\}")
NESTED_SHARE = 0.3
# Of the conditions in a query that reads the clock, those that do.
TEMPORAL_SHARE = 0.3
assert features.__all__


@dataclass(frozen=True)
class Known:
    """What a server can do.

    linguistic: the collation that stands for one which is not C; not every server has ICU's.
    nulls_groups: that a key which is NULL in a grouping set is no longer equal to what it was
    joined with is known to DISTINCT, ORDER BY and windows since PostgreSQL 18 only.
    """

    linguistic: str = LINGUISTIC
    nulls_groups: bool = True


class Writer:
    """Draws queries over the tables of one schema; each call of `query` is another one."""

    def __init__(self, hostile: Hostile, seed: str, known: Known) -> None:
        self.rng = Random(seed)
        self._known = known
        self._hostile = hostile
        self._aliases = 0
        self._is_temporal = False

    # --- queries -------------------------------------------------------------------------

    def query(self, expected: Sequence[str]) -> Query:
        """A query of these features; those that cannot share a SELECT are nested."""
        self._aliases = 0
        self._is_temporal = any(FEATURES[name].is_temporal for name in expected)
        block = Block()
        for number, layer in enumerate(self._layers([FEATURES[name] for name in expected])):
            if number:
                block = self._over(block)
            else:
                block.relations.append(self.table())
            for feature in sorted(layer, key=lambda f: f.phase):
                feature.apply(self, block)
            self.finish(block)
        time_zone = zone_of(self._hostile.turn, self.rng)
        return Query(block.build(), tuple(sorted(expected)), time_zone)

    def _layers(self, expected: list[Feature]) -> list[list[Feature]]:
        """Features by the SELECT that they go into, the innermost first."""
        layers: list[list[Feature]] = [[]]
        for feature in self.rng.sample(expected, len(expected)):
            is_alone = self.rng.random() < NESTED_SHARE
            if layers[-1] and (is_alone or self._clash(feature, layers[-1])):
                layers.append([])
            layers[-1].append(feature)
        return layers

    @property
    def nulls_groups(self) -> bool:
        """See `Known`."""
        return self._known.nulls_groups

    def _clash(self, feature: Feature, layer: list[Feature]) -> bool:
        """Whether a feature cannot share a SELECT with these."""
        if feature.slot in {f.slot for f in layer} - {""}:
            return True
        names, phases = {feature.name}, {feature.phase}
        names |= {f.name for f in layer}
        phases |= {f.phase for f in layer}
        is_nulling = bool(names & {"grouping sets", "rollup", "cube"})
        return is_nulling and not self._known.nulls_groups and bool(phases & {WINDOW, TAIL})

    def _over(self, inner: Block) -> Block:
        block = Block()
        kinds = [o.kind for o in inner.outputs]
        block.relations.append(derived(inner.build(), kinds, self.alias()))
        return block

    def finish(self, block: Block) -> None:
        """Give a block something to select, and its last touches."""
        rng = self.rng
        if block.others or block.distinct or block.wrap is not None:
            return
        if block.groups is not None:
            block.outputs[:0] = [c for c in block.calls if c not in block.outputs]
            keys = [k for k in block.groups if k not in block.outputs and rng.random() < 0.8]
            block.outputs[:0] = keys
        while len(block.outputs) < rng.choice((1, 2, 2, 3)):
            block.outputs.append(self.any_term(block.atoms(), rng.choice((0, 0, 1))))

    # --- relations -----------------------------------------------------------------------

    def alias(self) -> str:
        """A name that the query does not have yet."""
        self._aliases += 1
        return f"r{self._aliases}"

    def table(self, join: str = "", name: str = "") -> Relation:
        """A table under a new alias; join: text before it, such as CROSS JOIN."""
        name = name or self.rng.choice(list(self._hostile.families))
        alias = self.alias()
        families = self._hostile.families[name]
        columns = tuple(plain(f"{alias}.{c}", family) for c, family in families.items())
        ties = tuple(f"{alias}.{t}" for t in self._hostile.ties[name])
        part = Sql((f"{join}{name} {alias}",), can_go=bool(join))
        is_unique = not any("::" in tie for tie in ties)
        return Relation(part, alias, columns, ties, is_unique, is_table=True)

    def small_block(self) -> Block:
        """A SELECT over one table, with a condition at times, without outputs yet."""
        block = Block()
        block.relations.append(self.table())
        if self.rng.random() < 0.4:
            block.where.append(self.predicate(block.columns()))
        return block

    def table_columns(self, name: str) -> dict[str, str]:
        """Families of a table's columns by name."""
        return dict(self._hostile.families[name])

    @property
    def table_names(self) -> list[str]:
        """All tables."""
        return list(self._hostile.families)

    def matching(self, left: Sequence[Sql], right: Sequence[Sql]) -> Sql:
        """An equality between a column of each."""
        pairs = [
            (a, b)
            for a in left
            for b in right
            if a.kind == b.kind and a.kind not in (*CARRIED, "bool", "wild", "json", "bytes")
        ]
        joined = [p for p in pairs if p[0].kind == "int"]
        if not pairs:
            return plain("true", "bool")
        pool = joined if joined and self.rng.random() < 0.75 else pairs
        a, b = self.rng.choice(pool)
        return Sql(("(", a, " = ", b, ")"), "bool")

    # --- expressions ---------------------------------------------------------------------

    def literal(self, family: str) -> Sql:
        """A constant of a family."""
        return plain(self.rng.choice(LITERALS[family]), family)

    def term(self, atoms: Sequence[Sql], family: str, depth: int = 1) -> Sql:
        """An expression of a family."""
        rng = self.rng
        if family == "bool" and depth and self._is_temporal and rng.random() < TEMPORAL_SHARE:
            return self.temporal(atoms)
        mine = [a for a in atoms if a.kind == family]
        forms = EXPRESSIONS.get(family)
        if mine and (not depth or not forms or rng.random() < 0.45):
            return rng.choice(mine)
        fitting = _fitting(forms or (), atoms)
        if not forms or (not depth and not fitting and family in LITERALS):
            return self.literal(family)
        forms = fitting if fitting and (not depth or rng.random() < 0.8) else forms
        return self.filled(rng.choice(forms), family, atoms, max(depth - 1, 0))

    def filled(self, form: str, family: str, atoms: Sequence[Sql], depth: int = 1) -> Sql:
        """A form with its holes filled: {int} an expression, {=int} a constant, {^} the last
        expression again."""
        pieces: list[str | Sql] = []
        at, last = 0, ""
        form = form.replace(LINGUISTIC, self._known.linguistic)
        for hole in _HOLES.finditer(form):
            pieces.append(form[at : hole.start()])
            at = hole.end()
            if hole[1] is None:
                pieces.append(hole[0][0])
            elif hole[1] == "^":
                pieces.append(last)
            elif hole[1]:
                pieces.append(self.literal(hole[2]))
            else:
                term = self.term(atoms, hole[2], depth)
                last = term.text()
                pieces.append(last if "{^}" in form else term)
        return Sql((*pieces, form[at:]), family)

    def any_term(self, atoms: Sequence[Sql], depth: int = 1) -> Sql:
        """An expression of any family; one that reads something where that can be."""
        rng = self.rng
        atom = rng.choice(atoms) if atoms else None
        if atom is not None and (not depth or rng.random() < 0.4):
            return atom
        family = atom.kind if atom is not None and rng.random() < 0.6 else rng.choice(list(COMMON))
        return (
            self.term(atoms, family, depth)
            if family in EXPRESSIONS
            else atom or self.literal(family)
        )

    def predicate(self, atoms: Sequence[Sql], depth: int = 1) -> Sql:
        """A condition that holds for many rows."""
        rng = self.rng
        choice = rng.random()
        if choice < 0.25 and atoms:
            return Sql(("(", rng.choice(atoms), rng.choice((" IS NULL)", " IS NOT NULL)"))), "bool")
        term = self.term(atoms, "bool", depth)
        if choice < 0.6:
            return Sql(("(", term, " IS NOT TRUE)"), "bool")
        return Sql(("(", term, ")"), "bool")

    def temporal(self, atoms: Sequence[Sql]) -> Sql:
        """A condition on the clock, and on what is selected where there is a moment in it."""
        fitting = _fitting(TEMPORAL, atoms)
        return self.filled(self.rng.choice(fitting or TEMPORAL), "bool", atoms, 0)

    def key(self, atoms: Sequence[Sql], depth: int = 1) -> Sql:
        """An expression to group or partition by."""
        rng = self.rng
        expected = GROUPED if rng.random() < 0.9 else GROUPED_RARELY
        mine = [a for a in atoms if a.kind in expected]
        if mine and rng.random() < 0.7:
            term = rng.choice(mine)
            if term.kind == "int" and rng.random() < 0.4:
                term = Sql(("(", term, " % 3)"), "int")
        else:
            term = self.term(atoms, rng.choice(expected), depth)
        return canonical(term)

    def common(self, term: Sql, family: str = "") -> Sql:
        """The term in the one type of its family."""
        term = comparable(term)
        form = COMMON.get(family or term.kind)
        if form is None:
            return Sql(("(", term, " IS NULL)"), "bool")
        before, after = form.split("{}")
        return Sql((before, term, after), family or term.kind)


def _fitting(forms: Sequence[str], atoms: Sequence[Sql]) -> list[str]:
    """The forms all of whose expressions can be columns."""
    kinds = {atom.kind for atom in atoms}
    return [f for f in forms if _families_in(f) and _families_in(f) <= kinds]


@cache
def _families_in(form: str) -> frozenset[str]:
    return frozenset(h[2] for h in _HOLES.finditer(form) if h[2] and not h[1])
