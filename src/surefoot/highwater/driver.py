"""What every SQL high-water store shares: the port's methods over named statements.

A driver says how a statement is carried out and what a failure means; which statement a
method is, what goes in, and what a row must look like to be believed is here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from surefoot.errors import Closed, MarkCorrupt, Misuse
from surefoot.ports import Admission, Lease, Mark, Publish

__all__ = ["REPEATABLE", "WRITES", "SqlHighWater", "decode_mark", "missing_facts"]

#: Statements that change a mark.
WRITES = frozenset({"create", "acquire", "admit", "publish", "renew"})

#: Statements that may be sent again when the answer was lost: to repeat them changes nothing.
REPEATABLE = frozenset(
    {"read", "marks", "marks_with_intents", "renew", "durability", "identity", "shape"}
)

_STATES = frozenset({"live", "tombstone", "frozen"})
_DIGEST_BYTES = 32
_COLUMNS = 12
_NUMBER_MAX = 2**63 - 1
#: 34 years; keeps the sum with any clock inside 64 bits.
_TTL_MAX_MS = 2**40

Row = Sequence[Any]
T = TypeVar("T")


def encode_text(text: str) -> bytes:
    """UTF-8 bytes; lone surrogates survive, and the order is that of the code points."""
    return text.encode("utf-8", "surrogatepass")


def missing_facts(expected: Collection[str], found: Collection[str]) -> str:
    """Names what of the expected shape is not there; empty when all of it is."""
    return ", ".join(sorted(set(expected) - set(found)))


# --- from the database: believed only after these checks ---------------------------------------


def _number(row: Row, index: int, name: str, lowest: int, thread: str | None) -> int:
    value = row[index]
    if type(value) is not int or not lowest <= value <= _NUMBER_MAX:
        raise MarkCorrupt(thread=thread, reason=f"{name} is not a number from {lowest} on")
    return value


def _flag(row: Row, index: int, name: str, thread: str | None) -> bool:
    value = row[index]
    if not (value is True or value is False or (type(value) is int and value in {0, 1})):
        raise MarkCorrupt(thread=thread, reason=f"{name} is neither true nor false")
    return bool(value)


def _bytes(row: Row, index: int, name: str, thread: str | None) -> bytes:
    value = row[index]
    if not isinstance(value, bytes):
        raise MarkCorrupt(thread=thread, reason=f"{name} is not bytes")
    return value


def _text(value: bytes, name: str, thread: str | None) -> str:
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise MarkCorrupt(thread=thread, reason=f"{name} is not UTF-8") from None


def decode_mark(row: Row, thread: str | None) -> Mark:
    """Turns a row into a mark, or refuses it.

    Args:
        row: The twelve columns in the order of `Mark`'s fields.
        thread: Id of the thread, for the message.

    Raises:
        MarkCorrupt: Something in the row cannot be part of a mark.
    """
    if len(row) != _COLUMNS:
        raise MarkCorrupt(thread=thread, reason=f"{len(row)} columns instead of {_COLUMNS}")
    digest = _bytes(row, 2, "digest", thread)
    if len(digest) != _DIGEST_BYTES:
        raise MarkCorrupt(thread=thread, reason=f"digest has {len(digest)} bytes, not 32")
    state = row[7].decode("ascii", "replace") if isinstance(row[7], bytes) else row[7]
    if not isinstance(state, str) or state not in _STATES:
        raise MarkCorrupt(thread=thread, reason="state is unknown")
    seq = _number(row, 1, "seq", 0, thread)
    if seq == 0 and any(digest):
        raise MarkCorrupt(thread=thread, reason="a digest, but nothing published")
    return Mark(
        incarnation=_number(row, 0, "incarnation", 1, thread),
        seq=seq,
        digest=digest,
        epoch=_number(row, 3, "epoch", 1, thread),
        owner=_text(_bytes(row, 4, "owner", thread), "owner", thread),
        lease_left_ms=_number(row, 5, "lease_left_ms", -_NUMBER_MAX, thread),
        step=_number(row, 6, "step", -_NUMBER_MAX, thread),
        state=state,
        clean=_flag(row, 8, "clean", thread),
        tainted=_flag(row, 9, "tainted", thread),
        resumes=_number(row, 10, "resumes", 0, thread),
        intents=_bytes(row, 11, "intents", thread),
    )


def _at_most_one(rows: Sequence[Row], thread: str) -> Mark | None:
    if len(rows) > 1:
        raise MarkCorrupt(thread=thread, reason=f"{len(rows)} rows for one thread")
    return decode_mark(rows[0], thread) if rows else None


# --- from the caller: wrong values never travel ------------------------------------------------


def _check_range(name: str, value: int, lowest: int, highest: int = _NUMBER_MAX) -> None:
    if type(value) is not int or not lowest <= value <= highest:
        raise Misuse(field=name, reason=f"must be a whole number from {lowest} to {highest}")


def _check_lease(lease: Lease) -> None:
    _check_range("Lease.ttl_ms", lease.ttl_ms, 1, _TTL_MAX_MS)


def _check_admission(admission: Admission) -> None:
    """Refuses what no mark may be from the start."""
    _check_lease(admission.lease)
    _check_range("Admission.incarnation", admission.incarnation, 1)
    _check_range("Admission.seq", admission.seq, 1)
    _check_range("Admission.epoch", admission.epoch, 1)
    _check_range("Admission.step", admission.step, -_NUMBER_MAX)
    if len(admission.digest) != _DIGEST_BYTES:
        raise Misuse(field="Admission.digest", reason="must have 32 bytes")
    if admission.state not in {"live", "frozen"}:
        raise Misuse(field="Admission.state", reason="must be live or frozen")


def _check_publish(publish: Publish) -> None:
    """Refuses what no mark may become: lower, another digest at the same height, malformed."""
    _check_range("Publish.epoch", publish.epoch, 0)
    _check_range("Publish.seq", publish.seq, 0)
    _check_range("Publish.new_seq", publish.new_seq, publish.seq)
    _check_range("Publish.step", publish.step, -_NUMBER_MAX)
    _check_range("Publish.ttl_ms", publish.ttl_ms, 0, _TTL_MAX_MS)
    for name, digest in (("digest", publish.digest), ("new_digest", publish.new_digest)):
        if len(digest) != _DIGEST_BYTES:
            raise Misuse(field=f"Publish.{name}", reason="must have 32 bytes")
    if publish.new_seq == publish.seq and publish.new_digest != publish.digest:
        raise Misuse(field="Publish.new_digest", reason="must not change at the same seq")
    if publish.new_seq == 0 and any(publish.new_digest):
        raise Misuse(field="Publish.new_digest", reason="must be zero at seq 0")
    if publish.state not in _STATES:
        raise Misuse(field="Publish.state", reason="must be live, tombstone or frozen")


class SqlHighWater(ABC):
    """The high-water port over named SQL statements; one statement per method."""

    shown: str

    @abstractmethod
    def _run(
        self,
        name: str,
        params: Mapping[str, Any],
        decode: Callable[[Sequence[Row]], T],
        *,
        thread: str | None,
    ) -> T:
        """Carries out one named statement in a transaction of its own.

        Args:
            name: Of the statement.
            params: Its parameters.
            decode: Turns the rows into the answer; may raise `MarkCorrupt`.
            thread: Id of the thread, for messages.

        Raises:
            StoreUnavailable: Nothing was changed.
            OutcomeUnknown: It was sent and the answer was lost.
            NotSetUp: There is no table.
            MarkCorrupt: The answer cannot be believed.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"

    def _ids(self, tenant: str, thread: str) -> dict[str, Any]:
        return {"tenant": encode_text(tenant), "thread": encode_text(thread)}

    def read(self, tenant: str, thread: str) -> Mark | None:
        """The mark, or None when the thread was never seen.

        Raises:
            MarkCorrupt: The row cannot be believed.
            StoreUnavailable: The store did not answer.
            NotSetUp: There is no table.
        """
        ids = self._ids(tenant, thread)
        return self._run("read", ids, lambda rows: _at_most_one(rows, thread), thread=thread)

    def create(self, tenant: str, thread: str, lease: Lease) -> Mark | None:
        """Creates the mark of a new thread with epoch 1 and the lease taken (P1).

        Returns:
            The mark, or None when one exists already.

        Raises:
            Misuse: The lease is not from 1 ms to 34 years.
            OutcomeUnknown: The answer was lost; read the mark again.
        """
        _check_lease(lease)
        params = {
            **self._ids(tenant, thread),
            "owner": encode_text(lease.owner),
            "ttl_ms": lease.ttl_ms,
        }
        return self._run("create", params, lambda rows: _at_most_one(rows, thread), thread=thread)

    def acquire(
        self, tenant: str, thread: str, lease: Lease, *, over_epoch: int | None = None
    ) -> Mark | None:
        """Takes the lease if it is free, or if the mark still has ``over_epoch`` (P1).

        Returns:
            The mark after the acquisition, or None when there is none or it is not free.

        Raises:
            Misuse: The lease is not from 1 ms to 34 years.
            OutcomeUnknown: The answer was lost; an epoch may have been used up.
        """
        _check_lease(lease)
        if over_epoch is not None:
            _check_range("over_epoch", over_epoch, 0)
        params = {
            **self._ids(tenant, thread),
            "owner": encode_text(lease.owner),
            "ttl_ms": lease.ttl_ms,
            "over_epoch": over_epoch,
        }
        return self._run("acquire", params, lambda rows: _at_most_one(rows, thread), thread=thread)

    def admit(self, tenant: str, thread: str, admission: Admission) -> Mark | None:
        """Creates a mark that was lost, tainted and with the lease taken.

        Returns:
            The mark, or None when one exists; then nothing has changed.

        Raises:
            Misuse: No mark may be like that.
            OutcomeUnknown: The answer was lost; read the mark again.
        """
        _check_admission(admission)
        params = {
            **self._ids(tenant, thread),
            "incarnation": admission.incarnation,
            "seq": admission.seq,
            "digest": bytes(admission.digest),
            "epoch": admission.epoch,
            "step": admission.step,
            "owner": encode_text(admission.lease.owner),
            "ttl_ms": admission.lease.ttl_ms,
            "state": admission.state,
        }
        return self._run("admit", params, lambda rows: _at_most_one(rows, thread), thread=thread)

    def publish(self, tenant: str, thread: str, publish: Publish) -> bool:
        """Compare-and-set on (epoch, seq, digest): the commit point (P4).

        Returns:
            False when the mark is not as expected; nothing has changed then.

        Raises:
            Misuse: The new mark would be lower or malformed, or the thread is a tombstone and
                the new state is not.
            OutcomeUnknown: The answer was lost; read the mark again.
        """
        _check_publish(publish)
        params = {
            **self._ids(tenant, thread),
            "epoch": publish.epoch,
            "seq": publish.seq,
            "digest": bytes(publish.digest),
            "new_seq": publish.new_seq,
            "new_digest": bytes(publish.new_digest),
            "step": publish.step,
            "intents": bytes(publish.intents),
            "ttl_ms": publish.ttl_ms,
            "clean": bool(publish.clean),
            "folded": bool(publish.folded),
            "state": publish.state,
        }
        return self._run("publish", params, bool, thread=thread)

    def renew(self, tenant: str, thread: str, epoch: int, ttl_ms: int) -> bool:
        """Extends the lease if the epoch is still ours.

        Raises:
            Misuse: ``ttl_ms`` is not from 1 ms to 34 years.
        """
        _check_range("ttl_ms", ttl_ms, 1, _TTL_MAX_MS)
        _check_range("epoch", epoch, 0)
        params = {**self._ids(tenant, thread), "epoch": epoch, "ttl_ms": ttl_ms}
        return self._run("renew", params, bool, thread=thread)

    def marks(
        self, tenant: str, *, after_thread: str | None = None, limit: int = 1_000
    ) -> Sequence[tuple[str, Mark]]:
        """(thread id, mark) ordered by thread id (by code points), at most ``limit``.

        Args:
            tenant: Whose threads.
            after_thread: Only ids greater than this one.
            limit: At most this many.
        """
        return self._page("marks", tenant, after_thread, limit)

    def marks_with_intents(
        self, tenant: str, *, after_thread: str | None = None, limit: int = 1_000
    ) -> Sequence[tuple[str, Mark]]:
        """The same of marks whose intents are not empty (rule E5); see `marks`."""
        return self._page("marks_with_intents", tenant, after_thread, limit)

    def _page(
        self, name: str, tenant: str, after_thread: str | None, limit: int
    ) -> Sequence[tuple[str, Mark]]:
        _check_range("limit", limit, 1)
        # The next larger byte string is the same one with a zero byte behind it.
        start = b"" if after_thread is None else encode_text(after_thread) + b"\0"
        params = {"tenant": encode_text(tenant), "from_thread": start, "page": limit}

        def decode(rows: Sequence[Row]) -> list[tuple[str, Mark]]:
            pairs = []
            for row in rows:
                thread = _text(_bytes(row, 0, "thread", None), "thread", None)
                pairs.append((thread, decode_mark(row[1:], thread)))
            return pairs

        return self._run(name, params, decode, thread=None)

    def _closed(self) -> Closed:
        return Closed(field=self.shown)
