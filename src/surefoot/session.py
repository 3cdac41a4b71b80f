"""One thread's live run in this process: epoch, head, latch, queue. No I/O.

A session begins when a run loads its checkpoint (or a direct call acquires the thread) and
ends when the run is over, another worker fences it, or a save fails. Its ``lock`` serialises
the journal; its ``queue_lock`` only guards the queue, so that a write is enqueued while a
commit is under way.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from surefoot.errors import Fenced, Misuse, Refused, SaveFailed, SurefootError
from surefoot.ports import HeadRow, Serializer
from surefoot.rules.bodies import Batch, CheckpointBody, EffectBody, Row, Typed
from surefoot.rules.envelope import Identity, Link, Record
from surefoot.rules.intents import LEFT_OPEN
from surefoot.rules.lease import RunFacts, decide_run_over
from surefoot.tally import Tally

__all__ = [
    "NO_HORIZON",
    "Caller",
    "Entry",
    "Known",
    "ListChunk",
    "ListState",
    "LooseEffect",
    "Observation",
    "Pending",
    "PendingRead",
    "Reads",
    "RunHandle",
    "Session",
    "Sessions",
]

_TWINS_MAX = 1_024
_FAILURES_MAX = 256
#: Executions of tasks whose messages are remembered: more than run at the same time.
_TURNS_MAX = 4_096


#: Below every step: no restore has happened.
NO_HORIZON = -(2**62)


@dataclass(frozen=True, slots=True)
class Known:
    """A checkpoint that this session has seen on the chain.

    Attributes:
        namespace: Its namespace.
        checkpoint_id: Its id.
        parent_id: The checkpoint it was put after.
        seq: Its record's number.
        step: ``metadata["step"]``.
        branch: Id of its branch (empty for the root branch).
        key_id: Key from which idempotency keys under it are derived.
    """

    namespace: str
    checkpoint_id: str
    parent_id: str | None
    seq: int
    step: int
    branch: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class ListChunk:
    """A stored piece of a list.

    Attributes:
        items: Number of elements.
        raw_digest: SHA-256 of their serialised bytes.
        running: Running digest of the log up to this piece.
    """

    items: int
    raw_digest: bytes
    running: bytes


@dataclass(slots=True)
class ListState:
    """A list channel as last stored: its segments (log id, pieces)."""

    segments: list[tuple[int, list[ListChunk]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LooseEffect:
    """An effect that is recorded and that no checkpoint of the branch has consumed (rule E4b).

    Attributes:
        body: Its newest record.
        fork: It happened on another branch.
    """

    body: EffectBody
    fork: bool


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch of writes that waits for the next put, with the rows its values need."""

    namespace: str
    checkpoint_id: str
    batch: Batch
    rows: tuple[tuple[bytes, bytes], ...]
    since_ms: int


@dataclass(frozen=True, slots=True)
class PendingRead:
    """The outcome of a read that waits for the next append.

    Attributes:
        levels: Checkpoints it was made under, root first; when they are stored, so may it be.
        make: Makes the record; its place is final only when the checkpoints are known.
        rows: Rows that its values need.
        since_ms: When it was made, on the monotonic clock.
    """

    levels: tuple[tuple[str, str], ...]
    make: Callable[[], Record]
    rows: tuple[tuple[bytes, bytes], ...]
    since_ms: int


@dataclass(slots=True)
class Observation:
    """An observation that a task of this run has reached.

    Attributes:
        name: Of the read.
        task: Task, attempt and execution that reached it.
        replayed: Its outcome comes from a record of an earlier run.
        again: Reads anew (the user's function, with the arguments of this call).
        slot: Where it is recorded.
        is_async: ``again`` gives an awaitable.
        check: Takes what was read anew, and raises when it moved.
        spent: An effect of its task has happened behind it.
        at: Seq of its record; of what this session has read, the seq that it comes after.
        followed: Names of effects of the thread that have happened behind it.
    """

    name: str
    task: tuple[str, int, int]
    replayed: bool
    slot: bytes
    is_async: bool
    again: Callable[[], Any]
    check: Callable[[Any], None]
    spent: bool = False
    at: int = 0
    followed: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _StepReads:
    """What identifies the reads under one checkpoint while its tasks run."""

    ordinals: dict[tuple[str, int, int, bytes], int] = field(default_factory=dict)
    origins: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    runnables: dict[tuple[str, int, int, bytes], object] = field(default_factory=dict)


class Reads:
    """Recorded reads of the present steps. Guarded by the session's ``queue_lock``.

    They wait for no checkpoint, so a task of the next step may read while the step before it is
    still being saved: what is known is kept by root checkpoint, and dropped with it. (Not with
    the checkpoints of subgraphs: a node that is retried enters its subgraphs anew.)
    """

    def __init__(self) -> None:
        #: Newest record of each place.
        self.bodies: dict[bytes, EffectBody] = {}
        #: Serialised outcomes of what this session has read, so that a retry needs no I/O.
        self.raw: dict[bytes, tuple[str, bytes]] = {}
        #: Outlines of their inputs.
        self.outlines: dict[bytes, dict[str, bytes]] = {}
        #: Seq of their records; of what this session has read, the seq that they come after.
        self.at: dict[bytes, int] = {}
        self.running: set[bytes] = set()
        self.observations: list[Observation] = []
        self._roots: dict[bytes, tuple[str, str]] = {}
        self._steps: dict[tuple[str, str], _StepReads] = {}

    def step(self, root: tuple[str, str]) -> _StepReads:
        """What is known of the tasks under a root checkpoint."""
        return self._steps.setdefault(root, _StepReads())

    def keep(
        self,
        slot: bytes,
        body: EffectBody,
        raw: tuple[str, bytes],
        paths: dict[str, bytes],
        root: tuple[str, str],
        at: int,
    ) -> None:
        """Notes what was read at a place."""
        self.bodies[slot] = body
        self.raw[slot] = raw
        self.outlines[slot] = paths
        self.at[slot] = at
        self._roots[slot] = root

    def forget(self, root: tuple[str, str]) -> None:
        """Drops what was read under a root checkpoint that another one has followed.

        What was loaded at the start of the run belongs to the step that it started with.
        """
        self._steps.pop(root, None)
        for slot in [s for s in self.bodies if self._roots.get(s, root) == root]:
            for kept in (self.bodies, self.raw, self.outlines, self.at, self._roots):
                kept.pop(slot, None)


@dataclass(frozen=True, slots=True)
class RunHandle:
    """What is known about the run that makes a call.

    Attributes:
        control: The run's control object; one per run tree.
        writer: An object that lives exactly as long as the run, or None.
        durability: ``sync``, ``async`` or ``exit``.
        loop: The event loop the run lives on; None for a synchronous run.
        task: Id, attempt and path of the task from inside which a subgraph loads; None for the
            root.
    """

    control: object
    writer: object | None
    durability: str
    loop: object | None = None
    task: tuple[str, int, str] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One execution of a subgraph.

    Attributes:
        execution: The execution of the task that entered it: its own entry's serial, the task's
            id and attempt.
        serial: Distinguishes executions of this session; 0 is the root graph.
        rank: Which of the subgraphs that this execution of the task has entered, from 0.
        path: Path of the task, which tells apart the tasks that ``Send`` starts of one node.
    """

    execution: tuple[int, str, int]
    serial: int
    rank: int
    path: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call.

    Attributes:
        carrier: The asyncio task, or the thread of a synchronous call.
        inside: Control object of the run from inside which the call is made, or None.
        is_task: The carrier is a task.
    """

    carrier: object
    inside: object | None
    is_task: bool


class Session:
    """State of one acquisition of one thread."""

    def __init__(self, identity: Identity, epoch: int, owner: str, control: object | None) -> None:
        self.identity = identity
        self.epoch = epoch
        self.owner = owner
        #: The run's control object (one per run tree); None for a direct call.
        self.control = control
        self.writer: weakref.ref[Any] | None = None
        self.caller: Caller | None = None
        #: Thread of LangGraph's executor that carried out the last save of a synchronous run.
        self.executor: weakref.ref[threading.Thread] | None = None
        self.durability = "async"
        #: Serialiser of the saver that loaded the run.
        self.serde: Serializer | None = None
        #: Namespaces whose graphs load and save through this session.
        self.loaded: set[str] = set()
        #: The present execution of each subgraph, by namespace.
        self.entries: dict[str, Entry] = {}
        self._entered: dict[tuple[int, str, int], int] = {}
        self._serial = 0
        self.loop: object | None = None

        self.lock = threading.RLock()
        self.queue_lock = threading.Lock()
        self._published = threading.Condition()
        self._waiters: list[Callable[[], None]] = []

        self.key: int | None = None
        self.head = Link(0, bytes(32))
        self.mark = Link(0, bytes(32))
        self.stored_head: HeadRow | None = None
        self.wrote = False
        self.step = -3
        #: Subjects of pending writes whose checkpoint is not stored yet, and where they are.
        self.early: dict[bytes, int] = {}
        #: Root checkpoints that are not stored yet although a subgraph that runs under them has
        #: stored one of its own (always under "exit", by race under "async"), and where it is.
        self.early_children: dict[str, int] = {}
        #: Root checkpoint under which each subgraph runs.
        self.roots: dict[str, str] = {}

        #: Root steps up to it were part of a history that was lost (rule E6); None until the
        #: chain has been looked at.
        self.horizon: int | None = None
        #: Seq of the order that set it; what is recorded of a slot since then is known again.
        self.horizon_at = 0
        #: What followed the order is not the lost history again: slots may have moved.
        self.apart = False
        self.tainted = False
        self.intents: dict[bytes, int] = {}
        self.lease_until_ms = 0
        self.acquired_ms = 0
        #: The lease was given back with the last publish (run at rest, paused by an interrupt
        #: or ended by an error): whoever comes next need not wait.
        self.yielded = False
        #: Checkpoint whose pending writes paused or ended the run (an interrupt, an error).
        self.paused_at: str | None = None
        #: After a special write (resume, error) writes are stored at once until the next put.
        self.writes_through = False
        self.dirty = self.swept = False
        self.idle_since_ms = 0

        self.known: dict[tuple[str, str], Known] = {}
        self.latest: dict[str, str] = {}
        #: Branch of what follows a prune that dropped later checkpoints; empty otherwise.
        self.base_branch = b""
        self.bodies: dict[tuple[str, str], CheckpointBody] = {}
        self.branch_heads: dict[tuple[str, bytes], str] = {}
        #: Everything on the chain above this seq has been seen by this session.
        self.scan_floor = 0
        #: Seq of the root checkpoint this run started from: a namespace with a task id of this
        #: run cannot have a checkpoint below it.
        self.root_floor = 0
        #: The root checkpoint this run started from, and whether it is not the latest one.
        self.started_at: Known | None = None
        self.started_behind = False
        self.last_root_seq = 0
        #: How the channels of one checkpoint of each namespace are stored: its id, and for each
        #: channel the version and the value.
        self.refs: dict[str, tuple[str, dict[str, tuple[Any, Typed]]]] = {}
        self.lists: dict[tuple[str, str], ListState] = {}
        self.log_tips: dict[int, int] = {}
        self.stored_digests: OrderedDict[bytes, None] = OrderedDict()
        #: Encrypted rows by the digest of what is in them; kept in memory only.
        self.twins: dict[bytes, Row] = {}
        self.runs_noted: set[str] = set()

        self._begin_ledger()
        self._latch: SurefootError | None = None
        self._refused: tuple[tuple[str, str], SurefootError] | None = None
        self.ended = False

    def _begin_ledger(self) -> None:
        """What waits to be stored, and what is known of effects and reads: nothing yet."""
        self.queue: list[Pending | PendingRead] = []
        self.reads = Reads()
        self.effects: dict[bytes, EffectBody] = {}
        #: Seq of the newest record of each of them.
        self.effect_at: dict[bytes, int] = {}
        self.unfolded: dict[bytes, tuple[str, str]] = {}
        #: Unconsumed effects as of a root checkpoint (E4b), and whether that list has changed
        #: since it was stored.
        self.loose_of: str | None = None
        self.loose: list[LooseEffect] = []
        self.loose_moved = False
        #: Slots of the thread whose newest record is open, also of those that a checkpoint has left
        #: behind; None until the chain has been looked at.
        self.open_slots: frozenset[bytes] | None = None
        self.tally = Tally()
        self.ordinals: dict[tuple[str, int, int, bytes], int] = {}
        #: Messages whose tool calls an execution of a task has carried out, in their order.
        self.turns: OrderedDict[tuple[str, int, int], dict[tuple[int | str | None, ...], int]]
        self.turns = OrderedDict()
        self.running: set[bytes] = set()
        #: The last proven failures that bodies raised, and their slots.
        self.failures: deque[tuple[BaseException, bytes]] = deque(maxlen=_FAILURES_MAX)
        #: From which execution and tasks the slots of the present step were reached.
        self.origins: dict[bytes, tuple[int, str]] = {}

    # --- latch (E10) ----------------------------------------------------------------------------

    @property
    def latched(self) -> SurefootError | None:
        """The error that stopped this session, if any."""
        return self._latch

    def latch(self, error: SurefootError) -> None:
        """Stops the session: no further write or effect until a new epoch is acquired (E10)."""
        if self._latch is None:
            self._latch = error
        self.notify()

    def refuse_step(self, namespace: str, checkpoint_id: str, error: SurefootError) -> None:
        """Stops the step under a checkpoint, whose writes cannot be stored.

        No further effect starts and no checkpoint follows that one; what was handed over for
        the steps before it is still stored.
        """
        if self._refused is None:
            self._refused = ((namespace, checkpoint_id), error)
        self.notify()

    @property
    def stopped(self) -> bool:
        """True when no further effect may start."""
        return self.ended or self._latch is not None or self._refused is not None

    def check(self) -> None:
        """Raises when no further effect or write may start.

        Raises:
            Fenced: Another worker has the thread, or it was given back.
            SaveFailed: An earlier save failed.
            NotStorable: An earlier value could not be stored.
        """
        self.check_latch()
        if self._refused is not None:
            raise _again(self._refused[1])

    def check_latch(self) -> None:
        """Raises when nothing at all may be stored or published any more.

        Raises:
            Fenced: Another worker has the thread, or it was given back.
            Refused: An earlier save was refused.
            SaveFailed: An earlier save failed.
        """
        error = self._latch
        if error is None:
            if self.ended:
                raise Fenced(
                    thread=self.identity.thread,
                    epoch=self.epoch,
                    current_epoch=None,
                    reason="this run has given the thread back",
                )
            return
        if isinstance(error, (Refused, Misuse)):
            raise _again(error)  # running again would not help
        raise SaveFailed(
            thread=self.identity.thread, reason=f"{type(error).__name__} {error.code}"
        ) from error

    def check_save(self, namespace: str, parent_id: str | None) -> None:
        """Raises when a checkpoint may not be stored behind its parent.

        Raises:
            Fenced: Another worker has the thread, or it was given back.
            SaveFailed: An earlier save failed.
            NotStorable: A write of the step that made it could not be stored.
        """
        self.check_latch()
        if self._refused is not None and self._refused[0] == (namespace, parent_id):
            raise _again(self._refused[1])

    # --- published checkpoints (E1) -------------------------------------------------------------

    def is_published(self, namespace: str, checkpoint_id: str) -> bool:
        """True when the checkpoint's record is at or below the published head."""
        known = self.known.get((namespace, checkpoint_id))
        return known is not None and known.seq <= self.mark.seq

    def notify(self) -> None:
        """Wakes everything that waits for a publish or for the latch."""
        with self._published:
            waiters, self._waiters = self._waiters, []
            self._published.notify_all()
        for wake in waiters:
            wake()

    def on_change(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Calls ``wake`` once at the next publish or latch; it must not raise.

        Returns:
            Takes it back.
        """
        with self._published:
            self._waiters.append(wake)

        def forget() -> None:
            with self._published:
                if wake in self._waiters:
                    self._waiters.remove(wake)

        return forget

    def wait_change(self, seconds: float, until: Callable[[], bool]) -> bool:
        """Blocks until a condition holds; it is looked at after each publish or latch."""
        with self._published:
            return self._published.wait_for(until, timeout=seconds)

    def enter(self, namespace: str, task_id: str, attempt: int, path: str) -> None:
        """Notes that a subgraph loads, entered by an execution of a task.

        A task that is retried enters its subgraphs again; LangGraph numbers them on, so their
        namespaces differ, but their ranks within the execution are the same.
        """
        outer = namespace.split("|")
        if outer[-1].isdigit():
            outer.pop()  # ``a:id|1`` is the second subgraph of task a, not one inside the first
        outer.pop()
        while outer and "|".join(outer) not in self.entries:
            outer.pop()
        above = self.entries.get("|".join(outer))
        execution = (0 if above is None else above.serial, task_id, attempt)
        held = self.entries.get(namespace)
        if held is not None and held.execution == execution:
            return
        rank = self._entered.get(execution, 0)
        self._entered[execution] = rank + 1
        self._serial += 1
        self.entries[namespace] = Entry(execution, self._serial, rank, path)

    # --- small state ----------------------------------------------------------------------------

    def note_left_open(self) -> None:
        """Keeps the intent that stands for effects that a checkpoint has left open, or ends it."""
        if self.open_slots is None:
            return
        if self.open_slots - self.unfolded.keys():
            self.intents.setdefault(LEFT_OPEN, self.epoch)
        else:
            self.intents.pop(LEFT_OPEN, None)

    def turn_of(self, task: tuple[str, int, int], calls: tuple[int | str | None, ...]) -> int:
        """Which message, from 0, of an execution of a task asks for these tool calls."""
        with self.queue_lock:
            turns = self.turns.setdefault(task, {})
            self.turns.move_to_end(task)
            while len(self.turns) > _TURNS_MAX:
                self.turns.popitem(last=False)
            return turns.setdefault(calls, len(turns))

    def is_lost(self, slot: bytes, root_step: int) -> bool:
        """True for a slot of a step up to the horizon, of which nothing is recorded since (E6)."""
        if self.horizon is None or root_step > self.horizon:
            return False
        return self.effect_at.get(slot, 0) < self.horizon_at

    def is_over(self, caller: Caller | None = None) -> bool:
        """True when whoever wants the thread now may have it.

        Args:
            caller: Who wants it.
        """
        return self.stopped or self.yielded or self.has_left(caller)

    def note_alive(self) -> None:
        """A save came in: if the calling task is done, it is no sign of the run's end.

        Streams may be pulled by another task each time.
        """
        if self.caller is not None and _is_done(self.caller.carrier):
            self.caller = None

    def has_left(self, caller: Caller | None = None) -> bool:
        """True when the run that owns this session is over, as far as can be told.

        Args:
            caller: Who wants the thread now; None when nobody does, and then only proofs count.
            A caller without a carrier is not the one that called the run.
        """
        mine = self.caller
        executor = None if self.executor is None else self.executor()
        return decide_run_over(
            RunFacts(
                collected=self.writer is not None and self.writer() is None,
                caller_done=caller is not None
                and mine is not None
                and mine.is_task
                and _is_done(mine.carrier),
                executor_gone=self.executor is not None
                and (executor is None or not executor.is_alive()),
                caller_is_here=caller is not None
                and mine is not None
                and caller.carrier is mine.carrier,
                inside=caller is not None and caller.inside is self.control,
            )
        )

    def forget_below(self, seq: int, root: str) -> None:
        """Drops what is known about checkpoints below a seq, so that long runs stay small.

        Namespaces without a task id live on between steps; of them the latest is kept. Those of
        the step under the newest root checkpoint are running, and may have been stored long before
        it: under ``async`` durability nothing orders the saves of a graph and of its subgraphs.

        Args:
            seq: Of the root checkpoint before the newest one.
            root: Id of the newest one.
        """
        gone = [
            place
            for place, known in self.known.items()
            if known.seq < seq
            and not self._is_running(place[0], root)
            and (":" in place[0] or self.latest.get(place[0]) != place[1])
        ]
        for place in gone:
            known = self.known.pop(place)
            self.bodies.pop(place, None)
            head = (place[0], known.branch)
            if self.branch_heads.get(head) == place[1]:
                del self.branch_heads[head]
            if self.latest.get(place[0]) == place[1]:
                del self.latest[place[0]]
                self.roots.pop(place[0], None)
                self.refs.pop(place[0], None)
                self.loaded.discard(place[0])
                self.entries.pop(place[0], None)
                for key in [k for k in self.lists if k[0] == place[0]]:
                    del self.lists[key]

    def _is_running(self, namespace: str, root: str) -> bool:
        """True for a subgraph under the newest root checkpoint, or under one that is not stored."""
        under = self.roots.get(namespace)
        return under is not None and (under == root or ("", under) not in self.known)

    def note_stored(self, digest: bytes, bound: int) -> None:
        """Remembers that a value row is stored, within a bound."""
        self.stored_digests[digest] = None
        self.stored_digests.move_to_end(digest)
        while len(self.stored_digests) > bound:
            self.stored_digests.popitem(last=False)

    def note_twin(self, key: bytes, row: Row) -> None:
        """Remembers which row holds an encrypted value; safe without any lock."""
        if len(self.twins) >= _TWINS_MAX:
            self.twins.clear()
        self.twins[key] = row

    def early_floor(self) -> int:
        """Lowest seq of pending writes whose checkpoint is not stored yet; 0 when none."""
        return min([*self.early.values(), *self.early_children.values(), *self._exits()], default=0)

    def _exits(self) -> list[int]:
        """Under ``exit``: where the effects of the step behind the next checkpoint are recorded."""
        if self.durability != "exit":
            return []
        return [
            self.effect_at[slot]
            for slot in self.unfolded
            if (root := self.effects[slot].root) and ("", root) not in self.known
        ]

    def new_log(self) -> int:
        """A fresh log id: random, so that copied threads never meet it again."""
        return secrets.randbits(62)


def _is_done(task: object) -> bool:
    done = getattr(task, "done", None)
    return bool(done is not None and done())


def _again(error: SurefootError) -> SurefootError:
    """The same error anew: each raise has a traceback of its own."""
    return type(error)(**error.fields)


class Sessions:
    """The live sessions of one saver, by thread id. Shared by all clones of the saver."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_thread: dict[str, Session] = {}

    def get(self, thread: str) -> Session | None:
        """The live session of a thread, or None."""
        with self._lock:
            return self._by_thread.get(thread)

    def put(self, session: Session) -> None:
        """Makes a session the live one of its thread."""
        with self._lock:
            self._by_thread[session.identity.thread] = session

    def drop(self, session: Session) -> None:
        """Forgets a session if it is still the live one."""
        with self._lock:
            if self._by_thread.get(session.identity.thread) is session:
                del self._by_thread[session.identity.thread]

    def all(self) -> list[Session]:
        """A snapshot of the live sessions."""
        with self._lock:
            return list(self._by_thread.values())

    def of_run(self, run: RunHandle, thread: str | None = None) -> Session | None:
        """The session of a run tree, found by its control object.

        Args:
            run: The run.
            thread: Only the session of this thread; None takes any.
        """
        with self._lock:
            if thread is not None:
                session = self._by_thread.get(thread)
                return session if session is not None and session.control is run.control else None
            for session in self._by_thread.values():
                if session.control is run.control:
                    return session
        return None
