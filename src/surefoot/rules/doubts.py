"""Effects in doubt as a queue: which are open, which are in doubt, and which comes first."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RISKS", "DoubtFacts", "DoubtOrder", "decide_doubt", "decide_order", "is_open"]

#: From the least to the greatest.
RISKS = ("low", "normal", "high", "critical")
_CLOSED = frozenset({"succeeded", "failed", "absent", "compensated", "abandoned"})


def is_open(state: str) -> bool:
    """True for a state that leaves open what happened; one that is not known here does."""
    return state not in _CLOSED


@dataclass(frozen=True, slots=True)
class DoubtFacts:
    """What is known about a slot when somebody looks for doubts.

    Attributes:
        state: Of its newest record; None when the journal holds none.
        intent: B holds an intent of it (E5).
        live: A lease on the thread holds, and its holder is not proven dead.
        error: What the newest record says went wrong.
        announced: It may have been sent: its receiver needs no intent, B holds one or may have
            lost it. Otherwise a start was never sent (E5).
    """

    state: str | None
    intent: bool
    live: bool
    error: str | None = None
    announced: bool = True


def decide_doubt(facts: DoubtFacts) -> str | None:
    """Decides whether a slot is in doubt (rules R7, E8).

    A start is being carried out as long as its worker lives. What was recorded as in doubt or
    under review stays so, whoever holds the thread. An intent whose record is gone may have been
    sent.

    Returns:
        Why it is in doubt, for people; None when it is not.
    """
    if facts.state is None:
        return "an intent without its record: it may have been sent" if facts.intent else None
    if not is_open(facts.state):
        return None
    if facts.state == "started" and not facts.announced:
        return None
    if facts.state == "started":
        return None if facts.live else "it was started, and its worker is gone"
    if facts.state == "in_doubt":
        ended = f" ({facts.error})" if facts.error else ""
        return f"it ended without an answer of the receiver{ended}"
    if facts.state == "needs_review":
        return f"a lookup leaves it to a person: {facts.error or 'no reason was recorded'}"
    return f"it is recorded as {facts.state}, which this release does not know"


@dataclass(frozen=True, slots=True)
class DoubtOrder:
    """What the queue is sorted by.

    Attributes:
        overdue: Its deadline has passed.
        risk: One of `RISKS`.
        opened_us: When it was opened.
    """

    overdue: bool
    risk: str
    opened_us: int


def decide_order(order: DoubtOrder) -> tuple[bool, int, int]:
    """Decides what comes first: what is overdue, then the greater risk, then the older one.

    A risk that this release does not know counts as the greatest.
    """
    rank = RISKS.index(order.risk) if order.risk in RISKS else len(RISKS)
    return (not order.overdue, -rank, order.opened_us)
