"""Stores that fail at a chosen boundary: for crash tests, also those of other authors.

A *boundary* lies before or after a call of a port, or of anything else that a test wraps with
`Plan.around` (a receiver of side effects, say). Boundaries are named ``marks.publish.before#2``:
the call, the side, and its how-many-eth one it is. A `Plan` says what happens where::

    plan = Plan({"store.append.after#2": Fault.DIE})
    with_faults(saver, plan)
    try:
        graph.invoke(...)
    except Died:
        pass
    bury(saver, plan)
    assert plan.hit == ["store.append.after#2"]

First run once with an empty plan: its ``trace`` names every boundary that there is. Names are
stabler than positions, because threads take turns as they like, but each thread makes its own
calls in the same order.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import IO, Any, TypeVar

from surefoot.errors import OutcomeUnknown, StoreUnavailable, SurefootError
from surefoot.langgraph.saver import SurefootSaver
from surefoot.ports import (
    Admission,
    Append,
    ContentStore,
    FrameRow,
    HighWater,
    Host,
    Kept,
    Lease,
    LogRef,
    Mark,
    Publish,
    StoredValues,
    ThreadRow,
)
from surefoot.rules.lease import HolderFacts, ProcessFacts

__all__ = [
    "WRITES",
    "Died",
    "Fault",
    "FaultyHighWater",
    "FaultyHost",
    "FaultyStore",
    "Plan",
    "bury",
    "with_faults",
]

T = TypeVar("T")

#: Calls that change a store; only their replies can be lost.
WRITES = frozenset(
    {
        "store.append",
        "store.append_within",
        "store.collect",
        "store.delete_thread",
        "store.discard_frames",
        "marks.create",
        "marks.acquire",
        "marks.admit",
        "marks.publish",
        "marks.renew",
    }
)
#: Names of the threads that a saver keeps for itself.
_KEEPERS = frozenset({"surefoot-lease", "surefoot-flush"})
#: Above the largest pid that Linux gives out, so that no real process has one of these.
_NO_PID = 2**22
_pids = itertools.count(_NO_PID + 1)
_FOREVER_S = 3_600.0


class Died(BaseException):
    """The process is dead from here on; nothing of it may do anything more.

    No `Exception`, so that nothing that handles errors takes it for one.
    """


class Fault(Enum):
    """What happens at a boundary.

    Attributes:
        DIE: `Died` is raised here, and at everything this process tries afterwards.
        KILL: A barrier line is printed, then the process is killed with SIGKILL.
        STOP: A barrier line is printed, then the calling thread waits until somebody kills the
            process or calls `Plan.go_on`.
        UNAVAILABLE: The call is not made; `StoreUnavailable` is raised. Only before a call.
        OUTAGE: The same, and for every later call until `Plan.mend`.
        LOST: The call was made; `OutcomeUnknown` is raised. Only after a call that writes.
    """

    DIE = "die"
    KILL = "kill"
    STOP = "stop"
    UNAVAILABLE = "unavailable"
    OUTAGE = "outage"
    LOST = "lost"


class Plan:
    """Which fault happens at which boundary, and what happened so far. Safe for threads.

    Attributes:
        trace: Every boundary that was reached, in order.
        hit: Boundaries at which a fault happened, in order.
        dead: The process that runs under this plan is dead.
        pid: Under which its processes show themselves; no process has it.
    """

    def __init__(
        self, faults: Mapping[str | int, Fault] | None = None, *, out: IO[str] | None = None
    ) -> None:
        """Plans faults.

        Args:
            faults: By the name of a boundary, or by its position in the trace, from 1.
            out: Where barrier lines go; standard output by default.
        """
        self.faults = dict(faults or {})
        self.trace: list[str] = []
        self.hit: list[str] = []
        self.dead = False
        self.pid = next(_pids)
        self._out = out
        self._counts: Counter[str] = Counter()
        self._outage = False
        self._calls = 0
        self._quiet = threading.Condition()
        self._stopped: dict[str, threading.Event] = {}
        self._at_death: list[Callable[[], None]] = []

    def around(self, call: str, work: Callable[[], T]) -> T:
        """Makes a call with a boundary before and after it.

        Raises:
            Died: The process is dead.
            StoreUnavailable: As planned.
            OutcomeUnknown: As planned.
        """
        with self.crossing(call):
            return work()

    @contextmanager
    def crossing(self, call: str) -> Iterator[None]:
        """The same around a block, which may await.

        Raises:
            Died: The process is dead.
            StoreUnavailable: As planned.
            OutcomeUnknown: As planned.
        """
        with self._quiet:
            name, fault = self._reach(call, "before")
            if fault is None:
                self._calls += 1
        if fault is not None:
            self._happen(name, fault)
            with self._quiet:
                self._check_alive()
                self._calls += 1
        try:
            yield
        finally:
            with self._quiet:
                self._calls -= 1
                self._quiet.notify_all()
        with self._quiet:
            name, fault = self._reach(call, "after")
        if fault is not None:
            self._happen(name, fault)

    def note(self, event: str) -> None:
        """Puts an event of the test's own into the trace; no fault happens at it."""
        with self._quiet:
            self.trace.append(event)

    def check_alive(self) -> None:
        """Raises when the process is dead.

        Raises:
            Died: It is.
            StoreUnavailable: It is, and a keeper asks.
        """
        with self._quiet:
            self._check_alive()

    def at_death(self, then: Callable[[], None]) -> None:
        """Calls ``then`` at once when the process dies, in the thread that met its death."""
        self._at_death.append(then)

    def die(self) -> None:
        """The process dies now, wherever it is."""
        with self._quiet:
            self.dead = True
        for then in self._at_death:
            then()

    def mend(self) -> None:
        """Ends an outage."""
        with self._quiet:
            self._outage = False

    def go_on(self, boundary: str) -> None:
        """Lets a thread go on that waits at a `Fault.STOP`, now or when it comes there."""
        self._gate(boundary).set()

    def settle(self, seconds: float = 30.0) -> None:
        """Waits until no call is under way any more.

        Raises:
            TimeoutError: One still is.
        """
        with self._quiet:
            if not self._quiet.wait_for(lambda: self._calls == 0, seconds):
                raise TimeoutError("a call of a dead process does not end")

    # --- boundaries -----------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.dead:
            if threading.current_thread().name in _KEEPERS:
                # Nobody waits for a keeper; it handles this, and finds nothing to do at burial.
                raise StoreUnavailable(store="this process", reason="it died, as planned")
            raise Died

    def _reach(self, call: str, side: str) -> tuple[str, Fault | None]:
        self._check_alive()
        self._counts[f"{call}.{side}"] += 1
        name = f"{call}.{side}#{self._counts[f'{call}.{side}']}"
        self.trace.append(name)
        fault = self.faults.get(name) or self.faults.get(len(self.trace))
        if fault is None and self._outage and side == "before":
            fault = Fault.OUTAGE
        elif fault is not None:
            self.hit.append(name)
        return name, fault

    def _happen(self, name: str, fault: Fault) -> None:
        if fault is Fault.DIE:
            self.die()
            self.check_alive()
        elif fault is Fault.KILL:
            self._announce(name)
            os.kill(os.getpid(), signal.SIGKILL)
            self._gate(name).wait(_FOREVER_S)  # the signal may arrive a moment later
        elif fault is Fault.STOP:
            self._announce(name)
            self._gate(name).wait(_FOREVER_S)
        elif fault is Fault.LOST:
            raise OutcomeUnknown(what=name, reason="its reply was lost, as planned")
        else:
            with self._quiet:
                self._outage = self._outage or fault is Fault.OUTAGE
            raise StoreUnavailable(store=name, reason="does not answer, as planned")

    def _gate(self, name: str) -> threading.Event:
        with self._quiet:
            return self._stopped.setdefault(name, threading.Event())

    def _announce(self, name: str) -> None:
        print(f"AT {name}", file=self._out or sys.stdout, flush=True)


class FaultyStore:
    """A content store with a boundary before and after each call."""

    def __init__(self, inner: ContentStore, plan: Plan) -> None:
        self.inner = inner
        self.shown = inner.shown
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _call(self, name: str, work: Callable[[], T]) -> T:
        return self._plan.around(f"store.{name}", work)

    def server_identity(self) -> str:
        """Delegates, as do all methods here; see `surefoot.ports.ContentStore`."""
        return self._call("server_identity", self.inner.server_identity)

    def setup(self, *, verify_only: bool = False) -> None:
        """Delegates."""
        self._call("setup", lambda: self.inner.setup(verify_only=verify_only))

    def check_durability(self) -> None:
        """Delegates."""
        self._call("check_durability", self.inner.check_durability)

    def read_thread(self, tenant: str, thread: str) -> ThreadRow | None:
        """Delegates."""
        return self._call("read_thread", lambda: self.inner.read_thread(tenant, thread))

    def read_newest(
        self, tenant: str, thread: str, *, limit: int, below_seq: int | None = None
    ) -> tuple[ThreadRow | None, Sequence[FrameRow]]:
        """Delegates."""
        return self._call(
            "read_newest",
            lambda: self.inner.read_newest(tenant, thread, limit=limit, below_seq=below_seq),
        )

    def find_checkpoint(self, key: int, checkpoint_hash: bytes) -> Sequence[tuple[int, int]]:
        """Delegates."""
        return self._call(
            "find_checkpoint", lambda: self.inner.find_checkpoint(key, checkpoint_hash)
        )

    def read_heads(
        self, key: int, *, from_seq: int, to_seq: int | None = None
    ) -> Sequence[FrameRow]:
        """Delegates."""
        return self._call(
            "read_heads", lambda: self.inner.read_heads(key, from_seq=from_seq, to_seq=to_seq)
        )

    def read_frames(self, key: int, keys: Sequence[tuple[int, int]]) -> Sequence[FrameRow]:
        """Delegates."""
        return self._call("read_frames", lambda: self.inner.read_frames(key, keys))

    def read_values(
        self, key: int, digests: Sequence[bytes], logs: Sequence[LogRef]
    ) -> StoredValues:
        """Delegates."""
        return self._call("read_values", lambda: self.inner.read_values(key, digests, logs))

    def append(self, append: Append) -> int | None:
        """Delegates."""
        return self._call("append", lambda: self.inner.append(append))

    def append_within(self, work: Callable[[Any], Append]) -> int | None:
        """Delegates."""
        return self._call("append_within", lambda: self.inner.append_within(work))

    def collect(self, key: int, kept: Kept) -> bool:
        """Delegates."""
        return self._call("collect", lambda: self.inner.collect(key, kept))

    def discard_frames(self, key: int, keys: Sequence[tuple[int, int]]) -> None:
        """Delegates."""
        self._call("discard_frames", lambda: self.inner.discard_frames(key, keys))

    def delete_thread(self, key: int) -> None:
        """Delegates."""
        self._call("delete_thread", lambda: self.inner.delete_thread(key))

    def threads(
        self, tenant: str, *, after_key: int = 0, limit: int = 1_000
    ) -> Sequence[ThreadRow]:
        """Delegates."""
        return self._call(
            "threads", lambda: self.inner.threads(tenant, after_key=after_key, limit=limit)
        )

    def threads_with_open(
        self, tenant: str, *, after_key: int = 0, limit: int = 1_000
    ) -> Sequence[ThreadRow]:
        """Delegates."""
        return self._call(
            "threads_with_open",
            lambda: self.inner.threads_with_open(tenant, after_key=after_key, limit=limit),
        )

    def threads_of_runs(self, tenant: str, run_ids: Sequence[str]) -> Sequence[str]:
        """Delegates."""
        return self._call("threads_of_runs", lambda: self.inner.threads_of_runs(tenant, run_ids))

    def close(self) -> None:
        """Closes, also for the dead: the kernel closes what a process held."""
        self.inner.close()


class FaultyHighWater:
    """A high-water store with a boundary before and after each call."""

    def __init__(self, inner: HighWater, plan: Plan) -> None:
        self.inner = inner
        self.shown = inner.shown
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _call(self, name: str, work: Callable[[], T]) -> T:
        return self._plan.around(f"marks.{name}", work)

    def setup(self, *, verify_only: bool = False) -> None:
        """See `surefoot.ports.HighWater`, as for all methods here."""
        self._call("setup", lambda: self.inner.setup(verify_only=verify_only))

    def check_durability(self) -> None:
        """Delegates."""
        self._call("check_durability", self.inner.check_durability)

    def server_identity(self) -> str:
        """Delegates."""
        return self._call("server_identity", self.inner.server_identity)

    def read(self, tenant: str, thread: str) -> Mark | None:
        """Delegates."""
        return self._call("read", lambda: self.inner.read(tenant, thread))

    def create(self, tenant: str, thread: str, lease: Lease) -> Mark | None:
        """Delegates."""
        return self._call("create", lambda: self.inner.create(tenant, thread, lease))

    def acquire(
        self, tenant: str, thread: str, lease: Lease, *, over_epoch: int | None = None
    ) -> Mark | None:
        """Delegates."""
        return self._call(
            "acquire", lambda: self.inner.acquire(tenant, thread, lease, over_epoch=over_epoch)
        )

    def admit(self, tenant: str, thread: str, admission: Admission) -> Mark | None:
        """Delegates."""
        return self._call("admit", lambda: self.inner.admit(tenant, thread, admission))

    def publish(self, tenant: str, thread: str, publish: Publish) -> bool:
        """Delegates."""
        return self._call("publish", lambda: self.inner.publish(tenant, thread, publish))

    def renew(self, tenant: str, thread: str, epoch: int, ttl_ms: int) -> bool:
        """Delegates."""
        return self._call("renew", lambda: self.inner.renew(tenant, thread, epoch, ttl_ms))

    def marks(
        self, tenant: str, *, after_thread: str | None = None, limit: int = 1_000
    ) -> Iterable[tuple[str, Mark]]:
        """Delegates."""
        return self._call(
            "marks",
            lambda: list(self.inner.marks(tenant, after_thread=after_thread, limit=limit)),
        )

    def marks_with_intents(
        self, tenant: str, *, after_thread: str | None = None, limit: int = 1_000
    ) -> Iterable[tuple[str, Mark]]:
        """Delegates."""
        return self._call(
            "marks_with_intents",
            lambda: list(
                self.inner.marks_with_intents(tenant, after_thread=after_thread, limit=limit)
            ),
        )

    def close(self) -> None:
        """Closes, also for the dead: the kernel closes what a process held."""
        self.inner.close()


#: Plans of the simulated processes of this one, by their pids; one that is gone is dead.
_processes: weakref.WeakValueDictionary[int, Plan] = weakref.WeakValueDictionary()


class FaultyHost:
    """A host on which each plan is a process of its own, alive until its plan says it died.

    It gives no boundaries, because it touches no store, but the dead get no answer.
    """

    def __init__(self, inner: Host, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan
        #: What was described here and is not over, by the real description.
        self._live: dict[str, str] = {}
        _processes[plan.pid] = plan

    def describe(self) -> str:
        """The real description with the plan's pid."""
        self._plan.check_alive()
        real = self._inner.describe()
        shown = json.dumps({**json.loads(real), "pid": self._plan.pid, "start": 1})
        self._live[shown] = real
        return shown

    def retire(self, owner: str) -> None:
        """Delegates; the dead say nothing, and nobody asks them."""
        real = self._live.pop(owner, None)
        if real is not None:
            self._inner.retire(real)

    def holder(self, owner: str) -> HolderFacts:
        """A simulated process is alive as long as its plan; others as the real host sees them."""
        self._plan.check_alive()
        seen = self._inner.holder(owner)
        if seen.holder is None or seen.holder.pid <= _NO_PID:
            return seen
        here = ProcessFacts(seen.here.boot_id, seen.here.pid_namespace, self._plan.pid, 1)
        plan = _processes.get(seen.holder.pid)
        over = plan is None or plan.dead or (plan is self._plan and owner not in self._live)
        return HolderFacts(seen.holder, here, None if over else 1)

    def shown(self, owner: str) -> str:
        """Delegates."""
        return self._inner.shown(owner)

    def monotonic_ms(self) -> int:
        """Delegates; a keeper may read the clock, which does nothing, until its core is closed."""
        if threading.current_thread().name not in _KEEPERS:
            self._plan.check_alive()
        return self._inner.monotonic_ms()

    def now_us(self) -> int:
        """Delegates."""
        self._plan.check_alive()
        return self._inner.now_us()

    def pause(self, milliseconds: int) -> None:
        """Delegates."""
        self._plan.check_alive()
        self._inner.pause(milliseconds)


def with_faults(
    saver: SurefootSaver, plan: Plan, *, bodies: bool = False, real_process: bool = False
) -> SurefootSaver:
    """Puts a plan between a saver and its stores; the saver becomes a process of its own.

    Use it before the saver's first run. When the process dies, whoever waits in it is woken,
    and meets the death at its next call.

    Args:
        saver: Whose calls become boundaries.
        plan: What happens at them.
        bodies: Also around the bodies (``effect.NAME``) and lookups (``lookup.NAME``) of effects.
        real_process: It is this process that dies, so it shows itself as what it is.

    Returns:
        The same saver.
    """
    core = saver.core
    core.ports = replace(
        core.ports,
        store=FaultyStore(core.ports.store, plan),
        marks=FaultyHighWater(core.ports.marks, plan),
        host=core.ports.host if real_process else FaultyHost(core.ports.host, plan),
    )
    if bodies:
        core.crossing = plan.crossing

    def wake_all() -> None:
        error: SurefootError = StoreUnavailable(store="this process", reason="it died, as planned")
        for session in core.sessions.all():
            session.latch(error)

    plan.at_death(wake_all)
    return saver


def bury(saver: SurefootSaver, plan: Plan) -> None:
    """Takes away what a dead process leaves in the living one: threads and connections.

    Nothing is flushed, published or given back.

    Raises:
        ValueError: It is not dead.
    """
    if not plan.dead:
        raise ValueError("the process is alive; close its saver instead")
    plan.settle()
    for session in saver.core.sessions.all():
        saver.core.sessions.drop(session)
    saver.close()
