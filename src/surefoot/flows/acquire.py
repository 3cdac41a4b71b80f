"""Acquiring a thread (steps P1 and P2) and giving it back (step P7)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from surefoot.errors import (
    Busy,
    Fenced,
    MarkCorrupt,
    OutcomeUnknown,
    ResumeRefused,
    SurefootError,
    TamperDetected,
)
from surefoot.flows import journal
from surefoot.flows.chain import Chain
from surefoot.flows.verdict import refusal
from surefoot.flows.views import gather
from surefoot.ports import Lease, Mark, Ports, Publish
from surefoot.rules.bodies import BodyError, CheckpointBody, EffectBody, PruneBody, RestoreBody
from surefoot.rules.doubts import is_open
from surefoot.rules.envelope import Identity, Kind, Link, RecordHead
from surefoot.rules.intents import pack_intents, unpack_intents
from surefoot.rules.lease import Acquire, decide_acquire, decide_holder_dead
from surefoot.rules.reads import READ
from surefoot.rules.resume import Verdict, decide_resume
from surefoot.session import NO_HORIZON, Known, Session

__all__ = [
    "acquire",
    "begin",
    "body_of",
    "checkpoint_of",
    "corrupt",
    "effect_of",
    "give_back",
    "held",
    "known_of",
    "learn",
    "may_wait_ms",
    "release",
    "restore_of",
    "scan",
    "seize",
]

B = TypeVar("B")
_POLL_MS = 10
#: How often a lease is asked for whose answers get lost, each time without an effect.
_TRIES = 5


def acquire(
    ports: Ports,
    thread: str,
    control: object | None,
    *,
    tail: bool = True,
    wait: bool = True,
) -> tuple[Session, Chain | None]:
    """Takes a thread for a run or a direct call, and loads what a resume needs.

    Args:
        ports: Stores.
        thread: Id of the thread.
        control: The run's control object; None for a direct call.
        tail: Adopt unpublished records. Without, they stay beside the chain for good.
        wait: Wait for the lease of a live worker as long as the policy says. Without, it is
            `Busy` at once: whoever waits elsewhere than here tries again.

    Returns:
        The session and the chain as loaded; no chain when nothing is stored yet.

    Raises:
        Busy: A live worker holds the lease (R12).
        ResumeRefused: Stored, never witnessed (R2).
        RollbackDetected: A is behind B (R3).
        TamperDetected: Something does not verify (R4, R6).
        Fenced: Somebody else acquired the thread while we were loading it.
    """
    session, mark = begin(ports, thread, control, wait=wait)
    try:
        chain = _load(ports, session, mark, adopt=tail)
    except SurefootError:
        try:
            give_back(ports, session, mark)
        finally:
            ports.host.retire(session.owner)
        raise
    except BaseException:
        ports.host.retire(session.owner)
        raise
    return session, chain


def seize(ports: Ports, thread: str) -> Session:
    """Takes a thread without reading its journal, to delete it.

    Raises:
        Busy: A live worker holds the lease (R12).
        ResumeRefused: Stored, never witnessed (R2).
    """
    session, _ = begin(ports, thread, None)
    row = ports.store.read_thread(ports.tenant, thread)
    if row is not None:
        session.key, session.stored_head = row.key, row.head
    return session


def begin(
    ports: Ports, thread: str, control: object | None, *, wait: bool = True
) -> tuple[Session, Mark]:
    """Takes the lease and begins a session at the mark (step P1); reads nothing of A.

    Raises:
        Busy: A live worker holds the lease (R12).
        ResumeRefused: Stored, never witnessed (R2), or frozen (R13).
    """
    lease = Lease(ports.host.describe(), ports.policy.lease_ttl_ms)
    asked_ms = ports.host.monotonic_ms()
    try:
        mark = _take(ports, thread, lease, may_wait_ms(ports) if wait else 0)
    except BaseException:
        ports.host.retire(lease.owner)
        raise
    identity = Identity(ports.tenant, thread, mark.incarnation)
    session = Session(identity, mark.epoch, lease.owner, control)
    session.mark = session.head = Link(mark.seq, mark.digest)
    session.step = mark.step
    session.tally = ports.tally
    session.tainted = mark.tainted
    session.acquired_ms = ports.host.monotonic_ms()
    session.lease_until_ms = asked_ms + lease.ttl_ms
    session.idle_since_ms = session.acquired_ms
    try:
        session.intents = unpack_intents(mark.intents)
    except ValueError as error:
        raise MarkCorrupt(thread=thread, reason=str(error)) from None
    return session, mark


# --- P1 ----------------------------------------------------------------------------------------


def may_wait_ms(ports: Ports) -> int:
    """How long the lease of a live worker is waited for."""
    return max(ports.policy.wait_for_lease_ms, ports.policy.handover_grace_ms)


def _take(ports: Ports, thread: str, lease: Lease, wait_ms: int) -> Mark:
    """Takes the lease, creating the mark of a thread that neither store has seen.

    Raises:
        OutcomeUnknown: B loses its answers, and does nothing (its disk is full, say).
    """
    since_ms = ports.host.monotonic_ms()
    lost: list[OutcomeUnknown] = []
    over_epoch: int | None = None
    while True:
        mark = _answered(
            ports,
            thread,
            lease,
            functools.partial(ports.marks.acquire, over_epoch=over_epoch),
            lost,
        )
        if mark is not None:
            return mark
        over_epoch = None
        held = ports.marks.read(ports.tenant, thread)
        if held is None:
            _, facts = gather(ports, thread, None)
            decision = decide_resume(facts)
            if decision.verdict is Verdict.REFUSE:
                raise refusal(thread, decision, facts)
            created = _answered(ports, thread, lease, ports.marks.create, lost)
            if created is not None:
                return created
            continue
        if held.state == "frozen":
            raise ResumeRefused(
                thread=thread,
                reason="R13 it was frozen by an operator's decision (abort)",
                rules=["R13"],
            )
        dead = decide_holder_dead(ports.host.holder(held.owner))
        then = decide_acquire(
            lease_left_ms=held.lease_left_ms,
            holder_dead=dead,
            waited_ms=ports.host.monotonic_ms() - since_ms,
            may_wait_ms=wait_ms,
        )
        if then is Acquire.BUSY:
            raise Busy(
                what=f"thread {thread!r}",
                holder=ports.host.shown(held.owner),
                left_ms=max(held.lease_left_ms, 0),
            )
        if then is Acquire.TAKE_OVER:
            over_epoch = held.epoch
        elif then is Acquire.WAIT:
            ports.host.pause(_POLL_MS)


def _answered(
    ports: Ports,
    thread: str,
    lease: Lease,
    ask: Callable[[str, str, Lease], Mark | None],
    lost: list[OutcomeUnknown],
) -> Mark | None:
    """Asks B for the lease; when the answer is lost, the owner's token tells whether we got it.

    Raises:
        OutcomeUnknown: We did not get it, and ``lost`` holds enough lost answers already.
    """
    try:
        return ask(ports.tenant, thread, lease)
    except OutcomeUnknown as error:
        mark = ports.marks.read(ports.tenant, thread)
        if mark is not None and mark.owner == lease.owner:
            return mark
        lost.append(error)
        if len(lost) >= _TRIES:
            raise
        return None


def give_back(ports: Ports, session: Session, mark: Mark) -> None:
    """After a load that failed: free the lease, keep the taint, change nothing else."""
    ports.marks.publish(
        session.identity.tenant,
        session.identity.thread,
        Publish(
            epoch=session.epoch,
            seq=mark.seq,
            digest=mark.digest,
            new_seq=mark.seq,
            new_digest=mark.digest,
            step=mark.step,
            intents=mark.intents,
            ttl_ms=0,
            clean=not mark.tainted,
        ),
    )


# --- P2 ----------------------------------------------------------------------------------------


def _load(ports: Ports, session: Session, mark: Mark, *, adopt: bool) -> Chain | None:
    thread = session.identity.thread
    chain, facts = gather(ports, thread, mark)
    decision = decide_resume(facts)
    if decision.verdict is Verdict.REFUSE:
        again = ports.marks.read(ports.tenant, thread)
        if again is not None and again.epoch != session.epoch:
            raise Fenced(
                thread=thread,
                epoch=session.epoch,
                current_epoch=again.epoch,
                reason="somebody acquired it while it was being loaded",
            )
        raise refusal(thread, decision, facts)
    if chain is None:
        leftover = ports.store.read_thread(ports.tenant, thread)
        if leftover is not None:
            ports.store.delete_thread(leftover.key)  # P6: its tombstone is published
        session.open_slots = frozenset()
        return None
    session.key = chain.row.key
    session.stored_head = chain.row.head
    tail = chain.tail() if adopt else ()
    if tail:
        session.head = tail[-1].link
    scan(session, chain, tail=adopt)
    return chain


def scan(session: Session, chain: Chain, *, tail: bool = True) -> None:
    """Reads from the head down to the last root checkpoint: effects, checkpoints, early writes."""
    folded: set[bytes] = set()
    latest: CheckpointBody | None = None
    newest: RecordHead | None = None
    floor: int | None = None
    for record in chain.walk(tail=tail):
        if floor is not None and record.link.seq < floor:
            break
        newest = newest or record
        if record.kind is Kind.EFFECT:
            _learn_effect(session, effect_of(session.identity.thread, record), record, folded)
        elif record.kind is Kind.PRUNE and not session.latest.get(""):
            if prune_of(session.identity.thread, record).cuts:
                session.base_branch = session.base_branch or record.link.digest
                # Another branch from here on: if a history was lost below, its slots have moved.
                session.apart = session.apart or session.horizon is None
        elif record.kind is Kind.RESTORE and session.horizon is None:
            session.horizon = restore_of(session.identity.thread, record).horizon
            session.horizon_at = record.link.seq
        elif record.kind is Kind.CHECKPOINT:
            body = checkpoint_of(session.identity.thread, record)
            folded.update(body.folds)
            latest = latest or body
            if not session.known:
                session.apart = session.apart or bool(body.extra.get("apart"))
            if session.horizon is None:
                session.horizon = body.extra.get("horizon", NO_HORIZON)
                session.horizon_at = body.extra.get("horizon_at", 0)
            learn(session, record, body, chain.key_id(record))
            if body.namespace == "" and floor is None:
                # Checkpoints of its subgraphs may lie below it; its frame says how far.
                floor = chain.early_floor(record) or record.link.seq
                session.root_floor = session.scan_floor = floor
                session.last_root_seq = floor
    session.open_slots = _open_slots(session, latest)
    if newest is not None:
        early = chain.early_floor(newest)
        if early:
            _scan_early(session, chain, early)


def _learn_effect(
    session: Session, effect: EffectBody, record: RecordHead, folded: Container[bytes]
) -> None:
    """Notes a transition met on the way down; the first one met of a slot is its newest."""
    if effect.only_asked:
        return
    if effect.receiver == READ:
        session.reads.bodies.setdefault(effect.slot, effect)
        session.reads.at.setdefault(effect.slot, record.link.seq)
    elif effect.slot not in session.effects:
        session.effects[effect.slot] = effect
        session.effect_at[effect.slot] = record.link.seq
        if effect.slot not in folded:
            session.unfolded[effect.slot] = (effect.namespace, effect.checkpoint_id)


def _open_slots(session: Session, latest: CheckpointBody | None) -> frozenset[bytes]:
    """Slots that the newest checkpoint names as open, and what is known of them since."""
    carried = frozenset(() if latest is None else latest.extra.get("open", ()))
    effects = session.effects.values()
    closed = {effect.slot for effect in effects if not is_open(effect.state)}
    return (carried | session.effects.keys()) - closed - {effect.adopted for effect in effects}


def _scan_early(session: Session, chain: Chain, floor: int) -> None:
    """Which pending writes have no checkpoint yet: heads down to the floor tell."""
    have: set[bytes] = set()
    writes: dict[bytes, int] = {}
    chain.jump(floor)
    for record in chain.walk(bodies=False):
        if record.kind is Kind.CHECKPOINT:
            have.add(record.subject)
        elif record.kind is Kind.WRITES:
            writes[record.subject] = record.link.seq
        if record.link.seq <= floor:
            break
    session.early = {subject: seq for subject, seq in writes.items() if subject not in have}


def learn(session: Session, record: RecordHead, body: CheckpointBody, key_id: str) -> None:
    """Notes a checkpoint met on the way down; the first one met of a namespace is its latest."""
    known = known_of(record, body, key_id)
    if known.namespace == "" and session.base_branch and "" not in session.latest:
        known = replace(known, branch=session.base_branch)
    session.known.setdefault((known.namespace, known.checkpoint_id), known)
    session.bodies.setdefault((known.namespace, known.checkpoint_id), body)
    if known.namespace not in session.latest:
        session.latest[known.namespace] = known.checkpoint_id
    session.branch_heads.setdefault((known.namespace, known.branch), known.checkpoint_id)


def known_of(record: RecordHead, body: CheckpointBody, key_id: str) -> Known:
    """Facts about a stored checkpoint; a branch's id is the digest of the record that began it.

    The key for what is sent under it is carried from checkpoint to checkpoint, so that a step that
    is made again after a rotation sends under the same one (E9); older records name none.
    """
    return Known(
        body.namespace,
        body.checkpoint_id,
        body.parent_id,
        record.link.seq,
        body.step,
        record.link.digest if body.born else body.branch,
        body.extra.get("key", key_id),
    )


def checkpoint_of(thread: str, record: RecordHead) -> CheckpointBody:
    """Reads a verified checkpoint record.

    Raises:
        TamperDetected: Its layout is not known to this release.
    """
    return body_of(thread, record, CheckpointBody.unpack)


def prune_of(thread: str, record: RecordHead) -> PruneBody:
    """Reads a verified prune record.

    Raises:
        TamperDetected: Its layout is not known to this release.
    """
    return body_of(thread, record, PruneBody.unpack)


def restore_of(thread: str, record: RecordHead) -> RestoreBody:
    """Reads a verified record of a restore.

    Raises:
        TamperDetected: Its layout is not known to this release.
    """
    return body_of(thread, record, RestoreBody.unpack)


def effect_of(thread: str, record: RecordHead) -> EffectBody:
    """Reads a verified effect record.

    Raises:
        TamperDetected: Its layout is not known to this release.
    """
    return body_of(thread, record, EffectBody.unpack)


def body_of(thread: str, record: RecordHead, unpack: Callable[[int, bytes], B]) -> B:
    """Reads the body of a verified record.

    Raises:
        TamperDetected: Its layout is not known to this release.
    """
    try:
        return unpack(record.schema, record.body or b"")
    except BodyError as error:
        raise corrupt(thread, record, error) from None


def corrupt(thread: str, record: RecordHead, error: Exception) -> SurefootError:
    """A sealed record that this release cannot read: made by a newer one, or by a broken one."""
    return TamperDetected(
        thread=thread, what="a sealed record", seq=record.link.seq, reason=str(error)
    )


# --- P7 ----------------------------------------------------------------------------------------


def release(ports: Ports, session: Session) -> None:
    """Publishes what is stored and gives the lease back (step P7). Idempotent.

    The mark becomes clean unless an effect is still open; then late writes are covered and
    the next resume is untainted. After a failed save only the lease is given back.

    Raises:
        Fenced: Another worker has the thread.
        StoreUnavailable: B could not be reached; the lease runs out by itself.
    """
    with session.lock:
        if session.ended:
            return
        try:
            if session.latched is None:
                if session.dirty or not session.yielded or session.head != session.mark:
                    journal.publish(ports, session, free=True, clean=not session.running)
            elif not isinstance(session.latched, Fenced):
                _free(ports, session)
        finally:
            session.ended = True
            ports.host.retire(session.owner)


def _free(ports: Ports, session: Session) -> None:
    """Gives back the lease of a latched session; its mark stays where it is, and not clean."""
    ports.marks.publish(
        session.identity.tenant,
        session.identity.thread,
        Publish(
            epoch=session.epoch,
            seq=session.mark.seq,
            digest=session.mark.digest,
            new_seq=session.mark.seq,
            new_digest=session.mark.digest,
            step=session.step,
            intents=pack_intents(session.intents),
            ttl_ms=0,
        ),
    )


@contextmanager
def held(ports: Ports, thread: str, *, tail: bool = True) -> Iterator[tuple[Session, Chain | None]]:
    """A direct call: acquire, work, release in one operation.

    Args:
        ports: Stores.
        thread: Id of the thread.
        tail: See `acquire`.

    Raises:
        Busy: A live worker holds the lease (R12).
    """
    session, chain = acquire(ports, thread, None, tail=tail)
    try:
        with session.lock:
            yield session, chain
    finally:
        release(ports, session)
