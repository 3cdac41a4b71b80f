"""What a writer concludes when a gate or a compare-and-set did not answer "yes" (P3, P4)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

__all__ = ["GateFacts", "PublishFacts", "Then", "decide_gate", "decide_publish"]


class Then(Enum):
    """What follows."""

    COMMITTED = "committed"
    AGAIN = "again"
    RELOAD = "reload"
    FENCED = "fenced"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class GateFacts:
    """A's head row was not as the writer expected it.

    Attributes:
        our_epoch: Epoch under which we write.
        mark_epoch: Epoch in B now; None when B has no mark any more.
        first_write: Nothing of this session is stored yet, so an honest orphan of an earlier
            epoch may have moved the head row since we loaded.
        stored_epoch: Epoch of A's head row now; None when there is none.
        stored_is_ours: A's head row now is exactly what this append would have made it.
        parent_stored: The record that the append follows is still stored. A failover may have
            lost it together with everything after it. For an order: what it names is stored.
        ordered: The append carries out an operator's order (a restore, a deletion), which takes
            the head row over as it is, whoever edited it: only B says whose the thread is.
    """

    our_epoch: int
    mark_epoch: int | None
    first_write: bool
    stored_epoch: int | None
    stored_is_ours: bool
    parent_stored: bool
    ordered: bool = False


def decide_gate(facts: GateFacts) -> Then:
    """Decides step P3 after zero rows.

    B's epoch moved: fenced. Our own record is already there (the reply was lost): committed.
    Before our first write the head row belongs to an earlier epoch, and the record that ours
    follows is still there: re-base over the orphan. An order re-bases over any head row. Everything
    else is a database that was put back or edited.
    """
    if facts.mark_epoch is None:
        return Then.ROLLBACK
    if facts.mark_epoch != facts.our_epoch:
        return Then.FENCED
    if facts.stored_is_ours:
        return Then.COMMITTED
    if not (facts.first_write and facts.parent_stored):
        return Then.ROLLBACK
    if facts.ordered:
        return Then.RELOAD
    if facts.stored_epoch is not None and facts.stored_epoch < facts.our_epoch:
        return Then.RELOAD
    return Then.ROLLBACK


@dataclass(frozen=True, slots=True)
class PublishFacts:
    """The mark after a compare-and-set that failed or was not answered.

    Attributes:
        our_epoch: Epoch under which we publish.
        mark_epoch: Epoch in B now; None when B has no mark any more.
        mark_digest: Digest in B now.
        old_digest: Digest we expected.
        new_digest: Digest we wanted.
        later_digests: Digests that this session published or tried to publish after it.
    """

    our_epoch: int
    mark_epoch: int | None
    mark_digest: bytes
    old_digest: bytes
    new_digest: bytes
    later_digests: Collection[bytes] = ()


def decide_publish(facts: PublishFacts) -> Then:
    """Decides step P4 after reading the mark back.

    Other epoch: fenced. Our digest, or a later one of ours: committed. Still the old digest
    (also when only intents or the lease were to change): send again, which is idempotent.
    Anything else: the mark was rolled back or edited, stop.
    """
    if facts.mark_epoch is None:
        return Then.ROLLBACK
    if facts.mark_epoch != facts.our_epoch:
        return Then.FENCED
    if facts.mark_digest == facts.old_digest:
        return Then.AGAIN
    if facts.mark_digest == facts.new_digest or facts.mark_digest in facts.later_digests:
        return Then.COMMITTED
    return Then.ROLLBACK
