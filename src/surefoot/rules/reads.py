"""Recorded reads: when a stored outcome is replayed, read anew, or refused.

A read (a model call, a search, a clock, a random number) changes nothing, so nothing about it is
ever in doubt: a read without a record runs again. What is judged here is whether a stored outcome
still answers the question that is asked now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from surefoot.rules.envelope import tlv
from surefoot.rules.fingerprint import fingerprint, parts_of

__all__ = [
    "HAPPENED",
    "OBSERVED",
    "READ",
    "ObservationFacts",
    "OnStale",
    "Read",
    "ReadFacts",
    "ReadVerdict",
    "decide_observation",
    "decide_read",
    "differences",
    "outline",
    "place_of_checkpoints",
]

#: Class of a recorded read in an ``E`` record, where effects have K, L or N.
READ = "R"
#: Source of the record of an observation, where reads have ``body``.
OBSERVED = "observation"
#: States of effects that have happened, and so may have moved what was observed before them.
HAPPENED = frozenset({"succeeded", "compensated"})
#: Paths that an outline names; what lies deeper counts as one with what it lies in.
_PATHS_MAX = 96
_SHOWN_MAX = 12
_DIGEST_BYTES = 8


class OnStale(Enum):
    """What a stored outcome with other inputs than those of now leads to."""

    REFUSE = "refuse"
    READ = "read"


class ReadVerdict(Enum):
    """What to do with a read."""

    READ = "read"
    REPLAY = "replay"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """What is known about a place when a read reaches it.

    Attributes:
        recorded: An outcome is recorded there.
        same_inputs: It was recorded for the inputs of now, bindings included.
        used: An effect that may have happened was started after it by the same task, so its
            arguments may be made of it.
        void: It was made in the body of an effect, for an attempt that is proven to have done
            nothing.
        age_us: Microseconds since it was recorded, on this worker's clock; negative when the
            clock stepped back. None when nothing is recorded.
        freshness_us: Age from which on it does not count; None means never.
        on_stale: What other inputs lead to.
    """

    recorded: bool
    same_inputs: bool = True
    used: bool = False
    void: bool = False
    age_us: int | None = None
    freshness_us: int | None = None
    on_stale: OnStale = OnStale.REFUSE


@dataclass(frozen=True, slots=True)
class Read:
    """A verdict and its reason."""

    verdict: ReadVerdict
    reason: str


def decide_read(facts: ReadFacts) -> Read:
    """Decides whether a read is carried out, replayed or refused.

    ==================  ===================  ==================================
    recorded            same inputs          other inputs
    ==================  ===================  ==================================
    nothing             read                 read
    used by an effect   replay               refuse, or read if declared so
    within freshness    replay               refuse, or read if declared so
    too old             read                 refuse, or read if declared so
    for nothing         as by its age        read
    ==================  ===================  ==================================

    Other inputs come first: that the run asks another question than before is news even where the
    old answer would not be used. What an effect may be made of is not read again, however old it
    is: the effect stands, and with another answer its call would be a conflict for ever. An outcome
    from the future (the clock stepped back) has no age that could be trusted, so with a freshness
    rule it counts as too old: reading once more is harmless, a stale value is what the rule was
    there to prevent. After a proven failure an effect may have other arguments, and so may what
    its body reads: of that attempt nothing is left that could be mistaken.
    """
    if not facts.recorded:
        return Read(ReadVerdict.READ, "nothing is recorded")
    if not facts.same_inputs:
        if facts.void:
            return Read(ReadVerdict.READ, "recorded for an attempt that did nothing")
        if facts.on_stale is OnStale.READ:
            return Read(ReadVerdict.READ, "recorded with other inputs; declared to be read again")
        return Read(ReadVerdict.STALE, "recorded with other inputs")
    if facts.used:
        return Read(ReadVerdict.REPLAY, "recorded, and an effect has been made of it")
    if facts.freshness_us is None:
        return Read(ReadVerdict.REPLAY, "recorded")
    if facts.age_us is None or facts.age_us < 0:
        return Read(ReadVerdict.READ, "recorded at a time that has not come yet: no age to trust")
    if facts.age_us >= facts.freshness_us:
        return Read(ReadVerdict.READ, "recorded too long ago")
    return Read(ReadVerdict.REPLAY, "recorded, and fresh enough")


@dataclass(frozen=True, slots=True)
class ObservationFacts:
    """What is known about an observation when an effect is about to start.

    Attributes:
        replayed: Its outcome comes from a record of an earlier run, not from a read of this one.
        spent: An effect behind it has happened already, which may itself have moved what was
            observed.
        named: The effect names it in ``depends_on``.
        names_any: The effect names any observation.
        same_task: It was made by the task that calls the effect, in the present step.
        ours: An effect that names it has happened behind it, in any step of the thread.
    """

    replayed: bool
    spent: bool
    named: bool
    names_any: bool
    same_task: bool
    ours: bool = False


def decide_observation(facts: ObservationFacts) -> bool:
    """Decides whether an observation is verified before an effect starts.

    What this run has read itself needs no second look. Of what it only replays, an effect depends
    on what it names; one that names nothing depends on everything that its task has observed
    since the effect before it.

    What an effect moves itself is no alarm (R8), and nobody looked between what it has moved and
    what others have: of a named observation, the first effect that names it looks again, and those
    behind it do not, until it is made anew.
    """
    if not facts.replayed:
        return False
    if facts.names_any:
        return facts.named and not facts.ours
    return facts.same_task and not facts.spent


# --- identity ----------------------------------------------------------------------------------


def place_of_checkpoints(levels: tuple[tuple[str, str], ...]) -> bytes:
    """32 bytes that name the checkpoints a read runs under, while they are not stored yet.

    A read waits for no checkpoint, so the branch and the steps above it may not be known when it
    is made. Nothing that depends on it is sent before they are (E1), so this name serves only as
    long as the checkpoints themselves are the ones that will be stored.
    """
    return hashlib.sha256(tlv("at/v1", *(part for level in levels for part in level))).digest()


# --- what differs ------------------------------------------------------------------------------


def outline(inputs: Mapping[str, Any], *, effect: str) -> dict[str, bytes]:
    """Digests of inputs by path: small, without values, and enough to say later what moved.

    Containers are opened level by level until there are too many paths.

    Args:
        inputs: Inputs by name.
        effect: Name of the step, for errors.

    Raises:
        Unfingerprintable: Some part has no canonical form.
    """
    out: dict[str, bytes] = {}
    level = [(str(name), value) for name, value in inputs.items()]
    while level:
        deeper: list[tuple[str, Any]] = []
        for path, value in level:
            out[path] = fingerprint(value, effect=effect)[:_DIGEST_BYTES]
            deeper += [(path + step, part) for step, part in parts_of(value)]
        if len(out) + len(deeper) > _PATHS_MAX:
            break
        level = deeper
    return out


def differences(recorded: Mapping[str, bytes], proposed: Mapping[str, bytes]) -> list[str]:
    """What moved between two outlines, as ``changed: path`` and the like, without values.

    Only the innermost changes are named, and only the outermost of what came or went.
    """
    changed = {p for p in recorded.keys() & proposed.keys() if recorded[p] != proposed[p]}
    added = proposed.keys() - recorded.keys()
    removed = recorded.keys() - proposed.keys()
    moved = changed | added | removed
    found = [
        *(f"changed: {p}" for p in changed if not any(_is_inside(q, p) for q in moved)),
        *(f"added: {p}" for p in added if not any(_is_inside(p, q) for q in added)),
        *(f"removed: {p}" for p in removed if not any(_is_inside(p, q) for q in removed)),
    ]
    found = sorted(found, key=lambda text: (text.split(": ", 1)[1], text))
    if len(found) > _SHOWN_MAX:
        found = [*found[:_SHOWN_MAX], f"and {len(found) - _SHOWN_MAX} more"]
    return found


def _is_inside(path: str, outer: str) -> bool:
    return len(path) > len(outer) and path.startswith(outer) and path[len(outer)] in ".["
