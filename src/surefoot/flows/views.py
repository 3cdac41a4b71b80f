"""Looking at a thread: read B, then A; look at B again before any alarm (readers' rule).

A reader takes no epoch, is never fenced, and never alarms in honest use: when B moved while A
was being read, it reads again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from surefoot.errors import ResumeRefused, RollbackDetected, TamperDetected
from surefoot.flows.chain import Chain
from surefoot.flows.verdict import refusal
from surefoot.ports import Mark, Ports, ThreadRow
from surefoot.rules.envelope import Identity, Link
from surefoot.rules.resume import ResumeFacts, Verdict, decide_resume

__all__ = ["FIRST_PAGE_FRAMES", "all_threads", "gather", "has_moved", "viewing"]

T = TypeVar("T")

#: Frames read with the thread's row; a resume seldom needs more.
FIRST_PAGE_FRAMES = 6
_TRIES = 20
_PAGE = 1_000


def viewing(ports: Ports, thread: str, work: Callable[[Chain | None], T]) -> T:
    """Carries out a whole reading operation of a reader.

    Whatever alarms on the way (a record or a value that is missing, a head that is behind) is an
    alarm only if B has not moved since it was read: a prune, a deletion or a new step may have
    passed by. Otherwise the operation is carried out anew.

    Args:
        ports: Stores.
        thread: Id of the thread.
        work: Gets the verified chain, or None when there is nothing to see.

    Raises:
        RollbackDetected: A is behind B (R3).
        TamperDetected: Something does not verify (R4, R6).
        ResumeRefused: Stored, never witnessed (R2).
    """
    mark = ports.marks.read(ports.tenant, thread)
    tries = _TRIES
    while True:
        try:
            return work(_checked(ports, thread, mark))
        except (RollbackDetected, TamperDetected, ResumeRefused):
            again = ports.marks.read(ports.tenant, thread)
            tries -= 1
            if _same_mark(mark, again) or tries == 0:
                raise
            mark = again


def has_moved(ports: Ports, chain: Chain) -> bool:
    """True when B does not show the head any more that a chain was read for."""
    mark = ports.marks.read(ports.tenant, chain.identity.thread)
    if mark is None:
        return True
    now = (mark.incarnation, mark.seq, mark.digest, mark.state)
    return now != (chain.identity.incarnation, chain.head.seq, chain.head.digest, "live")


def all_threads(ports: Ports) -> list[str]:
    """Ids of all threads of the tenant.

    B is asked first: a thread whose rows are gone from A is still looked at, and refused.
    """
    found: dict[str, None] = {}
    last: str | None = None
    while True:
        page = [*ports.marks.marks(ports.tenant, after_thread=last, limit=_PAGE)]
        found.update({thread: None for thread, mark in page if mark.state != "tombstone"})
        if len(page) < _PAGE:
            break
        last = page[-1][0]
    after = 0
    while rows := ports.store.threads(ports.tenant, after_key=after, limit=_PAGE):
        after = rows[-1].key
        found.update({row.thread: None for row in rows})
    return list(found)


def _checked(ports: Ports, thread: str, mark: Mark | None) -> Chain | None:
    chain, facts = gather(ports, thread, mark)
    decision = decide_resume(facts)
    if decision.verdict is Verdict.REFUSE:
        raise refusal(thread, decision, facts)
    return chain


def _same_mark(one: Mark | None, other: Mark | None) -> bool:
    """True when two readings of a mark show the same content."""
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
