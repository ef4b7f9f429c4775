"""A publication that an administrator made, for a role that owns no table.

Invariant: it is never created, altered or dropped here. A table whose changes it does not send
whole is refused, and the error's hint is the statement with which the administrator corrects that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.postgres.replication.publication import (
    Publication,
    check_table,
    membership_of,
    sent_as,
    withheld,
)
from connectors.postgres.session.quoting import quote_name
from dataflow.errors import SourceError
from dataflow.schema import Relation, RelationName

_ALL_KINDS = "publish = 'insert, update, delete, truncate'"
_MEMBERS = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind, {membership},
  CASE WHEN r.oid::bigint = {membership} THEN to_jsonb(r) END, {sent_as}
FROM pg_publication AS p, pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_publication_rel AS r ON r.prrelid = c.oid
  AND r.prpubid = (SELECT oid FROM pg_publication WHERE pubname = %(publication)s)
WHERE p.pubname = %(publication)s AND c.relkind IN ('r', 'p')
"""
_OF_NAMES = """
  AND (n.nspname::text, c.relname::text) IN (
    SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[]))
"""


@dataclass(frozen=True)
class _Member:
    """A table and how it is published, in the order of _MEMBERS. membership: 0 if it is not."""

    oid: int
    schema: str
    name: str
    kind: str
    membership: int
    options: dict[str, Any] | None
    sent_as: str | None


def add_statement(publication: str, name: RelationName) -> str:
    """Return the statement with which its owner adds a table to a publication."""
    return f"ALTER PUBLICATION {quote_name(publication)} ADD TABLE {_full(name)};"


def create_statement(publication: str) -> str:
    """Return the statement that creates a publication; its tables are left to be named."""
    return (
        f"CREATE PUBLICATION {quote_name(publication)} FOR TABLE ... WITH"
        " (publish_via_partition_root = true);"
    )


class GivenPublication(Publication):
    """A publication of the administrator; a table is in it, or its schema, or all tables are."""

    def _row(self) -> tuple[dict[str, Any], str, bool] | None:
        return self._found()

    def check(self) -> None:
        """Require that it exists and sends every kind of change.

        SourceError source.publication_missing, source.publication_options.
        """
        found = self._found()
        if found is None:
            raise self._missing()
        self._require(found[1], withheld(found[0], {}, is_partitioned=False), _ALL_KINDS)

    ensure = check

    def add(self, names: Sequence[RelationName]) -> None:
        """Require that each table is published whole. Nothing is changed.

        SourceError source.publication_missing, source.publication_options, source.not_published,
        source.partition_overlap, and what `Publication.add` has of the table itself.
        """
        self.check()
        for name in names:
            check_table(name, self._facts(name), is_given=True)
        self.require_sent(names)

    def require_sent(self, names: Sequence[RelationName]) -> None:
        """Require that each table is published whole, whoever owns it; errors as of `add`."""
        for error in self.refusals(names).values():
            raise error

    def refusals(self, names: Sequence[RelationName]) -> dict[RelationName, SourceError]:
        """Return why tables are not published whole, of those that are not.

        SourceError source.publication_missing.
        """
        found = self._found()
        if found is None:
            raise self._missing()
        options, owner, _ = found
        members = {(m.schema, m.name): m for m in self._members(names)}
        refused = {}
        for name in names:
            try:
                self._require_sent(name, members.get((name.schema, name.name)), options, owner)
            except SourceError as error:
                refused[name] = error
        return refused

    def _require_sent(
        self, name: RelationName, member: _Member | None, options: dict[str, Any], owner: str
    ) -> None:
        if member is not None and member.sent_as is not None:
            raise SourceError(
                "source.partition_overlap",
                f'publication "{self.name}" sends the changes of table "{name}" as those of'
                f" {member.sent_as}",
                detail=_of_owner(owner),
                hint=f"let the view read {member.sent_as}",
                relation=name,
            )
        if member is None or not member.membership:
            raise SourceError(
                "source.not_published",
                f'table "{name}" is not in publication "{self.name}"',
                detail=_of_owner(owner),
                hint=add_statement(self.name, name),
                relation=name,
            )
        self._require_whole(name, member, options, owner)

    def check_tables(self, names: Sequence[RelationName]) -> None:
        """Do as `add`, which changes nothing either."""
        self.add(names)

    def remove(self, names: Sequence[RelationName]) -> None:
        """Leave them published."""

    def drop(self) -> None:
        """Leave it."""

    def tables(self) -> dict[int, RelationName]:
        """Return the published tables: oid -> name (its source left empty)."""
        return {
            member.oid: RelationName("", member.schema, member.name)
            for member in self._members()
            if member.membership
        }

    def _members(self, names: Sequence[RelationName] | None = None) -> list[_Member]:
        version = self._session.server_version
        query = _MEMBERS.format(membership=membership_of(version), sent_as=sent_as(version))
        facts: dict[str, object] = {"publication": self.name}
        if names is not None:
            query += _OF_NAMES
            facts |= {"schemas": [n.schema for n in names], "names": [n.name for n in names]}
        return [_Member(*row) for row in self._session.rows(query, facts)]

    def _require(self, owner: str, fault: str, option: str) -> None:
        if not fault:
            return
        raise SourceError(
            "source.publication_options",
            f'publication "{self.name}" does not send all changes: {fault}',
            detail=_of_owner(owner),
            hint=f"ALTER PUBLICATION {quote_name(self.name)} SET ({option});",
        )

    def _require_whole(
        self, name: RelationName, member: _Member, options: dict[str, Any], owner: str
    ) -> None:
        fault = withheld({}, member.options or {}, is_partitioned=False)
        if fault:
            publication, table = quote_name(self.name), _full(name)
            raise SourceError(
                "source.publication_options",
                f'publication "{self.name}" sends only a part of table "{name}": {fault}',
                detail=_of_owner(owner),
                # In one transaction, so that no change is missed.
                hint=f"BEGIN; ALTER PUBLICATION {publication} DROP TABLE {table};"
                f" {add_statement(self.name, name)} COMMIT;",
                relation=name,
            )
        if member.kind == "p":
            fault = withheld(options, {}, is_partitioned=True)
            self._require(owner, fault, "publish_via_partition_root = true")

    def _published(self, relations: Sequence[Relation]) -> Collection[int]:
        names = self.names_now(relations)
        return {member.oid for member in self._members(names) if member.membership}

    def _missing(self) -> SourceError:
        return SourceError(
            "source.publication_missing",
            f'publication "{self.name}" does not exist',
            detail="an administrator has to create it: Tidemark does not",
            hint=create_statement(self.name),
        )

    def _removed(self, relation: Relation) -> SourceError:
        name = self.names_now([relation])[0]
        return SourceError(
            "source.not_published",
            f'table "{relation.name}" is no longer in publication "{self.name}"',
            detail="its changes since then are lost",
            hint=f"{add_statement(self.name, name)} then rebuild the views that read it",
            relation=relation.name,
        )


def _of_owner(owner: str) -> str:
    return f'it belongs to role "{owner}"; Tidemark never changes it'


def _full(name: RelationName) -> str:
    return f"{quote_name(name.schema)}.{quote_name(name.name)}"
