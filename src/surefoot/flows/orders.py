"""Operators' orders: proposing a decision, and carrying out one that was signed.

A proposal looks at a thread and binds what it saw; carrying out looks again, and refuses when
anything has moved. The decision itself becomes a ``D`` record, which consumes its nonce.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from pydantic import ValidationError

from surefoot.errors import (
    DecisionRefused,
    Misuse,
    OutcomeUnknown,
    RollbackDetected,
    SurefootError,
    TamperDetected,
)
from surefoot.flows import journal
from surefoot.flows.acquire import begin, checkpoint_of, corrupt, effect_of, give_back, held, scan
from surefoot.flows.audit import last_good, lenient, pruned_above
from surefoot.flows.chain import Chain
from surefoot.flows.load import loader_for
from surefoot.flows.maintain import collect_beside
from surefoot.flows.values import writer_for
from surefoot.flows.views import viewing
from surefoot.ports import Admission, Lease, Mark, Ports, Serializer
from surefoot.rules.bodies import (
    BODY_SCHEMAS,
    DecisionBody,
    EffectBody,
    KeyChangeBody,
    RestoreBody,
    Typed,
)
from surefoot.rules.decisions import Decision, DecisionFacts, SignedDecision, decide_decision
from surefoot.rules.envelope import GENESIS, Identity, Kind, Link, Record
from surefoot.session import NO_HORIZON, Session

__all__ = ["CHOICES", "Done", "carry_out", "propose"]

#: What `propose` may be told besides the action.
CHOICES = frozenset(
    {
        *("to_seq", "horizon", "trusted_keys", "slot", "outcome", "result", "proposed_intent"),
        "evidence",
    }
)

#: Between the epoch of an adoption's records and that of its mark: whoever tried the same at the
#: same moment wrote with an epoch in between, and is fenced like any stale worker.
_EPOCH_GAP = 1_024
_SETTLEABLE = frozenset({"started", "in_doubt", "needs_review", "abandoned"})
_NOTHING = "0" * 64
_DELETED = "was deleted; nothing of it can be decided, and it starts anew when it is run"


@dataclass(frozen=True, slots=True)
class Done:
    """What carrying out a decision did.

    Attributes:
        action: Of the decision.
        thread: Id of the thread.
        seq: The thread's new head.
        text: One sentence for people.
    """

    action: str
    thread: str
    seq: int
    text: str


# --- proposing ---------------------------------------------------------------------------------


def propose(
    ports: Ports,
    serde: Serializer,
    thread: str,
    action: str,
    *,
    reason: str,
    valid_for: timedelta,
    choices: Mapping[str, Any],
) -> Decision:
    """Looks at a thread and makes the decision document for an action, to be signed.

    Args:
        ports: Stores.
        serde: Serialiser, to look at what a restore would go back to.
        thread: Id of the thread.
        action: See `Decision`.
        reason: Why, for the record.
        valid_for: How long the decision holds, from now.
        choices: ``to_seq`` (restore), ``horizon`` and ``trusted_keys`` (restore, adopt), ``slot``,
            ``outcome``, ``result``, ``proposed_intent`` and ``evidence`` (approve).

    Raises:
        Misuse: A choice is missing or wrong, or there is nothing to decide.
        TamperDetected: For ``approve`` and the like: the thread does not verify.
    """
    mark = ports.marks.read(ports.tenant, thread)
    if action == "adopt":
        bound = _adoptable(ports, serde, thread, mark, choices)
    elif mark is None:
        raise Misuse(field="thread", reason=f"{thread!r} is unknown to the high-water store")
    elif mark.state == "tombstone":
        raise Misuse(field="thread", reason=f"{thread!r} {_DELETED}")
    else:
        bound = {
            "incarnation": mark.incarnation,
            "head_seq": mark.seq,
            "head_digest": mark.digest.hex(),
        }
        if action == "restore":
            bound |= _restorable(ports, serde, thread, mark, choices)
        elif action == "approve":
            bound |= _settleable(ports, serde, thread, choices)
    if action in ("restore", "adopt") and choices.get("horizon") is not None:
        bound["horizon"] = max(bound["horizon"], choices["horizon"])
    if choices.get("trusted_keys"):
        bound["trusted_keys"] = list(choices["trusted_keys"])
    now = _now(ports)
    if not timedelta(0) < valid_for <= timedelta(days=31):
        raise Misuse(field="valid_for", reason="must be more than nothing and at most 31 days")
    document = {
        "action": action,
        "tenant": ports.tenant,
        "thread": thread,
        **bound,
        "reason": reason,
        "nonce": secrets.token_hex(16),
        # A clock that is a little behind ours must not refuse it.
        "not_before": now - timedelta(minutes=5),
        "expires": now + valid_for,
    }
    try:
        return Decision.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "decision"
        problem = first["msg"]
    raise Misuse(field=place, reason=problem)


def _now(ports: Ports) -> datetime:
    return datetime.fromtimestamp(ports.host.now_us() // 1_000_000, tz=timezone.utc)


def _restorable(
    ports: Ports, serde: Serializer, thread: str, mark: Mark, choices: Mapping[str, Any]
) -> dict[str, Any]:
    wanted = choices.get("to_seq")
    to = Link(0, GENESIS)
    if wanted:
        trusted = choices.get("trusted_keys") or ()
        below = _below_a_prune(ports, thread, mark, wanted, trusted)
        if below:
            raise Misuse(field="to_seq", reason=below)
    if wanted != 0:
        to = _chosen(ports, serde, thread, mark.incarnation, mark.seq, choices)
    return {"to_seq": to.seq, "to_digest": to.digest.hex(), "horizon": mark.step}


def _chosen(
    ports: Ports,
    serde: Serializer,
    thread: str,
    incarnation: int,
    below: int | None,
    choices: Mapping[str, Any],
) -> Link:
    """The record that was named, or the last good one that no order has given up.

    Raises:
        Misuse: There is none, or the named one does not verify.
    """
    wanted = choices.get("to_seq")
    vouched = choices.get("trusted_keys") or ()

    def good(below: int | None, *, at: int | None = None, even: bool = False) -> Link | None:
        return last_good(
            ports,
            serde,
            thread,
            incarnation,
            below=below,
            vouched=vouched,
            at=at,
            even_given_up=even,
        )

    found = good(wanted or below, at=wanted, even=wanted is not None)
    if found is not None:
        return found
    other = good(wanted or below, even=True)
    if other is None and below is None:
        raise Misuse(field="thread", reason=f"nothing of {thread!r} verifies")
    if other is None:
        reason = "nothing that is stored verifies down to the beginning; to_seq=0 starts anew"
    elif wanted is not None:
        reason = f"record {wanted} does not verify; the last one below is {other.seq}"
    else:
        reason = (
            f"record {other.seq} is the last one that verifies, but an ordered restore has given "
            f"it up, or may have; name it (to_seq={other.seq}) if it is the one to go back to"
        )
    raise Misuse(field="to_seq", reason=reason)


def _below_a_prune(
    ports: Ports, thread: str, mark: Mark, seq: int, trusted: Collection[str]
) -> str:
    """What to say about a record that a published prune has put beyond reach; empty otherwise."""
    chain = lenient(ports, thread, mark.incarnation, Link(mark.seq, mark.digest), trusted)
    pruned = None if chain is None or not seq else pruned_above(chain, seq)
    if pruned is None:
        return ""
    return (
        f"record {seq} lies below the prune of record {pruned}, which was published; nothing below "
        f"a prune can be gone back to, {pruned} and what follows can"
    )


def _adoptable(
    ports: Ports, serde: Serializer, thread: str, mark: Mark | None, choices: Mapping[str, Any]
) -> dict[str, Any]:
    row = ports.store.read_thread(ports.tenant, thread)
    if mark is not None or row is None:
        what = "has a mark" if mark is not None else "is not stored"
        raise Misuse(field="thread", reason=f"{thread!r} {what}; there is nothing to adopt")
    trusted = choices.get("trusted_keys") or ()
    head = _chosen(ports, serde, thread, row.incarnation, None, choices)
    chain = lenient(ports, thread, row.incarnation, head, trusted)
    if chain is None:
        raise Misuse(field="thread", reason=f"nothing of {thread!r} verifies")
    return {
        "incarnation": row.incarnation,
        "head_seq": head.seq,
        "head_digest": head.digest.hex(),
        "horizon": _highest_step(chain),
    }


def _settleable(
    ports: Ports, serde: Serializer, thread: str, choices: Mapping[str, Any]
) -> dict[str, Any]:
    slot = choices.get("slot")

    def look(chain: Chain | None) -> dict[str, Any]:
        effect = None if chain is None else _effect_at(chain, str(slot))
        if chain is None or effect is None:
            raise Misuse(field="slot", reason=f"no effect of {thread!r} has the slot {slot!r}")
        fingerprint = effect.fingerprint.hex()
        bound = {
            "slot": effect.slot.hex(),
            "outcome": choices.get("outcome"),
            "recorded_intent": fingerprint,
            "proposed_intent": choices.get("proposed_intent") or fingerprint,
            "receipt_digest": _digest_of(ports, serde, chain, effect.receipt),
            "evidence": choices.get("evidence"),
            "evidence_digest": _digest_of(ports, serde, chain, effect.evidence),
        }
        return bound | ({"result": choices["result"]} if "result" in choices else {})

    return viewing(ports, thread, look)


def _effect_at(chain: Chain, slot: str) -> EffectBody | None:
    """The newest record of the effect that a slot names, wherever it stands now.

    A later place may have adopted the effect (E4b). What was said of it at the first place has been
    overtaken then, and to settle it there would settle nothing.
    """
    newest: dict[bytes, EffectBody] = {}
    for record in chain.walk():
        if record.kind is Kind.EFFECT:
            effect = effect_of(chain.identity.thread, record)
            if effect.only_asked:
                continue
            newest.setdefault(effect.origin, effect)
            if effect.slot.hex() == slot:
                return newest[effect.origin]
    return None


def _digest_of(ports: Ports, serde: Serializer, chain: Chain, typed: Typed | None) -> str:
    """Digest of a stored value; 64 zeros when there is none."""
    if typed is None:
        return _NOTHING
    loader = loader_for(ports, chain, serde)
    loader.fetch([typed])
    return hashlib.sha256(loader.raw(typed)).hexdigest()


def _highest_step(chain: Chain) -> int:
    """Highest step of a root checkpoint on the chain."""
    steps = [NO_HORIZON + 1]
    for record in chain.walk(tail=False):
        if record.kind is Kind.CHECKPOINT:
            body = checkpoint_of(chain.identity.thread, record)
            if body.namespace == "":
                steps.append(body.step)
    return max(steps)


# --- carrying out ------------------------------------------------------------------------------


def carry_out(ports: Ports, serde: Serializer, signed: SignedDecision) -> Done:
    """Carries out a signed decision, once.

    Raises:
        DecisionRefused: The signature does not match, or the decision does not hold any more.
        KeyMissing: Nobody knows the key that signed it.
        Misuse: The action has no meaning in this release.
        Busy: A live worker holds the thread.
    """
    ports.reviewers.check(signed)
    actions = {"restore": _restore, "adopt": _adopt, "abort": _abort, "approve": _approve}
    work = actions.get(signed.decision.action)
    if work is None:
        raise Misuse(
            field="action",
            reason=f"{signed.decision.action!r} is not carried out by this release",
        )
    _require_alive(ports, signed)
    return work(ports, serde, signed)


def _require_alive(ports: Ports, signed: SignedDecision) -> None:
    """Refuses an order about a deleted thread before its lease is taken: that begins a new life."""
    decision = signed.decision
    mark = ports.marks.read(ports.tenant, decision.thread)
    gone = mark is not None and mark.state == "tombstone" and decision.action != "adopt"
    _refuse_if(signed, f"the thread {_DELETED}" if gone else "")


def _require(signed: SignedDecision, facts: DecisionFacts, *more: str) -> None:
    """Refuses a decision that does not hold, with every reason."""
    against = [*decide_decision(signed.decision, facts), *(m for m in more if m)]
    _refuse_if(signed, "; ".join(against))


def _refuse_if(signed: SignedDecision, reason: str) -> None:
    """Refuses a decision when there is a reason to."""
    if reason:
        raise DecisionRefused(
            thread=signed.decision.thread,
            action=signed.decision.action,
            nonce=signed.decision.nonce,
            reason=reason,
        )


def _facts(
    ports: Ports, thread: str, incarnation: int, head: Link, *, consumed: bool
) -> DecisionFacts:
    return DecisionFacts(
        tenant=ports.tenant,
        thread=thread,
        incarnation=incarnation,
        head_seq=head.seq,
        head_digest=head.digest,
        now=_now(ports),
        consumed=consumed,
    )


def _is_consumed(chain: Chain | None, decision: Decision) -> bool:
    """A ``D`` record of the chain names the nonce."""
    if chain is None:
        return False
    nonce = bytes.fromhex(decision.nonce)
    chain.jump(1)
    return any(r.kind is Kind.DECISION and r.subject == nonce for r in chain.walk(bodies=False))


def _is_aborted(chain: Chain) -> bool:
    """A ``D`` record of the chain carried out an abort; nothing ends that."""
    orders = [r for r in chain.walk(tail=False, bodies=False) if r.kind is Kind.DECISION]
    for record in chain.with_bodies(orders):
        try:
            document = DecisionBody.unpack(record.schema, record.body or b"").document
            decided = json.loads(document)
        except ValueError as error:
            raise corrupt(chain.identity.thread, record, error) from None
        if _action_of(decided) == "abort":
            return True
    return False


def _action_of(document: Any) -> Any:
    """The action that a rendered signed decision names."""
    inner = document.get("decision", document) if isinstance(document, dict) else {}
    return inner.get("action") if isinstance(inner, dict) else None


def _consuming(signed: SignedDecision) -> Record:
    """The ``D`` record of a decision; its subject is the nonce."""
    body = DecisionBody(signed.render()).pack()
    nonce = bytes.fromhex(signed.decision.nonce)
    return Record(Kind.DECISION, BODY_SCHEMAS["D"], nonce, body)


def _widest(horizon: int, session: Session) -> int:
    """The horizon of an order; never narrower than that of an earlier one."""
    return horizon if session.horizon is None else max(horizon, session.horizon)


def _restoring(to: Link, horizon: int, *, lost: bool) -> Record:
    body = RestoreBody(to.seq, to.digest, horizon, lost).pack()
    return Record(Kind.RESTORE, BODY_SCHEMAS["R"], bytes(16), body)


def _vouching(ports: Ports, chain: Chain) -> list[Record]:
    """``K`` records for retired keys that the kept part was sealed with.

    Those that stood above it are lost, and the order vouches for what it goes back to.
    """
    found: dict[str, int] = {}
    for record in chain.walk(tail=False, bodies=False):
        key_id = chain.key_id(record)
        if ports.seals.is_retired(key_id):
            found[key_id] = max(found.get(key_id, 0), record.link.seq)
    bodies = [KeyChangeBody(key_id, seq, compromised=False) for key_id, seq in found.items()]
    return [Record(Kind.KEY_CHANGE, BODY_SCHEMAS["K"], b.subject(), b.pack()) for b in bodies]


# --- restore (E6) ------------------------------------------------------------------------------


def _restore(ports: Ports, serde: Serializer, signed: SignedDecision) -> Done:
    del serde
    decision = signed.decision
    session, mark = begin(ports, decision.thread, None)
    try:
        to = Link(decision.to_seq or 0, bytes.fromhex(decision.to_digest or ""))
        horizon = decision.horizon if decision.horizon is not None else mark.step
        head = Link(mark.seq, mark.digest)
        _require(
            signed,
            _facts(ports, decision.thread, mark.incarnation, head, consumed=False),
            f"its horizon is below the lost head's step {mark.step}" if horizon < mark.step else "",
        )
        trusted = decision.trusted_keys or ()
        _refuse_if(signed, _below_a_prune(ports, decision.thread, mark, to.seq, trusted))
        chain = lenient(ports, decision.thread, mark.incarnation, to, trusted)
        if chain is not None and not to.seq and chain.row.incarnation < mark.incarnation:
            # Rows of an earlier life, whose tombstone is published: nothing of them is kept (P6).
            ports.store.delete_thread(chain.row.key)
            chain = None
        records: list[Record] = []
        if chain is not None:
            session.key, session.stored_head = chain.row.key, chain.row.head
            if to.seq:
                records = _vouching(ports, chain)  # walks, and so verifies, all of it
                scan(session, chain, tail=False)
        elif to.seq:
            raise TamperDetected(
                thread=decision.thread,
                what="the journal",
                seq=to.seq,
                reason="the record to go back to is not stored",
            )
        session.horizon = _widest(horizon, session)
        session.head = head
        order = _restoring(to, session.horizon, lost=False)
        with session.lock:
            journal.append(ports, session, [order, *records, _consuming(signed)])
            journal.publish(ports, session)
            kept = lenient(ports, decision.thread, mark.incarnation, session.head)
            if kept is not None:
                collect_beside(ports, session, kept)
            journal.publish(ports, session, free=True)
    except SurefootError:
        if session.head == session.mark and not session.wrote:
            give_back(ports, session, mark)
        raise
    finally:
        session.ended = True
        ports.host.retire(session.owner)
    return Done(
        "restore",
        decision.thread,
        session.head.seq,
        f"went back to record {to.seq}; {head.seq - to.seq} records were given up, and effects up "
        f"to step {session.horizon} are looked up or asked about before they run again",
    )


# --- adoption of a thread whose mark is lost (R2) ----------------------------------------------


def _adopt(ports: Ports, serde: Serializer, signed: SignedDecision) -> Done:
    del serde
    decision = signed.decision
    thread = decision.thread
    head = Link(decision.head_seq, bytes.fromhex(decision.head_digest))
    chain = lenient(ports, thread, decision.incarnation, head, decision.trusted_keys or ())
    has_mark = ports.marks.read(ports.tenant, thread) is not None
    found = chain is not None and chain.has_head()
    _require(
        signed,
        _facts(
            ports,
            thread,
            decision.incarnation,
            head if found else Link(0, GENESIS),
            consumed=False,
        ),
        "the high-water store has a mark of it" if has_mark else "",
    )
    if chain is None:  # `found` says so already; here for the type checker
        raise Misuse(field="thread", reason="is not stored")
    records = _vouching(ports, chain)
    step = _highest_step(chain)
    horizon = decision.horizon if decision.horizon is not None else step
    _require(
        signed,
        _facts(ports, thread, decision.incarnation, head, consumed=_is_consumed(chain, decision)),
        f"its horizon is below step {step}, which is stored" if horizon < step else "",
    )
    frozen = _is_aborted(chain)
    epoch = max(r.epoch for r in chain.everything()) + 1
    lease = Lease(ports.host.describe(), ports.policy.lease_ttl_ms)
    session = Session(
        Identity(ports.tenant, thread, decision.incarnation), epoch, lease.owner, None
    )
    session.key, session.stored_head = chain.row.key, chain.row.head
    session.mark = session.head = head
    try:
        scan(session, chain, tail=False)
        session.horizon = _widest(horizon, session)
        order = _restoring(head, session.horizon, lost=True)
        # The mark is made at the order itself: whatever dies in between, no mark ever stands
        # below the record that says that intents were lost.
        with session.lock:
            journal.append(ports, session, [order, *records, _consuming(signed)])
        _mark_anew(ports, session, lease, step, frozen=frozen)
    except RollbackDetected:
        raise DecisionRefused(
            thread=thread,
            action="adopt",
            nonce=decision.nonce,
            reason="the database changed while the thread was being adopted",
        ) from None
    finally:
        session.ended = True
        ports.host.retire(session.owner)
    return Done(
        "adopt",
        thread,
        session.head.seq,
        f"has a mark again, at record {session.head.seq}; "
        + (
            "it was aborted by an earlier order, so it stays frozen"
            if frozen
            else f"effects up to step {session.horizon} are looked up or asked about before they "
            "run again"
        ),
    )


def _mark_anew(ports: Ports, session: Session, lease: Lease, step: int, *, frozen: bool) -> None:
    """Makes the mark of an adopted thread and gives it back, frozen if it was so."""
    mark = _admitted(ports, session, lease, step, state="frozen" if frozen else "live")
    _at(session, mark)
    if not frozen:
        give_back(ports, session, mark)
        return
    session.mark, session.step = session.head, step
    with session.lock:
        journal.publish(ports, session, free=True, clean=True, state="frozen")


def _admitted(ports: Ports, session: Session, lease: Lease, step: int, *, state: str) -> Mark:
    identity = session.identity
    admission = Admission(
        incarnation=identity.incarnation,
        seq=session.head.seq,
        digest=session.head.digest,
        epoch=session.epoch + _EPOCH_GAP,
        step=step,
        lease=lease,
        state=state,
    )
    try:
        mark = ports.marks.admit(identity.tenant, identity.thread, admission)
    except OutcomeUnknown:
        mark = ports.marks.read(identity.tenant, identity.thread)
        if mark is not None and mark.owner != lease.owner:
            mark = None
    if mark is None:
        raise RollbackDetected(
            thread=identity.thread,
            witnessed_seq=0,
            stored_seq=session.head.seq,
            reason="the high-water store has a mark of it by now",
        )
    return mark


def _at(session: Session, mark: Mark) -> Session:
    """The session under the epoch of the mark that it made."""
    session.epoch = mark.epoch
    return session


# --- abort, approve ----------------------------------------------------------------------------


def _abort(ports: Ports, serde: Serializer, signed: SignedDecision) -> Done:
    del serde
    thread = signed.decision.thread
    with held(ports, thread) as (session, chain):
        _require_here(ports, signed, session, chain)
        journal.append(ports, session, [_consuming(signed)])
        journal.publish(ports, session, free=True, clean=True, state="frozen")
    return Done("abort", thread, session.head.seq, "is frozen; it can be looked at, not resumed")


def _require_here(
    ports: Ports, signed: SignedDecision, session: Session, chain: Chain | None, *more: str
) -> None:
    facts = _facts(
        ports,
        session.identity.thread,
        session.identity.incarnation,
        session.mark,
        consumed=_is_consumed(chain, signed.decision),
    )
    _require(signed, facts, *more)


def _approve(ports: Ports, serde: Serializer, signed: SignedDecision) -> Done:
    decision = signed.decision
    with held(ports, decision.thread) as (session, chain):
        slot = decision.slot or ""
        effect = None if chain is None else _effect_at(chain, slot)
        _require_here(
            ports, signed, session, chain, *_against(ports, serde, decision, chain, effect)
        )
        if effect is None:
            raise Misuse(field="slot", reason="is unknown")
        body, rows = _settled(ports, session, serde, decision, effect)
        if decision.outcome == "absent" or effect.slot not in session.unfolded:
            session.intents.pop(effect.slot, None)  # no checkpoint to come folds what lies behind
        record = Record(Kind.EFFECT, BODY_SCHEMAS["E"], effect.slot[:16], body.pack())
        journal.append(ports, session, [record, _consuming(signed)], rows=rows)
        journal.publish(ports, session, free=True)
    return Done(
        "approve",
        decision.thread,
        session.head.seq,
        f"effect {effect.name!r} is {body.state} by decision",
    )


def _against(
    ports: Ports,
    serde: Serializer,
    decision: Decision,
    chain: Chain | None,
    effect: EffectBody | None,
) -> Sequence[str]:
    """What speaks against settling an effect; its receipt is read again."""
    if effect is None or chain is None:
        return ["no effect of the thread has this slot"]
    against: list[str] = []
    if effect.state not in _SETTLEABLE:
        against.append(f"the effect is {effect.state}, there is nothing to settle")
    if effect.fingerprint.hex() != decision.recorded_intent:
        against.append("the recorded arguments are not the ones that were looked at")
    if decision.proposed_intent != decision.recorded_intent and decision.outcome != "absent":
        against.append("other arguments may only stand when nothing has happened (absent)")
    if _digest_of(ports, serde, chain, effect.receipt) != decision.receipt_digest:
        against.append("the receipt has changed since it was looked at")
    seen = decision.evidence_digest
    if seen is not None and _digest_of(ports, serde, chain, effect.evidence) != seen:
        against.append("the evidence has changed since it was looked at")
    return against


def _settled(
    ports: Ports, session: Session, serde: Serializer, decision: Decision, effect: EffectBody
) -> tuple[EffectBody, Sequence[tuple[bytes, bytes]]]:
    writer = writer_for(ports, session, serde)
    body = replace(
        effect,
        state=str(decision.outcome),
        source="decision",
        error=decision.reason,
        at_us=ports.host.now_us(),
    )
    if decision.outcome == "succeeded":
        result = writer.value(decision.result, channel=f"(result of {effect.name})")
        body = replace(body, result=result, unstorable=None)
    return body, writer.rows
