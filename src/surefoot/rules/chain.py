"""Which stored records belong to the chain (step P2 and rules R5, R6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from surefoot.rules.envelope import Frame, Kind, Link, RecordHead, hash8

__all__ = ["ADOPTED_KINDS", "KeyLimits", "decide_given_up", "decide_standing", "decide_tail"]

#: Kinds that may be adopted although they were never published; a checkpoint never is.
ADOPTED_KINDS = frozenset({Kind.WRITES, Kind.EFFECT})


def decide_tail(head: Link, frames: Iterable[Frame]) -> Sequence[RecordHead]:
    """Decides which verified records beyond the published head are adopted.

    Starting at the head, the record that names it as its predecessor is adopted when its kind
    may be, and so on; the first record of another kind ends the tail. Where several records
    name the same predecessor (workers of different epochs died there), the one of the
    highest epoch is taken: its writer had seen the others or fenced them.
    """
    after: dict[bytes, RecordHead] = {}
    for frame in frames:
        for record in frame.records:
            if record.link.seq <= head.seq:
                continue
            rival = after.get(record.prev)
            if rival is None or record.epoch > rival.epoch:
                after[record.prev] = record
    tail: list[RecordHead] = []
    at = head
    while True:
        following = after.get(at.digest)
        if following is None or following.link.seq != at.seq + 1:
            return tail
        if following.kind not in ADOPTED_KINDS:
            return tail
        tail.append(following)
        at = following.link


class KeyLimits:
    """Up to which seq each retired key counts, from the ``K`` records met on the way down.

    A ``K`` record is sealed by another key and linked into the chain, so everything below it is
    fixed by its digest, whoever else may know the retired key by now.
    """

    __slots__ = ("_valid_up_to",)

    def __init__(self) -> None:
        self._valid_up_to: dict[bytes, int] = {}

    def learn(self, record: RecordHead) -> None:
        """Notes a record of the chain, newest first; only a verified one may come here."""
        if record.kind is Kind.KEY_CHANGE:
            limit = int.from_bytes(record.subject[8:], "big")
            limit = min(limit, record.link.seq - 1)
            held = self._valid_up_to.get(record.subject[:8])
            self._valid_up_to[record.subject[:8]] = limit if held is None else max(held, limit)

    def covers(self, key_id: str, seq: int) -> bool:
        """True when a record vouches for what this key sealed at this seq."""
        return self.covers_hash(hash8(key_id), seq)

    def covers_hash(self, key_hash: bytes, seq: int) -> bool:
        """The same for the hash of a key's id."""
        return seq <= self._valid_up_to.get(key_hash, -1)


def decide_standing(
    walked: Sequence[tuple[RecordHead, str | None]],
) -> Sequence[bool]:
    """Decides from which records of a whole walk a walk of its own would come through as well.

    One that begins below a ``K`` record does not meet it, so what a retired key sealed further
    down would be without the word that it counts.

    Args:
        walked: Records from the head down to the beginning, each with the retired key that sealed
            it and that needs such a word, or None.
    """
    standing: list[bool] = []
    lacking: dict[bytes, int] = {}
    for record, retired in reversed(walked):
        if record.kind is Kind.KEY_CHANGE:
            limits = KeyLimits()
            limits.learn(record)
            subject = record.subject[:8]
            if subject in lacking and limits.covers_hash(subject, lacking[subject]):
                del lacking[subject]
        if retired is not None:
            subject = hash8(retired)
            lacking[subject] = max(lacking.get(subject, 0), record.link.seq)
        standing.append(not lacking)
    return standing[::-1]


def decide_given_up(record: RecordHead, restores: Iterable[tuple[int, int]]) -> bool:
    """Decides whether an ordered restore has given a record up.

    Args:
        record: A verified record.
        restores: Epoch and target's seq of each restore that may have been published. Its epoch is
            above those of all that it gave up, and below none that was written later.
    """
    return any(record.epoch < epoch and record.link.seq > to for epoch, to in restores)
