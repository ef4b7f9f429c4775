"""What a view with lateness must show: the oracle of watermarks, late, final and frozen rows.

These depend on the order in which rows come, which the epochs of the sink tell: each has whole
transactions, or one value of the clock. A view is taken as it is found when it joins, or joins
again; from there on each epoch is computed. What a view had seen before it joined is not known
exactly, so the greatest value of a partition, and since when it is, are bounds.
Invariant checked: the watermark lies within its bounds; late is what comes behind it, and nothing
else; a window is final once, and frozen from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from connectors.postgres.catalog.catalog import ViewRow
from dataflow import notes
from dataflow.sql.lateness import Lateness, lateness_of
from tests.simulation import moments
from tests.simulation.faults import Violation
from tests.simulation.reads import Read, is_alike, with_reads
from tests.simulation.rows import Rows, moment_text
from tests.simulation.shop import Commit

Row = tuple[Any, ...]
# A row before and after a change.
Changed = tuple[Row | None, Row | None]
Range = tuple[int, int]
LONG_AGO = -(10**18)
# As dataflow/operators/lateness/watermark.py: what counts as watched of one step of the clock.
_LEAST_STEP_US = 2 * moments.SECOND_US
_JUST_NOW = 2**62
_NAMES = [f.name for f in moments.RELATION.fields]
_AT, _MINUTE, _KIND = (_NAMES.index(name) for name in ("at", "minute", "kind"))
_TABLES = {moments.NAME, f"t{moments.RELATION.oid}"}


@dataclass(frozen=True)
class Partition:
    """greatest: the least and the most that its greatest value may be; moved: the tick after that
    came, as time that was watched; is_certain: a row of it was seen."""

    greatest: Range
    moved: Range
    is_certain: bool

    def dated(self, watched: int) -> Partition:
        """As of a tick: what came before it came then."""
        first, last = (watched if at == _JUST_NOW else at for at in self.moved)
        return replace(self, moved=(first, last))


@dataclass(frozen=True)
class LateState:
    """A view after an epoch. clock: its value then; mark: the published watermark, if any;
    left_out: by key the late rows that the view is without; applied: those that it has, by key;
    frozen: how many rows changed in frozen windows; final: what its readers were sent; removed:
    keys of rows that it had, and that went since the watermark moved; may_be_removed: of rows that
    it may have had."""

    prefix: int
    clock: int | None
    options: Mapping[str, Any]
    mark: int | None
    partitions: Mapping[Any, Partition]
    left_out: Mapping[int, Row]
    applied: Counter[int]
    frozen: int
    rows: Rows
    watched: int = 0
    final: Rows = field(default_factory=Rows)
    removed: frozenset[int] = frozenset()
    may_be_removed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Shown:
    """What an epoch shows of a view. errors: its error rows, as (code, text of the row); final:
    what its readers are sent in this epoch."""

    row: ViewRow
    rows: Rows
    prefix: int
    clock: int | None
    errors: Counter[tuple[str, str]]
    final: Rows


def is_watched(row: ViewRow) -> bool:
    """Return whether a view has lateness."""
    return bool(row.options.get("lateness"))


def is_final(row: ViewRow) -> bool:
    """Return whether readers of a view get final rows."""
    return row.options.get("emit") == "final"


def without(query: str, keys: Iterable[int]) -> str:
    """Return the query over the table without these rows."""
    listed = ", ".join(map(str, sorted(keys)))

    def filtered(read: Read) -> str:
        if read.name != moments.NAME or not listed:
            return read.text
        return f"(SELECT * FROM {read.schema}.{read.name} WHERE id NOT IN ({listed})) {read.alias}"

    return with_reads(query, filtered)


class LateOracle:
    """Holds views to their options. log: all commits, which only grow."""

    def __init__(self, log: Sequence[Commit]) -> None:
        self._log = log
        # By commit, its changes of moments; what there is after these.
        self._changes: list[list[Changed]] = []
        self._present: dict[int, Row] = {}

    def changes(self, begin: int, end: int) -> list[Changed]:
        """Return the changes of moments that commits have made, a TRUNCATE row by row."""
        for commit in self._log[len(self._changes) : end]:
            found: list[Changed] = []
            for name, kind, old, new in commit.changes:
                if name not in _TABLES:
                    continue
                gone = list(self._present.values()) if kind == "T" else [old] if old else []
                for row in gone:
                    del self._present[row[0]]
                if new is not None:
                    self._present[new[0]] = new
                if kind == "T":
                    found += [(row, None) for row in gone]
                else:
                    found.append((old, new))
            self._changes.append(found)
        return [change for found in self._changes[begin:end] for change in found]

    def next(self, state: LateState | None, shown: Shown) -> LateState:
        """Return a view's state after an epoch. Violation.

        state: that before; None where it joins, or is another version, in this epoch.
        """
        options = lateness_of(shown.row.options)
        assert options is not None
        if state is None:
            return self._taken(shown, options)
        step = _Step(state, shown, options)
        step.take_changes(self.changes(state.prefix, shown.prefix))
        step.take_clock()
        step.check()
        return step.state

    def require_late(self, row: ViewRow) -> None:
        """Violation where a view cannot have failed for a late row."""
        asked = (row.options, (row.change or {}).get("options", {}))
        found = [o for o in map(lateness_of, asked) if o is not None and o.policy == "error"]
        if not found:
            raise Violation(f"{row.title} fails for a late row, and should take it")
        new = [n for _, n in self.changes(0, len(self._log)) if n is not None]
        times = [n[_AT] for n in new if n[_AT] is not None]
        most = max(times, default=LONG_AGO) - min(o.columns[0][1] for o in found)
        if not any(at < most for at in times):
            raise Violation(f"{row.title} fails for a late row, and none is behind {most}")

    def expected(self, state: LateState, before: LateState | None, answer: Rows) -> Rows:
        """Return the rows that a view must have. answer: of its query over the rows that it has.

        before: the view's state at the epoch before, None where it was taken as it is. Of frozen
        windows it keeps the rows that it had.
        """
        options = lateness_of(state.options)
        assert options is not None
        before = before or state
        if (limit := _frozen_until(options, before.mark)) is None:
            return answer
        # The window is the first column of a view that has any.
        frozen = Rows({r: n for r, n in before.rows.items() if _is_within(r[0], limit)})
        return frozen + Rows({r: n for r, n in answer.items() if not _is_within(r[0], limit)})

    def _taken(self, shown: Shown, options: Lateness) -> LateState:
        """A view as it is found."""
        present: dict[int, Row] = {}
        ever_there: set[int] = set()
        ever: dict[Any, Range] = {}
        for old, new in self.changes(0, shown.prefix):
            if old is not None:
                del present[old[0]]
            if new is not None:
                present[new[0]] = new
                ever_there.add(new[0])
            if new is not None and new[_AT] is not None:
                part = _part_of(new, options)
                least, most = ever.get(part, (new[_AT], new[_AT]))
                ever[part] = min(least, new[_AT]), max(most, new[_AT])
        sure: dict[Any, int] = {}
        for row in present.values():
            if row[_AT] is not None:
                part = _part_of(row, options)
                sure[part] = max(sure.get(part, row[_AT]), row[_AT])
        partitions = {
            part: Partition((sure.get(part, least), most), (LONG_AGO, _JUST_NOW), part in sure)
            for part, (least, most) in ever.items()
        }
        keys = _keys_of(shown.errors, notes.LATE_LEFT_OUT)
        if unknown := set(keys) - present.keys():
            raise Violation(f"{shown.row.title} begins without {unknown}, which are not there")
        left_out = {key: present[key] for key in keys}
        found = LateState(
            *(shown.prefix, shown.clock, dict(shown.row.options), _mark_of(shown)),
            partitions=partitions,
            left_out=left_out,
            applied=Counter(_keys_of(shown.errors, notes.LATE_APPLIED)),
            frozen=_count_of(shown.errors, notes.FROZEN_ROW),
            rows=shown.rows,
            final=shown.final,
            may_be_removed=frozenset(ever_there - present.keys()),
        )
        greatest = max((p.greatest[1] for p in partitions.values()), default=LONG_AGO)
        most = min(greatest, shown.clock if shown.clock is not None else greatest)
        if found.mark is not None and found.mark > most - options.columns[0][1]:
            raise Violation(f"{shown.row.title} begins with watermark {found.mark} beyond {most}")
        for row in left_out.values():
            if found.mark is None or row[_AT] is None or row[_AT] >= found.mark:
                raise Violation(f"{shown.row.title} begins without {row} at {found.mark}")
        return found


class _Step:
    """One epoch of a view that was known before."""

    def __init__(self, state: LateState, shown: Shown, options: Lateness) -> None:
        self.state = replace(
            state,
            prefix=shown.prefix,
            clock=shown.clock,
            rows=shown.rows,
            final=state.final + shown.final,
        )
        self._before = state
        self._shown = shown
        self._options = options
        self._doubtful: set[int] = set()
        self._changed: set[int] = set()
        self._last: dict[int, Any] = {}
        self._frozen = (0, 0)

    def take_changes(self, changes: Sequence[Changed]) -> None:
        """Judge rows by the watermark of before; raise the partitions' greatest values."""
        first: dict[int, Row | None] = {}
        last: dict[int, Row | None] = {}
        touched: Counter[int] = Counter()
        for old, new in changes:
            key = (old or new)[0]  # type: ignore[index]
            first.setdefault(key, old)
            last[key] = new
            touched[key] += 1
            if new is not None:
                self._see(new, is_certain=False)
        # Of several versions in one epoch nobody knows which were seen.
        self._doubtful = {key for key, count in touched.items() if count > 1}
        for key, old in first.items():
            new = last[key]
            if new is not None:
                self._see(new, is_certain=True)
            self._judge(key, old, new)
        self._last = last
        self._count_frozen(first, last, touched)

    def _see(self, row: Row, *, is_certain: bool) -> None:
        at = row[_AT]
        if at is None:
            return
        part, watched = _part_of(row, self._options), _JUST_NOW
        known = self.state.partitions.get(part)
        if known is None:
            changed = Partition((at, at), (watched, watched), is_certain)
        else:
            least, most = known.greatest
            moved = known.moved
            if at > most:
                moved = (watched if is_certain else moved[0], watched)
            elif at > least or not known.is_certain:
                moved = (moved[0], watched)
            if is_certain:
                least = max(least, at) if known.is_certain else at
            elif not known.is_certain:
                least = min(least, at)
            changed = Partition((least, max(most, at)), moved, known.is_certain or is_certain)
        self.state = replace(self.state, partitions={**self.state.partitions, part: changed})

    def _judge(self, key: int, old: Row | None, new: Row | None) -> None:
        state, mark = self.state, self._before.mark
        is_known = key in state.removed or (old is not None and key not in state.left_out)
        if not is_known and old is None and key in state.may_be_removed:
            self._doubtful.add(key)
        self._note_removed(key, old, new, is_known=is_known)
        if key in self._doubtful:
            if is_known and new is not None:
                self._changed.add(key)
            return
        state = self.state
        is_late = False
        if new is not None and new[_AT] is not None and mark is not None:
            is_late = new[_AT] < mark and not is_known
        if is_late and self._options.policy == "error":
            raise Violation(f"{self._shown.row.title} moves on over the late row {new} at {mark}")
        if is_late and self._options.policy == "applied":
            self.state = replace(state, applied=state.applied + Counter({key: 1}))
        elif self._options.policy == "dead-letter":
            left_out = {k: row for k, row in state.left_out.items() if k != key}
            if is_late and new is not None:
                left_out[key] = new
            self.state = replace(state, left_out=left_out)

    def _note_removed(self, key: int, old: Row | None, new: Row | None, *, is_known: bool) -> None:
        """Remember what goes, until the watermark moves."""
        removed, maybe = self.state.removed - {key}, self.state.may_be_removed - {key}
        if new is None and is_known:
            removed |= {key}
        elif new is None and key in self._doubtful:
            maybe |= {key}
        self.state = replace(self.state, removed=removed, may_be_removed=maybe)

    def _count_frozen(
        self,
        first: Mapping[int, Row | None],
        last: Mapping[int, Row | None],
        touched: Mapping[int, int],
    ) -> None:
        """How many rows came and went in frozen windows, at least and at most."""
        limit = _frozen_until(self._options, self._before.mark)
        if limit is None:
            return
        gone: Counter[Any] = Counter()
        most = 0
        for key, count in touched.items():
            for row, weight, left_out in (
                (first[key], -1, self._before.left_out),
                (last[key], 1, self.state.left_out),
            ):
                if row is None or not _is_within(row[_MINUTE], limit):
                    continue
                most += 1
                if key not in left_out and key not in self._doubtful:
                    gone[row[_MINUTE], row[_NAMES.index("amount")]] += weight
            most += 2 * (count - 1)
        # Rows that are alike cancel out, one that came by one that went.
        doubtful = sum(2 * touched[key] for key in self._doubtful)
        self._frozen = max(0, sum(map(abs, gone.values())) - doubtful), most

    def take_clock(self) -> None:
        """Publish a watermark where the clock has moved."""
        before, now = self._before.clock, self._shown.clock
        found = _mark_of(self._shown)
        if now is None or before is None or now == before:
            if found != self._before.mark:
                raise Violation(f"{self._title} has watermark {found} without a tick")
            return
        watched = self.state.watched
        if idle_us := self._options.idle_us:
            watched += min(now - before, max(idle_us // 4, _LEAST_STEP_US))
        dated = {part: p.dated(watched) for part, p in self.state.partitions.items()}
        self.state = replace(self.state, watched=watched, mark=found, partitions=dated)
        if found != self._before.mark:
            none: frozenset[int] = frozenset()
            self.state = replace(self.state, removed=none, may_be_removed=none)
        least, most = self._bounds(watched, now)
        if found is None:
            is_right = least is None and self._before.mark is None
        elif self._before.mark is not None and found == self._before.mark:
            is_right = least is None or least <= found
        else:
            is_after = self._before.mark is None or found > self._before.mark
            is_right = is_after and most is not None and (least or LONG_AGO) <= found <= most
        if not is_right:
            raise Violation(
                f"{self._title} has watermark {found} after {self._before.mark}, and it lies "
                f"between {least} and {most} at {now}: {dict(self.state.partitions)}"
            )

    def _bounds(self, watched: int, now: int) -> tuple[int | None, int | None]:
        """The least and the most that the watermark may be; None for none that must, or may, be."""
        idle_us = self._options.idle_us
        parts = self.state.partitions.values()
        may = [p for p in parts if not idle_us or watched - p.moved[1] <= idle_us]
        must = [p for p in may if p.is_certain and (not idle_us or watched - p.moved[0] <= idle_us)]
        if not may:
            return None, None
        late_us = self._options.columns[0][1]
        least = min(min(p.greatest[0] for p in may), now) - late_us if must else None
        most = min(p.greatest[1] for p in must) if must else max(p.greatest[1] for p in may)
        return least, min(most, now) - late_us

    def check(self) -> None:
        """Hold the notes and the final rows to what was computed."""
        self._settle_doubtful()
        errors, state = self._shown.errors, self.state
        found = Counter(_keys_of(errors, notes.LATE_APPLIED))
        if found != state.applied:
            raise Violation(f"{self._title} notes {dict(found)}, not {dict(state.applied)}")
        self._check_left_out()
        least, most = (self._before.frozen + n for n in self._frozen)
        frozen = _count_of(errors, notes.FROZEN_ROW)
        if not least <= frozen <= most:
            raise Violation(f"{self._title} counts {frozen} rows, not {least} to {most}")
        self.state = replace(state, frozen=frozen)
        edges = [notes.WINDOW_EDGE] if self._options.is_final else []
        edges += [notes.FROZEN_EDGE] if self._options.retain_us is not None else []
        for code in edges:
            if _moment_of(errors, code) != state.mark:
                raise Violation(f"{self._title} has {code} at {_moment_of(errors, code)}")
        self._check_final()

    def _check_left_out(self) -> None:
        """Each late row that the view is without is told as it is now."""
        found = Counter(
            {t: n for (c, t), n in self._shown.errors.items() if c == notes.LATE_LEFT_OUT}
        )
        alike = (c for q, c in moments.LATE_QUERIES.items() if is_alike(q, self._shown.row.query))
        if (columns := next(alike, None)) is not None:
            expected = Counter(text_of(row, columns) for row in self.state.left_out.values())
        else:
            # The other table has columns of other names by now.
            found = Counter(_keys_of(self._shown.errors, notes.LATE_LEFT_OUT))
            expected = Counter(self.state.left_out)
        if found != expected:
            raise Violation(f"{self._title} leaves out {dict(found)}, not {dict(expected)}")

    def _settle_doubtful(self) -> None:
        """Take what is told of rows that were changed more than once."""
        errors, doubtful = self._shown.errors, self._doubtful
        keys = {k for k in _keys_of(errors, notes.LATE_LEFT_OUT) if k in doubtful}
        applied = Counter(k for k in _keys_of(errors, notes.LATE_APPLIED) if k in doubtful)
        if gone := {k for k in keys if self._last.get(k) is None}:
            raise Violation(f"{self._title} leaves out {gone}, which are not there")
        # A row that it had, and has again, was changed, whatever came in between.
        told = keys | {k for k in applied if applied[k] > self._before.applied[k]}
        if wrong := told & self._changed:
            raise Violation(f"{self._title} takes changed rows for late ones: {wrong}")
        left_out = {k: row for k, row in self.state.left_out.items() if k not in doubtful}
        left_out |= {k: self._last[k] for k in keys}
        others = Counter({k: n for k, n in self.state.applied.items() if k not in doubtful})
        self.state = replace(
            self.state,
            left_out=left_out,
            applied=others + applied,
        )

    def _check_final(self) -> None:
        """Each row of a window once, when the watermark passes its end."""
        if not self._options.is_final:
            return
        before, now = (_closed_until(self._options, s.mark) for s in (self._before, self.state))
        expected = Rows(
            {
                row: n
                for row, n in self._shown.rows.items()
                if now is not None and _is_within(row[0], now) and not _is_within(row[0], before)
            }
        )
        if now == before:
            expected = Rows()
        if self._shown.final != expected:
            lacks, extra = expected - self._shown.final, self._shown.final - expected
            raise Violation(f"final rows of {self._title} lack {dict(lacks)}, have {dict(extra)}")

    @property
    def _title(self) -> str:
        return self._shown.row.title


def _part_of(row: Row, options: Lateness) -> Any:
    return row[_KIND] if options.by else None


def _closed_until(options: Lateness, mark: int | None) -> int | None:
    """The begin of the newest window that a watermark has closed."""
    if mark is None or options.window is None:
        return None
    return mark - options.window[1]


def _frozen_until(options: Lateness, mark: int | None) -> int | None:
    closed = _closed_until(options, mark)
    return None if closed is None or options.retain_us is None else closed - options.retain_us


def _is_within(begin: int | None, limit: int | None) -> bool:
    return begin is not None and limit is not None and begin <= limit


def _mark_of(shown: Shown) -> int | None:
    """The published watermark, as it is told."""
    return _moment_of(shown.errors, notes.WATERMARK)


def _moment_of(errors: Mapping[tuple[str, str], int], code: str) -> int | None:
    found = [(text, n) for (own, text), n in errors.items() if own == code]
    if not found:
        return None
    if len(found) > 1 or found[0][1] != 1:
        raise Violation(f"{code} is told as {found}")
    return int(found[0][0].strip("()"))


def _keys_of(errors: Mapping[tuple[str, str], int], code: str) -> list[int]:
    """The keys of the rows that are told under a code, each as often as it is."""
    return [
        int(text[1:].split(",")[0])
        for (own, text), n in errors.items()
        if own == code
        for _ in range(n)
    ]


def _count_of(errors: Mapping[tuple[str, str], int], code: str) -> int:
    return sum(n for (own, _), n in errors.items() if own == code)


def text_of(row: Row, columns: Sequence[str]) -> str:
    """Return a row of the table as it is told when it is late."""
    return f"({','.join(_cell(name, row[_NAMES.index(name)]) for name in columns)})"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name not in ("at", "minute"):
        return str(value)
    return f'"{moment_text(value)}"'
