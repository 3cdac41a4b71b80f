"""The high-water store in PostgreSQL: the default for production, on a server of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import ConnStatus
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

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
from surefoot.highwater.connections import Connections, GivenPool, OwnConnections
from surefoot.highwater.driver import REPEATABLE, Row, SqlHighWater, missing_facts
from surefoot.highwater.statements import load

__all__ = ["PostgresHighWater"]

_LIMITS = Limits()
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\Z")
_REPEATS_MAX = 3

_GUARD = "SF001"
#: insufficient_privilege: trying again does not help.
_NO_RIGHT = "42501"
_UNKNOWN_COMPLETION = "40003"
_TRY_AGAIN = frozenset({"40001", "40P01"})
_NOT_THERE = frozenset({"42P01", "42703", "3F000"})
_RULE_BROKEN = frozenset({"23514", "23502"})

#: What `setup` creates; the statement `shape` answers with these facts.
_SHAPE = frozenset(
    {
        *(f"column {name} bytea not null" for name in ("tenant", "thread", "digest")),
        *(f"column {name} bytea not null" for name in ("owner", "intents")),
        *(f"column {name} bytea not null" for name in ("tenant_key", "thread_key")),
        *(f"column {name} bigint not null" for name in ("incarnation", "seq", "epoch")),
        *(f"column {name} bigint not null" for name in ("lease_until_ms", "step", "resumes")),
        *(f"column {name} boolean not null" for name in ("clean", "tainted")),
        "column state text not null",
        *(f"constraint surefoot_marks_{name}" for name in ("pkey", "incarnation", "seq")),
        *(f"constraint surefoot_marks_{name}" for name in ("digest", "epoch", "lease")),
        *(f"constraint surefoot_marks_{name}" for name in ("state", "resumes")),
        *(f"trigger surefoot_marks_{name}" for name in ("grow", "keep", "keep_all")),
    }
)

T = TypeVar("T")


class _AnswerLost(Exception):
    """The connection broke after the statement may have been sent."""


class PostgresHighWater(SqlHighWater):
    """A high-water store in one PostgreSQL table.

    Safe for threads, processes and forks; survives ended backends and restarted servers
    between two calls. Every write is one statement in a transaction of its own, and sets
    ``synchronous_commit`` for it.

    Args:
        conninfo_or_pool: A connection string, or an open pool, which is never closed here.
        schema: Schema of the table; None means that of the search path.
        limits: Bounds of connections and waits.

    Raises:
        Misconfigured: The connection string or the schema's name is malformed.
    """

    def __init__(
        self,
        conninfo_or_pool: str | ConnectionPool[Any],
        *,
        schema: str | None = None,
        limits: Limits = _LIMITS,
    ) -> None:
        if schema is not None and not _SCHEMA.match(schema):
            raise Misconfigured(
                field="schema", reason="must be letters, digits and _, 63 at most, no digit first"
            )
        self._connections: Connections
        if isinstance(conninfo_or_pool, str):
            self._connections = OwnConnections(conninfo_or_pool, limits)
        else:
            self._connections = GivenPool(conninfo_or_pool, limits)
        self.shown = self._connections.shown
        self._limits = limits
        self._is_closed = False
        prefix, literal = (f'"{schema}".', f"'{schema}'") if schema else ("", "NULL")
        self._sql = {
            name: sql.replace("{schema}", prefix).replace("{schema_name}", literal)
            for name, sql in load("postgres").items()
        }

    # --- set-up and checks ----------------------------------------------------------------------

    def setup(self, *, verify_only: bool = False) -> None:
        """Creates the table, or only checks that it is as it should be.

        Raises:
            NotSetUp: Only checking, and there is no table.
            MigrationRefused: A table is there, but not the one of this release.
            StoreUnavailable: The server did not answer, or the role may not create tables.
        """
        missing = missing_facts(_SHAPE, self._shape())
        if not missing:
            return
        if verify_only:
            self._refuse_shape(missing)
        self._create_table()
        missing = missing_facts(_SHAPE, self._shape())
        if missing:
            self._refuse_shape(missing)

    def _shape(self) -> frozenset[str]:
        return self._run(
            "shape", {}, lambda rows: frozenset(_plain(row[0]) for row in rows), thread=None
        )

    def _refuse_shape(self, missing: str) -> None:
        if not self._shape():
            raise NotSetUp(where=self.shown, reason="table surefoot_marks is missing")
        raise MigrationRefused(where=self.shown, reason=f"missing: {missing}")

    def _create_table(self) -> None:
        with self._connections.lend() as conn:
            try:
                with conn.transaction():
                    conn.execute(self._encoded("setup_lock"), self._session())
                    # No parameters, so that several statements may travel in one text.
                    conn.execute(self._encoded("setup"))
            except psycopg.Error as exc:
                if exc.sqlstate in _RULE_BROKEN | {_GUARD}:
                    raise self._unavailable(_primary(exc)) from None
                raise self._typed(exc, None) from None

    def check_durability(self) -> None:
        """Refuses a server that may lose acknowledged marks (P0).

        Raises:
            Misconfigured: ``fsync`` or ``full_page_writes`` is off, the server is a replica,
                the table is unlogged, or ``synchronous_commit`` cannot be turned on.
            StoreUnavailable: The server did not answer.
        """
        row = self._durability()
        fsync, full_pages, in_recovery, commit, kind = row[:5]
        found = (
            (_plain(fsync) != "on", "fsync is off; it may lose acknowledged marks"),
            (_plain(full_pages) != "on", "full_page_writes is off; a crash may tear its pages"),
            (bool(in_recovery), "it is a replica in recovery; marks need the primary"),
            (
                _plain(commit) not in {"on", "remote_apply"},
                "synchronous_commit cannot be turned on",
            ),
            (_plain(kind) != "p", "table surefoot_marks is not permanent; a crash empties it"),
        )
        reasons = [reason for wrong, reason in found if wrong]
        if reasons:
            raise Misconfigured(field="highwater", reason=f"{self.shown}: {'; '.join(reasons)}")

    def _durability(self) -> Row:
        rows: Sequence[Row] = self._run("durability", {}, lambda rows: rows, thread=None)
        return rows[0]

    def server_identity(self) -> str:
        """Text that is equal for two addresses of the same server, whatever the database.

        It is the cluster's system identifier; where the role may not read it, the server's
        port and start time.
        """
        try:
            found = self._run("identity", {}, lambda rows: _plain(rows[0][0]), thread=None)
        except (StoreUnavailable, Misconfigured):
            row = self._durability()  # raises when it was not about permission
            return f"postgresql:started:{_plain(row[5])}:{_plain(row[6])}"
        return f"postgresql:system:{found}"

    def close(self) -> None:
        """Closes our own connections; a given pool stays open."""
        self._is_closed = True
        self._connections.close()

    # --- statements -----------------------------------------------------------------------------

    def _session(self) -> dict[str, Any]:
        return {"lock_timeout": f"{self._limits.lock_timeout_ms}ms"}

    def _encoded(self, name: str) -> bytes:
        return self._sql[name].encode()

    def _run(
        self,
        name: str,
        params: Mapping[str, Any],
        decode: Callable[[Sequence[Row]], T],
        *,
        thread: str | None,
    ) -> T:
        if self._is_closed:
            raise self._closed()
        values = {**params, **self._session()}
        deadline = time.monotonic() + self._limits.lock_timeout_ms / 1_000
        lost = 0
        while True:
            try:
                return decode(self._once(name, values))
            except _AnswerLost as exc:
                reason = str(exc)
                if name not in REPEATABLE:
                    what = f"{name} of thread {thread!r}"
                    raise OutcomeUnknown(what=what, reason=f"{self.shown}: {reason}") from None
                lost += 1
                if lost >= _REPEATS_MAX:
                    raise self._unavailable(reason) from None
            except psycopg.Error as exc:
                # The server answered with an error: nothing of the statement remains.
                if exc.sqlstate not in _TRY_AGAIN or time.monotonic() >= deadline:
                    raise self._typed(exc, thread) from None

    def _once(self, name: str, values: Mapping[str, Any]) -> list[Row]:
        """Sends a statement once.

        Raises:
            _AnswerLost: It may have been carried out.
            psycopg.Error: The server refused it.
            StoreUnavailable: There was no connection.
        """
        with self._connections.lend() as conn:
            try:
                with conn.cursor(binary=True, row_factory=tuple_row) as cursor:
                    # Never prepared: psycopg numbers its statements by connection, and a pooler
                    # that shares sessions between transactions would let one client execute what
                    # another one prepared under the same number.
                    cursor.execute(self._encoded(name), values, prepare=False)
                    return list(cursor.fetchall())
            except psycopg.Error as exc:
                if conn.pgconn.status == ConnStatus.OK and exc.sqlstate not in {
                    None,
                    _UNKNOWN_COMPLETION,
                }:
                    raise
                with suppress(psycopg.Error):
                    conn.close()
                raise _AnswerLost(_primary(exc)) from None

    def _typed(self, exc: psycopg.Error, thread: str | None) -> SurefootError:
        """The error of ours that says what to do about one of the server's."""
        state, text = exc.sqlstate, _primary(exc)
        if state in _NOT_THERE:
            return NotSetUp(where=self.shown, reason=text)
        if state == _GUARD:
            return Misuse(field="highwater", reason=text.removeprefix("surefoot guard: "))
        if state in _RULE_BROKEN:
            return MarkCorrupt(thread=thread, reason=f"the stored row breaks its rules: {text}")
        if state == _NO_RIGHT:
            return Misconfigured(field="role", reason=f"{self.shown}: {text}")
        return self._unavailable(f"{text} ({state})")

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(store=self.shown, reason=reason)


def _primary(exc: psycopg.Error) -> str:
    """The first line only: details of a message quote rows."""
    text = exc.diag.message_primary or str(exc)
    return text.strip().splitlines()[0] if text.strip() else type(exc).__name__


def _plain(value: Any) -> str:
    """Text of the server; bytes when the database has no encoding."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
