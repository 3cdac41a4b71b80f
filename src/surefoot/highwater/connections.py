"""Connections to a PostgreSQL high-water store: our own few, or those of a given pool.

A connection is lent only after a look at its socket: one that the server has closed in the
meantime is dropped before anything is sent on it, so that a restarted server costs nobody an
unknown outcome.
"""

from __future__ import annotations

import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from surefoot.config import Limits
from surefoot.conninfo import parse_conninfo, shown_address
from surefoot.errors import Misconfigured, StoreUnavailable

__all__ = ["Connections", "GivenPool", "OwnConnections"]

Connection = psycopg.Connection[Any]

_SECRET_OPTIONS = ("password", "sslpassword", "passfile", "oauth_client_secret")


def alive(conn: Connection) -> bool:
    """Tells whether an idle connection may be used, without a round trip.

    A server says nothing on an idle connection but farewell (or a notification); so one with
    something to read is dropped unread, which costs a new connection and never an answer.
    """
    if conn.closed or conn.pgconn.status != ConnStatus.OK:
        return False
    poll = select.poll()
    try:
        poll.register(conn.pgconn.socket, select.POLLIN)
        return not poll.poll(0)
    except (psycopg.Error, OSError, ValueError):
        return False


class Connections(ABC):
    """Lends connections in autocommit mode; never one that is known to be dead."""

    shown: str

    @abstractmethod
    def lend(self) -> AbstractContextManager[Connection]:
        """Lends a connection.

        Raises:
            StoreUnavailable: None could be had; nothing was sent.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes what is ours."""


class OwnConnections(Connections):
    """A stack of connections: opened when needed, bounded, dropped after a fork.

    Args:
        conninfo: URL or keyword form.
        limits: ``pool_max_connections`` and ``connect_timeout_ms``.

    Raises:
        Misconfigured: The connection string cannot be parsed.
    """

    def __init__(self, conninfo: str, limits: Limits) -> None:
        options = parse_conninfo(conninfo, field="highwater")
        seconds = max(1, -(-limits.connect_timeout_ms // 1_000))
        defaults: dict[str, Any] = {
            "application_name": "surefoot-highwater",
            "connect_timeout": seconds,
            "keepalives_idle": seconds,
            "keepalives_interval": max(1, seconds // 3),
            "keepalives_count": 3,
            "tcp_user_timeout": limits.connect_timeout_ms,
        }
        secrets = [str(options[name]) for name in _SECRET_OPTIONS if options.get(name)]
        self._secrets = sorted({*secrets, *map(quote, secrets)}, key=len, reverse=True)
        self._conninfo = make_conninfo(**{**defaults, **options})
        self._limits = limits
        self.shown = shown_address(options)
        self._start_process()

    def _start_process(self) -> None:
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._slots = threading.BoundedSemaphore(self._limits.pool_max_connections)
        self._idle: list[Connection] = []
        self._is_closed = False

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(store=self.shown, reason=reason)

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lends an idle connection that is alive, or opens one."""
        if self._pid != os.getpid():
            # Closing them here would end the sessions of the parent.
            _ABANDONED.extend(self._idle)
            self._start_process()
        slots = self._slots
        if not slots.acquire(timeout=self._limits.connect_timeout_ms / 1_000):
            raise self._unavailable("all connections are in use")
        try:
            conn = self._take() or self._connect()
            try:
                yield conn
            finally:
                self._give(conn)
        finally:
            slots.release()

    def _take(self) -> Connection | None:
        while True:
            with self._guard:
                if not self._idle:
                    return None
                conn = self._idle.pop()
            if alive(conn):
                return conn
            conn.close()

    def _give(self, conn: Connection) -> None:
        idle = conn.pgconn.transaction_status == TransactionStatus.IDLE and not conn.closed
        with self._guard:
            if idle and not self._is_closed:
                self._idle.append(conn)
                return
        conn.close()

    def _connect(self) -> Connection:
        try:
            return psycopg.connect(self._conninfo, autocommit=True)
        except psycopg.Error as exc:
            reason = str(exc).strip().splitlines()[0] if str(exc).strip() else "no answer"
        for secret in self._secrets:
            reason = reason.replace(secret, "***")
        raise self._unavailable(reason)

    def close(self) -> None:
        """Closes the idle connections; lent ones are closed when they come back."""
        if self._pid != os.getpid():
            return
        with self._guard:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()


class GivenPool(Connections):
    """Connections of a pool of the user's; put back as they were, the pool is never closed.

    Args:
        pool: An open pool.
        limits: ``connect_timeout_ms`` bounds the wait for a connection.
    """

    def __init__(self, pool: ConnectionPool[Any], limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        conninfo = pool.conninfo
        options: dict[str, Any] = {}
        if isinstance(conninfo, str):
            with suppress(Misconfigured):
                options = parse_conninfo(conninfo, field="highwater")
        kwargs = pool.kwargs
        if isinstance(kwargs, dict):
            options.update({k: kwargs[k] for k in ("host", "port", "dbname") if k in kwargs})
        self.shown = shown_address(options)

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lends a connection of the pool that is alive."""
        conn = self._take()
        before = conn.autocommit
        try:
            conn.autocommit = True
            yield conn
        finally:
            if not conn.closed and conn.pgconn.transaction_status == TransactionStatus.IDLE:
                conn.autocommit = before
            self._pool.putconn(conn)

    def close(self) -> None:
        """Does nothing: the pool belongs to whoever opened it."""

    def _take(self) -> Connection:
        deadline = time.monotonic() + self._limits.connect_timeout_ms / 1_000
        while True:
            left = deadline - time.monotonic()
            try:
                conn: Connection = self._pool.getconn(timeout=max(left, 0.001))
            except PoolClosed:
                reason = "the pool is closed"
                break
            except (PoolTimeout, psycopg.Error):
                reason = f"no connection from the pool in {self._limits.connect_timeout_ms} ms"
                break
            if alive(conn):
                return conn
            conn.close()
            self._pool.putconn(conn)
        raise StoreUnavailable(store=self.shown, reason=reason)


_ABANDONED: list[Connection] = []
