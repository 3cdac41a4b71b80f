"""What a prune keeps (step P6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["CheckpointFacts", "decide_cuts", "decide_kept", "decide_latest"]


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A stored checkpoint, as far as retention needs it.

    Attributes:
        place: Namespace and id.
        parent_id: The checkpoint it was put after.
        order: Its number on the chain.
        stored: Channels whose value it stores.
        delta: Channels that it rebuilds from the writes of its ancestors.
        run_id: The run that made it, if known.
        branch: Id of its branch; empty for the root branch.
    """

    place: tuple[str, str]
    parent_id: str | None
    order: int
    stored: frozenset[str]
    delta: frozenset[str]
    run_id: str | None
    branch: bytes = b""


def decide_latest(facts: Sequence[CheckpointFacts]) -> frozenset[tuple[str, str]]:
    """The head of each branch of each namespace: the last on the chain, not the largest id.

    A fork that was left may be gone on from later, and an approval may be waiting at its head.
    """
    latest: dict[tuple[str, bytes], CheckpointFacts] = {}
    for fact in facts:
        line = (fact.place[0], fact.branch)
        held = latest.get(line)
        if held is None or fact.order > held.order:
            latest[line] = fact
    return frozenset(f.place for f in latest.values())


def decide_cuts(facts: Sequence[CheckpointFacts], kept: Collection[tuple[str, str]]) -> bool:
    """Decides whether a prune drops a root checkpoint that is later than all it keeps.

    Step numbers come back then, so effects of the steps to come need other positions than those
    of the dropped ones (rule E4).
    """
    roots = [f for f in facts if f.place[0] == ""]
    last_kept = max((f.order for f in roots if f.place in kept), default=0)
    return any(f.order > last_kept for f in roots)


def decide_kept(
    facts: Sequence[CheckpointFacts], wanted: Collection[tuple[str, str]]
) -> frozenset[tuple[str, str]]:
    """What has to stay so that the wanted checkpoints can be rebuilt.

    A DeltaChannel stores its value only now and then; between, its state is the writes of the
    ancestors down to the nearest stored value. All of those stay, or the state would be
    silently empty.
    """
    by_place = {f.place: f for f in facts}
    kept = set(wanted) & by_place.keys()
    for place in list(kept):
        fact = by_place[place]
        missing = set(fact.delta - fact.stored)
        parent = fact.parent_id
        while missing and parent is not None:
            ancestor = by_place.get((place[0], parent))
            if ancestor is None:
                break
            kept.add(ancestor.place)
            missing -= ancestor.stored
            parent = ancestor.parent_id
    return frozenset(kept)
