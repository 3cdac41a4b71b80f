"""Recorded reads: looked up before they run, recorded after it.

A read changes nothing outside, so it waits for no checkpoint, stores no start, and its outcome
rides with the next append: at the latest with the start of the next effect, whose arguments may
depend on it. Nothing here does I/O, except `load` and `store`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.errors import Misuse, StaleInput
from surefoot.flows import adoption, journal, save
from surefoot.flows.acquire import checkpoint_of, effect_of
from surefoot.flows.chain import Chain
from surefoot.flows.cover import cover_of
from surefoot.flows.effects import CallPlace
from surefoot.flows.values import Loader, writer_for
from surefoot.flows.views import FIRST_PAGE_FRAMES
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import BODY_SCHEMAS, EffectBody, Typed
from surefoot.rules.effects import PROVEN_NOTHING, Position, slot_of
from surefoot.rules.envelope import Kind, Record
from surefoot.rules.fingerprint import fingerprint
from surefoot.rules.reads import (
    HAPPENED,
    OBSERVED,
    READ,
    OnStale,
    ReadFacts,
    ReadVerdict,
    decide_read,
    differences,
    outline,
    place_of_checkpoints,
)
from surefoot.session import PendingRead, Session

__all__ = [
    "Observed",
    "ReadRequest",
    "ReadStep",
    "begin",
    "finish",
    "last_observation",
    "load",
    "moved",
    "reading",
    "store",
]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One recorded read.

    Attributes:
        name: Of the step.
        place: Where it is made.
        call_id: Explicit id of the read within its task; None counts.
        scope: The call whose body makes it, or empty: what a body reads must not shift the order
            of what its task reads, because a replayed body does not run.
        since_us: When the effect in whose body it is made was first started so that it may have
            been sent; None outside of effects.
        runnable: Identity of the runnable (node, tool, chain) that makes it, or None.
        inputs: Semantic inputs by name, bindings included.
        fingerprint: 32 bytes over them.
        freshness_us: Age from which on a recorded outcome does not count; None means never.
        on_stale: What other inputs than recorded lead to.
        observes: The outcome is an observation.
        recall: Arguments with which an observation can be made again.
    """

    name: str
    place: CallPlace
    call_id: str | None
    scope: bytes
    runnable: object
    inputs: Mapping[str, Any]
    fingerprint: bytes
    since_us: int | None = None
    freshness_us: int | None = None
    on_stale: OnStale = OnStale.REFUSE
    observes: bool = False
    recall: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ReadStep:
    """What a read does next.

    Attributes:
        request: The read.
        slot: Where its outcome is kept while the run is alive.
        position: Its logical position, as far as it is known.
        body: The record to replay; None when it is to be read.
        fresh: The record was made by this session.
    """

    request: ReadRequest
    slot: bytes
    position: Position
    body: EffectBody | None = None
    fresh: bool = False


# --- before the read ---------------------------------------------------------------------------


def begin(ports: Ports, session: Session, serde: Serializer, request: ReadRequest) -> ReadStep:
    """Decides whether a read is carried out or replayed. The caller holds it in `reading`.

    Raises:
        StaleInput: Recorded with other inputs than those of now.
        Fenced: Another worker has the thread.
        SaveFailed: An earlier save of this run failed (E10).
        Misuse: Nothing but a ``call_id=`` would tell this read apart from another one.
    """
    session.check()
    with session.queue_lock:
        position = _position(session, request)
        step = ReadStep(request, slot_of(position), position)
        _require_own(session, step)
        held = _recorded(session, step)
        if held is not None:
            step.fresh = held.slot in session.reads.raw or step.slot in session.reads.raw
        session.reads.running.add(step.slot)
    then = decide_read(
        ReadFacts(
            recorded=held is not None,
            same_inputs=held is not None and held.fingerprint == request.fingerprint,
            used=held is not None and _is_used(session, request, held),
            void=held is not None and _is_void(request, held),
            age_us=None if held is None else ports.host.now_us() - held.at_us,
            freshness_us=request.freshness_us,
            on_stale=request.on_stale,
        )
    )
    if then.verdict is ReadVerdict.STALE and held is not None:
        session.reads.running.discard(step.slot)
        raise _stale(ports, session, serde, held, request, then.reason)
    if then.verdict is ReadVerdict.REPLAY:
        step.body = held
    return step


@contextmanager
def reading(session: Session, step: ReadStep) -> Iterator[None]:
    """While a read is under way; two at one time need a ``call_id=`` each."""
    try:
        yield
    finally:
        session.reads.running.discard(step.slot)


def _position(session: Session, request: ReadRequest) -> Position:
    """The place of a read by the checkpoints it runs under, and its ordinal there (rule E4)."""
    place = request.place
    named = request.call_id is not None
    position = Position(
        tenant=session.identity.tenant,
        thread=session.identity.thread,
        incarnation=session.identity.incarnation,
        branch=place_of_checkpoints(place.levels),
        steps=(place.step,),
        namespace=place.family[0] if named else place.namespace,
        path=place.family[1] if named else place.path,
        name=f"read/{request.scope.hex()}/{request.name}",
        call=request.call_id if request.call_id is not None else 0,
    )
    if named:
        return position
    known = session.reads.step(_root(place))
    key = (*place.task, slot_of(position))
    ordinal = known.ordinals.get(key, 0)
    if known.runnables.setdefault(key, request.runnable) != request.runnable:
        raise Misuse(
            field=f"read {request.name!r}",
            reason=(
                "several runnables of one task (tools of one message, say) make it, so its order "
                "cannot identify it; give each a call_id= of its own, or decorate the tool itself"
            ),
        )
    if ordinal and slot_of(replace(position, call=ordinal - 1)) in session.reads.running:
        raise _at_once(request)
    known.ordinals[key] = ordinal + 1
    return replace(position, call=ordinal)


def _home(place: CallPlace) -> tuple[str, str]:
    return place.levels[-1] if place.levels else ("", "")


def _require_own(session: Session, step: ReadStep) -> None:
    """Refuses a place that another task of the step has reached, or a read under way."""
    request = step.request
    if step.slot in session.reads.running:
        raise _at_once(request)
    origin = (request.place.task[2], request.place.origin)
    before = session.reads.step(_root(request.place)).origins.setdefault(step.slot, origin)
    if before[0] == origin[0] and before[1] != origin[1]:
        raise Misuse(
            field=f"read {request.name!r}",
            reason=(
                "two tasks of one step reach it at the same place, so nothing but a call_id= "
                "tells their reads apart; give each one of its own"
            ),
        )


def _at_once(request: ReadRequest) -> Misuse:
    return Misuse(
        field=f"read {request.name!r}",
        reason=(
            "two reads of one task run at the same time, so their order cannot identify them; "
            "give each a call_id= of its own"
        ),
    )


def _root(place: CallPlace) -> tuple[str, str]:
    return place.levels[0] if place.levels else ("", "")


def _recorded(session: Session, step: ReadStep) -> EffectBody | None:
    """The record of this place, under its final name or the one it was made with."""
    final = _final_slot(session, step)
    for slot in (final, step.slot):
        held = None if slot is None else session.reads.bodies.get(slot)
        if held is not None:
            return held
    return None


def _final_slot(session: Session, step: ReadStep) -> bytes | None:
    """The slot by rule E4; None while branch and steps are not known."""
    place = step.request.place
    outer = place.levels[:-1] if place.saved else place.levels
    steps: list[int] = []
    for level in outer:
        known = session.known.get(level)
        if known is None:
            return None
        steps.append(known.step)
    root = session.known.get(place.levels[0]) if place.levels else None
    if root is None and (session.started_behind or session.base_branch):
        return None  # the next checkpoint begins a branch that has no name yet
    root = root or session.started_at
    branch = b"" if root is None else root.branch
    return slot_of(replace(step.position, branch=branch, steps=(*steps, place.step)))


def _is_used(session: Session, request: ReadRequest, held: EffectBody) -> bool:
    """Whether an effect that may have happened was started after a read of its task.

    The queue's lock is all that a read waits for, so what another thread records at this moment
    is seen by the next read; it is no matter of this task.
    """
    if request.since_us is not None:
        return not _is_void(request, held)
    at = session.reads.at.get(held.slot, 0)
    root = _root(request.place)[1]
    return any(
        (effect.root, effect.task) == (root, request.place.root_task)
        and not _nothing_happened(session, effect)
        and session.effect_at.get(effect.slot, 0) > at
        for effect in list(session.effects.values())
    )


def _nothing_happened(session: Session, effect: EffectBody) -> bool:
    return effect.state in PROVEN_NOTHING or adoption.never_sent(session, effect)


def _is_void(request: ReadRequest, held: EffectBody) -> bool:
    """Whether a body made it for an attempt of its effect that is proven to have done nothing."""
    return request.since_us is not None and held.at_us < request.since_us


def load(ports: Ports, session: Session, serde: Serializer, step: ReadStep) -> Any:
    """The recorded outcome."""
    body = step.body
    if body is None or body.result is None:
        raise Misuse(field=f"read {step.request.name!r}", reason="nothing is recorded")
    raw = session.reads.raw.get(body.slot) or session.reads.raw.get(step.slot)
    if raw is not None:
        return serde.loads_typed(raw)
    return _loaded(ports, session, serde, body.result)


def _loaded(ports: Ports, session: Session, serde: Serializer, typed: Typed) -> Any:
    loader = Loader(cover_of(ports, session.identity), ports.store, session.key or 0, serde)
    loader.fetch([typed])
    return loader.load(typed)


# --- after the read ----------------------------------------------------------------------------


def finish(
    ports: Ports, session: Session, serde: Serializer, step: ReadStep, result: Any
) -> tuple[Any, EffectBody]:
    """Takes an outcome into the queue.

    Returns:
        The outcome as a later replay gives it, and its record.

    Raises:
        NotStorable: The outcome cannot be stored faithfully; nothing is recorded.
    """
    request = step.request
    namespace, checkpoint_id = _home(request.place)
    writer = writer_for(ports, session, serde)
    paths = outline(request.inputs, effect=request.name)
    inputs: dict[str, Any] = {"outline": paths}
    if request.observes:
        inputs["recall"] = dict(request.recall)
        fingerprint(result, effect=request.name)  # so that it can be compared later
    typed = writer.value(result, channel=f"(result of {request.name})")
    raw = serde.dumps_typed(result)
    body = EffectBody(
        slot=step.slot,
        name=request.name,
        state="succeeded",
        attempt=1,
        receiver=READ,
        fingerprint=request.fingerprint,
        key="",
        namespace=namespace,
        checkpoint_id=checkpoint_id,
        position=step.position.shown(),
        arguments=writer.value(inputs, channel=f"(inputs of {request.name})"),
        result=typed,
        source=OBSERVED if request.observes else "body",
        at_us=ports.host.now_us(),
        root=_root(request.place)[1],
    )

    at = session.head.seq

    def make() -> Record:
        final = _final_slot(session, step) or step.slot
        stored = replace(body, slot=final)
        with session.queue_lock:
            if session.reads.bodies.get(step.slot) is body:
                for slot in {step.slot, final}:
                    session.reads.keep(slot, stored, raw, paths, _root(request.place), at)
        return Record(Kind.EFFECT, BODY_SCHEMAS["E"], final[:16], stored.pack())

    pending = PendingRead(request.place.levels, make, tuple(writer.rows), ports.host.monotonic_ms())
    with session.queue_lock:
        for slot in {step.slot, _final_slot(session, step) or step.slot}:
            session.reads.keep(slot, body, raw, paths, _root(request.place), at)
        session.queue.append(pending)
    return serde.loads_typed(raw), body


def store(ports: Ports, session: Session) -> None:
    """Stores the reads that wait now: the body of an effect may send what it has just read.

    Raises:
        Fenced: Another worker has the thread.
        StoreUnavailable: The database did not answer; the session is latched.
    """
    with session.lock:
        records, rows = save.waiting_reads(session)
        if records:
            journal.append(ports, session, records, rows=rows)


def _stale(
    ports: Ports,
    session: Session,
    serde: Serializer,
    held: EffectBody,
    request: ReadRequest,
    reason: str,
) -> StaleInput:
    """The error for other inputs than recorded; says what moved, shows no values."""
    before = session.reads.outlines.get(held.slot)
    if before is None:
        before = _inputs_of(ports, session, serde, held).get("outline", {})
    differs = differences(before, outline(request.inputs, effect=request.name))
    return StaleInput(
        step=request.name,
        thread=session.identity.thread,
        reason=f"{reason}: {', '.join(differs) or 'deep inside them'}",
        slot=held.slot.hex(),
        position=held.position,
        differs=differs,
        recorded=held.fingerprint.hex(),
        proposed=request.fingerprint.hex(),
    )


def _inputs_of(
    ports: Ports, session: Session, serde: Serializer, held: EffectBody
) -> Mapping[str, Any]:
    if held.arguments is None:
        return {}
    inputs: Mapping[str, Any] = _loaded(ports, session, serde, held.arguments)
    return inputs


# --- observations ------------------------------------------------------------------------------


def moved(
    session: Session, serde: Serializer, body: EffectBody, before: Any, now: Any
) -> StaleInput | None:
    """Compares an observation with what is there now; None when nothing moved.

    Args:
        session: Of the run.
        serde: Its serialiser.
        body: The record of the observation.
        before: Its recorded outcome.
        now: The outcome of reading again.
    """
    now = serde.loads_typed(serde.dumps_typed(now))
    recorded = fingerprint(before, effect=body.name)
    proposed = fingerprint(now, effect=body.name)
    if recorded == proposed:
        return None
    differs = differences(
        outline({"(observed)": before}, effect=body.name),
        outline({"(observed)": now}, effect=body.name),
    )
    return StaleInput(
        step=body.name,
        thread=session.identity.thread,
        reason=f"what it observed has moved since: {', '.join(differs)}",
        slot=body.slot.hex(),
        position=body.position,
        differs=differs,
        recorded=recorded.hex(),
        proposed=proposed.hex(),
    )


@dataclass(frozen=True, slots=True)
class Observed:
    """An observation on the chain.

    Attributes:
        body: Its record.
        at: Number of the record.
        followed: Names of effects of the thread that have happened behind it.
    """

    body: EffectBody
    at: int
    followed: set[str]


def last_observation(
    ports: Ports, session: Session, serde: Serializer, name: str, place: CallPlace
) -> tuple[Observed, Any, Mapping[str, Any]] | None:
    """The newest observation of this name that led to a place: its record, outcome, arguments.

    Raises:
        TamperDetected: A record does not verify.
    """
    with session.lock:
        identity = session.identity
        row, rows = ports.store.read_newest(
            identity.tenant, identity.thread, limit=FIRST_PAGE_FRAMES
        )
        if row is None:
            return None
        chain = Chain(ports, identity, row, session.head, rows)
        root = session.known.get(_root(place)) or session.started_at
        found = _newest_of_line(chain, name, "" if root is None else root.checkpoint_id)
        if found is None or found.body.result is None:
            return None
        recall = _inputs_of(ports, session, serde, found.body).get("recall") or {}
        return found, _loaded(ports, session, serde, found.body.result), recall


def _newest_of_line(chain: Chain, name: str, line: str) -> Observed | None:
    """The newest observation made under a root checkpoint or one that it descends from.

    What another branch has observed later would hide that a plan is stale. A read stands right
    above the root checkpoint it was made under; where that was not stored (under ``exit``, or it
    was pruned), it counts as one of the line.

    Args:
        chain: Of the thread.
        name: Of the observation.
        line: The root checkpoint; empty when none is known, and then the newest one counts.
    """
    thread = chain.identity.thread
    newest: dict[bytes, EffectBody] = {}
    maybe: Observed | None = None
    wanted: str | None = line
    for record in chain.walk():
        if record.kind is Kind.CHECKPOINT:
            checkpoint = checkpoint_of(thread, record)
            if checkpoint.namespace:
                continue
            if maybe is not None and maybe.body.root != checkpoint.checkpoint_id:
                return maybe
            maybe = None
            if checkpoint.checkpoint_id == wanted:
                wanted = checkpoint.parent_id
        elif record.kind is Kind.EFFECT:
            body = effect_of(thread, record)
            if (body.receiver, body.source, body.name) == (READ, OBSERVED, name):
                happened = {b.name for b in newest.values() if b.state in HAPPENED}
                seen = Observed(body, record.link.seq, happened)
                if not line or body.root in ("", wanted):
                    return seen
                maybe = maybe or seen
            elif body.receiver != READ and not body.only_asked:
                newest.setdefault(body.slot, body)
    return maybe
