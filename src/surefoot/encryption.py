"""Encryption at rest: AES-256-GCM with a key for each thread. See docs/adr/0010.

The cipher is that of ``cryptography``, which the extra ``surefoot[encryption]`` brings.

Every message gets a nonce of 96 random bits from the operating system. Under one key that is
sound for 2**32 messages (NIST SP 800-38D, section 8.3). A key belongs to one tenant, thread and
key id, and a super-step is a handful of messages (its record, and the values and list pieces
that are new), so the bound stands for some hundred million super-steps of one thread between
two rotations.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from surefoot.errors import KeyMissing, Misconfigured
from surefoot.ports import Seals
from surefoot.rules.bodies import Encrypted, pack_encrypted, unpack_encrypted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["ThreadCiphers"]

_PURPOSE = "encrypt/v1"
_NONCE_BYTES = 12
#: Ciphers with their key schedule; each is a few hundred bytes.
_CIPHERS_MAX = 1024


class ThreadCiphers:
    """AES-256-GCM under keys that are derived for each key id, tenant and thread.

    Args:
        keys: The ring to derive from: the saver's own, or one for encryption alone.
        even_retired: Open what a retired key has encrypted. For the saver's own ring, where the
            chain decides what a retired key's seal is worth; reading it gives nothing away.

    Raises:
        Misconfigured: ``cryptography`` is not installed.
    """

    def __init__(self, keys: Seals, *, even_retired: bool = False) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise Misconfigured(
                field="encryption",
                reason="needs the package cryptography: pip install 'surefoot[encryption]'",
            ) from None
        self._keys = keys
        self._even_retired = even_retired
        self._aes_gcm = AESGCM
        self._invalid_tag = InvalidTag
        self._cipher = lru_cache(maxsize=_CIPHERS_MAX)(self._cipher_uncached)

    def encrypt(self, tenant: str, thread: str, bound: bytes, plain: bytes) -> bytes:
        """Encrypted stored form of a plain one, under the primary key and a fresh nonce."""
        key_id = self._keys.primary()
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher(key_id, tenant, thread).encrypt(nonce, plain, bound)
        return pack_encrypted(Encrypted(key_id, nonce, sealed))

    def decrypt(self, tenant: str, thread: str, bound: bytes, stored: bytes) -> bytes:
        """The stored form inside an encrypted one whose bytes have been verified.

        Raises:
            BodyError: It has no layout of an encrypted form.
            KeyMissing: The key is unknown or retired, or does not open it.
        """
        parts = unpack_encrypted(stored)
        cipher = self._cipher(parts.key_id, tenant, thread)
        try:
            return cipher.decrypt(parts.nonce, parts.sealed, bound)
        except self._invalid_tag:
            # The seal holds, so these are the writer's bytes: most likely the ring has another
            # secret under this name.
            raise KeyMissing(
                key_id=parts.key_id,
                reason=(
                    f"{parts.key_id!r} does not open it: the ring holds another secret under "
                    "this id, or the row was made for another place"
                ),
            ) from None

    def _cipher_uncached(self, key_id: str, tenant: str, thread: str) -> AESGCM:
        key = self._keys.purpose_key(
            key_id, _PURPOSE, tenant, thread, even_retired=self._even_retired
        )
        return self._aes_gcm(key)
