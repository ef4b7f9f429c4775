"""The stored rows of a base relation, which turn a source's changes into exact deltas.

Invariant: the sum of all emitted deltas is the relation's present rows. A change that contradicts
the stored rows (an update of a missing row) is refused, never guessed. A table without key, of
which the source no longer reports some columns, keeps its old rows and sums what changed since.

Rows that no reader can see any more may be freed (see `FreedRows`). Then a change of a missing row
is one of a freed row, as long as there are such, and the sum of all deltas may have freed rows too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from dataflow.changes import Changes, Letter
from dataflow.delta import KIND_BYTES, Column, Delta, equal_rows
from dataflow.errors import InvariantError, SourceError
from dataflow.operators.groups import columns_at, touch
from dataflow.schema import Relation
from dataflow.types import TypeKind
from storage.store import END, Arrangement, ArrangementSpec, Store, Sums, SumsSpec


def _is_one_of(*kinds: int) -> np.ndarray:
    """Return bool[256]: by kind of change, whether it is one of these."""
    found = np.zeros(256, np.bool_)
    found[list(kinds)] = True
    return found


_ADDS = _is_one_of(Changes.INSERT, Changes.NEW)
_OLD_SIDES = _is_one_of(Changes.OLD, Changes.OLD_KEY)
_KEYS_ONLY = _is_one_of(Changes.OLD_KEY, Changes.DELETE_KEY)
_IS_BY_PRESENCE = _is_one_of(Changes.UPSERT, Changes.REMOVE)

# A value of so many bytes has 4 more in PostgreSQL, and is not larger than a TOAST pointer.
SHORT_BYTES = 16
# Types whose values take no more bytes in PostgreSQL than their text, but for the 4.
_AS_TEXT = (TypeKind.TEXT, TypeKind.BYTEA, TypeKind.DECIMAL, TypeKind.JSON)
# Types of a fixed size whose values are stored as text here.
_NEVER_OUTSIDE = (TypeKind.UUID, TypeKind.INTERVAL)


def table_spec(relation: Relation, columns: Sequence[int], scope: str) -> ArrangementSpec:
    """Return the arrangement of a relation's rows: by primary key, or by the whole row without
    one."""
    kinds = "".join(relation.fields[c].type.physical for c in columns)
    key = tuple(range(len(columns)))
    if relation.key and set(relation.key) <= set(columns):
        key = tuple(list(columns).index(c) for c in relation.key)
    name = f"{scope}/table {relation.name.source}.{relation.name}/rows"
    return ArrangementSpec(name, kinds, key, is_searched=is_keyed(relation))


def prefix_of(rows: ArrangementSpec) -> str:
    """Return the prefix of the state of a relation, given that of its rows."""
    return rows.name.removesuffix("rows")


def is_keyed(relation: Relation) -> bool:
    """Return whether old rows are found by primary key rather than sent whole."""
    return bool(relation.key) and not relation.is_full


def arrives_whole(relation: Relation) -> bool:
    """Return whether old rows arrive whole, so that stored ones are read only at TRUNCATE."""
    return not (is_keyed(relation) or relation.is_append)


class TableState:
    """The needed columns of one relation.

    dead: names of columns that are no longer needed or reported; NULL in new rows. freed: what is
    known of freed rows, by default what the store has. is_stored: False if the rows are not stored
    (see `arrives_whole`): readers then retract all rows by themselves when the table is
    truncated, and refuse the removal of a missing one. Raise SourceError source.no_old_value when a
    value was not sent and no stored row has it. State: the rows by primary key; with REPLICA
    IDENTITY FULL by the whole row, read only when the table is truncated, or none. No state for an
    append-only relation. Cost: O(changes), one lookup for each row that is updated or deleted.
    NULL: carried through; never in a primary key.
    """

    def __init__(
        self,
        relation: Relation,
        columns: Sequence[int],
        store: Store,
        scope: str,
        dead: Collection[str] = (),
        *,
        freed: FreedRows | None = None,
        is_stored: bool = True,
    ) -> None:
        self._relation = relation
        # Dead letters of rejected rows; the reader clears it.
        self.rejected: list[Letter] = []
        spec = table_spec(relation, columns, scope)
        self._key = spec.key
        self._kinds = spec.kinds
        self._is_keyed = is_keyed(relation)
        self._names = tuple(relation.fields[c].name for c in columns)
        self._types = tuple(relation.fields[c].type for c in columns)
        self._dead = frozenset(dead)
        self._sent, self._positions = relation, self._find_positions(relation)
        self._has_unique_rows = bool(relation.key) and set(relation.key) <= set(columns)
        self.freed = freed or FreedRows(store, prefix_of(spec))
        self._multiset: Arrangement | NarrowedRows | NoRows = NoRows()
        self._is_stored = is_stored and not relation.is_append
        if not self._is_stored:
            return
        self._multiset = self._rows = store.arrange(spec)
        if dead and not self._is_keyed:
            since = SumsSpec(prefix_of(spec) + "since", spec.kinds, 1)
            positions = [i for i, name in enumerate(self._names) if name in self._dead]
            self._multiset = NarrowedRows(self._rows, store.arrange_sums(since), positions)

    def load(self, delta: Delta) -> None:
        """Load snapshot rows of exactly the needed columns into the state."""
        if len(delta):
            self._multiset.apply(delta)

    def row_count(self) -> int:
        """Return an estimate of the number of distinct stored rows."""
        return self._multiset.row_count()

    def rows(self) -> Iterator[Delta]:
        """Yield all rows, dead columns NULL, in chunks that add up to them: additions first."""
        rows = self._multiset
        yield from rows.added() if isinstance(rows, NarrowedRows) else rows.scan()

    def emptied(self) -> Iterator[Delta]:
        """Yield the retraction of all rows, in chunks of bounded size; after the last one the state
        is empty.

        Each is consolidated; readers of the table may be stepped between two of them.
        """
        for stored in self._multiset.scan():
            yield stored.negate()
        self._multiset.clear()
        self.freed.clear()

    @property
    def can_free(self) -> bool:
        """Return whether `free` frees rows, where readers permit."""
        return self._is_stored and self._multiset is self._rows

    def free(self, is_unseen: Callable[[Delta], np.ndarray], max_rows: int) -> bool:
        """Free the rows that no reader can see any more, of about max_rows that are examined next.

        is_unseen returns bool[n] for rows of the stored columns. Return whether all have been
        examined. The caller has named the readers (`FreedRows.set_ends`).
        """
        parts, examined, reached = [], 0, END
        for end, rows in self._rows.scan_from(self.freed.next_position):
            gone = rows.filter(self._is_whole(rows))
            parts.append(gone.filter(is_unseen(gone)).negate())
            examined, reached = examined + len(rows), end
            if examined >= max_rows:
                break
        for part in parts:
            self._rows.apply(part)
            self.freed.add(-int(part.weights.sum()))
        self.freed.next_position = reached if reached < END else 0
        return self.freed.next_position == 0

    def _is_whole(self, rows: Delta) -> np.ndarray:
        """Return bool[n]: which rows' later versions come with all values.

        An update by key omits a value that PostgreSQL stores outside of the row and has not
        changed. It never stores short values there (toast_tuple_find_biggest_attribute).
        """
        whole = np.ones(len(rows), np.bool_)
        if not self._is_keyed:
            return whole
        for at, column in enumerate(rows.columns):
            kind = self._types[at].kind
            if at in self._key or column.kind != KIND_BYTES or kind in _NEVER_OUTSIDE:
                continue
            short = np.diff(column.values) <= SHORT_BYTES if kind in _AS_TEXT else False
            whole &= ~column.mask() | short
        return whole

    def resolve(self, changes: Changes) -> Delta:
        """Return the exact, consolidated delta of the needed columns; the state includes it on
        return.

        changes may be of another version of the relation that has the needed columns too.
        """
        kinds, positions = changes.kinds, self._positions_in(changes.relation)
        columns = [
            Column.nulls(kind, len(kinds)) if c < 0 else changes.columns[c]
            for c, kind in zip(positions, self._kinds, strict=True)
        ]
        rows = Delta(columns, np.ones(len(kinds), np.int64))
        if self._relation.is_append:
            if (kinds != Changes.INSERT).any():
                raise self._refusal("rows of an append-only relation were changed")
            return rows if self._has_unique_rows else rows.consolidate()
        unchanged = {
            i: changes.unchanged[c] for i, c in enumerate(positions) if c in changes.unchanged
        }
        letters = changes.letters
        truncates = np.flatnonzero(kinds == Changes.TRUNCATE)
        parts: list[Delta] = []
        if len(truncates):
            # The last truncation also deletes everything that came before it.
            start = int(truncates[-1]) + 1
            parts = list(self.emptied())
            kinds, rows = kinds[start:], rows.slice(start, len(rows))
            letters = None if letters is None else letters[start:]
            unchanged = {c: mask[start:] for c, mask in unchanged.items()}
        if len(kinds):
            if _IS_BY_PRESENCE[kinds].any():
                delta = self._by_presence(kinds, rows, unchanged, letters)
            elif self._is_keyed:
                delta = self._by_key(kinds, rows, unchanged)
            else:
                delta = self._by_row(kinds, rows, unchanged).consolidate()
            self._multiset.apply(self._stored(delta))
            if not parts:
                return delta
            parts.append(delta)
        return Delta.concat(parts).consolidate() if parts else Delta.empty(self._kinds)

    def _positions_in(self, relation: Relation) -> tuple[int, ...]:
        """Return the positions of the needed columns in changes of this version of the relation."""
        if relation is not self._sent:
            self._sent, self._positions = relation, self._find_positions(relation)
        return self._positions

    def _find_positions(self, relation: Relation) -> tuple[int, ...]:
        """-1 for a dead column."""
        names = [f.name for f in relation.fields]
        return tuple(-1 if n in self._dead else names.index(n) for n in self._names)

    def _by_row(self, kinds: np.ndarray, rows: Delta, unchanged: dict[int, np.ndarray]) -> Delta:
        """Resolve changes whose old rows come whole, each directly before its new one."""
        adds = _ADDS[kinds]
        if _KEYS_ONLY[kinds].any():
            raise self._refusal("a change of a relation without key has no old row")
        is_new = kinds == Changes.NEW
        if is_new.any() and (is_new[0] or (kinds[:-1][is_new[1:]] != Changes.OLD).any()):
            raise self._refusal("an update of a relation without key has no old row")
        before = np.arange(len(rows)) - 1
        columns = [
            _filled(column, unchanged.get(i), column, before)
            for i, column in enumerate(rows.columns)
        ]
        return Delta(columns, np.where(adds, 1, -1))

    def _stored(self, delta: Delta) -> Delta:
        """Return a change without the removal of freed rows, which come whole."""
        is_searched = not self._is_keyed and self.freed.count and self._multiset is self._rows
        if not is_searched or not (delta.weights < 0).any():
            return delta
        removed = delta.filter(delta.weights < 0)
        index, found = self._rows.lookup(columns_at(removed, self._key))
        same = np.flatnonzero(
            equal_rows(removed.columns, index, found.columns, np.arange(len(index)))
        )
        stored = np.zeros(len(removed), np.int64)
        stored[index[same]] = found.weights[same]
        missing = np.maximum(-removed.weights - stored, 0)
        if int(missing.sum()) > self.freed.count:
            # The arrangement refuses it.
            return delta
        self.freed.add(-int(missing.sum()))
        left = removed.weighted(removed.weights + missing)
        return Delta.concat([delta.filter(delta.weights > 0), left.filter(left.weights < 0)])

    def _by_key(self, kinds: np.ndarray, rows: Delta, unchanged: dict[int, np.ndarray]) -> Delta:
        """Resolve by key; only the row before the batch and the last one in it matter.
        Consolidated.

        Changes of a key must alternate: a row is added where there is none and removed where there
        is one. Values that were not sent are taken from the row before.
        """
        n = len(kinds)
        touched = touch(columns_at(rows, self._key), n)
        group = touched.group
        adds = _ADDS[kinds]
        follows = np.zeros(n, np.bool_)
        follows[1:] = (kinds[1:] == Changes.NEW) & _OLD_SIDES[kinds[:-1]]
        removes = ~adds | ((kinds == Changes.NEW) & ~follows)
        previous, last = neighbours(group, touched.count)
        is_first = previous < 0
        present = ~is_first & adds[previous]
        broken = ~is_first & (present != removes)
        if broken.any():
            raise self._refusal("two changes of one row contradict each other", rows, broken)
        removed = np.flatnonzero(is_first & removes)
        index, stored = self._rows.lookup([rows.columns[i].take(removed) for i in self._key])
        found = np.bincount(index, minlength=len(removed))
        is_freed = np.zeros(n, np.bool_)
        if (found != 1).any():
            missing = np.zeros(n, np.bool_)
            missing[removed[found != 1]] = True
            count = int(missing.sum())
            if (found > 1).any() or count > self.freed.count:
                raise self._refusal("the old row of a change is not in the state", rows, missing)
            self.freed.add(-count)
            is_freed = missing
        columns = rows.columns
        if unchanged:
            # The position of a row's predecessor: stored rows from n on, else in the batch.
            past = previous.copy()
            past[removed[index]] = n + np.arange(len(index))
            past[follows] = past[np.flatnonzero(follows) - 1]
            is_freed[follows] = is_freed[np.flatnonzero(follows) - 1]
            for mask in unchanged.values():
                if (is_freed & adds & mask).any():
                    raise self._refusal("a freed row is not sent whole", rows, is_freed & mask)
            columns = [
                _filled(c, unchanged.get(i), Column.concat([c, stored.columns[i]]), past)
                for i, c in enumerate(columns)
            ]
        final = np.flatnonzero(last & adds)
        added = Delta(columns, rows.weights).take(final)
        return _difference(stored, group[removed[index]], added, group[final], touched.count)

    def _by_presence(
        self,
        kinds: np.ndarray,
        rows: Delta,
        unchanged: dict[int, np.ndarray],
        letters: tuple[Letter | None, ...] | None,
    ) -> Delta:
        """Resolve upserts: the last change of each key wins, whatever was there before."""
        if not (_IS_BY_PRESENCE[kinds].all() and self._is_keyed):
            raise self._refusal("changes mix upserts by key with other kinds, or have no key")
        n = len(kinds)
        touched = touch(columns_at(rows, self._key), n)
        group = touched.group
        adds = kinds == Changes.UPSERT
        previous, last = neighbours(group, touched.count)
        index, stored = self._rows.lookup(touched.keys)
        columns = rows.columns
        if unchanged:
            home = np.full(touched.count, -1, np.int64)
            home[index] = n + np.arange(len(index))
            past = np.where(previous >= 0, previous, home[group])
            was_there = (past >= n) | ((previous >= 0) & adds[previous])
            missing = np.zeros(n, np.bool_)
            for mask in unchanged.values():
                missing |= mask & adds & ~was_there
            if missing.any() and letters is not None:
                reported = (letters[i] for i in np.flatnonzero(missing).tolist())
                self.rejected += [letter for letter in reported if letter is not None]
                kept_rows = np.flatnonzero(~missing)
                unchanged = {c: mask[kept_rows] for c, mask in unchanged.items()}
                letters = tuple(letters[i] for i in kept_rows.tolist())
                # A later change of the key may depend on one of these.
                return self._by_presence(kinds[kept_rows], rows.take(kept_rows), unchanged, letters)
            if missing.any():
                raise SourceError(
                    "source.no_old_value",
                    f'a change of "{self._relation.name}" omits a value of an unknown row',
                    detail="the source did not send the value because it had not changed, and no"
                    " earlier row of its key is stored",
                    hint="start reading the relation from a snapshot, which has whole rows",
                    relation=self._relation.name,
                )
            # Examine only rows that stay: a removal needs no missing values.
            columns = [
                _filled(
                    c, _among(unchanged.get(i), adds), Column.concat([c, stored.columns[i]]), past
                )
                for i, c in enumerate(columns)
            ]
        final = np.flatnonzero(last & adds)
        added = Delta(columns, rows.weights).take(final)
        return _difference(stored, index, added, group[final], touched.count)

    def _refusal(
        self, why: str, rows: Delta | None = None, where: np.ndarray | None = None
    ) -> InvariantError:
        detail = why
        if rows is not None and where is not None:
            first = rows.take(np.flatnonzero(where)[:1])
            detail += f": key {[first.columns[i].to_list()[0] for i in self._key]}"
        return InvariantError(
            "state.table_mismatch",
            f'changes of "{self._relation.name}" do not fit the rows kept',
            detail=detail,
            hint="rebuild the views that read it",
            relation=self._relation.name,
        )


def _difference(
    old: Delta, old_key: np.ndarray, new: Delta, new_key: np.ndarray, keys: int
) -> Delta:
    """Return new rows minus old ones; each has at most one row of each numbered key.

    Only rows of one key can be equal, so they cancel out without comparison to others.
    """
    position = np.full(keys, -1, np.int64)
    position[new_key] = np.arange(len(new))
    mate = position[old_key]
    changed = np.flatnonzero(mate >= 0)
    same = equal_rows(old.columns, changed, new.columns, mate[changed])
    if same.any():
        is_old, is_new = np.ones(len(old), np.bool_), np.ones(len(new), np.bool_)
        is_old[changed[same]] = False
        is_new[mate[changed[same]]] = False
        old, new = old.filter(is_old), new.filter(is_new)
    return Delta.concat([old.negate(), new])


def _among(mask: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if mask is None else mask & rows


def neighbours(group: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (int64[n] the previous row of the same group or -1, bool[n] whether it is the group's
    last)."""
    n = len(group)
    previous = np.full(n, -1, np.int64)
    last = np.ones(n, np.bool_)
    if count < n:
        order = np.argsort(group, kind="stable")
        same = group[order[1:]] == group[order[:-1]]
        previous[order[1:][same]] = order[:-1][same]
        last[order[:-1][same]] = False
    return previous, last


def _filled(column: Column, unchanged: np.ndarray | None, pool: Column, past: np.ndarray) -> Column:
    """Return the column, with unchanged values taken from pool at the row's predecessor.

    pool starts with the column itself, so that a predecessor without the value leads to its own.
    """
    if unchanged is None or not unchanged.any():
        return column
    source = np.arange(len(column))
    source[unchanged] = past[unchanged]
    while True:
        within = source < len(column)
        follow = np.zeros(len(column), np.bool_)
        follow[within] = unchanged[source[within]]
        # OLD_KEY has only the key: its row also comes from the predecessor.
        if not follow.any():
            return pool.take(source)
        source[follow] = past[source[follow]]


class FreedRows:
    """What is known of the rows of a table that were freed: how many, and unseen by whom.

    ends: by name, the operators that no freed row passes, with their counts of expired rows when
    all rows were examined last. next_position: where the present examination resumes; not stored.
    Invariant: every reader of the table has its rows end at one of these operators.

    State: nothing before the first row is freed; then one row for each end, and the count.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._names = f"{prefix}freed ends", f"{prefix}freed count"
        self.next_position = self.count = 0
        self.ends: dict[str, int] = {}
        if self._names[0] in store.names():
            names, counts = self._stored_ends().lookup(())[1].columns
            self.ends = dict(zip(map(str, names.texts()), counts.to_list(), strict=True))
            self.count = int(self._stored_count().lookup(())[0, 0])

    @property
    def is_complete(self) -> bool:
        """Whether the table has all its rows, now and after the next examination."""
        return not self.ends and not self.count

    def set_ends(self, ends: Mapping[str, int]) -> None:
        """Name the operators by which rows are freed from now on."""
        if self.ends == ends:
            return
        stored = self._stored_ends()
        rows = list(ends.items())
        columns = [Column.of(KIND_BYTES, [e.encode() for e, _ in rows])]
        columns.append(Column(np.array([n for _, n in rows], np.int64)))
        stored.clear()
        stored.apply(Delta(columns, np.ones(len(rows), np.int64)))
        self.ends = dict(ends)

    def add(self, count: int) -> None:
        """Count rows that were freed, or (below 0) that are no longer in the table."""
        if count:
            self._stored_count().add((), np.array([[count]], np.int64))
            self.count += count

    def clear(self) -> None:
        """Forget everything: the table has become empty."""
        if not self.is_complete:
            self._stored_ends().clear()
            self._stored_count().clear()
        self.next_position = self.count = 0
        self.ends = {}

    def _stored_ends(self) -> Arrangement:
        return self._store.arrange(ArrangementSpec(self._names[0], "si", ()))

    def _stored_count(self) -> Sums:
        return self._store.arrange_sums(SumsSpec(self._names[1], "", 1))


class UncountedRows(FreedRows):
    """Freed rows of one bucket of a table, of which only the whole table has a count.

    Any row that is missing counts as one of them. No state.
    """

    def __init__(self) -> None:
        self.next_position, self.count = 0, 2**62
        self.ends = {}

    def add(self, count: int) -> None:
        """Do nothing: there is no count."""

    def clear(self) -> None:
        """Do nothing: the other buckets would have to know."""


class NoRows:
    """The rows of a table that are not stored: nothing is known of them. No state."""

    def apply(self, delta: Delta) -> None:
        """Do nothing."""

    def scan(self) -> Iterator[Delta]:
        """Yield nothing."""
        return iter(())

    def clear(self) -> None:
        """Do nothing."""

    def row_count(self) -> int:
        """Return 0."""
        return 0


class NarrowedRows:
    """The rows of a table without key, once the source no longer reports some of its columns.

    A deleted row arrives without those columns, so it cannot be found among the stored rows that
    have them. The old rows therefore stay unchanged, and changes since are summed separately.
    Invariant: both together, without those columns, are the table's present rows. The interface is
    what a TableState needs of an arrangement's.

    State: the old rows, by the whole row; the net weight of each row reported since. Cost:
    O(changes). NULL: the value of the columns that are no longer reported.
    """

    def __init__(self, whole: Arrangement, since: Sums, dead: Sequence[int]) -> None:
        self._whole = whole
        self._since = since
        self._dead = frozenset(dead)

    def apply(self, delta: Delta) -> None:
        """Apply rows whose dead columns are NULL."""
        self._since.add(delta.columns, delta.weights.reshape(1, -1))

    def scan(self) -> Iterator[Delta]:
        """Yield all rows, dead columns NULL, in chunks that add up to them.

        The changes since come first, removals before additions, so that a reader that retracts row
        by row never retracts one more often than it exists.
        """
        yield from self._changes(-1)
        yield from self._changes(1)
        for chunk in self._whole.scan():
            yield self._without_dead(chunk).consolidate()

    def added(self) -> Iterator[Delta]:
        """Yield all rows like `scan`, so that a reader that adds them up is never below zero."""
        for chunk in self._whole.scan():
            yield self._without_dead(chunk).consolidate()
        yield from self._changes(1)
        yield from self._changes(-1)

    def _changes(self, sign: int) -> Iterator[Delta]:
        """Yield the changes since whose weights have this sign.

        They may have been reported with different columns: an addition with a column that is dead
        by now, and the removal of the row without it.
        """
        for keys, sums in self._since.scan():
            rows = Delta(keys, sums[0])
            rows = self._without_dead(rows.filter(np.sign(rows.weights) == sign))
            if len(rows):
                yield rows.consolidate()

    def clear(self) -> None:
        """Remove every row."""
        self._whole.clear()
        self._since.clear()

    def row_count(self) -> int:
        """Return an upper estimate of the number of rows."""
        return self._whole.row_count() + self._since.key_count()

    def _without_dead(self, rows: Delta) -> Delta:
        columns = [
            Column.nulls(column.kind, len(rows)) if at in self._dead else column
            for at, column in enumerate(rows.columns)
        ]
        return Delta(columns, rows.weights)
