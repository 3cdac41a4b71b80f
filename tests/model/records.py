"""Records, the chain, and the product's own judgements, memoised.

A record is a number into a table that only grows, and equal content gives the same number: the
number is the record's digest. Nobody without the key can make one, so there is no other way into
the table than `record`, which only honest code calls; an adversary moves existing ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from surefoot.rules.chain import decide_tail
from surefoot.rules.effects import (
    Barrier,
    BarrierFacts,
    Call,
    CallFacts,
    Receiver,
    decide_absent,
    decide_barrier,
    decide_call,
)
from surefoot.rules.envelope import Frame, Kind, Link, RecordHead
from surefoot.rules.lease import Acquire, decide_acquire
from surefoot.rules.publish import GateFacts, PublishFacts, Then, decide_gate, decide_publish
from surefoot.rules.resume import ResumeFacts, decide_resume
from surefoot.rules.resume import Verdict as Resume

GENESIS = 0

Slot = tuple[int, int]
"""Step and ordinal of an effect's call: its logical position."""


class Record(NamedTuple):
    """What a seal covers; the body depends on the kind."""

    seq: int
    epoch: int
    kind: str
    prev: int
    body: Any


_NUMBERS: dict[Record, int] = {}
RECORDS: list[Record] = []
_FRAMES: list[Frame] = []


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def record(seq: int, epoch: int, kind: str, prev: int, body: Any) -> int:
    """The number of a record, which is its digest."""
    made = Record(seq, epoch, kind, prev, body)
    number = _NUMBERS.get(made)
    if number is None:
        number = len(RECORDS)
        _NUMBERS[made] = number
        RECORDS.append(made)
        head = RecordHead(
            Link(seq, digest(number)), digest(prev), epoch, Kind(ord(kind)), 1, b"", b"sealed"
        )
        _FRAMES.append(Frame(seq, epoch, "key", 0, (head,)))
    return number


def forget_records() -> None:
    """Empties the table, so that a configuration does not depend on those before it."""
    _NUMBERS.clear()
    RECORDS.clear()
    _FRAMES.clear()
    for cached in (tail, ancestry, hole):
        cached.cache_clear()
    if record(0, 0, "C", 0, None) != GENESIS:
        raise AssertionError("the first record is not the genesis")


class Fold(NamedTuple):
    """What a resume takes from a chain: the last checkpoint and what lies above it."""

    base: int
    ledger: tuple[tuple[Slot, str, int], ...]
    writes: int | None
    missing: int | None


def fold(head: int, present: frozenset[int] | None) -> Fold:
    """Walks down to the last checkpoint.

    Args:
        head: Where to begin.
        present: What A holds; None walks the truth, where nothing can be missing.
    """
    ledger: dict[Slot, tuple[str, int]] = {}
    writes: int | None = None
    at = head
    while at != GENESIS:
        here = RECORDS[at]
        if present is not None and at not in present:
            return Fold(0, (), None, here.seq)
        if here.kind == "E":
            slot, state, arguments = here.body
            ledger.setdefault(slot, (state, arguments))
        elif here.kind == "W" and writes is None:
            writes = here.body
        elif here.kind == "C":
            break
        at = here.body[0] if here.kind in "PR" else here.prev
    return Fold(at, tuple(sorted((s, *entry) for s, entry in ledger.items())), writes, None)


@cache
def ancestry(head: int) -> frozenset[int]:
    """All records that a chain's end stands for; after a restore, those of its target."""
    found = {GENESIS}
    at = head
    while at != GENESIS:
        found.add(at)
        here = RECORDS[at]
        at = here.body[0] if here.kind == "R" else here.prev
    return frozenset(found)


@cache
def hole(head: int, rows: tuple[int, ...]) -> int | None:
    """Seq of a record that a whole history lacks; below a prune it is what the prune kept."""
    present = frozenset(rows)
    at = head
    while at != GENESIS:
        here = RECORDS[at]
        if at not in present:
            return here.seq
        if here.kind == "P":
            return None if here.body[0] in present else RECORDS[here.body[0]].seq
        at = here.body[0] if here.kind == "R" else here.prev
    return None


# --- the product's rules -----------------------------------------------------------------------


@cache
def tail(head: int, rows: tuple[int, ...]) -> tuple[int, ...]:
    found = decide_tail(Link(RECORDS[head].seq, digest(head)), [_FRAMES[number] for number in rows])
    return tuple(int.from_bytes(r.link.digest, "big") for r in found)


@cache
def resume(facts: ResumeFacts) -> tuple[bool, str]:
    """Whether it refuses, and the rules that do."""
    decision = decide_resume(facts)
    refused = decision.verdict is Resume.REFUSE
    return refused, "+".join(f.rule for f in decision.refusals())


@cache
def call(receiver: str, state: str | None, same: bool, intent: bool, tainted: bool) -> Call:
    facts = CallFacts(Receiver(receiver), state, same, intent, tainted)
    return decide_call(facts)


@cache
def barrier(durability: str, receiver: str) -> Barrier:
    return decide_barrier(BarrierFacts(durability, Receiver(receiver)))


@cache
def absent(strong: bool, reads: int, settled: bool) -> bool:
    return decide_absent(strong=strong, reads=reads, settled=settled)


@cache
def may_acquire(leased: bool, holder_dead: bool) -> bool:
    then = decide_acquire(
        lease_left_ms=int(leased), holder_dead=holder_dead, waited_ms=0, may_wait_ms=0
    )
    return then in {Acquire.TAKE, Acquire.TAKE_OVER}


@cache
def gate(
    ours: int, marked: int, first: bool, stored: int | None, is_ours: bool, parent: bool
) -> Then:
    return decide_gate(GateFacts(ours, marked, first, stored, is_ours, parent))


@cache
def after_publish(ours: int, marked: int, at: int, old: int, new: int) -> Then:
    return decide_publish(PublishFacts(ours, marked, digest(at), digest(old), digest(new)))


def forget_judgements() -> None:
    """Empties what is remembered of the rules' answers."""
    for judgement in (tail, resume, call, barrier, absent, may_acquire, gate, after_publish):
        judgement.cache_clear()
