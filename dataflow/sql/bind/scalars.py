"""Scalar expressions: from PostgreSQL's canonical text to typed calls of kernels.

PostgreSQL determines the type of every node, in one query for all expressions of a block. A node
whose function has a native kernel for exactly its types becomes a Call; the smallest subtree around
a node that has none becomes one InPostgres over plain columns, in PostgreSQL's own text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence

from sqlglot import exp

from dataflow.errors import SqlError
from dataflow.expressions.functions import has_kernel
from dataflow.expressions.ir import Call, Expression, InPostgres, Literal, chain_of
from dataflow.sql.bind.analysis import Routine
from dataflow.sql.bind.calls import as_text, hashed_equality
from dataflow.sql.bind.routines import is_own, warn_of_stable
from dataflow.sql.bind.row_queries import NAMING, check_reads_nothing, values_outside
from dataflow.sql.bind.scope import Context, edited
from dataflow.sql.bind.whole_rows import (
    implied_name,
    is_record,
    names_in_row,
    passed,
    rows_inside,
    rows_of_joins,
    written,
)
from dataflow.sql.bind.zoned_calls import is_zoned, zoned_call
from dataflow.sql.parse.canonical_form import Operation, Quantified, SyntaxCall, Test
from dataflow.sql.parse.parse_chains import Chain
from dataflow.sql.parse.shapes import (
    OPERATORS,
    STRUCTURE,
    TRIMS,
    bare,
    flatten,
    is_value,
    operands,
    pinned,
    plain_literal,
    span_of,
)
from dataflow.types import BOOL, TEXT, UTC, SqlType

Atom = Callable[[exp.Expr], Expression | None]

_EQUALS = re.compile(r"=|OPERATOR\([^()]*\.=\)")
_FIRST_USER_OID = 16384


class Scalars:
    """Binds the scalar expressions of one block.

    atom returns the value of a whole node that has one: a name, an aggregate call after grouping, a
    subquery; None for everything computed here. A subquery that reads no relation is also computed
    here: it is an expression over the columns around it.
    """

    def __init__(self, context: Context, atom: Atom) -> None:
        self._context = context
        self._atom = atom
        self._atoms: dict[int, Expression] = {}
        self._types: dict[str, SqlType | None] = {}
        self._constants: dict[str, Literal | None] = {}
        self._columns: list[Expression] = []
        # The position of each in that list.
        self._positions: dict[Expression, int] = {}
        self._steps: dict[tuple[str, SqlType, SqlType], SqlType | None] = {}
        self._probes: dict[int, str] = {}
        self._shown: dict[str, exp.Expr] = {}
        self._pinned: dict[str, str] = {}

    def bind(self, nodes: Sequence[exp.Expr]) -> list[Expression]:
        """Return the expressions of the nodes, in two round trips at most."""
        self.learn(nodes)
        return [self._build(node) for node in nodes]

    def learn(self, nodes: Sequence[exp.Expr]) -> None:
        """Resolve the columns in nodes and query the types of all nodes that have one."""
        required: dict[str, exp.Expr] = {}
        for node in nodes:
            self._gather(node, required)
        self._context.refuse_sets(required.values())
        self._query_types(list(required))
        self._check_collations(required)
        self._compute_constants(required)

    def resolve(self, nodes: Sequence[exp.Expr]) -> None:
        """Resolve the columns in nodes that are only rendered."""
        for node in nodes:
            self._gather(node, {})

    def bound(self, node: exp.Expr) -> Expression | None:
        """Return a learnt node; None for a value that is no expression (a row of no named type)."""
        return None if self._untyped(node) else self._build(node)

    def bound_parts(self, node: exp.Expr) -> list[tuple[exp.Expr, Expression]]:
        """Return a learnt node, or its columns if it is a row of no named type; [] for a
        constant."""
        atoms = self._atoms_in(node)
        if atoms and not self._untyped(node):
            return [(node, self._build(node))]
        return [(part, self._atoms[id(part)]) for part in atoms]

    def render(self, node: exp.Expr, name: Callable[[Expression], str]) -> str:
        """Return PostgreSQL's text of a node with its columns written by `name`."""
        begin, end = span_of(node)
        edits = self.row_edits(node)
        for atom in self._atoms_in(node, pinned=self._pinned):
            first, last = span_of(atom)
            value = self._pinned.get(self._probes.get(id(atom), ""))
            value = value or written(self._atoms[id(atom)], name)
            if isinstance(atom.parent, exp.In) and atom.parent.this is atom:
                # ROW(...)::t before IN would be compared column by column.
                value = f"(CASE WHEN true THEN {value} END)" if "ROW(" in value else value
            # A subquery's parentheses are its own: (SELECT ...).field.
            is_wrapped = self._context.text[first] == "("
            value = f"({value})" if is_wrapped else value
            edits.append((first, last, value + implied_name(atom, node)))
        return edited(self._context.text, begin, end, edits)

    def row_edits(self, node: exp.Expr) -> list[tuple[int, int, str]]:
        """Return the edits (from, to, new text) of a node's text that do not depend on its
        columns."""
        begin, end = span_of(node)
        found: list[tuple[int, int, str]] = []
        if self._context.named_rows:
            joined = rows_of_joins(self._context, node)
            found += [e for row, edits in joined if not self._is_known(row) for e in edits]
        if ".*" in self._context.text[begin:end]:
            rows = list(rows_inside(self._context, node))
            found += [(*span_of(row), text) for row, text in rows if not self._is_known(row)]
        return found

    def _is_known(self, node: exp.Expr | None) -> bool:
        """Return whether a node is, or is inside, one that has a value as a whole."""
        while node is not None and id(node) not in self._atoms:
            node = node.parent
        return node is not None

    def over_columns(self, node: exp.Expr) -> tuple[str, tuple[Expression, ...]]:
        """Return PostgreSQL's text of a node with $1, $2 ... for its columns, and those columns."""
        columns = passed(self._atoms[id(a)] for a in self._atoms_in(node))
        positions = {column: i for i, column in enumerate(columns, 1)}
        return self.render(node, lambda c: f"${positions[c]}"), tuple(columns)

    @property
    def columns(self) -> list[Expression]:
        """The columns resolved so far; type probes name them by `probed`."""
        return self._columns

    def probe(self, node: exp.Expr) -> str:
        """Return the text of a node over the columns resolved so far, for Analyzer.types."""
        if id(node) not in self._probes:
            text = self.render(node, self.probed)
            self._probes[id(node)] = text
            self._shown.setdefault(text, node)
        return self._probes[id(node)]

    def probed(self, column: Expression) -> str:
        """Return a column in the text of a probe, qualified, since a subquery may have the same
        name."""
        return f"tidemark_row.c{self._positions[column] + 1}"

    def _gather(self, node: exp.Expr, required: dict[str, exp.Expr]) -> None:
        """Resolve all columns below a node, and collect the nodes whose type must be queried."""
        if id(node) in self._atoms:
            return
        found = self._atom(node)
        if found is not None:
            self._note(node, found)
            return
        names_in_row(self._context, node)
        if isinstance(node, exp.Query):
            check_reads_nothing(self._context, node)
            for part, value in values_outside(node, self._atom):
                self._note(part, value)
            if "span" in node.meta:
                required.setdefault(self.probe(node), node)
            return
        for child in operands(node):
            self._gather(child, required)
        if is_value(node):
            required.setdefault(self.probe(node), node)

    def _note(self, node: exp.Expr, value: Expression) -> None:
        self._atoms[id(node)] = value
        for column in passed([value]):
            if column not in self._positions:
                self._positions[column] = len(self._columns)
                self._columns.append(column)

    def _query_types(self, probes: list[str]) -> None:
        probes = [p for p in probes if p not in self._types]
        if not probes:
            return
        analyzer, columns = self._context.analyzer, [c.type for c in self._columns]
        try:
            self._types.update(zip(probes, analyzer.types(columns, probes), strict=True))
        except SqlError:
            # Parts that occur only inside something larger, such as a row, have no type.
            for probe in probes:
                try:
                    self._types[probe] = analyzer.types(columns, [probe])[0]
                except SqlError:
                    self._types[probe] = None

    def _check_collations(self, required: dict[str, exp.Expr]) -> None:
        """Refuse a comparison of two collations that names none: it would fail once there are
        rows."""
        mixed = []
        for probe, node in required.items():
            met = {
                c.type.collation for a in self._atoms_in(node) for c in passed([self._atoms[id(a)]])
            }
            if len(met - {""}) > 1 and self._types.get(probe) is not None:
                mixed.append(probe)
        if mixed:
            self._context.analyzer.check_collations([c.type for c in self._columns], mixed)

    def _compute_constants(self, required: dict[str, exp.Expr]) -> None:
        """Let PostgreSQL compute the largest subtrees without a column."""
        fixed = {p: n for p, n in required.items() if not self._atoms_in(n) and self._types.get(p)}
        inner = {
            id(d)
            for n in fixed.values()
            for d in n.walk()
            if isinstance(d, exp.Expr) and d is not n
        }
        probes = []
        for probe, node in fixed.items():
            if probe in self._constants:
                continue
            plain = plain_literal(node, probe, self._type(probe))
            if plain is not None:
                self._constants[probe] = plain
            elif id(node) not in inner:
                probes.append(probe)
        if probes:
            types = [self._type(p) for p in probes]
            if self._context.has_stable:
                for probe in probes:
                    self._is_stable(probe, is_constant=True)
            values = self._context.analyzer.constants(probes, types)
            self._constants.update(zip(probes, values, strict=True))
            if self._context.has_stable:
                # A subtree computed once must not be part of a text computed for each row.
                found = zip(probes, values, strict=True)
                self._pinned |= {p: pinned(value) for p, value in found if value is not None}
                self._context.pinned |= self._pinned

    def _atoms_in(self, node: exp.Expr, pinned: Container[str] = ()) -> list[exp.Expr]:
        """Return the column nodes, and pinned ones, below a node in the order of the text."""
        if id(node) in self._atoms or self._probes.get(id(node), "") in pinned:
            return [node]
        if isinstance(node, exp.Query):
            found = [c for c in node.find_all(*NAMING) if id(c) in self._atoms]
        else:
            found = [a for child in operands(node) for a in self._atoms_in(child, pinned)]
        return sorted(found, key=lambda a: span_of(a)[0])

    def _type(self, probe: str) -> SqlType:
        found = self._types.get(probe)
        if found is None:
            shown = self._context.text_of(self._shown[probe])
            raise self._context.refuse(
                f"an expression without a named type is not maintained: {shown}",
                "select the fields of a row one by one",
            )
        return found

    def _build(self, node: exp.Expr) -> Expression:
        if id(node) in self._atoms and not is_record(self._atoms[id(node)]):
            return self._atoms[id(node)]
        if isinstance(node, exp.Paren):
            return self._build(node.this)
        probe = self.probe(node)
        constant = self._constants.get(probe)
        if constant is not None:
            return constant
        type = self._type(probe)
        native = self._native(node, type)
        return native if native is not None else self._in_postgres(node, type)

    def _in_postgres(self, node: exp.Expr, type: SqlType) -> InPostgres:
        sql, columns = self.over_columns(node)
        is_stable = may_change = False
        if self._context.has_stable or self._context.has_own:
            routines = self._routines(self.probe(node))
            is_stable = warn_of_stable(self._context, routines, is_constant=False)
            may_change = any(map(is_own, routines))
        return InPostgres(sql, columns, type, is_stable, may_change)

    def _is_stable(self, probe: str, *, is_constant: bool = False) -> bool:
        return warn_of_stable(self._context, self._routines(probe), is_constant=is_constant)

    def _routines(self, probe: str) -> tuple[Routine, ...]:
        return self._context.analyzer.routines([c.type for c in self._columns], probe)

    def _native(self, node: exp.Expr, type: SqlType) -> Expression | None:
        """Return the Call of a node, if its function has a kernel and its arguments are
        expressions."""
        if isinstance(node, exp.And | exp.Or):
            function, kind = ("and", exp.And) if isinstance(node, exp.And) else ("or", exp.Or)
            return self._call(function, flatten(node, kind), type)
        if isinstance(node, exp.Not):
            return self._not(node, type)
        if isinstance(node, Test):
            return self._call(node.args["word"], [node.this], type)
        if isinstance(node, exp.Case):
            return self._case(node, type)
        if isinstance(node, exp.Cast | exp.Collate):
            return self._cast(node, type)
        if isinstance(node, Operation):
            return self._operation(node, type)
        if isinstance(node, Chain):
            return self._chain(node, type)
        if isinstance(node, exp.AtTimeZone):
            return self._call("timezone", [node.args["zone"], node.this], type)
        if isinstance(node, SyntaxCall):
            return self._syntax_call(node, type)
        if isinstance(node, exp.Anonymous):
            if any(isinstance(a, exp.Variadic | exp.Star) for a in node.expressions):
                return None
            name = node.name.lower() if isinstance(node.this, str) else node.name
            return self._call(name, node.expressions, type)
        return None

    def _call(
        self, function: str, operands: Sequence[exp.Expr], type: SqlType
    ) -> Expression | None:
        """Return the call if there is a kernel; do not build the arguments otherwise."""
        if any(self._untyped(o) for o in operands):
            return None
        return self._called(function, tuple(self._build(o) for o in operands), type)

    def _called(
        self, function: str, arguments: tuple[Expression, ...], type: SqlType
    ) -> Expression | None:
        """Return the call in the query's time zone, if there is a kernel."""
        return zoned_call(self._zone, function, arguments, type)

    @property
    def _zone(self) -> str:
        return self._context.analyzer.time_zone

    def _untyped(self, node: exp.Expr) -> bool:
        while isinstance(node, exp.Paren) and id(node) not in self._atoms:
            node = node.this
        if id(node) in self._atoms:
            return is_record(self._atoms[id(node)])
        return isinstance(node, STRUCTURE) or self._types.get(self.probe(node)) is None

    def _not(self, node: exp.Not, type: SqlType) -> Expression | None:
        inner = bare(node.this)
        if isinstance(inner, Operation) and inner.args["word"] == "is distinct from":
            sides = [inner.args["left"], inner.args["right"]]
            return self._call("is not distinct from", sides, type)
        return self._call("not", [node.this], type)

    def _case(self, node: exp.Case, type: SqlType) -> Expression | None:
        arguments: list[Expression] = []
        for branch in node.args["ifs"]:
            if self._untyped(branch.this) or self._untyped(branch.args["true"]):
                return None
            condition: Expression | None = self._build(branch.this)
            if node.this is not None:
                condition = self._called("=", (self._build(node.this), condition), BOOL)
            if condition is None:
                return None
            arguments += [condition, self._build(branch.args["true"])]
        default = node.args.get("default")
        arguments.append(self._build(default) if default else Literal(None, type))
        return self._called("case", tuple(arguments), type)

    def _cast(self, node: exp.Cast | exp.Collate, type: SqlType) -> Expression | None:
        # PostgreSQL must check a domain's constraints.
        if type.oid >= _FIRST_USER_OID:
            return None
        return self._call("cast", [node.this], type)

    def _operation(self, node: Operation, type: SqlType) -> Expression | None:
        left, right = node.args.get("left"), node.args["right"]
        function = OPERATORS.get(node.args["word"])
        if isinstance(right, Quantified):
            return self._membership(node, type)
        if left is not None and _EQUALS.fullmatch(node.args["word"]):
            hashed = self._hashed_equality(left, right)
            if hashed is not None:
                return hashed
        if function is None:
            return None
        return self._call(function, [right] if left is None else [left, right], type)

    def _chain(self, node: Chain, type: SqlType) -> Expression | None:
        """Return the steps of a chain; consecutive steps of one type become one call."""
        if any(self._untyped(o) for o in node.expressions):
            return None
        found, *others = [self._build(o) for o in node.expressions]
        words: list[str] = []
        arguments: list[Expression] = []
        for word, other in zip(node.args["words"], others, strict=True):
            result, function = self._step(word, found.type, other.type), OPERATORS.get(word)
            if result is None or function is None:
                return None
            if self._zone != UTC and is_zoned((found.type, other.type, result)):
                left = chain_of(found, words, arguments)
                step = self._called(function, (left, other), result)
                if step is None:
                    return None
                found, words, arguments = step, [], []
                continue
            if not has_kernel(function, (found.type, other.type), result):
                return None
            if result == found.type:
                words.append(function)
                arguments.append(other)
                continue
            found = chain_of(found, words, arguments)
            found, words, arguments = Call(function, (found, other), result), [], []
        found = chain_of(found, words, arguments)
        return found if found.type == type else None

    def _step(self, word: str, left: SqlType, right: SqlType) -> SqlType | None:
        """Return the type of an operator over these types."""
        key = (word, left, right)
        if key not in self._steps:
            try:
                resolved = self._context.analyzer.types([left, right], [f"(c1 {word} c2)"])
                self._steps[key] = resolved[0]
            except SqlError:
                self._steps[key] = None
        return self._steps[key]

    def _hashed_equality(self, left: exp.Expr, right: exp.Expr) -> Expression | None:
        """Compare columns of a type whose equality only PostgreSQL can decide by hashes, which can
        be join keys."""
        if self._untyped(left) or self._untyped(right):
            return None
        if not self._atoms_in(left) or not self._atoms_in(right):
            return None
        return hashed_equality(self._build(left), self._build(right))

    def _membership(self, node: Operation, type: SqlType) -> Expression | None:
        """x = ANY (ARRAY[constants]) and x <> ALL (ARRAY[constants])."""
        pair = (node.args["word"], node.args["right"].args["word"])
        function = {("=", "any"): "in", ("<>", "all"): "not in"}.get(pair)
        array = bare(node.args["right"].this)
        if isinstance(array, exp.Cast) and array.to.name in ("", "text"):
            array = bare(array.this)
        left = node.args["left"]
        if function is None or not isinstance(array, exp.Array) or self._untyped(left):
            return None
        constants = [self._build(e) for e in array.expressions if not self._untyped(e)]
        x = self._build(left)
        if len(constants) != len(array.expressions):
            return None
        if not all(isinstance(c, Literal) for c in constants):
            return None
        if any(c.type.kind != x.type.kind for c in constants):
            return None
        found = self._called("in", (x, *constants), type)
        if found is None or function == "in":
            return found
        return Call("not", (found,), type)

    def _syntax_call(self, node: SyntaxCall, type: SqlType) -> Expression | None:
        word, arguments = node.args["word"], list(node.expressions)
        if any(self._untyped(a) for a in arguments):
            return None
        if word == "extract":
            field = Literal(node.args["field"].strip("'\""), TEXT)
            return self._called("extract", (field, self._build(arguments[0])), type)
        if word == "position":
            arguments.reverse()
        elif word == "trim":
            word = TRIMS[node.args["field"] or "both"]
            arguments.reverse()
        # PostgreSQL prints these without the cast that it inserted for their text argument.
        return self._called(word, tuple(as_text(self._build(a)) for a in arguments), type)
