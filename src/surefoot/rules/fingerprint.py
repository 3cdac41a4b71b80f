"""Canonical fingerprints of arguments: equal for equal values, in every process.

Serialised bytes are not canonical (a set of strings has another order in each process), so
equality is decided over an encoding of our own: every value is tagged and length-prefixed,
maps and sets are sorted by their encoding. A value that went through the serialiser and back
has the same fingerprint: tuples count as lists, enumerations as their values, byte arrays as
bytes.

Of a langchain message everything counts except what is made anew when a model says the same thing
again: its own id, the ids of its tool calls (also the one that a tool's message answers), and
what is told of how the answer was made (``response_metadata``, ``usage_metadata``). What might mean
something stays, extra keys of providers included: a conflict that nobody expected is seen, and an
old result for another request is not. Fields that are empty do not count, so that a release of
langchain that adds one changes nothing.
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
    if _is_message(value):
        said = _message(value)
        kind = str(said.pop("type", "")).encode()
        return _frame(b"G", _frame(b"N", kind) + _map(said, path, effect, depth, b"M"))
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


# --- messages of langchain, which this room does not import ------------------------------------

#: Made anew by every call of a model, or by the reducer that takes the message.
_MINTED = frozenset({"id", "tool_call_id", "response_metadata", "usage_metadata"})
_CALLS = frozenset({"tool_calls", "invalid_tool_calls", "tool_call_chunks"})
#: Blocks of content whose ``id`` names this saying of it; that of a file names the file.
_SAID = frozenset({"text", "reasoning", "thinking", "tool_use", "tool_call", "function_call"})


def _is_message(value: Any) -> bool:
    return any(
        cls.__name__ == "BaseMessage" and cls.__module__.startswith("langchain_core.")
        for cls in type(value).__mro__
    )


def _message(value: Any) -> dict[str, Any]:
    """Semantic fields of a message; ``type`` says which kind it is, wherever its class lives."""
    fields = dict(_fields(value) or {})
    if fields.get("type") != "remove":  # that one is nothing but the id that it names
        fields = {name: item for name, item in fields.items() if name not in _MINTED}
    for name in _CALLS & fields.keys():
        fields[name] = [_without_ids(call) for call in fields[name] or ()]
    extra = fields.get("additional_kwargs")
    if isinstance(extra, Mapping) and fields.get("tool_calls"):
        # Some providers leave the calls there as well, unparsed and with their ids.
        fields["additional_kwargs"] = {k: v for k, v in extra.items() if k != "tool_calls"}
    content = fields.get("content")
    if isinstance(content, list):
        fields["content"] = [
            _without_ids(part) if isinstance(part, Mapping) and part.get("type") in _SAID else part
            for part in content
        ]
    if not type(value).__module__.startswith("langchain_core."):
        fields["type"] = f"{type(value).__module__}.{type(value).__qualname__}"
    return {name: item for name, item in fields.items() if name == "content" or not _is_empty(item)}


def _without_ids(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {name: item for name, item in part.items() if name not in ("id", "call_id")}


def _is_empty(item: Any) -> bool:
    return item is None or item is False or (isinstance(item, (str, list, dict)) and not item)


# --- objects with fields -----------------------------------------------------------------------


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
