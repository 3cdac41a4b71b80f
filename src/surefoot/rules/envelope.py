"""The envelope, format version 1: how journal records are linked, digested and sealed.

A thread's journal is a chain of records. One or more records travel in a *frame*: one row,
one commit. The digest of a record is::

    SHA-256(TLV("rec/v1", tenant, thread, incarnation, seq, epoch, kind, schema, subject,
                prev, SHA-256(body), length of body, key id))

and a frame is sealed by one HMAC over the digest of its last record, which names all others
through ``prev``::

    HMAC-SHA-256(seal key, TLV("frame/v1", last digest, record count, early floor))

The bytes of a frame's head are final: they are written once and read for ever. What follows
the version byte may only change together with that byte. See docs/adr/0004.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

__all__ = [
    "FORMAT_VERSION",
    "GENESIS",
    "EnvelopeError",
    "Frame",
    "Identity",
    "Kind",
    "Link",
    "Record",
    "RecordHead",
    "SealedFrame",
    "checkpoint_subject",
    "hash8",
    "record_digest",
    "seal_frame",
    "tlv",
    "verify_frame",
]

FORMAT_VERSION = 1
#: ``prev`` of the first record of an incarnation.
GENESIS = bytes(32)
_MAX_RECORDS = 65_535
_DIGEST = 32
_SUBJECT = 16


class Kind(IntEnum):
    """Record kinds. The numbers are part of the format; unknown numbers are refused."""

    CHECKPOINT = ord("C")
    WRITES = ord("W")
    EFFECT = ord("E")
    ANCHORS = ord("N")
    DECISION = ord("D")
    FORK = ord("F")
    PRUNE = ord("P")
    TOMBSTONE = ord("X")
    RESTORE = ord("R")
    KEY_CHANGE = ord("K")
    EVENT = ord("V")


class EnvelopeError(ValueError):
    """A frame does not verify; ``str()`` says what, without any stored bytes."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose journal it is. Every seal is bound to it, so rows cannot be transplanted."""

    tenant: str
    thread: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Link:
    """A position in the chain: the number and the digest of a record."""

    seq: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A record about to be sealed.

    Attributes:
        kind: What it says.
        schema: Version of the body's layout.
        subject: 16 bytes that say what it is about, so that a reader of heads knows which
            bodies it needs; see `checkpoint_subject`.
        body: Stored bytes, as they go to the database.
    """

    kind: Kind
    schema: int
    subject: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class RecordHead:
    """A verified record's head, with its body when the frame was read with bodies."""

    link: Link
    prev: bytes
    epoch: int
    kind: Kind
    schema: int
    subject: bytes
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Frame:
    """A verified frame."""

    last_seq: int
    epoch: int
    key_id: str
    early_floor: int
    records: tuple[RecordHead, ...]


@dataclass(frozen=True, slots=True)
class SealedFrame:
    """A frame ready to be stored.

    Attributes:
        last_seq: Number of the last record; also the row's key together with ``epoch``.
        epoch: Fencing epoch of the writer.
        head: Version, key id, links, digests and seal.
        body: The records' stored bodies, one after the other.
        links: Position of each record.
    """

    last_seq: int
    epoch: int
    head: bytes
    body: bytes
    links: tuple[Link, ...]


def tlv(*fields: str | int | bytes) -> bytes:
    """Length-prefixed concatenation that no two different field lists share.

    Integers are 8 bytes big-endian, strings UTF-8 with surrogates passed through.
    """
    out: list[bytes] = []
    for item in fields:
        if isinstance(item, str):
            raw = item.encode("utf-8", "surrogatepass")
        elif isinstance(item, int):
            raw = item.to_bytes(8, "big")
        else:
            raw = item
        out.append(len(raw).to_bytes(4, "big"))
        out.append(raw)
    return b"".join(out)


@lru_cache(maxsize=1024)
def _identity_prefix(identity: Identity) -> bytes:
    return tlv("rec/v1", identity.tenant, identity.thread, identity.incarnation)


def hash8(text: str) -> bytes:
    """First 8 bytes of SHA-256 of a text: a lookup hint, never an identity."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]


@lru_cache(maxsize=4096)
def _namespace8(namespace: str) -> bytes:
    return hash8(namespace)


def checkpoint_subject(namespace: str, checkpoint_id: str) -> bytes:
    """Subject of records about a checkpoint: 8 bytes for the namespace, 8 for the id."""
    return _namespace8(namespace) + hash8(checkpoint_id)


def record_digest(
    identity: Identity,
    link_seq: int,
    epoch: int,
    record: tuple[int, int, bytes],
    prev: bytes,
    body: tuple[bytes, int],
    key_id: str,
) -> bytes:
    """Digest of one record; ``record`` is (kind, schema, subject), ``body`` (digest, length)."""
    kind, schema, subject = record
    return hashlib.sha256(
        _identity_prefix(identity)
        + tlv(link_seq, epoch, kind, schema, subject, prev, *body, key_id)
    ).digest()


def _frame_mac(seal_key: bytes, last_digest: bytes, count: int, early_floor: int) -> bytes:
    return hmac.digest(seal_key, tlv("frame/v1", last_digest, count, early_floor), "sha256")


def seal_frame(
    identity: Identity,
    epoch: int,
    after: Link,
    records: Sequence[Record],
    *,
    key_id: str,
    seal_key: bytes,
    early_floor: int = 0,
) -> SealedFrame:
    """Links, digests and seals records that follow ``after``.

    Args:
        identity: Whose journal.
        epoch: Fencing epoch of the writer.
        after: The chain's present head (seq 0 and `GENESIS` for a new journal).
        records: At least one.
        key_id: Name of the sealing key, stored in the head.
        seal_key: 32 bytes derived for this thread.
        early_floor: Lowest seq of pending writes whose checkpoint is not stored yet; 0 if none.

    Raises:
        ValueError: No record, too many, or a subject of the wrong length.
    """
    if not 0 < len(records) <= _MAX_RECORDS:
        raise ValueError("a frame holds 1 to 65535 records")
    key_bytes = key_id.encode("utf-8")
    if not 0 < len(key_bytes) < 256:
        raise ValueError("a key id has 1 to 255 bytes")
    seq, prev = after.seq, after.digest
    links: list[Link] = []
    heads: list[bytes] = []
    for record in records:
        if len(record.subject) != _SUBJECT:
            raise ValueError("a subject has 16 bytes")
        seq += 1
        body_digest = hashlib.sha256(record.body).digest()
        prev = record_digest(
            identity,
            seq,
            epoch,
            (record.kind, record.schema, record.subject),
            prev,
            (body_digest, len(record.body)),
            key_id,
        )
        links.append(Link(seq, prev))
        heads.append(
            bytes((record.kind, record.schema))
            + record.subject
            + len(record.body).to_bytes(4, "big")
            + body_digest
        )
    head = b"".join(
        (
            bytes((FORMAT_VERSION, len(key_bytes))),
            key_bytes,
            after.digest,
            early_floor.to_bytes(8, "big"),
            len(records).to_bytes(2, "big"),
            *heads,
            _frame_mac(seal_key, prev, len(records), early_floor),
        )
    )
    return SealedFrame(seq, epoch, head, b"".join(r.body for r in records), tuple(links))


class _Reader:
    """Cuts a head into fields without ever reading past its end."""

    __slots__ = ("_at", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._raw):
            raise EnvelopeError("the head is cut short")
        piece = self._raw[self._at : end]
        self._at = end
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def done(self) -> bool:
        return self._at == len(self._raw)


def verify_frame(
    identity: Identity,
    last_seq: int,
    epoch: int,
    head: bytes,
    body: bytes | None,
    seal_key_of: Callable[[str], bytes],
) -> Frame:
    """Verifies a stored frame; nothing of it may be used before this returns.

    Args:
        identity: Whose journal the row was found in.
        last_seq: The row's key as the database gave it; bound by the seal.
        epoch: Likewise.
        head: The row's head.
        body: The row's body, or None when only heads are read (links are verified then,
            bodies are not, and none is returned).
        seal_key_of: Gives the thread's seal key for a key id; may raise for unknown ids.

    Raises:
        EnvelopeError: Anything at all does not verify.
    """
    reader = _Reader(head)
    version = reader.number(1)
    if version != FORMAT_VERSION:
        raise EnvelopeError(f"format version {version} is not known to this release")
    try:
        key_id = reader.take(reader.number(1)).decode("utf-8")
    except UnicodeDecodeError:
        raise EnvelopeError("the key id is not text") from None
    prev = reader.take(_DIGEST)
    early_floor = reader.number(8)
    count = reader.number(2)
    if count == 0 or not 0 < epoch < 2**63 or not count <= last_seq < 2**63:
        raise EnvelopeError("the numbers of the frame are out of range")
    parts = [
        (
            reader.number(1),
            reader.number(1),
            reader.take(_SUBJECT),
            reader.number(4),
            reader.take(32),
        )
        for _ in range(count)
    ]
    mac = reader.take(_DIGEST)
    if not reader.done():
        raise EnvelopeError("the head has bytes beyond its end")
    records: list[tuple[Link, bytes, int, int, bytes, int, bytes]] = []
    seq = last_seq - count
    for kind, schema, subject, length, body_digest in parts:
        seq += 1
        digest = record_digest(
            identity, seq, epoch, (kind, schema, subject), prev, (body_digest, length), key_id
        )
        records.append((Link(seq, digest), prev, kind, schema, subject, length, body_digest))
        prev = digest
    expected = _frame_mac(seal_key_of(key_id), prev, count, early_floor)
    if not hmac.compare_digest(mac, expected):
        raise EnvelopeError("the seal does not match")
    return Frame(last_seq, epoch, key_id, early_floor, tuple(_with_bodies(records, epoch, body)))


def _with_bodies(
    records: Sequence[tuple[Link, bytes, int, int, bytes, int, bytes]],
    epoch: int,
    body: bytes | None,
) -> list[RecordHead]:
    """Checks kinds and cuts the body into verified pieces."""
    out: list[RecordHead] = []
    at = 0
    for link, prev, kind, schema, subject, length, body_digest in records:
        try:
            known = Kind(kind)
        except ValueError:
            raise EnvelopeError(f"record kind {kind} is not known to this release") from None
        piece: bytes | None = None
        if body is not None:
            piece = body[at : at + length]
            at += length
            if not hmac.compare_digest(hashlib.sha256(piece).digest(), body_digest):
                raise EnvelopeError("a body does not match its digest")
        out.append(RecordHead(link, prev, epoch, known, schema, subject, piece))
    if body is not None and at != len(body):
        raise EnvelopeError("the body has bytes beyond its end")
    return out
