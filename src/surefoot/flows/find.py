"""Finding checkpoints on a verified chain.

Lookup columns only say where to look first; what is returned always comes from verified
records, and "not there" is only said after the chain itself has been walked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from surefoot.flows.acquire import body_of, checkpoint_of, effect_of
from surefoot.flows.chain import Chain
from surefoot.ports import Ports
from surefoot.rules.bodies import Batch, CheckpointBody, EventBody, Typed, WritesBody
from surefoot.rules.envelope import Kind, RecordHead, checkpoint_subject, hash8

__all__ = [
    "Found",
    "bodies_of",
    "find_checkpoint",
    "find_latest",
    "values_of",
    "walk_checkpoints",
    "writes_of",
]


@dataclass(slots=True)
class Found:
    """A checkpoint on the chain.

    Attributes:
        record: Its record (the newest one, when it was put again).
        body: Its body.
        writes: Batches pending on it, oldest first.
        later: Records of later checkpoints of its namespace, newest first.
        order: Seq by which it is ordered: of its first record.
    """

    record: RecordHead
    body: CheckpointBody
    writes: list[Batch]
    order: int
    later: list[RecordHead] = field(default_factory=list)

    @property
    def branch(self) -> bytes:
        """Id of its branch: the digest of the record that began it; empty for the root branch."""
        return self.record.link.digest if self.body.born else self.body.branch


def writes_of(thread: str, record: RecordHead) -> WritesBody:
    """Reads a verified record of pending writes.

    Raises:
        TamperDetected: Its layout is not known to this release.
    """
    return body_of(thread, record, WritesBody.unpack)


def values_of(thread: str, record: RecordHead) -> list[Typed]:
    """Every value that a verified record with its body refers to.

    Raises:
        TamperDetected: Its layout is not known to this release.
    """
    if record.kind is Kind.CHECKPOINT:
        body = checkpoint_of(thread, record)
        loose = [] if body.loose is None else [body.loose]
        return [body.skeleton, body.metadata, *(v.value for v in body.values), *loose]
    if record.kind is Kind.WRITES:
        return [w.value for b in writes_of(thread, record).batches for w in b.writes]
    if record.kind is Kind.EFFECT:
        return effect_of(thread, record).values()
    if record.kind is Kind.EVENT:
        return [body_of(thread, record, EventBody.unpack).payload]
    return []


def walk_checkpoints(
    chain: Chain, *, namespace: str | None = None, floor: int = 0
) -> Iterator[Found]:
    """Checkpoints of a chain, newest first, each with its pending writes.

    A checkpoint that was put again appears once, at its first place, with its newest content.

    Args:
        chain: The verified chain.
        namespace: Only this one; None means all.
        floor: Do not look below this seq.
    """
    thread = chain.identity.thread
    batches: dict[tuple[str, str], list[tuple[int, Sequence[Batch]]]] = {}
    newest: dict[tuple[str, str], tuple[RecordHead, CheckpointBody]] = {}
    for record in chain.walk():
        if record.link.seq < floor:
            return
        if record.kind is Kind.WRITES:
            body = writes_of(thread, record)
            batches.setdefault((body.namespace, body.checkpoint_id), []).append(
                (record.link.seq, body.batches)
            )
        elif record.kind is Kind.CHECKPOINT:
            checkpoint = checkpoint_of(thread, record)
            if namespace is not None and checkpoint.namespace != namespace:
                continue
            place = (checkpoint.namespace, checkpoint.checkpoint_id)
            if checkpoint.extra.get("of") is not None:
                newest.setdefault(place, (record, checkpoint))
                continue
            seen = newest.pop(place, (record, checkpoint))
            found = batches.pop(place, [])
            found += _early(chain, record, place)
            yield Found(
                seen[0],
                seen[1],
                [b for _, group in sorted(found, key=lambda item: item[0]) for b in group],
                record.link.seq,
            )


def _early(
    chain: Chain, record: RecordHead, place: tuple[str, str]
) -> list[tuple[int, Sequence[Batch]]]:
    """Writes that were stored before their checkpoint."""
    return _batches(chain, chain.written_before(record), place)


def _batches(
    chain: Chain, records: Sequence[RecordHead], place: tuple[str, str]
) -> list[tuple[int, Sequence[Batch]]]:
    """Batches of these records that are pending on one checkpoint."""
    out: list[tuple[int, Sequence[Batch]]] = []
    for hit in chain.with_bodies([r for r in records if r.kind is Kind.WRITES]):
        body = writes_of(chain.identity.thread, hit)
        if (body.namespace, body.checkpoint_id) == place:
            out.append((hit.link.seq, body.batches))
    return out


def find_latest(chain: Chain, namespace: str, *, floor: int = 0) -> Found | None:
    """The latest checkpoint of a namespace: the last one on the chain, not the largest id."""
    return next(walk_checkpoints(chain, namespace=namespace, floor=floor), None)


def find_checkpoint(chain: Chain, ports: Ports, namespace: str, checkpoint_id: str) -> Found | None:
    """A checkpoint by id.

    The lookup column only decides how far the heads are read in one go; whether the
    checkpoint is there, and on the chain, is decided by the chain. Bodies are read of the
    records that are about it, in one statement.
    """
    place = (namespace, checkpoint_id)
    subject = checkpoint_subject(*place)
    hints = ports.store.find_checkpoint(chain.row.key, hash8(checkpoint_id))
    lowest = min((seq for seq, _ in hints), default=1)
    chain.jump(lowest)
    about: list[RecordHead] = []
    later: list[RecordHead] = []
    newest: tuple[RecordHead, CheckpointBody] | None = None
    for record in chain.walk(bodies=False):
        if record.subject != subject:
            if record.kind is Kind.CHECKPOINT and record.subject[:8] == subject[:8]:
                later.append(record)
            continue
        if record.kind is not Kind.CHECKPOINT:
            about.append(record)
            continue
        (full,) = chain.with_bodies([record])
        body = checkpoint_of(chain.identity.thread, full)
        if (body.namespace, body.checkpoint_id) != place:
            continue
        newest = newest or (full, body)
        if body.extra.get("of") is None:
            batches = _batches(chain, about, place) + _early(chain, full, place)
            return Found(
                newest[0],
                newest[1],
                [b for _, group in sorted(batches, key=lambda item: item[0]) for b in group],
                full.link.seq,
                later,
            )
    return None


def bodies_of(chain: Chain, records: Sequence[RecordHead]) -> list[CheckpointBody]:
    """Bodies of checkpoint records, read in one statement."""
    return [checkpoint_of(chain.identity.thread, r) for r in chain.with_bodies(records)]
