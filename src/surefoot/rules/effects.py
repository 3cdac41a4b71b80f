"""Side effects: identity and every decision about running them (rules E1 to E9)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import quote

from surefoot.rules.envelope import tlv
from surefoot.rules.fingerprint import Unfingerprintable, fingerprint

__all__ = [
    "MAYBE_SENT",
    "OPERATION_PREFIX",
    "PROVEN_NOTHING",
    "Barrier",
    "BarrierFacts",
    "Call",
    "CallFacts",
    "Elsewhere",
    "FailureFacts",
    "Loose",
    "Position",
    "Receiver",
    "Verdict",
    "call_in",
    "decide_absent",
    "decide_adoption",
    "decide_barrier",
    "decide_call",
    "decide_expired",
    "decide_failure_stands",
    "decide_match",
    "decide_never_sent",
    "idempotency_key",
    "may_adopt",
    "operation_thread",
    "slot_of",
    "strip_task_ids",
]


class Receiver(Enum):
    """Class of the receiver, from what the user declared."""

    DEDUPLICATES = "K"
    CAN_BE_ASKED = "L"
    NEITHER = "N"
    SAME_DATABASE = "S"


# --- identity (E4, E9) -------------------------------------------------------------------------


def strip_task_ids(namespace: str) -> str:
    """A checkpoint namespace without task ids: ``a:id1|b:id2`` becomes ``a|b``.

    Task ids change on time travel and whenever the preceding checkpoint was lost.
    """
    return "|".join(part.split(":", 1)[0] for part in namespace.split("|"))


@dataclass(frozen=True, slots=True)
class Position:
    """The logical position of a call (rule E4).

    Attributes:
        tenant: Of the thread.
        thread: Id of the thread.
        incarnation: Life of the thread id.
        branch: Branch of the root checkpoint; empty for the root branch.
        steps: Step of each level's checkpoint, root first.
        namespace: With task ids removed.
        path: Task path, as text without ids.
        name: Name of the effect.
        call: Ordinal among this task's calls (int), or the explicit call id (str).
    """

    tenant: str
    thread: str
    incarnation: int
    branch: bytes
    steps: tuple[int, ...]
    namespace: str
    path: str
    name: str
    call: int | str

    def shown(self) -> str:
        """One readable line for operators."""
        where = f"{self.namespace or '(root)'} step {'.'.join(map(str, self.steps))}"
        return f"{where} task {self.path} call {self.call}"


def call_in(shown: str) -> str:
    """The call in a line made by `Position.shown`: its number, or its explicit id."""
    return shown.rpartition(" call ")[2]


def slot_of(position: Position) -> bytes:
    """32 bytes that name a position; arguments are no part of it."""
    call: tuple[str | int | bytes, ...]
    call = ("#", position.call) if isinstance(position.call, int) else ("id", position.call)
    return hashlib.sha256(
        tlv(
            "slot/v1",
            position.tenant,
            position.thread,
            position.incarnation,
            position.branch,
            tlv(*(step + 2**32 for step in position.steps)),
            position.namespace,
            position.path,
            position.name,
            *call,
        )
    ).digest()


def idempotency_key(purpose_key: bytes, slot: bytes) -> str:
    """The key sent to the receiver: a keyed digest of the identity (rule E9), 128 bits, hex."""
    return hmac.digest(purpose_key, tlv("idempotency/v1", slot), "sha256").hex()[:32]


#: What the names of journals of operations begin with; no thread of a user may.
OPERATION_PREFIX = "surefoot:operation:"


def operation_thread(name: str, operation_id: str) -> str:
    """Thread id of the journal of a business operation (rule E4c): one per effect and id."""
    return f"{OPERATION_PREFIX}{quote(name, safe='', errors='surrogatepass')}:{operation_id}"


# --- the barrier (E1) --------------------------------------------------------------------------


class Barrier(Enum):
    """Whether a call has to wait for its checkpoint."""

    WAIT = "wait"
    PASS = "pass"  # noqa: S105 - not a password
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class BarrierFacts:
    """Durability mode of the run, class of the receiver, and whether the call names an operation.

    Attributes:
        durability: ``sync``, ``async`` or ``exit``.
        receiver: Class of the receiver.
        named: The call has an ``operation_id`` (E4c), which needs no place in the graph.
    """

    durability: str
    receiver: Receiver
    named: bool = False


def decide_barrier(facts: BarrierFacts) -> Barrier:
    """Decides rule E1.

    Under ``sync`` and ``async`` an effect waits until the checkpoint it runs under is
    published. Under ``exit`` there is no such checkpoint: only a receiver that deduplicates on
    our key may be called, or an operation that is known by its own name.
    """
    if facts.durability != "exit":
        return Barrier.WAIT
    safe = facts.named or facts.receiver is Receiver.DEDUPLICATES
    return Barrier.PASS if safe else Barrier.REFUSE


# --- run, replay, reconcile, adopt, conflict or refuse (E3 to E6, E8) --------------------------


class Verdict(Enum):
    """What to do with a call."""

    RUN = "run"
    REPLAY = "replay"
    RECONCILE = "reconcile"
    ADOPT = "adopt"
    CONFLICT = "conflict"
    REFUSE = "refuse"


class Elsewhere(Enum):
    """Where an equal record is that no checkpoint of the branch has consumed (rule E4b)."""

    NOWHERE = "nowhere"
    HERE = "on this branch"
    FORK = "on another branch"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What is known about a slot when a call reaches it.

    Attributes:
        receiver: Class of the receiver.
        state: State of the slot's newest record; None when there is none.
        same_arguments: The recorded fingerprint equals the one of this call.
        intent: B holds an intent of this slot: it may have been sent (E5).
        tainted: A missing record is ambiguous (E3).
        lost: The step is part of a history that was given up, and nothing is recorded of the slot
            since: what is recorded may be older than what happened (E6).
        apart: What followed since is not that history again (new input, an update, a fork), so
            the slot may not be the one under which it was sent.
        elsewhere: Where an equal effect is recorded that the branch has not consumed (E4b).
        expired: The receiver's window is over, so the key it was sent with protects no more.
        can_ask: A lookup is declared; for a receiver that deduplicates it serves once expired.
    """

    receiver: Receiver
    state: str | None
    same_arguments: bool
    intent: bool
    tainted: bool
    lost: bool = False
    apart: bool = False
    elsewhere: Elsewhere = Elsewhere.NOWHERE
    expired: bool = False
    can_ask: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A verdict and its reason.

    Attributes:
        verdict: What to do.
        reason: For people.
        asks: For RECONCILE: ask the receiver; otherwise send again under the same key.
        may_run: For RECONCILE: a proven "absent" lets it run. Otherwise the question may have been
            asked under another key than it was sent with, and a person decides.
        forked: For REFUSE: only because the policy on forks says so; nothing is in doubt.
    """

    verdict: Verdict
    reason: str
    asks: bool = False
    may_run: bool = True
    forked: bool = False


#: States that prove that nothing happened.
PROVEN_NOTHING = frozenset({"failed", "absent"})
#: States in which it may have been sent, and nobody has judged it yet.
MAYBE_SENT = frozenset({"started", "in_doubt"})


def decide_call(facts: CallFacts, on_fork: str = "adopt") -> Call:
    """Decides what a call does; the whole table of rules E3, E4, E4b, E5 and E8.

    ================  =========================  =======================  ======================
    record            K (deduplicates)           L (can be asked)         N (neither)
    ================  =========================  =======================  ======================
    none              run                        run, or ask if intent    run, or refuse if intent
    none, an equal    adopt                      adopt, or ask if intent  adopt, or refuse if
    one elsewhere                                                         intent
    failed, absent    run                        run                      run
    succeeded         replay                     replay                   replay
    started           send again, same key       ask, or run if no        refuse, or run if no
                                                 intent                   intent
    in_doubt          send again, same key       ask                      refuse
    needs_review      refuse                     refuse                   refuse
    ================  =========================  =======================  ======================

    "Send again" and "ask" are the two ways to reconcile. Once the receiver's window is over, K is
    asked where it can be, and refused where it cannot. Other arguments than recorded are a
    conflict, except after a proven failure. In a step that was lost (E6) every intent may have
    been lost as well: it counts as if there were one, a recorded "nothing happened" may be older
    than what did, and where the history since is another one, a missing record stops K as well and
    L does not run on "absent".

    Class S (same database) has no start and no intent: its outcome and its rows are one commit, so
    no record means that nothing happened, also after a restore, which takes both back. It runs,
    is adopted, or replays; anything open was recorded by another class, or by a body that ended its
    own transaction, and is refused.

    Args:
        facts: What is known.
        on_fork: What an equal record on another branch means: ``adopt`` it, ``execute`` anew, or
            ``refuse``.
    """
    if decide_never_sent(facts.receiver, facts.state, intent=facts.intent or facts.lost):
        # As if it had failed: nothing can have happened, whatever the arguments were.
        return _decide_elsewhere(facts, on_fork) or Call(
            Verdict.RUN, "started without an intent: never sent"
        )
    state = facts.state
    if facts.receiver is Receiver.SAME_DATABASE:
        facts = replace(facts, lost=False)
    if facts.lost and not facts.intent:
        facts = replace(facts, intent=True)
    if state is None:
        return _decide_elsewhere(facts, on_fork) or _decide_missing(facts)
    if state in PROVEN_NOTHING and facts.lost:
        return _decide_open(facts, state)
    if state in PROVEN_NOTHING:
        return _decide_elsewhere(facts, on_fork) or Call(
            Verdict.RUN, f"the last attempt is recorded as {state}: nothing happened"
        )
    if not facts.same_arguments:
        return Call(Verdict.CONFLICT, f"the recorded call is {state} with other arguments")
    if state == "succeeded":
        return Call(Verdict.REPLAY, "recorded as succeeded")
    if state in MAYBE_SENT:
        return _decide_open(facts, state)
    if state == "abandoned":
        return Call(Verdict.REFUSE, "abandoned by decision; another decision can settle it")
    return Call(Verdict.REFUSE, f"recorded as {state}; a person decides")


def decide_never_sent(receiver: Receiver, state: str | None, *, intent: bool) -> bool:
    """Decides whether a start proves that nothing was sent: L and N announce it in B first (E5)."""
    announced = receiver in (Receiver.CAN_BE_ASKED, Receiver.NEITHER)
    return state == "started" and announced and not intent


def _decide_elsewhere(facts: CallFacts, on_fork: str) -> Call | None:
    """Rule E4b; an intent of the slot itself comes first, because something was sent from it."""
    if facts.elsewhere is Elsewhere.NOWHERE or facts.intent:
        return None
    if facts.elsewhere is Elsewhere.HERE:
        return Call(Verdict.ADOPT, "an equal call whose task was never folded is recorded")
    if on_fork == "execute":
        return None
    if on_fork == "refuse":
        return Call(Verdict.REFUSE, "an equal call is recorded on another branch", forked=True)
    return Call(Verdict.ADOPT, "an equal call is recorded on another branch")


def _decide_missing(facts: CallFacts) -> Call:
    if facts.receiver is Receiver.DEDUPLICATES and facts.lost and facts.apart:
        return Call(
            Verdict.REFUSE,
            "the step was lost, and what followed is another history: the key may not be the one "
            "it was sent with",
        )
    if facts.receiver is Receiver.DEDUPLICATES:
        return Call(Verdict.RUN, "no record; the receiver deduplicates on the key")
    if not facts.intent:
        return Call(Verdict.RUN, "no record and no intent: never sent")
    if facts.receiver is Receiver.CAN_BE_ASKED:
        return Call(
            Verdict.RECONCILE,
            "an intent without its record: it may have been sent",
            asks=True,
            may_run=not (facts.lost and facts.apart),
        )
    return Call(Verdict.REFUSE, "an intent without its record, and nobody can be asked")


def _decide_open(facts: CallFacts, state: str) -> Call:
    if facts.receiver is Receiver.DEDUPLICATES:
        return _decide_again(facts, state)
    if facts.receiver is Receiver.SAME_DATABASE:
        return Call(Verdict.REFUSE, f"recorded as {state}, by another class than it has now")
    if facts.receiver is Receiver.CAN_BE_ASKED:
        reason = f"recorded as {state}; the receiver can be asked"
        return Call(Verdict.RECONCILE, reason, asks=True)
    return Call(Verdict.REFUSE, f"recorded as {state}, and nobody can be asked")


def _decide_again(facts: CallFacts, state: str) -> Call:
    """Class K: the key protects within the receiver's window only (case 20)."""
    if not facts.expired:
        reason = f"recorded as {state}; the receiver deduplicates on the key"
        return Call(Verdict.RECONCILE, reason)
    reason = f"recorded as {state}, and the receiver's window is over"
    if facts.can_ask:
        return Call(Verdict.RECONCILE, f"{reason}; it can be asked", asks=True)
    return Call(Verdict.REFUSE, f"{reason}, so the key protects no more")


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """What is known of a proven failure when its call is made again.

    Attributes:
        not_sent: The body said so itself, by `NotSent`.
        ended: It ended the task: nobody caught it.
        passed: A later effect of the same task happened, or may have.
    """

    not_sent: bool
    ended: bool
    passed: bool


def decide_failure_stands(facts: FailureFacts) -> bool:
    """Decides whether a call that failed before has to fail again (rules E4, E8).

    A proven failure is retryable, unless the node has caught it and gone on to something else that
    happened: then to make the call again would do both.
    """
    return facts.not_sent and facts.passed and not facts.ended


#: How far the clocks of two workers may differ before an age between them proves nothing.
CLOCK_SKEW_US = 300_000_000


def decide_expired(*, window_us: int | None, since_us: int, now_us: int) -> bool:
    """Decides whether a receiver may have forgotten a key that was first sent at ``since_us``.

    Both times are wall clocks, maybe of two workers. An age that cannot be (a record from
    the future, beyond what clocks differ) proves nothing, so the window counts as over.
    """
    if window_us is None:
        return False
    age_us = now_us - since_us
    return age_us >= window_us or age_us < -CLOCK_SKEW_US


# --- adoption (E4b) ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loose:
    """An effect that was recorded and that no checkpoint of the branch has consumed.

    Attributes:
        name: Name of the effect.
        fingerprint: Of its arguments.
        state: State of its newest record.
        fork: It happened on another branch.
    """

    name: str
    fingerprint: bytes
    state: str
    fork: bool


#: What may have happened; a proven nothing, or something undone, has nothing to adopt.
_ADOPTABLE = frozenset({"started", "in_doubt", "succeeded", "needs_review", "abandoned"})


def may_adopt(found: Loose) -> bool:
    """True for an effect that a later call may take over: it happened, or it may have."""
    return found.state in _ADOPTABLE


def decide_adoption(
    name: str, arguments: bytes, loose: Sequence[Loose], on_fork: str = "adopt"
) -> int | None:
    """Decides which unconsumed effect a call at a fresh slot is (rule E4b): the oldest equal one.

    Where effects of other branches are not adopted, those of this branch come first.

    Args:
        name: Name of the effect that is called.
        arguments: Fingerprint of the call.
        loose: Unconsumed effects, oldest first.
        on_fork: What an equal record on another branch means, as for `decide_call`.

    Returns:
        Its index, or None.
    """
    equal = [
        index
        for index, found in enumerate(loose)
        if (found.name, found.fingerprint) == (name, arguments) and may_adopt(found)
    ]
    here = [index for index in equal if not loose[index].fork]
    chosen = equal if on_fork == "adopt" else here or equal
    return chosen[0] if chosen else None


# --- what a lookup's answer is worth (E5, E8) --------------------------------------------------


def decide_match(compare: Sequence[str], arguments: Mapping[str, Any], evidence: Any) -> str | None:
    """Decides whether what a lookup found is this effect.

    Args:
        compare: Names of the semantic fields.
        arguments: Arguments of the call by name.
        evidence: What the lookup found, a mapping or an object with these attributes.

    Returns:
        None when all fields are equal, otherwise a sentence that names the first one that
        differs or is missing (without values).
    """
    for name in compare:
        if name not in arguments:
            return f"compare names {name!r}, which is no argument of the effect"
        if isinstance(evidence, Mapping):
            if name not in evidence:
                return f"the evidence lacks {name!r}"
            found = evidence[name]
        elif hasattr(evidence, name):
            found = getattr(evidence, name)
        else:
            return f"the evidence lacks {name!r}"
        if not _same(found, arguments[name]):
            return f"{name!r} differs"
    return None


def _same(found: Any, wanted: Any) -> bool:
    """Equal as arguments are: by their canonical encoding."""
    try:
        return fingerprint(found, effect="") == fingerprint(wanted, effect="")
    except Unfingerprintable:
        return False


def decide_absent(*, strong: bool, reads: int, settled: bool) -> bool:
    """Decides whether "absent" counts (rules E5, E8).

    Never before the settling time has passed, because an earlier holder's request may still be
    under way; then at once from a lookup declared strong, otherwise after a second read.
    """
    return settled and (strong or reads >= 2)
