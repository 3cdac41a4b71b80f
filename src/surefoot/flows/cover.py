"""Encrypting what is about to be stored, and opening what has been verified.

Storing: serialise, compress, encrypt, digest, seal. Loading is the mirror: verify, decrypt,
decompress, parse. Where nothing is encrypted, forms pass through as they are; forms that were
stored before encryption was switched on are read like any other, because they are sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from surefoot.errors import KeyMissing
from surefoot.ports import Ciphers, Ports
from surefoot.rules.binding import bound_chunk, bound_record, bound_value
from surefoot.rules.bodies import BodyError, is_encrypted, unpack_encrypted
from surefoot.rules.envelope import Identity, Record, RecordHead

__all__ = ["Cover", "cover_of"]


@dataclass(frozen=True, slots=True)
class Cover:
    """Encrypts and opens the stored forms of one thread.

    Attributes:
        identity: Whose.
        ciphers: None where the saver does not encrypt.
    """

    identity: Identity
    ciphers: Ciphers | None

    # --- records --------------------------------------------------------------------------------

    def cover_records(
        self, records: Sequence[Record], *, after_seq: int, epoch: int
    ) -> Sequence[Record]:
        """Records as they are sealed; the first one gets the seq behind ``after_seq``."""
        if self.ciphers is None:
            return records
        return [
            replace(record, body=self._cover(self._bound(record, seq, epoch), record.body))
            for seq, record in enumerate(records, after_seq + 1)
        ]

    def open_record(self, record: RecordHead) -> RecordHead:
        """A verified record with its body as its reader expects it.

        Raises:
            BodyError: What is inside is no plain form.
            KeyMissing: It is encrypted with a key that is not at hand.
        """
        if record.body is None or not is_encrypted(record.body):
            return record
        seq = record.link.seq
        bound = self._bound(record, seq, record.epoch)
        return replace(record, body=self._open(bound, record.body, f"record {seq}"))

    def _bound(self, record: Record | RecordHead, seq: int, epoch: int) -> bytes:
        return bound_record(
            self.identity,
            kind=record.kind,
            schema=record.schema,
            subject=record.subject,
            seq=seq,
            epoch=epoch,
        )

    # --- values and pieces of lists -------------------------------------------------------------

    def cover_value(self, tag: str, plain: bytes) -> bytes:
        """A value's form as its row holds it."""
        return self._cover(bound_value(self.identity, tag), plain)

    def open_value(self, tag: str, stored: bytes) -> bytes:
        """The plain form of a value's row that has been verified.

        Raises:
            BodyError: What is inside is no plain form.
            KeyMissing: It is encrypted with a key that is not at hand.
        """
        return self._open(bound_value(self.identity, tag), stored, "a value")

    def cover_chunk(self, log_id: int, ordinal: int, items: int, plain: bytes) -> bytes:
        """The form of a piece of a list as its row holds it, behind the number of elements."""
        bound = bound_chunk(self.identity, log_id=log_id, ordinal=ordinal, items=items)
        return self._cover(bound, plain)

    def open_chunk(self, log_id: int, ordinal: int, items: int, stored: bytes) -> bytes:
        """The plain form of a piece of a list that has been verified.

        Raises:
            BodyError: What is inside is no plain form.
            KeyMissing: It is encrypted with a key that is not at hand.
        """
        bound = bound_chunk(self.identity, log_id=log_id, ordinal=ordinal, items=items)
        return self._open(bound, stored, "a piece of a list")

    # --- both -----------------------------------------------------------------------------------

    def _cover(self, bound: bytes, plain: bytes) -> bytes:
        if self.ciphers is None:
            return plain
        return self.ciphers.encrypt(self.identity.tenant, self.identity.thread, bound, plain)

    def _open(self, bound: bytes, stored: bytes, what: str) -> bytes:
        if not is_encrypted(stored):
            return stored
        place = f"{what} of thread {self.identity.thread!r} is encrypted with"
        if self.ciphers is None:
            key_id = unpack_encrypted(stored).key_id
            raise KeyMissing(
                key_id=key_id,
                reason=(
                    f"{place} {key_id!r}, and this saver was opened without encryption= "
                    "(True, or a Keyring that holds the key)"
                ),
            )
        tenant, thread = self.identity.tenant, self.identity.thread
        try:
            plain = self.ciphers.decrypt(tenant, thread, bound, stored)
        except KeyMissing as error:
            reason = f"{error.fields['reason']} ({place} it)"
            raise KeyMissing(**{**error.fields, "reason": reason}) from None
        if is_encrypted(plain):
            raise BodyError("an encrypted form inside an encrypted form")
        return plain


def cover_of(ports: Ports, identity: Identity) -> Cover:
    """The cover of one thread."""
    return Cover(identity, ports.ciphers)
