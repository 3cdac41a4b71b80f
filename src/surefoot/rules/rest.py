"""Is a run at rest after this checkpoint? (how the end of a run is known without a wrapper)."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["decide_at_rest"]

_TASKS = "__pregel_tasks"
_START = "__start__"


def decide_at_rest(source: str, with_value: Collection[str], known: Collection[str]) -> bool:
    """Decides whether nothing is left to run after a root checkpoint.

    Args:
        source: ``metadata["source"]``.
        with_value: Channels that have a value.
        known: All channels that ever had a version.

    Returns:
        True when the checkpoint was made by a finished step of a graph that routes through
        ``branch:to:`` channels (or of a functional entrypoint) and no trigger has a value. A
        wrong True only gives the lease back early; the fence keeps that safe.
    """
    if source != "loop" or _START not in known:
        return False
    return not any(
        name in (_TASKS, _START) or name.startswith(("branch:to:", "join:")) for name in with_value
    )
