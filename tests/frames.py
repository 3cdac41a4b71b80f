"""Frames of the journal, taken apart and put together again by somebody who has no key."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ormsgpack

from surefoot.rules.bodies import (
    CheckpointBody,
    EffectBody,
    Inline,
    Typed,
    WritesBody,
    pack_stored,
    unpack_stored,
)
from surefoot.rules.envelope import Identity, Kind, Record, record_digest

__all__ = ["LAYOUTS", "Body", "OpenFrame", "inline", "value_of"]

Body = CheckpointBody | WritesBody | EffectBody
LAYOUTS: dict[int, type[Body]] = {
    Kind.CHECKPOINT: CheckpointBody,
    Kind.WRITES: WritesBody,
    Kind.EFFECT: EffectBody,
}


class OpenFrame:
    """A stored frame taken apart; nothing of this needs a key.

    Attributes:
        prev: Digest of the record before the first one.
        records: Kind, schema, subject and stored body of each record.
    """

    def __init__(self, last_seq: int, epoch: int, head: bytes, body: bytes) -> None:
        self.last_seq, self.epoch = last_seq, epoch
        size = head[1]
        self.key_id = head[2 : 2 + size].decode()
        at = 2 + size
        self.prev, at = head[at : at + 32], at + 32
        self.floor, at = head[at : at + 8], at + 8
        count = int.from_bytes(head[at : at + 2], "big")
        at += 2
        self.records: list[Record] = []
        begin = 0
        for number in range(count):
            kind, schema, subject, length = struct.unpack(">BB16sI", head[at : at + 22])
            # The last one to the end: a blunt edit leaves lengths in the head as they were.
            end = begin + length if number < count - 1 else len(body)
            self.records.append(Record(Kind(kind), schema, subject, body[begin:end]))
            begin += length
            at += 22 + 32
        self.seal = head[at:]

    def digest(self, identity: Identity) -> bytes:
        """Digest of the last record, as the chain counts it."""
        digest = self.prev
        seq = self.last_seq - len(self.records)
        for record in self.records:
            seq += 1
            what = (record.kind, record.schema, record.subject)
            body = (hashlib.sha256(record.body).digest(), len(record.body))
            digest = record_digest(identity, seq, self.epoch, what, digest, body, self.key_id)
        return digest

    def head(self) -> bytes:
        """The head again, with digests and lengths that fit the bodies; the seal stays stale."""
        key = self.key_id.encode()
        return b"".join(
            (
                bytes((1, len(key))),
                key,
                self.prev,
                self.floor,
                len(self.records).to_bytes(2, "big"),
                *(
                    struct.pack(">BB16sI", r.kind, r.schema, r.subject, len(r.body))
                    + hashlib.sha256(r.body).digest()
                    for r in self.records
                ),
                self.seal,
            )
        )

    def body(self) -> bytes:
        """The bodies, one after the other."""
        return b"".join(r.body for r in self.records)

    def bodies(self) -> list[Body]:
        """What the records say."""
        return [LAYOUTS[r.kind].unpack(r.schema, r.body) for r in self.records if r.kind in LAYOUTS]

    def change(self, change: Callable[[Body], Body]) -> None:
        """Puts changed bodies in place of the records that have a layout."""
        self.records = [
            replace(r, body=change(LAYOUTS[r.kind].unpack(r.schema, r.body)).pack())
            if r.kind in LAYOUTS
            else r
            for r in self.records
        ]


def inline(value: Any) -> Typed:
    """A value inside a record."""
    return Typed("msgpack", Inline(pack_stored(ormsgpack.packb(value))))


def value_of(typed: Typed) -> Any:
    """A small value, read without any serialiser of ours."""
    if not isinstance(typed.ref, Inline):
        return typed.ref
    raw = unpack_stored(typed.ref.stored)
    return ormsgpack.unpackb(raw) if typed.tag == "msgpack" else raw
