"""May this thread be read or resumed? Rules R1 to R6 over plain facts.

One function decides; it reports every finding, not the first. Nothing here reads a store:
`surefoot.flows` gathers the facts and acts on the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "ResumeDecision", "ResumeFacts", "Verdict", "decide_resume"]


class Verdict(Enum):
    """What a finding asks for."""

    FRESH = "fresh"
    PROCEED = "proceed"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: the rule's number, its verdict and a sentence for an operator."""

    rule: str
    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class ResumeFacts:
    """What was seen, in the order B, then A (step P2).

    Attributes:
        stored: A has rows of the thread.
        witnessed: B has a mark of the thread.
        mark_seq: B's seq; 0 when nothing is published.
        highest_seq: Highest seq found in A; 0 when there is none.
        head_found: A verified record in A has B's seq and B's digest (or B's seq is 0).
        sibling_found: A verified record in A has B's seq, but none has B's digest.
        broken: What does not verify (seal, link, identity, missing record), or None.
        adopted: Number of tail records that were adopted beyond the head.
        orphans: Number of unpublished records beyond the head that were not adopted.
        missing_below: A record below the head that the chain names is not stored.
    """

    stored: bool
    witnessed: bool
    mark_seq: int = 0
    highest_seq: int = 0
    head_found: bool = False
    sibling_found: bool = False
    broken: str | None = None
    adopted: int = 0
    orphans: int = 0
    missing_below: int | None = None


@dataclass(frozen=True, slots=True)
class ResumeDecision:
    """All findings and the verdict that follows: the strictest one."""

    verdict: Verdict
    findings: tuple[Finding, ...]

    def refusals(self) -> Sequence[Finding]:
        """Findings that refuse."""
        return [f for f in self.findings if f.verdict is Verdict.REFUSE]


def decide_resume(facts: ResumeFacts) -> ResumeDecision:
    """Decides R1 to R6 (docs/rules.md).

    R1 nothing stored, nothing witnessed: fresh. R2 stored, never witnessed: refuse. R3 A is
    behind B: refuse, rollback. R4 same height, other digest: refuse, fork. R5 A is ahead of
    B: the tail's writes and effects are adopted, checkpoints are not. R6 something does not
    verify: refuse before anything is decoded.
    """
    found: list[Finding] = []
    if facts.broken is not None:
        found.append(Finding("R6", Verdict.REFUSE, facts.broken))
    if not facts.witnessed:
        if not facts.stored:
            found.append(Finding("R1", Verdict.FRESH, "nothing stored, nothing witnessed"))
        else:
            found.append(
                Finding(
                    "R2",
                    Verdict.REFUSE,
                    "the database holds this thread, but the high-water store has never seen it",
                )
            )
    elif facts.mark_seq == 0:
        found.append(Finding("R1", Verdict.FRESH, "admitted, nothing published yet"))
    elif facts.head_found:
        found.append(Finding("R5", Verdict.PROCEED, _tail(facts)))
    elif facts.broken is None:
        found.append(_head_missing(facts))
    if facts.missing_below is not None:
        found.append(
            Finding(
                "R6",
                Verdict.REFUSE,
                f"record {facts.missing_below} of the chain is not stored any more",
            )
        )
    return ResumeDecision(_strictest(found), tuple(found))


def _tail(facts: ResumeFacts) -> str:
    return (
        f"the head {facts.mark_seq} is stored; {facts.adopted} tail records adopted, "
        f"{facts.orphans} unpublished records left beside the chain"
    )


def _head_missing(facts: ResumeFacts) -> Finding:
    if facts.sibling_found:
        return Finding(
            "R4",
            Verdict.REFUSE,
            f"the database holds another record {facts.mark_seq} than the one that was published",
        )
    return Finding(
        "R3",
        Verdict.REFUSE,
        f"record {facts.mark_seq} was published, the database ends at {facts.highest_seq}",
    )


def _strictest(findings: Sequence[Finding]) -> Verdict:
    verdicts = {f.verdict for f in findings}
    for verdict in (Verdict.REFUSE, Verdict.PROCEED, Verdict.FRESH):
        if verdict in verdicts:
            return verdict
    raise ValueError("no rule applied to the facts")  # an empty list never means "go on"
