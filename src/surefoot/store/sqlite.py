"""Content store in one SQLite file, shared by threads and processes of one host."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from surefoot.config import Limits
from surefoot.errors import (
    Busy,
    ChunkTaken,
    Closed,
    Misconfigured,
    NotSetUp,
    OutcomeUnknown,
    StoreUnavailable,
    SurefootError,
    TransactionEnded,
)
from surefoot.ports import Append, FrameRow, Kept, LogRef, StoredValues, ThreadRow
from surefoot.store import migrate, records
from surefoot.store.records import Blobs, Pairs, Param
from surefoot.store.statements import Migration, load_migrations, load_statements

__all__ = ["SqliteContentStore"]

_T = TypeVar("_T")
_DIALECT = "sqlite"
_OLDEST = (3, 35, 0)
#: SQLite's own wait grows to steps of 100 ms, so a writer in another process may starve ours;
#: we let it wait this long and then try again ourselves until the limit is reached.
_INNER_WAIT_S = 0.02
#: What every connection is set to. FULL waits for the disk at each commit, the fullfsync pair
#: does so on macOS as well; a schema that somebody else edited may not call functions.
_SETTINGS = (
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
)
#: The message decides where the error carries no name (Python 3.10).
_ERROR_NAMES = (
    ("locked", "SQLITE_BUSY"),
    ("readonly", "SQLITE_READONLY"),
    ("is full", "SQLITE_FULL"),
    ("I/O", "SQLITE_IOERR"),
    ("unable to open", "SQLITE_CANTOPEN"),
    ("malformed", "SQLITE_CORRUPT"),
    ("not a database", "SQLITE_NOTADB"),
    ("UNIQUE constraint", "SQLITE_CONSTRAINT_UNIQUE"),
)


def _error_name(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", None)
    if isinstance(name, str):
        return name
    text = str(error)
    return next((name for part, name in _ERROR_NAMES if part in text), type(error).__name__)


def _is_busy(error: sqlite3.Error) -> bool:
    return _error_name(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _sqlite_value(name: str, value: Param) -> Mapping[str, str | int | bytes | None]:
    """What a parameter becomes; see the head of the statements' file."""
    if isinstance(value, str):
        return {name: value.encode("utf-8", "surrogatepass")}
    if isinstance(value, Pairs):
        return {name: json.dumps(value.items)}
    if isinstance(value, Blobs):
        spans: list[tuple[int, int]] = []
        start = 1
        for item in value.items:
            spans.append((start, len(item)))
            start += len(item)
        return {name: b"".join(value.items), f"{name}_spans": json.dumps(spans)}
    return {name: value}


class _Session:
    """One connection, used by one thread at a time."""

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection

    def __call__(self, name: str, /, **params: Param) -> Sequence[tuple[Any, ...]]:
        """Executes a named statement; all rows are fetched, so no statement stays open."""
        values: dict[str, str | int | bytes | None] = {}
        for key, value in params.items():
            values.update(_sqlite_value(key, value))
        text = load_statements(_DIALECT)[name].text
        return self.connection.execute(text, values).fetchall()

    def many(self, name: str, rows: Sequence[tuple[int | bytes, ...]]) -> None:
        """Executes a named statement once per row."""
        if rows:
            self.connection.executemany(load_statements(_DIALECT)[name].text, rows)

    def script(self, text: str) -> None:
        """Executes several statements without ending the transaction."""
        statement = ""
        for line in text.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self.connection.execute(statement)
                statement = ""


class _Connection(sqlite3.Connection):
    """A connection that knows which file it was opened on; None for one that made it."""

    file: tuple[int, int] | None = None


class _Connections:
    """Idle connections of this process. Taking and giving back never waits for a lock.

    A connection to a file that is not there any more under its name is not used again: what is
    stored through it would be acknowledged, and nobody could ever read it.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.pid = os.getpid()
        self.write_lock = threading.Lock()
        self._path = path
        self._limits = limits
        self._idle: deque[_Connection] = deque()

    def take(self, *, create: bool, deadline: float) -> _Connection:
        """An idle connection, or a new one; only ``create`` makes a file."""
        file = _device_and_inode(self._path)
        with suppress(IndexError):
            while True:
                idle = self._idle.pop()
                if idle.file == file:
                    return idle
                idle.close()
        mode = "rwc" if create else "rw"
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=_INNER_WAIT_S,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        connection.file = file
        try:
            connection.text_factory = bytes
            for setting in _SETTINGS:
                _retried(connection, setting, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def give(self, connection: _Connection) -> None:
        """Takes a connection back; one that is in the middle of something is closed."""
        keep = not connection.in_transaction and connection.file is not None
        if not keep or len(self._idle) >= self._limits.pool_max_connections:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Closes all idle connections."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()


class SqliteContentStore:
    """Content store (A) in a SQLite file: WAL, ``synchronous=FULL``, one transaction per append.

    Attributes:
        shown: The address for messages.
    """

    def __init__(self, path: str | os.PathLike[str], *, limits: Limits | None = None) -> None:
        """Remembers the path; the file is opened at first use.

        Args:
            path: Of the database file. Its folder must exist.
            limits: See `Limits`; ``busy_timeout_ms``, ``lock_timeout_ms`` and
                ``pool_max_connections`` are used here.

        Raises:
            Misconfigured: No file is named, or the SQLite library is too old.
        """
        text = os.fspath(path)
        if not text or text == ":memory:":
            raise Misconfigured(field="path", reason="an in-memory database cannot be resumed from")
        if sqlite3.sqlite_version_info < _OLDEST:
            raise Misconfigured(
                field="sqlite3",
                reason=f"SQLite {sqlite3.sqlite_version} is too old; 3.35 or later is needed",
            )
        self.shown = f"sqlite:///{text}"
        self._path = Path(text)
        self._limits = limits or Limits()
        self._connections = _Connections(self._path, self._limits)
        self._closed = False
        #: Connections of a parent process: never used here, and never closed here either,
        #: because closing would touch the parent's file.
        self._parents: list[_Connections] = []

    # --- the port -------------------------------------------------------------------------------

    def setup(self, *, verify_only: bool = False) -> None:
        """Creates or migrates the tables, or only checks them; see the port.

        Raises:
            Busy: Another process holds the write lock for longer than ``lock_timeout_ms``.
            NotSetUp: Only with ``verify_only``: something is missing.
            MigrationRefused: The database and this release do not agree.
        """
        steps: Sequence[Migration] = load_migrations(_DIALECT)
        if verify_only or not _is_absent(self._path):
            steps = self._read(lambda run: migrate.pending(run, _DIALECT, self.shown))
        if verify_only:
            migrate.refuse_pending(steps, self.shown)
            return
        deadline = _deadline(self._limits.lock_timeout_ms)
        with self._translated("setup"), self._session(deadline, create=True) as session:
            # Also without steps: a file that was copied by VACUUM INTO is no longer in WAL mode.
            self._to_wal(session, deadline)
            if steps:
                with self._transaction(session, deadline, "setup"):
                    steps = migrate.pending(session, _DIALECT, self.shown)
                    migrate.apply(session, session.script, steps)

    def check_durability(self) -> None:
        """Refuses a file that is not in WAL mode with ``synchronous=FULL`` (P0)."""

        def settings(session: _Session) -> tuple[bytes, int]:
            (mode,) = session.connection.execute("PRAGMA journal_mode").fetchone()
            (level,) = session.connection.execute("PRAGMA synchronous").fetchone()
            return mode, level

        mode, level = self._read(settings)
        if mode != b"wal" or level < 2:
            raise Misconfigured(
                field="content store",
                reason=(
                    f"{self.shown} has journal_mode={mode.decode()}, synchronous={level}; "
                    "acknowledged commits are only safe with wal and FULL (2)"
                ),
            )

    def server_identity(self) -> str:
        """Text that is equal for two addresses of the same file: its device and inode."""
        try:
            found = self._path.stat()
        except OSError:
            return f"sqlite:{os.path.realpath(self._path)}"
        return f"sqlite:{found.st_dev}:{found.st_ino}"

    def read_thread(self, tenant: str, thread: str) -> ThreadRow | None:
        """The thread's row, or None."""
        return self._read(lambda run: records.read_thread(run, tenant, thread))

    def read_newest(
        self, tenant: str, thread: str, *, limit: int, below_seq: int | None = None
    ) -> tuple[ThreadRow | None, Sequence[FrameRow]]:
        """The thread's row and its newest frames, in one statement; see the port."""
        return self._read(
            lambda run: records.read_newest(run, tenant, thread, limit=limit, below_seq=below_seq)
        )

    def find_checkpoint(self, key: int, checkpoint_hash: bytes) -> Sequence[tuple[int, int]]:
        """(last_seq, epoch) of frames that may hold the checkpoint, newest first."""
        return self._read(lambda run: records.find_checkpoint(run, key, checkpoint_hash))

    def read_heads(
        self, key: int, *, from_seq: int, to_seq: int | None = None
    ) -> Sequence[FrameRow]:
        """Frames without bodies in a range of seqs, newest first."""
        return self._read(
            lambda run: records.read_heads(run, key, from_seq=from_seq, to_seq=to_seq)
        )

    def read_frames(self, key: int, keys: Sequence[tuple[int, int]]) -> Sequence[FrameRow]:
        """The named frames with bodies, newest first."""
        return self._read(lambda run: records.read_frames(run, key, keys))

    def read_values(
        self, key: int, digests: Sequence[bytes], logs: Sequence[LogRef]
    ) -> StoredValues:
        """Values and list chunks, in one statement."""
        return self._read(lambda run: records.read_values(run, key, digests, logs))

    def append(self, append: Append) -> int | None:
        """Stores a transaction if the head row is as expected (step P3); see the port."""
        with self._write("append") as session:
            return _appended(session, append)

    def append_within(self, work: Callable[[sqlite3.Connection], Append]) -> int | None:
        """Runs a caller's statements and an append in one write transaction; see the port."""
        raised: list[BaseException] = []
        try:
            with self._write("append_within") as session:
                try:
                    with _lent(session.connection) as connection:
                        append = work(connection)
                except BaseException as error:  # noqa: BLE001 - raised again, as it is, below
                    raised.append(error)
                    raise _Undo from None
                key = _appended(session, append)
                if key is None:
                    raise _Undo
                return key
        except _Undo:
            pass
        if raised:  # as the caller raised it, whatever it is
            raise raised[0]
        return None

    def collect(self, key: int, kept: Kept) -> bool:
        """Deletes what a published record permits to delete, in one transaction (step P6)."""
        with self._write("collect") as session:
            if not records.is_head(session, key, kept.head):
                return False
            records.collect_frames(session, key, kept)
            records.collect_values(session, key, kept)
            records.collect_chunks(session, key, kept)
            return True

    def discard_frames(self, key: int, keys: Sequence[tuple[int, int]]) -> None:
        """Deletes the named frames, in one transaction."""
        with self._write("discard_frames") as session:
            records.discard_frames(session, key, keys)

    def delete_thread(self, key: int) -> None:
        """Deletes all rows of a thread, in one transaction (step P6)."""
        with self._write("delete_thread") as session:
            records.delete_thread(session, key)
            records.delete_frames(session, key)
            records.delete_values(session, key)
            records.delete_chunks(session, key)
            records.delete_runs(session, key)

    def threads(
        self, tenant: str, *, after_key: int = 0, limit: int = 1_000
    ) -> Sequence[ThreadRow]:
        """Thread rows in the order of their keys."""
        return self._read(
            lambda run: records.threads(run, tenant, after_key=after_key, limit=limit)
        )

    def threads_with_open(
        self, tenant: str, *, after_key: int = 0, limit: int = 1_000
    ) -> Sequence[ThreadRow]:
        """Rows of threads that may have an open effect, in the order of their keys; a hint."""
        return self._read(
            lambda run: records.threads_with_open(run, tenant, after_key=after_key, limit=limit)
        )

    def threads_of_runs(self, tenant: str, run_ids: Sequence[str]) -> Sequence[str]:
        """Ids of threads in which these runs have stored something."""
        return self._read(lambda run: records.threads_of_runs(run, tenant, run_ids))

    def close(self) -> None:
        """Closes all connections; calls that are under way finish first."""
        self._closed = True
        self._connections.close()

    # --- connections and transactions -----------------------------------------------------------

    def _own(self) -> _Connections:
        """Connections of this process; a forked child starts with none."""
        if self._closed:
            raise Closed(field=self.shown)
        if self._connections.pid != os.getpid():
            self._parents.append(self._connections)
            self._connections = _Connections(self._path, self._limits)
        return self._connections

    @contextmanager
    def _session(self, deadline: float, *, create: bool = False) -> Iterator[_Session]:
        own = self._own()
        connection = own.take(create=create, deadline=deadline)
        try:
            yield _Session(connection)
        finally:
            own.give(connection)
            if self._closed:
                own.close()

    def _read(self, work: Callable[[_Session], _T]) -> _T:
        """Runs statements that only read; a lock in the way is waited for."""
        deadline = _deadline(self._limits.busy_timeout_ms)
        with self._translated("read"):
            while True:
                try:
                    with self._session(deadline) as session:
                        return work(session)
                except sqlite3.Error as error:
                    if not _is_busy(error) or time.monotonic() >= deadline:
                        raise
                    _pause()

    @contextmanager
    def _write(self, what: str) -> Iterator[_Session]:
        """A write transaction. Threads of this process queue for it in memory."""
        deadline = _deadline(self._limits.busy_timeout_ms)
        with self._translated(what):
            lock = self._own().write_lock
            if not lock.acquire(timeout=self._limits.busy_timeout_ms / 1_000):
                raise StoreUnavailable(store=self.shown, reason="the write lock was not obtained")
            try:
                with self._session(deadline) as session, self._transaction(session, deadline, what):
                    yield session
            finally:
                lock.release()

    @contextmanager
    def _transaction(self, session: _Session, deadline: float, what: str) -> Iterator[None]:
        """BEGIN IMMEDIATE to COMMIT; rolled back on any exception, also an interrupt."""
        connection = session.connection
        try:
            _retried(connection, "BEGIN IMMEDIATE", deadline)
            yield
        except BaseException:
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        try:
            _retried(connection, "COMMIT", deadline)
        except sqlite3.Error as error:
            if _is_busy(error):
                connection.execute("ROLLBACK")
                raise
            # The log may hold the commit although the disk gave an error.
            raise OutcomeUnknown(what=what, reason=_error_name(error)) from error

    @staticmethod
    def _to_wal(session: _Session, deadline: float) -> None:
        """Switches the file to WAL, which may not happen inside a transaction."""
        rows = _retried(session.connection, "PRAGMA journal_mode", deadline)
        if rows != [(b"wal",)]:
            _retried(session.connection, "PRAGMA journal_mode = WAL", deadline)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turns the library's errors into ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._translation(error, what) from error

    def _translation(self, error: sqlite3.Error, what: str) -> SurefootError:
        name, text = _error_name(error), str(error)
        if name.startswith("SQLITE_CANTOPEN") and what != "setup" and _is_absent(self._path):
            return NotSetUp(where=self.shown, reason="the file does not exist")
        if "no such table" in text or "no such column" in text or "has no column" in text:
            return NotSetUp(where=self.shown, reason=text)
        if _is_busy(error):
            if what == "setup":
                return Busy(what=f"the write lock of {self.shown}", holder="another process")
            return StoreUnavailable(
                store=self.shown,
                reason=f"{name}: locked for more than {self._limits.busy_timeout_ms} ms",
            )
        if name.startswith("SQLITE_CONSTRAINT"):
            frame = "surefoot_frame" in text
            if frame:
                return StoreUnavailable(store=self.shown, reason=records.FRAME_EXISTS)
            return ChunkTaken(store=self.shown, reason=records.CHUNK_EXISTS)
        return StoreUnavailable(store=self.shown, reason=f"{name}: {text}")


#: What makes our rows others, or lets something else be taken for our tables.
_CHANGES = frozenset(
    {
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_TEMP_TABLE,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TEMP_VIEW,
    }
)
#: Pragmas that do something without an argument; the others show a setting.
_PRAGMAS_THAT_ACT = frozenset({"incremental_vacuum", "optimize", "shrink_memory", "wal_checkpoint"})
#: Pragmas whose argument says what to look at; that of the others is a setting.
_PRAGMAS_THAT_LOOK = frozenset(
    {
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
        *("foreign_key_list", "foreign_key_check", "integrity_check", "quick_check"),
    }
)


class _Undo(Exception):
    """Unwinds a transaction that shall leave nothing."""


def _appended(session: _Session, append: Append) -> int | None:
    """The statements of an append, within its transaction."""
    key = records.move_head(session, append)
    if key is None:
        return None
    records.insert_frame(session, key, append)
    session.many("insert_value", [(key, digest, body) for digest, body in append.values])
    chunks = [(key, chunk.log_id, chunk.ordinal, chunk.body) for chunk in append.chunks]
    session.many("insert_chunk", chunks)
    runs = [(key, records.run_digest(append.tenant, run)) for run in append.run_ids]
    session.many("insert_run", runs)
    return key


@contextmanager
def _lent(connection: _Connection) -> Iterator[sqlite3.Connection]:
    """The connection as a caller expects one, unable to end the transaction or to touch our tables.

    It is not used again: nothing else undoes all that a connection can hold (functions, attached
    files, temporary tables).

    Raises:
        TransactionEnded: The transaction is over all the same.
    """
    connection.text_factory = str
    connection.file = None
    connection.set_authorizer(_authorized)
    try:
        yield connection
    finally:
        # None takes the hook away since Python 3.11; before, it would refuse everything.
        connection.set_authorizer(None if sys.version_info >= (3, 11) else _anything)
        connection.text_factory = bytes
        connection.row_factory = None
        if not connection.in_transaction:  # INSERT OR ROLLBACK does that, and asks nobody
            raise TransactionEnded(reason="by a rollback in its SQL")


def _authorized(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Decides what a caller may do in our transaction, as SQLite's authorizer.

    A setting would hold for our own commit as well.
    """
    if action == sqlite3.SQLITE_TRANSACTION:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA:
        name = (first or "").lower()
        harmless = name not in _PRAGMAS_THAT_ACT if second is None else name in _PRAGMAS_THAT_LOOK
        return sqlite3.SQLITE_OK if harmless else sqlite3.SQLITE_DENY
    named = [name.lower() for name in (first, second) if name]
    if action in _CHANGES and any(name.startswith("surefoot_") for name in named):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _anything(*_: object) -> int:
    return sqlite3.SQLITE_OK


def _device_and_inode(path: Path) -> tuple[int, int] | None:
    """What the file is, whatever it is called; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_absent(path: Path) -> bool:
    """Whether there is no such file; a folder that may not be entered does not tell."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _deadline(wait_ms: int) -> float:
    return time.monotonic() + wait_ms / 1_000


def _retried(
    connection: sqlite3.Connection, statement: str, deadline: float
) -> list[tuple[object, ...]]:
    """Executes a statement that may find the file locked even after SQLite's own wait."""
    while True:
        try:
            return connection.execute(statement).fetchall()
        except sqlite3.Error as error:
            if not _is_busy(error) or time.monotonic() >= deadline:
                raise
            _pause()


def _pause() -> None:
    """Between two tries; random, so that two processes do not keep step."""
    time.sleep(random.uniform(0.001, 0.005))  # noqa: S311
