"""What a join had seen when a checkpoint was made (LangGraph's ``join:a+b:c`` channels).

LangGraph hands over the *live* set of a join. Under ``durability="async"`` it is serialised in
the background, when nodes of the next step may have added themselves already; a resume from
such a checkpoint would run the join's target before they ran. The set only grows until it is
consumed (and is replaced then), so what it held at the checkpoint can be told.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Any

__all__ = ["decide_join", "is_join"]


def is_join(channel: str, value: Any) -> bool:
    """True for a channel that waits for several nodes, with a value of the known shape."""
    seen = value[0] if isinstance(value, tuple) and len(value) == 2 else value
    return channel.startswith("join:") and isinstance(seen, Set)


def decide_join(
    channel: str,
    live: Set[Any],
    before: Set[Any],
    seen_now: Mapping[str, Any],
    seen_before: Mapping[str, Any],
    sent: Collection[str] = (),
) -> set[Any]:
    """Decides which names a join had seen at a checkpoint.

    Args:
        channel: Name of the channel.
        live: The set as it was handed over; may hold names of later steps.
        before: The set as stored in the parent checkpoint.
        seen_now: The checkpoint's ``versions_seen``.
        seen_before: The parent's.
        sent: Nodes that a ``Send`` waiting in the parent has started in the step.

    Returns:
        Names that were there before (unless the target ran and consumed them), and names of
        nodes that ran in the step that made the checkpoint: by a trigger, which leaves a trace
        in ``versions_seen``, or by a ``Send``.
    """
    names, _, target = channel.removeprefix("join:").rpartition(":")
    complete = len("+".join(map(str, before))) >= len(names)
    consumed = complete and seen_now.get(target) != seen_before.get(target)
    base: Set[Any] = set() if consumed else before
    return {
        name
        for name in live
        if name in base or name in sent or seen_now.get(name) != seen_before.get(name)
    }
