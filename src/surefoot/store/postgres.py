"""Content store in PostgreSQL: one prepared statement, one round trip and one commit per append."""

from __future__ import annotations

import hashlib
import os
import re
import select
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import psycopg
import psycopg_pool
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.rows import tuple_row

from surefoot.config import Limits
from surefoot.conninfo import parse_conninfo, shown_address
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
from surefoot.store.statements import Migration, load_statements

__all__ = ["PostgresContentStore"]

_T = TypeVar("_T")
_DIALECT = "postgres"
_TRIES = 3
_SCHEMA_BYTES = 63
#: The server rolled the statement back and says that the same statement may succeed now.
_AGAIN = frozenset({"40001", "40P01"})
#: A prepared statement is unknown or known already: something between us and the server shares
#: sessions and does not keep statements apart.
_STATEMENT_MIXED_UP = frozenset({"26000", "42P05"})
#: Savepoint below which a caller's statements run.
_CALLER = "surefoot_caller"
#: Ends a caller's statements. What he has set for the session goes with them, before the commit: a
#: pooler in transaction mode gives the server's session to somebody else right after it. His
#: deferred triggers run first, because they may depend on it.
_CALLER_ENDS = (
    "SET CONSTRAINTS ALL IMMEDIATE; RESET SESSION AUTHORIZATION; RESET ALL; "
    f"RELEASE SAVEPOINT {_CALLER}"
)
_MISSING = frozenset({"42P01", "42703", "3F000"})
#: A lost server is noticed within a minute also while we wait for an answer.
_NETWORK = {
    "application_name": "surefoot",
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
#: What libpq says when it cannot connect, reduced to words that cannot hold a secret.
_CONNECT_FAILURES = (
    "Connection refused",
    "No such file or directory",
    "timeout expired",
    "could not translate host name",
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "starting up",
    "shutting down",
    "too many clients",
    "certificate",
)


# --- statements --------------------------------------------------------------------------------
# Statements go to libpq without psycopg's cursors: those cost more than the server needs for
# an append. Everything travels in binary, and a parameter's type follows from what it is, so
# that a statement has the same types at every call and is prepared once per connection.

_BYTEA, _BIGINT, _BYTEA_LIST, _BIGINT_LIST = 17, 20, 1001, 1016
_PARAMETER = re.compile(r"%\((\w+)\)s")

#: Uses of statements by connection: how often while unprepared, and -1 once prepared. Shared by
#: all stores, because two of them may use the same pool.
_uses: weakref.WeakKeyDictionary[psycopg.Connection[Any], dict[bytes, int]] = (
    weakref.WeakKeyDictionary()
)


def _int8(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _array(element: int, items: Sequence[bytes]) -> bytes:
    """A one-dimensional array without nulls in PostgreSQL's binary form."""
    if not items:
        return struct.pack("!iiI", 0, 0, element)
    parts = [struct.pack("!iiIii", 1, 0, element, len(items), 1)]
    for item in items:
        parts.append(len(item).to_bytes(4, "big"))
        parts.append(item)
    return b"".join(parts)


def _encoded(name: str, value: Param) -> Sequence[tuple[str, int, bytes | None]]:
    """What a parameter becomes: name, type and bytes; see the head of the statements' file."""
    if isinstance(value, bytes):
        return ((name, _BYTEA, value),)
    if isinstance(value, int):
        return ((name, _BIGINT, _int8(value)),)
    if isinstance(value, str):
        return ((name, _BYTEA, value.encode("utf-8", "surrogatepass")),)
    if isinstance(value, Blobs):
        return ((name, _BYTEA_LIST, _array(_BYTEA, value.items)),)
    if isinstance(value, Pairs):
        first = _array(_BIGINT, [_int8(item) for item, _ in value.items])
        second = _array(_BIGINT, [_int8(item) for _, item in value.items])
        return ((f"{name}_first", _BIGINT_LIST, first), (f"{name}_second", _BIGINT_LIST, second))
    return ((name, _BIGINT, None),)  # only numbers may be absent


class _Statements:
    """The dialect's statements for one schema, with numbered parameters."""

    def __init__(self, quoted_schema: str) -> None:
        self._quoted = quoted_schema
        self._known: dict[str, _Text] = {}

    def text(self, name: str) -> _Text:
        """A statement, or one put together from the parts that are named."""
        known = self._known.get(name)
        if known is None:
            statements = load_statements(_DIALECT)
            whole = "\n".join(statements[part].text for part in name.split(" "))
            known = self._known[name] = self._numbered(whole)
        return known

    def _numbered(self, whole: str) -> _Text:
        names: list[str] = list(dict.fromkeys(_PARAMETER.findall(whole)))
        numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", whole)
        sql = numbered.replace("{schema}", self._quoted).encode()
        return _Text(sql, b"surefoot_" + hashlib.sha256(sql).hexdigest()[:24].encode(), names)


@dataclass(frozen=True, slots=True)
class _Text:
    """A statement as the server gets it; ``label`` names it once it is prepared."""

    sql: bytes
    label: bytes
    names: Sequence[str]


class _Session:
    """One connection, used by one thread at a time."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        statements: _Statements,
        prepare_threshold: int | None,
    ) -> None:
        self.connection = connection
        self._statements = statements
        self._threshold = prepare_threshold

    def __call__(self, name: str, /, **params: Param) -> Sequence[tuple[Any, ...]]:
        """Executes a named statement in one round trip; one more when it is prepared.

        An interrupt is noticed when the answer is there: what was sent is never given up.
        """
        text = self._statements.text(name)
        given: dict[str, tuple[int, bytes | None]] = {}
        for key, value in params.items():
            for part, oid, raw in _encoded(key, value):
                given[part] = (oid, raw)
        # NULL is allowed here, whatever the annotation of the call says.
        values = cast("list[bytes]", [given[wanted][1] for wanted in text.names])
        formats = [pq.Format.BINARY] * len(values)
        pgconn = self.connection.pgconn
        if self._is_prepared(text, given):
            result = pgconn.exec_prepared(text.label, values, formats, pq.Format.BINARY)
        else:
            types = [given[wanted][0] for wanted in text.names]
            result = pgconn.exec_params(text.sql, values, types, formats, pq.Format.BINARY)
        _raise_failure(result)
        return _rows(result)

    def _is_prepared(self, text: _Text, given: Mapping[str, tuple[int, bytes | None]]) -> bool:
        """Prepares a statement that was used often enough on this connection."""
        if self._threshold is None:
            return False
        uses = _uses.setdefault(self.connection, {})
        count = uses.get(text.label, 0)
        if count < 0:
            return True
        if count < self._threshold:
            uses[text.label] = count + 1
            return False
        types = [given[wanted][0] for wanted in text.names]
        _raise_failure(self.connection.pgconn.prepare(text.label, text.sql, types))
        uses[text.label] = -1
        return True

    def script(self, text: str) -> None:
        """Executes several statements without parameters."""
        _raise_failure(self.connection.pgconn.exec_(text.encode()))


def _raise_failure(result: pq.abc.PGresult) -> None:
    """Raises psycopg's error for a result that is one."""
    if result.status in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
        return
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    kind: type[psycopg.Error] = psycopg.DatabaseError if state else psycopg.OperationalError
    with suppress(KeyError):
        kind = psycopg.errors.lookup(state)
    raise kind(result.get_error_message(), info=result)


def _rows(result: pq.abc.PGresult) -> Sequence[tuple[Any, ...]]:
    """Rows of a binary result, adapted as psycopg does it out of the box."""
    transformer = Transformer()
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


# --- names -------------------------------------------------------------------------------------


def _checked_schema(schema: str | None) -> str:
    """The schema's name; None is ``public``, whatever the search path says.

    Raises:
        Misconfigured: PostgreSQL would not take the name as it is.
    """
    name = "public" if schema is None else schema
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Misconfigured(field="schema", reason="it is no valid text") from None
    if not 0 < size <= _SCHEMA_BYTES or "\0" in name:
        raise Misconfigured(
            field="schema", reason=f"{name!r} does not have 1 to 63 bytes, or holds a NUL"
        )
    if name.startswith("pg_") or name == "information_schema":
        raise Misconfigured(field="schema", reason=f"{name!r} belongs to PostgreSQL itself")
    return name


def _shown(conninfo: object) -> str:
    """The address without user, password and options.

    Raises:
        Misconfigured: libpq does not understand it.
    """
    if not isinstance(conninfo, str):
        return "postgresql://(pool)"
    return shown_address(parse_conninfo(conninfo, field="conn_string"))


# --- a caller's statements in our transaction -------------------------------------------------


class _Undo(Exception):
    """Unwinds a transaction that shall leave nothing."""


class _Stage:
    """How far a transaction with a caller's statements has come."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        self.appending = False
        self.committing = False
        self.key: int | None = None

    def run(
        self,
        connection: psycopg.Connection[Any],
        work: Callable[[psycopg.Connection[Any]], Append],
    ) -> Append:
        """Runs the caller's statements behind a savepoint, which is gone if he ended the block.

        psycopg itself refuses `commit` and `rollback` within a block; text of his own it does not.

        Raises:
            TransactionEnded: He ended it.
            _Undo: He raised, and everything is to be taken back.
        """
        connection.execute(f"SAVEPOINT {_CALLER}")
        try:
            append = work(connection)
            connection.execute(_CALLER_ENDS, prepare=False)
            return append
        except psycopg.Error as error:
            self._require_savepoint(connection, error)
            self.raised = error
        except BaseException as error:  # noqa: BLE001 - raised again as it is, outside of the block
            self._require_savepoint(connection, error)
            self.raised = error
        raise _Undo from None

    @staticmethod
    def _require_savepoint(connection: psycopg.Connection[Any], error: BaseException) -> None:
        try:
            connection.execute(f"ROLLBACK TO SAVEPOINT {_CALLER}")
        except (
            psycopg.errors.NoActiveSqlTransaction,
            psycopg.errors.InvalidSavepointSpecification,
        ):
            raise TransactionEnded(reason="by a COMMIT or ROLLBACK in its SQL") from error
        except psycopg.Error:
            return  # the connection is gone, and the transaction with it


# --- the driver --------------------------------------------------------------------------------


class PostgresContentStore:
    """Content store (A) in a PostgreSQL schema.

    Attributes:
        shown: The address for messages, without secrets.
    """

    def __init__(
        self,
        conninfo: str | psycopg_pool.ConnectionPool[Any],
        *,
        schema: str | None = None,
        limits: Limits | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """Remembers where to connect; nothing is opened before the first use.

        Args:
            conninfo: Connection string, or a pool that stays the caller's: it is used in
                autocommit mode, and never closed here.
            schema: Where the tables are; ``public`` if not given. Always named in statements.
            limits: See `Limits`; ``pool_max_connections``, ``connect_timeout_ms`` and
                ``lock_timeout_ms`` are used here.
            prepare_threshold: Uses of a statement on a connection before it is prepared; None
                for poolers that share sessions and know no prepared statements.

        Raises:
            Misconfigured: The connection string or the schema cannot be right.
        """
        self._schema = _checked_schema(schema)
        self._quoted = '"' + self._schema.replace('"', '""') + '"'
        self._limits = limits or Limits()
        self._prepare_threshold = prepare_threshold
        self._conninfo: str | None = None
        self._given: psycopg_pool.ConnectionPool[Any] | None = None
        if isinstance(conninfo, str):
            self._conninfo = conninfo
            self.shown = _shown(conninfo)
        else:
            self._given = conninfo
            self.shown = _shown(conninfo.conninfo)
        self._own: psycopg_pool.ConnectionPool[Any] | None = None
        self._own_pid = 0
        #: Pools of a parent process: never used here, and kept so that nothing tidies them up.
        self._parents: list[psycopg_pool.ConnectionPool[Any] | None] = []
        self._opening = threading.Lock()
        self._closed = False
        self._statements = _Statements(self._quoted)

    # --- the port -------------------------------------------------------------------------------

    def setup(self, *, verify_only: bool = False) -> None:
        """Creates or migrates the tables, or only checks them; see the port.

        A role without the right to create anything is enough when everything is there.

        Raises:
            Busy: Another migration holds the lock for longer than ``lock_timeout_ms``.
            NotSetUp: Only with ``verify_only``: something is missing.
            MigrationRefused: The database and this release do not agree.
            Misconfigured: The role may not create what is missing.
        """
        steps = self._read(self._pending)
        if verify_only:
            migrate.refuse_pending(steps, self.shown)
        deadline = time.monotonic() + self._limits.lock_timeout_ms / 1_000
        while steps and not self._migrated():
            if time.monotonic() >= deadline:
                raise Busy(what=f"the migration lock of {self.shown}", holder="another process")
            time.sleep(0.02)

    def check_durability(self) -> None:
        """Refuses a server that may lose acknowledged commits (P0).

        ``synchronous_commit`` needs no check: every append raises it for itself if a session,
        role or database has lowered it.
        """
        settings = self._read(records.read_durability)
        lost = sorted(n for n in ("fsync", "full_page_writes") if settings.get(n) != "on")
        if lost:
            raise Misconfigured(
                field="content store",
                reason=f"{self.shown} has {', '.join(lost)} switched off; "
                "a crash may lose commits that were acknowledged",
            )

    def server_identity(self) -> str:
        """Text that is equal for two addresses of the same server, whatever the database."""
        try:
            return self._read(partial(records.server_identity, statement="system_identity"))
        except Misconfigured:  # the role may not read the control file
            return self._read(partial(records.server_identity, statement="started_identity"))

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
        return self._write("append", lambda run: records.append_whole(run, append))

    def append_within(self, work: Callable[[psycopg.Connection[Any]], Append]) -> int | None:
        """Runs a caller's statements and an append in one transaction; see the port.

        A transaction from begin to commit on one connection, so a pooler in transaction mode does
        not get between.
        """
        stage = _Stage()
        try:
            with self._session() as session, self._lent(session.connection) as connection:
                with connection.transaction():
                    append = stage.run(connection, work)
                    stage.appending = True
                    stage.key = records.append_whole(session, append)
                    if stage.key is None:
                        raise _Undo
                    stage.committing = True
                return stage.key
        except _Undo:
            pass
        except psycopg.Error as error:
            if stage.appending and _is_lost(error):
                raise OutcomeUnknown(what="append_within", reason=_reason(error)) from error
            if stage.committing:
                raise  # a deferred constraint of the caller's: rolled back
            raise self._translation(error) from error
        if stage.raised is not None:  # as the caller raised it, whatever it is
            raise stage.raised
        return None

    def collect(self, key: int, kept: Kept) -> bool:
        """Deletes what a published record permits to delete, in one statement (step P6)."""
        return self._write("collect", lambda run: records.collect(run, key, kept))

    def discard_frames(self, key: int, keys: Sequence[tuple[int, int]]) -> None:
        """Deletes the named frames, in one statement."""
        self._write("discard_frames", lambda run: records.discard_frames(run, key, keys))

    def delete_thread(self, key: int) -> None:
        """Deletes all rows of a thread, in one statement (step P6)."""
        self._write("delete_thread", lambda run: records.delete_thread(run, key))

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
        """Closes the connections that are ours."""
        self._closed = True
        with self._opening:
            own, self._own = self._own, None
        if own is not None and self._own_pid == os.getpid():
            own.close()

    # --- migrating ------------------------------------------------------------------------------

    def _pending(self, run: records.Run) -> Sequence[Migration]:
        return migrate.pending(run, _DIALECT, self.shown, schema=self._schema)

    def _migrated(self) -> bool:
        """Applies what is pending in one transaction; False if the lock is not free."""
        digest = hashlib.sha256(f"surefoot_migration {self._schema}".encode()).digest()
        lock = int.from_bytes(digest[:8], "big", signed=True)
        try:
            with self._session() as session, session.connection.transaction():
                # A snapshot per statement, so that what the last holder did is seen.
                session.script("SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
                if not records.try_migration_lock(session, lock):
                    return False
                if not records.schema_present(session, self._schema):
                    records.create_schema(session)
                migrate.apply(session, self._script(session), self._pending(session))
                return True
        except psycopg.Error as error:
            raise self._translation(error) from error

    def _script(self, session: _Session) -> Callable[[str], None]:
        return lambda text: session.script(text.replace("{schema}", self._quoted))

    # --- connections ----------------------------------------------------------------------------

    def _pool(self) -> psycopg_pool.ConnectionPool[Any]:
        """The pool, opened at first use; a forked child opens one of its own."""
        if self._closed:
            raise Closed(field=self.shown)
        if self._given is not None:
            return self._given
        if self._own is not None and self._own_pid == os.getpid():
            return self._own
        with self._opening:
            if self._own is None or self._own_pid != os.getpid():
                self._parents.append(self._own)
                self._own = self._opened_pool()
                self._own_pid = os.getpid()
            return self._own

    def _opened_pool(self) -> psycopg_pool.ConnectionPool[Any]:
        """Opens a pool after one connection has shown that the server can be reached.

        Raises:
            StoreUnavailable: It cannot; the pool alone would only say that time is over.
        """
        conninfo = self._conninfo or ""
        given = parse_conninfo(conninfo, field="conn_string")
        timeout = self._limits.connect_timeout_ms / 1_000
        kwargs: dict[str, Any] = {k: v for k, v in _NETWORK.items() if k not in given}
        kwargs["autocommit"] = True
        kwargs.setdefault("connect_timeout", max(2, round(timeout)))
        try:
            psycopg.connect(conninfo, **kwargs).close()
        except psycopg.Error as error:
            raise StoreUnavailable(store=self.shown, reason=_connect_reason(error)) from None
        return psycopg_pool.ConnectionPool(
            conninfo,
            kwargs=kwargs,
            min_size=1,
            max_size=self._limits.pool_max_connections,
            timeout=timeout,
            reconnect_timeout=timeout,
            name="surefoot",
            open=True,
        )

    @contextmanager
    def _session(self) -> Iterator[_Session]:
        """A connection in autocommit mode that was alive a moment ago."""
        pool = self._pool()
        connection = self._taken(pool)
        as_given = connection.autocommit
        try:
            if not as_given:
                connection.autocommit = True
            yield _Session(connection, self._statements, self._prepare_threshold)
        finally:
            if not as_given:
                with suppress(psycopg.Error):
                    connection.autocommit = False
            pool.putconn(connection)

    def _taken(self, pool: psycopg_pool.ConnectionPool[Any]) -> psycopg.Connection[Any]:
        """A connection on which the server has not hung up.

        Looking at the socket costs no round trip and tells of connections that were closed
        while they were idle, so nothing is sent on those and nothing is in doubt.
        """
        deadline = time.monotonic() + self._limits.connect_timeout_ms / 1_000
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                connection: psycopg.Connection[Any] = pool.getconn(timeout=left)
            except psycopg_pool.PoolClosed:
                if self._closed:
                    raise Closed(field=self.shown) from None
                raise StoreUnavailable(store=self.shown, reason="the pool is not open") from None
            except psycopg.OperationalError as error:
                raise StoreUnavailable(
                    store=self.shown,
                    reason=f"{type(error).__name__}: no connection within "
                    f"{self._limits.connect_timeout_ms} ms",
                ) from None
            if _is_alive(connection):
                return connection
            # Not `close`, which a pool may have redefined as giving back.
            connection.pgconn.finish()
            pool.putconn(connection)

    @contextmanager
    def _lent(self, connection: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
        """The connection as a caller expects one; what he sets on it goes no further.

        It is closed afterwards, and the pool replaces it: nothing else undoes all that a session
        can hold (settings, temporary tables, locks, listening), and the pool's own settings as
        well.
        """
        before = (connection.row_factory, connection.cursor_factory, connection.prepare_threshold)
        connection.row_factory = tuple_row
        if self._prepare_threshold is None:  # something between us and the server forgets them
            connection.prepare_threshold = None
        try:
            yield connection
        finally:
            connection.row_factory, connection.cursor_factory = before[:2]
            connection.prepare_threshold = before[2]
            connection.pgconn.finish()  # not `close`, which a pool may have redefined

    # --- running --------------------------------------------------------------------------------

    def _read(self, work: Callable[[_Session], _T]) -> _T:
        """Runs statements that only read; a lost connection is replaced, a few times."""
        for left in reversed(range(_TRIES)):
            try:
                with self._session() as session:
                    return work(session)
            except psycopg.Error as error:
                if left and (_is_lost(error) or self._may_repeat(error)):
                    continue
                raise self._translation(error) from error
        raise StoreUnavailable(store=self.shown, reason="no try was left")

    def _write(self, what: str, work: Callable[[_Session], _T]) -> _T:
        """Runs one statement that writes; it is repeated only if it was proven undone."""
        for left in reversed(range(_TRIES)):
            try:
                with self._session() as session:
                    return work(session)
            except psycopg.Error as error:
                if _is_lost(error):
                    raise OutcomeUnknown(what=what, reason=_reason(error)) from error
                if left and self._may_repeat(error):
                    continue
                raise self._translation(error) from error
        raise StoreUnavailable(store=self.shown, reason="no try was left")

    def _may_repeat(self, error: psycopg.Error) -> bool:
        """Whether the server did nothing and may do it now; stops preparing if that failed."""
        if error.sqlstate in _STATEMENT_MIXED_UP:
            self._prepare_threshold = None
            return True
        return error.sqlstate in _AGAIN

    def _translation(self, error: psycopg.Error) -> SurefootError:
        state = error.sqlstate or ""
        if state in _MISSING:
            return NotSetUp(
                where=f"{self.shown} schema {self._schema}", reason=error.diag.message_primary
            )
        if state == "42501":
            return Misconfigured(
                field="role",
                reason=f"the role lacks a right in {self.shown}: {error.diag.message_primary}",
            )
        if state == "23505":
            frame = error.diag.table_name == "surefoot_frame"
            if frame:
                return StoreUnavailable(store=self.shown, reason=records.FRAME_EXISTS)
            return ChunkTaken(store=self.shown, reason=records.CHUNK_EXISTS)
        return StoreUnavailable(store=self.shown, reason=_reason(error))


def _is_alive(connection: psycopg.Connection[Any]) -> bool:
    """Looks for an end of the connection that has arrived already; sends nothing."""
    if connection.closed:
        return False
    poll = select.poll()
    try:
        poll.register(connection.fileno(), select.POLLIN)
        while poll.poll(0):
            # A notice is taken in, and the socket is quiet then; an end raises.
            connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return True


def _is_lost(error: psycopg.Error) -> bool:
    """Whether the answer is missing: no error of the server, or one that it says goodbye with."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(("08", "57P"))


def _reason(error: psycopg.Error) -> str:
    return f"{type(error).__name__} {error.sqlstate or '(no answer)'}"


def _connect_reason(error: psycopg.Error) -> str:
    """Why a connection failed, in words that cannot hold a secret."""
    text = str(error)
    known = next((words for words in _CONNECT_FAILURES if words in text), "")
    name = type(error).__name__
    return f"{name} {error.sqlstate}" if error.sqlstate else f"{name} {known}".rstrip()
