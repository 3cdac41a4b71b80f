"""Layout of the intents that a mark carries (rule E5)."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LEFT_OPEN", "pack_intents", "unpack_intents"]

#: Stands among the intents for all effects that a checkpoint has left open: their own intents leave
#: B, so that they do not pile up there, but B goes on to witness that there are some. No digest.
LEFT_OPEN = b"\xff" * 32

_SLOT = 32
_ENTRY = _SLOT + 8


def pack_intents(intents: Mapping[bytes, int]) -> bytes:
    """Slot (32 bytes) and epoch (8 bytes, big-endian) of each intent, ordered by slot."""
    return b"".join(slot + intents[slot].to_bytes(8, "big") for slot in sorted(intents))


def unpack_intents(raw: bytes) -> dict[bytes, int]:
    """Reads them back.

    Raises:
        ValueError: The length is not a multiple of an entry's.
    """
    if len(raw) % _ENTRY:
        raise ValueError("intents of a broken length")
    return {
        raw[at : at + _SLOT]: int.from_bytes(raw[at + _SLOT : at + _ENTRY], "big")
        for at in range(0, len(raw), _ENTRY)
    }
