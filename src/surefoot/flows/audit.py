"""Verifying whole threads and databases, and finding what could be gone back to.

A thread is walked like any reader would walk it (`surefoot.flows.views`): an alarm is one only
if B has not moved meanwhile. Only after an alarm, every row is looked at on its own.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from surefoot.errors import (
    Busy,
    KeyMissing,
    NotLoadable,
    Refused,
    RollbackDetected,
    SurefootError,
    TamperDetected,
)
from surefoot.flows.acquire import body_of, checkpoint_of, prune_of, restore_of
from surefoot.flows.chain import Chain, verify_rows
from surefoot.flows.find import values_of
from surefoot.flows.load import loader_for
from surefoot.flows.values import ZERO_RUNNING, Loader, running_digest
from surefoot.flows.views import FIRST_PAGE_FRAMES, all_threads, viewing
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import (
    Chunks,
    DecisionBody,
    KeyChangeBody,
    ProvenanceBody,
    Row,
    Segment,
    Typed,
    ValueRef,
    unpack_stored,
)
from surefoot.rules.chain import decide_given_up, decide_standing
from surefoot.rules.envelope import Identity, Kind, Link, RecordHead

__all__ = [
    "Problem",
    "ThreadReport",
    "last_good",
    "lenient",
    "pruned_above",
    "verify_all",
    "verify_thread",
]

_BATCH = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not verify.

    Attributes:
        code: Stable code of the error that a resume would raise.
        text: For people; no stored value is in it.
        seq: Of the record, when it is about one.
    """

    code: str
    text: str
    seq: int | None


@dataclass(frozen=True, slots=True)
class ThreadReport:
    """What a verification saw of one thread.

    Attributes:
        thread: Id of the thread.
        state: ``live``, ``frozen``, ``tombstone``, ``admitted`` (nothing published yet) or
            ``unwitnessed`` (in the database only).
        seq: The published head.
        records: Number of verified records on the chain, by kind.
        values: Number of values that were checked (``deep`` only).
        beside: Verified records that are stored beside the chain: left by crashed workers.
        unloadable: Values that verify, but that this process cannot build (``deep`` only).
        problems: Everything that does not verify.
        notes: What is odd and stops nothing, in sentences for people.
        last_good: Number of the last record from which everything below verifies; only looked
            for when there are problems.
    """

    thread: str
    state: str
    seq: int
    records: Mapping[str, int] = field(default_factory=dict)
    values: int = 0
    beside: int = 0
    unloadable: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    last_good: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when everything that was looked at verifies."""
        return not self.problems


Progress = Callable[[str, int], None]


def _silent(thread: str, done: int) -> None:
    """No progress is wanted."""


def verify_all(
    ports: Ports, serde: Serializer, *, deep: bool = False, progress: Progress = _silent
) -> Iterator[ThreadReport]:
    """Verifies every thread of the tenant that either store knows.

    Args:
        ports: Stores.
        serde: Serialiser, for ``deep``.
        deep: Also fetch, verify and decode every value.
        progress: Told the thread and the number of its records that are done.
    """
    for thread in all_threads(ports):
        yield verify_thread(ports, serde, thread, deep=deep, progress=progress)


def verify_thread(
    ports: Ports,
    serde: Serializer,
    thread: str,
    *,
    deep: bool = False,
    progress: Progress = _silent,
) -> ThreadReport:
    """Verifies one thread from its head down to its beginning.

    Raises:
        StoreUnavailable: A store did not answer; nothing is known then.
    """
    mark = ports.marks.read(ports.tenant, thread)
    seq = 0 if mark is None else mark.seq
    state = "unwitnessed" if mark is None else mark.state
    if mark is not None and state == "live" and seq == 0:
        state = "admitted"
    try:
        return viewing(
            ports,
            thread,
            lambda c: _walked(ports, serde, c, thread, state, deep=deep, progress=progress),
        )
    except Refused as error:
        incarnation = None if mark is None else mark.incarnation
        problems = _problems(ports, thread, incarnation, error)
        good = None
        if mark is not None:
            good = last_good(ports, serde, thread, mark.incarnation, below=seq)
        return ThreadReport(
            thread, state, seq, problems=problems, last_good=None if good is None else good.seq
        )


def _walked(
    ports: Ports,
    serde: Serializer,
    chain: Chain | None,
    thread: str,
    state: str,
    *,
    deep: bool,
    progress: Progress,
) -> ThreadReport:
    if chain is None:
        return ThreadReport(thread, state, 0)
    counts: Counter[str] = Counter()
    waiting: list[Typed] = []
    values, done = 0, 0
    unloadable: set[str] = set()
    loader = loader_for(ports, chain, serde)
    for record in chain.walk():
        counts[chr(record.kind)] += 1
        found = values_of(thread, record)
        _check_small(thread, record)
        done += 1
        if deep:
            waiting += found
            values += len(found)
            if len(waiting) >= _BATCH:
                _load_all(loader, waiting, unloadable)
                loader = loader_for(ports, chain, serde)  # bounds memory
                waiting = []
        if done % _BATCH == 0:
            progress(thread, done)
    _load_all(loader, waiting, unloadable)
    progress(thread, done)
    _check_gate(ports, chain)
    return ThreadReport(
        thread,
        state,
        chain.head.seq,
        records=dict(sorted(counts.items())),
        values=values,
        beside=chain.beyond() - len(chain.tail()),
        unloadable=tuple(sorted(unloadable)),
        notes=_notes(chain),
    )


def _check_gate(ports: Ports, chain: Chain) -> None:
    """Refuses a head row under whose epoch every write would be taken for a stale worker's.

    B is asked after the row was read, so whoever wrote it honestly has had its epoch from B.

    Raises:
        RollbackDetected: B has never given out the head row's epoch.
    """
    head = chain.row.head
    mark = ports.marks.read(chain.identity.tenant, chain.identity.thread)
    if mark is not None and head.epoch > mark.epoch:
        raise RollbackDetected(
            thread=chain.identity.thread,
            witnessed_seq=mark.seq,
            stored_seq=head.seq,
            reason=(
                f"the head row has the epoch {head.epoch}, the high-water store has given out "
                f"{mark.epoch}; nothing can be stored until an ordered restore, which takes "
                "the head row over, or a deletion"
            ),
        )


def _notes(chain: Chain) -> tuple[str, ...]:
    """A head row that names no stored record: it has been edited, and the next write mends it."""
    head = chain.row.head
    link = Link(head.seq, head.digest)
    if link == chain.head or chain.holds(link):
        return ()
    return (f"the head row names record {head.seq} with a digest that no stored record has",)


def _check_small(thread: str, record: RecordHead) -> None:
    """Reads the bodies that name no values."""
    if record.kind is Kind.PRUNE:
        prune_of(thread, record)
    elif record.kind is Kind.RESTORE:
        restore_of(thread, record)
    elif record.kind is Kind.DECISION:
        body_of(thread, record, DecisionBody.unpack)
    elif record.kind is Kind.KEY_CHANGE:
        body_of(thread, record, KeyChangeBody.unpack)
    elif record.kind is Kind.FORK:
        body_of(thread, record, ProvenanceBody.unpack)


def _load_all(loader: Loader, wanted: Sequence[Typed], unloadable: set[str]) -> None:
    loader.fetch(wanted)
    for typed in wanted:
        try:
            loader.load(typed)
        except NotLoadable as error:
            unloadable.add(error.type_name)


def _problems(
    ports: Ports, thread: str, incarnation: int | None, first: Refused
) -> tuple[Problem, ...]:
    """The alarm of the walk, and every single row that does not verify."""
    found = [_problem(first)]
    if incarnation is not None:
        chain = lenient(ports, thread, incarnation, Link(0, bytes(32)))
        if chain is not None:
            chain.everything()
            found += [_problem(error) for error in chain.broken]
    return tuple({p.text: p for p in found}.values())


def _problem(error: SurefootError) -> Problem:
    seq: Any = error.fields.get("seq")
    return Problem(error.code, str(error), seq if isinstance(seq, int) else None)


# --- what could be gone back to ----------------------------------------------------------------


def lenient(
    ports: Ports, thread: str, incarnation: int, head: Link, vouched: Collection[str] = ()
) -> Chain | None:
    """A chain that passes over rows that do not verify; what it names has to all the same."""
    row, rows = ports.store.read_newest(ports.tenant, thread, limit=FIRST_PAGE_FRAMES)
    if row is None:
        return None
    identity = Identity(ports.tenant, thread, incarnation)
    return Chain(ports, identity, row, head, rows, lenient=True, vouched=vouched)


def last_good(
    ports: Ports,
    serde: Serializer,
    thread: str,
    incarnation: int,
    *,
    below: int | None,
    vouched: Collection[str] = (),
    at: int | None = None,
    even_given_up: bool = False,
) -> Link | None:
    """The last record from which everything verifies down to the beginning.

    What an earlier ordered restore has given up comes last, and only if it is asked for: whoever
    can write the database can put it back beside the chain.

    The values of the latest root checkpoint, and of everything above it, have to be there and
    match as well, or nothing could go on from it.

    Args:
        ports: Stores.
        serde: Serialiser; nothing is decoded with it here.
        thread: Id of the thread.
        incarnation: Life that the records are sealed for.
        below: No record above this seq; None means any.
        vouched: Retired keys whose seals count without a ``K`` record.
        at: Only a record with this seq; None means any.
        even_given_up: Also what an ordered restore has given up, or may have.
    """
    chain = lenient(ports, thread, incarnation, Link(0, bytes(32)), vouched)
    if chain is None:
        return None
    walks = _Walks(ports, chain, vouched)
    contents = _Contents(ports, serde, chain)
    stored = chain.everything()
    restores = _standing_restores(ports, chain, stored, walks)
    kept = [r for r in stored if not decide_given_up(r, restores)]
    rest = [r for r in stored if decide_given_up(r, restores)] if even_given_up else []
    for record in (*kept, *rest):
        if (below is not None and record.link.seq > below) or at not in (None, record.link.seq):
            continue
        chain.head = record.link
        if walks.reach_the_beginning() and contents.are_whole():
            return record.link
    return None


def _standing_restores(
    ports: Ports, chain: Chain, stored: Sequence[RecordHead], walks: _Walks
) -> Sequence[tuple[int, int]]:
    """Epoch and target of each ordered restore that may have been published.

    One that was not is missing from the chain of a later epoch. Of one whose body is damaged, only
    the sealed head tells that it was there, so its target counts as the beginning.
    """
    heads = ports.store.read_heads(chain.row.key, from_seq=1)
    frames = verify_rows(ports, chain.identity, heads, broken=[])
    found = [r for f in frames for r in f.records if r.kind is Kind.RESTORE]
    if not found:
        return ()
    newest_epoch, on_chain = 0, set[bytes]()
    for record in sorted(stored, key=lambda r: (r.epoch, r.link.seq), reverse=True):
        chain.head = record.link
        if walks.reach_the_beginning():
            newest_epoch = record.epoch
            walked = chain.walk(tail=False, bodies=False)
            on_chain = {r.link.digest for r in walked if r.kind is Kind.RESTORE}
            break
    bodies = {r.link.digest: r for r in stored if r.kind is Kind.RESTORE and r.body is not None}
    standing = []
    for record in found:
        if record.epoch >= newest_epoch or record.link.digest in on_chain:
            full = bodies.get(record.link.digest)
            to = 0 if full is None else restore_of(chain.identity.thread, full).to_seq
            standing.append((record.epoch, to))
    return standing


def pruned_above(chain: Chain, seq: int) -> int | None:
    """Number of the prune on the chain below which a record lies; None when it lies below none.

    A prune that was published counts whether it has collected or not. A chain that cannot be walked
    that far tells nothing.
    """
    try:
        for record in chain.walk(tail=False, bodies=False):
            if record.link.seq <= seq:
                return None
            if record.kind is Kind.PRUNE:
                return record.link.seq
    except (TamperDetected, KeyMissing):
        return None
    return None


class _Walks:
    """Walks down from records of one thread; no part of it is walked twice."""

    def __init__(self, ports: Ports, chain: Chain, vouched: Collection[str]) -> None:
        self._seals = ports.seals
        self._chain = chain
        self._vouched = frozenset(vouched)
        #: Records from which a walk comes through, or leads nowhere.
        self._good: set[bytes] = set()
        self._bad: set[bytes] = set()

    def reach_the_beginning(self) -> bool:
        """Whether a walk from the chain's head comes through."""
        head = self._chain.head.digest
        if head in self._good or head in self._bad:
            return head in self._good
        passed: list[tuple[RecordHead, str | None]] = []
        pruned: int | None = None
        try:
            for record in self._chain.walk(tail=False):
                if record.link.digest in self._bad:
                    break
                if record.link.digest in self._good:
                    self._note(passed, pruned)
                    return True
                passed.append((record, self._retired(record)))
                if pruned is None and record.kind is Kind.PRUNE:
                    pruned = len(passed)
            else:
                self._note(passed, pruned)
                return True
        except (TamperDetected, RollbackDetected, KeyMissing, Busy):
            pass  # leads nowhere; noted below
        self._bad.update(record.link.digest for record, _ in passed[:pruned])
        self._bad.add(head)
        return False

    def _retired(self, record: RecordHead) -> str | None:
        key_id = self._chain.key_id(record)
        return key_id if key_id not in self._vouched and self._seals.is_retired(key_id) else None

    def _note(self, passed: Sequence[tuple[RecordHead, str | None]], pruned: int | None) -> None:
        """What a prune kept is no walk of its own, so only what stands above it is noted."""
        standing = decide_standing(passed)
        for (record, _), good in list(zip(passed, standing, strict=True))[:pruned]:
            if good:
                self._good.add(record.link.digest)
        self._good.add(self._chain.head.digest)


class _Contents:
    """Looks at the values that going on from a record needs; each is looked at once."""

    def __init__(self, ports: Ports, serde: Serializer, chain: Chain) -> None:
        self._ports = ports
        self._serde = serde
        self._chain = chain
        #: Records at which something is missing, and those above them.
        self._hollow: set[bytes] = set()
        self._seen: dict[tuple[str, ValueRef], bool] = {}
        self._logs: dict[int, _Log] = {}

    def are_whole(self) -> bool:
        """Whether all values are there down to the latest root checkpoint, from the head."""
        passed: list[bytes] = []
        thread = self._chain.identity.thread
        try:
            for record in self._chain.walk(tail=False):
                passed.append(record.link.digest)
                if record.link.digest in self._hollow or not self._has(values_of(thread, record)):
                    break
                if record.kind is Kind.CHECKPOINT:
                    body = checkpoint_of(thread, record)
                    early = self._chain.with_bodies(self._chain.written_before(record))
                    if not self._has([t for r in early for t in values_of(thread, r)]):
                        break
                    if body.namespace == "" and body.extra.get("of") is None:
                        return True
            else:
                return True
        except TamperDetected:
            pass  # what cannot be read is not whole; noted below
        self._hollow.update(passed)
        return False

    def _has(self, wanted: Sequence[Typed]) -> bool:
        loader = loader_for(self._ports, self._chain, self._serde)
        rows = [t for t in wanted if isinstance(t.ref, Row) and (t.tag, t.ref) not in self._seen]
        loader.fetch(rows)
        for typed in wanted:
            if not isinstance(typed.ref, Chunks):
                if not self._is_there(loader, typed):
                    return False
            elif not all(self._log(segment).holds(segment) for segment in typed.ref.segments):
                return False
        return True

    def _is_there(self, loader: Loader, typed: Typed) -> bool:
        key = (typed.tag, typed.ref)
        if key not in self._seen:
            try:
                loader.raw(typed)
            except TamperDetected:
                self._seen[key] = False
            else:
                if not isinstance(typed.ref, Row):
                    return True
                self._seen[key] = True
        return self._seen[key]

    def _log(self, segment: Segment) -> _Log:
        known = self._logs.get(segment.log_id)
        if known is None or known.asked < segment.count:
            loader = loader_for(self._ports, self._chain, self._serde)
            loader.fetch([Typed("", Chunks((segment,)))])
            known = _Log(segment.count, loader, segment.log_id)
            self._logs[segment.log_id] = known
        return known


class _Log:
    """What is stored of one log: running digests and numbers of elements behind each piece."""

    def __init__(self, asked: int, loader: Loader, log_id: int) -> None:
        self.asked = asked
        self._loader = loader
        self._log_id = log_id
        self._running = [ZERO_RUNNING]
        self._items = [0]
        for body in loader.logs.get(log_id, ())[:asked]:
            self._running.append(running_digest(self._running[-1], body))
            self._items.append(self._items[-1] + int.from_bytes(body[:4], "big"))
        self._opened = 0

    def holds(self, segment: Segment) -> bool:
        """Whether the pieces of a segment are there, match it and can be opened."""
        if segment.count >= len(self._running):
            return False
        matches = hmac.compare_digest(self._running[segment.count], segment.digest)
        if not matches or self._items[segment.count] != segment.items:
            return False
        bodies = self._loader.logs.get(self._log_id, ())
        try:
            while self._opened < segment.count:
                count = self._items[self._opened + 1] - self._items[self._opened]
                body = bodies[self._opened][4:]
                cover = self._loader.cover
                unpack_stored(cover.open_chunk(self._log_id, self._opened, count, body))
                self._opened += 1
        except ValueError:
            return False
        return True
