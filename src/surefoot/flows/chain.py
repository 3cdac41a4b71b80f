"""Reading a journal: verified records of one thread, newest first (step P2).

Nothing leaves this module that has not been verified against the thread's identity, its
seals, and the chain that ends in the published head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from surefoot.errors import KeyMissing, TamperDetected
from surefoot.flows.cover import cover_of
from surefoot.ports import FrameRow, Ports, ThreadRow
from surefoot.rules.bodies import BodyError, PruneBody, RestoreBody
from surefoot.rules.chain import KeyLimits, decide_tail
from surefoot.rules.envelope import (
    EnvelopeError,
    Frame,
    Identity,
    Kind,
    Link,
    RecordHead,
    verify_frame,
)

__all__ = ["Chain", "verify_rows"]


def verify_rows(
    ports: Ports,
    identity: Identity,
    rows: Iterable[FrameRow],
    broken: list[TamperDetected | KeyMissing] | None = None,
) -> list[Frame]:
    """Verifies rows, or refuses all of them (rule R6), and then decrypts their bodies.

    What a retired key sealed verifies here; whether it counts is decided on the chain.

    Args:
        ports: Keys.
        identity: Whose journal.
        rows: As stored.
        broken: Collects what does not verify instead of raising it, for reports and restores.

    Raises:
        TamperDetected: A row does not verify.
        KeyMissing: A row is sealed or encrypted with a key that the ring does not hold.
    """

    def seal_key_of(key_id: str) -> bytes:
        return ports.seals.verifying_key(key_id, identity.tenant, identity.thread)

    cover = cover_of(ports, identity)
    frames: list[Frame] = []
    for row in rows:
        problem: TamperDetected | KeyMissing
        try:
            frame = verify_frame(identity, row.last_seq, row.epoch, row.head, row.body, seal_key_of)
            frames.append(replace(frame, records=tuple(map(cover.open_record, frame.records))))
            continue
        except (EnvelopeError, BodyError) as error:
            problem = TamperDetected(
                thread=identity.thread, what="the journal", seq=row.last_seq, reason=str(error)
            )
        except KeyMissing as error:
            # A changed key id looks like an unknown key; say which record asked for it.
            problem = KeyMissing(
                **{
                    **error.fields,
                    "reason": f"{error.fields['reason']} (record {row.last_seq} of thread "
                    f"{identity.thread!r} needs it)",
                }
            )
        if broken is None:
            raise problem
        broken.append(problem)
    return frames


class Chain:
    """A thread's chain as seen from one head.

    Args:
        ports: Stores and keys.
        identity: Whose journal.
        row: The thread's row.
        head: The head that B published (or that a live session extended).
        rows: Newest frames that were read together with the row, newest first.
        lenient: Pass over rows that do not verify, for reports and ordered restores; what the
            chain names has to verify all the same.
        vouched: Retired keys whose seals count, because an operator's order says so.
    """

    def __init__(
        self,
        ports: Ports,
        identity: Identity,
        row: ThreadRow,
        head: Link,
        rows: Sequence[FrameRow],
        *,
        lenient: bool = False,
        vouched: Collection[str] = (),
    ) -> None:
        self._ports = ports
        #: Rows that did not verify and were passed over.
        self.broken: list[TamperDetected | KeyMissing] = []
        self._lenient = lenient
        self._vouched = frozenset(vouched)
        self.identity = identity
        self.row = row
        self.head = head
        self._by_digest: dict[bytes, RecordHead] = {}
        self._floors: dict[tuple[int, int], int] = {}
        self._key_ids: dict[tuple[int, int], str] = {}
        self._frame_of: dict[bytes, tuple[int, int]] = {}
        self._frames: list[Frame] = []
        self._lowest: int | None = None
        self._exhausted = False
        self._pending = _Pending(self)
        self._take(rows)
        self._exhausted = not rows

    # --- facts for decide_resume ----------------------------------------------------------------

    def has_head(self) -> bool:
        """A verified record has the head's seq and digest (or nothing is published)."""
        if self.head.seq == 0:
            return True
        return self.holds(self.head)

    def holds(self, at: Link) -> bool:
        """A verified record has this seq and digest, on the chain or not."""
        self._page_to(at.seq)
        found = self._by_digest.get(at.digest)
        return found is not None and found.link.seq == at.seq

    def has_sibling(self) -> bool:
        """A verified record has the head's seq, whatever its digest."""
        return any(r.link.seq == self.head.seq for r in self._by_digest.values())

    def highest_seq(self) -> int:
        """Highest verified seq; 0 when there is none."""
        return max((f.last_seq for f in self._frames), default=0)

    def tail(self) -> Sequence[RecordHead]:
        """Records beyond the head that are adopted (rule R5), oldest first.

        What a retired key sealed is never adopted: nobody vouches for it.
        """
        return decide_tail(
            self.head, [f for f in self._frames if not self._ports.seals.is_retired(f.key_id)]
        )

    def beyond(self) -> int:
        """Number of stored records beyond the head."""
        return sum(r.link.seq > self.head.seq for r in self._by_digest.values())

    def early_floor(self, record: RecordHead) -> int:
        """The early floor of the frame that holds a record."""
        return self._floors.get(self._frame_of[record.link.digest], 0)

    def key_id(self, record: RecordHead) -> str:
        """Id of the key that seals a record."""
        return self._key_ids[self._frame_of[record.link.digest]]

    def written_before(self, record: RecordHead) -> list[RecordHead]:
        """Heads of pending writes on a checkpoint that were stored before it, newest first.

        Its frame says how far down to look. The records of the chain are met once for all of its
        checkpoints, however many ask.

        Raises:
            TamperDetected: A record that the chain names is missing or does not verify.
        """
        floor = self.early_floor(record)
        if not floor:
            return []
        found = self._pending.down_to(floor, record.subject)
        return [r for r in found if floor <= r.link.seq < record.link.seq]

    def frame_key(self, record: RecordHead) -> tuple[int, int]:
        """(last_seq, epoch) of the frame that holds a record."""
        return self._frame_of[record.link.digest]

    def everything(self) -> list[RecordHead]:
        """Every stored record that verifies, on the chain or not, newest first."""
        while not self._exhausted:
            self._page_to(-1)
        return sorted(self._by_digest.values(), key=lambda r: (r.link.seq, r.epoch), reverse=True)

    # --- walking --------------------------------------------------------------------------------

    def walk(self, *, tail: bool = True, bodies: bool = True) -> Iterator[RecordHead]:
        """Verified records of the chain, newest first, down to its beginning.

        Args:
            tail: Begin with the adopted tail.
            bodies: Give bodies. Without, older pages are read as heads only.

        Raises:
            TamperDetected: A record that the chain names is missing or does not verify.
        """
        if tail:
            yield from reversed(self.tail())
        at = self.head
        limits = KeyLimits()
        while at.seq > 0:
            record = self._need(at, bodies=bodies)
            self._require_key(record, limits)
            yield record
            if record.kind is Kind.PRUNE:
                yield from self._below_prune(record, limits, bodies=bodies)
                return
            at = Link(at.seq - 1, record.prev)
            if record.kind is Kind.RESTORE:
                at = self._restored(record)
        if at.digest != bytes(32):
            raise self._broken(at.seq, "the chain does not begin where it should")

    def _require_key(self, record: RecordHead, limits: KeyLimits) -> None:
        """Refuses what a retired key sealed, except where a ``K`` record above vouches for it."""
        limits.learn(record)
        key_id = self.key_id(record)
        if key_id in self._vouched:
            return
        if self._ports.seals.is_retired(key_id) and not limits.covers(key_id, record.link.seq):
            raise KeyMissing(
                key_id=key_id,
                reason=(
                    f"{key_id!r} is retired, and no record of thread {self.identity.thread!r} says "
                    f"that it still counted at record {record.link.seq}; run `surefoot keys retire "
                    f"{key_id}` on this database with the key enabled"
                ),
            )

    def _restored(self, record: RecordHead) -> Link:
        """Where the chain goes on below an ordered restore (rule E6)."""
        (full,) = self.with_bodies([record])
        try:
            body = RestoreBody.unpack(full.schema, full.body or b"")
        except BodyError as error:
            raise self._broken(record.link.seq, str(error)) from None
        if body.to_seq >= record.link.seq:
            raise self._broken(record.link.seq, "a restore that does not go back")
        return Link(body.to_seq, body.to_digest)

    def _below_prune(
        self, prune: RecordHead, limits: KeyLimits, *, bodies: bool
    ) -> Iterator[RecordHead]:
        """Below a prune the chain is exactly what the prune kept."""
        body = prune.body
        if body is None:
            body = self._need(prune.link, bodies=True).body
        if body is None:
            raise self._broken(prune.link.seq, "a prune record without its body")
        try:
            kept = PruneBody.unpack(prune.schema, body)
        except BodyError as error:
            raise self._broken(prune.link.seq, str(error)) from None
        hidden = frozenset(kept.hidden)
        for entry in kept.kept:
            self._load_kept(entry.last_seq, entry.epoch, entry.link_digest, bodies=bodies)
            at = Link(entry.link_seq, entry.link_digest)
            key = (entry.last_seq, entry.epoch)
            while True:
                record = self._by_digest.get(at.digest)
                if record is None or record.link.seq != at.seq:
                    raise self._broken(at.seq, "a kept record is missing")
                self._require_key(record, limits)
                if at.seq not in hidden:
                    yield record
                before = self._by_digest.get(record.prev)
                if before is None or self._frame_of[before.link.digest] != key:
                    break
                at = before.link

    def _load_kept(self, last_seq: int, epoch: int, digest: bytes, *, bodies: bool) -> None:
        held = self._by_digest.get(digest)
        if held is not None and (held.body is not None or not bodies):
            return
        rows = self._ports.store.read_frames(self.row.key, [(last_seq, epoch)])
        if not rows:
            raise self._broken(last_seq, "a kept frame is missing")
        self._take(rows, keep_lowest=True)

    def with_bodies(self, records: Sequence[RecordHead]) -> list[RecordHead]:
        """The same records with their bodies, read where they are not at hand."""
        lacking = {self._frame_of[r.link.digest] for r in records if r.body is None}
        if lacking:
            rows = self._ports.store.read_frames(self.row.key, sorted(lacking, reverse=True))
            self._take(rows, keep_lowest=True)
        out: list[RecordHead] = []
        for record in records:
            full = self._by_digest.get(record.link.digest)
            if full is None or full.body is None:
                raise self._broken(record.link.seq, "a record's body is missing")
            out.append(full)
        return out

    def jump(self, seq: int) -> None:
        """Reads all heads down to a seq in one statement, before a walk without bodies."""
        if self._lowest is not None and self._lowest > seq:
            rows = self._ports.store.read_heads(
                self.row.key, from_seq=max(seq, 1), to_seq=self._lowest - 1
            )
            self._take(rows)
            self._lowest = min(self._lowest, max(seq, 1))

    # --- pages ----------------------------------------------------------------------------------

    def _need(self, at: Link, *, bodies: bool) -> RecordHead:
        self._page_to(at.seq)
        record = self._by_digest.get(at.digest)
        if record is None or record.link.seq != at.seq:
            raise self._broken(at.seq, "a record that the chain names is not stored")
        if bodies and record.body is None:
            # Where one head was read without its body, its neighbours below were as well.
            self._take(self._page(self._frame_of[at.digest][0] + 1), keep_lowest=True)
            (record,) = self.with_bodies([record])
        return record

    def _page(self, below_seq: int | None) -> Sequence[FrameRow]:
        _, rows = self._ports.store.read_newest(
            self.identity.tenant,
            self.identity.thread,
            limit=self._ports.limits.read_page_frames,
            below_seq=below_seq,
        )
        return rows

    def _page_to(self, seq: int) -> None:
        """Reads older pages until frames with this seq must have been among them."""
        while not self._exhausted and (self._lowest is None or self._lowest > seq):
            rows = self._page(self._lowest)
            if not rows:
                self._exhausted = True
                return
            before = self._lowest
            self._take(rows)
            # Below seq 1 there may be rows, but no records: they would come back with every page.
            self._exhausted = self._lowest == before

    def _take(self, rows: Sequence[FrameRow], *, keep_lowest: bool = False) -> None:
        for frame in verify_rows(
            self._ports, self.identity, rows, self.broken if self._lenient else None
        ):
            self._frames.append(frame)
            key = (frame.last_seq, frame.epoch)
            # The floor is sealed, but no digest covers it: from a retired key it is worth nothing,
            # so everything is looked at, once (see `written_before`).
            retired = self._ports.seals.is_retired(frame.key_id)
            self._floors[key] = 1 if retired else frame.early_floor
            self._key_ids[key] = frame.key_id
            for record in frame.records:
                held = self._by_digest.get(record.link.digest)
                if held is not None and held.body is not None and record.body is None:
                    continue
                self._by_digest[record.link.digest] = record
                self._frame_of[record.link.digest] = key
        if rows and not keep_lowest:
            lowest = min((row.last_seq for row in rows if row.last_seq > 0), default=1)
            self._lowest = lowest if self._lowest is None else min(self._lowest, lowest)

    def _broken(self, seq: int, reason: str) -> TamperDetected:
        return TamperDetected(thread=self.identity.thread, what="the chain", seq=seq, reason=reason)


class _Pending:
    """Which records of a chain are pending writes on which checkpoint.

    The chain is walked as far down as was asked for, and never twice.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._head: Link | None = None
        self._met: set[bytes] = set()
        self._pruned = False
        self._by_subject: dict[bytes, list[RecordHead]] = {}
        self._walk: Iterator[RecordHead] = iter(())
        self._at: int | None = None

    def down_to(self, floor: int, subject: bytes) -> Sequence[RecordHead]:
        """Pending writes with a subject, newest first; those below the floor may be among them.

        Raises:
            TamperDetected: A record that the chain names is missing or does not verify.
        """
        head = self._chain.head
        if head != self._head and head.digest not in self._met:
            self._begin(head)
        if self._at is None or self._at >= floor:
            self._chain.jump(floor)
            self._go_on(floor)
        return self._by_subject.get(subject, ())

    def _begin(self, head: Link) -> None:
        self._head = head
        self._met = set()
        self._pruned = False
        self._by_subject = {}
        self._walk = self._chain.walk(tail=False, bodies=False)
        self._at = None

    def _go_on(self, floor: int) -> None:
        try:
            for record in self._walk:
                self._at = record.link.seq
                if record.kind is Kind.WRITES:
                    self._by_subject.setdefault(record.subject, []).append(record)
                # Seen from a head below a prune the chain is not what the prune kept.
                if not self._pruned:
                    self._met.add(record.link.digest)
                self._pruned = self._pruned or record.kind is Kind.PRUNE
                if self._at < floor:
                    return
        except BaseException:
            self._head, self._met = None, set()  # whoever asks next meets the same obstacle
            raise
        self._at = 0
