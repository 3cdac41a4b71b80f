"""Running a side effect once (rules E1 to E10).

``begin`` decides and records before the effect, ``finish`` and ``fail`` record after it,
``answered`` takes what a lookup said. User code runs between them, in the wrappers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from surefoot.errors import (
    BarrierTimeout,
    EffectConflict,
    EffectInDoubt,
    EffectOnFork,
    EffectResultLost,
    Misuse,
    NotStorable,
    StaleInput,
)
from surefoot.flows import adoption, journal, lookups, save
from surefoot.flows.compensation import Undo, find_target
from surefoot.flows.cover import cover_of
from surefoot.flows.values import Loader, writer_for
from surefoot.ports import Ports, Serializer
from surefoot.rules.answers import Absent, Answer, Committed, Conflicting, NotSent
from surefoot.rules.bodies import BODY_SCHEMAS, EffectBody, Typed
from surefoot.rules.effects import (
    MAYBE_SENT,
    PROVEN_NOTHING,
    Barrier,
    BarrierFacts,
    Call,
    CallFacts,
    Elsewhere,
    FailureFacts,
    Position,
    Receiver,
    Verdict,
    decide_absent,
    decide_barrier,
    decide_call,
    decide_expired,
    decide_failure_stands,
    decide_match,
    idempotency_key,
    slot_of,
)
from surefoot.rules.envelope import Kind, Record
from surefoot.rules.reads import differences, outline
from surefoot.rules.transport import decide_failed
from surefoot.session import Known, LooseEffect, Session

__all__ = [
    "CallPlace",
    "CallRequest",
    "Step",
    "answered",
    "answered_early",
    "barrier_passed",
    "barrier_timeout",
    "begin",
    "fail",
    "finish",
    "in_doubt",
    "loaded",
    "note",
    "question",
    "questions",
    "raised",
    "receipt_of",
    "recorded",
    "require_barrier",
    "result_of",
    "settle_left_ms",
    "settled",
    "step_aside",
    "take_over",
    "task_ended",
]

_MARGIN_MS = 1_000


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where in the graph a call is made.

    Attributes:
        levels: (namespace, checkpoint id) of each saved level, root first; the call runs under
            the last one.
        saved: The innermost graph saves checkpoints; its own are the last level then.
        step: LangGraph's step of the running task.
        namespace: Namespace of the call, task ids removed.
        path: Task path without ids.
        origin: Tasks, with their ids, between the innermost saved graph and the call's own task:
            they tell apart what several tasks of one step call.
        root_task: Node and id (``node:id``) of the root graph's task that makes the call, itself
            or in a subgraph.
        family: Namespace and path without the counters that go on across retries; equal to
            (namespace, path) when there are none.
        task: Task id, attempt and serial of the graph's execution, which scope the ordinals.
    """

    levels: tuple[tuple[str, str], ...]
    saved: bool
    step: int
    namespace: str
    path: str
    task: tuple[str, int, int]
    family: tuple[str, str]
    origin: str
    root_task: str = ""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One call of an effect.

    Attributes:
        name: Name of the effect.
        place: Where it is made.
        call_id: Explicit id of the call within its task; None counts.
        receiver: Class of the receiver.
        arguments: Semantic arguments by name.
        fingerprint: 32 bytes over them.
        compare: Fields that a lookup's evidence must match.
        settling_ms: Time after which "absent" may count; None takes the policy's.
        strong: The lookup is declared strong: one read is enough once settled.
        window_ms: How long the receiver remembers a key; None means for ever.
        can_ask: A lookup is declared.
        operation: ``operation_id`` of the call (E4c); empty when it has none.
        caller: For an operation: the thread that calls it.
        undo: The effect that the call undoes, if it does; what it is given is found then.
        undoes: The slot of that effect, once it is found.
        is_step: The call is a whole node, and its arguments are the node's input.
        within: Slot of the effect in whose body the call is made; empty when it is in none.
        risk: As declared, for the queue of doubts; None is normal.
        deadline_ms: Time from the start until which a doubt has to be settled.
    """

    name: str
    place: CallPlace
    call_id: str | None
    receiver: Receiver
    arguments: Mapping[str, Any]
    fingerprint: bytes
    compare: Sequence[str] = ()
    settling_ms: int | None = None
    strong: bool = False
    window_ms: int | None = None
    can_ask: bool = False
    operation: str = ""
    caller: str = ""
    undo: Undo | None = None
    undoes: bytes = b""
    is_step: bool = False
    within: bytes = b""
    risk: str | None = None
    deadline_ms: int | None = None


@dataclass(slots=True)
class Step:
    """What a call does next.

    Attributes:
        verdict: As decided. Where it is `started`, send now; where it `asks`, ask the receiver;
            REPLAY: return ``result``.
        request: The call.
        body: The newest record of the slot (as stored, where it is started).
        started: The start is recorded, and nothing was sent yet.
        asks: The receiver is to be asked.
        result: For REPLAY.
        reads: Number of "absent" answers so far.
        absent_from_ms: Local monotonic time from which "absent" may count.
        rows: Rows that the record of a start needs.
        may_run: A proven "absent" lets it run; otherwise a person decides.
        kept: An answer that settled nothing is in the trail; those that follow while the call
            waits are not, only the one that ends it.
    """

    verdict: Verdict
    request: CallRequest
    body: EffectBody
    result: Any = None
    reads: int = 0
    absent_from_ms: int = 0
    rows: Sequence[tuple[bytes, bytes]] = ()
    may_run: bool = True
    started: bool = False
    asks: bool = False
    kept: bool = False


# --- E1 ----------------------------------------------------------------------------------------


def require_barrier(session: Session, request: CallRequest) -> bool:
    """Decides whether the call has to wait for its checkpoint (rule E1).

    Raises:
        Misuse: Under ``durability="exit"`` with a receiver that does not deduplicate.
    """
    then = decide_barrier(
        BarrierFacts(session.durability, request.receiver, named=bool(request.operation))
    )
    if then is Barrier.PASS and session.started_behind and not request.operation:
        raise Misuse(
            field=f"effect {request.name!r}",
            reason=(
                'under durability="exit" a run from an older checkpoint has no branch of its own '
                'yet, so its effects could not be told from those of another; use "async"'
            ),
        )
    if then is Barrier.REFUSE:
        raise Misuse(
            field=f"effect {request.name!r}",
            reason=(
                'durability="exit" stores no checkpoint before the effect; use "async" or '
                '"sync", or declare idempotent=True or an operation_id='
            ),
        )
    return then is Barrier.WAIT


def barrier_passed(session: Session, request: CallRequest) -> bool:
    """True when every level's checkpoint is published, or the session is latched."""
    if session.stopped:
        return True
    return all(session.is_published(*level) for level in request.place.levels)


def barrier_timeout(session: Session, request: CallRequest, waited_ms: int) -> BarrierTimeout:
    """The error for a checkpoint that was not published in time."""
    missing = [cid for ns, cid in request.place.levels if not session.is_published(ns, cid)]
    return BarrierTimeout(
        effect=request.name,
        thread=session.identity.thread,
        waited_ms=waited_ms,
        checkpoint_id=missing[0] if missing else None,
    )


# --- before the effect -------------------------------------------------------------------------


def begin(ports: Ports, session: Session, serde: Serializer, request: CallRequest) -> Step:
    """Decides a call and records its start (rules E2 to E5).

    Raises:
        EffectConflict: The slot was reached with other arguments.
        EffectInDoubt: Nobody can prove whether it happened.
        EffectResultLost: It happened, but its result could not be stored.
        Fenced: Another worker has the thread.
        Misuse: Two concurrent calls of one task without ``call_id=``.
    """
    with session.lock:
        session.check()
        position = _position(session, request)
        slot = slot_of(position)
        if slot in session.running:
            raise _at_once(request)
        origin = (request.place.task[2], request.place.origin)
        before = session.origins.setdefault(slot, origin)
        if before[0] == origin[0] and before[1] != origin[1]:
            raise _two_tasks(request)
        session.origins[slot] = origin
        held = session.effects.get(slot)
        family = b"" if held else _require_unique(session, request, position, slot)
        over = held is not None and not _nothing_happened(session, held)
        if held is not None and not over and request.undo is None:
            _require_retryable(session, held)
        loose = None if over else _elsewhere(ports, session, serde, request)
        if held is None and loose is not None and loose.body.slot == slot:
            held, loose = loose.body, None
        if request.undo is not None:
            known = held if held is not None and over else None
            known = loose.body if loose is not None else known
            request = _aimed(ports, session, serde, request, known)
            if known is None and not request.undoes:
                return _nothing_to_undo(ports, session, serde, request, position, slot)
        facts = _facts(ports, session, request, position, slot, held)
        verdict = decide_call(_with(facts, loose), ports.policy.on_fork)
        body, rows = _body(ports, session, serde, request, position, slot, held)
        body = replace(body, family=held.family if held else family)
        if verdict.verdict is Verdict.ADOPT and loose is not None:
            held = adoption.take(session, loose, body)
            _record(ports, session, held)
            # It may have been sent, under the old slot; whether B knows of that one is no matter.
            facts = _facts(ports, session, request, position, slot, held)
            verdict = decide_call(replace(facts, same_arguments=True, intent=True))
        return _carry_out(ports, session, serde, request, verdict, body, rows, held)


def _aimed(
    ports: Ports,
    session: Session,
    serde: Serializer,
    request: CallRequest,
    held: EffectBody | None,
) -> CallRequest:
    """A call that undoes an effect, with what its body is given; without `undoes` when none is."""
    if held is not None and held.arguments is not None:
        arguments = _load(ports, session, serde, held.arguments)
        return replace(request, arguments=arguments, undoes=held.compensates)
    if request.undo is None:
        return request
    target = find_target(ports, session, serde, request.undo)
    if target is None:
        return request
    return replace(request, arguments=target.given, undoes=target.slot)


def _require_retryable(session: Session, held: EffectBody) -> None:
    """Fails again where the node that is run again has gone past a proven failure.

    Raises:
        NotSent: As it did then.
    """
    facts = FailureFacts(
        not_sent=(held.error or "").split(" ")[0] == NotSent.__name__,
        ended=held.ended,
        passed=_is_passed(session, held),
    )
    if decide_failure_stands(facts):
        again = NotSent(
            f"effect {held.name!r} did not happen ({held.position}), and the node went on to "
            "something else that did; it fails as it did then"
        )
        session.failures.append((again, held.slot))
        raise again


def _is_passed(session: Session, held: EffectBody) -> bool:
    """Whether a later effect of the same execution of a task happened, or may have."""
    at = session.effect_at.get(held.slot, 0)
    return any(
        session.effect_at.get(other.slot, 0) > at and not _nothing_happened(session, other)
        for other in session.effects.values()
        if other.slot != held.slot and _execution_of(other) == _execution_of(held)
    )


def _execution_of(body: EffectBody) -> tuple[str, str, str]:
    """What the calls of one execution of a task share."""
    return body.namespace, body.task, body.position.rpartition(" call ")[0]


def task_ended(ports: Ports, session: Session, error: object) -> None:
    """Notes that a task ended in an error: a proven failure that it stems from was not caught.

    So the call may be made again, whatever else happened in the same task beside it. Where nothing
    did, there is nothing to note.

    Raises:
        Fenced: Another worker has the thread.
        StoreUnavailable: The database did not answer; the session is latched.
    """
    with session.lock:
        causes = _causes(error)
        slots = {slot for failure, slot in session.failures if id(failure) in causes}
        for slot in slots:
            held = session.effects.get(slot)
            failed = held is not None and held.state == "failed" and not held.ended
            if held is not None and failed and _is_passed(session, held):
                _record(ports, session, replace(held, ended=True))


def _causes(error: object) -> set[int]:
    """Identities of an error, of what it stems from, and of the members of groups among them."""
    found: set[int] = set()
    left = [error]
    while left and len(found) < 1_000:
        one = left.pop()
        if not isinstance(one, BaseException) or id(one) in found:
            continue
        found.add(id(one))
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return found


def _nothing_happened(session: Session, held: EffectBody) -> bool:
    """True for a record that proves that nothing was done at its slot."""
    return held.state in PROVEN_NOTHING or adoption.never_sent(session, held)


def _nothing_to_undo(
    ports: Ports,
    session: Session,
    serde: Serializer,
    request: CallRequest,
    position: Position,
    slot: bytes,
) -> Step:
    """Nothing is sent: what would be undone did not happen. That is recorded.

    Otherwise the same call, made again after a crash, would undo what came after it.
    """
    body, rows = _body(ports, session, serde, request, position, slot, None)
    writer = writer_for(ports, session, serde)
    nothing = writer.value(None, channel=f"(result of {request.name})")
    done = replace(body, state="succeeded", attempt=0, result=nothing)
    _record(ports, session, done, [*rows, *writer.rows])
    return Step(Verdict.REPLAY, request, done, None)


def _elsewhere(
    ports: Ports, session: Session, serde: Serializer, request: CallRequest
) -> LooseEffect | None:
    """An equal effect that the branch has not consumed (E4b)."""
    return adoption.find(
        ports,
        session,
        serde,
        _root(session, request.place),
        name=request.name,
        fingerprint=request.fingerprint,
    )


def _with(facts: CallFacts, loose: LooseEffect | None) -> CallFacts:
    if loose is None:
        return facts
    return replace(facts, elsewhere=Elsewhere.FORK if loose.fork else Elsewhere.HERE)


def _facts(
    ports: Ports,
    session: Session,
    request: CallRequest,
    position: Position,
    slot: bytes,
    held: EffectBody | None,
) -> CallFacts:
    since_us = 0 if held is None else held.since_us or held.at_us
    return CallFacts(
        receiver=request.receiver,
        state=_state_of(session, request, held),
        same_arguments=held is not None and held.fingerprint == request.fingerprint,
        # Of an adopted effect the intent stood under another slot, and may have left B since.
        intent=slot in session.intents or bool(held is not None and held.adopted),
        tainted=session.tainted,
        lost=session.is_lost(slot, _root_step(session, request, position)),
        apart=session.apart,
        expired=held is not None
        and decide_expired(
            window_us=None if request.window_ms is None else request.window_ms * 1_000,
            since_us=since_us,
            now_us=ports.host.now_us(),
        ),
        can_ask=request.can_ask,
    )


def _state_of(session: Session, request: CallRequest, held: EffectBody | None) -> str | None:
    """State of a slot; of an operation that was undone, its result is another thread's no more."""
    if held is None:
        return None
    is_undone = bool(request.operation) and held.origin in adoption.undone(session)
    if is_undone and held.state == "succeeded" and held.caller != request.caller:
        return "compensated"
    return held.state


def _carry_out(
    ports: Ports,
    session: Session,
    serde: Serializer,
    request: CallRequest,
    call: Call,
    body: EffectBody,
    rows: Sequence[tuple[bytes, bytes]],
    held: EffectBody | None,
) -> Step:
    """Does what was decided; what a person has to decide about stands in the ledger then."""
    if call.verdict is Verdict.CONFLICT:
        raise _conflict(ports, session, serde, held or body, request, call.reason)
    if call.forked:
        raise _on_fork(session, request, body, call.reason)
    if call.verdict is Verdict.REFUSE:
        if held is None or held.state in PROVEN_NOTHING:
            # So that it stands in the ledger, and a decision can settle it.
            held = replace(
                held or body,
                state="in_doubt",
                source="body",
                error=call.reason,
                evidence=None,
                at_us=body.at_us,
            )
            _record(ports, session, held, rows)
            raise in_doubt(session, held, call.reason)
        why = f" ({held.error})" if held.error else ""
        raise in_doubt(session, held, f"{call.reason}{why}")
    if call.verdict is Verdict.REPLAY and held is not None:
        return _replay(ports, session, serde, request, held)
    step = Step(call.verdict, request, held or body, rows=rows, may_run=call.may_run)
    step.absent_from_ms = _absent_from(ports, session, request, held)
    if call.asks:
        step.asks = True
        session.running.add(body.slot)
        return step
    return _start(ports, session, step, body, held)


def _start(
    ports: Ports, session: Session, step: Step, body: EffectBody, held: EffectBody | None
) -> Step:
    """Stores the start, publishes an intent where the class needs one, guards the lease."""
    slot = body.slot
    session.running.add(slot)
    try:
        fresh = held is None or held.state in PROVEN_NOTHING
        maybe = held if held is not None and held.state in MAYBE_SENT else None
        step.body = replace(
            body,
            attempt=1 if held is None else held.attempt + 1,
            key=body.key if held is None else held.key,
            state="started",
            receipt=None if maybe is None else maybe.receipt,
            since_us=body.at_us if fresh or held is None else held.since_us or held.at_us,
            adopted=b"" if held is None else held.adopted,
        )
        if step.request.receiver is Receiver.SAME_DATABASE:
            return step  # recorded together with what it does
        _record(ports, session, step.body, step.rows)
        if step.request.receiver is not Receiver.DEDUPLICATES or step.request.operation:
            session.intents[slot] = session.epoch
            journal.publish(ports, session)
        else:
            guard_lease(ports, session)
        step.started, step.asks = True, False
    except BaseException:
        session.running.discard(slot)
        raise
    session.tally.opened()
    return step


def guard_lease(ports: Ports, session: Session) -> None:
    """Makes sure that nobody else has the thread, just before something is sent.

    Raises:
        Fenced: Another worker has the thread.
        StoreUnavailable: B could not be reached.
    """
    if session.yielded:
        journal.publish(ports, session)  # takes the lease again; fenced if somebody has it
    elif ports.host.monotonic_ms() > session.lease_until_ms - _MARGIN_MS:
        journal.renew(ports, session)


def _position(session: Session, request: CallRequest) -> Position:
    place = request.place
    root = _root(session, place)
    named = request.call_id is not None
    position = Position(
        tenant=session.identity.tenant,
        thread=session.identity.thread,
        incarnation=session.identity.incarnation,
        branch=b"" if root is None else root.branch,
        steps=(*_outer_steps(session, request), place.step),
        namespace=place.family[0] if named else place.namespace,
        path=place.family[1] if named else place.path,
        name=request.name,
        call=request.call_id if request.call_id is not None else 0,
    )
    if request.call_id is not None:
        return position
    base = slot_of(position)
    key = (*place.task, base)
    ordinal = session.ordinals.get(key, 0)
    if ordinal and slot_of(replace(position, call=ordinal - 1)) in session.running:
        raise _at_once(request)
    ordinal = _past_failures(session, position, ordinal, request.fingerprint)
    session.ordinals[key] = ordinal + 1
    return replace(position, call=ordinal)


def _past_failures(session: Session, position: Position, ordinal: int, arguments: bytes) -> int:
    """Which of its calls an execution of a task makes, when the one before it made it anew.

    A node may try again by itself after a proven failure; the call that then happened is recorded
    under a later ordinal. Made again, its first call is that one: the failure is over.
    """
    held = session.effects.get(slot_of(replace(position, call=ordinal)))
    at = ordinal
    while held is not None:
        if held.fingerprint == arguments and not _nothing_happened(session, held):
            return at
        if at == ordinal and not _nothing_happened(session, held):
            return ordinal
        at += 1
        held = session.effects.get(slot_of(replace(position, call=at)))
    return ordinal


def _root_step(session: Session, request: CallRequest, position: Position) -> int:
    """Step of the root checkpoint that a call runs under."""
    root = _root(session, request.place)
    return position.steps[0] - 1 if root is None else root.step


def _root(session: Session, place: CallPlace) -> Known | None:
    """The root checkpoint of a call: the one it runs under, else the one the run started from."""
    found = session.known.get(place.levels[0]) if place.levels else None
    return found or session.started_at


def _require_unique(
    session: Session, request: CallRequest, position: Position, slot: bytes
) -> bytes:
    """Refuses an equal call whose place may be a retry's (rule E4).

    LangGraph numbers the tasks and the unsaved subgraphs that a task calls, and goes on counting
    when the task is retried, without saying that it was. Two equal calls may then be one call
    and its retry, or two intended ones; nobody can tell, so neither is guessed.

    Returns:
        Digest of what both would share.

    Raises:
        Misuse: An equal call is recorded under another number.
    """
    place = request.place
    family = slot_of(
        replace(position, namespace=place.family[0], path=place.family[1], call="family")
    )
    if request.call_id is None and place.family != (place.namespace, place.path):
        for other in session.effects.values():
            same = (other.family, other.fingerprint) == (family, request.fingerprint)
            if same and other.slot != slot and other.state not in PROVEN_NOTHING:
                raise Misuse(
                    field=f"effect {request.name!r}",
                    reason=(
                        f"an equal call is recorded already ({other.position}); inside a @task "
                        "or an unsaved subgraph a retry cannot be told from a second call, so "
                        "give each call a call_id= of its own"
                    ),
                )
    return family


def _on_fork(session: Session, request: CallRequest, body: EffectBody, reason: str) -> EffectOnFork:
    return EffectOnFork(
        effect=request.name,
        thread=session.identity.thread,
        slot=body.slot.hex(),
        position=body.position,
        reason=reason,
    )


def _two_tasks(request: CallRequest) -> Misuse:
    return Misuse(
        field=f"effect {request.name!r}",
        reason=(
            "two tasks of one step reach it at the same place (a node that Send starts several "
            "times, or an unsaved subgraph), so nothing but a call_id= tells their calls apart; "
            "give each one of its own, e.g. from the item it works on"
        ),
    )


def _at_once(request: CallRequest) -> Misuse:
    return Misuse(
        field=f"effect {request.name!r}",
        reason=(
            "two calls of one task run at the same time or inside each other, so their order "
            "cannot identify them; give each a call_id= of its own"
        ),
    )


def _outer_steps(session: Session, request: CallRequest) -> list[int]:
    """Step of each checkpoint around the innermost graph, root first."""
    place = request.place
    steps: list[int] = []
    for level in place.levels[:-1] if place.saved else place.levels:
        known = session.known.get(level)
        if known is None:
            raise Misuse(
                field=f"effect {request.name!r}",
                reason=(
                    'in a subgraph under durability="exit" its place cannot be told, because '
                    'the checkpoints around it are not stored; use "async" or "sync"'
                ),
            )
        steps.append(known.step)
    return steps


def _body(
    ports: Ports,
    session: Session,
    serde: Serializer,
    request: CallRequest,
    position: Position,
    slot: bytes,
    held: EffectBody | None,
) -> tuple[EffectBody, Sequence[tuple[bytes, bytes]]]:
    """The record of a start, and the rows that its arguments need."""
    namespace, checkpoint_id = request.place.levels[-1] if request.place.levels else ("", "")
    writer = writer_for(ports, session, serde)
    # The key that seals the checkpoint above, not the primary of the moment: it is fixed by a
    # published record, so a rotation between two attempts does not change what is sent (E9).
    root = _root(session, request.place)
    key_id = ports.seals.primary() if root is None else root.key_id
    purpose = ports.seals.purpose_key(
        key_id, "idempotency/v1", session.identity.tenant, session.identity.thread
    )
    arguments = writer.value(dict(request.arguments), channel=f"(arguments of {request.name})")
    now_us = ports.host.now_us()
    body = EffectBody(
        slot=slot,
        name=request.name,
        state="started",
        attempt=1,
        receiver=request.receiver.value,
        fingerprint=request.fingerprint,
        key=idempotency_key(purpose, slot) if held is None else held.key,
        namespace=namespace,
        checkpoint_id=checkpoint_id,
        position=position.shown(),
        arguments=arguments,
        at_us=now_us,
        root=request.place.levels[0][1] if request.place.levels else "",
        task=request.place.root_task,
        operation=request.operation,
        caller=request.caller,
        compensates=request.undoes,
        within=request.within,
        risk=request.risk,
        due_us=_due_us(request, held, now_us),
    )
    return body, writer.rows


def _due_us(request: CallRequest, held: EffectBody | None, now_us: int) -> int | None:
    """Until when a doubt has to be settled; sending again does not put that off."""
    if held is not None and held.state in MAYBE_SENT and held.due_us is not None:
        return held.due_us
    return None if request.deadline_ms is None else now_us + request.deadline_ms * 1_000


def _replay(
    ports: Ports, session: Session, serde: Serializer, request: CallRequest, held: EffectBody
) -> Step:
    return Step(Verdict.REPLAY, request, held, result_of(ports, session, serde, held))


def result_of(ports: Ports, session: Session, serde: Serializer, held: EffectBody) -> Any:
    """The recorded result of a succeeded effect.

    Raises:
        EffectResultLost: It could not be stored.
    """
    if held.result is None:
        raise EffectResultLost(
            effect=held.name,
            thread=session.identity.thread,
            slot=held.slot.hex(),
            reason=held.unstorable or "no result was recorded",
            receipt=None if held.receipt is None else _load(ports, session, serde, held.receipt),
        )
    return _load(ports, session, serde, held.result)


def _load(ports: Ports, session: Session, serde: Serializer, typed: Typed) -> Any:
    loader = Loader(cover_of(ports, session.identity), ports.store, session.key or 0, serde)
    loader.fetch([typed])
    return loader.load(typed)


# --- after the effect --------------------------------------------------------------------------


def note(
    ports: Ports, session: Session, serde: Serializer, step: Step, receipt: Mapping[str, Any]
) -> None:
    """Stores what a body learned while it ran, at once (``call.note(provider_id=…)``).

    Raises:
        NotStorable: The receipt is no plain data.
        Misuse: The call is over.
        Fenced: Another worker has the thread.
    """
    with session.lock:
        if step.body.slot not in session.running:
            raise Misuse(
                field=f"effect {step.request.name!r}, call.note()",
                reason="the call is over; note what you learn while the body runs",
            )
        writer = writer_for(ports, session, serde)
        typed = writer.value(dict(receipt), channel=f"(receipt of {step.request.name})")
        step.body = replace(step.body, receipt=typed)
        _record(ports, session, step.body, [*step.rows, *writer.rows])


def finish(
    ports: Ports,
    session: Session,
    serde: Serializer,
    step: Step,
    result: Any,
    *,
    source: str = "body",
    evidence: Any = None,
) -> Any:
    """Records that the effect happened, with its result (rule E2).

    A result that cannot be stored is refused only after it is recorded that the effect
    happened: it is never run again.

    Returns:
        The result as a later replay would give it.

    Raises:
        EffectResultLost: The result cannot be stored.
        SaveFailed: The outcome could not be recorded; the effect stays in doubt.
    """
    with session.lock:
        writer = writer_for(ports, session, serde)
        lost: NotStorable | None = None
        body = replace(
            step.body, state="succeeded", source=source, error=None, at_us=ports.host.now_us()
        )
        try:
            body = replace(body, result=writer.value(result, channel=f"(result of {body.name})"))
        except NotStorable as error:
            lost = error
            body = replace(body, unstorable=str(error))
        if evidence is not None:
            body = replace(body, evidence=lookups.evidence_of(writer, body.name, evidence))
        _close(ports, session, body, [*step.rows, *writer.rows])
        if lost is not None:
            raise EffectResultLost(
                effect=body.name,
                thread=session.identity.thread,
                slot=body.slot.hex(),
                reason=str(lost),
                receipt=None,
            ) from lost
        if source == "reconcile" or step.verdict is Verdict.RECONCILE:
            session.tally.reconciled()
        if body.result is None:
            return result
        raw = serde.dumps_typed(result)
        return serde.loads_typed(raw)


def fail(
    ports: Ports,
    session: Session,
    step: Step,
    error: BaseException,
    *,
    proven: bool,
    seen: str | None = None,
) -> None:
    """Records that the body raised (rule E8).

    Args:
        ports: Stores.
        session: Whose journal.
        step: The call.
        error: What the body raised; only its type is stored.
        proven: It proves that nothing happened (`NotSent`); anything else is in doubt.
        seen: Its type and kind, for the ledger.

    Raises:
        SaveFailed: The outcome could not be recorded; the record stays at ``started``.
    """
    with session.lock:
        proven = decide_failed(
            not_sent=proven,
            resent=step.verdict is Verdict.RECONCILE,
            ambiguous=session.tainted and _may_be_lost(step),
        )
        body = replace(
            step.body,
            state="failed" if proven else "in_doubt",
            error=seen or type(error).__qualname__,
            at_us=ports.host.now_us(),
        )
        _close(ports, session, body, () if step.started else step.rows)
        if proven:
            session.intents.pop(body.slot, None)
            session.failures.append((error, body.slot))


def _may_be_lost(step: Step) -> bool:
    """Whether an earlier start may be missing: class K leaves no intent that would tell (E3)."""
    return step.request.receiver is Receiver.DEDUPLICATES and step.body.attempt == 1


def answered(ports: Ports, session: Session, serde: Serializer, step: Step, answer: Answer) -> Step:
    """Takes the answer of a lookup (rules E5, E8).

    Returns:
        REPLAY with the result, RUN when it is proven absent, or one that asks once more.

    Raises:
        EffectInDoubt: A person has to decide, or nobody can say.
    """
    request = step.request
    if isinstance(answer, Committed):
        differs = decide_match(request.compare, request.arguments, answer.evidence)
        if differs is None:
            result = finish(
                ports,
                session,
                serde,
                step,
                answer.returned(),
                source="reconcile",
                evidence=answer.evidence,
            )
            return Step(Verdict.REPLAY, request, step.body, result)
        return _review(ports, session, serde, step, answer, differs)
    if isinstance(answer, Conflicting):
        return _review(ports, session, serde, step, answer, answer.reason)
    if isinstance(answer, Absent):
        return _absent(ports, session, serde, step, answer)
    with session.lock:
        try:
            lookups.keep(ports, session, serde, step.body, answer, answer.reason)
        finally:
            session.running.discard(step.body.slot)
    raise in_doubt(session, step.body, answer.reason)


def _absent(ports: Ports, session: Session, serde: Serializer, step: Step, answer: Absent) -> Step:
    if not _counts(ports, session, serde, step, answer):
        return step
    if not step.may_run:
        reason = (
            "it was not found, but the step was lost and what followed is another history: it may "
            "have been sent under another key"
        )
        return _review(ports, session, serde, step, answer, reason)
    with session.lock:
        held, rows = _proven_absent(ports, session, serde, step, answer)
        _record(ports, session, held, rows)
        session.tally.reconciled()
        fresh = replace(
            held,
            state="started",
            source="body",
            evidence=None,
            fingerprint=step.request.fingerprint,
        )
        again = Step(Verdict.RUN, step.request, fresh, rows=step.rows)
        return _start(ports, session, again, fresh, held)


def _counts(ports: Ports, session: Session, serde: Serializer, step: Step, answer: Absent) -> bool:
    """Whether "absent" counts by now (rule E5); the first one that does not is kept."""
    settled = ports.host.monotonic_ms() >= step.absent_from_ms
    step.reads += 1 if settled else 0
    if decide_absent(strong=step.request.strong, reads=step.reads, settled=settled):
        return True
    if not step.kept:
        why = "it counts from a second look on" if settled else "it counts once it has settled"
        lookups.keep(ports, session, serde, step.body, answer, why)
        step.kept = True
    return False


def _proven_absent(
    ports: Ports, session: Session, serde: Serializer, step: Step, answer: Absent
) -> tuple[EffectBody, Sequence[tuple[bytes, bytes]]]:
    """The record of a proven "absent", with its evidence, and the rows that it needs."""
    writer = writer_for(ports, session, serde)
    body = replace(
        step.body,
        state="absent",
        source="reconcile",
        evidence=lookups.evidence_of(writer, step.body.name, answer.evidence),
        at_us=ports.host.now_us(),
    )
    return body, [*step.rows, *writer.rows]


# --- settling without running again ------------------------------------------------------------


def take_over(
    ports: Ports, session: Session, serde: Serializer, request: CallRequest, held: EffectBody
) -> Step:
    """Takes an effect of an interrupted step over into the present one (rules E4b, E7).

    The next checkpoint folds it then, and an equal call to come is another one.

    Args:
        ports: Stores.
        session: Whose journal.
        serde: Serialiser of the run.
        request: Where it is taken over to; its ``call_id`` names what it answers.
        held: Its newest record.

    Returns:
        REPLAY (nothing is loaded yet), or one that asks the receiver.
    """
    with session.lock:
        session.check()
        position = _position(session, request)
        slot = slot_of(position)
        now = session.effects.get(slot)
        if now is None:
            root = _root(session, request.place)
            found = adoption.of_origin(ports, session, serde, root, held.origin)
            if found is not None:
                place, _ = _body(ports, session, serde, request, position, slot, held)
                now = adoption.take(session, found, place)
                _record(ports, session, now)
        now = now or held
        if now.state not in MAYBE_SENT:
            return Step(Verdict.REPLAY, request, now)
        if now.slot in session.running:
            raise _at_once(request)
        session.running.add(now.slot)
        step = Step(Verdict.RECONCILE, request, now, asks=True)
        step.absent_from_ms = _absent_from(ports, session, request, now)
        return step


def settled(ports: Ports, session: Session, serde: Serializer, step: Step, answer: Answer) -> Step:
    """Takes the answer of a lookup about a call that is not to run again.

    Returns:
        REPLAY with the result, RUN when it is proven absent (nothing is started), or one that asks
        once more.

    Raises:
        EffectInDoubt: A person has to decide, or nobody can say.
    """
    if not isinstance(answer, Absent):
        return answered(ports, session, serde, step, answer)
    if not _counts(ports, session, serde, step, answer):
        return step
    with session.lock:
        body, rows = _proven_absent(ports, session, serde, step, answer)
        _close(ports, session, body, rows)
        session.intents.pop(body.slot, None)
        return Step(Verdict.RUN, step.request, body)


def loaded(ports: Ports, session: Session, serde: Serializer, typed: Typed | None) -> Any:
    """A value of a record; None when there is none."""
    return None if typed is None else _load(ports, session, serde, typed)


def _review(
    ports: Ports, session: Session, serde: Serializer, step: Step, answer: Answer, reason: str
) -> Step:
    with session.lock:
        body = _to_review(ports, session, serde, step, answer, reason)
    raise in_doubt(session, body, reason)


def _to_review(
    ports: Ports, session: Session, serde: Serializer, step: Step, answer: Answer, reason: str
) -> EffectBody:
    """Leaves it to a person, with what the lookup found."""
    writer = writer_for(ports, session, serde)
    body = replace(
        step.body,
        state="needs_review",
        source="reconcile",
        error=reason,
        evidence=lookups.evidence_of(writer, step.body.name, getattr(answer, "evidence", None)),
        answer="absent" if isinstance(answer, Absent) else "",
        at_us=ports.host.now_us(),
    )
    _close(ports, session, body, [*step.rows, *writer.rows])
    return body


def questions(session: Session) -> list[EffectBody]:
    """Effects of a resumed step that may have happened: their receivers are asked first (E7).

    A start without an intent was never sent, and a receiver that deduplicates is sent the same
    call again where it is made.
    """
    return [
        body
        for slot in session.unfolded
        if (body := session.effects[slot]).receiver == Receiver.CAN_BE_ASKED.value
        and (
            body.state == "in_doubt"
            or (body.state == "started" and (slot in session.intents or body.adopted))
        )
    ]


def question(
    ports: Ports, session: Session, serde: Serializer, body: EffectBody, compare: Sequence[str]
) -> Step:
    """The step of an effect whose receiver is asked before any node runs (E7)."""
    arguments = {} if body.arguments is None else _load(ports, session, serde, body.arguments)
    place = CallPlace(
        levels=(),
        saved=False,
        step=0,
        namespace=body.namespace,
        path="",
        task=("", 0, 0),
        family=(body.namespace, ""),
        origin="",
    )
    request = CallRequest(
        name=body.name,
        place=place,
        call_id=None,
        receiver=Receiver(body.receiver),
        arguments=arguments,
        fingerprint=body.fingerprint,
        compare=compare,
    )
    return Step(Verdict.RECONCILE, request, body, asks=True)


def answered_early(
    ports: Ports, session: Session, serde: Serializer, step: Step, answer: Answer
) -> None:
    """Takes the answer of a lookup before any node runs (E7).

    What proves nothing is kept for the trail. "Absent" waits for the call itself: it counts after
    the settling time only, and only this effect has to wait for that.
    """
    with session.lock:
        session.check()
        if isinstance(answer, Committed):
            differs = decide_match(step.request.compare, step.request.arguments, answer.evidence)
            if differs is not None:
                _to_review(ports, session, serde, step, answer, differs)
                return
            try:
                finish(
                    ports,
                    session,
                    serde,
                    step,
                    answer.returned(),
                    source="reconcile",
                    evidence=answer.evidence,
                )
            except EffectResultLost:
                return  # it is recorded as done; the call itself says what is lost
        elif isinstance(answer, Conflicting):
            _to_review(ports, session, serde, step, answer, answer.reason)
        else:
            at_call = "it counts where the run calls the effect"
            why = at_call if isinstance(answer, Absent) else answer.reason
            lookups.keep(ports, session, serde, step.body, answer, why)


def step_aside(ports: Ports, session: Session) -> None:
    """Stores what waits and gives the lease back, because a refusal is about to end the run.

    Nothing else would: LangGraph stores no error for it. If the caller catches it and the run
    goes on, the next publish takes the lease again, and the fence keeps both safe.

    Raises:
        Fenced: Another worker has the thread.
        StoreUnavailable: B could not be reached; the lease runs out by itself.
    """
    if session.running:
        return  # a sibling is sending: nobody may decide about its effect, or take over, now
    session.paused_at = max([session.paused_at or "", *(c for _, c in list(session.known))])
    if not session.lock.acquire(blocking=False):
        return  # a save is under way; its publish gives the lease back
    try:
        if session.latched is None and not session.ended:
            save.flush(ports, session, free=True)
    finally:
        session.lock.release()


def settle_left_ms(ports: Ports, step: Step) -> int:
    """How long to wait before "absent" may count; 0 when it may."""
    return max(step.absent_from_ms - ports.host.monotonic_ms(), 0)


def _absent_from(
    ports: Ports, session: Session, request: CallRequest, held: EffectBody | None
) -> int:
    """From when on "absent" counts: the longest time in flight after the last possible sender.

    Under our own epoch the sender was this process, and its request may still be under way, so
    the time is counted from now; after a takeover from the acquisition.
    """
    settling = ports.policy.settling_ms if request.settling_ms is None else request.settling_ms
    intent_epoch = None if held is None else session.intents.get(held.slot)
    if intent_epoch == session.epoch:
        return ports.host.monotonic_ms() + settling
    return session.acquired_ms + settling


# --- records -----------------------------------------------------------------------------------


def _close(
    ports: Ports, session: Session, body: EffectBody, rows: Sequence[tuple[bytes, bytes]]
) -> None:
    try:
        _record(ports, session, body, rows)
    finally:
        session.running.discard(body.slot)


def _record(
    ports: Ports, session: Session, body: EffectBody, rows: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Stores one transition; its publish rides with the next checkpoint or intent.

    What was read before is stored with it: the arguments may depend on it.
    """
    record = Record(Kind.EFFECT, BODY_SCHEMAS["E"], body.slot[:16], body.pack())
    reads, read = save.waiting_reads(session)
    rows = list(dict([*read, *rows]).items())
    journal.append(ports, session, [*reads, record], rows=rows)
    recorded(session, body)


def recorded(session: Session, body: EffectBody) -> None:
    """Remembers a transition that has just been stored as the session's last record."""
    session.effects[body.slot] = body
    session.effect_at[body.slot] = session.head.seq
    session.unfolded[body.slot] = (body.namespace, body.checkpoint_id)


def _conflict(
    ports: Ports,
    session: Session,
    serde: Serializer,
    held: EffectBody,
    request: CallRequest,
    reason: str,
) -> EffectConflict | StaleInput:
    """The error for other arguments than recorded; names what differs, shows no values.

    The stored result of a whole node whose input moved is stale. The arguments that were proposed
    are kept in the ledger beside the recorded ones.
    """
    before = {} if held.arguments is None else _load(ports, session, serde, held.arguments)
    now = request.arguments
    names = [
        name
        for name in sorted(before.keys() | now.keys())
        if name not in before
        or name not in now
        or decide_match([name], {name: now[name]}, before) is not None
    ]
    _keep_both(ports, session, serde, held, request)
    if request.is_step and held.state == "succeeded":
        return _stale(session, held, before, request)
    return EffectConflict(
        effect=held.name,
        thread=session.identity.thread,
        slot=held.slot.hex(),
        reason=f"{reason}: {', '.join(names) or 'its inputs'}",
        position=held.position,
        key=held.key,
        differs=names,
        recorded=held.fingerprint.hex(),
        proposed=request.fingerprint.hex(),
    )


def _stale(
    session: Session, held: EffectBody, before: Mapping[str, Any], request: CallRequest
) -> StaleInput:
    differs = differences(
        outline(before, effect=request.name), outline(request.arguments, effect=request.name)
    )
    return StaleInput(
        step=held.name,
        thread=session.identity.thread,
        reason=f"its inputs moved: {', '.join(differs) or 'deep inside them'}",
        slot=held.slot.hex(),
        position=held.position,
        differs=differs,
        recorded=held.fingerprint.hex(),
        proposed=request.fingerprint.hex(),
    )


def _keep_both(
    ports: Ports, session: Session, serde: Serializer, held: EffectBody, request: CallRequest
) -> None:
    """Records what was proposed at a slot that holds another call; its state stays as it is."""
    writer = writer_for(ports, session, serde)
    proposed = {"fingerprint": request.fingerprint, "arguments": dict(request.arguments)}
    typed = writer.value(proposed, channel=f"(arguments of {request.name})")
    if typed != held.conflict:
        _record(ports, session, replace(held, conflict=typed), writer.rows)


def in_doubt(session: Session, body: EffectBody, reason: str) -> EffectInDoubt:
    """The error that says that nobody can prove what happened; counts it."""
    session.tally.escalated(body.slot)
    return EffectInDoubt(
        effect=body.name,
        thread=session.identity.thread,
        key=body.key,
        slot=body.slot.hex(),
        state=body.state,
        reason=reason,
        position=body.position,
    )


def raised(session: Session, step: Step, error: BaseException) -> EffectInDoubt:
    """The error for a body that raised where a caller might turn what it raised into an answer."""
    body = session.effects.get(step.body.slot, step.body)
    name = type(error).__qualname__
    return in_doubt(session, body, f"its body raised {name}, which proves nothing (E8)")


def receipt_of(ports: Ports, session: Session, serde: Serializer, step: Step) -> dict[str, Any]:
    """What the body noted so far."""
    if step.body.receipt is None:
        return {}
    receipt: dict[str, Any] = _load(ports, session, serde, step.body.receipt)
    return receipt
