"""A tripwire on every decoder: nothing may be decoded, or even decompressed, that was not verified.

It stands outside of the saver: a `StrictSerializer` that is given as ``serde=``, and wrappers
around the functions of `ormsgpack` and `zstandard` themselves, through which every record body,
every value and every nested piece of one has to pass. It knows two rules:

- *in order*: a read decodes exactly what the untouched store made it decode, in that order, until
  it ends or refuses. Bytes that are genuine but stand in the wrong place trip it too.
- *known*: for what also writes (a resumed run, a copy, a prune), every decoded piece must have
  come out of an encoder before, when it was written or in the course of the operation itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import ormsgpack
import zstandard

from surefoot.langgraph.serde import StrictSerializer

__all__ = ["Piece", "Tripwire"]

#: Which decoder, and the digest of what it was given.
Piece: TypeAlias = tuple[str, bytes]


def _piece(decoder: str, data: bytes) -> Piece:
    return decoder, hashlib.blake2b(data, digest_size=16).digest()


class Tripwire:
    """Watches all decoders of this process while it is `set`.

    Attributes:
        serde: To be given to savers.
        known: Whatever came out of an encoder, or was decoded from an untouched store.
        watched: How many calls of decoders were judged.
        tripped: Calls of decoders with bytes that nobody had verified.
    """

    def __init__(self) -> None:
        self.serde: StrictSerializer = _Watched(self)
        self.known: set[Piece] = set()
        self.watched = 0
        self.tripped: list[str] = []
        self._expected: Sequence[Piece] | None = None
        self._at = 0
        self._learned: list[Piece] | None = None

    @contextmanager
    def set(self) -> Iterator[Tripwire]:
        """Wraps the decoders, and takes the wrapping off again."""
        unpackb, packb = ormsgpack.unpackb, ormsgpack.packb
        size, reader = zstandard.frame_content_size, zstandard.ZstdDecompressor
        writer = zstandard.ZstdCompressor

        def unpack(data: bytes, *args: Any, **kwargs: Any) -> Any:
            self.decoding("msgpack", data)
            return unpackb(data, *args, **kwargs)

        def pack(*args: Any, **kwargs: Any) -> bytes:
            return self.encoded("msgpack", packb(*args, **kwargs))

        def content_size(data: bytes) -> int:
            self.decoding("zstd", data)
            return size(data)

        def decompressor() -> Any:
            return _Wrapped(reader().decompress, lambda data: self.decoding("zstd", data), None)

        def compressor(**kwargs: Any) -> Any:
            return _Wrapped(
                writer(**kwargs).compress, None, lambda data: self.encoded("zstd", data)
            )

        wrapped = (
            (ormsgpack, "unpackb", unpack, unpackb),
            (ormsgpack, "packb", pack, packb),
            (zstandard, "frame_content_size", content_size, size),
            (zstandard, "ZstdDecompressor", decompressor, reader),
            (zstandard, "ZstdCompressor", compressor, writer),
        )
        for module, name, new, _ in wrapped:
            setattr(module, name, new)
        try:
            yield self
        finally:
            for module, name, _, old in wrapped:
                setattr(module, name, old)

    # --- what the wrappers tell -------------------------------------------------------------------

    def encoded(self, decoder: str, data: bytes) -> bytes:
        """Notes what an encoder gave out."""
        self.known.add(_piece(decoder, data))
        return data

    def decoding(self, decoder: str, data: bytes) -> None:
        """Judges what a decoder is about to read."""
        piece = _piece(decoder, data)
        if self._learned is not None:
            self._learned.append(piece)
            return
        self.watched += 1
        if self._expected is None:
            good = piece in self.known
        else:
            good = self._at < len(self._expected) and self._expected[self._at] == piece
            self._at += good
        if not good:
            self.tripped.append(f"{decoder} of {len(data)} bytes that were not verified")

    # --- rules ------------------------------------------------------------------------------------

    @contextmanager
    def learning(self) -> Iterator[list[Piece]]:
        """What is decoded now is genuine: it comes from a store that nobody has touched."""
        learned: list[Piece] = []
        self._learned = learned
        try:
            yield learned
        finally:
            self._learned = None
            self.known.update(learned)

    def in_order(self, expected: Sequence[Piece] | None) -> None:
        """From here on these pieces may be decoded, in this order; None: all that are known."""
        self._expected, self._at = expected, 0

    @property
    def complete(self) -> bool:
        """All that was expected has been decoded."""
        return self._expected is None or self._at == len(self._expected)


class _Wrapped:
    """One method of a compressor or a decompressor, watched."""

    def __init__(
        self,
        work: Callable[[bytes], bytes],
        before: Callable[[bytes], None] | None,
        after: Callable[[bytes], bytes] | None,
    ) -> None:
        self._work, self._before, self._after = work, before, after

    def _call(self, data: bytes, **settings: Any) -> bytes:
        if self._before is not None:
            self._before(data)
        result = self._work(data, **settings)
        return result if self._after is None else self._after(result)

    compress = decompress = _call


class _Watched(StrictSerializer):
    """The real serialiser, which tells a tripwire what it writes and what it is given to read."""

    def __init__(self, wire: Tripwire) -> None:
        super().__init__()
        self.wire = wire

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        tag, raw = super().dumps_typed(obj)
        self.wire.encoded(f"serde {tag}", raw)
        return tag, raw

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.wire.decoding(f"serde {data[0]}", data[1])
        return super().loads_typed(data)

    def list_items(self, value: list[Any]) -> list[bytes] | None:
        items = super().list_items(value)
        if items is not None:
            whole = self.join_items(items, len(items))
            self.wire.encoded("serde msgpack", whole)
            self.wire.encoded("msgpack", whole)
        return items
