"""The journal as an audit trail: what each record says happened, and what of it changes anything.

A record of the journal says one or several things; each becomes an `Event`. Events are a function
of the records and their order alone, so the same journal tells the same story in every process.
`surefoot.rules.folding` folds them into what a thread is at any point.

Kinds of our own begin with ``surefoot.``; all others are facts of the user's own, which
`SurefootSaver.record` puts into the trail. Nothing is guessed: a kind, a schema, a state of an
effect or an action of a decision that this release does not know is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from surefoot.errors import Misuse, NotStorable, UnknownEvent
from surefoot.rules.bodies import (
    CheckpointBody,
    DecisionBody,
    EffectBody,
    EventBody,
    KeyChangeBody,
    ProvenanceBody,
    PruneBody,
    RestoreBody,
    TombstoneBody,
    WritesBody,
)
from surefoot.rules.decisions import ACTIONS
from surefoot.rules.envelope import Kind
from surefoot.rules.reads import READ
from surefoot.rules.upcasting import Upcasters

__all__ = [
    "BEARINGS",
    "EVENTS",
    "EVENT_UPCASTERS",
    "OURS",
    "Bearing",
    "Before",
    "Body",
    "Event",
    "RecordFacts",
    "Special",
    "bearing_of",
    "decide_event",
    "decide_kind",
    "decide_payload",
    "decide_version",
]

#: How kinds of our own begin.
OURS = "surefoot."
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
#: Task id under which LangGraph stores an answer that names no interrupt.
_ANY_TASK = "00000000-0000-0000-0000-000000000000"
_DEEPEST = 64
_VERSIONS = 2**31


class Bearing(Enum):
    """Whether something changes what a thread is, or only tells what happened."""

    STATE = "changes the thread"
    RECORD = "only tells"


#: Every kind of record, and whether any of it changes what the thread is. The one table: whoever
#: adds a kind of record has to say here what it does.
BEARINGS: Mapping[Kind, Bearing] = {
    Kind.CHECKPOINT: Bearing.STATE,
    Kind.WRITES: Bearing.STATE,
    Kind.EFFECT: Bearing.STATE,
    Kind.ANCHORS: Bearing.RECORD,
    Kind.DECISION: Bearing.STATE,
    Kind.FORK: Bearing.RECORD,
    Kind.PRUNE: Bearing.STATE,
    Kind.TOMBSTONE: Bearing.STATE,
    Kind.RESTORE: Bearing.STATE,
    Kind.KEY_CHANGE: Bearing.RECORD,
    Kind.EVENT: Bearing.RECORD,
}

#: Every kind of event of our own: the record it is read from (None: any), and its bearing. A fact
#: of the user's own never changes anything.
EVENTS: Mapping[str, tuple[Kind | None, Bearing]] = {
    "surefoot.epoch.began": (None, Bearing.RECORD),
    "surefoot.checkpoint.saved": (Kind.CHECKPOINT, Bearing.STATE),
    "surefoot.writes.stored": (Kind.WRITES, Bearing.STATE),
    "surefoot.approval.asked": (Kind.WRITES, Bearing.STATE),
    "surefoot.approval.passed_up": (Kind.WRITES, Bearing.STATE),
    "surefoot.approval.answered": (Kind.WRITES, Bearing.STATE),
    "surefoot.effect.started": (Kind.EFFECT, Bearing.STATE),
    "surefoot.effect.retried": (Kind.EFFECT, Bearing.STATE),
    "surefoot.effect.noted": (Kind.EFFECT, Bearing.RECORD),
    "surefoot.effect.succeeded": (Kind.EFFECT, Bearing.STATE),
    "surefoot.effect.failed": (Kind.EFFECT, Bearing.STATE),
    "surefoot.effect.in_doubt": (Kind.EFFECT, Bearing.STATE),
    "surefoot.effect.needs_review": (Kind.EFFECT, Bearing.STATE),
    "surefoot.effect.compensated": (Kind.EFFECT, Bearing.STATE),
    "surefoot.effect.reconciled": (Kind.EFFECT, Bearing.STATE),
    "surefoot.effect.asked": (Kind.EFFECT, Bearing.RECORD),
    "surefoot.effect.conflicted": (Kind.EFFECT, Bearing.RECORD),
    "surefoot.effect.adopted": (Kind.EFFECT, Bearing.STATE),
    "surefoot.effect.decided": (Kind.EFFECT, Bearing.STATE),
    "surefoot.read.recorded": (Kind.EFFECT, Bearing.RECORD),
    "surefoot.decision.carried_out": (Kind.DECISION, Bearing.STATE),
    "surefoot.thread.pruned": (Kind.PRUNE, Bearing.STATE),
    "surefoot.thread.restored": (Kind.RESTORE, Bearing.STATE),
    "surefoot.thread.adopted": (Kind.RESTORE, Bearing.STATE),
    "surefoot.thread.copied": (Kind.FORK, Bearing.RECORD),
    "surefoot.thread.deleted": (Kind.TOMBSTONE, Bearing.STATE),
    "surefoot.key.retired": (Kind.KEY_CHANGE, Bearing.RECORD),
}

#: Versions of the facts of each kind of our own, and the steps between them.
EVENT_UPCASTERS = Upcasters(dict.fromkeys(EVENTS, 1), {})

Body: TypeAlias = (
    CheckpointBody
    | WritesBody
    | EffectBody
    | DecisionBody
    | ProvenanceBody
    | PruneBody
    | TombstoneBody
    | RestoreBody
    | KeyChangeBody
    | EventBody
)


def bearing_of(kind: str) -> Bearing:
    """Whether an event of this kind changes what the thread is.

    Raises:
        UnknownEvent: A kind of our own that this release does not know.
    """
    if not kind.startswith(OURS):
        return Bearing.RECORD
    if kind not in EVENTS:
        raise _unknown(kind, "this release knows no such kind")
    return EVENTS[kind][1]


# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: What; kinds of our own begin with ``surefoot.``, others are the user's facts.
        seq: Number of the record that says so.
        epoch: Fencing epoch of the worker that wrote it.
        at_us: When, in microseconds since the epoch on the worker's clock; for people only, and 0
            where the record does not say.
        facts: Plain data, without values of the user's state.
        schema: Version of the facts; for a user's fact that of its payload.
        value: The payload of a user's fact, the evidence of a reconciliation, otherwise None. No
            fold looks at it.
    """

    kind: str
    seq: int
    epoch: int
    at_us: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    schema: int = 1
    value: Any = None

    @property
    def bearing(self) -> Bearing:
        """Whether it changes what the thread is."""
        return bearing_of(self.kind)

    def document(self) -> dict[str, Any]:
        """As a document that `parse` reads again, also in a later release."""
        return {
            "kind": self.kind,
            "schema": self.schema,
            "seq": self.seq,
            "epoch": self.epoch,
            "at_us": self.at_us,
            "facts": dict(self.facts),
            "value": self.value,
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Event:
        """Reads a document of this or an earlier release.

        Raises:
            UnknownEvent: A kind or a schema of our own that this release does not know.
            Misuse: It is no such document.
        """
        try:
            kind, schema, facts = document["kind"], document["schema"], document["facts"]
            at = {name: document[name] for name in ("seq", "epoch", "at_us")}
        except (KeyError, TypeError):
            raise Misuse(field="document", reason="is not the document of an event") from None
        numbers = [schema, *at.values()]
        if not (
            isinstance(kind, str)
            and isinstance(facts, Mapping)
            and all(type(n) is int for n in numbers)
        ):
            raise Misuse(field="document", reason="is not the document of an event")
        if kind.startswith(OURS):
            if not EVENT_UPCASTERS.knows(kind, schema):
                raise _unknown(kind, "this release does not know it", schema, at["seq"])
            facts = EVENT_UPCASTERS.raised(kind, schema, dict(facts))
            schema = 1
        else:
            decide_kind(kind)
        return cls(kind, **at, facts=facts, schema=schema, value=document.get("value"))


# --- what a user may put into the trail --------------------------------------------------------


def decide_kind(kind: object) -> str:
    """Decides whether a kind may stand for a fact of the user's own.

    Raises:
        Misuse: It is no text of 1 to 64 letters, digits, dots, underscores and hyphens, or it is
            one of ours.
    """
    if not isinstance(kind, str) or _NAME.match(kind) is None:
        raise Misuse(
            field="kind", reason="must be 1 to 64 of the characters A-Z a-z 0-9 . _ - (ASCII)"
        )
    if kind.startswith(OURS):
        raise Misuse(field="kind", reason=f"begins with {OURS!r}, which is reserved")
    return kind


def decide_payload(payload: object, *, kind: str) -> None:
    """Decides whether a payload is plain data, which every release and language can read.

    Raises:
        NotStorable: Something in it is not; names the path, never the value.
    """
    waiting: list[tuple[object, str, int]] = [(payload, "$", 0)]
    while waiting:
        value, path, depth = waiting.pop()
        problem = ""
        if depth > _DEEPEST:
            problem = f"is nested deeper than {_DEEPEST}"
        elif type(value) in (list, tuple):
            waiting += [(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]  # type: ignore[arg-type,var-annotated]
        elif type(value) is dict:
            if all(type(name) is str for name in value):
                waiting += [(v, f"{path}[{n!r}]", depth + 1) for n, v in value.items()]
            else:
                problem = "has a name that is no text"
        elif value is not None and type(value) not in (bool, int, float, str, bytes):
            problem = (
                "is no plain data (None, bool, int, float, str, bytes, and lists, tuples and "
                "dicts of these)"
            )
        if problem:
            raise NotStorable(
                channel=f"(payload of {kind})",
                path=path,
                type_name=type(value).__name__,
                reason=problem,
            )


def decide_version(version: object) -> int:
    """Decides whether a number may be the version of a payload.

    Raises:
        Misuse: It may not.
    """
    if isinstance(version, bool) or not isinstance(version, int) or not 0 < version < _VERSIONS:
        raise Misuse(field="schema", reason=f"must be a number from 1 to {_VERSIONS - 1}")
    return version


# --- from records to events --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Special:
    """What a batch of writes says about approvals.

    Attributes:
        task_id: Whose.
        asked: Ids of the interrupts that it raises.
        answered: It carries answers.
    """

    task_id: str
    asked: tuple[str, ...]
    answered: bool


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """A verified record, as far as the trail needs it.

    Attributes:
        seq: Its number.
        epoch: Of its writer.
        digest: Its digest, which names a branch that it begins.
        kind: Of the record.
        body: What it says.
        at_us: When, where the body does not say so itself (a checkpoint's time stamp).
        source: For a checkpoint: ``metadata["source"]``.
        rest: For a checkpoint: nothing is left to run after it.
        specials: For writes: what their batches say about approvals, in their order.
        value: Payload or evidence, decoded.
    """

    seq: int
    epoch: int
    digest: bytes
    kind: Kind
    body: Body
    at_us: int = 0
    source: str | None = None
    rest: bool = False
    specials: tuple[Special, ...] = ()
    value: Any = None


@dataclass(frozen=True, slots=True)
class Before:
    """What was known before a record.

    Attributes:
        epoch: Of the record before; 0 when it is the first one.
        started: Number of effects that were started and not ended.
        state: State of the effect that the record is about; None when it is its first.
        attempt: Its attempt.
        waiting: By id of each approval that waits: the checkpoints and tasks it was asked under,
            as (namespace, checkpoint id, task id).
    """

    epoch: int = 0
    started: int = 0
    state: str | None = None
    attempt: int = 0
    waiting: Mapping[str, frozenset[tuple[str, str, str]]] = field(default_factory=dict)


def decide_event(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    """Decides which events a record tells, in their order.

    Args:
        facts: The record.
        before: What the records below it have told.

    Raises:
        UnknownEvent: It says something that this release does not know.
    """
    tell = _TELLERS.get(facts.kind)
    if tell is None or BEARINGS.get(facts.kind) is None:
        raise _unknown(chr(facts.kind), "this release writes no such record", seq=facts.seq)
    told = tell(facts, before)
    if facts.epoch == before.epoch:
        return told
    began = _event(
        facts,
        "epoch.began",
        before=before.epoch,
        silent=max(facts.epoch - before.epoch - 1, 0),
        left_started=before.started,
    )
    at_us = max((event.at_us for event in told), default=0)
    return (_timed(began, at_us), *told)


def _unknown(
    kind: str, reason: str, schema: int | None = None, seq: int | None = None
) -> UnknownEvent:
    return UnknownEvent(kind=kind, schema=schema, seq=seq, reason=reason)


def _event(facts: RecordFacts, name: str, *, at_us: int = 0, **more: Any) -> Event:
    return Event(OURS + name, facts.seq, facts.epoch, at_us or facts.at_us, more)


def _timed(event: Event, at_us: int) -> Event:
    return Event(event.kind, event.seq, event.epoch, at_us, event.facts)


def _tell_checkpoint(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    del before
    body = _of(facts, CheckpointBody)
    return (
        _event(
            facts,
            "checkpoint.saved",
            namespace=body.namespace,
            checkpoint_id=body.checkpoint_id,
            parent_id=body.parent_id,
            step=body.step,
            branch=(facts.digest if body.born else body.branch).hex(),
            again=body.extra.get("of") is not None,
            source=facts.source,
            rest=facts.rest,
            folds=[slot.hex() for slot in body.folds],
        ),
    )


def _tell_writes(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    body = _of(facts, WritesBody)
    place = {"namespace": body.namespace, "checkpoint_id": body.checkpoint_id}
    told = [
        _event(
            facts,
            "writes.stored",
            at_us=body.at_us,
            **place,
            writes=[[b.task_id, w.idx, w.channel] for b in body.batches for w in b.writes],
        )
    ]
    waiting = dict(before.waiting)
    for special in facts.specials:
        here = (body.namespace, body.checkpoint_id, special.task_id)
        if special.answered:
            for name in _answers(here, waiting):
                del waiting[name]
                told.append(_event(facts, "approval.answered", at_us=body.at_us, id=name, **place))
        for name in special.asked:
            asked = waiting.get(name)
            if asked is not None and here in asked:
                continue  # asked once more by a node that ran again
            waiting[name] = (asked or frozenset()) | {here}
            what = "approval.asked" if asked is None else "approval.passed_up"
            told.append(
                _event(facts, what, at_us=body.at_us, id=name, **place, task_id=special.task_id)
            )
    return tuple(told)


def _answers(
    here: tuple[str, str, str], waiting: Mapping[str, frozenset[tuple[str, str, str]]]
) -> list[str]:
    """Ids of what waits and is answered by a write here; one of no task answers any."""
    namespace, checkpoint_id, task_id = here
    return [
        name
        for name, places in waiting.items()
        if any(
            (ns, checkpoint) == (namespace, checkpoint_id) and task_id in (task, _ANY_TASK)
            for ns, checkpoint, task in places
        )
    ]


#: By state of an effect: the event, and the rule by which a record gets there.
_OUTCOMES = {
    "succeeded": ("effect.succeeded", "E2"),
    "failed": ("effect.failed", "E8"),
    "in_doubt": ("effect.in_doubt", "E8"),
    "needs_review": ("effect.needs_review", "E8"),
    "compensated": ("effect.compensated", "E2"),
}
#: By outcome of a lookup: the rule that decides what it is worth.
_LOOKED_UP = {"succeeded": "E8", "absent": "E5", "needs_review": "E8"}
#: By answer of a lookup that settled nothing: the rule that says so.
_ASKED = {"absent": "E5", "unknown": "E8"}
_DECIDED = frozenset({"succeeded", "absent", "abandoned", "compensated"})


def _tell_effect(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    body = _of(facts, EffectBody)
    name, rule = _effect_name(facts, body, before)
    more = {
        "adopted": body.adopted.hex(),
        "compensates": body.compensates.hex(),
        "operation": body.operation,
        "caller": body.caller,
        "answer": body.answer if body.only_asked else "",
        "why": body.why,
    }
    told = _event(
        facts,
        name,
        at_us=body.asked_us or body.at_us,
        effect=body.name,
        state=body.state,
        attempt=body.attempt,
        receiver=body.receiver,
        slot=body.slot.hex(),
        key=body.key,
        namespace=body.namespace,
        checkpoint_id=body.checkpoint_id,
        position=body.position,
        source=body.source,
        rule=rule,
        error=body.error,
        receipt=body.receipt is not None,
        evidence=body.evidence is not None,
        **{name: value for name, value in more.items() if value},
    )
    value = facts.value if body.only_asked or body.source == "reconcile" else None
    return (Event(told.kind, told.seq, told.epoch, told.at_us, told.facts, value=value),)


def _effect_name(facts: RecordFacts, body: EffectBody, before: Before) -> tuple[str, str]:
    if body.receiver == READ and body.state == "succeeded":
        return "read.recorded", "E2"
    if body.source not in ("body", "reconcile", "decision"):
        raise _unknown(OURS + "effect", f"unknown source {body.source!r}", seq=facts.seq)
    if body.only_asked:
        if body.answer not in _ASKED:
            raise _unknown(OURS + "effect", f"unknown answer {body.answer!r}", seq=facts.seq)
        return "effect.asked", _ASKED[body.answer]
    if body.adopted and before.state is None:
        return "effect.adopted", "E4b"
    as_before = (before.state, before.attempt) == (body.state, body.attempt)
    if body.conflict is not None and as_before:
        return "effect.conflicted", "E4"
    if body.state == "started":
        if as_before:
            return "effect.noted", "E2"
        return ("effect.retried" if body.attempt > 1 else "effect.started"), "E2"
    if body.source == "reconcile" and body.state in _LOOKED_UP:
        # Not found where it may have been sent under another key: the horizon decided.
        lost = body.state == "needs_review" and body.answer == "absent"
        return "effect.reconciled", "E6" if lost else _LOOKED_UP[body.state]
    if body.source == "decision" and body.state in _DECIDED:
        return "effect.decided", "R7"
    if body.state in _OUTCOMES and (body.source == "body" or body.state == "in_doubt"):
        return _OUTCOMES[body.state]
    raise _unknown(
        OURS + "effect",
        f"no event for the state {body.state!r} of the source {body.source!r}",
        seq=facts.seq,
    )


def _tell_decision(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    del before
    try:
        document = json.loads(_of(facts, DecisionBody).document)
        inner = document.get("decision", document)
        action = inner["action"]
    except (ValueError, AttributeError, LookupError, TypeError):
        raise _unknown(OURS + "decision", "it has another layout", seq=facts.seq) from None
    if action not in ACTIONS:
        raise _unknown(OURS + "decision", f"unknown action {action!r}", seq=facts.seq)
    shown = (
        *("reason", "nonce", "slot", "outcome", "evidence", "to_seq", "horizon"),
        *("not_before", "expires"),
    )
    return (
        _event(
            facts,
            "decision.carried_out",
            action=action,
            key_id=document.get("key_id"),
            **{name: inner[name] for name in shown if inner.get(name) is not None},
        ),
    )


def _tell_prune(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    del before
    body = _of(facts, PruneBody)
    branch = facts.digest.hex() if body.cuts else None
    return (_event(facts, "thread.pruned", reason=body.reason, kept=len(body.kept), branch=branch),)


def _tell_restore(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    del before
    body = _of(facts, RestoreBody)
    name = "thread.adopted" if body.lost else "thread.restored"
    return (_event(facts, name, to_seq=body.to_seq, horizon=body.horizon),)


def _tell_fork(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    del before
    body = _of(facts, ProvenanceBody)
    return (
        _event(
            facts,
            "thread.copied",
            source_thread=body.source_thread,
            source_incarnation=body.source_incarnation,
            source_seq=body.source_seq,
            source_digest=body.source_digest.hex(),
        ),
    )


def _tell_tombstone(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    del before
    return (_event(facts, "thread.deleted", reason=_of(facts, TombstoneBody).reason),)


def _tell_key(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    del before
    body = _of(facts, KeyChangeBody)
    return (
        _event(
            facts,
            "key.retired",
            key_id=body.key_id,
            valid_up_to=body.valid_up_to,
            compromised=body.compromised,
        ),
    )


def _tell_fact(facts: RecordFacts, before: Before) -> tuple[Event, ...]:
    del before
    body = _of(facts, EventBody)
    try:
        decide_kind(body.kind)
    except Misuse:
        raise _unknown(body.kind, "it is no kind of a user's fact", seq=facts.seq) from None
    return (Event(body.kind, facts.seq, facts.epoch, body.at_us, {}, body.version, facts.value),)


_TELLERS: Mapping[Kind, Callable[[RecordFacts, Before], tuple[Event, ...]]] = {
    Kind.CHECKPOINT: _tell_checkpoint,
    Kind.WRITES: _tell_writes,
    Kind.EFFECT: _tell_effect,
    Kind.DECISION: _tell_decision,
    Kind.PRUNE: _tell_prune,
    Kind.RESTORE: _tell_restore,
    Kind.FORK: _tell_fork,
    Kind.TOMBSTONE: _tell_tombstone,
    Kind.KEY_CHANGE: _tell_key,
    Kind.EVENT: _tell_fact,
}


def _of(facts: RecordFacts, cls: type[Any]) -> Any:
    if not isinstance(facts.body, cls):
        raise _unknown(chr(facts.kind), f"its body is no {cls.__name__}", seq=facts.seq)
    return facts.body
