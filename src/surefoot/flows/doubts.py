"""Effects in doubt as a queue, and the history of a thread's effects.

Which threads to look at is told by hints of both stores: what the last writer of a thread knew
(A, never trusted) and the marks that hold intents (B). What is said about a thread is read from its
verified chain, by the readers' rule: B, then A, and no lease.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from surefoot.errors import MarkCorrupt, NotLoadable, Refused, SurefootError
from surefoot.flows.acquire import effect_of
from surefoot.flows.chain import Chain
from surefoot.flows.load import loader_for
from surefoot.flows.values import Loader
from surefoot.flows.views import viewing
from surefoot.ports import Mark, Ports, Serializer
from surefoot.rules.bodies import EffectBody, Typed
from surefoot.rules.doubts import (
    RISKS,
    DoubtFacts,
    DoubtOrder,
    decide_doubt,
    decide_order,
    is_open,
)
from surefoot.rules.effects import Receiver, decide_match, decide_never_sent
from surefoot.rules.envelope import Kind, Link, RecordHead
from surefoot.rules.events import Before, RecordFacts, decide_event
from surefoot.rules.intents import LEFT_OPEN, unpack_intents
from surefoot.rules.lease import decide_holder_dead

__all__ = [
    "EffectNumbers",
    "EffectRecord",
    "InDoubt",
    "history",
    "in_doubt",
    "numbers_of",
]

_PAGE = 1_000
_TRIES = 5
_NORMAL = "normal"
#: Of what nobody can say anything about.
_UNKNOWN_RISK = RISKS[-1]


@dataclass(frozen=True, slots=True)
class InDoubt:
    """An effect of which nobody has recorded whether it happened.

    Attributes:
        thread: Id of the thread.
        effect: Name of the effect; empty when it is not known.
        slot: Its slot, hex; `surefoot resolve` and `SurefootSaver.propose` take it.
        key: The key to look for at the receiver.
        state: ``started`` (its worker is gone), ``in_doubt``, ``needs_review``, ``unrecorded`` (B
            holds an intent whose record is not on the chain) or ``unreadable`` (the thread does not
            verify; ``reason`` says why).
        receiver: Class of the receiver: ``K``, ``L`` or ``N``.
        attempt: From 1.
        position: Where in the graph, readable.
        opened_at: When the attempt was recorded, on its worker's clock; None when not known.
        age_s: Seconds since then; 0 when not known.
        risk: ``low``, ``normal``, ``high`` or ``critical``.
        deadline: Until when it has to be settled, if that was declared.
        overdue: The deadline has passed.
        arguments: What it was called with, by name.
        receipt: What its body noted while it ran.
        evidence: What a lookup found.
        error: What its newest record says went wrong: the type of the transport error, or the
            reason of a refusal.
        reason: Why it is in doubt.
        unshown: Which of arguments, receipt, evidence and conflict are stored but cannot be
            loaded here.
        conflict: What a later call at this place, with other arguments, has proposed.
        operation: The business operation, if the call named one (``operation_id=``); ``thread`` is
            the journal of the operation then.
        caller: For an operation: the thread that called it.
    """

    thread: str
    effect: str
    slot: str
    key: str
    state: str
    receiver: str
    attempt: int
    position: str
    opened_at: datetime | None
    age_s: float
    risk: str
    deadline: datetime | None
    overdue: bool
    arguments: Mapping[str, Any] | None
    receipt: Any
    evidence: Any
    error: str | None
    reason: str
    unshown: tuple[str, ...] = ()
    conflict: Any = None
    operation: str = ""
    caller: str = ""


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """One record of one effect, as the journal holds it.

    Attributes:
        seq: Number of the record.
        effect: Name of the effect.
        slot: Its slot, hex.
        key: The key sent to the receiver.
        state: What it became.
        receiver: Class of the receiver.
        attempt: From 1.
        position: Where in the graph, readable.
        at: On the worker's clock.
        source: ``body``, ``reconcile`` or ``decision``.
        error: What went wrong, or why it was decided so.
        risk: As declared.
        newest: No later record of the slot stands above it.
        event: What happened, as in the trail: ``started``, ``noted``, ``conflicted``, ``asked`` …;
            of a note, a conflict and an answer that settled nothing, ``state`` is what it stays.
        differs: Of a conflict: names of the arguments that differ, where they can be loaded here.
        answer: Of ``asked``: ``absent`` or ``unknown``.
        why: Of ``asked``: why that settled nothing.
    """

    seq: int
    effect: str
    slot: str
    key: str
    state: str
    receiver: str
    attempt: int
    position: str
    at: datetime
    source: str
    error: str | None
    risk: str
    newest: bool
    event: str = ""
    differs: tuple[str, ...] = ()
    answer: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class EffectNumbers:
    """Numbers about effects, for dashboards and alarms.

    Attributes:
        opened: Starts that this process has recorded.
        reconciled: Doubts that this process has settled without a person.
        escalated: Doubts that this process has left to a person.
        open: Doubts that the stores hold now, of all processes.
        overdue: Those whose deadline has passed.
        unreadable: Threads that may hold doubts and do not verify.
        oldest_s: For each risk, the age of its oldest doubt in seconds.
    """

    opened: int
    reconciled: int
    escalated: int
    open: int
    overdue: int
    unreadable: int
    oldest_s: Mapping[str, float]


# --- the queue -----------------------------------------------------------------------------------


def in_doubt(
    ports: Ports, serde: Serializer, *, thread: str | None, limit: int | None
) -> list[InDoubt]:
    """Everything of the tenant that is in doubt: overdue first, then by risk, then by age.

    Args:
        ports: Stores.
        serde: Serialiser, for what is shown of an effect.
        thread: Only this one. It is looked at whatever the hints say.
        limit: At most this many.

    Raises:
        Refused: With ``thread``: it does not verify. Without, such a thread is an item itself.
        StoreUnavailable: A store did not answer.
    """
    found: list[InDoubt] = []
    if thread is not None:
        found = _of_thread(ports, serde, thread)
    else:
        for candidate in _candidates(ports):
            try:
                found += _of_thread(ports, serde, candidate)
            except Refused as error:
                found.append(_unreadable(candidate, error))
    found.sort(key=_place)
    return found if limit is None else found[:limit]


def _place(item: InDoubt) -> tuple[tuple[bool, int, int], str, str]:
    opened_us = 0 if item.opened_at is None else int(item.opened_at.timestamp() * 1_000_000)
    order = decide_order(DoubtOrder(item.overdue, item.risk, opened_us))
    return order, item.thread, item.slot


def _candidates(ports: Ports) -> Iterator[str]:
    """Threads that may hold a doubt: witnessed by B, or hinted at by A. Pages, no scan."""
    seen: set[str] = set()
    last: str | None = None
    while True:
        page = [*ports.marks.marks_with_intents(ports.tenant, after_thread=last, limit=_PAGE)]
        for last, mark in page:
            if mark.state != "tombstone":
                seen.add(last)
                yield last
        if len(page) < _PAGE:
            break
    after = 0
    while rows := ports.store.threads_with_open(ports.tenant, after_key=after, limit=_PAGE):
        after = rows[-1].key
        fresh = [row.thread for row in rows if row.thread not in seen]
        seen.update(fresh)
        yield from fresh


def _of_thread(ports: Ports, serde: Serializer, thread: str) -> list[InDoubt]:
    """The doubts of one thread; read again while its mark moves, so that no sent one looks left."""
    for _ in range(_TRIES):
        seen = viewing(ports, thread, lambda chain: _seen(ports, serde, chain))
        mark = ports.marks.read(ports.tenant, thread)
        if mark is None or seen.head is None or seen.head == Link(mark.seq, mark.digest):
            break
    if mark is None or mark.state == "tombstone":
        return []
    return _judged(ports, thread, mark, seen)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a chain says: its head, its open effects, and every slot that it holds a record of."""

    head: Link | None
    held: list[_Held]
    slots: frozenset[bytes]
    #: An order of an operator is on the chain, so intents may have been lost.
    ordered: bool = False


@dataclass(slots=True)
class _Held:
    """An effect of a chain: its newest record, when it was opened, and what can be shown of it."""

    body: EffectBody
    opened_us: int
    shown: dict[str, Any]
    unshown: list[str]


def _seen(ports: Ports, serde: Serializer, chain: Chain | None) -> _Seen:
    """The newest record of every effect; what is open is loaded, everything else only named.

    An effect that another place has adopted (E4b) is the same effect there.
    """
    if chain is None:
        return _Seen(None, [], frozenset())
    by_subject, ordered = _effect_records(chain)
    heads = sorted((r[0] for r in by_subject.values()), key=lambda r: r.link.seq, reverse=True)
    found = [effect_of(chain.identity.thread, r) for r in chain.with_bodies(heads)]
    bodies = [body for body in found if not body.only_asked]
    newest: dict[bytes, EffectBody] = {}
    for body in bodies:
        newest.setdefault(body.origin, body)
    opened = [_Held(body, 0, {}, []) for body in newest.values() if is_open(body.state)]
    loader = loader_for(ports, chain, serde)
    parts = [(one, name, typed) for one in opened for name, typed in _parts(one.body)]
    loader.fetch([typed for _, _, typed in parts])
    for one, name, typed in parts:
        _show(loader, one, name, typed)
    for one in opened:
        subjects = {one.body.slot[:16], one.body.origin[:16]}
        records = [r for subject in subjects for r in by_subject.get(subject, ())]
        one.opened_us = _opened_us(chain, records)
    return _Seen(chain.head, opened, frozenset(body.slot for body in bodies), ordered)


def _effect_records(chain: Chain) -> tuple[dict[bytes, list[RecordHead]], bool]:
    """Heads of the effect records of a chain by subject, newest first; whether it holds orders."""
    by_subject: dict[bytes, list[RecordHead]] = {}
    ordered = False
    chain.jump(1)
    for record in chain.walk(bodies=False):
        if record.kind is Kind.EFFECT:
            by_subject.setdefault(record.subject, []).append(record)
        ordered = ordered or record.kind in (Kind.RESTORE, Kind.DECISION)
    return by_subject, ordered


def _parts(body: EffectBody) -> list[tuple[str, Typed]]:
    named = {
        "arguments": body.arguments,
        "receipt": body.receipt,
        "evidence": body.evidence,
        "conflict": body.conflict,
    }
    return [(name, typed) for name, typed in named.items() if typed is not None]


def _show(loader: Loader, one: _Held, name: str, typed: Typed) -> None:
    try:
        one.shown[name] = loader.load(typed)
    except NotLoadable:
        one.unshown.append(name)  # of a type that only the workers know


def _opened_us(chain: Chain, records: Sequence[RecordHead]) -> int:
    """When the newest attempt was recorded: the oldest record since the slot was closed."""
    opened_us = 0
    for record in chain.with_bodies(sorted(records, key=lambda r: r.link.seq, reverse=True)):
        body = effect_of(chain.identity.thread, record)
        if not is_open(body.state):
            break
        opened_us = body.at_us
    return opened_us


def _judged(ports: Ports, thread: str, mark: Mark, seen: _Seen) -> list[InDoubt]:
    try:
        intents = unpack_intents(mark.intents)
    except ValueError as error:
        raise MarkCorrupt(thread=thread, reason=str(error)) from None
    live = mark.lease_left_ms > 0 and not decide_holder_dead(ports.host.holder(mark.owner))
    now_us = ports.host.now_us()
    found: list[InDoubt] = []
    for one in seen.held:
        body = one.body
        known = body.slot in intents
        # One intent stands for all that checkpoints have left open, so it may be this one's.
        kept = known or LEFT_OPEN in intents or seen.ordered or bool(body.adopted)
        never_sent = decide_never_sent(Receiver(body.receiver), body.state, intent=kept)
        facts = DoubtFacts(body.state, known, live, body.error, announced=not never_sent)
        reason = decide_doubt(facts)
        if reason is not None:
            found.append(_item(thread, one, reason, now_us))
    for slot in intents.keys() - seen.slots - {LEFT_OPEN}:
        reason = decide_doubt(DoubtFacts(None, intent=True, live=live))
        if reason is not None:
            found.append(_nameless(thread, "unrecorded", slot.hex(), reason))
    return found


def _item(thread: str, one: _Held, reason: str, now_us: int) -> InDoubt:
    body = one.body
    return InDoubt(
        thread=thread,
        effect=body.name,
        slot=body.slot.hex(),
        key=body.key,
        state=body.state,
        receiver=body.receiver,
        attempt=body.attempt,
        position=body.position,
        opened_at=_time(one.opened_us),
        age_s=max(now_us - one.opened_us, 0) / 1_000_000,
        risk=body.risk or _NORMAL,
        deadline=None if body.due_us is None else _time(body.due_us),
        overdue=body.due_us is not None and now_us > body.due_us,
        arguments=one.shown.get("arguments"),
        receipt=one.shown.get("receipt"),
        evidence=one.shown.get("evidence"),
        error=body.error,
        reason=reason,
        unshown=tuple(one.unshown),
        conflict=one.shown.get("conflict"),
        operation=body.operation,
        caller=body.caller,
    )


def _nameless(thread: str, state: str, slot: str, reason: str) -> InDoubt:
    return InDoubt(
        thread=thread,
        effect="",
        slot=slot,
        key="",
        state=state,
        receiver="",
        attempt=0,
        position="",
        opened_at=None,
        age_s=0.0,
        risk=_UNKNOWN_RISK,
        deadline=None,
        overdue=False,
        arguments=None,
        receipt=None,
        evidence=None,
        error=None,
        reason=reason,
    )


def _unreadable(thread: str, error: SurefootError) -> InDoubt:
    """A thread that is refused hides nothing: it stands in the queue itself."""
    item = _nameless(thread, "unreadable", "", f"the thread does not verify: {error}")
    return replace(item, error=error.code)


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, tz=timezone.utc)


# --- numbers and history -------------------------------------------------------------------------


def numbers_of(ports: Ports, doubts: Sequence[InDoubt]) -> EffectNumbers:
    """What this process counted, and what a reading of the whole queue shows."""
    counted = ports.tally.numbers()
    readable = [item for item in doubts if item.state != "unreadable"]
    oldest: dict[str, float] = {}
    for item in readable:
        oldest[item.risk] = max(item.age_s, oldest.get(item.risk, 0.0))
    return EffectNumbers(
        opened=counted.opened,
        reconciled=counted.reconciled,
        escalated=counted.escalated,
        open=len(readable),
        overdue=sum(item.overdue for item in readable),
        unreadable=len(doubts) - len(readable),
        oldest_s={risk: oldest[risk] for risk in reversed(RISKS) if risk in oldest},
    )


def history(
    ports: Ports, serde: Serializer, thread: str, *, limit: int | None
) -> list[EffectRecord]:
    """Everything that a thread's effects went through, as its chain holds it, newest first.

    Raises:
        Refused: The thread does not verify.
        UnknownEvent: A record says something that this release does not know.
    """

    def look(chain: Chain | None) -> list[EffectRecord]:
        if chain is None:
            return []
        by_subject, _ = _effect_records(chain)
        older = {
            newer.link.seq: below
            for records in by_subject.values()
            for newer, below in pairwise(sorted(records, key=_seq, reverse=True))
        }
        heads = sorted((r for records in by_subject.values() for r in records), key=_seq)[::-1]
        heads = heads[:limit]
        told: set[bytes] = set()
        out: list[EffectRecord] = []
        for page in range(0, len(heads), _PAGE):
            out += _told(ports, serde, chain, heads[page : page + _PAGE], older, told)
        return out

    return viewing(ports, thread, look)


def _seq(record: RecordHead) -> int:
    return record.link.seq


def _told(
    ports: Ports,
    serde: Serializer,
    chain: Chain,
    page: Sequence[RecordHead],
    older: Mapping[int, RecordHead],
    told: set[bytes],
) -> Iterator[EffectRecord]:
    """What a page of records says; each is judged by the one below it of the same effect."""
    thread = chain.identity.thread
    wanted = {r.link.seq: r for r in (*page, *(older[_seq(r)] for r in page if _seq(r) in older))}
    full = chain.with_bodies(sorted(wanted.values(), key=_seq, reverse=True))
    bodies = {_seq(record): effect_of(thread, record) for record in full}
    loader = loader_for(ports, chain, serde)
    conflicts = [b for b in bodies.values() if b.conflict is not None]
    loader.fetch([t for b in conflicts for t in (b.conflict, b.arguments) if t is not None])
    for record in page:
        body = bodies[_seq(record)]
        below = older.get(_seq(record))
        event = _event_of(record, body, None if below is None else bodies[_seq(below)])
        differs = _differing(loader, body) if event == "conflicted" else ()
        newest = not body.only_asked and body.slot not in told
        yield replace(_record_of(record, body, newest=newest), event=event, differs=differs)
        if not body.only_asked:
            told.add(body.slot)


def _event_of(record: RecordHead, body: EffectBody, below: EffectBody | None) -> str:
    """What the trail says of it, by the same judgement."""
    facts = RecordFacts(_seq(record), record.epoch, record.link.digest, record.kind, body)
    before = Before(record.epoch)
    if below is not None and below.slot == body.slot:
        before = Before(record.epoch, state=below.state, attempt=below.attempt)
    (event,) = decide_event(facts, before)
    return event.kind.rpartition(".")[2]


def _differing(loader: Loader, body: EffectBody) -> tuple[str, ...]:
    """Names of the arguments that a later call gave another value."""
    if body.conflict is None or body.arguments is None:
        return ()
    try:
        before, now = loader.load(body.arguments), loader.load(body.conflict)["arguments"]
    except NotLoadable:  # of a type that only the workers know
        return ()
    return tuple(
        name
        for name in sorted(before.keys() | now.keys())
        if name not in before
        or name not in now
        or decide_match([name], {name: now[name]}, before) is not None
    )


def _record_of(record: RecordHead, body: EffectBody, *, newest: bool) -> EffectRecord:
    return EffectRecord(
        seq=record.link.seq,
        effect=body.name,
        slot=body.slot.hex(),
        key=body.key,
        state=body.state,
        receiver=body.receiver,
        attempt=body.attempt,
        position=body.position,
        at=_time(body.asked_us or body.at_us),
        source=body.source,
        error=body.error,
        risk=body.risk or _NORMAL,
        newest=newest,
        answer=body.answer if body.only_asked else "",
        why=body.why if body.only_asked else "",
    )
