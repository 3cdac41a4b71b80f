"""From a decision to the error that an operator reads."""

from __future__ import annotations

from surefoot.errors import Refused, ResumeRefused, RollbackDetected, TamperDetected
from surefoot.rules.resume import ResumeDecision, ResumeFacts

__all__ = ["refusal"]


def refusal(thread: str, decision: ResumeDecision, facts: ResumeFacts) -> Refused:
    """The error for a decision that refuses; all findings are in its text and fields."""
    refusing = decision.refusals()
    rules = [f.rule for f in refusing]
    reason = "; ".join(f"{f.rule} {f.text}" for f in refusing)
    if "R6" in rules:
        return TamperDetected(
            thread=thread, what="the journal", seq=facts.mark_seq, reason=reason, rules=rules
        )
    if "R4" in rules:
        return TamperDetected(
            thread=thread, what="the head", seq=facts.mark_seq, reason=reason, rules=rules
        )
    if "R3" in rules:
        return RollbackDetected(
            thread=thread,
            witnessed_seq=facts.mark_seq,
            stored_seq=facts.highest_seq,
            reason=reason,
            rules=rules,
        )
    return ResumeRefused(thread=thread, reason=reason, rules=rules)
