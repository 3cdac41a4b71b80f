"""What a tool call without a result is worth, once new input has come (rule E7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from surefoot.rules.effects import MAYBE_SENT, PROVEN_NOTHING

__all__ = ["Fate", "OrphanFacts", "decide_orphan"]

#: Of these nothing is left in the world: they never happened, or were undone.
_NOTHING = PROVEN_NOTHING | {"compensated"}


class Fate(Enum):
    """What is known of an interrupted call."""

    NOTHING = "nothing happened"
    DONE = "it happened, and its result is recorded"
    PARTLY = "effects of it happened, and its own result was never made"
    OPEN = "nobody has asked yet what happened"
    DOUBT = "a person decides"
    UNREAD = "something happened, and nobody can tell for which call"


@dataclass(frozen=True, slots=True)
class OrphanFacts:
    """The newest records of the effects that ran for a call.

    Attributes:
        own: States of the effects at the call's own place in its message.
        loose: States of effects of the same step whose call cannot be told (they were called
            inside of a tool).
        askable: There is a lookup for the one at its own place.
        unread: States of effects that may be its own or loose, under checkpoints whose messages
            cannot be read.
    """

    own: Sequence[str]
    loose: Sequence[str]
    askable: bool
    unread: Sequence[str] = ()


def decide_orphan(facts: OrphanFacts) -> Fate:
    """Decides what the model is told about a call that was interrupted by new input (rule E7).

    Every start is recorded before its effect (E2), so a call without a record of its own did
    nothing that the ledger would know of. What is open is asked about, or a person decides:
    the model's next answer is no evidence. The same holds for an effect that cannot be told from
    that of another call: to say "not carried out" could be a lie.
    """
    if any(state not in _NOTHING for state in facts.unread):
        return Fate.UNREAD
    own = [state for state in facts.own if state not in _NOTHING]
    loose = [state for state in facts.loose if state not in _NOTHING]
    if len(own) == 1 and own[0] in MAYBE_SENT and facts.askable:
        return Fate.OPEN
    if any(state != "succeeded" for state in own):
        return Fate.DOUBT
    if len(own) == 1:
        return Fate.DONE
    if any(state != "succeeded" for state in loose):
        return Fate.DOUBT
    return Fate.PARTLY if own or loose else Fate.NOTHING
