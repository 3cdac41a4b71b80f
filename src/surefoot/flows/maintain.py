"""Deleting, pruning and copying threads: publish what permits it, then collect (step P6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from surefoot.errors import (
    Busy,
    Misuse,
    RollbackDetected,
    SaveFailed,
    SurefootError,
    TamperDetected,
)
from surefoot.flows import journal
from surefoot.flows.acquire import checkpoint_of, held, seize
from surefoot.flows.chain import Chain
from surefoot.flows.cover import Cover, cover_of
from surefoot.flows.find import Found, values_of, walk_checkpoints, writes_of
from surefoot.flows.load import load_metadata, loader_for
from surefoot.flows.values import ZERO_RUNNING, Loader, chunk_row, running_digest
from surefoot.flows.views import has_moved, viewing
from surefoot.ports import ChunkRow, HeadRow, Kept, Mark, Ports, Serializer
from surefoot.rules.bodies import (
    BODY_SCHEMAS,
    BodyError,
    CheckpointBody,
    Chunks,
    KeptFrame,
    KeyChangeBody,
    ProvenanceBody,
    PruneBody,
    Row,
    Segment,
    TombstoneBody,
    Typed,
    WritesBody,
)
from surefoot.rules.chain import KeyLimits
from surefoot.rules.envelope import Identity, Kind, Link, Record, RecordHead, hash8
from surefoot.rules.intents import unpack_intents
from surefoot.rules.retention import CheckpointFacts, decide_cuts, decide_kept, decide_latest
from surefoot.session import NO_HORIZON, Session

__all__ = [
    "collect_beside",
    "copy_thread",
    "delete_runs",
    "delete_thread",
    "prune_thread",
    "retire_key",
]

_NO_SUBJECT = bytes(16)


# --- delete ------------------------------------------------------------------------------------


def delete_thread(ports: Ports, thread: str) -> None:
    """Publishes a tombstone, then deletes all rows; the mark stays for ever.

    A thread whose rows do not verify any more can be deleted as well.

    Raises:
        Busy: A live worker holds the thread.
        ResumeRefused: Stored, never witnessed (R2).
    """
    mark = ports.marks.read(ports.tenant, thread)
    row = ports.store.read_thread(ports.tenant, thread)
    if mark is None and row is None:
        return
    if mark is not None and mark.state == "tombstone":
        if row is not None:
            ports.store.delete_thread(row.key)
        return
    session = seize(ports, thread)
    try:
        _bury(ports, session)
    finally:
        session.ended = True
        ports.host.retire(session.owner)


def _bury(ports: Ports, session: Session) -> None:
    with session.lock:
        body = TombstoneBody("delete_thread").pack()
        journal.append(
            ports, session, [Record(Kind.TOMBSTONE, BODY_SCHEMAS["X"], _NO_SUBJECT, body)]
        )
        journal.publish(ports, session, free=True, clean=True, folded=True, state="tombstone")
        if session.key is not None:
            ports.store.delete_thread(session.key)


# --- prune -------------------------------------------------------------------------------------


def prune_thread(ports: Ports, serde: Serializer, thread: str) -> None:
    """Keeps the head of each branch of each namespace and what it needs (keep_latest).

    Raises:
        Busy: A live worker holds the thread.
    """
    _collect(ports, serde, thread, "prune keep_latest", decide_latest)


def delete_runs(ports: Ports, serde: Serializer, thread: str, run_ids: Collection[str]) -> None:
    """Deletes the checkpoints of a thread that these runs made, and their writes.

    Checkpoints that others need to rebuild a DeltaChannel stay, and so does every effect.

    Raises:
        Busy: A live worker holds the thread.
    """
    unwanted = frozenset(run_ids)

    def keep(facts: Sequence[CheckpointFacts]) -> frozenset[tuple[str, str]]:
        return frozenset(f.place for f in facts if f.run_id not in unwanted)

    _collect(ports, serde, thread, "delete_for_runs", keep)


def _collect(
    ports: Ports,
    serde: Serializer,
    thread: str,
    reason: str,
    choose: Callable[[Sequence[CheckpointFacts]], frozenset[tuple[str, str]]],
) -> None:
    """Publishes the kept set as a ``P`` record, then deletes the rest."""
    unseen = ports.marks.read(ports.tenant, thread) is None
    if unseen and ports.store.read_thread(ports.tenant, thread) is None:
        return
    with held(ports, thread) as (session, chain):
        if chain is None:
            return
        loader = loader_for(ports, chain, serde)
        found = list(walk_checkpoints(chain))
        facts = [_facts(loader, f) for f in found]
        kept = decide_kept(facts, choose(facts))
        plan = _plan(chain, kept)
        if len(kept) == len(facts):
            # Nothing new to drop, but an earlier prune may have died before it collected.
            if plan.pruned_at:
                ports.store.collect(chain.row.key, plan.kept_below(plan.pruned_at, chain.row.head))
            return
        body = PruneBody(plan.frames, reason, plan.hidden, decide_cuts(facts, kept)).pack()
        journal.append(ports, session, [Record(Kind.PRUNE, BODY_SCHEMAS["P"], _NO_SUBJECT, body)])
        journal.publish(ports, session)
        # Under the lease, and only if nobody has written since: whoever writes next may store
        # values that this plan does not know.
        head = session.stored_head or chain.row.head
        ports.store.collect(chain.row.key, plan.kept_below(session.head.seq, head))


def _facts(loader: Loader, found: Found) -> CheckpointFacts:
    metadata = load_metadata(loader, found)
    counters = metadata.get("counters_since_delta_snapshot") or {}
    run_id = metadata.get("run_id")
    return CheckpointFacts(
        place=(found.body.namespace, found.body.checkpoint_id),
        parent_id=found.body.parent_id,
        order=found.order,
        stored=frozenset(v.channel for v in found.body.values),
        delta=frozenset(counters),
        run_id=run_id if isinstance(run_id, str) else None,
        branch=found.branch,
    )


@dataclass(slots=True)
class _Plan:
    frames: tuple[KeptFrame, ...]
    hidden: tuple[int, ...]
    values: set[bytes]
    logs: dict[int, int]
    pruned_at: int = 0

    def kept_below(self, seq: int, head: HeadRow) -> Kept:
        """What a published prune record at ``seq`` permits to delete (P6): all else below it."""
        return Kept(
            head=head,
            frames=[(k.last_seq, k.epoch) for k in self.frames],
            above_seq=seq - 1,
            values=sorted(self.values),
            logs=self.logs,
        )


_ABOUT_CHECKPOINTS = frozenset({Kind.CHECKPOINT, Kind.WRITES})


def _place_of(thread: str, record: RecordHead) -> tuple[str, str] | None:
    """Namespace and id of the checkpoint that a record makes or writes on."""
    if record.kind is Kind.CHECKPOINT:
        body = checkpoint_of(thread, record)
        return body.namespace, body.checkpoint_id
    if record.kind is Kind.WRITES:
        writes = writes_of(thread, record)
        return writes.namespace, writes.checkpoint_id
    return None


def _plan(chain: Chain, kept: Collection[tuple[str, str]]) -> _Plan:
    """Which frames, rows and chunks the kept checkpoints and all effects need."""
    frames: dict[tuple[int, int], KeptFrame] = {}
    hidden: list[tuple[tuple[int, int], int]] = []
    plan = _Plan((), (), set(), {})
    thread = chain.identity.thread
    tops: dict[tuple[int, int], RecordHead] = {}
    for record in chain.walk():
        key = chain.frame_key(record)
        tops.setdefault(key, record)
        if record.kind is Kind.PRUNE:
            plan.pruned_at = max(plan.pruned_at, record.link.seq)
        elif _place_of(thread, record) in kept or record.kind not in _ABOUT_CHECKPOINTS:
            top = tops[key]
            frames[key] = KeptFrame(*key, top.link.seq, top.link.digest)
            _note(plan, values_of(thread, record))
        else:
            hidden.append((key, record.link.seq))
    plan.frames = tuple(sorted(frames.values(), key=lambda k: -k.link_seq))
    plan.hidden = tuple(seq for key, seq in hidden if key in frames)
    return plan


def collect_beside(ports: Ports, session: Session, chain: Chain) -> None:
    """Deletes what does not belong to a chain, after an ordered restore was published (P6).

    Records that do not verify would be met again by every reader otherwise.
    """
    if session.stored_head is None:
        return
    thread = chain.identity.thread
    plan = _Plan((), (), set(), {})
    frames: set[tuple[int, int]] = set()
    for record in chain.walk(tail=False):
        frames.add(chain.frame_key(record))
        _note(plan, values_of(thread, record))
    ports.store.collect(
        chain.row.key,
        Kept(
            head=session.stored_head,
            frames=sorted(frames),
            above_seq=session.head.seq,
            values=sorted(plan.values),
            logs=plan.logs,
        ),
    )


def _note(plan: _Plan, needed: Iterable[Typed]) -> None:
    for typed in needed:
        if isinstance(typed.ref, Row):
            plan.values.add(typed.ref.digest)
        elif isinstance(typed.ref, Chunks):
            for segment in typed.ref.segments:
                plan.logs[segment.log_id] = max(plan.logs.get(segment.log_id, 0), segment.count)


# --- keys --------------------------------------------------------------------------------------


def retire_key(ports: Ports, thread: str, key_id: str, *, compromised: bool) -> bool:
    """Says in a thread up to where a key counts, with a record that another key seals.

    Args:
        ports: Stores; the ring still holds the key, and it is not the primary any more.
        thread: Id of the thread.
        key_id: The key to be retired.
        compromised: Others may know it: unpublished records are not adopted, because anybody
            could have written them. What may have been sent is told by B's intents.

    Returns:
        False when nothing in the thread is sealed with it beyond what is said already.

    Raises:
        Misuse: It is the primary.
        Busy: A live worker holds the thread.
    """
    if ports.seals.primary() == key_id:
        raise Misuse(field="key_id", reason=f"{key_id!r} is the primary; rotate first")
    if not viewing(ports, thread, lambda chain: _needs_limit(chain, key_id, tail=not compromised)):
        return False
    mark = ports.marks.read(ports.tenant, thread)
    if mark is not None and mark.state == "frozen":
        _retire_in_frozen(ports, thread, mark, key_id, compromised=compromised)
        return True
    with held(ports, thread, tail=not compromised) as (session, chain):
        if chain is None:
            return False
        journal.append(ports, session, [_limit(session, key_id, compromised=compromised)])
        journal.publish(ports, session, free=True, clean=True)
    return True


def _limit(session: Session, key_id: str, *, compromised: bool) -> Record:
    """The ``K`` record that says that a key counts up to the session's head."""
    body = KeyChangeBody(key_id, session.head.seq, compromised)
    return Record(Kind.KEY_CHANGE, BODY_SCHEMAS["K"], body.subject(), body.pack())


def _retire_in_frozen(
    ports: Ports, thread: str, mark: Mark, key_id: str, *, compromised: bool
) -> None:
    """Writes into a frozen thread, which nobody can acquire: under the epoch that froze it."""
    row = ports.store.read_thread(ports.tenant, thread)
    if row is None:
        return
    owner = ports.host.describe()
    session = Session(Identity(ports.tenant, thread, mark.incarnation), mark.epoch, owner, None)
    session.mark = session.head = Link(mark.seq, mark.digest)
    session.step, session.tainted = mark.step, mark.tainted
    session.key, session.stored_head = row.key, row.head
    session.intents = unpack_intents(mark.intents)
    try:
        with session.lock:
            journal.append(ports, session, [_limit(session, key_id, compromised=compromised)])
            journal.publish(ports, session, free=True, clean=mark.clean, state="frozen")
    finally:
        session.ended = True
        ports.host.retire(owner)


def _needs_limit(chain: Chain | None, key_id: str, *, tail: bool) -> bool:
    """True when a record is sealed with the key, and no record above says that it counts."""
    if chain is None:
        return False
    limits = KeyLimits()
    for record in chain.walk(tail=tail, bodies=False):
        limits.learn(record)
        if chain.key_id(record) == key_id and not limits.covers(key_id, record.link.seq):
            return True
    return False


# --- copy --------------------------------------------------------------------------------------


def copy_thread(ports: Ports, serde: Serializer, source: str, target: str) -> None:
    """Copies checkpoints and writes under a new identity; effects stay with their thread.

    The source is verified, and decrypted, under its own identity and sealed, and encrypted, again
    under the target's, with a record of provenance first.

    Raises:
        Misuse: The target has checkpoints already, or is the source.
        Busy: A live worker holds the target, or the source was pruned meanwhile.
        TamperDetected: The source does not verify.
    """
    if source == target:
        raise Misuse(field="target_thread_id", reason="is the source itself")
    chain = viewing(ports, source, lambda found: found)
    if chain is None:
        return
    try:
        _copy(ports, serde, chain, target)
    except (RollbackDetected, TamperDetected):
        if not has_moved(ports, chain):
            raise
        raise Busy(what=f"thread {source!r}", holder="a prune or a deletion", left_ms=0) from None


def _copy(ports: Ports, serde: Serializer, chain: Chain, target: str) -> None:
    records = [r for r in chain.walk() if r.kind in (Kind.CHECKPOINT, Kind.WRITES)]
    if not records:
        return
    with held(ports, target) as (session, existing):
        if existing is not None and any(True for _ in walk_checkpoints(existing)):
            raise Misuse(field="target_thread_id", reason=f"thread {target!r} has checkpoints")
        loader = loader_for(ports, chain, serde)
        provenance = ProvenanceBody(
            chain.identity.thread, chain.identity.incarnation, chain.head.seq, chain.head.digest
        ).pack()
        with _whole_or_nothing(session):
            journal.append(
                ports, session, [Record(Kind.FORK, BODY_SCHEMAS["F"], _NO_SUBJECT, provenance)]
            )
            _copy_records(ports, session, chain, loader, records)
        journal.publish(ports, session, free=True, clean=True, folded=True)


@contextmanager
def _whole_or_nothing(session: Session) -> Iterator[None]:
    """What a copy that stops in the middle has stored is never published.

    A latched session only gives its lease back. Its records stay beyond the mark, where the first
    of them (the provenance) is of no kind that is adopted, so a later copy begins anew.
    """
    try:
        yield
    except SurefootError as error:
        session.latch(error)
        raise
    except BaseException as error:
        session.latch(SaveFailed(thread=session.identity.thread, reason=type(error).__name__))
        raise


def _copy_records(
    ports: Ports, session: Session, chain: Chain, loader: Loader, newest_first: Sequence[RecordHead]
) -> None:
    step = session.step
    moved: dict[int, int] = {}
    stored: set[bytes] = set()
    pieces = _Pieces(loader, session, cover_of(ports, session.identity))
    for record in reversed(newest_first):
        hint: bytes | None = None
        runs: list[str] = []
        if record.kind is Kind.CHECKPOINT:
            body = _rebased(session, checkpoint_of(chain.identity.thread, record), record, moved)
            loader.fetch([body.skeleton, body.metadata, *(v.value for v in body.values)])
            hint = hash8(body.checkpoint_id)
            run_id = loader.load(body.metadata).get("run_id")
            runs = [run_id] if isinstance(run_id, str) and run_id not in session.runs_noted else []
            packed = pieces.moved_checkpoint(body).pack()
            if body.namespace == "":
                step = max(step, body.step)
        else:
            writes = writes_of(chain.identity.thread, record)
            loader.fetch([w.value for b in writes.batches for w in b.writes])
            packed = pieces.moved_writes(writes).pack()
            if record.subject not in stored:
                session.early.setdefault(record.subject, session.head.seq + 1)
        rows, chunks = pieces.take()
        # Packed anew, so in the layout of today, whatever release wrote the source.
        schema = BODY_SCHEMAS[chr(record.kind)]
        sealed = Record(record.kind, schema, record.subject, packed)
        (link,) = journal.append(
            ports,
            session,
            [sealed],
            rows=rows,
            chunks=chunks,
            checkpoint_hash=hint,
            run_ids=runs,
        )
        moved[record.link.seq] = link.seq
        if record.kind is Kind.CHECKPOINT:
            stored.add(record.subject)
            session.early.pop(record.subject, None)
    session.step = step  # of what will be published, never of half a copy


#: What a checkpoint says about the thread it was made in, and not about itself.
_OF_ITS_THREAD = frozenset({"horizon", "horizon_at", "apart", "key", "loose", "open"})


def _rebased(
    session: Session, body: CheckpointBody, record: RecordHead, moved: dict[int, int]
) -> CheckpointBody:
    """A checkpoint body for another chain: branch ids stay, seqs are those of the new chain."""
    if body.born:
        body = replace(body, branch=record.link.digest, born=False)
    of = body.extra.get("of")
    if of is not None:
        body = replace(body, extra={**body.extra, "of": moved.get(of, of)})
    extra = {k: v for k, v in body.extra.items() if k not in _OF_ITS_THREAD}
    if session.horizon is not None and session.horizon > NO_HORIZON:
        # The target lost a history of its own; what is copied in is not that history again.
        extra |= {
            "horizon": session.horizon,
            "horizon_at": session.horizon_at,
            "apart": True,
        }
    return replace(body, folds=(), extra=extra)


class _Pieces:
    """Moves values' rows and chunks from one thread to another.

    They are opened under the source's identity and stored under the target's. Logs get
    fresh ids, so that no two attempts at a copy share one.
    """

    def __init__(self, loader: Loader, session: Session, cover: Cover) -> None:
        self._loader = loader
        self._session = session
        self._cover = cover
        self._moved_rows: dict[tuple[str, bytes], Row] = {}
        #: By log id of the source: the new id, and the running digest behind each moved piece.
        self._moved_logs: dict[int, tuple[int, list[bytes]]] = {}
        self._rows: list[tuple[bytes, bytes]] = []
        self._chunks: list[ChunkRow] = []

    def take(self) -> tuple[list[tuple[bytes, bytes]], list[ChunkRow]]:
        """New rows and chunks since the last time."""
        rows, chunks, self._rows, self._chunks = self._rows, self._chunks, [], []
        return rows, chunks

    def moved_checkpoint(self, body: CheckpointBody) -> CheckpointBody:
        """The same checkpoint with values as the target stores them (they must be fetched)."""
        return replace(
            body,
            skeleton=self._moved(body.skeleton),
            metadata=self._moved(body.metadata),
            values=tuple(replace(v, value=self._moved(v.value)) for v in body.values),
        )

    def moved_writes(self, body: WritesBody) -> WritesBody:
        """The same writes with values as the target stores them (they must be fetched)."""
        return replace(
            body,
            batches=tuple(
                replace(b, writes=tuple(replace(w, value=self._moved(w.value)) for w in b.writes))
                for b in body.batches
            ),
        )

    def _moved(self, typed: Typed) -> Typed:
        try:
            if isinstance(typed.ref, Row):
                return replace(typed, ref=self._moved_row(typed.tag, typed.ref))
            if isinstance(typed.ref, Chunks):
                segments = tuple(map(self._moved_segment, typed.ref.segments))
                return replace(typed, ref=Chunks(segments))
        except BodyError as error:
            raise TamperDetected(
                thread=self._loader.cover.identity.thread,
                what="a value",
                seq=None,
                reason=str(error),
            ) from None
        return typed

    def _moved_row(self, tag: str, ref: Row) -> Row:
        known = self._moved_rows.get((tag, ref.digest))
        if known is not None:
            return known
        stored = self._cover.cover_value(tag, self._loader.plain_row(tag, ref))
        row = Row(hashlib.sha256(stored).digest(), len(stored))
        self._rows.append((row.digest, stored))
        self._moved_rows[tag, ref.digest] = row
        return row

    def _moved_segment(self, segment: Segment) -> Segment:
        if segment.log_id not in self._moved_logs:
            self._moved_logs[segment.log_id] = (self._session.new_log(), [])
        log, running = self._moved_logs[segment.log_id]
        pieces = self._loader.plain_chunks(segment)  # verified also where they are moved already
        for ordinal in range(len(running), len(pieces)):
            chunk = chunk_row(self._cover, log, ordinal, *pieces[ordinal])
            running.append(running_digest(running[-1] if running else ZERO_RUNNING, chunk.body))
            self._chunks.append(chunk)
        return replace(segment, log_id=log, digest=running[segment.count - 1])
