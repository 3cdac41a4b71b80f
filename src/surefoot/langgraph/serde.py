"""The strict serialiser: stored faithfully or refused at once, rebuilt exactly or refused.

**Wire format.** The stock msgpack format of LangGraph, tags ``null``, ``bytes``,
``bytearray`` and ``msgpack``. Ordinary values give the same bytes as the stock serialiser,
so each reads what the other wrote. What stock turns into something else has codes of ours:

====  ==========================================================================
code  payload
====  ==========================================================================
64    a string with lone surrogates, UTF-8 with ``surrogatepass``
65    an integer beyond 64 bits, big-endian two's complement
66    a dict with keys that msgpack maps lose: a flat array ``[key, value, …]``
====  ==========================================================================

A ``deque`` with ``maxlen`` and a ``datetime`` with a named zone or ``fold`` use forms of the
stock format that stock itself does not write, but reads.

**Conventions of LangGraph that stay.** A tuple comes back as a list, a ``bytearray`` or
``memoryview`` inside a value as ``bytes``, subclasses of ``str``, ``int``, ``list`` and
``dict`` as their base, an exception as its ``repr``. Models inside a pydantic model are
stored by ``model_dump()``: as the field declares them, without private attributes and
without fields marked ``exclude``. Data that langchain messages carry keeps its types.

**What may be rebuilt.** The safe types of LangGraph, the allowlist, and, unless
``strict_types`` is set, classes of the kinds that the writer emits: pydantic models,
dataclasses, enums, named tuples, and secret types. A name that is no such class is never
called. Its module is imported if need be, because a worker that resumes may not have
loaded it yet: bytes get here only after their seal was verified, so a name in them was
written by a key holder, and the kind is a second line of defence. Modules of the standard
library beyond a short list are never imported; the writer refuses their classes too. Both
sides ask the same functions, so that what was stored can be loaded.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import importlib
import inspect
import ipaddress
import pathlib
import re
import sys
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import chain
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

import langchain_core.messages as lc_messages
import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item, SearchItem
from langgraph.types import Send
from pydantic import BaseModel, ValidationError

from surefoot.errors import NotLoadable, NotStorable

__all__ = ["StrictSerializer", "dump_list_items", "join_list_items"]

# Codes of the stock format.
_SINGLE: Final = 0
_POSITIONAL: Final = 1
_KEYWORDS: Final = 2
_METHOD: Final = 3
_MODEL_V1: Final = 4
_MODEL: Final = 5
_ARRAY: Final = 6
_DELTA: Final = 7
# Codes of ours, see the module's docstring. Append-only: stored rows are read for ever.
_TEXT: Final = 64
_INTEGER: Final = 65
_MAP: Final = 66

# Stock also sets OPT_REPLACE_SURROGATES, which changes text without an error. The bytes of
# string keys are the same under both options; the first refuses the keys that are lost.
_STRING_KEYS: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_ANY_KEYS: Final = _STRING_KEYS | ormsgpack.OPT_NON_STR_KEYS

# Objects inside objects. Native frames of the decoder are large: 15,000 of them overflow a
# stack of 8 MB and kill the process, so containers count too once objects nest deeply.
_MAX_NESTED_OBJECTS: Final = 64
_FREE_NESTED_OBJECTS: Final = 4
_MAX_CONTAINERS_BELOW: Final = 16
_MAX_CONTAINERS: Final = 255  # the encoder's own limit
_MAX_PATH_CHARS: Final = 300
_MAX_KEY_CHARS: Final = 40

_SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes, bytearray, memoryview})
_PLAIN_KEYS: Final = frozenset({str, int, float, bool, type(None), bytes})

#: Modules of the standard library whose enums, dataclasses and named tuples may be rebuilt.
_STDLIB_MODULES: Final = frozenset(
    {
        "calendar",
        "difflib",
        "http",
        "inspect",
        "logging",
        "platform",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "sys",
        "tokenize",
        "urllib.parse",
        "uuid",
    }
)
_BY_NAME: Final = "by_name" in inspect.signature(BaseModel.model_validate).parameters

#: Plain data of LangGraph that its own list of safe types forgets.
_ALSO_SAFE: Final = frozenset({("langgraph.store.base", "SearchItem")})

_TypeKey = tuple[str, ...]
_Kind = Literal["model", "model_v1", "secret", "record", "enum", "dataclass"]
_CODE_OF_KIND: Final[dict[_Kind, int]] = {
    "model": _MODEL,
    "model_v1": _MODEL_V1,
    "secret": _SINGLE,
    "record": _KEYWORDS,
    "enum": _SINGLE,
    "dataclass": _KEYWORDS,
}


class _CannotStore(Exception):
    """The reason why an object is refused, before its path is known."""


#: An object taken apart: the code, its payload, and when to rebuild it as a proof. A plain
#: tuple, because every message of a long chat passes through one.
_Reduced = tuple[int, Any, int]
_NEVER: Final = 0
_ONCE: Final = 1  # per class
_ALWAYS: Final = 2


# --- which types -------------------------------------------------------------------------------


def _type_key(cls: type) -> tuple[str, str]:
    """Names a class so that it is found again: ``Outer.Inner`` where stock says ``Inner``."""
    module = sys.modules.get(cls.__module__)
    if getattr(module, cls.__name__, None) is cls:
        return (cls.__module__, cls.__name__)
    return (cls.__module__, cls.__qualname__)


def _may_import(module: str) -> bool:
    """Decides whether a type outside the allowlist may live in this module."""
    if module in _STDLIB_MODULES:
        return True
    top = module.partition(".")[0]
    # CPython's own tests are no part of the library by name, and some run when they are imported.
    return top != "test" and top not in sys.stdlib_module_names


def _resolve(module: str, name: str) -> Any:
    """Imports what a dotted name stands for.

    Raises:
        NotLoadable: The module or the name inside it does not exist, or the import failed.
    """
    dotted = f"{module}.{name}"
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        # The name of a generic model, `Box[shop.Order]`, has dots of its own.
        for part in [name] if name.endswith("]") else name.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise NotLoadable(
            type_name=dotted, reason="its module has no such name (moved, renamed or removed?)"
        ) from None
    except Exception as exc:  # noqa: BLE001  # a module may fail with anything while it loads
        if module.startswith("pathlib._"):
            return _resolve("pathlib", name)
        raise NotLoadable(
            type_name=dotted, reason=f"its module cannot be imported ({type(exc).__name__})"
        ) from None
    return found


_KINDS: weakref.WeakKeyDictionary[type, _Kind | None] = weakref.WeakKeyDictionary()


def _kind(cls: Any) -> _Kind | None:
    """Says which of the storable kinds of user types a class is, or None."""
    if not isinstance(cls, type):
        return None
    try:
        return _KINDS[cls]
    except KeyError:
        kind = _KINDS[cls] = _find_kind(cls)
        return kind


def _find_kind(cls: type) -> _Kind | None:
    v1 = getattr(sys.modules.get("pydantic.v1"), "BaseModel", None)
    if issubclass(cls, BaseModel):
        return "model"
    if callable(getattr(cls, "get_secret_value", None)):
        return "secret"
    if v1 is not None and issubclass(cls, v1):
        return "model_v1"
    if callable(getattr(cls, "_asdict", None)):
        return "record"
    if issubclass(cls, Enum):
        return "enum"
    if is_dataclass(cls):
        return "dataclass"
    return None


def _structural_fault(cls: type, kind: _Kind) -> str | None:
    """Says why instances of a class could not be rebuilt from their fields, or None."""
    if kind == "dataclass":
        try:
            inspect.signature(cls).bind(**{f.name: None for f in fields(cls)})
        except TypeError as exc:
            return f"its constructor does not take exactly its fields ({exc})"
        except ValueError:
            return None
    elif kind == "model" and not _BY_NAME:
        config = cls.model_config  # type: ignore[attr-defined]
        model_fields = cls.model_fields  # type: ignore[attr-defined]
        if not config.get("populate_by_name") and any(
            f.validation_alias not in {None, n} for n, f in model_fields.items()
        ):
            return "it has aliases but not populate_by_name=True"
    elif kind == "model_v1":
        v1_fields = cls.__fields__.items()  # type: ignore[attr-defined]
        config = cls.__config__  # type: ignore[attr-defined]
        if not config.allow_population_by_field_name and any(f.alias != n for n, f in v1_fields):
            return "it has aliases but not allow_population_by_field_name"
    return None


def _named_fault(cls: type) -> str | None:
    """Says why a class could not be found again by its name, or None."""
    module, name = _type_key(cls)
    if not _may_import(module):
        return "types of this module are not rebuilt unless they are listed in allowed_types="
    if "<locals>" in name:
        return "its class is defined inside a function, so it cannot be found again by name"
    try:
        found = _resolve(module, name)
    except NotLoadable:
        found = None
    return None if found is cls else f"{module}.{name} is not this class, so it cannot be rebuilt"


#: Classes whose structure, name and first instance passed; never holds a class alive.
_PROVEN: weakref.WeakSet[type] = weakref.WeakSet()


# --- how objects are taken apart ---------------------------------------------------------------


def _by_value(of: Callable[[Any], Any]) -> Callable[[Any], _Reduced]:
    return lambda obj: (_SINGLE, (*_type_key(type(obj)), of(obj)), _NEVER)


def _by_position(of: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], _Reduced]:
    return lambda obj: (_POSITIONAL, (*_type_key(type(obj)), of(obj)), _NEVER)


def _reduce_set(obj: Any) -> _Reduced:
    prove = _NEVER if _PLAIN_KEYS.issuperset(map(type, obj)) else _ALWAYS
    return (_SINGLE, (*_type_key(type(obj)), tuple(obj)), prove)


def _reduce_deque(obj: deque[Any]) -> _Reduced:
    # Stock drops maxlen: a ring buffer would grow without bound after a resume.
    if obj.maxlen is None:
        return (_SINGLE, (*_type_key(type(obj)), tuple(obj)), _NEVER)
    return (_POSITIONAL, (*_type_key(type(obj)), (tuple(obj), obj.maxlen)), _NEVER)


def _reduce_datetime(obj: dt.datetime) -> _Reduced:
    zone = obj.tzinfo
    if type(obj) is dt.datetime and (obj.fold or (isinstance(zone, ZoneInfo) and zone.key)):
        # ISO text keeps the offset only; days added later would ignore summer time.
        names = ("year", "month", "day", "hour", "minute", "second", "microsecond")
        parts = {name: getattr(obj, name) for name in (*names, "tzinfo", "fold")}
        return (_KEYWORDS, ("datetime", "datetime", parts), _NEVER)
    return (_METHOD, (*_type_key(type(obj)), obj.isoformat(), "fromisoformat"), _NEVER)


def _reduce_time(obj: dt.time) -> _Reduced:
    names = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
    parts = {name: getattr(obj, name) for name in names}
    return (_KEYWORDS, (*_type_key(type(obj)), parts), _NEVER)


def _reduce_send(obj: Send) -> _Reduced:
    args: tuple[Any, ...] = (obj.node, obj.arg)
    timeout = getattr(obj, "timeout", None)
    if timeout is not None:
        args = (*args, timeout)
    return (_POSITIONAL, (*_type_key(type(obj)), args), _NEVER)


def _reduce_zone(obj: ZoneInfo) -> _Reduced:
    if obj.key is None:
        raise _CannotStore("a zone without a key cannot be found again")
    return (_SINGLE, (*_type_key(type(obj)), obj.key), _NEVER)


def _reduce_item(obj: Item) -> _Reduced:
    return (_MODEL_V1, (*_type_key(type(obj)), obj.dict()), _NEVER)


_REDUCERS: dict[type, Callable[[Any], _Reduced]] = {
    _DeltaSnapshot: lambda obj: (_DELTA, obj.value, _NEVER),
    uuid.UUID: _by_value(lambda obj: obj.hex),
    decimal.Decimal: _by_value(str),
    set: _reduce_set,
    frozenset: _reduce_set,
    deque: _reduce_deque,
    dt.datetime: _reduce_datetime,
    dt.timedelta: _by_position(lambda obj: (obj.days, obj.seconds, obj.microseconds)),
    dt.date: _by_position(lambda obj: (obj.year, obj.month, obj.day)),
    dt.time: _reduce_time,
    dt.timezone: _by_position(lambda obj: obj.__getinitargs__()),
    ZoneInfo: _reduce_zone,
    re.Pattern: lambda obj: (_POSITIONAL, ("re", "compile", (obj.pattern, obj.flags)), _NEVER),
    Send: _reduce_send,
    Item: _reduce_item,
    SearchItem: _reduce_item,
    **{
        cls: _by_value(str)
        for cls in (
            ipaddress.IPv4Address,
            ipaddress.IPv4Interface,
            ipaddress.IPv4Network,
            ipaddress.IPv6Address,
            ipaddress.IPv6Interface,
            ipaddress.IPv6Network,
        )
    },
    **{
        cls: _by_position(lambda obj: obj.parts)
        for cls in (pathlib.Path, pathlib.PosixPath, pathlib.WindowsPath)
    },
}


def _reduce_fields(obj: Any, kind: _Kind) -> _Reduced:
    """Takes an instance of a user type apart, as stock does."""
    key = _type_key(type(obj))
    if kind == "model":
        return (_MODEL, (*key, obj.model_dump(), "model_validate_json"), _ALWAYS)
    if kind == "model_v1":
        return (_MODEL_V1, (*key, obj.dict()), _ALWAYS)
    if kind == "secret":
        return (_SINGLE, (*key, obj.get_secret_value()), _ONCE)
    if kind == "record":
        return (_KEYWORDS, (*key, obj._asdict()), _ONCE)
    if kind == "enum":
        return (_SINGLE, (*key, obj.value), _ALWAYS)
    parts = {f.name: getattr(obj, f.name) for f in fields(obj)}
    return (_KEYWORDS, (*key, parts), _ONCE)


def _reduce_array(obj: Any) -> _Reduced | None:
    """Takes a numpy array apart; None if the object is no array.

    Raises:
        _CannotStore: The array's dtype or class would not come back.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(obj, numpy.ndarray):
        if numpy is not None and isinstance(obj, numpy.generic):
            raise _CannotStore("a numpy scalar does not keep its type; use .item()")
        return None
    if type(obj) is not numpy.ndarray:
        raise _CannotStore("a subclass of ndarray would lose what it adds (masks, names)")
    if obj.dtype.hasobject or obj.dtype.fields is not None or obj.dtype.subdtype is not None:
        raise _CannotStore("arrays of objects or records do not keep their dtype; use lists")
    order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
    return (_ARRAY, (obj.dtype.str, obj.shape, order, obj.tobytes(order=order)), _NEVER)


def _safe_repr(error: BaseException) -> str:
    """Renders an exception as stock does, also if its own ``__repr__`` fails."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001  # the error being recorded must not hide behind another
        return f"{type(error).__name__}(<repr failed>)"


# --- messages ----------------------------------------------------------------------------------


class _MessageShape:
    """What is known about one message class of langchain, and its validation-free loader.

    The loader is used only for fields that validation would leave as they are. Anything
    else, also a class whose validators or fields are not the ones known here, is validated.
    """

    __slots__ = ("_extra", "_kind", "_names", "_order", "_own", "cls", "head")

    def __init__(self, cls: type[BaseModel]) -> None:
        self.cls = cls
        self.head = _type_key(cls)
        self._kind = cls.model_fields["type"].default
        self._order = list(cls.model_fields)
        self._names = frozenset(self._order)
        self._extra = cls.model_config.get("extra") == "allow"
        self._own = _own_check(cls) or _check_unknown

    def known(self) -> bool:
        """Decides whether the class is as it was when the checks here were written."""
        decorators = self.cls.__pydantic_decorators__
        changes_values = (
            decorators.field_validators
            or decorators.validators
            or decorators.root_validators
            or decorators.model_serializers
            or decorators.field_serializers
            or decorators.computed_fields
            or self.cls.__private_attributes__
            or self.cls.model_config.get("serialize_by_alias")
            or any(f.exclude or f.alias for f in self.cls.model_fields.values())
        )
        return (
            not changes_values
            and self._own is not _check_unknown
            and self._order[:6] == _COMMON_FIELDS
            and set(decorators.model_validators) <= _KNOWN_VALIDATORS
        )

    def reduce(self, obj: Any) -> _Reduced:
        """Takes a message apart; its ``__dict__`` is what ``model_dump()`` would copy."""
        data = obj.__dict__
        extra = obj.__pydantic_extra__
        if extra:
            data = {**data, **extra}
        prove = _NEVER if self.unchanged(data) else _ALWAYS
        return (_MODEL, (*self.head, data, "model_validate_json"), prove)

    def unchanged(self, data: dict[str, Any]) -> bool:
        """Decides whether validation would give these very fields back, in this order."""
        if [*data] != self._order:
            return False
        content, kwargs, metadata, kind, name, ident, *own = data.values()
        return (
            (type(content) is str or _is_block_list(content))
            and type(kwargs) is dict
            and type(metadata) is dict
            and type(kind) is str
            and kind == self._kind
            and (name is None or type(name) is str)
            and (ident is None or type(ident) is str)
            and self._own(data, *own)
        )

    def build(self, data: dict[str, Any]) -> Any:
        """Makes the message that validation would make of fields found `unchanged`."""
        message = self.cls.__new__(self.cls)
        _set(message, "__dict__", data)
        _set(message, "__pydantic_fields_set__", set(self._names))
        _set(message, "__pydantic_extra__", {} if self._extra else None)
        _set(message, "__pydantic_private__", None)
        return message


_OwnCheck = Callable[..., bool]
_set: Final = object.__setattr__
_COMMON_FIELDS: Final = ["content", "additional_kwargs", "response_metadata", "type", "name", "id"]
_KNOWN_VALIDATORS: Final = frozenset({"_backwards_compat_tool_calls", "coerce_args"})
_BLOCKS: Final = frozenset({str, dict})
_TEXT_ONLY: Final = frozenset({str})
_CALL: Final = ["name", "args", "id", "type"]
_USAGE: Final = ["input_tokens", "output_tokens", "total_tokens"]
_DETAILS: Final = {
    "input_token_details": ("audio", "cache_creation", "cache_read"),
    "output_token_details": ("audio", "reasoning"),
}


def _is_block_list(content: Any) -> bool:
    return type(content) is list and _BLOCKS.issuperset(map(type, content))


def _own_check(cls: type[BaseModel]) -> _OwnCheck | None:
    """Gives the check of the fields beyond the common six, or None for an unknown class."""
    own = tuple(cls.model_fields)[6:]
    if issubclass(cls, lc_messages.RemoveMessage):
        return _check_remove if own == () else None
    if issubclass(cls, lc_messages.FunctionMessage):
        return _check_function if own == () else None
    if issubclass(cls, lc_messages.AIMessageChunk):
        return None  # its validators derive calls and chunks from each other
    if issubclass(cls, lc_messages.AIMessage):
        known = own == ("tool_calls", "invalid_tool_calls", "usage_metadata")
        return _check_ai if known else None
    if issubclass(cls, lc_messages.ToolMessage):
        return _check_tool if own == ("tool_call_id", "artifact", "status") else None
    if issubclass(cls, lc_messages.ChatMessage):
        return _check_chat if own == ("role",) else None
    return _check_plain if own == () else None


def _check_unknown(*_: Any) -> bool:
    return False


def _check_plain(_data: dict[str, Any]) -> bool:
    return True


def _check_remove(data: dict[str, Any]) -> bool:
    return data["content"] == "" and data["id"] is not None


def _check_function(data: dict[str, Any]) -> bool:
    return data["name"] is not None


def _check_chat(_data: dict[str, Any], role: Any) -> bool:
    return type(role) is str


def _check_tool(_data: dict[str, Any], call: Any, _artifact: Any, status: Any) -> bool:
    return type(call) is str and type(status) is str and status in {"success", "error"}


def _check_ai(data: dict[str, Any], calls: Any, invalid: Any, usage: Any) -> bool:
    if type(calls) is not list or type(invalid) is not list or invalid:
        return False
    if not calls:
        # Then the validator looks for calls in the provider's own format.
        if data["additional_kwargs"].get("tool_calls"):
            return False
    elif not all(map(_is_call, calls)):
        return False
    return usage is None or _is_usage(usage)


def _is_call(call: Any) -> bool:
    """Decides whether a tool call is as the validator of messages would leave it."""
    if type(call) is not dict or [*call] != _CALL:
        return False
    name, args, ident, kind = call.values()
    return (
        type(name) is str
        and type(args) is dict
        and _TEXT_ONLY.issuperset(map(type, args))
        and (ident is None or type(ident) is str)
        and type(kind) is str
        and kind == "tool_call"
    )


def _is_usage(usage: Any) -> bool:
    """Decides whether usage metadata is complete, in order, and made of integers."""
    if type(usage) is not dict:
        return False
    names = [*usage]
    if len(names) < 3 or names[:3] != _USAGE:
        return False
    read, written, total, *details = usage.values()
    if not (type(read) is int and type(written) is int and type(total) is int):
        return False
    if not details:
        return True
    if names[3:] != [name for name in _DETAILS if name in usage]:
        return False
    for name, counts in zip(names[3:], details, strict=True):
        if type(counts) is not dict or any(type(n) is not int for n in counts.values()):
            return False
        if [*counts] != [n for n in _DETAILS[name] if n in counts]:
            return False
    return True


def _message_shapes() -> Iterator[_MessageShape]:
    for name in lc_messages.__all__:
        cls = getattr(lc_messages, name)
        if not (isinstance(cls, type) and issubclass(cls, lc_messages.BaseMessage)):
            continue
        if cls in {lc_messages.BaseMessage, lc_messages.BaseMessageChunk}:
            continue
        shape = _MessageShape(cls)
        if shape.head in SAFE_MSGPACK_TYPES and shape.known():
            yield shape


_SHAPES: Final = {shape.head: shape for shape in _message_shapes()}
_SHAPE_OF: Final[dict[type, _MessageShape]] = {shape.cls: shape for shape in _SHAPES.values()}
_REDUCERS.update({cls: shape.reduce for cls, shape in _SHAPE_OF.items()})


# --- writing -----------------------------------------------------------------------------------


def _containers_fit(data: bytes, limit: int) -> bool:
    """Decides whether arrays and maps in msgpack bytes nest at most `limit` deep.

    Extension payloads count as leaves. Bytes that end early are left to the decoder.
    """
    open_items = [1]
    at, end = 0, len(data)
    while at < end:
        while open_items and open_items[-1] == 0:
            open_items.pop()
        if not open_items:
            return True
        open_items[-1] -= 1
        size, items = _token(data, at)
        at += size
        if items:
            open_items.append(items)
            if len(open_items) > limit + 1:
                return False
    return True


#: First byte of a token → (bytes of its length field, bytes that follow whatever it says).
_SIZED: Final = {
    **{0xC4 + i: (1 << i, 0) for i in range(3)},
    **{0xC7 + i: (1 << i, 1) for i in range(3)},
    **{0xD9 + i: (1 << i, 0) for i in range(3)},
}
_FIXED: Final = {
    0xCA: 5,
    0xCB: 9,
    **{0xCC + i: 1 + (1 << i) for i in range(4)},
    **{0xD0 + i: 1 + (1 << i) for i in range(4)},
    **{0xD4 + i: 2 + (1 << i) for i in range(5)},
}


def _token(data: bytes, at: int) -> tuple[int, int]:
    """Reads one msgpack header: bytes to skip, and the number of items that follow inside."""
    first = data[at]
    if 0x80 <= first < 0x90:
        return 1, 2 * (first & 0x0F)
    if 0x90 <= first < 0xA0:
        return 1, first & 0x0F
    if 0xA0 <= first < 0xC0:
        return 1 + (first & 0x1F), 0
    if first in _SIZED:
        width, more = _SIZED[first]
        return 1 + width + more + int.from_bytes(data[at + 1 : at + 1 + width], "big"), 0
    if first >= 0xDC and first <= 0xDF:
        width = 2 if first in {0xDC, 0xDE} else 4
        count = int.from_bytes(data[at + 1 : at + 1 + width], "big")
        return 1 + width, count if first < 0xDE else 2 * count
    return _FIXED.get(first, 1), 0


class _Writer:
    """One encoding run: a fast pass without Python code per element, then maybe the walk."""

    __slots__ = ("_ancestors", "_depth", "_rules")

    def __init__(self, rules: StrictSerializer) -> None:
        self._rules = rules
        self._depth = 0
        self._ancestors: set[int] = set()

    def encode(self, value: Any) -> bytes:
        """Gives the msgpack bytes of a value.

        Raises:
            NotStorable: Something in the value would not come back as it is.
        """
        try:
            return ormsgpack.packb(value, default=self.default, option=_STRING_KEYS)
        except ormsgpack.MsgpackEncodeError:
            self._depth = 0
        try:
            return ormsgpack.packb(self._walk(value, "$"), option=_ANY_KEYS)
        except RecursionError:
            raise _refuse(value, "$", "it is nested too deeply") from None
        except ormsgpack.MsgpackEncodeError as exc:
            raise _refuse(value, "$", f"not serialisable ({exc})") from None

    def default(self, obj: Any) -> Any:
        """Encodes what msgpack has no form for; any exception here ends the pass."""
        shape = _SHAPE_OF.get(type(obj))
        if shape is not None:
            code, payload, prove = shape.reduce(obj)
        else:
            try:
                reduced = self._rules.take_apart(obj)
            except _CannotStore:
                if not isinstance(obj, BaseException):
                    raise
                reduced = None
            if reduced is None:
                return _safe_repr(obj)
            code, payload, prove = reduced
        self._depth += 1
        if self._depth > _MAX_NESTED_OBJECTS:
            raise _CannotStore("objects are nested too deeply")
        data = ormsgpack.packb(payload, self.default, _STRING_KEYS)
        if self._depth > _FREE_NESTED_OBJECTS:
            _require_shallow(data)
        self._depth -= 1
        if prove:
            self._rules.prove(obj, code, data, once=prove == _ONCE)
        return ormsgpack.Ext(code, data)

    # The walk: the same bytes for the same values, slower, with paths and the codes of ours.

    def _walk(self, value: Any, path: str) -> Any:
        cls = type(value)
        if cls in {int, bool, float, type(None), bytes, bytearray, memoryview}:
            return self._scalar(value, path)
        if isinstance(value, Enum):
            return self._nested(value, path, self._walk_object)
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, int):
            return self._scalar(value, path)
        if isinstance(value, list) or cls is tuple:
            return self._nested(value, path, self._walk_items)
        if isinstance(value, dict):
            return self._nested(value, path, self._walk_dict)
        return self._nested(value, path, self._walk_object)

    def _nested(self, value: Any, path: str, walk: Callable[[Any, str], Any]) -> Any:
        if id(value) in self._ancestors:
            raise _refuse(value, path, "it contains itself")
        if len(self._ancestors) >= _MAX_CONTAINERS:
            raise _refuse(value, path, "it is nested too deeply")
        self._ancestors.add(id(value))
        try:
            return walk(value, path)
        finally:
            self._ancestors.discard(id(value))

    @staticmethod
    def _scalar(value: Any, path: str) -> Any:
        if isinstance(value, memoryview):
            try:
                return bytes(value)
            except ValueError:
                raise _refuse(value, path, "it was released") from None
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            return ormsgpack.Ext(_INTEGER, _integer_bytes(value))
        return value

    def _walk_items(self, value: Sequence[Any], path: str) -> Any:
        if _is_flat(value, value):
            return value
        return [self._walk(item, f"{path}[{i}]") for i, item in enumerate(value)]

    def _walk_dict(self, value: dict[Any, Any], path: str) -> Any:
        if _PLAIN_KEYS.issuperset(map(type, value)) and _is_flat(value, value.values()):
            return value
        at = [f"{path}[{_key_name(key)}]" for key in value]
        values = [self._walk(v, p) for v, p in zip(value.values(), at, strict=True)]
        if all(map(_key_is_native, value)):
            return dict(zip(value, values, strict=True))
        keys = [self._walk(key, f"{path}.keys()[{i}]") for i, key in enumerate(value)]
        flat = list(chain.from_iterable(zip(keys, values, strict=True)))
        data = ormsgpack.packb(flat, option=_ANY_KEYS)
        self._require_keys(value, keys, path)
        return ormsgpack.Ext(_MAP, data)

    def _require_keys(self, value: dict[Any, Any], keys: list[Any], path: str) -> None:
        """Refuses a dict unless its keys, stored and loaded, are equal to themselves."""
        stored = ormsgpack.packb([x for key in keys for x in (key, None)], option=_ANY_KEYS)
        try:
            loaded = list(_Reader(self._rules).extension(_MAP, stored))
        except NotLoadable as exc:
            raise _refuse(value, f"{path}.keys()", exc.fields["reason"]) from None
        if len(loaded) != len(value):
            raise _refuse(value, f"{path}.keys()", "its keys would fall together")
        for old, new in zip(value, loaded, strict=True):
            if old != new and old == old:  # noqa: PLR0124  # NaN keeps its place
                raise _refuse(old, f"{path}.keys()", "a key of this type does not come back")

    def _walk_object(self, obj: Any, path: str) -> Any:
        depth = self._depth
        try:
            # Most objects need no walk; an attempt never makes further attempts inside.
            return self.default(obj)
        except (_CannotStore, ormsgpack.MsgpackEncodeError):
            self._depth = depth
        try:
            return self._walk_taken_apart(obj, path)
        except (_CannotStore, NotStorable, ormsgpack.MsgpackEncodeError) as exc:
            if isinstance(obj, BaseException):
                self._depth = depth
                return _text(_safe_repr(obj))
            if isinstance(exc, NotStorable):
                raise
            reason = str(exc) if isinstance(exc, _CannotStore) else f"not serialisable ({exc})"
            raise _refuse(obj, path, reason) from None

    def _walk_taken_apart(self, obj: Any, path: str) -> Any:
        reduced = self._rules.take_apart(obj)
        if reduced is None:
            return _text(_safe_repr(obj))
        code, payload, prove = reduced
        self._depth += 1
        if self._depth > _MAX_NESTED_OBJECTS:
            raise _CannotStore("objects are nested too deeply")
        data = ormsgpack.packb(self._walk_payload(code, payload, path), option=_ANY_KEYS)
        if self._depth > _FREE_NESTED_OBJECTS:
            _require_shallow(data)
        self._depth -= 1
        if prove:
            self._rules.prove(obj, code, data, once=prove == _ONCE)
        return ormsgpack.Ext(code, data)

    def _walk_payload(self, code: int, payload: Any, path: str) -> Any:
        """Walks the data of a taken-apart object, naming fields as attributes."""
        if code == _DELTA:
            return self._walk(payload, f"{path}.value")
        if code == _ARRAY:
            return payload
        module, name, data, *rest = payload
        if code in {_MODEL, _MODEL_V1, _KEYWORDS} and isinstance(data, dict):
            if not all(map(_key_is_native, data)):
                raise _CannotStore("the name of a field is no plain text")
            data = {key: self._walk(v, f"{path}.{key}") for key, v in data.items()}
        else:
            data = self._walk(data, path)
        return (module, name, data, *rest)


def _require_shallow(data: bytes) -> None:
    if not _containers_fit(data, _MAX_CONTAINERS_BELOW):
        raise _CannotStore("containers inside nested objects are nested too deeply")


def _is_flat(value: Any, items: Iterable[Any]) -> bool:
    """Decides whether a container holds scalars that msgpack takes as they are."""
    if not _SCALARS.issuperset(map(type, items)):
        return False
    try:
        ormsgpack.packb(value, None, _ANY_KEYS)
    except ormsgpack.MsgpackEncodeError:
        return False
    return True


def _text(value: str) -> Any:
    """Gives a string as it is, or as our code if UTF-8 has no form for it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return ormsgpack.Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _integer_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _key_is_native(key: Any) -> bool:
    """Decides whether a msgpack map carries a key: plain, valid text, within 64 bits."""
    if isinstance(key, Enum):
        return False
    if isinstance(key, str):
        return not isinstance(_text(key), ormsgpack.Ext)
    if isinstance(key, int):
        return -(2**63) <= key < 2**64
    if type(key) is tuple:
        return all(map(_key_is_native, key))
    return type(key) in _PLAIN_KEYS


def _key_name(key: Any) -> str:
    if isinstance(key, (str, int, float, bytes, type(None))) and not isinstance(key, Enum):
        # A huge integer has no decimal form below Python's limit on digits.
        text = hex(key) if isinstance(key, int) and abs(key) >= 2**64 else repr(key)
        return text if len(text) <= _MAX_KEY_CHARS else f"{text[:_MAX_KEY_CHARS]}…"
    return f"<{type(key).__name__}>"


def _refuse(value: Any, path: str, reason: str) -> NotStorable:
    cls = type(value)
    if len(path) > _MAX_PATH_CHARS:
        path = f"{path[:_MAX_PATH_CHARS]}…"
    name = (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
    return NotStorable(channel=None, path=path, type_name=name, reason=reason)


# --- reading -----------------------------------------------------------------------------------


class _Reader:
    """One decoding run. Keeps the first refusal, which the decoder itself would drop."""

    __slots__ = ("_depth", "_refusal", "_rules")

    def __init__(self, rules: StrictSerializer) -> None:
        self._rules = rules
        self._depth = 0
        self._refusal: NotLoadable | None = None

    def decode(self, data: bytes) -> Any:
        """Rebuilds a value from msgpack bytes.

        Raises:
            NotLoadable: The bytes are damaged or name a type that cannot or may not be rebuilt.
        """
        try:
            return self._unpack(data)
        except ormsgpack.MsgpackDecodeError as exc:
            refusal = self._refusal or NotLoadable(type_name="msgpack", reason=f"damaged: {exc}")
            raise refusal from None

    def _unpack(self, data: bytes) -> Any:
        return ormsgpack.unpackb(data, ext_hook=self._hook, option=ormsgpack.OPT_NON_STR_KEYS)

    def _hook(self, code: int, data: bytes) -> Any:
        try:
            return self.extension(code, data)
        except NotLoadable as exc:
            self._refusal = self._refusal or exc
            raise
        except RecursionError:
            self._refusal = self._refusal or NotLoadable(
                type_name="msgpack", reason="objects are nested too deeply for this call stack"
            )
            raise

    def extension(self, code: int, data: bytes) -> Any:
        """Rebuilds the object of one extension code.

        Raises:
            NotLoadable: See `decode`.
        """
        self._depth += 1
        if self._depth > _FREE_NESTED_OBJECTS and (
            self._depth > _MAX_NESTED_OBJECTS or not _containers_fit(data, _MAX_CONTAINERS_BELOW)
        ):
            raise NotLoadable(type_name="msgpack", reason="objects are nested too deeply")
        try:
            if code <= _MODEL:
                return self._object(code, data)
            return self._other(code, data)
        except ormsgpack.MsgpackDecodeError as exc:
            refusal = self._refusal or NotLoadable(type_name="msgpack", reason=f"damaged: {exc}")
            raise refusal from None
        finally:
            self._depth -= 1

    def _object(self, code: int, data: bytes) -> Any:
        named = ormsgpack.unpackb(data, ext_hook=self._hook, option=ormsgpack.OPT_NON_STR_KEYS)
        if type(named) is not list or len(named) < 3:
            raise NotLoadable(type_name=f"extension {code}", reason="it names no type")
        module, name, payload = named[0], named[1], named[2]
        if type(module) is not str or type(name) is not str:
            raise NotLoadable(type_name=f"extension {code}", reason="it names no type")
        if code == _MODEL:
            shape = _SHAPES.get((module, name))
            if shape is not None and type(payload) is dict and shape.unchanged(payload):
                return shape.build(payload)
        method = named[3] if len(named) > 3 else None
        target = self._rules.target(code, module, name, method)
        try:
            return _rebuild(code, target, payload)
        except Exception as exc:  # noqa: BLE001  # a constructor may fail with anything
            # Not chained: messages of constructors quote the value.
            raise NotLoadable(
                type_name=f"{module}.{name}",
                reason=f"its constructor rejects the stored data ({type(exc).__name__})",
            ) from None

    def _other(self, code: int, data: bytes) -> Any:
        if code == _DELTA:
            return _DeltaSnapshot(self._unpack(data))
        if code == _ARRAY:
            return _rebuild_array(self._unpack(data))
        if code == _INTEGER:
            return int.from_bytes(data, "big", signed=True)
        if code == _TEXT:
            try:
                return data.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                raise NotLoadable(type_name="str", reason="damaged text") from None
        if code == _MAP:
            flat = self._unpack(data)
            if type(flat) is not list or len(flat) % 2:
                raise NotLoadable(type_name="dict", reason="damaged: keys without values")
            try:
                return dict(zip(map(_hashable, flat[::2]), flat[1::2], strict=True))
            except TypeError:
                raise NotLoadable(type_name="dict", reason="a key is not hashable") from None
        raise NotLoadable(type_name=f"extension {code}", reason="this release does not know it")


def _hashable(value: Any) -> Any:
    """Restores tuples where only hashable values can have been: elements of sets, keys."""
    return tuple(map(_hashable, value)) if type(value) is list else value


def _rebuild(code: int, target: Any, payload: Any) -> Any:
    """Calls what a stored name stands for, as the code says."""
    if code == _SINGLE:
        if target is set or target is frozenset:
            return target(map(_hashable, payload))
        try:
            return target(payload)
        except (TypeError, ValueError):
            if type(payload) is list and _kind(target) == "enum":
                return target(_hashable(payload))
            raise
    if code == _POSITIONAL:
        if target is Send and len(payload) == 3:
            return Send(payload[0], payload[1], timeout=payload[2])
        return target(*payload)
    if code == _METHOD:
        return target(payload)
    if code == _MODEL and isinstance(target, type) and issubclass(target, BaseModel):
        return _rebuild_model(target, payload)
    return target(**payload)


def _rebuild_model(cls: type[BaseModel], payload: Any) -> BaseModel:
    """Validates a model's dump, which holds names where the constructor may want aliases."""
    if not _BY_NAME:
        return cls.model_validate(payload)
    by_alias = bool(cls.model_config.get("serialize_by_alias"))
    try:
        return cls.model_validate(payload, by_name=True, by_alias=by_alias)
    except ValidationError:
        # Strict models refuse the list that a tuple became.
        return cls.model_validate(payload, by_name=True, by_alias=by_alias, strict=False)


#: What ``dtype.str`` gives for arrays of plain items: order, kind, size, unit of time.
_DTYPE: Final = re.compile(r"[<>|=][a-zA-Z][0-9]*(\[[0-9]*[a-zA-Z]+\])?")


def _rebuild_array(meta: Any) -> Any:
    """Rebuilds a numpy array; stock gives a read-only one, or None if that fails."""
    try:
        numpy: Any = importlib.import_module("numpy")
        dtype, shape, order, buffer = meta
        # A number would be a size to allocate; other spellings of a dtype are parsed as Python.
        if not (isinstance(buffer, bytes) and isinstance(dtype, str) and _DTYPE.fullmatch(dtype)):
            raise TypeError("no array that was stored here")
        flat = numpy.frombuffer(bytearray(buffer), dtype=numpy.dtype(dtype))
        return flat.reshape(shape, order=order)
    except Exception as exc:  # noqa: BLE001  # numpy absent, or any complaint of numpy
        raise NotLoadable(
            type_name="numpy.ndarray", reason=f"it cannot be rebuilt ({type(exc).__name__})"
        ) from None


# --- the serialiser ----------------------------------------------------------------------------


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's msgpack format, stored faithfully or not at all; see the module's docstring.

    Strict on load whatever ``LANGGRAPH_STRICT_MSGPACK`` says. Never pickles, never revives
    the ``json`` format. Safe to use from several threads.

    Args:
        allowed_types: Further types that may be stored and rebuilt, as classes or as
            ``(module, name)``. They are called as the stored form says.
        strict_types: Only the safe types of LangGraph and `allowed_types`, both ways.
        secrets_encrypted: Store secret types. Set it only where the bytes are encrypted
            before they are written: msgpack holds their plain text.
    """

    def __init__(
        self,
        *,
        allowed_types: Iterable[_TypeKey | type] = (),
        strict_types: bool = False,
        secrets_encrypted: bool = False,
    ) -> None:
        super().__init__()
        self.allow(_keys_of(allowed_types))
        self._strict_types = strict_types
        self._secrets_encrypted = secrets_encrypted

    def allow(self, keys: frozenset[_TypeKey]) -> None:
        """Sets the allowlist; for this class only, since serialisers are shared."""
        self._allowed = keys
        # What the base class would use is closed too; nothing here calls it.
        self._allowed_msgpack_modules = set(keys)
        self._unpack_ext_hook = lambda code, data: _Reader(self).extension(code, data)

    def with_msgpack_allowlist(
        self, extra_allowlist: Iterable[_TypeKey | type]
    ) -> StrictSerializer:
        """Gives a serialiser that also allows these types; itself if that adds nothing."""
        merged = self._allowed | _keys_of(extra_allowlist)
        if merged == self._allowed:
            return self
        clone = copy.copy(self)
        clone.allow(merged)
        return clone

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Gives the type tag and the bytes of a value.

        Raises:
            NotStorable: Something in the value would not come back as it is; the error names
                its path and type, never the value.
        """
        if obj is None:
            return "null", b""
        if isinstance(obj, bytes):
            return "bytes", bytes(obj)
        if isinstance(obj, bytearray):
            return "bytearray", bytes(obj)
        return "msgpack", _Writer(self).encode(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Rebuilds a value from its type tag and bytes, whose seal was verified before.

        Raises:
            NotLoadable: The tag or a type may not be loaded, a type cannot be found or
                rebuilt, or the bytes are damaged. Nothing is ever replaced by its raw data.
        """
        tag, payload = data
        if tag == "msgpack":
            return _Reader(self).decode(payload)
        if tag == "null":
            return None
        if tag == "bytes":
            return bytes(payload)
        if tag == "bytearray":
            return bytearray(payload)
        raise NotLoadable(type_name=f"tag {tag!r}", reason="this format is never loaded")

    def list_items(self, value: list[Any]) -> list[bytes] | None:
        """Serialised elements of a list; see `dump_list_items`."""
        return dump_list_items(self, value)

    def join_items(self, parts: Sequence[bytes], count: int) -> bytes:
        """Serialised list from its concatenated serialised elements.

        Args:
            parts: Serialised elements, any number of them in one piece.
            count: Number of elements in all.

        Raises:
            ValueError: No list has that many elements.
        """
        return b"".join((_list_header(count), *parts))

    def _is_listed(self, key: _TypeKey) -> bool:
        return key in SAFE_MSGPACK_TYPES or key in _ALSO_SAFE or key in self._allowed

    def take_apart(self, obj: Any) -> _Reduced | None:
        """Takes an object apart; None stands for an exception, which becomes its ``repr``.

        Raises:
            _CannotStore: The object cannot be stored, or not be rebuilt later.
        """
        try:
            return self._take_apart(obj)
        except (_CannotStore, RecursionError):
            raise
        except Exception as exc:  # noqa: BLE001  # methods of the object may fail with anything
            raise _CannotStore(f"its fields cannot be read ({type(exc).__name__})") from None

    def _take_apart(self, obj: Any) -> _Reduced | None:
        cls = type(obj)
        reducer = _REDUCERS.get(cls)
        if reducer is not None:
            return reducer(obj)
        if isinstance(obj, type):
            raise _CannotStore("a class is no data")
        kind = _kind(cls)
        if kind == "secret" and not self._secrets_encrypted:
            raise _CannotStore("a secret would be stored in plain text")
        listed = self._is_listed(_type_key(cls))
        if kind is not None:
            if not listed:
                self._require_rebuildable(cls, kind)
            return _reduce_fields(obj, kind)
        array = _reduce_array(obj)
        if array is not None:
            return array
        for base, reduce in _REDUCERS.items():
            if isinstance(obj, base):
                if not listed:
                    raise _CannotStore(f"subclasses of {base.__name__} are not rebuilt")
                code, payload, _ = reduce(obj)
                return code, payload, _ONCE
        if isinstance(obj, BaseException):
            return None
        raise _CannotStore(_why_not(obj))

    def _require_rebuildable(self, cls: type, kind: _Kind) -> None:
        if self._strict_types:
            raise _CannotStore("it is neither a safe type nor in allowed_types= (strict_types)")
        if cls in _PROVEN:
            return
        fault = _named_fault(cls) or _structural_fault(cls, kind)
        if fault is not None:
            raise _CannotStore(fault)

    def prove(self, obj: Any, code: int, data: bytes, *, once: bool) -> None:
        """Rebuilds an object that was just taken apart, and remembers its class.

        Raises:
            _CannotStore: It cannot be rebuilt, or becomes something else.
        """
        cls = type(obj)
        if once and cls in _PROVEN:
            return
        try:
            rebuilt = _Reader(self).extension(code, data)
        except NotLoadable as exc:
            raise _CannotStore(f"it could not be loaded again: {exc.fields['reason']}") from None
        if type(rebuilt) is not cls or (isinstance(obj, Enum) and rebuilt is not obj):
            raise _CannotStore("it would come back as something else")
        if isinstance(obj, (set, frozenset)) and len(rebuilt) != len(obj):
            raise _CannotStore("its elements would fall together")
        _PROVEN.add(cls)

    def target(self, code: int, module: str, name: str, method: Any) -> Any:
        """Decides whether a stored name may be called, and finds what it stands for.

        Raises:
            NotLoadable: It is no listed type and no class of a storable kind, or is gone.
        """
        key, dotted = (module, name), f"{module}.{name}"
        if code == _METHOD:
            allowed = (*key, method) in SAFE_MSGPACK_METHODS or (
                key in self._allowed and method == "fromisoformat"
            )
            if not allowed:
                raise NotLoadable(type_name=f"{dotted}.{method}", reason="it may not be called")
            return getattr(_resolve(module, name), method)
        if self._is_listed(key):
            return _SAFE_TARGETS.get(key) or _resolve(module, name)
        if self._strict_types:
            raise NotLoadable(type_name=dotted, reason="it is not allowed (strict_types)")
        if not _may_import(module):
            raise NotLoadable(type_name=dotted, reason="types of this module are not rebuilt")
        target = _resolve(module, name)
        kind = _kind(target)
        if kind is None or _CODE_OF_KIND[kind] != code:
            raise NotLoadable(
                type_name=dotted,
                reason="it is no model, dataclass, enum or named tuple as it was when stored",
            )
        return target


#: The safe types that every value may hold, found once.
_SAFE_TARGETS: Final[dict[tuple[str, ...], Any]] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("collections", "deque"): deque,
    ("datetime", "datetime"): dt.datetime,
    ("datetime", "timedelta"): dt.timedelta,
    ("decimal", "Decimal"): decimal.Decimal,
    ("langgraph.types", "Send"): Send,
    ("uuid", "UUID"): uuid.UUID,
}


def _keys_of(types: Iterable[_TypeKey | type]) -> frozenset[_TypeKey]:
    return frozenset(_type_key(t) if isinstance(t, type) else tuple(t) for t in types)


def _why_not(obj: Any) -> str:
    if callable(obj):
        return "code is no data"
    if isinstance(obj, (Iterator, inspect.types.CoroutineType)):  # type: ignore[attr-defined]
        return "it can be consumed only once"
    return "it has no stored form"


# --- lists in pieces ---------------------------------------------------------------------------


def dump_list_items(serde: object, value: list[Any]) -> list[bytes] | None:
    """Gives the bytes of each element as they stand inside the stored list.

    ``join_list_items(dump_list_items(serde, value)) == serde.dumps_typed(value)[1]``.

    Returns:
        One item per element, or None if the serialiser or the value is of another type.

    Raises:
        NotStorable: As `StrictSerializer.dumps_typed` of the whole list.
    """
    if not isinstance(serde, StrictSerializer) or type(value) is not list:
        return None
    pack, default = ormsgpack.packb, _Writer(serde).default
    try:
        if _SCALARS.issuperset(map(type, value)):
            return [pack(item, None, _STRING_KEYS) for item in value]
        # Each in a list of its own, so that the limits of nesting are the same as inside.
        return [pack([item], default, _STRING_KEYS)[1:] for item in value]
    except ormsgpack.MsgpackEncodeError:
        pass
    try:
        return [_Writer(serde).encode([item])[1:] for item in value]
    except NotStorable:
        serde.dumps_typed(value)  # the same refusal, with the path inside the whole list
        raise


def join_list_items(items: Sequence[bytes]) -> bytes:
    """Gives the stored list made of these elements.

    Raises:
        ValueError: There are more than 2**32 - 1 elements.
    """
    return b"".join((_list_header(len(items)), *items))


def _list_header(count: int) -> bytes:
    if 0 <= count < 16:
        return bytes((0x90 | count,))
    if 16 <= count < 2**16:
        return b"\xdc" + count.to_bytes(2, "big")
    if 2**16 <= count < 2**32:
        return b"\xdd" + count.to_bytes(4, "big")
    raise ValueError(f"no list has {count} elements")
