"""The audit trail: reading a whole chain as events, and putting a user's fact into it.

Reading follows the readers' rule (`surefoot.flows.views`): no lease, no alarm in honest use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from surefoot.errors import Misuse, NotLoadable
from surefoot.flows import journal
from surefoot.flows.acquire import body_of, checkpoint_of, effect_of, held, prune_of, restore_of
from surefoot.flows.chain import Chain
from surefoot.flows.find import writes_of
from surefoot.flows.load import loader_for
from surefoot.flows.values import Loader, writer_for
from surefoot.flows.views import viewing
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import (
    BODY_SCHEMAS,
    CheckpointBody,
    DecisionBody,
    EventBody,
    KeyChangeBody,
    ProvenanceBody,
    TombstoneBody,
    Typed,
    Write,
    WritesBody,
)
from surefoot.rules.envelope import Kind, Record, RecordHead, hash8
from surefoot.rules.events import (
    Body,
    Event,
    RecordFacts,
    Special,
    decide_kind,
    decide_payload,
    decide_version,
)
from surefoot.rules.folding import ThreadState, Trail
from surefoot.rules.rest import decide_at_rest
from surefoot.session import Session

__all__ = [
    "Fact",
    "Story",
    "fact_of",
    "read",
    "record_directly",
    "record_in_run",
    "require_order",
    "story_of",
]

_BATCH = 64
_INTERRUPT = "__interrupt__"
_RESUME = "__resume__"
_JOIN = "join:"


# --- writing -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact of the user's own, checked.

    Attributes:
        kind: Its name.
        payload: Plain data.
        version: Of the payload's layout.
    """

    kind: str
    payload: Any
    version: int


def fact_of(kind: object, payload: object, version: object) -> Fact:
    """Checks what a user wants to record.

    Raises:
        Misuse: The kind or the version may not be used.
        NotStorable: The payload is no plain data.
    """
    name = decide_kind(kind)
    decide_payload(payload, kind=name)
    return Fact(name, payload, decide_version(version))


def record_in_run(ports: Ports, session: Session, serde: Serializer, fact: Fact) -> None:
    """Stores and publishes a fact through a live run (steps P3 to P5), and leaves the rest alone.

    What waits in the queue goes on waiting, and a lease that the run has given back (it pauses, or
    rests) stays given back.

    Raises:
        NotStorable: The payload is too large.
        Fenced: Another worker has the thread.
        SaveFailed: An earlier save of this run failed.
        StoreUnavailable: A store did not answer; this run is latched.
    """
    with session.lock:
        session.check_latch()
        free = session.yielded
        clean = free and not session.dirty
        _append(ports, session, serde, fact)
        journal.publish(ports, session, free=free, clean=clean)


def record_directly(ports: Ports, thread: str, serde: Serializer, fact: Fact) -> None:
    """Acquires, stores, publishes and releases in one operation.

    Raises:
        NotStorable: The payload is too large.
        Busy: A live worker holds the thread.
        ResumeRefused: The thread is frozen, or stored and never witnessed.
        StoreUnavailable: A store did not answer.
    """
    with held(ports, thread) as (session, _):
        _append(ports, session, serde, fact)
        journal.publish(ports, session, free=True, clean=True)


def _append(ports: Ports, session: Session, serde: Serializer, fact: Fact) -> None:
    writer = writer_for(ports, session, serde)
    payload = writer.value(fact.payload, channel=f"(payload of {fact.kind})")
    body = EventBody(fact.kind, payload, ports.host.now_us(), fact.version)
    subject = hash8(fact.kind) + bytes(8)
    record = Record(Kind.EVENT, BODY_SCHEMAS["V"], subject, body.pack())
    rows = [r for r in writer.rows if r[0] not in session.stored_digests]
    journal.append(ports, session, [record], rows=rows)


# --- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Story:
    """What a chain tells.

    Attributes:
        events: Oldest first.
        state: What they fold to.
    """

    events: tuple[Event, ...]
    state: ThreadState


def read(
    ports: Ports, serde: Serializer, thread: str, *, progress: Callable[[str, int], None]
) -> Story | None:
    """Reads a whole thread, verified, as events.

    Args:
        ports: Stores.
        serde: Serialiser.
        thread: Id of the thread.
        progress: Told the thread and the number of its records that are done.

    Returns:
        None when there is nothing of the thread.

    Raises:
        RollbackDetected: A is behind B (R3).
        TamperDetected: Something does not verify (R4, R6); nothing was decoded.
        ResumeRefused: Stored, never witnessed (R2).
        UnknownEvent: A record says something that this release does not know.
    """
    return viewing(
        ports,
        thread,
        lambda chain: None if chain is None else story_of(ports, serde, chain, progress=progress),
    )


def story_of(
    ports: Ports, serde: Serializer, chain: Chain, *, progress: Callable[[str, int], None]
) -> Story:
    """What a verified chain tells, from its beginning to its head and the adopted tail."""
    thread = chain.identity.thread
    facts: list[RecordFacts] = []
    records = iter(chain.walk())
    while page := [*islice(records, _BATCH)]:
        facts += _facts_of(loader_for(ports, chain, serde), thread, page)
        progress(thread, len(facts))
    trail = Trail()
    events = tuple(event for one in reversed(facts) for event in trail.take(one))
    return Story(events, trail.state())


def _facts_of(loader: Loader, thread: str, page: Sequence[RecordHead]) -> Iterator[RecordFacts]:
    """Facts of a page of records; what has to be decoded is read in one statement."""
    read_page = [(record, _body_of(thread, record)) for record in page]
    loader.fetch([typed for _, body in read_page for typed in _wanted(body)])
    for record, body in read_page:
        yield _one(loader, record, body)


_READERS: Mapping[Kind, Callable[[int, bytes], Body]] = {
    Kind.DECISION: DecisionBody.unpack,
    Kind.KEY_CHANGE: KeyChangeBody.unpack,
    Kind.FORK: ProvenanceBody.unpack,
    Kind.TOMBSTONE: TombstoneBody.unpack,
    Kind.EVENT: EventBody.unpack,
}


def _body_of(thread: str, record: RecordHead) -> Body | None:
    """The body of a record; None of a kind that this release writes none of."""
    if record.kind is Kind.CHECKPOINT:
        return checkpoint_of(thread, record)
    if record.kind is Kind.WRITES:
        return writes_of(thread, record)
    if record.kind is Kind.EFFECT:
        return effect_of(thread, record)
    if record.kind is Kind.PRUNE:
        return prune_of(thread, record)
    if record.kind is Kind.RESTORE:
        return restore_of(thread, record)
    unpack = _READERS.get(record.kind)
    return None if unpack is None else body_of(thread, record, unpack)


def _wanted(body: Body | None) -> list[Typed]:
    """Values that the trail looks into: never those of channels, apart from joins."""
    if isinstance(body, CheckpointBody):
        joins = [v.value for v in body.values if v.channel.startswith(_JOIN)]
        return [body.skeleton, body.metadata, *joins]
    if isinstance(body, WritesBody):
        return [w.value for b in body.batches for w in b.writes if w.channel == _INTERRUPT]
    if isinstance(body, EventBody):
        return [body.payload]
    evidence = getattr(body, "evidence", None)
    return [] if evidence is None else [evidence]


def _one(loader: Loader, record: RecordHead, body: Any) -> RecordFacts:
    more: dict[str, Any] = {}
    if isinstance(body, CheckpointBody):
        more = _of_checkpoint(loader, body)
    elif isinstance(body, WritesBody):
        more = {"specials": tuple(_specials(loader, body))}
    elif isinstance(body, EventBody):
        more = {"value": _shown(loader, body.payload)}
    elif getattr(body, "evidence", None) is not None:
        more = {"value": _shown(loader, body.evidence)}
    return RecordFacts(record.link.seq, record.epoch, record.link.digest, record.kind, body, **more)


def _shown(loader: Loader, typed: Typed) -> Any:
    """A value for people; one whose type is gone is described."""
    try:
        return loader.load(typed)
    except NotLoadable as error:
        return f"a value of type {error.type_name} that cannot be loaded here"


def _of_checkpoint(loader: Loader, body: CheckpointBody) -> dict[str, Any]:
    """Time stamp and source of a checkpoint, and whether anything is left to run after it."""
    skeleton, metadata = _shown(loader, body.skeleton), _shown(loader, body.metadata)
    source = metadata.get("source") if isinstance(metadata, dict) else None
    if not isinstance(skeleton, dict):
        return {"source": source}
    versions = skeleton.get("channel_versions") or {}
    values = {
        v.channel: _shown(loader, v.value) if v.channel.startswith(_JOIN) else None
        for v in body.values
    }
    root = body.namespace == ""
    return {
        "at_us": _microseconds(skeleton.get("ts")),
        "source": source if isinstance(source, str) else None,
        "rest": root and decide_at_rest(str(source), values, versions.keys()),
    }


def _microseconds(stamp: object) -> int:
    """A checkpoint's ISO time stamp as a number; 0 when it is none."""
    if not isinstance(stamp, str):
        return 0
    try:
        at = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return 0
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    since = at - datetime(1970, 1, 1, tzinfo=timezone.utc)
    whole = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return max(whole, 0)


def _specials(loader: Loader, body: WritesBody) -> Iterator[Special]:
    """Questions and answers among the batches, in their order."""
    for batch in body.batches:
        asked = [
            name
            for write in batch.writes
            if write.channel == _INTERRUPT
            for name in _interrupts(loader, write, batch.task_id)
        ]
        answered = any(write.channel == _RESUME for write in batch.writes)
        if asked or answered:
            yield Special(batch.task_id, tuple(asked), answered)


def _interrupts(loader: Loader, write: Write, task_id: str) -> list[str]:
    """Ids of the interrupts of a write; those without one are named after their task."""
    value = _shown(loader, write.value)
    found = value if isinstance(value, (list, tuple)) else [value]
    names = (getattr(one, "id", None) for one in found)
    return [
        name if isinstance(name, str) and name else f"{task_id}:{number}"
        for number, name in enumerate(names)
    ]


def require_order(limit: object, newest_first: object) -> None:
    """Checks how many events are wanted, and from which end.

    Raises:
        Misuse: ``limit`` is no number from 0, or ``newest_first`` no boolean.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise Misuse(field="limit", reason="must be None or a number from 0")
    if not isinstance(newest_first, bool):
        raise Misuse(field="newest_first", reason="must be True or False")
