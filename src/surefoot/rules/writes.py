"""Which pending writes stand (LangGraph's contract of ``put_writes``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from surefoot.rules.bodies import Batch, Typed

__all__ = ["Standing", "decide_writes"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A write that stands."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Typed


def decide_writes(batches: Iterable[Batch]) -> list[Standing]:
    """Decides which writes stand, from all batches in the order of the chain.

    A batch made of special channels only replaces what stands at its places; in every other
    batch the first write of a place stands (``WRITES_IDX_MAP`` of langgraph-checkpoint). The
    result is in the order in which LangGraph applies writes: by task path, task id, index.
    """
    standing: dict[tuple[str, int], Standing] = {}
    for batch in batches:
        for write in batch.writes:
            place = (batch.task_id, write.idx)
            if batch.replaces or place not in standing:
                standing[place] = Standing(
                    batch.task_id, batch.task_path, write.idx, write.channel, write.value
                )
    return sorted(standing.values(), key=lambda s: (s.task_path, s.task_id, s.idx))
