"""Writing a journal: store in A (P3), publish in B (P4), and only then acknowledge (P5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from surefoot.errors import (
    ChunkTaken,
    Fenced,
    Misuse,
    OutcomeUnknown,
    RollbackDetected,
    StoreUnavailable,
    SurefootError,
    TransactionEnded,
)
from surefoot.flows.chain import Chain, verify_rows
from surefoot.flows.cover import cover_of
from surefoot.ports import Append, ChunkRow, FrameRow, HeadRow, Ports, Publish, ThreadRow
from surefoot.rules.bodies import EffectBody, RestoreBody
from surefoot.rules.doubts import is_open
from surefoot.rules.effects import Receiver
from surefoot.rules.envelope import (
    GENESIS,
    Kind,
    Link,
    Record,
    RecordHead,
    SealedFrame,
    seal_frame,
)
from surefoot.rules.intents import pack_intents
from surefoot.rules.publish import GateFacts, PublishFacts, Then, decide_gate, decide_publish
from surefoot.session import Session

__all__ = ["Done", "append", "append_within", "publish", "renew"]

_TRIES = 5
#: True while a caller's statements run within a transaction of the journal.
_inside: ContextVar[bool] = ContextVar("surefoot_inside", default=False)
_PARENT_FRAMES = 6


def append(
    ports: Ports,
    session: Session,
    records: Sequence[Record],
    *,
    rows: Sequence[tuple[bytes, bytes]] = (),
    chunks: Sequence[ChunkRow] = (),
    checkpoint_hash: bytes | None = None,
    run_ids: Sequence[str] = (),
) -> Sequence[Link]:
    """Stores records behind the session's head (step P3). The caller holds ``session.lock``.

    Any failure latches the session (rule E10): nothing more is written or started under this
    epoch, because nobody can know what the next record would follow.

    Returns:
        The position of each record. They are stored, not yet published.

    Raises:
        Fenced: Another worker has the thread.
        RollbackDetected: The database does not hold what this session stored.
        StoreUnavailable: The database did not answer; nothing is acknowledged.
    """
    if _inside.get():
        raise Misuse(
            field="the body of an effect in the same database",
            reason="nothing else of the run can be recorded before it is over",
        )
    session.check_latch()
    try:
        frame, request = _sealed(
            ports,
            session,
            records,
            rows=rows,
            chunks=chunks,
            checkpoint_hash=checkpoint_hash,
            run_ids=run_ids,
        )
        session.key = _store(ports, session, request, _order_of(session, records))
    except ChunkTaken:
        raise  # proven: nothing was stored; the caller writes the list anew
    except SurefootError as error:
        session.latch(error)
        raise
    except BaseException:
        session.latch(StoreUnavailable(store=ports.store.shown, reason="the save was interrupted"))
        raise
    _remember(ports, session, frame, request)
    session.open_slots = _open_after(session, records)
    return frame.links


def _open_after(session: Session, records: Sequence[Record]) -> frozenset[bytes] | None:
    """Open slots of the thread once these records are stored; None when nobody has looked."""
    if session.open_slots is None:
        return None
    effects = [EffectBody.unpack(r.schema, r.body) for r in records if r.kind is Kind.EFFECT]
    bodies = [body for body in effects if not body.only_asked]
    if not bodies:
        return session.open_slots
    states = {body.slot: body.state for body in bodies}
    opened = {slot for slot, state in states.items() if is_open(state)}
    taken_over = {body.adopted for body in bodies}
    return session.open_slots - states.keys() - taken_over | opened


def _may_have_open(after: frozenset[bytes] | None, records: Sequence[Record]) -> bool:
    """The hint to store. An outcome alone does not end it, the next checkpoint does.

    An update that changes the hint touches every index of the row; one per step is enough.
    """
    return after is None or bool(after) or all(r.kind is Kind.EFFECT for r in records)


def _sealed(
    ports: Ports,
    session: Session,
    records: Sequence[Record],
    *,
    rows: Sequence[tuple[bytes, bytes]],
    chunks: Sequence[ChunkRow] = (),
    checkpoint_hash: bytes | None = None,
    run_ids: Sequence[str] = (),
) -> tuple[SealedFrame, Append]:
    """Records behind the session's head, as a sealed frame and what stores it."""
    identity = session.identity
    covered = cover_of(ports, identity).cover_records(
        records, after_seq=session.head.seq, epoch=session.epoch
    )
    key_id = ports.seals.primary()
    frame = seal_frame(
        identity,
        session.epoch,
        session.head,
        covered,
        key_id=key_id,
        seal_key=ports.seals.seal_key(key_id, identity.tenant, identity.thread),
        early_floor=session.early_floor(),
    )
    request = Append(
        tenant=identity.tenant,
        thread=identity.thread,
        incarnation=identity.incarnation,
        expected=session.stored_head,
        head=HeadRow(frame.last_seq, frame.epoch, frame.links[-1].digest),
        has_open=_may_have_open(_open_after(session, records), records),
        frame=FrameRow(frame.last_seq, frame.epoch, frame.head, frame.body),
        checkpoint_hash=checkpoint_hash,
        values=rows,
        chunks=chunks,
        run_ids=run_ids,
    )
    return frame, request


# --- together with a caller's statements ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """What a caller's work in the database amounts to: records, their rows, and his own result."""

    records: Sequence[Record]
    rows: Sequence[tuple[bytes, bytes]]
    result: Any


def append_within(ports: Ports, session: Session, work: Callable[[Any], Done]) -> Any:
    """Stores records in one transaction with what a caller does in the content store.

    The caller holds ``session.lock`` and has published the head, so that the records follow it
    directly: whoever acquires next adopts them, and no checkpoint that is given up lies between.
    What ``work`` or its database raises undoes everything and does not latch the session. ``work``
    runs again when the gate undid it. After a lost reply it does not: its first transaction may
    still be under way, and the next to acquire finds what became of it.

    Returns:
        The result of the ``work`` that was committed.

    Raises:
        Fenced: Another worker has the thread.
        RollbackDetected: The database does not hold what this session stored.
        StoreUnavailable: The database did not answer.
        TransactionEnded: ``work`` ended the transaction.
    """
    session.check_latch()
    made: list[tuple[SealedFrame, Append, Any]] = []
    stored: list[Record] = []
    raised: list[BaseException] = []

    def build(connection: Any) -> Append:
        token = _inside.set(True)
        try:
            done = work(connection)
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            _inside.reset(token)
        frame, request = _sealed(ports, session, done.records, rows=done.rows)
        made.append((frame, request, done.result))
        stored[:] = done.records
        return request

    try:
        (frame, request, result), session.key = _store_within(ports, session, build, made)
    except BaseException as error:
        foreign = isinstance(error, Exception) and not isinstance(error, SurefootError)
        if not (raised or foreign or isinstance(error, TransactionEnded)):
            interrupted = StoreUnavailable(
                store=ports.store.shown, reason="the save was interrupted"
            )
            session.latch(error if isinstance(error, SurefootError) else interrupted)
        raise
    _remember(ports, session, frame, request)
    session.open_slots = _open_after(session, stored)
    return result


def _store_within(
    ports: Ports,
    session: Session,
    build: Callable[[Any], Append],
    made: Sequence[tuple[SealedFrame, Append, Any]],
) -> tuple[tuple[SealedFrame, Append, Any], int]:
    """Sends the transaction; reads back what a lost reply did."""
    lost: OutcomeUnknown | None = None
    for _ in range(_TRIES):
        if session.stored_head is not None and session.stored_head.epoch > session.epoch:
            raise _not_after(ports, session)
        try:
            key = ports.store.append_within(build)
        except OutcomeUnknown as error:
            key, lost = None, error
        if key is not None:
            return made[-1], key
        if not made:
            break
        row = ports.store.read_thread(session.identity.tenant, session.identity.thread)
        if row is not None and row.head == made[-1][1].head:
            return made[-1], row.key
        if lost is not None:
            break
        then = _after_gate(ports, session, made[-1][1], row, None)
        if then is Then.FENCED:
            raise _fenced(ports, session, "a write was refused")
        if then is Then.RELOAD and row is not None:
            _require_no_effect(ports, session, row)
            session.stored_head = row.head
        elif then is not Then.AGAIN:
            raise _gate_rollback(ports, session)
    raise lost or StoreUnavailable(store=ports.store.shown, reason="the gate kept moving")


def _require_no_effect(ports: Ports, session: Session, row: ThreadRow) -> None:
    """Refuses to pass over an orphan that holds an effect of the same database.

    Its rows are committed, so it has to be adopted: the next to acquire finds it behind the head.

    Raises:
        StoreUnavailable: One landed after this session had loaded.
    """
    heads = ports.store.read_heads(row.key, from_seq=session.head.seq + 1)
    keys = [(head.last_seq, head.epoch) for head in heads]
    rows = ports.store.read_frames(row.key, keys) if keys else ()
    for frame in verify_rows(ports, session.identity, rows, broken=[]):
        for record in frame.records:
            follows = record.kind is Kind.EFFECT and record.prev == session.head.digest
            if follows and _is_same_database(record):
                raise StoreUnavailable(
                    store=ports.store.shown,
                    reason=(
                        "an earlier worker's effect in the same database landed after this one "
                        "had loaded; run again"
                    ),
                )


def _is_same_database(record: RecordHead) -> bool:
    body = EffectBody.unpack(record.schema, record.body or b"")
    return body.receiver == Receiver.SAME_DATABASE.value and body.state == "succeeded"


# --- storing ----------------------------------------------------------------------------------


def _remember(ports: Ports, session: Session, frame: SealedFrame, request: Append) -> None:
    session.head = frame.links[-1]
    session.stored_head = request.head
    session.wrote = True
    session.dirty = True
    for digest, _ in request.values:
        session.note_stored(digest, ports.limits.known_digests_max)
    for chunk in request.chunks:
        session.log_tips[chunk.log_id] = chunk.ordinal + 1
    session.runs_noted.update(request.run_ids)


def _order_of(session: Session, records: Sequence[Record]) -> Link | None:
    """What has to be stored for an order that these records carry out; None when it is none."""
    first = records[0]
    if session.wrote:
        return None
    if first.kind is Kind.TOMBSTONE:
        return Link(0, GENESIS)
    if first.kind is Kind.RESTORE:
        body = RestoreBody.unpack(first.schema, first.body)
        return Link(body.to_seq, body.to_digest)
    return None


def _clear_way(ports: Ports, session: Session) -> None:
    """Deletes what lies beyond the published head and does not verify, before an order is stored.

    It can be part of no chain, and it would stand where the order's frame, or a later one, goes.
    """
    if session.key is None:
        return
    rows = ports.store.read_heads(session.key, from_seq=session.head.seq + 1)
    if not rows:
        return
    verified = {
        (frame.last_seq, frame.epoch)
        for frame in verify_rows(ports, session.identity, rows, broken=[])
    }
    unfit = [key for row in rows if (key := (row.last_seq, row.epoch)) not in verified]
    if unfit:
        ports.store.discard_frames(session.key, unfit)


def _store(ports: Ports, session: Session, request: Append, order: Link | None) -> int:
    """Sends one append; reads back what a lost reply did (a lost answer is a third outcome).

    Args:
        ports: Stores.
        session: Who appends.
        request: What.
        order: What an order names, which takes over the head row as it is.
    """
    lost: OutcomeUnknown | None = None
    if order is not None:
        _clear_way(ports, session)
    for _ in range(_TRIES):
        expected = request.expected
        if (
            expected is not None
            and expected.epoch > session.epoch
            and not (order is not None and _may_take_over(ports, session))
        ):
            # We loaded after a later worker had written. Behind its head row our record would
            # look to it like an edited database, so the gate must not let it in.
            raise _not_after(ports, session)
        try:
            key = ports.store.append(request)
        except OutcomeUnknown as error:
            lost = error
            key = None
        if key is not None:
            return key
        row = ports.store.read_thread(request.tenant, request.thread)
        then = _after_gate(ports, session, request, row, order)
        if then is Then.COMMITTED and row is not None:
            return row.key
        if then is Then.AGAIN:
            continue
        if then is Then.RELOAD:
            # An honest orphan of an earlier epoch landed after we loaded; its owner is fenced
            # by our epoch in B. Re-base on the head row that was judged: the orphan was never
            # published, never acknowledged, and stays beside the chain.
            if row is not None and row.incarnation == request.incarnation:
                _require_no_effect(ports, session, row)
            if row is not None and row.incarnation < request.incarnation:
                # Written by a worker of an earlier life, whose tombstone is published (P6).
                ports.store.delete_thread(row.key)
                row = None
            request = replace(request, expected=None if row is None else row.head)
        elif then is Then.FENCED:
            raise _fenced(ports, session, "a write was refused")
        else:
            raise _gate_rollback(ports, session)
    raise lost or StoreUnavailable(store=ports.store.shown, reason="the gate kept moving")


def _may_take_over(ports: Ports, session: Session) -> bool:
    """Whether a head row of a later epoch than ours is forged.

    It was read before B is asked here: B gives epochs out in order, so as long as ours is the last
    one, nobody can have written under a later one. B without a mark is an adoption under way.
    """
    mark = ports.marks.read(session.identity.tenant, session.identity.thread)
    return mark is None or mark.epoch == session.epoch


def _after_gate(
    ports: Ports, session: Session, request: Append, row: ThreadRow | None, order: Link | None
) -> Then:
    stored = None if row is None else row.head
    if stored == request.expected:
        return Then.AGAIN  # nothing was stored: the reply and the request were both lost
    # Before B is asked: what the next owner collects is no alarm.
    parent_stored = session.wrote or _parent_stored(ports, session, order)
    mark = ports.marks.read(request.tenant, request.thread)
    return decide_gate(
        GateFacts(
            our_epoch=session.epoch,
            mark_epoch=None if mark is None else mark.epoch,
            first_write=not session.wrote,
            stored_epoch=None if stored is None else stored.epoch,
            stored_is_ours=stored == request.head,
            parent_stored=parent_stored,
            ordered=order is not None,
        )
    )


def _parent_stored(ports: Ports, session: Session, order: Link | None) -> bool:
    """Whether the record that ours follows is stored; read after the head row.

    A failover that comes later moves the head row again, so the gate sees it. An order needs what
    it names, not what it gives up, and passes over damaged rows.
    """
    head = session.head if order is None else order
    if head.seq == 0:
        return True
    identity = session.identity
    row, rows = ports.store.read_newest(identity.tenant, identity.thread, limit=_PARENT_FRAMES)
    if row is None:
        return False
    return Chain(ports, identity, row, head, rows, lenient=order is not None).has_head()


def _not_after(ports: Ports, session: Session) -> SurefootError:
    """Why A's head row is of a later epoch: B has given that epoch to another, or it is forged."""
    mark = ports.marks.read(session.identity.tenant, session.identity.thread)
    if mark is not None and mark.epoch == session.epoch:
        return _gate_rollback(ports, session)
    return _fenced(ports, session, "another worker has written since it was acquired")


def _fenced(ports: Ports, session: Session, reason: str) -> Fenced:
    mark = ports.marks.read(session.identity.tenant, session.identity.thread)
    return Fenced(
        thread=session.identity.thread,
        epoch=session.epoch,
        current_epoch=None if mark is None else mark.epoch,
        reason=reason,
    )


def _gate_rollback(ports: Ports, session: Session) -> RollbackDetected:
    row = ports.store.read_thread(session.identity.tenant, session.identity.thread)
    return RollbackDetected(
        thread=session.identity.thread,
        witnessed_seq=session.mark.seq,
        stored_seq=0 if row is None else row.head.seq,
        reason="the head row changed under the epoch that owns it",
    )


# --- publish (P4) ------------------------------------------------------------------------------


def publish(
    ports: Ports,
    session: Session,
    *,
    free: bool = False,
    clean: bool = False,
    folded: bool = False,
    state: str = "live",
) -> None:
    """Publishes the session's head: the commit point (step P4). The caller holds the lock.

    Args:
        ports: Stores.
        session: Whose head.
        free: Give the lease back with the same statement (released, paused, at rest).
        clean: Everything is published and no effect is open (step P7).
        folded: A root checkpoint is among what is published.
        state: State of the mark.

    Raises:
        Fenced: Another worker has the thread.
        OutcomeUnknown: B did not say whether it took the mark.
        StoreUnavailable: B could not be reached.
        RollbackDetected: B holds a mark that this session never published.
    """
    session.check_latch()
    try:
        _publish(ports, session, free=free, clean=clean, folded=folded, state=state)
    except SurefootError as error:
        session.latch(error)
        raise
    except BaseException:
        session.latch(
            StoreUnavailable(store=ports.marks.shown, reason="publishing was interrupted")
        )
        raise
    session.notify()


def _publish(
    ports: Ports, session: Session, *, free: bool, clean: bool, folded: bool, state: str
) -> None:
    identity = session.identity
    session.note_left_open()
    request = Publish(
        epoch=session.epoch,
        seq=session.mark.seq,
        digest=session.mark.digest,
        new_seq=session.head.seq,
        new_digest=session.head.digest,
        step=session.step,
        intents=pack_intents(session.intents),
        ttl_ms=0 if free else ports.policy.lease_ttl_ms,
        clean=clean,
        folded=folded,
        state=state,
    )
    lost: OutcomeUnknown | None = None
    for _ in range(_TRIES):
        asked_ms = ports.host.monotonic_ms()
        try:
            done = ports.marks.publish(identity.tenant, identity.thread, request)
        except OutcomeUnknown as error:
            lost, done = error, False
        if not done:
            then = _after_publish(ports, session, request)
            if then is Then.AGAIN:
                continue
            if then is Then.FENCED:
                raise _fenced(ports, session, "the mark was not accepted")
            if then is Then.ROLLBACK:
                raise RollbackDetected(
                    thread=identity.thread,
                    witnessed_seq=session.mark.seq,
                    stored_seq=session.head.seq,
                    reason="the high-water store holds a mark that its owner never published",
                )
        session.mark = Link(request.new_seq, request.new_digest)
        session.lease_until_ms = 0 if free else asked_ms + ports.policy.lease_ttl_ms
        session.yielded = free
        session.idle_since_ms = asked_ms
        session.swept = False
        session.dirty = not clean
        if folded:
            session.tainted = False
        return
    raise lost or OutcomeUnknown(what="publishing", reason="the mark kept moving")


def _after_publish(ports: Ports, session: Session, request: Publish) -> Then:
    mark = ports.marks.read(session.identity.tenant, session.identity.thread)
    return decide_publish(
        PublishFacts(
            our_epoch=session.epoch,
            mark_epoch=None if mark is None else mark.epoch,
            mark_digest=b"" if mark is None else mark.digest,
            old_digest=request.digest,
            new_digest=request.new_digest,
        )
    )


def renew(ports: Ports, session: Session) -> None:
    """Extends the lease, unless it was given back meanwhile.

    A store that does not answer counts as lost authority (case 26).

    Raises:
        Fenced: Another worker has the thread.
        StoreUnavailable: B could not be reached.
    """
    session.check()
    asked_ms = ports.host.monotonic_ms()
    identity = session.identity
    if not ports.marks.renew(
        identity.tenant, identity.thread, session.epoch, ports.policy.lease_ttl_ms
    ):
        mark = ports.marks.read(identity.tenant, identity.thread)
        if mark is not None and mark.epoch == session.epoch:
            return  # given back by a publish that came first
        error = _fenced(ports, session, "the lease could not be renewed")
        session.latch(error)
        raise error
    session.lease_until_ms = asked_ms + ports.policy.lease_ttl_ms
