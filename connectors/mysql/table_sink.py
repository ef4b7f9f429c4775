"""A view as a table of MySQL or MariaDB: rows and progress in one transaction, exactly once.

The progress table of the database has a row for each sink, with its writer's token. A new writer
ends the earlier one's connection and puts its own token there; every transaction locks the row and
finds the token, or writes nothing. Tables are created outside transactions, so the row first says
which mark the table will have: a table without it, or with rows before the first epoch, is not
ours. After a failure the row says which epochs are there.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from connectors.mysql.server import quoted
from connectors.mysql.sink_options import TableOptions
from connectors.mysql.sink_session import SinkSession, lost
from connectors.mysql.written_table import Changelog, RowsTable
from connectors.sink import SinkTable
from connectors.view_sink import Detachment, Interruption, ViewEpoch, fenced
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError
from storage.failpoints import failpoint

PROGRESS = "tidemark_sink_progress"
_CREATE = f"""CREATE TABLE IF NOT EXISTS {PROGRESS} (sink char(32) character set ascii PRIMARY KEY,
title text NOT NULL, table_name varchar(64) NOT NULL, epoch bigint, positions longtext,
mark varchar(32) NOT NULL, owner varchar(32) NOT NULL,
updated_at timestamp(6) NOT NULL DEFAULT current_timestamp(6) ON UPDATE current_timestamp(6)
) engine=InnoDB default character set utf8mb4 collate utf8mb4_bin"""
_FIND = f"SELECT owner, epoch, mark FROM {PROGRESS} WHERE sink = %s"
_CLAIM = f"""INSERT INTO {PROGRESS} (sink, title, table_name, mark, owner)
VALUES (%s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE owner = values(owner)"""
_ADVANCE = f"UPDATE {PROGRESS} SET epoch = %s, positions = %s WHERE sink = %s"
_COMMENT = """SELECT table_comment FROM information_schema.tables
WHERE table_schema = database() AND table_name = %s"""


@dataclass(frozen=True)
class Standing:
    """A sink's row. epoch: None before the first one. mark: in the comment of its table."""

    owner: str
    epoch: int | None
    mark: str


class TableSink:
    """One sink. identity: new for each creation. title: readable."""

    def __init__(self, options: TableOptions, table: SinkTable, identity: str, title: str) -> None:
        self._options = options
        self._identity = identity
        self._title = title
        self._table = (RowsTable if options.mode == "rows" else Changelog)(options, table)
        self._token = secrets.token_hex(16)
        # Of the writer before us, "" for none; None until we have tried to take over.
        self._earlier: str | None = None
        self._session: SinkSession | None = None
        self._interrupted = Interruption()

    # --- life ------------------------------------------------------------------------------

    def open(self, known: int | None = None) -> int | None:
        """Take over from every earlier writer; return the newest epoch, None before the first.

        TemporaryError sink.unreachable, sink.busy; SinkError sink.fenced, sink.lost, and refusals
        of the server.
        """
        session = self._connect()
        has_progress = has_table(session, PROGRESS)
        if not has_progress and known is not None:
            return None
        if not has_progress:
            session.rows(_CREATE)
        standing = self._find(session)
        if standing is None and known is not None:
            return None
        self._require_turn(standing)
        session.take_lock(f"tidemark {self._identity}")
        session.commit()
        # What the earlier writer has committed meanwhile.
        standing = self._find(session, is_locked=True)
        self._require_turn(standing)
        self._earlier = "" if standing is None else standing.owner
        names = (self._identity, self._title, self._options.table)
        session.rows(_CLAIM, (*names, secrets.token_hex(16), self._token))
        if standing is not None and standing.epoch is not None:
            self._require_table(session, standing)
        session.commit()
        return None if standing is None else standing.epoch

    def interrupt(self) -> None:
        """Interrupt from any thread: the current call and all later ones end soon."""
        self._interrupted.set()
        session = self._session
        if session is not None:
            session.abort()

    def close(self) -> None:
        """Close the connection; what is not committed is lost."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def remove(self) -> None:
        """Delete the sink's table and its row, and the progress table with its last row."""
        self._leave(f"DROP TABLE {quoted(self._options.table)}")

    def detachment(self) -> Detachment:
        """See ViewSink."""
        progress = f"its row of table {PROGRESS}, and that table with its last row"
        mark = f"the comment of table {self._options.title}"
        return Detachment((mark, progress), (f"table {self._options.title}",))

    def detach(self) -> None:
        """Delete the table's mark and the sink's row, and the progress table with its last row."""
        self._leave(f"ALTER TABLE {quoted(self._options.table)} COMMENT = ''")

    def _leave(self, change: str) -> None:
        """Change our table, then delete the sink's row, and the table of rows with the last one."""
        session = self._connect()
        if not has_table(session, PROGRESS):
            return
        session.take_lock(f"tidemark {self._identity}")
        standing = self._find(session)
        if standing is None:
            return
        if self._comment(session) == _mark(standing):
            session.rows(change)
        session.rows(f"DELETE FROM {PROGRESS} WHERE sink = %s", (self._identity,))
        session.commit()
        if not session.rows(f"SELECT 1 FROM {PROGRESS} LIMIT 1"):
            session.rows(f"DROP TABLE {PROGRESS}")

    # --- epochs ----------------------------------------------------------------------------

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """Write whole epochs in one transaction.

        TemporaryError: none of them is written, or the outcome is unknown. SinkError sink.fenced,
        sink.lost, sink.target_changed, sink.value_unfit, sink.row_too_wide, sink.table_unfit.
        """
        session = self._session
        if session is None:
            raise TemporaryError("sink.unreachable", "the sink is not open")
        try:
            self._write(session, epochs)
        except TemporaryError:
            self.close()
            self._interrupted.check()
            raise
        except BaseException:
            self.close()
            raise

    def _write(self, session: SinkSession, epochs: Sequence[ViewEpoch]) -> None:
        watched = [replace(e, deltas=_Checked(e.deltas, self._interrupted.check)) for e in epochs]
        if epochs[0].is_initial:
            self._ensure_table(session)
        standing = self._find(session, is_locked=True)
        if standing is None:
            raise lost("its progress is gone")
        if standing.owner != self._token:
            raise fenced(f"table {self._options.title}")
        self._require_table(session, standing)
        self._table.write(session, watched)
        position = json.dumps(dict(epochs[-1].positions))
        session.rows(_ADVANCE, (epochs[-1].number, position, self._identity))
        failpoint("mysql.commit.before", _cut)
        session.commit()
        failpoint("mysql.commit.after", _cut)

    def _ensure_table(self, session: SinkSession) -> None:
        """Create the table, unless an earlier attempt has; it must be empty.

        SinkError sink.table_unfit.
        """
        standing = self._find(session)
        if standing is None:
            raise lost("its progress is gone")
        # No transaction may be open when a table is created, nor hold what was read before.
        session.commit()
        comment = self._comment(session)
        if comment is None:
            session.rows(self._table.create(_mark(standing)))
        elif comment != _mark(standing):
            raise table_unfit(self._options.title)
        if session.rows(f"SELECT 1 FROM {quoted(self._options.table)} LIMIT 1"):
            raise table_unfit(self._options.title)
        session.commit()

    def _require_table(self, session: SinkSession, standing: Standing) -> None:
        if self._comment(session) != _mark(standing):
            raise lost(f"table {self._options.title} was dropped, renamed or recreated")

    def _comment(self, session: SinkSession) -> str | None:
        found = session.rows(_COMMENT, (self._options.table,))
        return found[0][0] if found else None

    def _find(self, session: SinkSession, *, is_locked: bool = False) -> Standing | None:
        found = session.rows(_FIND + (" FOR UPDATE" if is_locked else ""), (self._identity,))
        return Standing(*found[0]) if found else None

    def _require_turn(self, standing: Standing | None) -> None:
        """Fail if another writer has taken over since we did."""
        if self._earlier is None or standing is None:
            return
        if standing.owner not in (self._token, self._earlier):
            raise fenced(f"table {self._options.title}")

    def _connect(self) -> SinkSession:
        self.close()
        self._interrupted.check()
        self._session = SinkSession(self._options, self._title)
        return self._session


def has_table(session: SinkSession, name: str) -> bool:
    """Return whether the database has a table or view of this name."""
    return bool(session.rows(_COMMENT, (name,)))


def table_unfit(title: str) -> SinkError:
    """Return the error for a name that is taken."""
    return SinkError(
        "sink.table_unfit",
        f'table "{title}" exists, and does not fit the sink',
        detail="the sink has not created it, or others have written to it",
        hint="drop it, so that the sink creates it, or choose another table",
    )


def _mark(standing: Standing) -> str:
    return f"tidemark sink {standing.mark}"


def _cut(text: str) -> TemporaryError:
    return TemporaryError("sink.unreachable", text)


class _Checked:
    """Deltas, each after a check whether the sink is interrupted."""

    def __init__(self, deltas: Iterable[Delta], check: Callable[[], None]) -> None:
        self._deltas = deltas
        self._check = check

    def __iter__(self) -> Iterator[Delta]:
        for delta in self._deltas:
            self._check()
            yield delta
