"""Ports: what the flows need from the outside, as protocols only.

Drivers live in ``surefoot.store`` and ``surefoot.highwater``; tests and users may wrap or
replace them. Every method either answers or raises one of `surefoot.errors`; drivers turn
their library's exceptions into `StoreUnavailable`, `OutcomeUnknown` or `NotSetUp` and never
let a secret of the connection string into a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from surefoot.config import Limits, ResumePolicy
from surefoot.rules.decisions import SignedDecision
from surefoot.rules.lease import HolderFacts
from surefoot.tally import Tally

__all__ = [
    "Admission",
    "Append",
    "ChunkRow",
    "Ciphers",
    "ContentStore",
    "FrameRow",
    "HeadRow",
    "HighWater",
    "Host",
    "Kept",
    "Lease",
    "LogRef",
    "Mark",
    "Ports",
    "Publish",
    "Seals",
    "Serializer",
    "Signatures",
    "StoredValues",
    "ThreadRow",
]


# --- the content store (A) ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeadRow:
    """Where the database says a thread's journal ends. A gate for writers, never trusted."""

    seq: int
    epoch: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """The one row per thread.

    Attributes:
        key: Number that all other tables refer to.
        tenant: As given by the user.
        thread: As given by the user.
        incarnation: 1 for the first life of a thread id, + 1 after each deletion.
        head: See `HeadRow`.
        updated_us: Microseconds since the epoch on the database's clock.
    """

    key: int
    tenant: str
    thread: str
    incarnation: int
    head: HeadRow
    updated_us: int


@dataclass(frozen=True, slots=True)
class FrameRow:
    """A stored frame, unverified. ``body`` is None when only heads were asked for."""

    last_seq: int
    epoch: int
    head: bytes
    body: bytes | None


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A piece of a list. ``log_id`` and ``ordinal`` (from 0) are unique within a thread."""

    log_id: int
    ordinal: int
    body: bytes


@dataclass(frozen=True, slots=True)
class LogRef:
    """The first ``count`` chunks of a log."""

    log_id: int
    count: int


@dataclass(frozen=True, slots=True)
class StoredValues:
    """Answer of `ContentStore.read_values`.

    Attributes:
        values: Stored bytes by digest; digests that are not stored are absent.
        chunks: Stored chunks by log id, ordered by ordinal; shorter than asked for if rows
            are missing.
        tips: By log id, the number of chunks of the whole log (highest ordinal + 1).
    """

    values: Mapping[bytes, bytes]
    chunks: Mapping[int, Sequence[bytes]]
    tips: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Append:
    """One transaction of the journal: all of it is stored, or nothing.

    Attributes:
        tenant: Of the thread.
        thread: Id of the thread.
        incarnation: Stored with a new thread row.
        expected: The head row as the writer knows it; None when there must be no row yet.
        head: The new head row.
        frame: The frame; its key is (last_seq, epoch).
        checkpoint_hash: 8 bytes (signed 64-bit when stored) that find the frame by checkpoint
            id later; None when the frame holds no checkpoint.
        values: Content-addressed rows, digest and bytes; rows that exist are left alone.
        chunks: List chunks; a chunk that exists is an error and nothing is stored.
        run_ids: Run ids to be found by `threads_of_runs`; known pairs are left alone.
        has_open: The thread may have an open effect; found by `threads_with_open`.
    """

    tenant: str
    thread: str
    incarnation: int
    expected: HeadRow | None
    head: HeadRow
    frame: FrameRow
    checkpoint_hash: bytes | None = None
    values: Sequence[tuple[bytes, bytes]] = ()
    chunks: Sequence[ChunkRow] = ()
    run_ids: Sequence[str] = ()
    has_open: bool = True


@dataclass(frozen=True, slots=True)
class Kept:
    """What survives a collection; everything else of the thread is deleted.

    Attributes:
        head: The thread's head row when this was worked out; if it has moved, somebody writes,
            and nothing is deleted.
        frames: (last_seq, epoch) of frames to keep.
        above_seq: Frames with a higher last_seq are kept as well.
        values: Digests to keep.
        logs: For each log id the number of chunks to keep.
    """

    head: HeadRow
    frames: Sequence[tuple[int, int]]
    above_seq: int
    values: Sequence[bytes]
    logs: Mapping[int, int]


class ContentStore(Protocol):
    """The content store (A): not trusted for integrity or freshness."""

    shown: str

    def server_identity(self) -> str:
        """Text that is equal for two addresses of the same server or file."""

    def setup(self, *, verify_only: bool = False) -> None:
        """Creates or migrates the tables, or only checks that they are as they should be."""

    def check_durability(self) -> None:
        """Refuses a database that may lose acknowledged commits (P0)."""

    def read_thread(self, tenant: str, thread: str) -> ThreadRow | None:
        """The thread's row, or None."""

    def read_newest(
        self, tenant: str, thread: str, *, limit: int, below_seq: int | None = None
    ) -> tuple[ThreadRow | None, Sequence[FrameRow]]:
        """The thread's row and its newest frames with bodies, newest first, in one statement.

        Args:
            tenant: Of the thread.
            thread: Id of the thread.
            limit: At most this many frames. Frames of equal last_seq are never split: further
                frames with the last_seq of the last one are returned as well.
            below_seq: Only frames with a lower last_seq.
        """

    def find_checkpoint(self, key: int, checkpoint_hash: bytes) -> Sequence[tuple[int, int]]:
        """(last_seq, epoch) of frames that may hold the checkpoint, newest first."""

    def read_heads(
        self, key: int, *, from_seq: int, to_seq: int | None = None
    ) -> Sequence[FrameRow]:
        """Frames without bodies with from_seq <= last_seq (<= to_seq), newest first."""

    def read_frames(self, key: int, keys: Sequence[tuple[int, int]]) -> Sequence[FrameRow]:
        """The named frames with bodies, newest first; missing ones are absent."""

    def read_values(
        self, key: int, digests: Sequence[bytes], logs: Sequence[LogRef]
    ) -> StoredValues:
        """Values and list chunks, in one statement."""

    def append(self, append: Append) -> int | None:
        """Stores a transaction if the head row is as expected (step P3).

        Returns:
            The thread's key, or None when the head row was not as expected (nothing stored).

        Raises:
            OutcomeUnknown: The connection was lost before the commit was answered.
        """

    def append_within(self, work: Callable[[Any], Append]) -> int | None:
        """Runs a caller's statements and an append in one transaction: both, or nothing.

        Args:
            work: Gets a connection of the driver inside the transaction, and returns what to
                append. What it raises takes everything back and is raised here as it is.

        Returns:
            As `append` does; when the head row was not as expected, what ``work`` did is undone.

        Raises:
            OutcomeUnknown: The connection was lost before the commit was answered.
            TransactionEnded: ``work`` ended the transaction; nobody knows what is committed.
        """

    def collect(self, key: int, kept: Kept) -> bool:
        """Deletes what a published record permits to delete (step P6), in one transaction.

        Returns:
            False when the head row has moved; nothing is deleted then.
        """

    def discard_frames(self, key: int, keys: Sequence[tuple[int, int]]) -> None:
        """Deletes frames by (last_seq, epoch): they do not verify, and an order goes over them."""

    def delete_thread(self, key: int) -> None:
        """Deletes all rows of a thread after its tombstone is published (step P6)."""

    def threads(
        self, tenant: str, *, after_key: int = 0, limit: int = 1_000
    ) -> Sequence[ThreadRow]:
        """Thread rows in the order of their keys."""

    def threads_with_open(
        self, tenant: str, *, after_key: int = 0, limit: int = 1_000
    ) -> Sequence[ThreadRow]:
        """Rows of threads whose last append said ``has_open``, in the order of their keys.

        One statement, whatever the number of other threads. A hint: whoever can edit the database
        can change it.
        """

    def threads_of_runs(self, tenant: str, run_ids: Sequence[str]) -> Sequence[str]:
        """Ids of threads in which these runs have stored something."""

    def close(self) -> None:
        """Releases all connections."""


# --- the high-water store (B) ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """A thread's row in the high-water store.

    Attributes:
        incarnation: 1 for the first life of a thread id.
        seq: Number of the last published record; 0 when nothing is published.
        digest: Its digest; 32 zero bytes when nothing is published.
        epoch: Fencing epoch of the last acquisition; only grows, also across incarnations.
        owner: Text that describes the last acquirer.
        lease_left_ms: Time until the lease expires on the store's clock; 0 or less when free.
        step: Highest step of a published root checkpoint in this life.
        state: ``live``, ``tombstone`` or ``frozen``.
        clean: The owner released the thread with everything published.
        tainted: Some acquirer found it not clean, and the step has not been folded since.
        resumes: Takeovers without a clean release since the last progress.
        intents: Opaque bytes: the effects that may have fired (rule E5).
    """

    incarnation: int
    seq: int
    digest: bytes
    epoch: int
    owner: str
    lease_left_ms: int
    step: int
    state: str
    clean: bool
    tainted: bool
    resumes: int
    intents: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, slots=True)
class Lease:
    """Who asks for a thread, and for how long."""

    owner: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Admission:
    """The mark of a thread whose mark was lost, as an operator ordered it.

    Attributes:
        incarnation: Life that the stored records are sealed for.
        seq: Number of the record that becomes the head.
        digest: Its digest.
        epoch: Higher than every epoch that a stored record carries; a fence never restarts.
        step: Highest step of a stored root checkpoint.
        lease: Who carries out the order, and for how long.
        state: ``live``, or ``frozen`` for a thread that an earlier order had aborted.
    """

    incarnation: int
    seq: int
    digest: bytes
    epoch: int
    step: int
    lease: Lease
    state: str = "live"


@dataclass(frozen=True, slots=True)
class Publish:
    """One compare-and-set of the mark (step P4).

    Attributes:
        epoch: Must equal the mark's epoch.
        seq: Must equal the mark's seq.
        digest: Must equal the mark's digest.
        new_seq: Takes its place; may equal ``seq`` (release, intents only).
        new_digest: Likewise.
        step: Highest step of a published root checkpoint in this life.
        intents: The whole new value.
        ttl_ms: The lease is extended to this on the store's clock; 0 frees it.
        clean: Everything is published and no effect is open.
        folded: A root checkpoint is among the published records, so the taint ends and
            ``resumes`` starts again at 0.
        state: New state.
    """

    epoch: int
    seq: int
    digest: bytes
    new_seq: int
    new_digest: bytes
    step: int
    intents: bytes
    ttl_ms: int
    clean: bool = False
    folded: bool = False
    state: str = "live"


class HighWater(Protocol):
    """The high-water store (B): trusted, linearizable and durable per row, never rolled back."""

    shown: str

    def setup(self, *, verify_only: bool = False) -> None:
        """Creates the table, or only checks that it is as it should be."""

    def check_durability(self) -> None:
        """Refuses a store that may lose acknowledged writes (P0)."""

    def server_identity(self) -> str:
        """Text that is equal for two addresses of the same server or file."""

    def read(self, tenant: str, thread: str) -> Mark | None:
        """The mark, or None when the thread was never seen."""

    def create(self, tenant: str, thread: str, lease: Lease) -> Mark | None:
        """Creates the mark of a new thread with epoch 1 and the lease taken.

        Returns:
            The mark, or None when one exists already.
        """

    def acquire(
        self, tenant: str, thread: str, lease: Lease, *, over_epoch: int | None = None
    ) -> Mark | None:
        """Takes the lease if it is free: epoch + 1 (step P1). One statement.

        The mark's ``tainted`` becomes true unless it was clean; ``clean`` is cleared;
        ``resumes`` grows by one unless it was clean. A tombstone is born again: incarnation
        + 1, seq 0, zero digest, no intents, not tainted. A frozen mark is never acquired.

        Args:
            tenant: Of the thread.
            thread: Id of the thread.
            lease: Who asks, and for how long.
            over_epoch: Take it also when the lease is not free, if the mark still has this
                epoch (its holder is proven dead).

        Returns:
            The mark after the acquisition, or None when there is none or it is not free.
        """

    def admit(self, tenant: str, thread: str, admission: Admission) -> Mark | None:
        """Creates a mark that was lost, tainted and with the lease taken (an ordered adoption).

        Returns:
            The mark, or None when one exists.
        """

    def publish(self, tenant: str, thread: str, publish: Publish) -> bool:
        """Compare-and-set on (epoch, seq, digest).

        Returns:
            False when the mark is not as expected; nothing has changed then.

        Raises:
            OutcomeUnknown: The connection was lost before the answer.
        """

    def renew(self, tenant: str, thread: str, epoch: int, ttl_ms: int) -> bool:
        """Extends the lease if the epoch is still ours and the lease was not given back."""

    def marks(
        self, tenant: str, *, after_thread: str | None = None, limit: int = 1_000
    ) -> Iterable[tuple[str, Mark]]:
        """(thread id, mark) ordered by thread id."""

    def marks_with_intents(
        self, tenant: str, *, after_thread: str | None = None, limit: int = 1_000
    ) -> Iterable[tuple[str, Mark]]:
        """The same of marks whose intents are not empty; the store leaves out the others."""

    def close(self) -> None:
        """Releases all connections."""


# --- keys and values ---------------------------------------------------------------------------


class Seals(Protocol):
    """Gives thread-bound keys; never shows one."""

    def primary(self) -> str:
        """Id of the key that seals new records."""

    def seal_key(self, key_id: str, tenant: str, thread: str) -> bytes:
        """32 bytes for sealing this thread's records (HKDF-SHA-256)."""

    def verifying_key(self, key_id: str, tenant: str, thread: str) -> bytes:
        """The seal key, of a retired key as well; see `is_retired`."""

    def is_retired(self, key_id: str) -> bool:
        """True for a key whose seals count only up to where a ``K`` record says so."""

    def purpose_key(
        self, key_id: str, purpose: str, tenant: str, thread: str, *, even_retired: bool = False
    ) -> bytes:
        """32 bytes for another purpose, e.g. idempotency keys."""


class Ciphers(Protocol):
    """Encrypts what is stored of a thread; never shows a key."""

    def encrypt(self, tenant: str, thread: str, bound: bytes, plain: bytes) -> bytes:
        """Encrypted stored form of a plain one, under the primary key.

        Args:
            tenant: Of the thread.
            thread: Id of the thread.
            bound: What the form is bound to (`surefoot.rules.binding`); not part of it.
            plain: A stored form.
        """

    def decrypt(self, tenant: str, thread: str, bound: bytes, stored: bytes) -> bytes:
        """The stored form inside an encrypted one whose bytes have been verified.

        Raises:
            BodyError: It has no layout of an encrypted form.
            KeyMissing: The key is unknown or retired, or does not open it.
        """


class Serializer(Protocol):
    """Turns values into typed bytes and back; called only on verified bytes when reading."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Type tag and bytes."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value."""


class Signatures(Protocol):
    """Knows whose decisions count."""

    def check(self, signed: SignedDecision) -> None:
        """Raises `KeyMissing` or `DecisionRefused` unless one of them signed it."""


class Host(Protocol):
    """The process and its clocks."""

    def describe(self) -> str:
        """Text that goes into the mark as the owner of an acquisition; fresh each time."""

    def retire(self, owner: str) -> None:
        """Says that an acquisition of this process is over, whatever the store knows of it."""

    def holder(self, owner: str) -> HolderFacts:
        """What this host can say about another owner."""

    def shown(self, owner: str) -> str:
        """Readable form of an owner."""

    def monotonic_ms(self) -> int:
        """Milliseconds of the local monotonic clock."""

    def now_us(self) -> int:
        """Microseconds since the epoch; for people, never for decisions."""

    def pause(self, milliseconds: int) -> None:
        """Waits between two tries."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything a flow needs, wired once by ``surefoot.assembly``."""

    store: ContentStore
    marks: HighWater
    seals: Seals
    host: Host
    policy: ResumePolicy
    limits: Limits
    tenant: str
    reviewers: Signatures
    ciphers: Ciphers | None = None
    tally: Tally = field(default_factory=Tally)
