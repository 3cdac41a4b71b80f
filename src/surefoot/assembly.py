"""Wires drivers and ports from configuration, once, and keeps what all clones of a saver share.

``Core`` owns the stores, the live sessions, the offload pool and the keeper threads (which
renew leases, flush writes that wait too long, and give back what finished runs hold).
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from psycopg_pool import ConnectionPool

from surefoot.config import Limits, ResumePolicy, StoreUrl
from surefoot.encryption import ThreadCiphers
from surefoot.errors import Busy, Closed, Fenced, Misconfigured, SurefootError
from surefoot.flows import journal, save
from surefoot.flows.acquire import acquire, release
from surefoot.flows.chain import Chain
from surefoot.highwater import PostgresHighWater, SqliteHighWater
from surefoot.host import LocalHost
from surefoot.keys import Keyring
from surefoot.offload import Offload
from surefoot.ports import Ciphers, ContentStore, HighWater, Ports
from surefoot.session import Caller, RunHandle, Session, Sessions
from surefoot.signing import Reviewers
from surefoot.store.postgres import PostgresContentStore
from surefoot.store.sqlite import SqliteContentStore

__all__ = ["Core", "core_of_run", "open_ciphers", "open_core", "open_highwater", "open_store"]

log = logging.getLogger("surefoot")
T = TypeVar("T")
_TICK_S = 1.0
_IDLE_MS = 2_000


def open_store(
    where: str | ConnectionPool[Any], *, schema: str | None, limits: Limits
) -> ContentStore:
    """The content store at an address, or behind a connection pool of the caller's.

    Raises:
        Misconfigured: The address is not understood.
    """
    if isinstance(where, ConnectionPool):
        return PostgresContentStore(where, schema=schema, limits=limits)
    if not isinstance(where, str):
        raise Misconfigured(
            field="conn_string",
            reason=f"must be an address or a ConnectionPool, not {type(where).__name__}",
        )
    url = StoreUrl.parse(where, field_name="conn_string")
    if url.scheme == "sqlite":
        if schema is not None:
            raise Misconfigured(field="schema", reason="SQLite has no schemas")
        return SqliteContentStore(url.target, limits=limits)
    return PostgresContentStore(url.target, schema=schema, limits=limits)


def open_highwater(where: str | HighWater | None, *, limits: Limits) -> HighWater:
    """The high-water store at an address, or one that the caller made.

    Raises:
        Misconfigured: None was given, or the address is not understood.
    """
    if where is None:
        raise Misconfigured(
            field="highwater",
            reason=(
                "a high-water store is needed: it is what makes a rollback visible. Pass "
                "highwater='sqlite:///marks.db' (better: on another disk or host), or "
                "'postgresql://…' on another server; `surefoot init` makes a local one"
            ),
        )
    if not isinstance(where, str):
        return where
    url = StoreUrl.parse(where, field_name="highwater")
    if url.scheme == "sqlite":
        return SqliteHighWater(url.target, limits=limits)
    return PostgresHighWater(url.target, limits=limits)


def open_ciphers(*, encryption: bool | Keyring, keys: Keyring) -> Ciphers | None:
    """What encrypts: nothing, or AES-256-GCM under the saver's own ring or another one.

    Raises:
        Misconfigured: It is neither a boolean nor a ring, or ``cryptography`` is missing.
    """
    if encryption is False:
        return None
    if encryption is True:
        return ThreadCiphers(keys, even_retired=True)
    if not hasattr(encryption, "purpose_key"):
        # None may be a setting that was forgotten: it never means "as plain text".
        raise Misconfigured(
            field="encryption",
            reason=f"must be True, False or a Keyring, not {type(encryption).__name__}",
        )
    return ThreadCiphers(encryption)


def open_core(
    conn: str | ConnectionPool[Any],
    *,
    highwater: str | HighWater | None,
    keys: Keyring | None,
    policy: ResumePolicy | None,
    limits: Limits | None,
    schema: str | None,
    tenant: str,
    reviewers: Reviewers | None = None,
    encryption: bool | Keyring = False,
) -> Core:
    """Wires everything. Keys and reviewers come from the environment when none are given.

    Raises:
        Misconfigured: An address or a setting is not understood.
        KeyMissing: There are no keys.
    """
    bounds = limits or Limits()
    ring = keys or Keyring.from_env()
    ciphers = open_ciphers(encryption=encryption, keys=ring)
    marks = open_highwater(highwater, limits=bounds)
    known = Reviewers.from_env() if reviewers is None else reviewers
    store = open_store(conn, schema=schema, limits=bounds)
    return Core(
        Ports(
            store=store,
            marks=marks,
            seals=ring,
            host=LocalHost(),
            policy=policy or ResumePolicy(),
            limits=bounds,
            tenant=tenant,
            reviewers=known,
            ciphers=ciphers,
        ),
        owns_marks=isinstance(highwater, str),
    )


def _nothing_around(call: str) -> AbstractContextManager[None]:
    """What stands around user code in every process that no test lets die."""
    del call
    return nullcontext()


class Core:
    """What all clones of a saver share."""

    def __init__(self, ports: Ports, *, owns_marks: bool = True) -> None:
        self.ports = ports
        self.sessions = Sessions()
        self.offload = Offload(ports.limits.offload_threads)
        #: Stands around each body and lookup of an effect; tests let processes die there.
        self.crossing: Callable[[str], AbstractContextManager[None]] = _nothing_around
        self._owns_marks = owns_marks
        self._gate = threading.Lock()
        self._acquiring: dict[str, threading.Lock] = {}
        self._keepers: dict[str, tuple[threading.Thread, threading.Event]] = {}
        self._closed = False
        self._durable = False
        _open_cores.add(self)

    def forget_parent(self) -> None:
        """Starts anew in a forked child, without any I/O: its parent goes on with its runs."""
        self.sessions = Sessions()
        self.offload = Offload(self.ports.limits.offload_threads)
        self._gate = threading.Lock()
        self._acquiring = {}
        self._keepers = {}

    # --- opening and closing --------------------------------------------------------------------

    def setup(self, *, verify_only: bool = False) -> None:
        """Creates or checks the tables of both stores."""
        self._alive()
        self.ports.store.setup(verify_only=verify_only)
        self.ports.marks.setup(verify_only=verify_only)
        self.check_durability()

    def check_durability(self) -> None:
        """Step P0, once per process: both stores keep what they acknowledge."""
        if not self._durable:
            self.ports.store.check_durability()
            self.ports.marks.check_durability()
            self._durable = True
            if self.degraded():
                log.warning(
                    "degraded: the high-water store is on the same server as the database; "
                    "whoever can put back one can put back both"
                )

    def degraded(self) -> bool:
        """True when both stores are on the same server or in the same file (step P0)."""
        return self.ports.store.server_identity() == self.ports.marks.server_identity()

    def _alive(self) -> None:
        if self._closed:
            raise Closed(field="saver")

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def close(self) -> None:
        """Flushes and releases every session, then closes the stores. Idempotent."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
        self.nudge()
        for keeper, _ in self._keepers.values():
            if keeper is not threading.current_thread():
                keeper.join(timeout=10)
        self.end_all()
        self.offload.close()
        self.ports.store.close()
        if self._owns_marks:
            self.ports.marks.close()
        _open_cores.discard(self)

    def end_all(self) -> None:
        """Ends every live session; failures are logged, the leases then run out by themselves."""
        for session in self.sessions.all():
            self._end(session)

    # --- sessions -------------------------------------------------------------------------------

    def load(
        self, thread: str, run: RunHandle, caller: Caller
    ) -> tuple[Session, Chain | None, bool]:
        """The session of a run that loads its checkpoint; acquired when it has none.

        Returns:
            The session, the chain as loaded when it was acquired just now, and whether it was.

        Raises:
            Busy: Another run holds the thread (R12).
            Refused: The thread may not be resumed.
        """
        self._alive()
        self.check_durability()
        with self._one_at_a_time(thread):
            live = self.sessions.get(thread)
            if live is not None and live.control is run.control and not live.ended:
                live.check()
                return live, None, False
            self._supersede(thread, caller)
            session, chain = acquire(self.ports, thread, run.control)
            session.durability = run.durability
            session.loop = run.loop
            session.caller = caller
            if run.writer is not None:
                session.writer = weakref.ref(run.writer, self._on_run_over())
            self.sessions.put(session)
        self._start_keepers()
        return session, chain, True

    def of_run(self, thread: str, run: RunHandle) -> Session:
        """The session of a run that saves.

        Raises:
            Fenced: The run has lost the thread, or never loaded it through this saver.
        """
        self._alive()
        session = self.sessions.of_run(run, thread)
        if session is None:
            other = self.sessions.get(thread)
            raise Fenced(
                thread=thread,
                epoch=None,
                current_epoch=None if other is None else other.epoch,
                reason="this run does not hold the thread any more",
            )
        return session

    def direct(self, thread: str, caller: Caller, work: Callable[[], T]) -> T:
        """A call outside a run: ends what a finished run of this process still holds, then works.

        Raises:
            Busy: A live run holds the thread.
        """
        self._alive()
        self.check_durability()
        # A stream that is suspended in the caller's own frame is alive: a direct call does not end
        # it, only another run of the thread does.
        with self._one_at_a_time(thread):
            self._supersede(thread, replace(caller, carrier=None))
            return work()

    def _supersede(self, thread: str, caller: Caller) -> None:
        """Ends a session whose run is over; refuses at once when its run is alive."""
        live = self.sessions.get(thread)
        if live is None:
            return
        if not live.is_over(caller):
            gc.collect()  # a run that ended in an error lives on in its traceback's cycle
        if not live.is_over(caller):
            raise Busy(
                what=f"thread {thread!r}",
                holder="another run of this process",
                left_ms=max(live.lease_until_ms - self.ports.host.monotonic_ms(), 0),
            )
        self._end(live)

    def _end(self, session: Session) -> None:
        try:
            if session.latched is None:
                save.flush(self.ports, session, everything=True)
            release(self.ports, session)
        except SurefootError as error:
            log.warning("thread %r was not given back: %s", session.identity.thread, error)
            session.ended = True
        self.ports.host.retire(session.owner)
        self.sessions.drop(session)

    def _one_at_a_time(self, thread: str) -> threading.Lock:
        with self._gate:
            if len(self._acquiring) > 4_096:
                self._acquiring = {k: v for k, v in self._acquiring.items() if v.locked()}
            return self._acquiring.setdefault(thread, threading.Lock())

    def _on_run_over(self) -> Callable[[object], None]:
        core = weakref.ref(self)

        def over(_: object) -> None:
            # Runs inside the garbage collector: only wake the keeper, do no I/O here.
            alive = core()
            if alive is not None:
                alive.nudge()

        return over

    # --- the keepers ----------------------------------------------------------------------------

    def _start_keepers(self) -> None:
        """Starts the thread that renews leases and the one that flushes and ends.

        They are two, because a slow store or a long save must not cost another run its lease.
        """
        with self._gate:
            for name, round_ in (("lease", Core.renew_due), ("flush", Core.flush_due)):
                held = self._keepers.get(name)
                if self._closed or (held is not None and held[0].is_alive()):
                    continue
                wake = threading.Event()
                thread = threading.Thread(
                    target=_keep,
                    args=(weakref.ref(self), round_, wake),
                    name=f"surefoot-{name}",
                    daemon=True,
                )
                self._keepers[name] = (thread, wake)
                thread.start()
        self.nudge()

    def nudge(self) -> None:
        """Tells the keepers that there is something to do."""
        for _, wake in list(self._keepers.values()):
            wake.set()

    def renew_due(self) -> float | None:
        """Renews the leases that are due.

        Returns:
            Seconds until the next round is due, or None when nothing is live.
        """
        sessions = self.sessions.all()
        for session in sessions:
            left_ms = session.lease_until_ms - self.ports.host.monotonic_ms()
            if session.yielded or session.stopped or not session.lease_until_ms:
                continue
            if left_ms < self.ports.policy.lease_ttl_ms * 2 // 3:
                try:
                    journal.renew(self.ports, session)
                except SurefootError as error:
                    session.latch(error)
                    log.warning("thread %r: %s", session.identity.thread, error)
        tick = min(_TICK_S, self.ports.policy.lease_ttl_ms / 6_000)
        return tick if sessions else None

    def flush_due(self) -> float | None:
        """Flushes writes that have waited long enough, and ends the sessions of runs that left.

        Returns:
            Seconds until the next round is due, or None when nothing is live.
        """
        sessions = self.sessions.all()
        due = _TICK_S
        for session in sessions:
            if session.has_left():
                self._if_idle(session, self._end)
            elif session.latched is None:
                due = min(due, self._flush_if_due(session))
        return due if sessions else None

    def _if_idle(self, session: Session, act: Callable[[Session], None]) -> None:
        if session.lock.acquire(blocking=False):
            try:
                act(session)
            finally:
                session.lock.release()

    def _flush_if_due(self, session: Session) -> float:
        now = self.ports.host.monotonic_ms()
        with session.queue_lock:
            oldest = min((p.since_ms for p in session.queue), default=None)
        if oldest is not None:
            left = oldest + self.ports.limits.flush_after_ms - now
            if left > 0:
                return left / 1000
            self._if_idle(session, self._flush)
        if not session.swept and now - session.idle_since_ms > _IDLE_MS:
            session.swept = True
            gc.collect()  # a run that ended in an error or a static interrupt leaves a cycle
        return _TICK_S

    def _flush(self, session: Session) -> None:
        try:
            save.flush(self.ports, session, everything=False)
        except SurefootError as error:
            session.latch(error)
            log.warning("thread %r: %s", session.identity.thread, error)


_open_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child: the parent's runs, locks and threads are not ours."""
    for core in list(_open_cores):
        core.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _keep(
    core_ref: weakref.ref[Core], round_: Callable[[Core], float | None], wake: threading.Event
) -> None:
    """Body of a keeper thread; lives until its core is closed or gone."""
    wait: float | None = 0.0
    while True:
        wake.wait(wait)
        wake.clear()
        core = core_ref()
        if core is None or core.closed:
            return
        wait = round_(core)
        if wait is None:
            wait = 30.0
        del core


def core_of_run(run: RunHandle, thread: str) -> Core | None:
    """The core that holds a run's session, among all that are open in this process."""
    for core in list(_open_cores):
        if core.sessions.of_run(run, thread) is not None:
            return core
    return None


@atexit.register
def _end_all_cores() -> None:
    """At the end of the process, threads are given back so that nobody waits for a time-out."""
    for core in list(_open_cores):
        core.close()
