"""Values whose fingerprints never change once they are released; run it to see their digests.

The standard library is enough for the first part, so that every Python can run it.
"""

from __future__ import annotations

import datetime as dt
import enum
import json
import pathlib
import uuid
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from surefoot.rules.fingerprint import fingerprint

UTC, PLUS2 = dt.timezone.utc, dt.timezone(dt.timedelta(hours=2))
Point = namedtuple("Point", "x y")


class Color(enum.Enum):
    RED = "red"


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


class Odd(enum.Enum):
    SET = frozenset({"a", "b", "c", "d"})


@dataclass
class Line:
    sku: str
    price: Decimal
    options: dict[str, Any] = field(default_factory=dict)


#: Names are for people; equal digests in the file say what counts as equal.
PLAIN: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "int 0": 0,
    "int 1": 1,
    "int -1": -1,
    "int 127": 127,
    "int 128": 128,
    "int -128": -128,
    "int 2**63": 2**63,
    "int -2**63": -(2**63),
    "int 2**64": 2**64,
    "int 2**70": 2**70,
    "int -2**70": -(2**70),
    "float 1": 1.0,
    "float 0": 0.0,
    "float -0": -0.0,
    "float 0.1": 0.1,
    "float tiny": 5e-324,
    "float nan": float("nan"),
    "float -nan": -float("nan"),
    "float inf": float("inf"),
    "float -inf": float("-inf"),
    "text empty": "",
    "text 1": "1",
    "text combined": "\u00e9",
    "text decomposed": "e\u0301",
    "text astral": "\U0001f600",
    "text surrogate": "\ud83d",
    "text nul": "a\0b",
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"\x00\xff"),
    "list": [1, "a", None],
    "tuple": (1, "a", None),
    "list nested": [[1, 2], [3]],
    "list nested otherwise": [[1], [2, 3]],
    "map": {"b": 2, "a": 1},
    "map ordered": OrderedDict(a=1, b=2),
    "map int keys": {1: "a", 2: "b"},
    "map mixed keys": {1: "a", "1": "b", None: "c", (1, 2): "d"},
    "map nested": {"x": {"y": [{"z": {}}]}},
    "set": {"alpha", "beta", "gamma", "delta"},
    "frozenset": frozenset({"delta", "gamma", "beta", "alpha"}),
    "set of sets": {frozenset({"a", "b"}), frozenset({"c", "d", "e"})},
    "set mixed": {1, "1", b"1", None, (1,)},
    "datetime naive": dt.datetime(2026, 3, 4, 5, 6, 7, 8),  # noqa: DTZ001
    "datetime utc": dt.datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC),
    "datetime same instant": dt.datetime(2026, 3, 4, 7, 6, 7, 8, tzinfo=PLUS2),
    "datetime other zone": dt.datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=PLUS2),
    "datetime old": dt.datetime(1, 1, 1, tzinfo=UTC),
    "date": dt.date(2026, 3, 4),
    "time": dt.time(5, 6, 7, 8),
    "time in a zone": dt.time(5, 6, tzinfo=PLUS2),
    "timedelta": dt.timedelta(days=-1, microseconds=3),
    "decimal": Decimal("10.50"),
    "decimal same": Decimal("10.5"),
    "decimal large": Decimal("1E+999999"),
    "decimal -0": Decimal("-0.0"),
    "decimal nan": Decimal("NaN"),
    "decimal inf": Decimal("-Infinity"),
    "uuid": uuid.UUID(int=7),
    "path": pathlib.Path("a/b"),
    "enum": Color.RED,
    "enum flag": Right.READ | Right.WRITE,
    "enum of a set": Odd.SET,
    "dataclass": Line("x", Decimal("1.10"), {"a": (1,)}),
    "named tuple": Point(1, 2),
    "a call": {"amount": 42, "currency": "EUR", "invoice": "INV-771"},
}


def models() -> dict[str, Any]:
    """Values that need pydantic and langchain."""
    from langchain_core import messages as lc
    from tests.rules.fingerprint_models import Open, Order

    call = {"name": "pay", "args": {"amount": 42}, "id": "call_1", "type": "tool_call"}
    again = {**call, "id": "call_2"}
    return {
        "model": Order(sku="x", tags={"b", "a"}),
        "model other": Order(sku="x", count=2),
        "model extra": Open(a=1, b=2),  # type: ignore[call-arg]
        "human": lc.HumanMessage("hi"),
        "human with id": lc.HumanMessage("hi", id="1"),
        "human named": lc.HumanMessage("hi", name="bob"),
        "human blocks": lc.HumanMessage([{"type": "text", "text": "hi"}]),
        "human file": lc.HumanMessage([{"type": "file", "id": "file-1"}]),
        "human file other": lc.HumanMessage([{"type": "file", "id": "file-2"}]),
        "system": lc.SystemMessage("hi"),
        "ai": lc.AIMessage("hi", id="run-1", response_metadata={"model": "m"}),
        "ai again": lc.AIMessage("hi", id="run-2"),
        "ai calls": lc.AIMessage("", tool_calls=[call]),
        "ai calls again": lc.AIMessage("", tool_calls=[again]),
        "ai calls other": lc.AIMessage("", tool_calls=[{**call, "args": {"amount": 43}}]),
        "ai calls twice": lc.AIMessage("", tool_calls=[call, again]),
        "ai raw calls": lc.AIMessage(
            "", tool_calls=[call], additional_kwargs={"tool_calls": [{"id": "call_1"}]}
        ),
        "ai block calls": lc.AIMessage([{"type": "tool_use", "id": "1", "input": {"a": 1}}]),
        "ai block calls again": lc.AIMessage([{"type": "tool_use", "id": "2", "input": {"a": 1}}]),
        "tool": lc.ToolMessage("done", tool_call_id="call_1"),
        "tool again": lc.ToolMessage("done", tool_call_id="call_2"),
        "tool failed": lc.ToolMessage("done", tool_call_id="call_1", status="error"),
        "remove": lc.RemoveMessage(id="1"),
        "remove other": lc.RemoveMessage(id="2"),
        "messages": [lc.HumanMessage("hi"), lc.AIMessage("ho")],
    }


def digests(values: dict[str, Any]) -> dict[str, str]:
    """The fingerprint of each."""
    return {name: fingerprint(value, effect="e").hex() for name, value in values.items()}


if __name__ == "__main__":
    print(json.dumps(digests(PLAIN), indent=1))
