"""What a thread is, folded from its events.

A fold looks at the events and their order, at no clock and no values: folding twice gives the
same, in every process. It begins at the beginning of a chain. What a prune has dropped and a
restore has given up is not on the chain any more, so it is not in the events either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.errors import Misuse, UnknownEvent
from surefoot.rules.events import OURS, Before, Event, RecordFacts, bearing_of, decide_event

__all__ = ["Approval", "EffectState", "Head", "ThreadState", "Trail", "fold"]

_DOUBTFUL = frozenset({"in_doubt", "needs_review"})
_ERROR = "__error__"


@dataclass(frozen=True, slots=True)
class Head:
    """The latest checkpoint of a namespace.

    Attributes:
        checkpoint_id: Its id.
        parent_id: The checkpoint it was put after.
        step: Its step.
        branch: Id of its branch, hex; empty for the root branch.
        source: ``input``, ``loop``, ``update``, ``fork``, or None when its maker gave none.
        rest: Nothing is left to run after it.
        writes: Number of pending writes on it that stand.
        failed: An error of a task is among them.
    """

    checkpoint_id: str
    parent_id: str | None
    step: int
    branch: str
    source: str | None
    rest: bool
    writes: int = 0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class EffectState:
    """What the newest record of an effect says.

    Attributes:
        name: Name of the effect.
        state: ``started``, ``succeeded``, ``failed``, ``in_doubt``, ``absent``,
            ``needs_review``, ``abandoned`` or ``compensated``.
        attempt: From 1.
        receiver: ``K``, ``L`` or ``N``.
        key: Key sent to the receiver.
        namespace: Of the checkpoint it ran under.
        checkpoint_id: That checkpoint.
        source: Who said so: ``body``, ``reconcile`` or ``decision``.
        at_us: When, on the worker's clock; 0 when unknown.
        seq: Number of that record.
        adopted: Slot (hex) under which it was first recorded, when this one took it over.
    """

    name: str
    state: str
    attempt: int
    receiver: str
    key: str
    namespace: str
    checkpoint_id: str
    source: str
    at_us: int
    seq: int
    adopted: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a person (an interrupt), and its answer.

    Attributes:
        id: LangGraph's id of the interrupt.
        namespace: Where it was asked first.
        checkpoint_id: The checkpoint it was asked under.
        state: ``open``, ``answered``, or ``left``: the thread went on without an answer.
        asked_us: When it was asked, on the worker's clock; 0 when unknown.
        answered_us: When the answer was stored; None without one, 0 when unknown. An answer that
            names its interrupt is stored together with what the node made of it.
    """

    id: str
    namespace: str
    checkpoint_id: str
    state: str
    asked_us: int
    answered_us: int | None = None

    @property
    def latency_us(self) -> int | None:
        """Time from the question to the answer; None when the clocks do not tell."""
        if not self.asked_us or not self.answered_us or self.answered_us < self.asked_us:
            return None
        return self.answered_us - self.asked_us


@dataclass(frozen=True, slots=True)
class ThreadState:
    """What a thread is after some events.

    Attributes:
        seq: Number of the last record.
        epoch: Of its writer.
        status: ``empty``, ``open`` (running, or stopped in the middle: the journal cannot tell),
            ``waiting`` (for an answer), ``failed`` (a task raised), ``in_doubt`` (an effect under
            the latest checkpoint is), ``done``, ``frozen`` or ``deleted``.
        heads: Latest checkpoint of each namespace; ``""`` is the root graph.
        effects: By slot (hex).
        approvals: In the order in which they were asked.
        horizon: Highest step that a restore has tainted; None without one.
        facts: Number of the user's facts by kind.
        events: Number of events of our own by kind.
    """

    seq: int = 0
    epoch: int = 0
    status: str = "empty"
    heads: Mapping[str, Head] = field(default_factory=dict)
    effects: Mapping[str, EffectState] = field(default_factory=dict)
    approvals: tuple[Approval, ...] = ()
    horizon: int | None = None
    facts: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)

    @property
    def graph(self) -> tuple[Any, ...]:
        """What only events that change the thread can change."""
        return (self.status, self.heads, self.effects, self.approvals, self.horizon)

    @property
    def step(self) -> int | None:
        """Step of the root graph's latest checkpoint."""
        head = self.heads.get("")
        return None if head is None else head.step

    @property
    def handovers(self) -> int:
        """How often another epoch went on with the thread."""
        return max(self.events.get("surefoot.epoch.began", 0) - 1, 0)

    def effects_by_state(self) -> dict[str, int]:
        """Number of effects in each state; one that another place took over counts once."""
        newest: dict[str, EffectState] = {}
        for slot, found in self.effects.items():
            held = newest.get(found.adopted or slot)
            if held is None or found.seq > held.seq:
                newest[found.adopted or slot] = found
        return dict(sorted(Counter(e.state for e in newest.values()).items()))


def fold(events: Iterable[Event]) -> ThreadState:
    """Folds events, oldest first and from the beginning.

    Raises:
        UnknownEvent: One of our own that this release does not know.
        Misuse: They are not in the order of the chain.
    """
    folding = _Folding()
    for event in events:
        folding.take(event)
    return folding.frozen()


class Trail:
    """Reads a chain's records, oldest first, into events and into what they make of a thread."""

    def __init__(self) -> None:
        self._folding = _Folding()

    def take(self, facts: RecordFacts) -> tuple[Event, ...]:
        """The events that the next record tells.

        Raises:
            UnknownEvent: It says something that this release does not know.
        """
        told = decide_event(facts, self._folding.before(facts))
        for event in told:
            self._folding.take(event)
        return told

    def state(self) -> ThreadState:
        """What the thread is after the last record."""
        return self._folding.frozen()


class _Folding:
    """The state under way; frozen when it is asked for."""

    def __init__(self) -> None:
        self._seq = self._epoch = 0
        self._heads: dict[str, Head] = {}
        self._effects: dict[str, EffectState] = {}
        self._started: set[str] = set()
        self._approvals: list[Approval] = []
        #: Approvals that wait: where in the list, and under which checkpoints and tasks.
        self._waiting: dict[str, int] = {}
        self._places: dict[str, frozenset[tuple[str, str, str]]] = {}
        #: Channel of each standing write, by checkpoint, task and index; of the latest checkpoints
        #: and of those that are not stored yet.
        self._writes: dict[tuple[str, str], dict[tuple[str, int], str]] = {}
        self._horizon: int | None = None
        self._end: str | None = None
        self._facts: Counter[str] = Counter()
        self._events: Counter[str] = Counter()

    def before(self, facts: RecordFacts) -> Before:
        """What a record has to be judged by."""
        slot = getattr(facts.body, "slot", b"").hex()
        effect = self._effects.get(slot)
        return Before(
            epoch=self._epoch,
            started=len(self._started),
            state=None if effect is None else effect.state,
            attempt=0 if effect is None else effect.attempt,
            waiting=self._places,
        )

    def take(self, event: Event) -> None:
        """Folds one event."""
        bearing_of(event.kind)
        if event.seq < self._seq:
            raise Misuse(
                field="events",
                reason=f"event {event.seq} after {self._seq}; fold the oldest first",
            )
        self._seq, self._epoch = event.seq, event.epoch
        if not event.kind.startswith(OURS):
            self._facts[event.kind] += 1
            return
        self._events[event.kind] += 1
        room, _, name = event.kind.removeprefix(OURS).partition(".")
        apply = _EFFECTS.get(name) if room == "effect" else _APPLY.get(event.kind)
        if apply is not None:
            try:
                apply(self, event)
            except (KeyError, TypeError, ValueError):
                raise UnknownEvent(
                    kind=event.kind,
                    schema=event.schema,
                    seq=event.seq,
                    reason="its facts have another layout",
                ) from None

    # --- checkpoints and writes -----------------------------------------------------------------

    def saved(self, event: Event) -> None:
        facts = event.facts
        namespace, checkpoint_id = facts["namespace"], facts["checkpoint_id"]
        latest = self._heads.get(namespace)
        if facts["again"] and (latest is None or latest.checkpoint_id != checkpoint_id):
            return  # put again: it keeps its place, which is not the latest
        if latest is not None and latest.checkpoint_id != checkpoint_id:
            self._writes.pop((namespace, latest.checkpoint_id), None)
        self._heads[namespace] = Head(
            checkpoint_id=checkpoint_id,
            parent_id=facts["parent_id"],
            step=facts["step"],
            branch=facts["branch"],
            source=facts["source"],
            rest=facts["rest"],
        )
        self._count(namespace, checkpoint_id)
        if namespace == "" and not facts["again"]:
            for index in self._waiting.values():
                self._approvals[index] = replace(self._approvals[index], state="left")

    def stored(self, event: Event) -> None:
        place = (event.facts["namespace"], event.facts["checkpoint_id"])
        standing = self._writes.setdefault(place, {})
        for task_id, idx, channel in event.facts["writes"]:
            standing.setdefault((task_id, idx), channel)
        self._count(*place)

    def _count(self, namespace: str, checkpoint_id: str) -> None:
        head = self._heads.get(namespace)
        if head is not None and head.checkpoint_id == checkpoint_id:
            standing = self._writes.get((namespace, checkpoint_id), {})
            failed = _ERROR in standing.values()
            self._heads[namespace] = replace(head, writes=len(standing), failed=failed)

    # --- approvals ------------------------------------------------------------------------------

    def asked(self, event: Event) -> None:
        name = event.facts["id"]
        place = (
            event.facts["namespace"],
            event.facts["checkpoint_id"],
            event.facts["task_id"],
        )
        self._places = {**self._places, name: self._places.get(name, frozenset()) | {place}}
        if name not in self._waiting:
            self._waiting[name] = len(self._approvals)
            self._approvals.append(Approval(name, place[0], place[1], "open", event.at_us))
            return
        index = self._waiting[name]
        self._approvals[index] = replace(self._approvals[index], state="open")

    def answered(self, event: Event) -> None:
        name = event.facts["id"]
        if name not in self._waiting:
            raise Misuse(
                field="events",
                reason="an answer to a question that is not among them; fold from the beginning",
            )
        index = self._waiting.pop(name)
        self._places = {k: v for k, v in self._places.items() if k != name}
        self._approvals[index] = replace(
            self._approvals[index], state="answered", answered_us=event.at_us
        )

    # --- effects --------------------------------------------------------------------------------

    def effect(self, event: Event) -> None:
        facts = event.facts
        slot = facts["slot"]
        self._effects[slot] = EffectState(
            name=facts["effect"],
            state=facts["state"],
            attempt=facts["attempt"],
            receiver=facts["receiver"],
            key=facts["key"],
            namespace=facts["namespace"],
            checkpoint_id=facts["checkpoint_id"],
            source=facts["source"],
            at_us=event.at_us,
            seq=event.seq,
            adopted=facts.get("adopted", ""),
        )
        self._started.discard(facts.get("adopted", ""))
        if facts["state"] == "started":
            self._started.add(slot)
        else:
            self._started.discard(slot)

    # --- orders ---------------------------------------------------------------------------------

    def decided(self, event: Event) -> None:
        if event.facts["action"] == "abort":
            self._end = "frozen"

    def pruned(self, event: Event) -> None:
        head = self._heads.get("")
        if event.facts["branch"] is not None and head is not None:
            self._heads[""] = replace(head, branch=event.facts["branch"])

    def restored(self, event: Event) -> None:
        self._horizon = event.facts["horizon"]

    def deleted(self, event: Event) -> None:
        del event
        self._end = "deleted"

    # --- the whole ------------------------------------------------------------------------------

    def frozen(self) -> ThreadState:
        """The state as it is now."""
        return ThreadState(
            seq=self._seq,
            epoch=self._epoch,
            status=self._status(),
            heads=dict(sorted(self._heads.items())),
            effects=dict(self._effects),
            approvals=tuple(self._approvals),
            horizon=self._horizon,
            facts=dict(sorted(self._facts.items())),
            events=dict(sorted(self._events.items())),
        )

    def _status(self) -> str:
        head = self._heads.get("")
        if self._end is not None:
            return self._end
        here = {(ns, h.checkpoint_id) for ns, h in self._heads.items()}
        if any(
            e.state in _DOUBTFUL and (not here or (e.namespace, e.checkpoint_id) in here)
            for e in self._effects.values()
        ):
            return "in_doubt"
        if head is None:
            # A business operation (E4c) has a journal of its own, and no checkpoints.
            ended = "open" if self._started else "done"
            return ended if self._effects else "empty"
        if any(self._approvals[index].state == "open" for index in self._waiting.values()):
            return "waiting"
        if head.failed:
            return "failed"
        return "done" if head.rest and not head.writes else "open"


_Apply = Callable[[_Folding, Event], None]
_APPLY: Mapping[str, _Apply] = {
    "surefoot.checkpoint.saved": _Folding.saved,
    "surefoot.writes.stored": _Folding.stored,
    "surefoot.approval.asked": _Folding.asked,
    "surefoot.approval.passed_up": _Folding.asked,
    "surefoot.approval.answered": _Folding.answered,
    "surefoot.decision.carried_out": _Folding.decided,
    "surefoot.thread.pruned": _Folding.pruned,
    "surefoot.thread.restored": _Folding.restored,
    "surefoot.thread.adopted": _Folding.restored,
    "surefoot.thread.deleted": _Folding.deleted,
}
#: Every transition of an effect says its whole state.
_EFFECTS: Mapping[str, _Apply] = dict.fromkeys(
    (
        *("started", "retried", "succeeded", "failed", "in_doubt", "needs_review"),
        *("compensated", "reconciled", "adopted", "decided"),
    ),
    _Folding.effect,
)
