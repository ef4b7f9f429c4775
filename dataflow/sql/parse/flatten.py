"""Replace the relations of a canonical query by subqueries.

So a view's query can run over tables as of another point in time, and over the definitions of
maintained views. Only the names of relations are replaced; everything else stays PostgreSQL's own
text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sqlglot import exp

from dataflow.lexer import Token, tokens
from dataflow.sql.parse.canonical_form import parse
from dataflow.sql.parse.shapes import span_of


def flattened(
    text: str,
    replacement: Callable[[str, str], str | None],
    pinned: Mapping[str, str] | None = None,
) -> str:
    """Return the query with each relation replaced for which `replacement` (of schema and name)
    returns a query, and without FOR UPDATE and the like.

    text: one query as pg_get_viewdef prints it, with schemas. A replaced relation keeps its alias,
    or else its name. pinned: values of expressions, by their text.
    """
    tree = parse(text)
    found = [*_replaced(text, tree, replacement), *_pinned(text, tree, pinned or {})]
    found += [(*span_of(lock), "") for lock in tree.find_all(exp.Lock)]
    parts, at = [], 0
    for begin, end, new in sorted(found, key=lambda f: (f[0], -f[1])):
        if begin >= at:
            parts += [text[at:begin], new]
            at = end
    return "".join(parts) + text[at:]


def _replaced(
    text: str, tree: exp.Expr, replacement: Callable[[str, str], str | None]
) -> Iterator[tuple[int, int, str]]:
    """Return (begin, end, new text) of relations."""
    for node in _named(tree):
        query = replacement(node.db, node.name)
        if query is None:
            continue
        begin, end = span_of(node)
        length, is_aliased = _name_in(text[begin:end])
        alias = "" if is_aliased else " " + exp.to_identifier(node.name, quoted=True).sql()
        yield begin, begin + length, f"({query}){alias}"


def _pinned(text: str, tree: exp.Expr, values: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
    """Return (begin, end, new text) of pinned expressions, the outermost first."""
    spans = (node.meta["span"] for node in tree.walk() if "span" in node.meta) if values else ()
    for begin, end in spans:
        if text[begin:end] in values:
            yield begin, end, values[text[begin:end]]


def relations_named(text: str) -> list[tuple[str, str]]:
    """Return (schema, name) of the relations in a canonical query, each once."""
    return list(dict.fromkeys((node.db, node.name) for node in _named(parse(text))))


def _named(query: exp.Expr) -> list[exp.Table]:
    """Leave out WITH entries: a relation of the same name has its schema in the text."""
    ctes = {cte.alias for cte in query.find_all(exp.CTE)}
    return [t for t in query.find_all(exp.Table) if t.name and (t.db or t.name not in ctes)]


def _name_in(text: str) -> tuple[int, bool]:
    """Return the length of `[ONLY] [schema.]name` at the start of a text, and whether an alias
    follows.

    >>> _name_in('public."my table" t(a)'), _name_in("ONLY s.t"), _name_in("t")
    ((17, True), (8, False), (1, False))
    """
    found = list(tokens(text))
    first = int(_is_word(found[0], "only") and len(found) > 1 and found[1].text != ".")
    is_qualified = len(found) > first + 2 and found[first + 1].text == "."
    last = first + 2 * is_qualified
    return found[last].offset + len(found[last].text), last + 1 < len(found)


def _is_word(token: Token, word: str) -> bool:
    return token.kind == "word" and token.text == word
