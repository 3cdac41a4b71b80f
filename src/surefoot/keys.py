"""Keys: a ring of named HMAC keys and the keys derived from them for each thread.

HKDF-SHA-256 (RFC 5869) separates tenants, threads and purposes, so a derived key that leaks
opens one thread only. HKDF is two calls of the standard library's ``hmac``; Ed25519 and AES
come from ``cryptography`` where they are needed. See docs/adr/0004.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from surefoot.errors import KeyMissing, Misconfigured
from surefoot.files import locked, read_private, replace_private, write_private
from surefoot.rules.envelope import tlv

__all__ = ["ENV_KEYS", "Key", "KeyFile", "Keyring", "default_key_file", "hkdf"]

#: Holds the keys themselves (JSON) or the path of a key file.
ENV_KEYS = "SUREFOOT_KEYS"
IDEMPOTENCY = "idempotency/v1"
_STATES = ("primary", "enabled", "retired")
_MIN_BYTES = 32


def default_key_file() -> Path:
    """Where `surefoot init` puts the key file: ``$XDG_CONFIG_HOME/surefoot/keys.json``."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "surefoot" / "keys.json"


def hkdf(secret: bytes, info: bytes, *, salt: bytes = b"", length: int = 32) -> bytes:
    """HKDF-SHA-256 (RFC 5869, sections 2.2 and 2.3).

    Args:
        secret: Input keying material.
        info: Context; different contexts give unrelated keys.
        salt: Optional salt; empty means 32 zero bytes.
        length: Bytes wanted, up to 8160.
    """
    if not 0 < length <= 255 * 32:
        raise ValueError("HKDF-SHA-256 gives 1 to 8160 bytes")
    prk = hmac.digest(salt or bytes(32), secret, "sha256")
    block, out = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(prk, block + info + bytes((counter,)), "sha256")
        out += block
    return out[:length]


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Where a ring is kept.

    Attributes:
        path: Of the file. What a variable says may be a key that was put there by mistake, so it
            is not shown before the file has been read.
        where: What it is, for messages.
    """

    path: str = field(repr=False)
    where: str

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> KeyFile:
        """A file that somebody named as one."""
        return cls(os.fspath(path), f"key file {os.fspath(path)}")

    @classmethod
    def from_env(cls, variable: str = ENV_KEYS) -> KeyFile | None:
        """The file that an environment variable names, else where `surefoot init` makes one.

        Returns:
            None when the variable holds the keys themselves.
        """
        value = _value_of(variable)
        if value.startswith(("{", "[")):
            return None
        if value:
            return cls(value, f"{variable} is no JSON document of keys, so it names a key file")
        return cls.at(default_key_file())


def _value_of(variable: str) -> str:
    return os.environ.get(variable, "").strip().lstrip("\ufeff").strip()


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the ring. Its secret never appears in a repr.

    Attributes:
        key_id: Name, stored beside every seal.
        secret: At least 32 bytes.
        state: ``primary`` (seals and verifies), ``enabled`` (verifies) or ``retired`` (refused).
    """

    key_id: str
    secret: bytes = field(repr=False)
    state: str = "enabled"

    def __reduce__(self) -> str:
        raise Misconfigured(field="keys", reason="a key is never pickled")


class Keyring:
    """HMAC keys by id: exactly one primary, any number enabled or retired.

    Raises:
        Misconfigured: No key, no or several primaries, a short or malformed secret.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys: dict[str, Key] = {}
        for key in keys:
            _check(key)
            if key.key_id in self._keys:
                raise Misconfigured(field="keys", reason=f"key id {key.key_id!r} stands twice")
            self._keys[key.key_id] = key
        primaries = [k.key_id for k in self._keys.values() if k.state == "primary"]
        if len(primaries) != 1:
            raise Misconfigured(
                field="keys", reason=f"exactly one key must be primary, found {len(primaries)}"
            )
        self._primary = primaries[0]
        self._derive = lru_cache(maxsize=4096)(self._derive_uncached)

    def __repr__(self) -> str:
        return f"Keyring({self.states()})"

    def __reduce__(self) -> str:
        raise Misconfigured(field="keys", reason="a keyring is never pickled")

    # --- where keys come from -------------------------------------------------------------------

    @classmethod
    def generate(cls, key_id: str | None = None) -> Keyring:
        """A ring with one fresh 256-bit key."""
        return cls([Key(key_id or f"k{secrets.token_hex(4)}", secrets.token_bytes(32), "primary")])

    @classmethod
    def from_env(cls, variable: str = ENV_KEYS) -> Keyring:
        """Keys from an environment variable, else from the file that `surefoot init` made.

        Raises:
            KeyMissing: Neither is there.
            Misconfigured: What is there is malformed.
        """
        value = _value_of(variable)
        named = KeyFile.from_env(variable)
        if named is None:
            return cls._parse(value, where=variable)
        if value:
            return cls.from_file(named)
        found = default_key_file()
        try:
            found.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise KeyMissing(
                key_id=None, reason=f"{variable} is not set and there is no key file {found}"
            ) from None
        except OSError:
            pass  # a folder that may not be entered: reading the file says so
        return cls.from_file(found)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str] | KeyFile) -> Keyring:
        """Keys from a file that only its owner may read.

        Raises:
            KeyMissing: The file is not there or cannot be read.
            Misconfigured: Others may read it, or it is malformed.
        """
        file = path if isinstance(path, KeyFile) else KeyFile.at(path)
        return cls._parse(read_private(file.path, where=file.where), where=file.where)

    @classmethod
    def change_file(
        cls, path: str | os.PathLike[str] | KeyFile, change: Callable[[Keyring], Keyring]
    ) -> Keyring:
        """Changes a key file as it is now; two such changes never pass each other by.

        Args:
            path: The file.
            change: Gives the new ring for the one that the file holds.

        Raises:
            KeyMissing: The file is not there or cannot be read.
            Misconfigured: It is malformed or cannot be written; the old file is as it was.
        """
        file = path if isinstance(path, KeyFile) else KeyFile.at(path)
        with locked(file.path, where=file.where):
            ring = change(cls.from_file(file))
            ring.replace_file(file)
        return ring

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Writes a new file with mode 0600; never overwrites one.

        Raises:
            Misconfigured: The file exists or cannot be written.
        """
        write_private(path, self._document(), where=f"key file {os.fspath(path)}")

    def replace_file(self, path: str | os.PathLike[str] | KeyFile) -> None:
        """Puts this ring in the place of a key file, at once and whole; see also `change_file`.

        Raises:
            Misconfigured: It cannot be written; the old file is as it was.
        """
        file = path if isinstance(path, KeyFile) else KeyFile.at(path)
        replace_private(file.path, self._document(), where=file.where)

    def _document(self) -> str:
        keys = [
            {"id": k.key_id, "secret": base64.b64encode(k.secret).decode(), "state": k.state}
            for k in self._keys.values()
        ]
        return json.dumps({"keys": keys}, indent=1)

    # --- rotation -------------------------------------------------------------------------------

    def states(self) -> dict[str, str]:
        """State of each key by id."""
        return {k.key_id: k.state for k in self._keys.values()}

    def with_new_key(self, key_id: str | None = None) -> Keyring:
        """A ring with one more key, which verifies but does not seal yet.

        Give it to every worker before it becomes the primary.

        Raises:
            Misconfigured: The id is taken.
        """
        fresh = Key(key_id or f"k{secrets.token_hex(4)}", secrets.token_bytes(32), "enabled")
        return Keyring([*self._keys.values(), fresh])

    def with_primary(self, key_id: str) -> Keyring:
        """A ring that seals with this key; the former primary still verifies.

        Raises:
            KeyMissing: The key is unknown or retired.
        """
        self._usable(key_id)
        return Keyring(
            replace(k, state="primary" if k.key_id == key_id else "enabled")
            if k.state != "retired"
            else k
            for k in self._keys.values()
        )

    def with_retired(self, key_id: str) -> Keyring:
        """A ring in which this key seals nothing and counts only where a thread vouches for it.

        Raises:
            KeyMissing: The key is unknown.
            Misconfigured: It is the primary.
        """
        if self._state(key_id) is None:
            raise KeyMissing(key_id=key_id, reason=f"this ring does not hold {key_id!r}")
        if key_id == self._primary:
            raise Misconfigured(
                field="keys", reason=f"{key_id!r} is the primary; rotate to another key first"
            )
        return Keyring(
            replace(k, state="retired") if k.key_id == key_id else k for k in self._keys.values()
        )

    @classmethod
    def _parse(cls, text: str, *, where: str) -> Keyring:
        keys = _keys_in(text)
        if keys is None:  # raised here, so that no error holds the text in its context
            raise Misconfigured(
                field=where,
                reason='must hold {"keys": [{"id": …, "secret": base64, "state": "primary"}]}',
            )
        return cls(keys)

    # --- the port -------------------------------------------------------------------------------

    def primary(self) -> str:
        """Id of the key that seals new records."""
        return self._primary

    def seal_key(self, key_id: str, tenant: str, thread: str) -> bytes:
        """32 bytes that seal one thread's records.

        Raises:
            KeyMissing: The key is unknown or retired.
        """
        return self._derive(key_id, "seal/v1", tenant, thread)

    def verifying_key(self, key_id: str, tenant: str, thread: str) -> bytes:
        """The seal key, of a retired key as well: what it sealed counts only up to a ``K`` record.

        Raises:
            KeyMissing: The key is unknown.
        """
        return self.purpose_key(key_id, "seal/v1", tenant, thread, even_retired=True)

    def is_retired(self, key_id: str) -> bool:
        """True for a key of this ring that is retired."""
        return self._state(key_id) == "retired"

    def purpose_key(
        self,
        key_id: str,
        purpose: str,
        tenant: str,
        thread: str,
        *,
        even_retired: bool = False,
    ) -> bytes:
        """32 bytes for another purpose of one thread.

        Args:
            key_id: Name of the key.
            purpose: What it is for; other purposes give unrelated bytes.
            tenant: Of the thread.
            thread: Id of the thread.
            even_retired: Also of a retired key, where something else says what still counts.

        Raises:
            KeyMissing: The key is unknown, or retired (except for idempotency keys).
        """
        if (even_retired or purpose == IDEMPOTENCY) and self._state(key_id) == "retired":
            # A retired key seals nothing any more, but what was sent under it may have to be
            # sent again under the same idempotency key.
            return self._derived(key_id, purpose, tenant, thread)
        return self._derive(key_id, purpose, tenant, thread)

    def _state(self, key_id: str) -> str | None:
        key = self._keys.get(key_id)
        return None if key is None else key.state

    def _usable(self, key_id: str) -> None:
        state = self._state(key_id)
        if state is None:
            raise KeyMissing(key_id=key_id, reason=f"this ring does not hold {key_id!r}")
        if state == "retired":
            raise KeyMissing(key_id=key_id, reason=f"{key_id!r} is retired")

    def _derive_uncached(self, key_id: str, purpose: str, tenant: str, thread: str) -> bytes:
        self._usable(key_id)
        return self._derived(key_id, purpose, tenant, thread)

    def _derived(self, key_id: str, purpose: str, tenant: str, thread: str) -> bytes:
        return hkdf(self._keys[key_id].secret, tlv(purpose, tenant, thread))


def _keys_in(text: str) -> list[Key] | None:
    """The keys of a document, or None when it is malformed in any way."""
    try:
        return [
            Key(
                str(item["id"]),
                base64.b64decode(item["secret"], validate=True),
                str(item.get("state", "enabled")),
            )
            for item in json.loads(text)["keys"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _check(key: Key) -> None:
    where = f"key {key.key_id!r}"
    try:
        size = len(key.key_id.encode("utf-8"))
    except UnicodeEncodeError:
        size = 0
    if not 0 < size < 256:
        raise Misconfigured(field="keys", reason="a key id is text of 1 to 255 bytes")
    if key.state not in _STATES:
        raise Misconfigured(field=where, reason=f"state must be one of {', '.join(_STATES)}")
    if len(key.secret) < _MIN_BYTES:
        raise Misconfigured(field=where, reason=f"a secret has at least {_MIN_BYTES} bytes")
