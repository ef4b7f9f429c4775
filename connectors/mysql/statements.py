"""Statements in the log, as far as they concern tables that are watched.

Rows come as row events. A statement in the log is a boundary of a transaction, a change of a
table's definition, or rows that were changed in the format STATEMENT, which cannot be followed.
Invariant: a statement that may have changed the rows or columns of a watched table, and is no
TRUNCATE, is reported by name. What is not understood and names a watched table is reported too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from connectors.feed_source import RelationAltered
from dataflow.errors import SourceError
from dataflow.schema import RelationName

BEGIN, COMMIT, ROLLBACK = "begin", "commit", "rollback"
_CHANGES_ROWS = {"insert", "replace", "update", "delete", "load", "call", "with", "do", "select"}
_CHANGES_ROWS |= {"import", "values"}
# Words of ALTER TABLE that leave the rows, and the columns that others read, as they are.
_HARMLESS = {"add", "alter", "comment", "auto_increment", "engine", "row_format", "algorithm"}
_HARMLESS |= {"lock", "order", "force", "analyze", "check", "rebuild", "reorganize", "coalesce"}
_HARMLESS |= {"optimize", "repair", "default", "enable", "disable", "key_block_size", "wait"}
_HARMLESS |= {"stats_persistent", "stats_auto_recalc", "stats_sample_pages", "page_compressed"}
_HARMLESS |= {"max_rows", "min_rows", "avg_row_length", "checksum", "pack_keys", "nowait"}
_HARMLESS |= {"validation", "without", "encrypted", "encryption", "encryption_key_id", "online"}
_GONE = "source.table_missing"
# What building the readers again does not put right.
_ENDING = {_GONE, "mysql.statement_format", "mysql.unknown_statement"}
_KEYS = {"index", "key", "unique", "constraint", "foreign", "fulltext", "spatial", "check"}
_TOKEN = re.compile(
    r"""(?P<space>\s+|--[ \t][^\n]*|\#[^\n]*|/\*(?!M?!).*?\*/)
    |(?P<open>/\*M?!\d*)|(?P<close>\*/)
    |`(?P<quoted>(?:[^`]|``)*)`
    |"(?P<double>(?:[^"\\]|\\.|"")*)"
    |(?P<string>'(?:[^'\\]|\\.|'')*')
    |(?P<word>[\w$\u0080-\uffff]+)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_REBUILD = "rebuild the views that read it, or drop them"
_REBUILT = "no action needed: the views that read it are built again from the table as it is"


@dataclass(frozen=True)
class Token:
    """A word in lower case, a quoted name, a mark, or a string constant ("'")."""

    text: str
    is_name: bool = False
    is_quoted: bool = False


@dataclass(frozen=True)
class Watched:
    """A table that is watched: its relation, and the declared columns in lower case."""

    relation: RelationName
    columns: frozenset[str]
    key: frozenset[str]


# By (schema, table) in lower case.
Watch = Mapping[tuple[str, str], Watched]


@dataclass(frozen=True)
class Verdict:
    """What a statement means.

    boundary: BEGIN, COMMIT, ROLLBACK or "". truncated: watched tables without rows now. error: why
    the source cannot continue after what is before it.
    """

    boundary: str = ""
    truncated: tuple[RelationName, ...] = ()
    error: SourceError | None = None


def tokens(statement: str) -> list[Token]:
    """Split a statement; the text of executable comments belongs to it.

    >>> [t.text for t in tokens("DROP TABLE `a``b` /* generated */ -- x")]
    ['drop', 'table', 'a`b']
    """
    found = []
    for one in _TOKEN.finditer(statement):
        kind, text = one.lastgroup, one[0]
        if kind == "quoted":
            found.append(Token(one["quoted"].replace("``", "`"), True, True))
        elif kind == "double":
            found.append(Token(one["double"].replace('""', '"'), True, True))
        elif kind == "word":
            found.append(Token(text.lower() if text.isascii() else text, True))
        elif kind == "string":
            found.append(Token("'"))
        elif kind == "mark":
            found.append(Token(text))
    return found


def judge(statement: str, schema: str, watch: Watch) -> Verdict:
    """Return what a statement of the log means; schema: its default database."""
    parts = tokens(statement)
    while parts and parts[0].text in ("(", ";"):
        parts = parts[1:]
    if not parts:
        return Verdict()
    first = parts[0].text
    second = parts[1].text if len(parts) > 1 else ""
    if first == "begin" or (first, second) == ("start", "transaction"):
        return Verdict(BEGIN)
    if first == "commit" or (first, second) == ("xa", "commit"):
        return Verdict(COMMIT)
    if first == "rollback" and "to" not in {part.text for part in parts[1:4]}:
        return Verdict(ROLLBACK)
    if first in ("rollback", "savepoint", "release", "xa", "set"):
        return Verdict()
    return _Statement(parts, schema, watch).verdict()


@dataclass(frozen=True)
class _Ending:
    """Why the readers of a table cannot continue. more: of the error's text, see `_error`.

    Unless the table is gone or was changed without rows, they are built again.
    """

    watched: Watched
    code: str
    more: str = ""


class _Statement:
    def __init__(self, parts: Sequence[Token], schema: str, watch: Watch) -> None:
        self._parts = parts
        self._schema = schema.lower()
        self._watch = watch

    def verdict(self) -> Verdict:
        words = [part.text for part in self._parts]
        if words[0] in _CHANGES_ROWS:
            return self._changes_rows()
        if words[0] == "truncate":
            return self._truncates(2 if words[1:2] == ["table"] else 1)
        if words[0] == "alter":
            return self._alters(words)
        if words[0] == "rename" and words[1:2] in (["table"], ["tables"]):
            return self._first_error(self._renamed())
        if words[0] == "drop":
            return self._drops(words)
        if words[0] == "create":
            return self._creates(words)
        harmless = {"analyze", "optimize", "repair", "flush", "check", "grant", "revoke", "lock"}
        harmless |= {"install", "uninstall", "unlock", "comment", "cache", "purge", "reset"}
        named = () if words[0] in harmless else self._mentioned()
        return self._first_error(
            _Ending(w, code="mysql.unknown_statement", more=words[0]) for w in named
        )

    def _changes_rows(self) -> Verdict:
        """A statement in the format STATEMENT, by whatever name it reaches a watched table."""
        return self._first_error(
            _Ending(w, code="mysql.statement_format") for w in self._mentioned()
        )

    def _truncates(self, at: int) -> Verdict:
        watched = self._table(at)[0]
        return Verdict(truncated=(watched.relation,)) if watched else Verdict()

    def _drops(self, words: Sequence[str]) -> Verdict:
        if words[1:2] in (["database"], ["schema"]):
            gone = self._parts[-1].text.lower()
            dropped = [w for (schema, _), w in self._watch.items() if schema == gone]
            return self._first_error(_Ending(w, code=_GONE) for w in dropped)
        if words[1:2] not in (["table"], ["tables"]):
            return Verdict()
        listed = self._listed(2)
        return self._first_error(_Ending(w, code=_GONE) for w in listed)

    def _creates(self, words: Sequence[str]) -> Verdict:
        """CREATE OR REPLACE TABLE drops what there was."""
        if words[1:4] != ["or", "replace", "table"]:
            return Verdict()
        listed = self._listed(4)[:1]
        return self._first_error(_Ending(w, code="mysql.table_renamed") for w in listed)

    def _renamed(self) -> Iterator[_Ending]:
        """Yield the watched tables that now have another name, or another table."""
        for watched in self._listed(2):
            yield _Ending(watched, code="mysql.table_renamed")

    def _alters(self, words: Sequence[str]) -> Verdict:
        at = next((i for i, word in enumerate(words[:5]) if word == "table"), 0)
        if not at:
            return Verdict()
        at += 3 if words[at + 1 : at + 3] == ["if", "exists"] else 1
        watched, at = self._table(at)
        others = [_Ending(w, code="mysql.table_renamed") for w in self._rename_targets(at)]
        if watched is None:
            return self._first_error(others)
        changed = [self._clause(watched, one) for one in self._clauses(at)]
        return self._first_error([*(one for one in changed if one), *others])

    def _rename_targets(self, at: int) -> Iterator[Watched]:
        """Yield watched tables whose name an ALTER TABLE ... RENAME gives to another table."""
        for clause in self._clauses(at):
            if clause[:1] and clause[0].text == "rename" and len(clause) > 1:
                rest = clause[2:] if clause[1].text in ("to", "as") else clause[1:]
                found, _ = _Statement(rest, self._schema, self._watch)._table(0)
                if found is not None:
                    yield found

    def _clauses(self, at: int) -> Iterator[Sequence[Token]]:
        """Yield the parts of an ALTER TABLE, which commas outside of parentheses divide."""
        depth, begin = 0, at
        for i in range(at, len(self._parts)):
            text = "" if self._parts[i].is_quoted else self._parts[i].text
            depth += (text == "(") - (text == ")")
            if text == "," and not depth:
                yield self._parts[begin:i]
                begin = i + 1
        yield self._parts[begin:]

    def _clause(self, watched: Watched, clause: Sequence[Token]) -> _Ending | None:
        """Return why a part of an ALTER TABLE ends the views that read it; None if it does not."""
        words = [part.text.lower() for part in clause]
        verb = words[0] if words else ""
        rest = words[1:]
        if rest[:1] == ["column"]:
            rest = rest[1:]
        if rest[:2] == ["if", "exists"]:
            rest = rest[2:]
        name = rest[0] if rest else ""
        if verb in ("drop", "change", "modify", "rename"):
            return self._column_clause(watched, verb, words, name)
        if verb == "add" and {"primary"} & set(words[1:4]) and watched.key:
            return _Ending(watched, code="source.key_changed", more="its primary key was changed")
        if not verb or verb in _HARMLESS:
            return None
        return _Ending(watched, code="mysql.table_altered", more=" ".join(words[:3]))

    def _column_clause(
        self, watched: Watched, verb: str, words: Sequence[str], name: str
    ) -> _Ending | None:
        second = words[1] if len(words) > 1 else ""
        if verb == "drop" and second == "primary":
            why = "its primary key was dropped"
            return _Ending(watched, code="source.key_changed", more=why) if watched.key else None
        if verb == "drop" and second == "partition":
            why = "DROP PARTITION removes rows without a trace"
            return _Ending(watched, code="mysql.table_altered", more=why)
        if verb in ("drop", "rename") and second in _KEYS:
            return None
        if verb == "rename" and second != "column":
            return _Ending(watched, code="mysql.table_renamed")
        if name not in watched.columns:
            return None
        if verb in ("drop", "rename"):
            return _Ending(watched, code="source.column_dropped", more=name)
        return _Ending(watched, code="source.column_changed", more=name)

    def _table(self, at: int) -> tuple[Watched | None, int]:
        """Return the watched table that is named at a place, and where the name ends."""
        schema, names = self._schema, [part.text.lower() for part in self._parts[at : at + 3]]
        if names[1:2] == ["."] and len(names) == 3:
            schema, names, at = names[0], names[2:], at + 2
        return self._watch.get((schema, names[0] if names else "")), at + 1

    def _listed(self, at: int) -> list[Watched]:
        """Return the watched tables in a list of names, whatever is between them."""
        found: list[Watched] = []
        while at < len(self._parts):
            watched, end = self._table(at)
            if watched is not None:
                found.append(watched)
            at = end if self._parts[at].is_name else at + 1
        return found

    def _mentioned(self) -> list[Watched]:
        """Return the watched tables whose names occur anywhere."""
        names = {part.text.lower() for part in self._parts if part.is_name}
        return [w for (_, table), w in self._watch.items() if table in names]

    def _first_error(self, found: Iterable[_Ending]) -> Verdict:
        for one in found:
            return Verdict(error=_error(one.watched.relation, one.code, one.more))
        return Verdict()


def _error(relation: RelationName, code: str, more: str) -> SourceError:
    what, detail = {
        _GONE: ("was dropped", ""),
        "source.column_dropped": (f'no longer has column "{more}"', ""),
        "source.column_changed": (f'has changed column "{more}"', "ALTER TABLE rewrote its values"),
        "source.key_changed": ("identifies rows by another key", more),
        "mysql.table_renamed": ("is another table now, or has another name", ""),
        "mysql.table_altered": ("was altered in a way that may change rows", more),
        "mysql.statement_format": (
            "was changed by a statement that is logged without rows",
            "a session has set binlog_format to STATEMENT or MIXED",
        ),
        "mysql.unknown_statement": ("is named by a statement of unknown effect", more),
    }[code]
    what = f'table "{relation}" {what}'
    if code in _ENDING:
        hint = "create it again, then rebuild the views" if code == _GONE else _REBUILD
        return SourceError(code, what, detail=detail, hint=hint, relation=relation)
    return RelationAltered(code, what, detail=detail, hint=_REBUILT, relation=relation)
