"""The manifest of an interrupted build, and which of its parts are still valid (decision 22).

It records which relations were read, by which columns, cut into which parts, and at which position.
Parts that were read completely are stored in the exchange. Invariant: a part counts as read only
while its relation is unchanged and is cut in the same way. The database's snapshots end with their
session, so rows whose keys have changed since are read again from the newest snapshot. What is no
longer valid is reported and read again.
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
# With more changed keys than this, the relation is read again as a whole.
MAX_KEYS = 200_000


@dataclass
class CachedRelation:
    """One relation in the manifest.

    since: the first of the build's snapshots whose parts are valid. names: of the parts that it is
    cut into.
    """

    fingerprint: str
    columns: tuple[int, ...]
    count: int
    since: int
    names: list[str] = field(default_factory=list)


class BackfillManifest:
    """The parts of one build.

    notes: why something is read again, for users. token: stored in the state beside the number of
    the spool's batches. A state from before the build began, or was restarted, has another token:
    then the stored parts do not match it.
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
        """Verify the manifest's MAC: others may be able to write where parts are stored, but lack
        the key.
        """
        if self._outside is not None:
            self._exchange = AuthenticatedExchange(self._outside, self._key)

    def forget(self, why: str) -> None:
        """Discard everything that was read, also for a later attempt from this manifest."""
        self.token = uuid.uuid4().hex
        self._relations.clear()
        self._starts.clear()
        self._note(why)
        self.save()

    def columns(
        self, relations: Iterable[Relation], desired: Mapping[RelationName, tuple[int, ...]]
    ) -> dict[RelationName, tuple[int, ...]]:
        """Return the columns to read: those that were read before, if they are enough."""
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
        """Discard what was read of a relation."""
        if self._relations.pop(_title(name), None) is not None:
            self._note(f"{name}: {why}")

    def begin(self, position: int) -> None:
        """Start a new snapshot at this position of the database; later reads belong to it."""
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
        """Return the parts of a relation, cut as before, and record them in the manifest.

        parts_of: cuts the relation by columns, an approximate number of parts, and the names of
        earlier parts.
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
        """Return the position of an external source's snapshot.

        It is the position where the build first had it, since the spool holds everything after it.
        """
        if source not in self._starts:
            texts = {key: base64.b64encode(value).decode() for key, value in notes.items()}
            self._starts[source] = {"places": dict(positions), "notes": texts}
        found = self._starts[source]
        return found["places"], {k: base64.b64decode(v) for k, v in found["notes"].items()}

    def finished(self, relation: Relation) -> dict[str, str]:
        """Return the files of the completely read parts, by the part's name."""
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
        """Return the parts of a database relation.

        Finished parts are read from their files; then rows whose keys have changed since are read
        by part_of_keys. spool: all changes between the build's first snapshot and this one.
        """
        changed = None
        if finished:
            positions = key_positions(relation, self._of(relation).columns)
            keys = None if positions is None else spool.changed_keys(relation, MAX_KEYS)
            if positions is None or keys is None:
                why = "no key of its rows" if positions is None else "too much has changed"
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
        """Return parts that read from the exchange if they are stored there, and store what they
        read.
        """
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
    """Return True if an earlier process was building a view in this folder of builds."""
    return any(folder.glob(f"v{identity}*/{MANIFEST}"))


def forget_others(folder: Path, scopes: Collection[str]) -> None:
    """Remove the files of builds that are no longer continued."""
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
            log.warning("build.not_removed", folder=path.name, code=error.code)
        shutil.rmtree(path, ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    """Return the stored manifest; {} if there is none."""
    try:
        return as_written(path.read_bytes()) or {}
    except OSError:
        return {}


def fingerprint(relation: Relation, columns: Sequence[int]) -> str:
    """Return what must be unchanged for stored rows to be valid."""
    fields = [(relation.fields[c].name, str(relation.fields[c].type)) for c in columns]
    numbers = [relation.numbers[c] for c in columns] if relation.numbers else []
    key = [relation.fields[c].name for c in relation.key]
    facts = (str(relation.name), relation.oid, fields, numbers, key, relation.is_full)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def key_positions(relation: Relation, columns: Sequence[int]) -> list[int] | None:
    """Return the key's positions among the columns that are read; None if rows have no usable
    key.
    """
    if not relation.key or not set(relation.key) <= set(columns):
        return None
    return [list(columns).index(c) for c in relation.key]


def _title(name: RelationName) -> str:
    return f"{name.source}.{name}"
