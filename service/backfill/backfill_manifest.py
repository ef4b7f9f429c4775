"""What is left of a build that was interrupted, and what of it still holds (decision 22).

A manifest in the build's folder says which relations were read, by which columns, cut into which
parts, as of which place; the parts that were read to their end lie in the exchange. Invariant: a
part counts as read only while its relation is the same, and is cut and lies as it was; of the
database, whose snapshots end with their session, rows under keys that have changed since are read
again in the newest one. What does not hold is told and read anew.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectors.authenticated_shuffle import AuthenticatedExchange, new_key
from connectors.feed_source import FeedPositions
from connectors.partition_cache import FOLDER, CachedPartition, KeySet, file_name_of
from connectors.shuffle_storage import Exchange, FolderExchange, ObjectExchange, open_exchange
from connectors.source import SnapshotPart
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import Relation, RelationName
from service.backfill.spool import Spool
from service.runtime.checked_json import as_written, checked
from service.runtime.log import log
from storage.failpoints import failpoint

MANIFEST = "manifest.json"
FORMAT = 4
# More changed keys than this are not looked up one by one.
MOST_KEYS = 200_000


@dataclass
class CachedRelation:
    """One relation in the manifest. since: the first of the build's snapshots whose parts hold.

    names: of the parts that it is cut into.
    """

    fingerprint: str
    columns: tuple[int, ...]
    count: int
    since: int
    names: list[str] = field(default_factory=list)


class BackfillManifest:
    """The parts of one build. notes: why something that was read is read again, for people.

    token: stands in the state beside the count of the spool's batches. A state from before the
    build began, or began anew, has another one: what is kept does not fit that.
    """

    def __init__(self, folder: Path, exchange: Exchange, identity: str) -> None:
        self.notes: list[str] = []
        self.token = uuid.uuid4().hex
        self._positions: list[int] = []
        self._path = folder / MANIFEST
        self._outside = None if exchange == FolderExchange(folder) else exchange
        self._key = new_key()
        self._exchange = exchange
        self._authenticate()
        self._identity = identity
        self._relations: dict[str, CachedRelation] = {}
        self._starts: dict[str, dict[str, Any]] = {}

    def recall(self) -> bool:
        """Read the manifest of an earlier process; False when there is none of this build."""
        found = _read(self._path)
        if (found.get("format"), found.get("identity")) != (FORMAT, self._identity):
            return False
        self.token = found["token"]
        self._key = bytes.fromhex(found["key"])
        self._authenticate()
        self._positions, self._starts = found["positions"], found["starts"]
        for name, facts in found["relations"].items():
            facts["columns"] = tuple(facts["columns"])
            self._relations[name] = CachedRelation(**facts)
        return True

    def _authenticate(self) -> None:
        """Whoever can write where parts are kept, if not in the build's folder, lacks the key."""
        if self._outside is not None:
            self._exchange = AuthenticatedExchange(self._outside, self._key)

    def forget(self, why: str) -> None:
        """Nothing of what was read holds any more, nor for another try that begins with this."""
        self.token = uuid.uuid4().hex
        self._relations.clear()
        self._starts.clear()
        self._note(why)
        self.save()

    def columns(
        self, relations: Iterable[Relation], desired: Mapping[RelationName, tuple[int, ...]]
    ) -> dict[RelationName, tuple[int, ...]]:
        """The columns to read: those that were read before, where they are enough."""
        found = dict(desired)
        for relation in relations:
            kept = self._relations.get(_title(relation.name))
            if kept is None:
                continue
            has_all = max(kept.columns, default=-1) < len(relation.fields)
            is_enough = set(desired[relation.name]) <= set(kept.columns)
            if has_all and is_enough and kept.fingerprint == fingerprint(relation, kept.columns):
                found[relation.name] = kept.columns
            else:
                self.forget_relation(relation.name, "its columns in use are others")
        return found

    def forget_relation(self, name: RelationName, why: str) -> None:
        """All of a relation is to be read again."""
        if self._relations.pop(_title(name), None) is not None:
            self._note(f"{name}: {why}")

    def begin(self, position: int) -> None:
        """A new snapshot, at this position of the database: what is read from now on is of it."""
        self._positions.append(position)

    @property
    def generation(self) -> int:
        """Which of the build's snapshots is read, counted from 1."""
        return len(self._positions)

    def cut(
        self,
        parts_of: Callable[[tuple[int, ...], int, Sequence[str]], Sequence[SnapshotPart]],
        relation: Relation,
        columns: tuple[int, ...],
        count: int,
    ) -> Sequence[SnapshotPart]:
        """The parts of a relation, cut as they were, and noted in the manifest.

        parts_of: cuts it by columns, about how many parts, and the names of earlier ones.
        """
        title = _title(relation.name)
        kept = self._relations.get(title)
        if kept is None:
            made = fingerprint(relation, columns)
            kept = self._relations[title] = CachedRelation(made, columns, count, self.generation)
        parts = parts_of(columns, kept.count, kept.names)
        kept.names = [part.name for part in parts]
        return parts

    def start_of(
        self, source: str, positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> tuple[FeedPositions, Mapping[str, bytes]]:
        """Where the snapshot of a source with places lies: where the build first had it, for the
        spool holds everything from there on."""
        if source not in self._starts:
            texts = {key: base64.b64encode(value).decode() for key, value in notes.items()}
            self._starts[source] = {"places": dict(positions), "notes": texts}
        found = self._starts[source]
        return found["places"], {k: base64.b64decode(v) for k, v in found["notes"].items()}

    def finished(self, relation: Relation) -> dict[str, str]:
        """The places of the files of parts that were read to their end, by the part's name."""
        kept, title = self._of(relation), _title(relation.name)
        found: dict[str, str] = {}
        for generation in range(self.generation - 1, kept.since - 1, -1):
            files = self._exchange.sizes(f"{FOLDER}/{generation}")
            for name in kept.names:
                file = file_name_of(generation, title, name)
                if file.rsplit("/", 1)[1] in files:
                    found.setdefault(name, file)
        return found

    def whole(
        self,
        relation: Relation,
        parts: Sequence[SnapshotPart],
        finished: Mapping[str, str],
        spool: Spool,
        part_of_keys: Callable[[Delta], SnapshotPart],
    ) -> list[SnapshotPart]:
        """The parts of a database's relation: finished ones from their files, and where there
        are any, rows under keys that have changed since by part_of_keys alone.

        spool: everything that has changed between the build's first snapshot and this one.
        """
        changed = None
        if finished:
            positions = key_positions(relation, self._of(relation).columns)
            keys = None if positions is None else spool.changed_keys(relation, MOST_KEYS)
            if positions is None or keys is None:
                why = "no key to tell its rows by" if positions is None else "too much has changed"
                self._of(relation).since = self.generation
                self._note(f"{relation.name}: {why}")
                finished = {}
            elif len(keys):
                changed = KeySet(keys, positions)
        wrapped: list[SnapshotPart] = list(self.wrapped(relation, parts, finished, changed))
        return wrapped if changed is None else [*wrapped, part_of_keys(changed.keys)]

    def wrapped(
        self,
        relation: Relation,
        parts: Sequence[SnapshotPart],
        finished: Mapping[str, str],
        changed: KeySet | None = None,
    ) -> list[CachedPartition]:
        """The parts, read from where they are kept or kept as they are read."""
        title = _title(relation.name)
        return [
            CachedPartition(
                part,
                self._exchange,
                finished.get(part.name) or file_name_of(self.generation, title, part.name),
                replaced=changed,
                is_cached=part.name in finished,
            )
            for part in parts
        ]

    def save(self) -> None:
        """Write the manifest, whole or not at all."""
        facts = {
            "format": FORMAT,
            "identity": self._identity,
            "token": self.token,
            "key": self._key.hex(),
            "positions": self._positions,
            "starts": self._starts,
            "exchange": self._outside.url if isinstance(self._outside, ObjectExchange) else "",
            "relations": {name: vars(kept) for name, kept in self._relations.items()},
        }
        draft = self._path.with_suffix(".draft")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(checked(facts)))
        failpoint("build.manifest.before")
        os.replace(draft, self._path)

    def _of(self, relation: Relation) -> CachedRelation:
        return self._relations[_title(relation.name)]

    def _note(self, why: str) -> None:
        self.notes.append(why)
        log.info("build.read_again", why=why)


def is_left(folder: Path, identity: str) -> bool:
    """Whether an earlier process was building a view in this folder of builds."""
    return any(folder.glob(f"v{identity}*/{MANIFEST}"))


def forget_others(folder: Path, scopes: Collection[str]) -> None:
    """Remove what is left of builds that nobody goes on with."""
    for path in folder.glob("*"):
        if path.name in scopes:
            continue
        try:
            found = _read(path / MANIFEST)
            if not found:
                log.info("build.without_manifest", folder=path.name)
            if found.get("exchange"):
                open_exchange(found["exchange"]).remove()
        except TidemarkError as error:
            log.warning("build.left_behind", folder=path.name, code=error.code)
        shutil.rmtree(path, ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    """A manifest as it was written; {} when there is none."""
    try:
        return as_written(path.read_bytes()) or {}
    except OSError:
        return {}


def fingerprint(relation: Relation, columns: Sequence[int]) -> str:
    """What must be the same for rows that were read to be rows still."""
    fields = [(relation.fields[c].name, str(relation.fields[c].type)) for c in columns]
    numbers = [relation.numbers[c] for c in columns] if relation.numbers else []
    key = [relation.fields[c].name for c in relation.key]
    facts = (str(relation.name), relation.oid, fields, numbers, key, relation.is_full)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def key_positions(relation: Relation, columns: Sequence[int]) -> list[int] | None:
    """Where the key stands in the columns that are read; None when rows cannot be told by it."""
    if not relation.key or not set(relation.key) <= set(columns):
        return None
    return [list(columns).index(c) for c in relation.key]


def _title(name: RelationName) -> str:
    return f"{name.source}.{name}"
