"""Saving: checkpoints and pending writes (steps P3 to P5).

Writes of tasks are enqueued and ride with the next checkpoint in one frame, one statement,
one commit. Special writes (interrupt, error, resume) and everything that reads or ends the
run flush the queue first. Values are serialised, digested and sealed before any connection
is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from surefoot.errors import ChunkTaken, Misuse, SaveFailed, SurefootError
from surefoot.flows import adoption, journal
from surefoot.flows.acquire import known_of
from surefoot.flows.adoption import Leaving
from surefoot.flows.chain import Chain
from surefoot.flows.cover import cover_of
from surefoot.flows.find import Found, bodies_of, find_checkpoint
from surefoot.flows.values import Loader, Writer, writer_for
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import (
    BODY_SCHEMAS,
    Batch,
    ChannelValue,
    CheckpointBody,
    Chunks,
    Typed,
    Write,
    WritesBody,
)
from surefoot.rules.doubts import is_open
from surefoot.rules.envelope import Kind, Link, Record, RecordHead, checkpoint_subject, hash8
from surefoot.rules.joins import decide_join, is_join
from surefoot.rules.rest import decide_at_rest
from surefoot.session import NO_HORIZON, Pending, PendingRead, Session

__all__ = [
    "CheckpointSave",
    "Then",
    "WritesSave",
    "enqueue",
    "flush",
    "learn_older",
    "prime",
    "put",
    "recall",
    "waiting_reads",
]

_INTERRUPT = "__interrupt__"
_ERROR = "__error__"
_SENDS = "__pregel_tasks"
_HANDLED = "__error_source_node__"


class Then(Enum):
    """What has to follow an enqueued batch."""

    RIDE = "ride with the next checkpoint"
    FLUSH = "flush now"
    PAUSE = "flush now and give the lease back: the run waits or ends"


@dataclass(frozen=True, slots=True)
class CheckpointSave:
    """A checkpoint to be saved.

    Attributes:
        namespace: Checkpoint namespace.
        checkpoint: LangGraph's checkpoint.
        metadata: What is stored as metadata, credentials left out already.
        parent_id: Checkpoint it follows, or None.
        new_versions: Channels that changed, with their versions.
    """

    namespace: str
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    parent_id: str | None
    new_versions: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WritesSave:
    """One `put_writes` call.

    Attributes:
        namespace: Checkpoint namespace.
        checkpoint_id: Checkpoint the writes are pending on.
        writes: (index, channel, value) of each write.
        task_id: Of the task.
        task_path: Of the task.
        replaces: The batch is made of special channels only.
    """

    namespace: str
    checkpoint_id: str
    writes: Sequence[tuple[int, str, Any]]
    task_id: str
    task_path: str
    replaces: bool


# --- pending writes ----------------------------------------------------------------------------


def enqueue(ports: Ports, session: Session, serde: Serializer, save: WritesSave) -> Then:
    """Serialises a batch and enqueues it.

    Returns:
        What has to follow: special writes are flushed at once (interrupt, error, resume).

    Raises:
        NotStorable: A value cannot be stored faithfully. No further effect of the run starts
            (E10), and no checkpoint follows the one the writes are pending on.
        Fenced: Another worker has the thread.
        SaveFailed: An earlier save of this run failed.
    """
    session.check()
    writer = writer_for(ports, session, serde)
    try:
        writes = tuple(
            Write(idx, channel, writer.value(value, channel=channel))
            for idx, channel, value in save.writes
        )
    except SurefootError as error:
        session.refuse_step(save.namespace, save.checkpoint_id, error)
        raise
    batch = Batch(save.task_id, save.task_path, save.replaces, writes)
    pending = Pending(
        save.namespace,
        save.checkpoint_id,
        batch,
        tuple(writer.rows),
        ports.host.monotonic_ms(),
    )
    with session.queue_lock:
        session.queue.append(pending)
    channels = {w.channel for w in writes}
    if _INTERRUPT in channels or (_ERROR in channels and _HANDLED not in channels):
        session.paused_at = max(session.paused_at or "", save.checkpoint_id)
    if session.paused_at is not None:
        # Also the writes of siblings that finish after the pause: no put may follow to carry
        # them, and the run returns only after the last publish (P5).
        return Then.PAUSE
    if save.replaces or _ERROR in channels:
        session.writes_through = True
    return Then.FLUSH if session.writes_through else Then.RIDE


def flush(ports: Ports, session: Session, *, everything: bool = True, free: bool = False) -> None:
    """Stores and publishes what is enqueued.

    Args:
        ports: Stores.
        session: Whose queue.
        everything: Also writes whose checkpoint is not stored yet (they are noted as early).
        free: Give the lease back with the publish: the run is about to end or to wait.

    Raises:
        Fenced: Another worker has the thread.
        StoreUnavailable: A store did not answer; the session is latched.
    """
    with session.lock:
        pending = _drain(session, everything=everything)
        if pending:
            with _latching(session):
                records, rows = _write_records(ports, session, pending)
                journal.append(ports, session, records, rows=rows)
        if session.head != session.mark or (free and not session.yielded):
            journal.publish(ports, session, free=free)


@contextmanager
def _latching(session: Session) -> Iterator[None]:
    """What was taken out of the queue is stored, or the session is latched (E10)."""
    try:
        yield
    except SurefootError as error:
        session.latch(error)
        raise
    except BaseException as error:
        session.latch(SaveFailed(thread=session.identity.thread, reason=type(error).__name__))
        raise


def waiting_reads(session: Session) -> tuple[list[Record], list[tuple[bytes, bytes]]]:
    """Takes the reads that wait out of the queue, to be stored before what may depend on them.

    The caller holds ``session.lock`` and appends them in front of its own records.
    """
    everything = session.durability == "exit"  # there no checkpoint comes first
    with session.queue_lock:
        taken: list[PendingRead] = []
        left: list[Pending | PendingRead] = []
        for item in session.queue:
            if isinstance(item, PendingRead) and (everything or _has_levels(session, item)):
                taken.append(item)
            else:
                left.append(item)
        session.queue = left
    return _read_records(session, taken)


def _has_levels(session: Session, item: PendingRead) -> bool:
    return all(level in session.known for level in item.levels)


def _read_records(
    session: Session, taken: Sequence[PendingRead]
) -> tuple[list[Record], list[tuple[bytes, bytes]]]:
    """Records of reads; where their root is still to come, a load has to look below it."""
    for item in taken:
        if item.levels and item.levels[0] not in session.known:
            session.early.setdefault(checkpoint_subject(*item.levels[0]), session.head.seq + 1)
    rows = {d: s for item in taken for d, s in item.rows if d not in session.stored_digests}
    return [item.make() for item in taken], list(rows.items())


def _drain(
    session: Session,
    *,
    everything: bool,
    also: tuple[str, str] | None = None,
    ends: tuple[str, str | None] | None = None,
) -> list[Pending | PendingRead]:
    """Takes what may be written now out of the queue, in its order.

    Args:
        session: Whose queue.
        everything: All of it.
        also: A checkpoint that is about to be stored.
        ends: The one that it follows: whatever was read under it is over.
    """
    with session.queue_lock:
        if everything:
            whole, session.queue = session.queue, []
            return whole
        taken: list[Pending | PendingRead] = []
        left: list[Pending | PendingRead] = []
        for item in session.queue:
            if isinstance(item, PendingRead):
                over = _has_levels(session, item) or ends in item.levels
                (taken if over else left).append(item)
                continue
            target = (item.namespace, item.checkpoint_id)
            (taken if target in session.known or target == also else left).append(item)
        session.queue = left
        return taken


def _write_records(
    ports: Ports, session: Session, pending: Sequence[Pending | PendingRead]
) -> tuple[list[Record], list[tuple[bytes, bytes]]]:
    """The reads, then one record per checkpoint that the writes are pending on."""
    by_target: dict[tuple[str, str], list[Batch]] = {}
    records, read = _read_records(session, [p for p in pending if isinstance(p, PendingRead)])
    rows: dict[bytes, bytes] = dict(read)
    for item in (p for p in pending if isinstance(p, Pending)):
        by_target.setdefault((item.namespace, item.checkpoint_id), []).append(item.batch)
        rows.update(item.rows)
    for target, batches in by_target.items():
        subject = checkpoint_subject(*target)
        seq = session.head.seq + len(records) + 1
        new = target not in session.known and subject not in session.early
        if new and not _stored(ports, session, target[1]):
            session.early[subject] = seq
        body = WritesBody(*target, tuple(batches), ports.host.now_us()).pack()
        records.append(Record(Kind.WRITES, BODY_SCHEMAS["W"], subject, body))
    return records, [(d, s) for d, s in rows.items() if d not in session.stored_digests]


def _stored(ports: Ports, session: Session, checkpoint_id: str) -> bool:
    """Whether a checkpoint seems to be stored; a wrong answer only costs reading more."""
    if session.key is None:
        return False
    return bool(ports.store.find_checkpoint(session.key, hash8(checkpoint_id)))


# --- checkpoints -------------------------------------------------------------------------------


def put(
    ports: Ports, session: Session, serde: Serializer, save: CheckpointSave, *, last: bool = False
) -> None:
    """Stores a checkpoint with all writes that wait, and publishes it: the commit point.

    Args:
        ports: Stores.
        session: Whose journal.
        serde: Serialiser of the calling saver.
        save: The checkpoint.
        last: A direct call: give the lease back with the publish.

    Raises:
        NotStorable: A value cannot be stored; the session is latched, nothing is stored.
        Misuse: The parent is not stored.
        Fenced: Another worker has the thread.
        StoreUnavailable: A store did not answer; the session is latched.
    """
    with session.lock:
        session.check_save(save.namespace, save.parent_id)
        place = (save.namespace, str(save.checkpoint["id"]))
        ends = (save.namespace, save.parent_id)
        pending = _drain(session, everything=False, also=place, ends=ends)
        with _latching(session):
            try:
                body = _store(ports, session, serde, save, pending)
            except ChunkTaken:
                # A fenced worker's late chunk stands where a list was to grow: write it anew.
                session.lists.clear()
                session.refs.clear()
                body = _store(ports, session, serde, save, pending)
        _publish(ports, session, save, body, last=last)


def _store(
    ports: Ports,
    session: Session,
    serde: Serializer,
    save: CheckpointSave,
    pending: Sequence[Pending | PendingRead],
) -> CheckpointBody:
    """Stores the checkpoint and the writes that ride with it, in one frame."""
    checkpoint_id = str(save.checkpoint["id"])
    place = (save.namespace, checkpoint_id)
    subject = checkpoint_subject(*place)
    writer = writer_for(ports, session, serde)
    writer.riding = {digest for p in pending for digest, _ in p.rows}
    body, refs, leaving = _checkpoint_body(ports, session, serde, writer, save)
    root = _root_of(save)
    if root is not None:
        session.roots[save.namespace] = root
    if root is not None and ("", root) not in session.known:
        session.early_children.setdefault(root, session.head.seq + 1)
    own: list[Pending] = []
    others: list[Pending | PendingRead] = []
    for item in pending:
        if isinstance(item, Pending) and (item.namespace, item.checkpoint_id) == place:
            own.append(item)
        else:
            others.append(item)
    records, rows = _write_records(ports, session, others)
    at = len(records)
    records.append(Record(Kind.CHECKPOINT, BODY_SCHEMAS["C"], subject, body.pack()))
    if own:
        early = WritesBody(*place, tuple(p.batch for p in own), ports.host.now_us()).pack()
        records.append(Record(Kind.WRITES, BODY_SCHEMAS["W"], subject, early))
        rows += [r for p in own for r in p.rows]
    rows += [r for r in writer.rows if r[0] not in session.stored_digests]
    links = journal.append(
        ports,
        session,
        records,
        rows=list(dict(rows).items()),
        chunks=writer.chunks,
        checkpoint_hash=hash8(checkpoint_id),
        run_ids=_new_runs(session, save.metadata.get("run_id")),
    )
    session.early.pop(subject, None)
    if save.namespace == "":
        session.early_children.pop(checkpoint_id, None)
    _learn_saved(session, body, links[at], refs, writer, ports.seals.primary())
    _forget_effects(session, body, leaving)
    return body


def _publish(
    ports: Ports, session: Session, save: CheckpointSave, body: CheckpointBody, *, last: bool
) -> None:
    """Publishes a stored checkpoint, and gives the lease back where the run rests or waits."""
    is_root = save.namespace == ""
    rest = is_root and decide_at_rest(
        str(save.metadata.get("source")),
        save.checkpoint.get("channel_values", {}),
        save.checkpoint.get("channel_versions", {}).keys(),
    )
    if is_root:
        # The highest, not the last: after time travel the steps of the other branch count as well
        # when a restore has to know how far the lost history went (E6).
        session.step = max(session.step, body.step)
        session.writes_through = False
    with session.queue_lock:
        idle = not session.queue and not session.running
    if is_root and session.paused_at is not None and body.checkpoint_id > session.paused_at:
        # Made after the pause: the run went on. (A subgraph's checkpoint does not say so: the
        # siblings of a paused task still finish.)
        session.paused_at = None
    journal.publish(
        ports,
        session,
        free=rest or last or session.paused_at is not None,
        clean=(rest or last) and idle,
        folded=is_root,
    )


def _root_of(save: CheckpointSave) -> str | None:
    """The root checkpoint that a subgraph's checkpoint runs under."""
    parents = save.metadata.get("parents")
    if save.namespace == "" or not isinstance(parents, Mapping):
        return None
    root = parents.get("")
    return root if isinstance(root, str) else None


def _new_runs(session: Session, run_id: object) -> list[str]:
    if not isinstance(run_id, str) or run_id in session.runs_noted:
        return []
    return [run_id]


def _checkpoint_body(
    ports: Ports, session: Session, serde: Serializer, writer: Writer, save: CheckpointSave
) -> tuple[CheckpointBody, dict[str, tuple[Any, Typed]], Leaving]:
    checkpoint_id = str(save.checkpoint["id"])
    parent = _parent(ports, session, save)
    _prime_parent(ports, session, serde, save.namespace, parent)
    known = session.known.get((save.namespace, checkpoint_id))
    branch, born = _branch(session, save, again=known is not None)
    versions = save.checkpoint.get("channel_versions", {})
    values = _settled(ports, session, serde, save, parent)
    refs: dict[str, tuple[Any, Typed]] = {}
    source, cached = session.refs.get(save.namespace, (None, {}))
    if source not in (save.parent_id, checkpoint_id):
        cached = {}  # another branch's values may stand under the same plain versions
    for channel in sorted(values.keys() | versions.keys()):
        version = versions.get(channel)
        held = cached.get(channel)
        same = held is not None and channel not in save.new_versions and held[0] == version
        if held is not None and same:
            refs[channel] = held
        elif channel in values:
            typed = writer.channel(save.namespace, channel, values[channel])
            refs[channel] = (version, typed)
    skeleton = {k: v for k, v in save.checkpoint.items() if k != "channel_values"}
    step = save.metadata.get("step")
    extra: dict[str, Any] = {} if known is None else {"of": known.seq}
    leaving = _leave(ports, session, serde, writer, save, born=born)
    left_open = [
        slot
        for slot in leaving.gone
        if slot in session.effects
        and is_open(session.effects[slot].state)
        and not adoption.never_sent(session, session.effects[slot])
    ]
    if left_open:
        # The graph went on without them, so their intents leave B; the sealed record keeps them
        # for whoever looks for doubts.
        extra["left_open"] = left_open
    if session.open_slots:
        # Of the whole thread, so that whoever goes on from here knows of them without reading on.
        extra["open"] = sorted(session.open_slots)
    extra |= _lost_history(session, save, born=born)
    if save.namespace == "":
        extra["key"] = _sending_key(ports, session, save)
    body = CheckpointBody(
        namespace=save.namespace,
        checkpoint_id=checkpoint_id,
        parent_id=save.parent_id,
        step=step if isinstance(step, int) and abs(step) < 2**62 else -3,
        branch=branch,
        born=born,
        skeleton=writer.value(skeleton, channel="(checkpoint)"),
        metadata=writer.value(dict(save.metadata), channel="(metadata)"),
        values=tuple(ChannelValue(channel, typed) for channel, (_, typed) in refs.items()),
        folds=leaving.folds,
        extra=extra,
    ).with_loose(leaving.typed)
    return body, refs, leaving


def _leave(
    ports: Ports,
    session: Session,
    serde: Serializer,
    writer: Writer,
    save: CheckpointSave,
    *,
    born: bool,
) -> Leaving:
    """What a checkpoint folds, and what it leaves for later calls to adopt (rule E4b)."""
    known = session.bodies.get((save.namespace, str(save.checkpoint["id"])))
    if save.namespace != "" or known is not None:
        place = (save.namespace, save.parent_id)
        slots = tuple(slot for slot, at in session.unfolded.items() if at == place)
        return Leaving(slots, slots, None, None if known is None else known.loose)
    parent = None if save.parent_id is None else session.known.get(("", save.parent_id))
    return adoption.leave(
        ports,
        session,
        serde,
        writer,
        parent=parent,
        source=str(save.metadata.get("source")),
        seen=save.checkpoint.get("versions_seen") or {},
        born=born,
        checkpoint_id=str(save.checkpoint["id"]),
    )


def _sending_key(ports: Ports, session: Session, save: CheckpointSave) -> str:
    """Key from which idempotency keys are derived: the parent's, so that it never turns (E9)."""
    again = session.known.get((save.namespace, str(save.checkpoint["id"])))
    parent = None if save.parent_id is None else session.known.get(("", save.parent_id))
    held = again or parent
    return ports.seals.primary() if held is None else held.key_id


def _lost_history(session: Session, save: CheckpointSave, *, born: bool) -> dict[str, Any]:
    """What a checkpoint carries on of an ordered restore (rule E6).

    New input, an update or a fork in a step that was lost begins another history: the steps to
    come lie one further, and a slot may not be the one under which something was sent.
    """
    if session.horizon is None or session.horizon <= NO_HORIZON:
        return {}
    horizon, apart = session.horizon, session.apart
    parent = None if save.parent_id is None else session.known.get(("", save.parent_id))
    within = parent is None or parent.step <= horizon
    if save.namespace == "" and within:
        if save.metadata.get("source") != "loop":
            horizon, apart = horizon + 1, True
        apart = apart or born
    carried: dict[str, Any] = {"horizon": horizon, "horizon_at": session.horizon_at}
    return carried | ({"apart": True} if apart else {})


def _settled(
    ports: Ports,
    session: Session,
    serde: Serializer,
    save: CheckpointSave,
    parent: CheckpointBody | None,
) -> Mapping[str, Any]:
    """The channel values as they were when the checkpoint was made (see `decide_join`)."""
    values: Mapping[str, Any] = save.checkpoint.get("channel_values", {})
    joins = {c: v for c, v in values.items() if is_join(c, v)}
    if not joins or parent is None or session.durability != "async":
        return values
    wanted = {*joins, _SENDS}
    held = {v.channel: v.value for v in parent.values if v.channel in wanted}
    loader = Loader(cover_of(ports, session.identity), ports.store, session.key or 0, serde)
    loader.fetch([parent.skeleton, *held.values()])
    seen_before = loader.load(parent.skeleton).get("versions_seen", {})
    seen_now = save.checkpoint.get("versions_seen", {})
    sends = loader.load(held[_SENDS]) if _SENDS in held else ()
    sent = {getattr(send, "node", "") for send in sends}
    out = dict(values)
    for channel, value in joins.items():
        stored = loader.load(held[channel]) if channel in held else set()
        before = set(stored[0]) if isinstance(stored, (list, tuple)) else set(stored)
        live = value[0] if isinstance(value, tuple) else value
        settled = decide_join(channel, set(live), before, seen_now, seen_before, sent)
        out[channel] = (settled, *value[1:]) if isinstance(value, tuple) else settled
    return out


def _parent(ports: Ports, session: Session, save: CheckpointSave) -> CheckpointBody | None:
    """The parent's body; it has to be stored (a failed save is never skipped over)."""
    if session.control is None:
        recall(ports, session, save.namespace, str(save.checkpoint["id"]))
    if save.parent_id is None:
        return None
    place = (save.namespace, save.parent_id)
    if not recall(ports, session, *place):
        raise Misuse(
            field="config['configurable']['checkpoint_id']",
            reason=f"the parent {save.parent_id} is not stored in this thread and namespace",
        )
    return session.bodies.get(place)


def recall(ports: Ports, session: Session, namespace: str, checkpoint_id: str) -> bool:
    """Learns a checkpoint that lies further back in the chain than what was scanned.

    Returns:
        False when it is not stored.
    """
    if (namespace, checkpoint_id) in session.known:
        return True
    if not _stored(ports, session, checkpoint_id):
        return False
    row, rows = ports.store.read_newest(session.identity.tenant, session.identity.thread, limit=1)
    if row is None:
        return False
    chain = Chain(ports, session.identity, row, session.head, rows)
    found = find_checkpoint(chain, ports, namespace, checkpoint_id)
    if found is None:
        return False
    learn_older(session, chain, found)
    return True


def learn_older(session: Session, chain: Chain, found: Found) -> None:
    """Notes an older checkpoint, and whether it still is the head of its branch."""
    key_id = chain.key_id(found.record)
    known = replace(known_of(found.record, found.body, key_id), seq=found.order)
    place = (known.namespace, known.checkpoint_id)
    if place in session.known:
        return
    later = bodies_of(chain, found.later)
    session.known[place] = known
    session.bodies[place] = found.body
    session.latest.setdefault(
        known.namespace, later[0].checkpoint_id if later else known.checkpoint_id
    )
    if not any(b.parent_id == known.checkpoint_id and not b.born for b in later):
        session.branch_heads.setdefault((known.namespace, known.branch), known.checkpoint_id)


def _branch(session: Session, save: CheckpointSave, *, again: bool) -> tuple[bytes, bool]:
    """Branch of a checkpoint, and whether it begins one.

    A branch is born by the first checkpoint whose parent is not its branch's head.
    """
    if again:
        return session.known[(save.namespace, str(save.checkpoint["id"]))].branch, False
    if save.parent_id is None:
        again = save.namespace in session.latest
        return (b"", True) if again else (session.base_branch, False)
    parent = session.known[(save.namespace, save.parent_id)]
    head = session.branch_heads.get((save.namespace, parent.branch))
    return (parent.branch, False) if head == save.parent_id else (b"", True)


def _prime_parent(
    ports: Ports,
    session: Session,
    serde: Serializer,
    namespace: str,
    parent: CheckpointBody | None,
) -> None:
    """What the parent's channels are stored as, so that unchanged ones are not stored again."""
    if parent is None or session.key is None:
        return
    if session.refs.get(namespace, ("", {}))[0] == parent.checkpoint_id:
        return
    loader = Loader(cover_of(ports, session.identity), ports.store, session.key, serde)
    prime(session, loader, parent)


def prime(session: Session, loader: Loader, body: CheckpointBody) -> None:
    """Remembers how a loaded checkpoint's channels are stored."""
    loader.fetch(
        [body.skeleton, *(v.value for v in body.values if isinstance(v.value.ref, Chunks))]
    )
    versions = loader.load(body.skeleton).get("channel_versions", {})
    session.refs[body.namespace] = (
        body.checkpoint_id,
        {v.channel: (versions.get(v.channel), v.value) for v in body.values},
    )
    for held in body.values:
        if isinstance(held.value.ref, Chunks):
            session.lists[(body.namespace, held.channel)] = loader.list_state(held.value.ref)
    for log, tip in loader.tips.items():
        session.log_tips[log] = max(tip, session.log_tips.get(log, 0))


def _learn_saved(
    session: Session,
    body: CheckpointBody,
    link: Link,
    refs: dict[str, tuple[Any, Typed]],
    writer: Writer,
    key_id: str,
) -> None:
    record = RecordHead(link, b"", session.epoch, Kind.CHECKPOINT, 1, b"", None)
    known = known_of(record, body, key_id)
    place = (known.namespace, known.checkpoint_id)
    again = place in session.known
    if not again:
        session.known[place] = known
        session.latest[known.namespace] = known.checkpoint_id
        session.branch_heads[(known.namespace, known.branch)] = known.checkpoint_id
    session.bodies[place] = body
    if "horizon" in body.extra:
        session.horizon, session.apart = body.extra["horizon"], bool(body.extra.get("apart"))
    session.refs[known.namespace] = (known.checkpoint_id, refs)
    session.lists.update(writer.lists)
    if known.namespace == "" and body.parent_id is not None and not again:
        with session.queue_lock:
            session.reads.forget(("", body.parent_id))
    if known.namespace == "" and not again:
        session.ordinals.clear()
        session.origins.clear()
        session.forget_below(session.last_root_seq, known.checkpoint_id)
        session.last_root_seq = known.seq


def _forget_effects(session: Session, body: CheckpointBody, leaving: Leaving) -> None:
    """Drops what a checkpoint has folded or listed; their intents leave B with its publish (E5).

    What a subgraph's checkpoint has folded is kept until the root goes on: the node that called
    the subgraph may be retried, and enters it anew from its start.
    """
    gone = set(leaving.gone)
    for slot in gone:
        session.unfolded.pop(slot, None)
        session.intents.pop(slot, None)
        held = session.effects.get(slot)
        if held is not None and held.adopted:
            session.intents.pop(held.adopted, None)
    if body.namespace == "":
        gone |= {
            slot
            for slot, held in session.effects.items()
            if held.root == body.parent_id and slot not in session.unfolded
        }
        for slot in gone:
            session.effects.pop(slot, None)
            session.effect_at.pop(slot, None)
    if body.namespace == "" and leaving.loose is not None:
        session.loose, session.loose_moved = leaving.loose, False
        session.loose_of = body.checkpoint_id
