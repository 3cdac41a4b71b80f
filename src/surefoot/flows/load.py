"""Loading: checkpoints with their values and pending writes, lists, delta history.

Everything here works on a verified chain; what is decoded has been verified first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.flows.chain import Chain
from surefoot.flows.cover import cover_of
from surefoot.flows.find import Found, find_checkpoint, find_latest, walk_checkpoints
from surefoot.flows.values import Loader
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import Typed
from surefoot.rules.writes import Standing, decide_writes

__all__ = [
    "DeltaHistory",
    "Loaded",
    "delta_history",
    "load_many",
    "load_metadata",
    "load_one",
    "loader_for",
    "locate",
]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A decoded checkpoint.

    Attributes:
        namespace: Its namespace.
        checkpoint_id: Its id.
        parent_id: The checkpoint it was put after.
        checkpoint: LangGraph's checkpoint, channel values included.
        metadata: Its metadata.
        writes: (task id, channel, value) of the standing pending writes, in LangGraph's order.
    """

    namespace: str
    checkpoint_id: str
    parent_id: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[tuple[str, str, Any]]


def locate(
    chain: Chain, ports: Ports, namespace: str, checkpoint_id: str | None, *, floor: int = 0
) -> Found | None:
    """The checkpoint with this id, or the latest of its namespace.

    Args:
        chain: The verified chain.
        ports: Stores.
        namespace: Checkpoint namespace.
        checkpoint_id: Its id; None means the latest.
        floor: For the latest: do not look below this seq (a namespace that was born in the
            current step cannot have a checkpoint further down).
    """
    if checkpoint_id is not None:
        return find_checkpoint(chain, ports, namespace, checkpoint_id)
    return find_latest(chain, namespace, floor=floor)


def load_one(loader: Loader, found: Found) -> Loaded:
    """Decodes a checkpoint; its pieces are read in one statement.

    Raises:
        TamperDetected: A piece is missing or does not verify.
        NotLoadable: A value names a type that cannot be rebuilt.
    """
    standing = decide_writes(found.writes)
    loader.fetch(_wanted(found, standing))
    return _decode(loader, found, standing)


def load_many(loader: Loader, found: Sequence[Found]) -> Iterator[Loaded]:
    """Decodes several checkpoints; their pieces are read in one statement."""
    standing = [decide_writes(f.writes) for f in found]
    loader.fetch(t for f, s in zip(found, standing, strict=True) for t in _wanted(f, s))
    for one, writes in zip(found, standing, strict=True):
        yield _decode(loader, one, writes)


def load_metadata(loader: Loader, found: Found) -> dict[str, Any]:
    """Only the metadata, for filters."""
    loader.fetch([found.body.metadata])
    metadata: dict[str, Any] = loader.load(found.body.metadata)
    return metadata


def _wanted(found: Found, standing: Sequence[Standing]) -> list[Typed]:
    body = found.body
    return [
        body.skeleton,
        body.metadata,
        *(v.value for v in body.values),
        *(s.value for s in standing),
    ]


def _decode(loader: Loader, found: Found, standing: Sequence[Standing]) -> Loaded:
    body = found.body
    checkpoint: dict[str, Any] = loader.load(body.skeleton)
    checkpoint["channel_values"] = {v.channel: loader.load(v.value) for v in body.values}
    return Loaded(
        body.namespace,
        body.checkpoint_id,
        body.parent_id,
        checkpoint,
        loader.load(body.metadata),
        [(s.task_id, s.channel, loader.load(s.value)) for s in standing],
    )


@dataclass(frozen=True, slots=True)
class DeltaHistory:
    """What one channel is rebuilt from: writes oldest first, and the stored value below them."""

    writes: list[tuple[str, str, Any]]
    has_seed: bool
    seed: Any


def delta_history(
    chain: Chain, loader: Loader, namespace: str, checkpoint_id: str | None, channels: Sequence[str]
) -> Mapping[str, DeltaHistory]:
    """Walks the parent chain of a checkpoint once, for all channels.

    Writes pending on the target itself belong to the next step and are left out; the walk ends
    for a channel at the nearest ancestor that stores a value of it.
    """
    wanted = set(channels)
    collected: dict[str, list[list[Standing]]] = {c: [] for c in channels}
    seeds: dict[str, Typed] = {}
    at: str | None = None
    started = False
    for found in walk_checkpoints(chain, namespace=namespace):
        if not started:
            if checkpoint_id in (None, found.body.checkpoint_id):
                started, at = True, found.body.parent_id
            continue
        if not wanted or at is None:
            break
        if found.body.checkpoint_id != at:
            continue
        standing = decide_writes(found.writes)
        for channel in wanted:
            collected[channel].append([s for s in standing if s.channel == channel])
        values = {v.channel: v.value for v in found.body.values}
        for channel in [c for c in wanted if c in values]:
            seeds[channel] = values[channel]
            wanted.discard(channel)
        at = found.body.parent_id
    ordered = {c: [s for step in reversed(steps) for s in step] for c, steps in collected.items()}
    loader.fetch([*seeds.values(), *(s.value for steps in ordered.values() for s in steps)])
    return {
        channel: DeltaHistory(
            [(s.task_id, s.channel, loader.load(s.value)) for s in ordered[channel]],
            channel in seeds,
            loader.load(seeds[channel]) if channel in seeds else None,
        )
        for channel in channels
    }


def loader_for(ports: Ports, chain: Chain, serde: Serializer) -> Loader:
    """A loader for one thread."""
    return Loader(cover_of(ports, chain.identity), ports.store, chain.row.key, serde)
