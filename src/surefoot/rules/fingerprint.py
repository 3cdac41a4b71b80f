"""Canonical fingerprints of arguments: equal for equal values, in every process.

Serialised bytes are not canonical (a set of strings has another order in each process), so
equality is decided over an encoding of our own: every value is tagged and length-prefixed,
maps and sets are sorted by their encoding. A value that went through the serialiser and back
has the same fingerprint: tuples count as lists, enumerations as their values, byte arrays as
bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from surefoot.errors import Misuse

__all__ = ["Unfingerprintable", "fingerprint", "parts_of"]

_MAX_DEPTH = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Unfingerprintable(Misuse):
    """An argument has a type without a canonical form."""

    code = "UNFINGERPRINTABLE"
    template = (
        "argument {path} of effect {effect!r} has type {type_name}, which has no canonical form"
    )
    remedy = "Name the semantic part of the arguments with inputs=."


def fingerprint(value: Any, *, effect: str) -> bytes:
    """SHA-256 over the canonical encoding of a value.

    Args:
        value: Usually a map of argument names to arguments.
        effect: Name of the effect, for the error.

    Raises:
        Unfingerprintable: Some part has no canonical form; ``path`` says which.
    """
    return hashlib.sha256(b"fp/v1" + _encode(value, "$", effect, 0)).digest()


def parts_of(value: Any) -> list[tuple[str, Any]]:
    """Steps into a value and what lies there: ``.key``, ``[0]``; empty for what has no parts.

    Sets have none: their elements have no place of their own.
    """
    if isinstance(value, Mapping):
        return [(f".{key}", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, Enum) or _scalar(value) is not None:
        return []
    return [(f".{name}", item) for name, item in (_fields(value) or {}).items()]


def _frame(tag: bytes, payload: bytes) -> bytes:
    return tag + len(payload).to_bytes(8, "big") + payload


def _encode(value: Any, path: str, effect: str, depth: int) -> bytes:
    if depth > _MAX_DEPTH:
        raise Unfingerprintable(path=path, effect=effect, type_name="(nested too deep)")
    if isinstance(value, Enum):
        return _encode(value.value, path, effect, depth + 1)
    scalar = _scalar(value)
    if scalar is not None:
        return scalar
    if isinstance(value, Mapping):
        return _map(value, path, effect, depth, b"M")
    if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
        parts = [_encode(v, f"{path}[{i}]", effect, depth + 1) for i, v in enumerate(value)]
        return _frame(b"L", b"".join(parts))
    if isinstance(value, Set):
        parts = sorted(_encode(v, f"{path}{{}}", effect, depth + 1) for v in value)
        return _frame(b"S", b"".join(parts))
    fields = _fields(value)
    if fields is not None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".encode()
        return _frame(b"O", _frame(b"N", kind) + _map(fields, path, effect, depth, b"M"))
    raise Unfingerprintable(path=path, effect=effect, type_name=type(value).__qualname__)


def _map(value: Mapping[Any, Any], path: str, effect: str, depth: int, tag: bytes) -> bytes:
    pairs = sorted(
        (
            _encode(key, f"{path}.(key)", effect, depth + 1),
            _encode(item, f"{path}.{key}", effect, depth + 1),
        )
        for key, item in value.items()
    )
    return _frame(tag, b"".join(k + v for k, v in pairs))


def _fields(value: Any) -> Mapping[str, Any] | None:
    """Fields of a model, data class or named tuple; None for other objects."""
    if isinstance(value, type):
        return None
    if hasattr(type(value), "model_fields"):
        named = {name: getattr(value, name) for name in type(value).model_fields}
        return {**named, **(getattr(value, "__pydantic_extra__", None) or {})}
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        asdict: Mapping[str, Any] = value._asdict()
        return asdict
    return None


def _scalar(value: Any) -> bytes | None:
    """Encoding of a value without parts; None when it is no scalar."""
    if value is None:
        return _frame(b"0", b"")
    if isinstance(value, bool):
        return _frame(b"b", b"1" if value else b"0")
    if isinstance(value, int):
        size = value.bit_length() // 8 + 1
        return _frame(b"i", int(value).to_bytes(size, "big", signed=True))
    if isinstance(value, float):
        return _frame(b"f", b"nan" if math.isnan(value) else struct.pack(">d", value))
    if isinstance(value, str):
        return _frame(b"s", str.encode(value, "utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _frame(b"y", bytes(value))
    return _scalar_object(value)


def _decimal(value: Decimal) -> bytes:
    """Sign, digits without trailing zeros, exponent: independent of any decimal context."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value).encode()
    kept = "".join(map(str, digits)).lstrip("0").rstrip("0")
    moved = len("".join(map(str, digits)).lstrip("0")) - len(kept)
    return f"{sign}:{kept or 0}:{exponent + moved if kept else 0}".encode()


def _scalar_object(value: Any) -> bytes | None:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return _frame(b"d", b"naive" + value.isoformat().encode())
        return _frame(b"d", str((value - _EPOCH) // timedelta(microseconds=1)).encode())
    if isinstance(value, (date, time)):
        return _frame(b"t", type(value).__name__.encode() + value.isoformat().encode())
    if isinstance(value, timedelta):
        return _frame(b"e", str(value // timedelta(microseconds=1)).encode())
    if isinstance(value, Decimal):
        return _frame(b"D", _decimal(value))
    if isinstance(value, UUID):
        return _frame(b"u", value.bytes)
    if isinstance(value, PurePath):
        return _frame(b"p", str(value).encode("utf-8", "surrogateescape"))
    return None
