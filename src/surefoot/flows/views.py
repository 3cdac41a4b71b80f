"""Looking at a thread: read B, then A; look at B again before any alarm (readers' rule).

A reader takes no epoch, is never fenced, and never alarms in honest use: when B moved while A
was being read, it reads again.
"""

from __future__ import annotations

from surefoot.errors import RollbackDetected, TamperDetected
from surefoot.flows.chain import Chain
from surefoot.flows.verdict import refusal
from surefoot.ports import Mark, Ports, ThreadRow
from surefoot.rules.envelope import Identity, Link
from surefoot.rules.resume import ResumeFacts, Verdict, decide_resume

__all__ = ["FIRST_PAGE_FRAMES", "gather", "look"]

#: Frames read with the thread's row; a resume seldom needs more.
FIRST_PAGE_FRAMES = 6
_TRIES = 8


def look(ports: Ports, thread: str) -> Chain | None:
    """The verified chain of a thread for a reader, or None when there is nothing to see.

    Raises:
        RollbackDetected: A is behind B (R3).
        TamperDetected: Something does not verify (R4, R6).
        ResumeRefused: Stored, never witnessed (R2).
    """
    mark = ports.marks.read(ports.tenant, thread)
    for _ in range(_TRIES):
        try:
            chain, facts = gather(ports, thread, mark)
            decision = decide_resume(facts)
            if decision.verdict is not Verdict.REFUSE:
                return chain
            alarm: Exception = refusal(thread, decision, facts)
        except (RollbackDetected, TamperDetected) as error:
            alarm = error
        again = ports.marks.read(ports.tenant, thread)
        if _same(mark, again):
            raise alarm
        mark = again
    raise alarm


def _same(one: Mark | None, other: Mark | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.incarnation, one.seq, one.digest, one.state) == (
        other.incarnation,
        other.seq,
        other.digest,
        other.state,
    )


def gather(ports: Ports, thread: str, mark: Mark | None) -> tuple[Chain | None, ResumeFacts]:
    """Reads A for a mark that was read before, and states the facts for `decide_resume`.

    Returns:
        The chain (None when there is nothing to read) and the facts.

    Raises:
        TamperDetected: A row does not verify.
    """
    if mark is None:
        row = ports.store.read_thread(ports.tenant, thread)
        return None, ResumeFacts(stored=row is not None, witnessed=False)
    if mark.state == "tombstone":
        return None, ResumeFacts(stored=False, witnessed=False)
    row, rows = ports.store.read_newest(ports.tenant, thread, limit=FIRST_PAGE_FRAMES)
    if row is None or _leftover(row, mark):
        return None, ResumeFacts(stored=False, witnessed=True, mark_seq=mark.seq)
    identity = Identity(ports.tenant, thread, mark.incarnation)
    chain = Chain(ports, identity, row, Link(mark.seq, mark.digest), rows)
    found = chain.has_head()
    tail = chain.tail()
    return chain, ResumeFacts(
        stored=True,
        witnessed=True,
        mark_seq=mark.seq,
        highest_seq=chain.highest_seq(),
        head_found=found,
        sibling_found=not found and chain.has_sibling(),
        adopted=len(tail),
        orphans=chain.beyond() - len(tail),
    )


def _leftover(row: ThreadRow, mark: Mark) -> bool:
    """Rows of an earlier life whose tombstone is published but which were not deleted yet."""
    return mark.seq == 0 and row.incarnation < mark.incarnation
