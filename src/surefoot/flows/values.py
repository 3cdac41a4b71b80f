"""Values: from objects to stored pieces and back.

Small values travel inside the record, large ones become content-addressed rows, lists become
append-only chunks of logs, so that a conversation of n messages costs O(n) bytes. Everything
is addressed by digests of *stored* bytes, encrypted if so: a value is verified before it is
decrypted, decrypted before it is decompressed, and decompressed before it is decoded.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from surefoot.errors import NotStorable, TamperDetected
from surefoot.flows.cover import Cover, cover_of
from surefoot.ports import ChunkRow, ContentStore, LogRef, Ports, Serializer
from surefoot.rules.bodies import (
    MAX_UNPACKED_BYTES,
    Chunks,
    Inline,
    Row,
    Segment,
    Typed,
    ValueRef,
    pack_stored,
    unpack_stored,
)
from surefoot.rules.envelope import tlv
from surefoot.session import ListChunk, ListState, Session

__all__ = [
    "ZERO_RUNNING",
    "ListCodec",
    "Loader",
    "Writer",
    "chunk_row",
    "plan_list",
    "running_digest",
    "writer_for",
]

_CHUNK_ITEMS_MAX = 64
#: Running digest of an empty log.
ZERO_RUNNING = bytes(32)


class ListCodec(Protocol):
    """A serialiser that can take lists apart and put them together again."""

    def list_items(self, value: list[Any]) -> list[bytes] | None:
        """Serialised elements, or None when this list cannot be taken apart."""

    def join_items(self, items: Sequence[bytes], count: int) -> bytes:
        """Serialised list from concatenated serialised elements."""


@dataclass(slots=True)
class Writer:
    """Collects what one append has to store.

    Attributes:
        rows: Digest and stored bytes of new content-addressed rows.
        chunks: New list chunks.
        riding: Digests of further rows that go into the same append.
    """

    session: Session
    cover: Cover
    serde: Serializer
    inline_value_bytes: int
    list_chunk_min_items: int
    list_segments_max: int
    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks: list[ChunkRow] = field(default_factory=list)
    riding: Container[bytes] = frozenset()
    lists: dict[tuple[str, str], ListState] = field(default_factory=dict)

    def value(self, value: Any, *, channel: str) -> Typed:
        """Serialises a value into the record or a row.

        Raises:
            NotStorable: It cannot be stored faithfully; names the channel and the path.
        """
        try:
            tag, raw = self.serde.dumps_typed(value)
        except NotStorable as error:
            raise NotStorable(**{**error.fields, "channel": channel}) from None
        _require_room(raw, channel, "$", value)
        return Typed(tag, self._reference(tag, raw))

    def _reference(self, tag: str, raw: bytes) -> ValueRef:
        plain = pack_stored(raw)
        if len(plain) <= self.inline_value_bytes:
            return Inline(plain)  # encrypted together with the record
        if self.cover.ciphers is None:
            return self._row(plain)
        # No two ciphertexts are equal, so what content addressing does for plain rows is done by
        # memory here: a task's write and the channel's value are mostly the same bytes.
        key = hashlib.sha256(tlv(tag, plain)).digest()
        twin = self.session.twins.get(key)
        if twin is not None and self._is_at_hand(twin.digest):
            return twin
        row = self._row(self.cover.cover_value(tag, plain))
        self.session.note_twin(key, row)
        return row

    def _is_at_hand(self, digest: bytes) -> bool:
        own = (mine for mine, _ in self.rows)
        return digest in self.session.stored_digests or digest in self.riding or digest in own

    def _row(self, stored: bytes) -> Row:
        digest = hashlib.sha256(stored).digest()
        self.rows.append((digest, stored))
        return Row(digest, len(stored))

    def channel(self, namespace: str, channel: str, value: Any) -> Typed:
        """Serialises a channel's value; lists that grew store only what is new.

        Raises:
            NotStorable: It cannot be stored faithfully; names the channel and the path.
        """
        items = self._items(value, channel)
        if items is None:
            return self.value(value, channel=channel)
        before = self.session.lists.get((namespace, channel))
        state, chunks = plan_list(self.session, before, items, self.list_segments_max, self.cover)
        self.chunks.extend(chunks)
        self.lists[(namespace, channel)] = state
        return Typed("msgpack", _chunks_ref(state))

    def _items(self, value: Any, channel: str) -> list[bytes] | None:
        if type(value) is not list or len(value) < self.list_chunk_min_items:
            return None
        take_apart = getattr(self.serde, "list_items", None)
        if take_apart is None:
            return None
        try:
            items: list[bytes] | None = take_apart(value)
        except NotStorable as error:
            raise NotStorable(**{**error.fields, "channel": channel}) from None
        for index, item in enumerate(items or ()):
            _require_room(item, channel, f"$[{index}]", value[index])
        return items


def _require_room(raw: bytes, channel: str, path: str, value: Any) -> None:
    """Refuses what is larger than a load would unpack.

    Raises:
        NotStorable: It is; the whole value, or an element of a list that is stored in pieces.
    """
    if len(raw) > MAX_UNPACKED_BYTES:
        raise NotStorable(
            channel=channel,
            path=path,
            type_name=type(value).__name__,
            reason=f"it has {len(raw)} bytes, and at most {MAX_UNPACKED_BYTES} are stored",
        )


def writer_for(ports: Ports, session: Session, serde: Serializer) -> Writer:
    """A writer for one thread, within the limits of this saver."""
    limits = ports.limits
    return Writer(
        session,
        cover_of(ports, session.identity),
        serde,
        limits.inline_value_bytes,
        limits.list_chunk_min_items,
        limits.list_segments_max,
    )


def _chunks_ref(state: ListState) -> Chunks:
    return Chunks(
        tuple(
            Segment(log, len(pieces), sum(p.items for p in pieces), pieces[-1].running)
            for log, pieces in state.segments
            if pieces
        )
    )


def plan_list(
    session: Session,
    before: ListState | None,
    items: Sequence[bytes],
    segments_max: int,
    cover: Cover,
) -> tuple[ListState, list[ChunkRow]]:
    """Keeps the stored pieces that still stand at the beginning, and adds the rest.

    The rest goes behind the last kept piece when that is still the end of its log (as the
    store and this session know it), otherwise into a new log: a fork never writes where
    another branch has written.
    """
    kept: list[tuple[int, list[ListChunk]]] = []
    at = 0
    whole = True
    for log, pieces in before.segments if before else ():
        good: list[ListChunk] = []
        for piece in pieces:
            part = items[at : at + piece.items]
            if len(part) != piece.items or _raw_digest(part) != piece.raw_digest:
                whole = False
                break
            good.append(piece)
            at += piece.items
        if good:
            kept.append((log, good))
        if not whole:
            break
    rest = items[at:]
    if not rest:
        return ListState(kept), []
    can_extend = bool(kept) and session.log_tips.get(kept[-1][0]) == len(kept[-1][1])
    if not can_extend and len(kept) >= segments_max:
        kept, rest, at = [], items, 0
    if not (can_extend and kept):
        kept.append((session.new_log(), []))
    log, pieces = kept[-1]
    pieces = list(pieces)
    chunks: list[ChunkRow] = []
    for part in _cut(rest):
        chunk = chunk_row(cover, log, len(pieces), len(part), pack_stored(b"".join(part)))
        running = running_digest(pieces[-1].running if pieces else ZERO_RUNNING, chunk.body)
        chunks.append(chunk)
        pieces.append(ListChunk(len(part), _raw_digest(part), running))
    kept[-1] = (log, pieces)
    return ListState(kept), chunks


def _cut(items: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Runs of elements that become one piece each: bounded in number and in bytes."""
    part: list[bytes] = []
    size = 0
    for item in items:
        if part and (len(part) == _CHUNK_ITEMS_MAX or size + len(item) > MAX_UNPACKED_BYTES):
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item)
    if part:
        yield part


def _raw_digest(items: Iterable[bytes]) -> bytes:
    return hashlib.sha256(b"".join(items)).digest()


def chunk_row(cover: Cover, log_id: int, ordinal: int, items: int, plain: bytes) -> ChunkRow:
    """A piece of a list as it is stored: number of elements, then their stored form."""
    stored = cover.cover_chunk(log_id, ordinal, items, plain)
    return ChunkRow(log_id, ordinal, items.to_bytes(4, "big") + stored)


def running_digest(before: bytes, body: bytes) -> bytes:
    """Running digest of a log behind one more piece (see `Segment`)."""
    return hashlib.sha256(before + hashlib.sha256(body).digest()).digest()


@dataclass(slots=True)
class Loader:
    """Fetches and verifies the pieces of values, in one statement for all of them."""

    cover: Cover
    store: ContentStore
    key: int
    serde: Serializer
    values: dict[bytes, bytes] = field(default_factory=dict)
    logs: dict[int, list[bytes]] = field(default_factory=dict)
    tips: dict[int, int] = field(default_factory=dict)

    def fetch(self, wanted: Iterable[Typed]) -> None:
        """Reads all rows and chunks that these values refer to and that are not at hand."""
        digests: set[bytes] = set()
        logs: dict[int, int] = {}
        for typed in wanted:
            ref = typed.ref
            if isinstance(ref, Row) and ref.digest not in self.values:
                digests.add(ref.digest)
            elif isinstance(ref, Chunks):
                for segment in ref.segments:
                    if len(self.logs.get(segment.log_id, ())) < segment.count:
                        logs[segment.log_id] = max(logs.get(segment.log_id, 0), segment.count)
        if not digests and not logs:
            return
        answer = self.store.read_values(
            self.key, sorted(digests), [LogRef(log, logs[log]) for log in sorted(logs)]
        )
        for digest, stored in answer.values.items():
            if not hmac.compare_digest(hashlib.sha256(stored).digest(), digest):
                raise self._broken("a value does not match its digest")
            self.values[digest] = stored
        for log, pieces in answer.chunks.items():
            self.logs[log] = list(pieces)
        self.tips.update(answer.tips)

    def load(self, typed: Typed) -> Any:
        """The value. Its pieces must have been fetched.

        Raises:
            TamperDetected: A piece is missing or does not match its digest.
            NotLoadable: It names a type that cannot be rebuilt.
        """
        return self.serde.loads_typed((typed.tag, self.raw(typed)))

    def raw(self, typed: Typed) -> bytes:
        """The serialised bytes, verified, decrypted and decompressed.

        Raises:
            TamperDetected: A piece is missing or does not match its digest.
        """
        ref = typed.ref
        try:
            if isinstance(ref, Inline):
                return unpack_stored(ref.stored)
            if isinstance(ref, Row):
                return unpack_stored(self.plain_row(typed.tag, ref))
            parts = [
                unpack_stored(plain)
                for segment in ref.segments
                for _, plain in self.plain_chunks(segment)
            ]
            count = sum(s.items for s in ref.segments)
            join = getattr(self.serde, "join_items", None)
            if join is None:
                raise self._broken("this serialiser cannot read chunked lists")
            joined: bytes = join(parts, count)
            return joined
        except ValueError as error:  # a BodyError, or more elements than a list can have
            raise self._broken(str(error)) from None

    def plain_row(self, tag: str, ref: Row) -> bytes:
        """The plain stored form of a value's row, verified.

        Raises:
            TamperDetected: It is missing, or has another length than recorded.
            BodyError: What was encrypted is no plain form.
        """
        stored = self.values.get(ref.digest)
        if stored is None or len(stored) != ref.size:
            raise self._broken("a value that a record names is not stored")
        return self.cover.open_value(tag, stored)

    def plain_chunks(self, segment: Segment) -> list[tuple[int, bytes]]:
        """Number of elements and plain stored form of a segment's pieces, verified.

        Raises:
            TamperDetected: One is missing, or they do not match what is recorded.
            BodyError: What was encrypted is no plain form.
        """
        bodies = self.logs.get(segment.log_id, [])[: segment.count]
        if len(bodies) != segment.count:
            raise self._broken("chunks of a list are not stored")
        running = ZERO_RUNNING
        for body in bodies:
            running = running_digest(running, body)
        if not hmac.compare_digest(running, segment.digest):
            raise self._broken("chunks of a list do not match their digest")
        counts = [int.from_bytes(body[:4], "big") for body in bodies]
        if sum(counts) != segment.items:
            raise self._broken("a list has another number of elements than recorded")
        return [
            (count, self.cover.open_chunk(segment.log_id, ordinal, count, body[4:]))
            for ordinal, (count, body) in enumerate(zip(counts, bodies, strict=True))
        ]

    def list_state(self, ref: Chunks) -> ListState:
        """What a session needs to go on appending to a list that was loaded."""
        state = ListState()
        for segment in ref.segments:
            running = ZERO_RUNNING
            known: list[ListChunk] = []
            bodies = self.logs[segment.log_id]
            for body, (items, plain) in zip(bodies, self.plain_chunks(segment), strict=False):
                running = running_digest(running, body)
                digest = hashlib.sha256(unpack_stored(plain)).digest()
                known.append(ListChunk(items, digest, running))
            state.segments.append((segment.log_id, known))
        return state

    def _broken(self, reason: str) -> TamperDetected:
        return TamperDetected(
            thread=self.cover.identity.thread, what="a value", seq=None, reason=reason
        )
