"""Layouts of record bodies, and the stored form of bytes (codec byte, then payload).

Codecs 0 (as it is) and 1 (zstd) hold bytes; codec 2 holds another stored form, encrypted. An
encrypted form is opened by ``surefoot.flows.cover`` before anything here decodes it.

A body is a msgpack document without extension types, so decoding one constructs nothing.
It is decoded only after the envelope has verified its bytes. Text travels as UTF-8 bytes
with surrogates passed through, so that ids and channel names of every kind survive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import ormsgpack
import zstandard

from surefoot.rules.envelope import hash8
from surefoot.rules.upcasting import Upcasters

__all__ = [
    "BODY_SCHEMAS",
    "MAX_UNPACKED_BYTES",
    "UPCASTERS",
    "Batch",
    "BodyError",
    "ChannelValue",
    "CheckpointBody",
    "Chunks",
    "DecisionBody",
    "EffectBody",
    "Encrypted",
    "EventBody",
    "Inline",
    "KeptFrame",
    "KeyChangeBody",
    "ProvenanceBody",
    "PruneBody",
    "RestoreBody",
    "Row",
    "Segment",
    "TombstoneBody",
    "Typed",
    "ValueRef",
    "Write",
    "WritesBody",
    "is_encrypted",
    "pack_encrypted",
    "pack_stored",
    "unpack_encrypted",
    "unpack_stored",
]

_RAW = 0
_ZSTD = 1
_ENCRYPTED = 2
_NONCE_BYTES = 12
_TAG_BYTES = 16
_COMPRESS_FROM = 160
#: Most bytes of one stored form after decompression, on the way in and on the way out: nobody
#: writes what would not be read, and no form allocates more than this at once.
MAX_UNPACKED_BYTES = 256 * 2**20
#: A zstd block holds at most 128 KiB and takes at least 4 bytes, so no frame expands further: a
#: few bytes that claim more are refused before anything is allocated for them.
_MAX_EXPANSION = 128 * 1024 // 4

#: Schema version written for each body; readers know all versions up to it, by `UPCASTERS`.
BODY_SCHEMAS: Mapping[str, int] = {
    "C": 1,
    "W": 2,
    "E": 2,
    "P": 1,
    "X": 1,
    "F": 1,
    "R": 1,
    "D": 1,
    "K": 1,
    "V": 1,
}


def _writes_without_time(document: Any) -> Any:
    """``W`` 1 to 2: when it was stored; nobody knows of older ones."""
    namespace, checkpoint_id, batches = document
    return [namespace, checkpoint_id, batches, 0]


def _effect_without_family(document: Any) -> Any:
    """``E`` 1 to 2: the digest that calls share whose places differ by counters only."""
    return {"family": b"", **document}


#: From each older layout of a body to the next one.
UPCASTERS = Upcasters(
    BODY_SCHEMAS, {("W", 1): _writes_without_time, ("E", 1): _effect_without_family}
)


class BodyError(ValueError):
    """A verified body has a layout that this release does not know."""


# --- stored form -------------------------------------------------------------------------------


def pack_stored(raw: bytes) -> bytes:
    """Stored form: codec byte and payload, compressed where that helps.

    Raises:
        BodyError: It has more than `MAX_UNPACKED_BYTES`, so that nobody would read it again.
    """
    if len(raw) > MAX_UNPACKED_BYTES:
        raise BodyError(f"{len(raw)} bytes, and a stored form holds {MAX_UNPACKED_BYTES}")
    if len(raw) >= _COMPRESS_FROM:
        packed = zstandard.ZstdCompressor(level=3).compress(raw)
        if len(packed) < len(raw):
            return b"\x01" + packed
    return b"\x00" + raw


def unpack_stored(stored: bytes) -> bytes:
    """Payload of a stored form whose bytes have been verified.

    Raises:
        BodyError: Unknown codec, or the payload does not unpack.
    """
    if not stored:
        raise BodyError("an empty stored form")
    codec = stored[0]
    if codec == _RAW:
        return stored[1:]
    if codec == _ZSTD:
        return _decompressed(stored[1:])
    if codec == _ENCRYPTED:
        raise BodyError(f"codec {codec} is an encrypted form, and a plain one belongs here")
    raise BodyError(f"codec {codec} is not known to this release")


def _decompressed(packed: bytes) -> bytes:
    """What one zstd frame holds, within the bounds of what a writer makes."""
    try:
        size = zstandard.frame_content_size(packed)
        if not 0 < size <= min(MAX_UNPACKED_BYTES, len(packed) * _MAX_EXPANSION):
            raise BodyError("a stored form without a sane content size")
        return zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BodyError(f"a stored form does not unpack: {type(error).__name__}") from None


@dataclass(frozen=True, slots=True)
class Encrypted:
    """The parts of an encrypted stored form.

    Attributes:
        key_id: Name of the key.
        nonce: 12 bytes, drawn anew for every form.
        sealed: Ciphertext of another stored form, then the tag of 16 bytes.
    """

    key_id: str
    nonce: bytes
    sealed: bytes


def is_encrypted(stored: bytes) -> bool:
    """True when a stored form says that it is encrypted."""
    return stored[:1] == bytes((_ENCRYPTED,))


def pack_encrypted(parts: Encrypted) -> bytes:
    """Encrypted stored form: codec byte, length of the key id, key id, nonce, ciphertext and tag.

    Raises:
        ValueError: A part has another length than the form has room for.
    """
    key_id = parts.key_id.encode("utf-8")
    if not 0 < len(key_id) < 256:
        raise ValueError("a key id has 1 to 255 bytes")
    if len(parts.nonce) != _NONCE_BYTES or len(parts.sealed) < _TAG_BYTES:
        raise ValueError("a nonce has 12 bytes, and a ciphertext ends in a tag of 16")
    return b"".join((bytes((_ENCRYPTED, len(key_id))), key_id, parts.nonce, parts.sealed))


def unpack_encrypted(stored: bytes) -> Encrypted:
    """The parts of an encrypted stored form whose bytes have been verified.

    Raises:
        BodyError: It is not encrypted, cut short, or its key id is no text.
    """
    if not is_encrypted(stored):
        raise BodyError("a stored form that is not encrypted")
    size = stored[1] if len(stored) > 1 else 0
    nonce_at = 2 + size
    sealed_at = nonce_at + _NONCE_BYTES
    if size == 0 or len(stored) < sealed_at + _TAG_BYTES:
        raise BodyError("an encrypted form that is cut short")
    try:
        key_id = stored[2:nonce_at].decode("utf-8")
    except UnicodeDecodeError:
        raise BodyError("an encrypted form whose key id is no text") from None
    return Encrypted(key_id, stored[nonce_at:sealed_at], stored[sealed_at:])


def _pack(document: Any) -> bytes:
    return pack_stored(ormsgpack.packb(document))


def _unpack(stored: bytes) -> Any:
    raw = unpack_stored(stored)
    try:
        return ormsgpack.unpackb(raw)
    except (ValueError, TypeError, RecursionError) as error:
        raise BodyError(f"a body is not a document: {type(error).__name__}") from None


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _str(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def _int(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"a {type(value).__name__} where a number belongs")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} where bytes belong")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"a {type(value).__name__} where true or false belongs")
    return value


# --- value references --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inline:
    """A small value inside the record."""

    stored: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A content-addressed row: SHA-256 of its stored bytes, and their length."""

    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The first ``count`` chunks of a log, holding ``items`` elements in all.

    ``digest`` is the running digest over those chunks: d(0) = 32 zero bytes,
    d(k) = SHA-256(d(k-1) + SHA-256(chunk k)).
    """

    log_id: int
    count: int
    items: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Chunks:
    """A list stored as segments of append-only logs, one after the other."""

    segments: tuple[Segment, ...]


ValueRef: TypeAlias = Inline | Row | Chunks


@dataclass(frozen=True, slots=True)
class Typed:
    """A serialised value: the serialiser's type tag and where the bytes are."""

    tag: str
    ref: ValueRef


def _ref_out(ref: ValueRef) -> list[Any]:
    if isinstance(ref, Inline):
        return [0, ref.stored]
    if isinstance(ref, Row):
        return [1, ref.digest, ref.size]
    return [2, [[s.log_id, s.count, s.items, s.digest] for s in ref.segments]]


def _ref_in(raw: Sequence[Any]) -> ValueRef:
    if raw[0] == 0:
        return Inline(_bytes(raw[1]))
    if raw[0] == 1:
        return Row(_bytes(raw[1]), _int(raw[2]))
    if raw[0] == 2:
        return Chunks(tuple(Segment(_int(g), _int(c), _int(i), _bytes(d)) for g, c, i, d in raw[1]))
    raise BodyError("a value reference of unknown form")


def _typed_out(typed: Typed | None) -> list[Any] | None:
    return None if typed is None else [_text(typed.tag), _ref_out(typed.ref)]


def _typed_in(raw: Sequence[Any] | None) -> Typed | None:
    return None if raw is None else Typed(_str(raw[0]), _ref_in(raw[1]))


# --- C: checkpoint -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelValue:
    """A channel and its value in a checkpoint."""

    channel: str
    value: Typed


@dataclass(frozen=True, slots=True)
class CheckpointBody:
    """Body of a ``C`` record.

    Attributes:
        namespace: Checkpoint namespace; ``""`` is the root graph.
        checkpoint_id: As LangGraph made it.
        parent_id: Checkpoint it was put after, in the same namespace.
        step: ``metadata["step"]``, or -3 when the caller gave none.
        branch: Id of the branch it is on: 32 bytes, or empty for the root branch.
        born: True when this record begins a branch; its id is then this record's digest.
        skeleton: The checkpoint without its channel values, serialised.
        metadata: Serialised metadata.
        values: Every channel that has a value.
        folds: Slots of effects whose results are part of this state.
        extra: Further facts by name: ``open`` (slots of the thread that are open when it is made),
            ``left_open`` (those that it goes on without); see `loose` for another of them.
    """

    namespace: str
    checkpoint_id: str
    parent_id: str | None
    step: int
    branch: bytes
    born: bool
    skeleton: Typed
    metadata: Typed
    values: tuple[ChannelValue, ...]
    folds: tuple[bytes, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def loose(self) -> Typed | None:
        """Effects that were recorded and that its branch has not consumed (E4b), as a value."""
        try:
            return _typed_in(self.extra.get("loose"))
        except (LookupError, TypeError, ValueError) as error:
            raise _layout("C", error) from None

    def with_loose(self, loose: Typed | None) -> CheckpointBody:
        """The same checkpoint, with these effects left unconsumed."""
        extra = {k: v for k, v in self.extra.items() if k != "loose"}
        if loose is not None:
            extra["loose"] = _typed_out(loose)
        return replace(self, extra=extra)

    def pack(self) -> bytes:
        """Stored form."""
        return _pack(
            [
                _text(self.namespace),
                _text(self.checkpoint_id),
                None if self.parent_id is None else _text(self.parent_id),
                self.step,
                self.branch,
                self.born,
                _typed_out(self.skeleton),
                _typed_out(self.metadata),
                [[_text(v.channel), _typed_out(v.value)] for v in self.values],
                list(self.folds),
                dict(self.extra),
            ]
        )

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> CheckpointBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "C", stored)
        try:
            skeleton, metadata = _typed_in(raw[6]), _typed_in(raw[7])
            if skeleton is None or metadata is None:
                raise BodyError("a checkpoint without skeleton or metadata")
            return cls(
                namespace=_str(raw[0]),
                checkpoint_id=_str(raw[1]),
                parent_id=None if raw[2] is None else _str(raw[2]),
                step=_int(raw[3]),
                branch=_bytes(raw[4]),
                born=_flag(raw[5]),
                skeleton=skeleton,
                metadata=metadata,
                values=tuple(ChannelValue(_str(c), _need(_typed_in(t))) for c, t in raw[8]),
                folds=tuple(map(_bytes, raw[9])),
                extra=_extra(raw[10]),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _layout("C", error) from None


# --- W: pending writes -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a task. ``idx`` is negative for LangGraph's special channels."""

    idx: int
    channel: str
    value: Typed


@dataclass(frozen=True, slots=True)
class Batch:
    """One `put_writes` call. ``replaces`` when it was made of special channels only."""

    task_id: str
    task_path: str
    replaces: bool
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class WritesBody:
    """Body of a ``W`` record: writes pending on one checkpoint.

    Attributes:
        namespace: Of the checkpoint.
        checkpoint_id: Its id.
        batches: In the order in which they came in.
        at_us: When it was stored, microseconds since the epoch on the worker's clock; for people
            only, and 0 when nobody knows.
    """

    namespace: str
    checkpoint_id: str
    batches: tuple[Batch, ...]
    at_us: int = 0

    def pack(self) -> bytes:
        """Stored form."""
        return _pack(
            [
                _text(self.namespace),
                _text(self.checkpoint_id),
                [
                    [
                        _text(b.task_id),
                        _text(b.task_path),
                        b.replaces,
                        [[w.idx, _text(w.channel), _typed_out(w.value)] for w in b.writes],
                    ]
                    for b in self.batches
                ],
                self.at_us,
            ]
        )

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> WritesBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "W", stored)
        try:
            return cls(
                _str(raw[0]),
                _str(raw[1]),
                tuple(
                    Batch(
                        _str(b[0]),
                        _str(b[1]),
                        _flag(b[2]),
                        tuple(Write(_int(w[0]), _str(w[1]), _need(_typed_in(w[2]))) for w in b[3]),
                    )
                    for b in raw[2]
                ),
                _int(raw[3]),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _layout("W", error) from None


# --- E: effect transition ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EffectBody:
    """Body of an ``E`` record: one transition of one effect.

    Attributes:
        slot: 32 bytes, the logical position of the call (rule E4).
        name: Name of the effect.
        state: ``started``, ``succeeded``, ``failed``, ``in_doubt``, ``absent``,
            ``needs_review``, ``abandoned`` or ``compensated``.
        attempt: From 1.
        receiver: Class of the receiver: ``K``, ``L``, ``N`` or ``S``.
        fingerprint: 32 bytes over the semantic arguments.
        key: Idempotency key sent to the receiver (rule E9).
        namespace: Of the checkpoint the call ran under.
        checkpoint_id: That checkpoint.
        position: Readable position, for operators.
        arguments: Semantic arguments, serialised.
        result: Result of a succeeded effect; None with ``unstorable`` set when it could not
            be stored.
        unstorable: Why the result could not be stored.
        receipt: What the body noted while it ran, serialised.
        error: Text of the transport error, without values.
        source: ``body``, ``reconcile`` or ``decision``.
        evidence: What a lookup found, serialised.
        at_us: Microseconds since the epoch on the worker's clock; for people only.
        family: 32 bytes that calls share whose places differ by counters only.
        since_us: When the key was first sent, microseconds since the epoch; 0: at ``at_us``.
        root: Root checkpoint that the call ran under; empty when none is stored.
        task: Node and id (``node:id``) of the root graph's task that made the call, itself or in a
            subgraph.
        adopted: Slot under which the effect was first recorded, when this one adopted it (E4b).
        conflict: Arguments of a later call at this slot that differ, serialised.
        operation: ``operation_id`` of the call (E4c).
        caller: Thread that called the operation.
        compensates: Slot of the effect that this one undoes.
        within: Slot of the effect in whose body the call was made.
        ended: The proven failure ended the task that made the call: it was not caught.
        risk: ``low``, ``high`` or ``critical``; None is normal.
        due_us: Until when a doubt about it has to be settled, microseconds since the epoch on
            the worker's clock; None when nothing was declared.
        asked_us: When a lookup gave an answer that settled nothing, which is then all that the
            record says: the effect stays as it was. 0 for a transition.
        answer: That answer: ``absent`` or ``unknown``.
        why: It settled nothing, for people.
    """

    slot: bytes
    name: str
    state: str
    attempt: int
    receiver: str
    fingerprint: bytes
    key: str
    namespace: str
    checkpoint_id: str
    position: str
    arguments: Typed | None = None
    result: Typed | None = None
    unstorable: str | None = None
    receipt: Typed | None = None
    error: str | None = None
    source: str = "body"
    evidence: Typed | None = None
    at_us: int = 0
    family: bytes = b""
    since_us: int = 0
    root: str = ""
    task: str = ""
    adopted: bytes = b""
    conflict: Typed | None = None
    operation: str = ""
    caller: str = ""
    compensates: bytes = b""
    within: bytes = b""
    ended: bool = False

    @property
    def origin(self) -> bytes:
        """Slot under which it was first recorded."""
        return self.adopted or self.slot

    def values(self) -> list[Typed]:
        """Every value it refers to."""
        parts = (self.arguments, self.result, self.receipt, self.evidence, self.conflict)
        return [typed for typed in parts if typed is not None]

    risk: str | None = None
    due_us: int | None = None
    asked_us: int = 0
    answer: str = ""
    why: str = ""

    @property
    def only_asked(self) -> bool:
        """True when nothing about the effect has changed: a lookup's answer settled nothing."""
        return self.asked_us > 0

    def pack(self) -> bytes:
        """Stored form: a map of field names, without those that have their default."""
        out: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None or value == item.default:
                continue
            if isinstance(value, Typed):
                value = _typed_out(value)
            elif isinstance(value, str):
                value = _text(value)
            out[item.name] = value
        return _pack(out)

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> EffectBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "E", stored)
        typed = {"arguments", "result", "receipt", "evidence", "conflict"}
        plain: dict[str, Callable[[Any], Any]] = {
            "slot": _bytes,
            "fingerprint": _bytes,
            "attempt": _int,
            "at_us": _int,
            "family": _bytes,
            "since_us": _int,
            "adopted": _bytes,
            "compensates": _bytes,
            "within": _bytes,
            "ended": _flag,
            "due_us": _int,
            "asked_us": _int,
        }
        try:
            known: dict[str, Any] = {}
            for name, value in raw.items():
                if name in typed:
                    known[name] = _typed_in(value)
                elif name in plain:
                    known[name] = plain[name](value)
                else:
                    known[name] = _str(value)
            return cls(**known)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _layout("E", error) from None


# --- P, X, F: prune, tombstone, provenance -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptFrame:
    """A frame that survives a prune, and its last record that is on the chain."""

    last_seq: int
    epoch: int
    link_seq: int
    link_digest: bytes


@dataclass(frozen=True, slots=True)
class PruneBody:
    """Body of a ``P`` record: below it the chain is exactly these frames, newest first.

    Attributes:
        kept: The frames that survive.
        reason: For people.
        hidden: Seqs of records in kept frames that do not count any more.
        cuts: A root checkpoint later than all kept ones was dropped, so that step numbers come
            back: what follows is another branch, whose id is this record's digest.
    """

    kept: tuple[KeptFrame, ...]
    reason: str
    hidden: tuple[int, ...] = ()
    cuts: bool = False

    def pack(self) -> bytes:
        """Stored form."""
        return _pack(
            [
                [[k.last_seq, k.epoch, k.link_seq, k.link_digest] for k in self.kept],
                _text(self.reason),
                list(self.hidden),
                self.cuts,
            ]
        )

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> PruneBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "P", stored)
        try:
            return cls(
                tuple(KeptFrame(_int(n), _int(e), _int(s), _bytes(d)) for n, e, s, d in raw[0]),
                _str(raw[1]),
                tuple(map(_int, raw[2])),
                _flag(raw[3]),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _layout("P", error) from None


@dataclass(frozen=True, slots=True)
class TombstoneBody:
    """Body of an ``X`` record: the thread ends here."""

    reason: str

    def pack(self) -> bytes:
        """Stored form."""
        return _pack([_text(self.reason)])

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> TombstoneBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "X", stored)
        try:
            (reason,) = raw
            return cls(_str(reason))
        except (TypeError, ValueError, AttributeError) as error:
            raise _layout("X", error) from None


@dataclass(frozen=True, slots=True)
class ProvenanceBody:
    """Body of an ``F`` record: what follows was taken over from another thread."""

    source_thread: str
    source_incarnation: int
    source_seq: int
    source_digest: bytes

    def pack(self) -> bytes:
        """Stored form."""
        return _pack(
            [
                _text(self.source_thread),
                self.source_incarnation,
                self.source_seq,
                self.source_digest,
            ]
        )

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> ProvenanceBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "F", stored)
        try:
            thread, incarnation, seq, digest = raw
            return cls(_str(thread), _int(incarnation), _int(seq), _bytes(digest))
        except (TypeError, ValueError, AttributeError) as error:
            raise _layout("F", error) from None


# --- R, D, K: restore, decision, key change -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestoreBody:
    """Body of an ``R`` record: the chain goes on from an older record (rule E6).

    Attributes:
        to_seq: Number of the record that is the content from here on; 0 means nothing.
        to_digest: Its digest; 32 zero bytes when nothing.
        horizon: Every root step up to it is tainted: what ran there may have been lost, so a
            missing or open effect may have happened.
        lost: The mark itself was lost and is made anew (an adoption), not only older content.
    """

    to_seq: int
    to_digest: bytes
    horizon: int
    lost: bool = False

    def pack(self) -> bytes:
        """Stored form."""
        return _pack([self.to_seq, self.to_digest, self.horizon, self.lost])

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> RestoreBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "R", stored)
        try:
            to_seq, to_digest, horizon, lost = raw
            if not (
                isinstance(to_seq, int)
                and isinstance(horizon, int)
                and isinstance(to_digest, bytes)
                and len(to_digest) == 32
                and to_seq >= 0
            ):
                raise TypeError("fields of wrong types")
            return cls(to_seq, to_digest, horizon, _flag(lost))
        except (TypeError, ValueError) as error:
            raise _layout("R", error) from None


@dataclass(frozen=True, slots=True)
class DecisionBody:
    """Body of a ``D`` record: a decision that was carried out, as it was signed."""

    document: bytes

    def pack(self) -> bytes:
        """Stored form."""
        return _pack([self.document])

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> DecisionBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "D", stored)
        if not (isinstance(raw, list) and len(raw) == 1 and isinstance(raw[0], bytes)):
            raise BodyError("a D body of unknown layout")
        return cls(raw[0])


@dataclass(frozen=True, slots=True)
class KeyChangeBody:
    """Body of a ``K`` record: what a key sealed counts up to a seq, and not beyond.

    Attributes:
        key_id: The key that is retired.
        valid_up_to: The last seq of this thread that it may have sealed.
        compromised: Its secret may be known to others; unpublished records were not adopted.
    """

    key_id: str
    valid_up_to: int
    compromised: bool

    def pack(self) -> bytes:
        """Stored form."""
        return _pack([_text(self.key_id), self.valid_up_to, self.compromised])

    def subject(self) -> bytes:
        """The record's subject, so that walks without bodies know it: key (8), seq (8)."""
        return hash8(self.key_id) + self.valid_up_to.to_bytes(8, "big")

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> KeyChangeBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "K", stored)
        try:
            key_id, valid_up_to, compromised = raw
            return cls(_str(key_id), _int(valid_up_to), _flag(compromised))
        except (TypeError, ValueError, AttributeError) as error:
            raise _layout("K", error) from None


# --- V: a fact of the user's own ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventBody:
    """Body of a ``V`` record: something that the user wants to stand in the trail.

    Attributes:
        kind: The user's name of it; see `surefoot.rules.events.decide_kind`.
        payload: Plain data, serialised.
        at_us: Microseconds since the epoch on the worker's clock; for people only.
        version: Of the payload's layout, which is the user's own.
    """

    kind: str
    payload: Typed
    at_us: int
    version: int = 1

    def pack(self) -> bytes:
        """Stored form."""
        return _pack([_text(self.kind), _typed_out(self.payload), self.at_us, self.version])

    @classmethod
    def unpack(cls, schema: int, stored: bytes) -> EventBody:
        """Reads a verified body.

        Raises:
            BodyError: The schema is newer than this release, or the layout is wrong.
        """
        raw = _checked(schema, "V", stored)
        try:
            kind, payload, at_us, version = raw
            return cls(_str(kind), _need(_typed_in(payload)), _int(at_us), _int(version))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _layout("V", error) from None


def _extra(raw: Any) -> dict[str, Any]:
    """What later releases may add; what this one reads has the type that it should."""
    if not isinstance(raw, dict):
        raise TypeError("fields of wrong types")
    for name in ("of", "horizon", "horizon_at"):
        if raw.get(name) is not None:
            _int(raw[name])
    for slot in raw.get("open", ()):
        _bytes(slot)
    return raw


def _need(typed: Typed | None) -> Typed:
    if typed is None:
        raise BodyError("a value is missing")
    return typed


def _checked(schema: int, kind: str, stored: bytes) -> Any:
    if not UPCASTERS.knows(kind, schema):
        raise BodyError(f"schema {schema} of kind {kind} is not known to this release")
    document = _unpack(stored)
    try:
        return UPCASTERS.raised(kind, schema, document)
    except (LookupError, TypeError, ValueError) as error:
        raise _layout(kind, error) from None


def _layout(kind: str, error: Exception) -> BodyError:
    return BodyError(f"a {kind} body of unknown layout ({type(error).__name__}: {error})")
