"""The high-water store in a SQLite file: WAL, ``synchronous=FULL``, one file for many processes.

Put it on another disk or host than the content store; in the same file it is "degraded".
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from surefoot.config import Limits
from surefoot.errors import (
    MarkCorrupt,
    MigrationRefused,
    Misconfigured,
    Misuse,
    NotSetUp,
    OutcomeUnknown,
    StoreUnavailable,
    SurefootError,
)
from surefoot.highwater.driver import WRITES, Row, SqlHighWater, missing_facts
from surefoot.highwater.statements import load

__all__ = ["SqliteHighWater"]

_logger = logging.getLogger(__name__)

_LIMITS = Limits()
_OLDEST = (3, 35, 0)
_IDLE_MAX = 16
#: SQLite's own wait is short, so that the whole wait stays near `Limits.busy_timeout_ms`.
_INNER_WAIT_S = 0.25
_FULL = 2

_BUSY, _LOCKED, _READONLY, _CORRUPT, _CANTOPEN, _PROTOCOL, _NOTADB = 5, 6, 8, 11, 14, 15, 26
#: Python 3.10 shows no codes, only SQLite's texts.
_CODES_BY_TEXT = (
    ("database is locked", _BUSY),
    ("table is locked", _LOCKED),
    ("locking protocol", _PROTOCOL),
    ("malformed", _CORRUPT),
    ("not a database", _NOTADB),
    ("could not decode", _CORRUPT),
    ("unable to open", _CANTOPEN),
    ("readonly", _READONLY),
)
_GUARD = "surefoot guard: "

#: File systems that lose or share writes in ways SQLite cannot see.
_WEAK_FILE_SYSTEMS = {
    "tmpfs": "is lost when the machine stops",
    "ramfs": "is lost when the machine stops",
    "nfs": "is a network file system",
    "nfs4": "is a network file system",
    "cifs": "is a network file system",
    "smb3": "is a network file system",
    "9p": "is a network file system",
    "fuse.sshfs": "is a network file system",
}

T = TypeVar("T")


class SqliteHighWater(SqlHighWater):
    """A high-water store in one SQLite file.

    Safe for threads, processes and forks. Time is the clock of the machine; so every process
    that uses the file runs on one host.

    Args:
        path: The file; `setup` creates it, readable by its owner only.
        limits: ``busy_timeout_ms`` bounds every wait for another writer.

    Raises:
        Misconfigured: The path is no file path, or SQLite is older than 3.35.
    """

    def __init__(self, path: str | os.PathLike[str], *, limits: Limits = _LIMITS) -> None:
        text = os.fspath(path)
        if not text or ":memory:" in text or text.startswith("file:") or "\0" in text:
            raise Misconfigured(
                field="highwater",
                reason="must be a file; a mark in memory witnesses nothing after a crash",
            )
        if sqlite3.sqlite_version_info < _OLDEST:
            raise Misconfigured(
                field="highwater",
                reason=f"SQLite {sqlite3.sqlite_version} is too old; 3.35 is the oldest",
            )
        self._path = Path(text).absolute()
        self.shown = f"sqlite:///{text}"
        self._limits = limits
        self._sql = load("sqlite")
        self._is_closed = False
        self._start_process()

    def _start_process(self) -> None:
        """Begins with no connections: those of the parent of a fork must not be touched."""
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._writer = threading.Lock()
        self._idle: list[tuple[sqlite3.Connection, tuple[int, int]]] = []

    # --- set-up and checks ----------------------------------------------------------------------

    def setup(self, *, verify_only: bool = False) -> None:
        """Creates the file and the table, or only checks that they are as they should be.

        Raises:
            NotSetUp: Only checking, and there is no table.
            MigrationRefused: A table is there, but not the one of this release.
            StoreUnavailable: The file cannot be written.
        """
        self._check_open()
        if not verify_only:
            self._create_file()
        missing = missing_facts(_expected_shape(), self._shape())
        if not missing:
            return
        if verify_only:
            self._refuse_shape(missing)
        self._patiently(self._create_table, thread=None)
        self._sync_directory()
        missing = missing_facts(_expected_shape(), self._shape())
        if missing:
            self._refuse_shape(missing)

    def _shape(self) -> frozenset[str]:
        return self._run("shape", {}, lambda rows: frozenset(r[0] for r in rows), thread=None)

    def _refuse_shape(self, missing: str) -> None:
        if not self._shape():
            raise NotSetUp(where=self.shown, reason="table surefoot_marks is missing")
        raise MigrationRefused(where=self.shown, reason=f"missing: {missing}")

    def _create_file(self) -> None:
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as exc:
            raise self._unavailable(f"cannot create the file: {exc.strerror}") from None

    def _create_table(self) -> None:
        with self._connection() as conn, self._writing():
            conn.execute(self._sql["setup_lock"])
            for statement in _split(self._sql["setup"]):
                conn.execute(statement)
            conn.execute("COMMIT")

    def _sync_directory(self) -> None:
        """Makes the name of a new file as durable as its content."""
        try:
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # a directory that may be searched but not read; its own file is synced
        try:
            os.fsync(folder)
        except OSError as exc:
            raise self._unavailable(f"cannot sync the directory: {exc.strerror}") from None
        finally:
            os.close(folder)

    def check_durability(self) -> None:
        """Refuses a file that may lose acknowledged marks (P0); warns of weak file systems.

        Raises:
            Misconfigured: WAL or ``synchronous=FULL`` cannot be set, or it is no plain file.
            StoreUnavailable: The file or its directory cannot be used.
        """
        self._check_open()
        kind = _file_system(self._path)
        if kind in _WEAK_FILE_SYSTEMS:
            _logger.warning("%s is on %s, which %s", self.shown, kind, _WEAK_FILE_SYSTEMS[kind])
        try:
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            if _is_absent(self._path.parent):
                raise self._unavailable("its directory does not exist") from None
            return  # every connection sets and checks WAL and FULL once the file exists
        except OSError as exc:
            raise self._unavailable(f"cannot look at the file: {exc.strerror}") from None
        if not stat.S_ISREG(mode):
            raise Misconfigured(field="highwater", reason=f"{self.shown} is no plain file")

        def check() -> None:
            self._open().close()

        self._patiently(check, thread=None)

    def server_identity(self) -> str:
        """Text that is equal for two addresses of the same file: its device and inode."""
        self._check_open()
        if _is_absent(self._path):
            return f"sqlite:{os.path.realpath(self._path)}"
        files = self._run("identity", {}, lambda rows: [row[0] for row in rows], thread=None)
        device, inode = _device_and_inode(Path(files[0]))
        return f"sqlite:{device}:{inode}"

    def close(self) -> None:
        """Closes all idle connections; busy ones are closed when their call ends."""
        self._is_closed = True
        if self._pid == os.getpid():
            with self._guard:
                idle, self._idle = self._idle, []
            for conn, _ in idle:
                conn.close()

    # --- statements -----------------------------------------------------------------------------

    def _run(
        self,
        name: str,
        params: Mapping[str, Any],
        decode: Callable[[Sequence[Row]], T],
        *,
        thread: str | None,
    ) -> T:
        self._check_open()

        def once() -> T:
            with self._connection() as conn:
                if name not in WRITES:
                    return decode(conn.execute(self._sql[name], params).fetchall())
                with self._writing():
                    conn.execute("BEGIN IMMEDIATE")
                    answer = decode(conn.execute(self._sql[name], params).fetchall())
                    self._commit(conn, f"{name} of thread {thread!r}")
                    return answer

        return self._patiently(once, thread=thread)

    def _commit(self, conn: sqlite3.Connection, what: str) -> None:
        try:
            conn.execute("COMMIT")
        except sqlite3.Error as exc:
            if _code(exc) in {_BUSY, _LOCKED}:
                raise  # still open, rolled back with the connection
            raise OutcomeUnknown(what=what, reason=f"{self.shown}: commit failed: {exc}") from None

    def _patiently(self, work: Callable[[], T], *, thread: str | None) -> T:
        """Repeats what another process's lock has kept from starting, up to the limit.

        Only failures before the commit get here, so that nothing is ever done twice.
        """
        deadline = time.monotonic() + self._limits.busy_timeout_ms / 1_000
        while True:
            try:
                return work()
            except sqlite3.Error as exc:
                busy = _code(exc) in {_BUSY, _LOCKED, _PROTOCOL}
                if not busy or time.monotonic() >= deadline:
                    raise self._typed(exc, thread) from None
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311 - spreads waiters, no secret

    def _typed(self, exc: sqlite3.Error, thread: str | None) -> SurefootError:
        """The error of ours that says what to do about one of SQLite's."""
        text = str(exc)
        code = _code(exc)
        if code in {_CORRUPT, _NOTADB}:
            return MarkCorrupt(thread=thread, reason=f"{self.shown}: {text}")
        if "no such table" in text or "no such column" in text:
            return NotSetUp(where=self.shown, reason=text)
        if isinstance(exc, sqlite3.IntegrityError) and text.startswith(_GUARD):
            return Misuse(field="highwater", reason=text.removeprefix(_GUARD))
        if isinstance(exc, sqlite3.IntegrityError):
            return MarkCorrupt(thread=thread, reason=f"the stored row breaks its rules: {text}")
        if code == _CANTOPEN and _is_absent(self._path) and not _is_absent(self._path.parent):
            return NotSetUp(where=self.shown, reason="the file does not exist")
        if code in {_BUSY, _LOCKED, _PROTOCOL}:
            return self._unavailable(f"locked for {self._limits.busy_timeout_ms} ms: {text}")
        return self._unavailable(text)

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(store=self.shown, reason=reason)

    # --- connections ----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed()
        if self._pid != os.getpid():
            # Keeps the parent's connections from being closed by the garbage collector.
            _ABANDONED.extend(conn for conn, _ in self._idle)
            self._start_process()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Lets the threads of this process queue here instead of polling the file's lock."""
        if not self._writer.acquire(timeout=self._limits.busy_timeout_ms / 1_000):
            raise self._unavailable(f"busy for {self._limits.busy_timeout_ms} ms")
        try:
            yield
        finally:
            self._writer.release()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Lends a connection to the file of now; one that failed is closed (and rolled back)."""
        conn, file = self._take()
        try:
            yield conn
        except BaseException:
            conn.close()
            raise
        with self._guard:
            keep = not self._is_closed and len(self._idle) < _IDLE_MAX
            if keep:
                self._idle.append((conn, file))
        if not keep:
            conn.close()

    def _take(self) -> tuple[sqlite3.Connection, tuple[int, int]]:
        file = _device_and_inode(self._path)
        with self._guard:
            stale = [item for item in self._idle if item[1] != file]
            self._idle = [item for item in self._idle if item[1] == file]
            taken = self._idle.pop() if self._idle else None
        for conn, _ in stale:
            # The file was replaced: marks written to the old one would witness nothing.
            conn.close()
        return taken or (self._open(), file)

    def _open(self) -> sqlite3.Connection:
        """Opens the file, which must exist, and makes sure of WAL and FULL.

        Raises:
            Misconfigured: One of them cannot be set.
            sqlite3.Error: The file cannot be opened.
        """
        conn = sqlite3.connect(
            f"{self._path.as_uri()}?mode=rw",
            uri=True,
            timeout=min(_INNER_WAIT_S, self._limits.busy_timeout_ms / 1_000),
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            rows: list[Row] = []
            for statement in _split(self._sql["durability"]):
                rows += conn.execute(statement).fetchall()
        except BaseException:
            conn.close()
            raise
        if rows[0][0] != "wal" or rows[-1][0] != _FULL:
            conn.close()
            raise Misconfigured(
                field="highwater",
                reason=(
                    f"{self.shown} does not take journal_mode=WAL and synchronous=FULL "
                    f"(answered {rows[0][0]!r} and {rows[-1][0]!r})"
                ),
            )
        return conn


_ABANDONED: list[sqlite3.Connection] = []


def _code(exc: sqlite3.Error) -> int | None:
    """SQLite's primary result code, also where Python does not show it."""
    code = getattr(exc, "sqlite_errorcode", None)
    if isinstance(code, int):
        return code & 0xFF
    text = str(exc).lower()
    return next((number for part, number in _CODES_BY_TEXT if part in text), None)


def _is_absent(path: Path) -> bool:
    """Whether there is no such file; a folder that may not be entered does not tell."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _device_and_inode(path: Path) -> tuple[int, int]:
    """What the file is, whatever it is called; zeros when there is none."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return 0, 0


def _split(script: str) -> Iterator[str]:
    """The statements of a script, triggers in one piece."""
    collected = ""
    for line in script.splitlines():
        collected += line + "\n"
        if line.strip() and sqlite3.complete_statement(collected):
            yield collected
            collected = ""


@cache
def _expected_shape() -> frozenset[str]:
    """What `setup` creates, asked of SQLite itself."""
    sql = load("sqlite")
    conn = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for statement in _split(sql["setup"]):
            conn.execute(statement)
        return frozenset(row[0] for row in conn.execute(sql["shape"]))
    finally:
        conn.close()


def _file_system(path: Path) -> str:
    """Type of the file system that holds the path; empty where the host does not tell."""
    real = os.path.realpath(path)
    best, kind = "", ""
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, mounted, found, *_ = line.split(" ")
            mounted = mounted.replace("\\040", " ")
            inside = real == mounted or real.startswith(mounted.rstrip("/") + "/")
            if inside and len(mounted) >= len(best):
                best, kind = mounted, found
    return kind
