"""Final states as plain data, and what differs between two of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

__all__ = ["differences", "plain", "text"]

_SHOWN_MAX = 160
#: Made anew for each message that brings none, so it says nothing about the outcome.
_MESSAGE_ID = "id"


def plain(value: Any) -> Any:
    """A value as data that can be compared: models and messages become maps, sets are sorted.

    Ids of messages are left out. What is no data is compared by its ``repr``.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, BaseMessage):
        fields = {k: v for k, v in value.model_dump().items() if k != _MESSAGE_ID}
        return {str(k): plain(v) for k, v in fields.items()}
    if isinstance(value, BaseModel):
        return {str(k): plain(v) for k, v in value.model_dump().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(v) for v in value), key=text)
    return repr(value)


def text(value: Any) -> str:
    """A value as one line, the same for equal values."""
    return json.dumps(plain(value), sort_keys=True)


def differences(wanted: Any, found: Any, where: str = "state") -> Iterator[str]:
    """One sentence per place where two pieces of plain data differ."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in sorted(wanted.keys() | found.keys()):
            inside = f"{where}[{name!r}]"
            if name not in found:
                yield f"{inside} is missing"
            elif name not in wanted:
                yield f"{inside} is {_shown(found[name])}, and was not there"
            else:
                yield from differences(wanted[name], found[name], inside)
    elif isinstance(wanted, list) and isinstance(found, list):
        for n, (one, other) in enumerate(zip(wanted, found, strict=False)):
            yield from differences(one, other, f"{where}[{n}]")
        if len(wanted) != len(found):
            yield f"{where} has {len(found)} items instead of {len(wanted)}"
    elif text(wanted) != text(found):
        yield f"{where} is {_shown(found)} instead of {_shown(wanted)}"


def _shown(value: Any) -> str:
    line = text(value)
    return line if len(line) <= _SHOWN_MAX else f"{line[:_SHOWN_MAX]}…"
