"""Ed25519 keys of operators: signing decisions and checking signatures (extra ``review``).

The private key belongs to a person or to an approval service, never to a worker: workers hold
public keys only, so whoever takes over a worker cannot order a restore.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.errors import DecisionRefused, KeyMissing, Misconfigured, Misuse
from surefoot.files import read_private, write_private
from surefoot.rules.decisions import Decision, SignedDecision, signed_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["ENV_REVIEWERS", "Reviewers", "SigningKey"]

#: Public keys of those whose decisions count: JSON, or the path of a file that holds it.
ENV_REVIEWERS = "SUREFOOT_REVIEWERS"
_SECRET_BYTES = 32
_P = 2**255 - 19  # of the curve's field
#: Points whose order divides 8. Under such a public key anybody can make signatures that match, as
#: a placeholder of 64 zeros shows. The first eight are all there are (RFC 8032, section 5.1.3, says
#: how points are written); the last two write x = 0 with a sign, which that section forbids. The
#: four others that are not canonical, y = p and y = p + 1 with either sign, are caught by y < p.
#: The same list: `ge25519_has_small_order` of libsodium (ref10), and Chalkias, Garillot and
#: Nikolaenko, "Taming the many EdDSAs" (2020), table 1.
_SMALL_ORDER = frozenset(
    bytes.fromhex(point)
    for point in (
        "01" + "00" * 31,
        "ec" + "ff" * 30 + "7f",
        "00" * 32,
        "00" * 31 + "80",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "01" + "00" * 30 + "80",
        "ec" + "ff" * 31,
    )
)


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise Misconfigured(
            field="signed decisions", reason="need the extra: pip install 'surefoot[review]'"
        ) from None
    return ed25519


def _is_safe_point(raw: bytes) -> bool:
    """True for a public key that only the holder of its private half can sign for."""
    return raw not in _SMALL_ORDER and int.from_bytes(raw, "little") & (2**255 - 1) < _P


def _is_key_id(key_id: str) -> bool:
    """True for what a signed document may hold; it holds text, so no lone surrogates."""
    try:
        key_id.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return 0 < len(key_id) <= 255


class SigningKey:
    """A private key with its id. Its secret never appears in a repr and is never pickled."""

    def __init__(self, key_id: str, secret: bytes) -> None:
        if not _is_key_id(key_id) or len(secret) != _SECRET_BYTES:
            raise Misconfigured(field="signing key", reason="is an id and 32 secret bytes")
        if not any(secret):
            raise Misconfigured(
                field="signing key",
                reason="is a placeholder of zeros; make one with `surefoot keys operator`",
            )
        self.key_id = key_id
        self._key: Ed25519PrivateKey = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id!r})"

    def __reduce__(self) -> str:
        raise Misconfigured(field="signing key", reason="a key is never pickled")

    @classmethod
    def generate(cls, key_id: str) -> SigningKey:
        """A fresh key."""
        return cls(key_id, os.urandom(_SECRET_BYTES))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> SigningKey:
        """A key from a file that only its owner may read.

        Raises:
            KeyMissing: The file is not there or cannot be read.
            Misconfigured: Others may read it, or it is malformed.
        """
        where = f"signing key {os.fspath(path)}"
        found: tuple[str, bytes] | None = None
        try:
            stored = json.loads(read_private(path, where=where))["signing_key"]
            found = (str(stored["id"]), bytes.fromhex(stored["secret"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            found = None
        if found is None:  # raised here, so that no error holds the text in its context
            raise Misconfigured(
                field=where, reason='must hold {"signing_key": {"id": …, "secret": 64 hex digits}}'
            )
        return cls(*found)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Writes a new file with mode 0600; never overwrites one.

        Raises:
            Misconfigured: The file exists or cannot be written.
        """
        secret = self._key.private_bytes_raw().hex()
        text = json.dumps({"signing_key": {"id": self.key_id, "secret": secret}}, indent=1)
        write_private(path, text, where=f"signing key {os.fspath(path)}")

    def public(self) -> str:
        """The public key, 64 hex digits, for `Reviewers`."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, decision: Decision) -> SignedDecision:
        """Signs a decision as its document says it.

        Raises:
            Misuse: It breaks a rule of `Decision`, which a copy with other fields may.
        """
        decision = Decision.parse(decision)
        signature = self._key.sign(signed_bytes(decision, self.key_id)).hex()
        return SignedDecision(decision=decision, key_id=self.key_id, signature=signature)


class Reviewers:
    """Public keys by id: whose decisions are carried out.

    Args:
        keys: Id and 64 hex digits of each public key.

    Raises:
        Misconfigured: A key is malformed.
    """

    def __init__(self, keys: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._keys: dict[str, bytes] = {}
        for key_id, public in dict(keys).items():
            try:
                raw = bytes.fromhex(public)
            except (ValueError, TypeError):
                raw = b""
            if not key_id or len(raw) != 32:
                raise Misconfigured(
                    field=f"reviewers[{key_id!r}]", reason="must be 64 hex digits (Ed25519)"
                )
            if not _is_safe_point(raw):
                raise Misconfigured(
                    field=f"reviewers[{key_id!r}]",
                    reason=(
                        "is a placeholder or a weak key, for which anybody can sign; take the "
                        "public key that `surefoot keys operator` printed"
                    ),
                )
            self._keys[key_id] = raw

    def __repr__(self) -> str:
        return f"Reviewers({sorted(self._keys)})"

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def from_env(cls, variable: str = ENV_REVIEWERS) -> Reviewers:
        """Public keys from an environment variable; none when it is not set.

        Raises:
            Misconfigured: What is there is malformed.
        """
        value = os.environ.get(variable, "").strip().lstrip("\ufeff")
        if not value:
            return cls()
        if value.startswith(("{", "[")):
            return cls._parse(value, where=variable)
        # The value may be a private key that was put here by mistake: it is never shown.
        return cls._read(value, where=f"{variable} is no JSON document, so it names a file")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Reviewers:
        """Public keys from a file: a JSON object of id and 64 hex digits.

        The document that ``surefoot keys operator --json`` prints will do as well.

        Raises:
            Misconfigured: It cannot be read or is malformed.
        """
        return cls._read(path, where=f"reviewers file {os.fspath(path)}")

    @classmethod
    def _read(cls, path: str | os.PathLike[str], *, where: str) -> Reviewers:
        text, problem = "", ""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or "is no path, or no text"
        if problem:  # raised here, so that no error holds the path in its context
            raise Misconfigured(field=where, reason=problem)
        return cls._parse(text, where=where)

    @classmethod
    def _parse(cls, text: str, *, where: str) -> Reviewers:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and isinstance(found.get("reviewers"), dict):
            found = found["reviewers"]  # as `surefoot keys operator --json` prints it
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise Misconfigured(field=where, reason='must hold {"id": "64 hex digits", …}')
        return cls(found)

    def public_of(self, key_id: str) -> str | None:
        """The public key of that id, 64 hex digits; None when it is not known."""
        raw = self._keys.get(key_id)
        return None if raw is None else raw.hex()

    def check(self, signed: SignedDecision) -> None:
        """Checks who signed.

        Raises:
            KeyMissing: No public key of that id is known.
            DecisionRefused: The signature does not match, or what was signed is not what the
                document says.
        """
        raw = self._keys.get(signed.key_id)
        if raw is None:
            raise KeyMissing(
                key_id=signed.key_id,
                reason=(
                    f"no public key {signed.key_id!r} is among the reviewers; pass reviewers= "
                    f"or set {ENV_REVIEWERS}"
                ),
            )
        key = _ed25519().Ed25519PublicKey.from_public_bytes(raw)
        from cryptography.exceptions import InvalidSignature

        against = ""
        try:
            key.verify(
                bytes.fromhex(signed.signature), signed_bytes(signed.decision, signed.key_id)
            )
            if Decision.parse(signed.decision).model_dump() != signed.decision.model_dump():
                against = "in memory it differs from its document"
        except InvalidSignature:
            against = f"the signature of {signed.key_id!r} does not match the document"
        except Misuse as error:
            against = f"it is signed, but it is no decision: {error.reason}"
        if against:
            raise DecisionRefused(
                thread=signed.decision.thread,
                action=signed.decision.action,
                nonce=signed.decision.nonce,
                reason=against,
            )
