"""What an encrypted form is bound to: the associated data of its cipher.

The whole identity of the row and what it is go in, so that an encrypted form opens only in
the place it was made for, whoever sealed it there. The layout is final, as the envelope's is:
a change takes a new first field. See docs/adr/0010.
"""

from __future__ import annotations

from surefoot.rules.envelope import Identity, tlv

__all__ = ["bound_chunk", "bound_record", "bound_value"]


def _bound(identity: Identity, *what: str | int | bytes) -> bytes:
    return tlv("enc/v1", identity.tenant, identity.thread, identity.incarnation, *what)


def bound_record(
    identity: Identity, *, kind: int, schema: int, subject: bytes, seq: int, epoch: int
) -> bytes:
    """A record's body is bound to its head, except for the links."""
    return _bound(identity, "record", kind, schema, subject, seq, epoch)


def bound_value(identity: Identity, tag: str) -> bytes:
    """A value's row is bound to the type tag; records name it by the digest of its ciphertext."""
    return _bound(identity, "value", tag)


def bound_chunk(identity: Identity, *, log_id: int, ordinal: int, items: int) -> bytes:
    """A piece of a list is bound to its place in the log, and to its number of elements."""
    return _bound(identity, "chunk", log_id, ordinal, items)
