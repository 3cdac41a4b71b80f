"""Is a run at rest after this checkpoint? (how the end of a run is known without a wrapper)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Any

__all__ = ["decide_at_rest"]

_TASKS = "__pregel_tasks"
_START = "__start__"


def decide_at_rest(source: str, values: Mapping[str, Any], known: Collection[str]) -> bool:
    """Decides whether nothing is left to run after a root checkpoint.

    Args:
        source: ``metadata["source"]``.
        values: Channels that have a value, and the values.
        known: All channels that ever had a version.

    Returns:
        True when the checkpoint was made by a finished step of a graph that routes through
        ``branch:to:`` channels (or of a functional entrypoint) and no trigger has a value. A
        wrong True only gives the lease back early; the fence keeps that safe.
    """
    if source != "loop" or _START not in known:
        return False
    return not any(_is_work(name, value) for name, value in values.items())


def _is_work(name: str, value: Any) -> bool:
    """Whether a channel's value will trigger a node."""
    if name in (_TASKS, _START) or name.startswith("branch:to:"):
        return True
    if not name.startswith("join:"):
        return False
    # ``join:a+b:c`` triggers c once all of its names have arrived, and stays as an empty set.
    seen = value[0] if isinstance(value, tuple) and value else value
    if not isinstance(seen, Set):
        return True
    return len("+".join(map(str, seen))) >= len(name.removeprefix("join:").rpartition(":")[0])
