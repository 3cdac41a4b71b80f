"""Fingerprints: equal for equal arguments in every process, different for different ones (E4)."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
import math
import os
import pickle
import subprocess
import sys
import threading
import uuid
import warnings
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, ConfigDict

from surefoot.errors import Misuse
from surefoot.langgraph.serde import StrictSerializer
from surefoot.rules.fingerprint import Unfingerprintable, fingerprint

pytestmark = pytest.mark.optimized

ROOT = Path(__file__).resolve().parents[2]
NAN = float("nan")


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Right(Flag):
    READ = 1
    WRITE = 2


class Odd(Enum):
    SET = frozenset({"a", "b", "c", "d"})
    PAIR = (1, "x")


class Order(BaseModel):
    sku: str
    count: int = 1
    tags: set[str] = set()


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


@dataclass
class Line:
    sku: str
    price: Decimal
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OtherLine:
    sku: str
    price: Decimal
    options: dict[str, Any] = field(default_factory=dict)


Point = namedtuple("Point", "x y")
UTC, PLUS2 = dt.timezone.utc, dt.timezone(dt.timedelta(hours=2))


def fp(value: Any) -> str:
    return fingerprint(value, effect="pay").hex()


# --- what counts as equal ----------------------------------------------------------------------

EQUAL: list[tuple[Any, Any]] = [
    ((1, 2), [1, 2]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": {"x": (1,)}}, OrderedDict(a={"x": [1]})),
    (defaultdict(int, a=1), {"a": 1}),
    (MappingProxyType({"a": 1}), {"a": 1}),
    (Counter("aab"), {"b": 1, "a": 2}),
    ({"x", "y", "z"}, frozenset({"z", "y", "x"})),
    ({frozenset({1, 2}), frozenset({3})}, {frozenset({3}), frozenset({2, 1})}),
    (Color.RED, "red"),
    (Level.HIGH, 3),
    (Right.READ | Right.WRITE, 3),
    (Odd.PAIR, [1, "x"]),
    (bytearray(b"ab"), b"ab"),
    (memoryview(b"ab"), b"ab"),
    (NAN, -NAN),
    (NAN, math.nan * 2),
    (Decimal("1.50"), Decimal("1.5")),
    (Decimal(100), Decimal("1E+2")),
    (Decimal(0), Decimal("0.00")),
    (
        dt.datetime(2026, 1, 1, 12, tzinfo=UTC),
        dt.datetime(2026, 1, 1, 14, tzinfo=PLUS2),
    ),
    (Order(sku="x"), Order(sku="x", count=1)),
    (Line("x", Decimal("1.0")), Line("x", Decimal("1.00"))),
    (Path("a/b"), PurePosixPath("a/b")),
    (type("Text", (str,), {})("x"), "x"),
    (type("Many", (list,), {})([1]), [1]),
]


@pytest.mark.parametrize(("one", "other"), EQUAL, ids=repr)
def test_equal_arguments(one: Any, other: Any) -> None:
    assert fp(one) == fp(other)
    assert fp({"x": [one]}) == fp({"x": [other]})


DIFFERENT: list[Any] = [
    None,
    False,
    True,
    0,
    1,
    -1,
    2**63,
    2**64,
    2**2_000,
    2**2_000 + 1,
    0.0,
    -0.0,
    1.0,
    NAN,
    math.inf,
    -math.inf,
    1.0000000000000002,
    "",
    "0",
    "1",
    "True",
    "None",
    "nan",
    "\ud800",
    "\udc00",
    "a\0",
    "a",
    b"",
    b"1",
    b"a",
    Decimal(1),
    Decimal(-1),
    Decimal("1." + "0" * 40 + "1"),
    Decimal("1." + "0" * 40 + "2"),
    Decimal("1E+999999"),
    Decimal("NaN"),
    Decimal("Infinity"),
    [],
    [[]],
    [1],
    ["1"],
    [1, 2],
    [2, 1],
    [[1], 2],
    [1, [2]],
    [None],
    {},
    {"a": None},
    {"a": 1},
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    {"a": {"b": 2}},
    {1: "a"},
    {"1": "a"},
    {b"1": "a"},
    {None: "a"},
    {(1,): "a"},
    set(),
    {1},
    {"1"},
    {1, 2},
    {(1, 2)},
    {frozenset()},
    dt.date(2026, 1, 1),
    dt.datetime(2026, 1, 1),  # noqa: DTZ001 - naive on purpose
    dt.datetime(2026, 1, 1, tzinfo=UTC),
    dt.datetime(2026, 1, 1, tzinfo=PLUS2),
    dt.datetime.min.replace(tzinfo=PLUS2),
    dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=2))),
    dt.time(0),
    dt.timedelta(0),
    dt.timedelta(microseconds=1),
    dt.timedelta.max,
    uuid.UUID(int=0),
    uuid.UUID(int=1),
    Path("a"),
    Path("a/b"),
    Color.RED,
    Odd.SET,
    Order(sku="x"),
    Order(sku="x", count=2),
    Order(sku="x", tags={"t"}),
    Open(a=1),
    Open(a=1, b=2),  # type: ignore[call-arg]
    Open(a=1, b=3),  # type: ignore[call-arg]
    Line("x", Decimal(1)),
    Line("x", Decimal(1), {"a": 1}),
    OtherLine("x", Decimal(1)),
    {"sku": "x", "price": Decimal(1), "options": {}},
    Point(1, 2),
    Point(2, 1),
    HumanMessage("hi"),
    HumanMessage("ho"),
    HumanMessage("hi", name="bob"),
    HumanMessage("hi", additional_kwargs={"x": 1}),
    AIMessage("hi"),
    AIMessage("", tool_calls=[{"name": "t", "args": {"a": 1}, "id": "1"}]),
    AIMessage("", tool_calls=[{"name": "t", "args": {"a": 2}, "id": "1"}]),
    ToolMessage("hi", tool_call_id="1"),
]


def test_different_arguments_differ() -> None:
    seen: dict[str, Any] = {}
    for value in DIFFERENT:
        mark = fp(value)
        assert mark not in seen, f"{value!r} looks like {seen[mark]!r}"
        seen[mark] = value
    assert len(seen) == len(DIFFERENT)


def test_numbers_have_no_largest_size() -> None:
    assert fp(10**5_000) != fp(10**5_000 + 1)


def test_types_that_python_calls_equal_differ() -> None:
    """The receiver would get another document: 1 is not 1.0 is not true."""
    assert len({fp(1), fp(1.0), fp(True), fp(Decimal(1)), fp("1")}) == 5
    assert fp(0.0) != fp(-0.0)


_TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
    ),
    max_leaves=8,
)


def _same(one: Any, other: Any) -> bool:
    """Equal in value and in type, at every depth; NaN equals itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        keys = {(type(k), k) for k in one}
        return keys == {(type(k), k) for k in other} and all(_same(one[k], other[k]) for k in one)
    return bool(one == other)


@settings(max_examples=150)
@given(_TREE, _TREE)
def test_two_documents_share_a_fingerprint_only_if_they_are_the_same(one: Any, other: Any) -> None:
    assert (fp(one) == fp(other)) == _same(one, other)


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=3), st.integers(), max_size=6), st.randoms())
def test_the_order_of_a_map_does_not_count(document: dict[str, int], random: Any) -> None:
    pairs = list(document.items())
    random.shuffle(pairs)
    assert fp(dict(pairs)) == fp(document)


def test_a_decimal_context_does_not_count() -> None:
    values = [Decimal("1.23456789"), Decimal("1E+30"), Decimal("9" * 40)]
    before = [fp(v) for v in values]
    with decimal.localcontext() as context:
        context.prec = 3
        context.Emax = 9
        assert [fp(v) for v in values] == before


# --- through the serialiser and back -----------------------------------------------------------


def _module_is_importable() -> bool:
    with contextlib.suppress(ImportError, AttributeError):
        return pickle.loads(pickle.dumps(Line)) is Line
    return False


@pytest.mark.parametrize(
    "value",
    [v for v in DIFFERENT if not isinstance(v, (Order, Open, Line, OtherLine, Point))]
    + [pair[0] for pair in EQUAL if isinstance(pair[0], (tuple, bytearray, memoryview, set, Enum))]
    + [{"deep": [{"er": ({1, 2}, Decimal("1.10"), (1, (2, [3])))}]}],
    ids=lambda v: repr(v)[:60],
)
def test_stored_and_loaded_arguments_are_the_same(value: Any) -> None:
    serde = StrictSerializer()
    loaded = serde.loads_typed(serde.dumps_typed({"value": value}))
    assert fp(loaded) == fp({"value": value})


@pytest.mark.parametrize(
    "value",
    [Order(sku="x", tags={"a", "b"}), Line("x", Decimal("1.10"), {"a": (1,)}), Point(1, 2)],
    ids=repr,
)
def test_stored_and_loaded_objects_are_the_same(value: Any) -> None:
    if not _module_is_importable():
        pytest.skip("this module cannot be imported by its name")
    serde = StrictSerializer()
    assert fp(serde.loads_typed(serde.dumps_typed(value))) == fp(value)


# --- in every process --------------------------------------------------------------------------

_CHILD = """
import json, sys
from enum import Enum
from surefoot.rules.fingerprint import fingerprint
class Odd(Enum):
    SET = frozenset({"a", "b", "c", "d"})
values = [
    {"alpha", "beta", "gamma", "delta"},
    {"k": {frozenset({"a", "b"}), frozenset({"c", "d", "e"})}},
    {name: {name * 2, name * 3} for name in ("x", "y", "z")},
    [dict.fromkeys({"p", "q", "r", "s"}, 1)],
    Odd.SET,
    {("a", 1), ("b", 2), ("c", 3)},
]
print(json.dumps([fingerprint(v, effect="e").hex() for v in values]))
"""


def test_the_seed_of_the_hashes_does_not_count() -> None:
    seen = []
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", _CHILD],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        seen.append(json.loads(done.stdout))
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen[0])) == 6


#: Once released, these never change: a stored effect would conflict with itself.
GOLDEN: list[tuple[Any, str]] = [
    (None, "dc63609cf67824f935488aec34602a43e08993a934959bbc65992c49ff1cf40d"),
    (True, "618f3092a52bcb0de61e0db811426c1e1e5c4bbeb226a0a4b031d8c86b668dd6"),
    (0, "f1ac3f5fb89e28053f6ca4d3e8d8d344ec903335d0bbefa89af1edfa25528ab1"),
    (-1, "7044ad3146ae76839aacb3c34bef11af8c2899035cb4183c4bce6f6e5ea13fd2"),
    (2**70, "42c4e971d3ef69ce2aae15fe1ec44ea02653287720b14eac8977530cc5afffe8"),
    (1.5, "3300fb434f9bdae3eb0624cf1ef24c74971ec78e656c6d0d6475bd95d95c7ff9"),
    (float("nan"), "dea8f8b384d1f1be6fdfc388ce5680986e642b28dd63c939c353902a923dc8c8"),
    (-0.0, "b0d6e0ff7f0da87cef2a01e7597c8151b5316fdbbcc2adad2361df2d2eedc6dd"),
    ("é\ud800", "fb086a283499b624525099a9f9d8f2902caff598c8b575a336748a56a408d753"),
    (b"\x00", "ada9216dcf869cfcedea89c87ea2575b42df3d987bbe544d4061255e80e9d5a4"),
    ([], "3aa99d78137db6bda90855769e9acd66c61f4ee817e6733575fce2cb2f32854f"),
    ([1, "a", None], "9b1ded651a7e37b6ea189071b1c350a46503e886b6f463d1bc881472dfe5eba7"),
    ({}, "06d4740d714ddc81a8b3f4de6ec576f7e58a72f820ca25625bb001d6ccfe9513"),
    (
        {"amount": 42, "currency": "EUR", "invoice": "INV-771"},
        "26888b41b34b372214e9933b49d8c27c70c37e13d0bd64bc0fdcfeeed33f60bb",
    ),
    (
        {"b": {1, 2, 3}, "a": [True, {"x": ()}]},
        "670faebb793d3cad73facf2efaab305a3d5105a205113729f1c39887d456de22",
    ),
    (Decimal("10.50"), "538613dd7d66879c802eb08906d4cb5fef0610e10308d67fbdd2c49e917b34c0"),
    (
        dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.timezone.utc),
        "e46c7c0a9cca1874da2aaf33b802f8760f45c3712ad11b66edb2bd386fad3e8b",
    ),
    (dt.date(2026, 3, 4), "844cda9cfda896af3447c0db62512a649de2f332dbb83d05deb2bf1ae7b5ed7c"),
    (dt.timedelta(seconds=-1), "09c7f9b597578638c59e3a0d46256ee1c5a50846fa9a231680f0d78514ff60e3"),
    (uuid.UUID(int=7), "c4c89cff1ab2195696c041518c3049a9782f5cbad9108f3b3e81117e1304ad34"),
]


@pytest.mark.parametrize(("value", "digest"), GOLDEN, ids=lambda v: repr(v)[:40])
def test_fixed_vectors(value: Any, digest: str) -> None:
    assert fp(value) == digest


def test_the_vector_of_an_order_of_arguments_spelled_out() -> None:
    """The encoding is its tags and lengths, nothing of Python's."""
    import hashlib

    def part(tag: bytes, payload: bytes) -> bytes:
        return tag + len(payload).to_bytes(8, "big") + payload

    pair = part(b"s", b"amount") + part(b"i", b"\x2a")
    assert fp({"amount": 42}) == hashlib.sha256(b"fp/v1" + part(b"M", pair)).hexdigest()


# --- what has no canonical form ------------------------------------------------------------------


class Handle:
    def __repr__(self) -> str:
        return "hunter2"


def cyclic() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "path", "type_name"),
    [
        (Handle(), "$", "Handle"),
        ({"a": Handle()}, "$.a", "Handle"),
        ({"a": [1, {"b": (0, Handle())}]}, "$.a[1].b[1]", "Handle"),
        ({"a": {Handle()}}, "$.a{}", "Handle"),
        ({Handle(): 1}, "$.(key)", "Handle"),
        ({"line": Line("x", Decimal(1), {"h": Handle()})}, "$.line.options.h", "Handle"),
        ({"lock": threading.Lock()}, "$.lock", "lock"),
        ({"f": len}, "$.f", "builtin_function_or_method"),
        ({"t": Line}, "$.t", "type"),
        ({"c": 1j}, "$.c", "complex"),
        ({"g": (n for n in ())}, "$.g", "generator"),
        ({"o": object()}, "$.o", "object"),
    ],
    ids=lambda v: repr(type(v).__name__),
)
def test_the_error_names_the_path(value: Any, path: str, type_name: str) -> None:
    with pytest.raises(Unfingerprintable) as caught:
        fp(value)
    error = caught.value
    assert (error.fields["path"], error.fields["type_name"]) == (path, type_name)
    assert error.fields["effect"] == "pay"
    assert isinstance(error, Misuse)
    assert "inputs=" in str(error)
    assert "hunter2" not in str(error)


def deep(wrap: Callable[[Any], Any], levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: (v,)])
def test_depth_has_an_end(wrap: Callable[[Any], Any]) -> None:
    assert fp(deep(wrap, 150))
    for value in (deep(wrap, 5_000), cyclic()):
        with pytest.raises(Unfingerprintable, match="nested too deep"):
            fp(value)


def test_no_warning_for_models() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fp(Order(sku="x"))
        fp(AIMessage("x"))
