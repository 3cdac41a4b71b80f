"""What is stored comes back, or is refused by name (cases 33, 34, 44, 51)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import importlib
import io
import ipaddress
import math
import os
import pathlib
import pickle
import re
import socket
import sys
import threading
import types
import uuid
from collections import deque, namedtuple
from enum import Enum, Flag, IntEnum
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import langchain_core.messages as lc
import ormsgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item, SearchItem
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, ConfigDict, Field, SecretBytes, SecretStr

import surefoot.langgraph.serde as serde_module
from surefoot.errors import NotLoadable, NotStorable
from surefoot.langgraph.serde import StrictSerializer, dump_list_items, join_list_items

STRICT = StrictSerializer()
STOCK = JsonPlusSerializer()

pytestmark = pytest.mark.optimized


def round_trip(value: Any, serde: StrictSerializer = STRICT) -> Any:
    return serde.loads_typed(serde.dumps_typed(value))


def refused(value: Any, serde: StrictSerializer = STRICT) -> dict[str, Any]:
    with pytest.raises(NotStorable) as caught:
        serde.dumps_typed(value)
    assert caught.value.fields["channel"] is None
    return caught.value.fields


def forged(code: int, payload: Any) -> tuple[str, bytes]:
    inner = ormsgpack.packb(payload, option=ormsgpack.OPT_NON_STR_KEYS)
    return "msgpack", ormsgpack.packb([ormsgpack.Ext(code, inner)])


# --- types found by name ------------------------------------------------------------------


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(IntEnum):
    LOW = 1


class Right(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int


Loose = namedtuple("Loose", "a b")


@dataclasses.dataclass
class Order:
    ident: str
    lines: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int


@dataclasses.dataclass(frozen=True)
class FrozenOfTuple:
    a: tuple[int, ...]


@dataclasses.dataclass
class Derived:
    a: int
    b: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class WithInitVar:
    a: int
    seed: dataclasses.InitVar[int]


@dataclasses.dataclass(init=False)
class OwnInit:
    a: int

    def __init__(self, other: int) -> None:
        self.a = other


@dataclasses.dataclass
class Picky:
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError(f"negative: {self.a}")


class Model(BaseModel):
    a: int
    when: dt.datetime | None = None
    child: Model | None = None
    text: str = ""


class Aliased(BaseModel):
    value: int = Field(0, alias="Value")


class StrictModel(BaseModel):
    model_config = ConfigDict(strict=True)
    pair: tuple[int, int]


class Vault(BaseModel):
    name: str
    key: SecretStr


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    item: T


OPEN_BOX = Box[dt.date](item=dt.date(2026, 1, 1))


class Outer:
    class Inner(BaseModel):
        a: int

    class Kind(Enum):
        ONE = 1


class Text(str):
    __slots__ = ()


class Boom(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no")


# --- ordinary values ----------------------------------------------------------------------

MESSAGES: list[lc.BaseMessage] = [
    lc.HumanMessage("hi"),
    lc.HumanMessage([{"type": "text", "text": "x"}, "y"], id="1", name="n"),
    lc.HumanMessage("hi", custom=1),
    lc.SystemMessage("s", additional_kwargs={"a": [1, {"b": None}]}),
    lc.AIMessage("a"),
    lc.AIMessage(
        [{"type": "text", "text": "x"}],
        id="2",
        tool_calls=[
            {"name": "t", "args": {"x": 1, "y": [1.5, None]}, "id": "c1"},
            {"name": "u", "args": {}, "id": None},
        ],
        usage_metadata={
            "input_tokens": 1,
            "output_tokens": 2,
            "total_tokens": 3,
            "input_token_details": {"audio": 1, "cache_read": 2},
            "output_token_details": {"reasoning": 1},
        },
        response_metadata={"model_name": "m", "logprobs": None, "n": 2**40},
        additional_kwargs={"refusal": None},
    ),
    lc.AIMessage(
        "a",
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "extra": 4},
    ),
    lc.AIMessage(
        "a",
        usage_metadata={
            "input_tokens": 1,
            "output_tokens": 2,
            "total_tokens": 3,
            "input_token_details": {"vendor": 1, "audio": 2},
        },
    ),
    lc.AIMessage(
        "",
        additional_kwargs={
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                {"id": "d", "type": "function", "function": {"name": "g", "arguments": "{bad"}},
            ]
        },
    ),
    lc.AIMessage(
        "",
        invalid_tool_calls=[
            {"name": "f", "args": "{", "id": "1", "error": "e", "type": "invalid_tool_call"}
        ],
    ),
    lc.ToolMessage("r", tool_call_id="c1"),
    lc.ToolMessage("r", tool_call_id="c1", artifact={"k": [1, 2]}, status="error", name="t"),
    lc.ToolMessage(["a", {"b": 1}], tool_call_id="c1"),
    lc.ChatMessage(content="c", role="judge"),
    lc.FunctionMessage(content="f", name="fn"),
    lc.RemoveMessage("gone"),
    lc.HumanMessageChunk(content="h"),
    lc.SystemMessageChunk(content="s"),
    lc.ChatMessageChunk(content="c", role="r"),
    lc.FunctionMessageChunk(content="f", name="fn"),
    lc.ToolMessageChunk(content="t", tool_call_id="c", artifact=[1]),
    lc.AIMessageChunk(content="a"),
    lc.AIMessageChunk(
        content="a",
        tool_call_chunks=[
            lc.ToolCallChunk(name="f", args='{"a":', id="1", index=0, type="tool_call_chunk")
        ],
    ),
    lc.AIMessageChunk(
        content="a",
        tool_calls=[lc.ToolCall(name="f", args={"a": 1}, id="1", type="tool_call")],
        chunk_position="last",
    ),
    lc.AIMessageChunk(
        content=[{"type": "server_tool_call_chunk", "id": "1", "name": "s", "args": '{"q": 1}'}],
        response_metadata={"output_version": "v1"},
        chunk_position="last",
    ),
]

ORDINARY: list[Any] = [
    True,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    "text\0with nul ✓",
    [1, [2, [3]]],
    {"a": {"b": [None, b"x"]}},
    {1: "a", None: "b", 1.5: "c", False: "d", b"k": "e", ("t", (1, 2)): "f"},
    {"a", "b"},
    frozenset({1, 2}),
    {frozenset({1}), frozenset({2})},
    deque([1, "a"]),
    uuid.UUID(int=7),
    decimal.Decimal("1.10"),
    dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001  # naive on purpose
    dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
    dt.date(2026, 1, 2),
    dt.time(1, 2, 3, 4, tzinfo=dt.timezone.utc, fold=1),
    dt.timedelta(days=-1, microseconds=5),
    dt.timezone(dt.timedelta(hours=2), "X"),
    ZoneInfo("Europe/Paris"),
    re.compile("a+", re.IGNORECASE),
    pathlib.Path("/a/b"),
    ipaddress.ip_address("::1"),
    ipaddress.ip_network("10.0.0.0/8"),
    Colour.RED,
    Level.LOW,
    Right.READ | Right.WRITE,
    Point(1, 2),
    Loose(1, "b"),
    Order("o", [1, Frozen(2)]),
    Model(a=1, when=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), child=Model(a=2)),
    Document("text", metadata={"a": 1}),
    Send("node", {"a": lc.HumanMessage("x")}),
    Interrupt(value={"q": 1}, id="i"),
    Command(update={"a": 1}, goto="n"),
    Overwrite([1]),
    Item(
        value={"a": 1},
        key="k",
        namespace=("n",),
        created_at=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
        updated_at=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
    ),
    _DeltaSnapshot([1, lc.HumanMessage("x")]),
    MESSAGES,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", ORDINARY, ids=lambda v: type(v).__name__)
def test_ordinary_values_have_the_bytes_of_stock_and_each_reads_the_other(value):
    for wrapped in (value, [value], {"k": [value]}):
        stock, ours = STOCK.dumps_typed(wrapped), STRICT.dumps_typed(wrapped)
        assert ours == stock
        assert STRICT.loads_typed(stock) == STOCK.loads_typed(ours)


@pytest.mark.parametrize("value", ORDINARY, ids=lambda v: type(v).__name__)
def test_the_walk_gives_the_bytes_of_the_fast_pass(value):
    walked = ormsgpack.packb(
        serde_module._Writer(STRICT)._walk([value], "$"), option=serde_module._ANY_KEYS
    )
    assert walked == STRICT.dumps_typed([value])[1]


@pytest.mark.parametrize("value", [None, b"", b"x", bytearray(b"x")])
def test_top_level_tags_are_those_of_stock(value):
    tag, data = STRICT.dumps_typed(value)
    assert (tag, data) == STOCK.dumps_typed(value)
    assert type(data) is bytes
    loaded = STRICT.loads_typed((tag, data))
    assert loaded == value
    assert type(loaded) is type(value)


def test_a_bytearray_is_a_snapshot():
    value = bytearray(b"before")
    _, data = STRICT.dumps_typed(value)
    value[:] = b"after!"
    assert data == b"before"


def test_types_come_back_as_themselves():
    for value in ORDINARY:
        if not isinstance(value, (bool, int, float, str, list, dict)):
            assert type(round_trip([value])[0]) is type(value), value


# --- what stock loses ---------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
)
keys = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
)
special = (
    st.uuids()
    | st.datetimes()
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.sampled_from([*Colour, *Level, Point(1, 2), Frozen(3)])
    | st.frozensets(keys, max_size=4)
)
values = st.recursive(
    scalars | special,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys | special, inner, max_size=4)
        | st.builds(Order, st.text(), st.lists(inner, max_size=2))
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equality that knows NaN, the sign of zero, types, and the order of keys."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(map(same, left.values(), right.values()))
    if isinstance(left, Order):
        return same(left.ident, right.ident) and same(left.lines, right.lines)
    return left == right


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(values)
def test_round_trips(value):
    assert same(round_trip([value])[0], value)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(values, max_size=6))
def test_pieces_join_to_the_list(value):
    items = dump_list_items(STRICT, value)
    assert items is not None
    joined = join_list_items(items)
    assert joined == STRICT.dumps_typed(value)[1]
    assert same(STRICT.loads_typed(("msgpack", joined)), value)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        -0.0,
        "\0",
        "\ud800",
        "a\udfff\ud800b",
        2**70,
        -(2**70),
        2**64,
        -(2**63) - 1,
        {"\ud800": 1, "b": "\udc00"},
        {2**70: 1, "a": {-(2**64): 2}},
        {uuid.UUID(int=1): "a", dt.date(2026, 1, 1): "b", Colour.RED: "c"},
        {Colour.PAIR: 1},
        {("a", uuid.UUID(int=1)): 1, ("b", (1, Level.LOW)): 2},
        {frozenset({1}): 1},
        {Point(1, 2): 1},
        {Frozen(1): 1},
        {(1, 2), ("a", (3, None))},
        {frozenset({(1, 2)})},
        {"\ud800", 2**70},
        Colour.PAIR,
        deque([1, 2], maxlen=2),
        dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris")),
        Order("\ud800", [2**80, lc.HumanMessage("\udfff")]),
        Model(a=2**80, text="\ud800"),
        Outer.Inner(a=1),
        Outer.Kind.ONE,
        Aliased(Value=3),
        [lc.HumanMessage("x", additional_kwargs={"order": Order("o"), 1: 2})],
        lc.ToolMessage("t", tool_call_id="1", artifact=Model(a=1)),
    ],
    ids=lambda v: f"{type(v).__name__}-{ascii(v)[:40]}",
)
def test_what_stock_loses_or_rejects_comes_back(value):
    for wrapped in ([value], {"k": [1, value]}):
        loaded = round_trip(wrapped)
        got = loaded[0] if isinstance(loaded, list) else loaded["k"][1]
        assert same(got, value)


def test_items_of_a_store_keep_their_score():
    day = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    found = SearchItem(("n",), "k", {"a": 1}, day, day, 0.5)
    for serde in (STRICT, StrictSerializer(strict_types=True)):
        loaded = round_trip([found], serde)[0]
        assert (type(loaded), loaded, loaded.score) == (SearchItem, found, 0.5)


def test_what_only_attributes_show_comes_back():
    assert round_trip(deque([1], maxlen=3)).maxlen == 3
    when = dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris"))
    loaded = round_trip(when)
    assert (loaded.tzinfo, loaded.fold) == (when.tzinfo, 1)
    # Stock reads both forms.
    assert STOCK.loads_typed(STRICT.dumps_typed(deque([1], maxlen=3))).maxlen == 3
    assert STOCK.loads_typed(STRICT.dumps_typed(when)).tzinfo == when.tzinfo


def test_a_strict_model_gets_its_tuple_back():
    assert round_trip(StrictModel(pair=(1, 2))) == StrictModel(pair=(1, 2))


def test_conventions_of_langgraph_stay():
    assert round_trip((1, (2,))) == [1, [2]]
    assert round_trip([bytearray(b"x"), memoryview(b"y")]) == [b"x", b"y"]
    assert round_trip([Text("x")]) == ["x"]
    assert type(round_trip([Text("\ud800")])[0]) is str


# --- refusals -----------------------------------------------------------------------------


def generator():
    yield 1


async def coroutine():
    return 1


def unstorable() -> dict[str, Any]:
    coro = coroutine()
    coro.close()
    return {
        "socket": socket.socket(),
        "lock": threading.Lock(),
        "generator": generator(),
        "coroutine": coro,
        "file": io.BytesIO(),
        "function": os.system,
        "lambda": lambda: 1,
        "class": Order,
        "model class": Model,
        "module": os,
        "complex": 1j,
        "range": range(3),
        "object": object(),
        "iterator": iter([1]),
    }


@pytest.mark.parametrize("what", sorted(unstorable()))
def test_handles_are_refused_with_their_path(what):
    value = unstorable()[what]
    try:
        for wrapped, path in [
            (value, "$"),
            ([1, value], "$[1]"),
            ({"a": {"b": [value]}}, "$['a']['b'][0]"),
            (Order("o", [0, value]), "$.lines[1]"),
            ({1: deque([value])}, "$[1][0]"),
        ]:
            fields = refused(wrapped)
            assert fields["path"] == path
            assert type(value).__qualname__ in fields["type_name"]
    finally:
        if isinstance(value, socket.socket):
            value.close()


def test_the_path_leads_into_messages_and_never_quotes_the_value():
    message = lc.HumanMessage("confidential", additional_kwargs={"x": threading.Lock()})
    with pytest.raises(NotStorable) as caught:
        STRICT.dumps_typed({"messages": [lc.AIMessage("a"), message]})
    assert caught.value.fields["path"] == "$['messages'][1].additional_kwargs['x']"
    assert "confidential" not in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields


def test_long_keys_are_cut():
    assert len(refused({"k" * 1000: 1j})["path"]) < 100
    assert len(refused({2**5000: 1j})["path"]) < 100


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Derived(1), "constructor"),
        (WithInitVar(1, 2), "constructor"),
        (OwnInit(1), "constructor"),
        ({FrozenOfTuple((1, 2))}, "loaded again"),
        ({FrozenOfTuple((1, 2)): 1}, "hashable"),
        (Model.model_construct(a="no number"), "loaded again"),
        (lc.HumanMessage.model_construct(content=5), "loaded again"),
    ],
    ids=lambda v: type(v).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_what_could_not_be_rebuilt_is_refused(value, words):
    serde_module._PROVEN.clear()
    assert words in refused([value])["reason"]


def test_a_dataclass_whose_first_instance_is_rejected_is_refused():
    serde_module._PROVEN.discard(Picky)
    bad = Picky(1)
    bad.a = -41
    fields = refused(bad)
    assert "ValueError" in fields["reason"]
    assert "41" not in fields["reason"]
    assert round_trip(Picky(1)) == Picky(1)


class Failing(BaseModel):
    a: int

    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise KeyError("secret detail")


def test_an_object_that_cannot_be_taken_apart_is_refused():
    fields = refused([Failing(a=1)])
    assert "KeyError" in fields["reason"]
    assert "secret detail" not in fields["reason"]


def test_local_classes_are_refused():
    @dataclasses.dataclass
    class Local:
        a: int

    class Here(Enum):
        A = 1

    assert "inside a function" in refused([Local(1)])["reason"]
    assert "inside a function" in refused([Here.A])["reason"]


def test_generic_models_come_back_if_their_module_names_them():
    assert round_trip([OPEN_BOX]) == [OPEN_BOX]
    assert "not this class" in refused([Box[bytes](item=b"x")])["reason"]


def test_subclasses_of_builtin_values_are_refused():
    class Stamp(dt.datetime):
        pass

    class Number(float):
        pass

    assert "datetime" in refused([Stamp(2026, 1, 1)])["reason"]
    assert refused([Number(1.0)])["path"] == "$[0]"
    assert refused([{"a": deque[Any]}])["path"] == "$[0]['a']"


def test_cycles_and_bombs_are_refused():
    loop: list[Any] = [1]
    loop.append({"again": loop})
    assert refused(loop) == {
        "channel": None,
        "path": "$[1]['again']",
        "type_name": "list",
        "reason": "it contains itself",
    }
    order = Order("o")
    order.lines.append(order)
    assert refused(order)["reason"] == "it contains itself"

    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert "too deeply" in refused(deep)["reason"]
    while isinstance(deep, list):
        deep = deep[0]

    nested: Any = Order("leaf")
    for _ in range(2_000):
        nested = Order("o", [nested])
    assert "too deeply" in refused(nested)["reason"]
    while nested.lines:
        nested = nested.lines[0]


def test_nesting_that_is_stored_can_be_loaded_on_a_small_stack():
    value: Any = 1
    for level in range(64):
        for _ in range(200 if level >= 60 else 5):
            value = [value]
        value = Order("o", value)
    results: list[Any] = []

    def run() -> None:
        results.append(STRICT.dumps_typed(round_trip(value)) == STRICT.dumps_typed(value))

    previous = threading.stack_size(4 * 1024 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(previous)
    assert results == [True]


def test_forged_bombs_are_refused():
    data = b"\x91" * 5000 + b"\x01"
    with pytest.raises(NotLoadable):
        STRICT.loads_typed(("msgpack", data))
    for code in (7, 1, 66):
        bomb = b"\xc0"
        for _ in range(300):
            inner = b"\x91" * 1000 + bomb
            bomb = b"\xc9" + len(inner).to_bytes(4, "big") + bytes([code]) + inner
        with pytest.raises(NotLoadable):
            STRICT.loads_typed(("msgpack", bomb))


# --- secrets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (SecretStr("hunter2"), "$"),
        ([SecretBytes(b"hunter2")], "$[0]"),
        (Vault(name="n", key=SecretStr("hunter2")), "$.key"),
        (Order("o", [{"k": SecretStr("hunter2")}]), "$.lines[0]['k']"),
        ({"cfg": Vault(name="n", key=SecretStr("hunter2"))}, "$['cfg'].key"),
        (
            [lc.AIMessage("x", additional_kwargs={"key": SecretStr("hunter2")})],
            "$[0].additional_kwargs['key']",
        ),
    ],
    ids=str,
)
def test_secrets_are_refused_unless_the_bytes_get_encrypted(value, path):
    with pytest.raises(NotStorable) as caught:
        STRICT.dumps_typed(value)
    assert caught.value.fields["path"] == path
    assert "plain text" in caught.value.fields["reason"]
    assert "hunter2" not in str(caught.value)
    encrypted = StrictSerializer(secrets_encrypted=True)
    assert round_trip(value, encrypted) == value


def test_a_secret_as_a_key_is_refused():
    assert "plain text" in refused({SecretStr("hunter2"): 1})["reason"]


# --- errors of tasks ----------------------------------------------------------------------


def test_exceptions_become_their_repr():
    for error in (
        ValueError("x"),
        NotStorable(channel="c", path="$", type_name="t", reason="r"),
        KeyboardInterrupt(),
    ):
        assert STRICT.dumps_typed(error) == STOCK.dumps_typed(error)
        assert round_trip([error]) == [repr(error)]
    assert round_trip(ValueError("\ud800")) == repr(ValueError("\ud800"))
    assert round_trip([Boom()]) == ["Boom(<repr failed>)"]

    @dataclasses.dataclass
    class Local(Exception):
        a: Any

    assert "Local" in round_trip([Local(threading.Lock())])[0]


# --- loading ------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["json", "pickle", "unknown", "msgpack+aes"])
def test_other_tags_are_never_loaded(tag):
    with pytest.raises(NotLoadable) as caught:
        STRICT.loads_typed((tag, pickle.dumps(1)))
    assert tag in caught.value.fields["type_name"]


def test_lc_dictionaries_stay_plain():
    value = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "Document"],
        "kwargs": {},
    }
    assert round_trip(value) == value


FORGED = [
    (0, ("os", "system", "{}")),
    (1, ("os", "system", ("{}",))),
    (0, ("builtins", "eval", "open('{m}','w')")),
    (0, ("builtins", "exec", "open('{m}','w')")),
    (1, ("subprocess", "Popen", (["touch", "{m}"],))),
    (2, ("subprocess", "Popen", {"args": ["touch", "{m}"]})),
    (1, ("builtins", "open", ("{m}", "w"))),
    (3, ("pathlib", "Path", "{m}", "touch")),
    (3, ("datetime", "datetime", "{m}", "strptime")),
    (4, ("subprocess", "Popen", {"args": ["touch", "{m}"]})),
    (5, ("subprocess", "Popen", {"args": ["touch", "{m}"]})),
    (0, ("posix", "system", "touch {m}")),
    (1, ("io", "open", ("{m}", "w"))),
    (1, ("surefoot.langgraph.serde", "importlib.import_module", ("antigravity",))),
    (1, ("surefoot.langgraph.serde", "pathlib.os.system", ("touch {m}",))),
    (0, ("antigravity", "x", 1)),
    (0, ("no_such_module_at_all", "x", 1)),
    (0, (1, 2, 3)),
    (0, ("os",)),
    (0, "text"),
    (2, ("re", "compile", {"nope": 1})),
    (2, ("datetime", "timedelta", ["rejected"])),
    (6, ("no dtype", 1)),
    (9, "unknown code"),
    (127, "unknown code"),
    (66, [1]),
    (66, [{}, 1]),
    (0, ("builtins", "set", [{}])),
]


@pytest.mark.parametrize(("code", "payload"), FORGED)
@pytest.mark.parametrize("strict_types", [False, True])
def test_forged_names_are_refused_and_never_called(tmp_path, code, payload, strict_types):
    marker = tmp_path / "marker"

    def fill(part: Any) -> Any:
        if isinstance(part, str):
            return part.replace("{}", f"touch {marker}").replace("{m}", str(marker))
        if isinstance(part, (list, tuple)):
            return [fill(p) for p in part]
        if isinstance(part, dict):
            return {k: fill(v) for k, v in part.items()}
        return part

    with pytest.raises(NotLoadable) as caught:
        StrictSerializer(strict_types=strict_types).loads_typed(forged(code, fill(payload)))
    assert not marker.exists()
    if (
        code <= 5
        and isinstance(payload, tuple)
        and len(payload) > 2
        and isinstance(payload[0], str)
    ):
        assert caught.value.fields["type_name"].startswith(f"{payload[0]}.{payload[1]}")
    assert "antigravity" not in sys.modules


def test_the_rules_hold_without_the_environment_switch(monkeypatch):
    monkeypatch.setenv("LANGGRAPH_STRICT_MSGPACK", "false")
    assert StrictSerializer()._allowed_msgpack_modules == set()
    with pytest.raises(NotLoadable):
        StrictSerializer()._unpack_ext_hook(0, ormsgpack.packb(("os", "getenv", "HOME")))


@pytest.mark.parametrize("data", [b"", b"\x92\x01", b"\xc1", b"\xa1\xff", b"\xc7\x02\x40\xff\xff"])
def test_damaged_bytes_are_refused(data):
    with pytest.raises(NotLoadable):
        STRICT.loads_typed(("msgpack", data))


@pytest.fixture
def shop(monkeypatch):
    module = types.ModuleType("shop_of_test")
    source = """
import dataclasses, enum, typing, pydantic
@dataclasses.dataclass
class Data: a: int
class Kind(enum.Enum): A = "a"
class Row(typing.NamedTuple): a: int
class Pyd(pydantic.BaseModel): a: int
"""
    monkeypatch.setitem(sys.modules, "shop_of_test", module)
    exec(source, module.__dict__)
    return module


@pytest.mark.parametrize("name", ["Data", "Kind", "Row", "Pyd"])
def test_a_moved_or_changed_class_is_named(shop, monkeypatch, name):
    cls = getattr(shop, name)
    value = cls("a") if name == "Kind" else cls(a=1)
    stored = STRICT.dumps_typed({"k": [value]})
    assert STRICT.loads_typed(stored) == {"k": [value]}

    class Other(BaseModel):
        needed: int

    for replacement in (None, os.system, Other, print, dataclasses.make_dataclass("Data", ["b"])):
        if replacement is None:
            monkeypatch.delattr(shop, name)
        else:
            monkeypatch.setattr(shop, name, replacement, raising=False)
        with pytest.raises(NotLoadable) as caught:
            STRICT.loads_typed(stored)
        assert caught.value.fields["type_name"] == f"shop_of_test.{name}"
        assert "allowed_types" in str(caught.value)
    monkeypatch.delitem(sys.modules, "shop_of_test")
    with pytest.raises(NotLoadable, match="ModuleNotFoundError"):
        STRICT.loads_typed(stored)


def test_a_module_that_is_not_loaded_yet_is_imported(tmp_path, monkeypatch):
    (tmp_path / "late_of_test.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Data:\n    a: int\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    value = importlib.import_module("late_of_test").Data(1)
    stored = STRICT.dumps_typed(value)
    monkeypatch.delitem(sys.modules, "late_of_test")
    assert STRICT.loads_typed(stored).a == 1


def test_cpythons_own_tests_are_never_imported(tmp_path, monkeypatch):
    """They are importable everywhere, and some of them run when they are imported."""
    (tmp_path / "zest").mkdir()
    (tmp_path / "zest" / "__init__.py").write_text("")
    (tmp_path / "zest" / "autotest.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Data:\n    a: int\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tag, stored = STRICT.dumps_typed(importlib.import_module("zest.autotest").Data(1))
    forged = stored.replace(b"zest.autotest", b"test.autotest")
    assert forged != stored
    before = {name for name in sys.modules if name.partition(".")[0] == "test"}
    with pytest.raises(NotLoadable):
        STRICT.loads_typed((tag, forged))
    assert {name for name in sys.modules if name.partition(".")[0] == "test"} == before
    assert STRICT.loads_typed((tag, stored)).a == 1


# --- allowlists ---------------------------------------------------------------------------


def test_strict_types_and_allowlists():
    key = (Order.__module__, "Order")
    only_safe = StrictSerializer(strict_types=True)
    assert round_trip([MESSAGES[0]], only_safe) == [MESSAGES[0]]
    assert "strict_types" in refused(Order("o"), only_safe)["reason"]
    with pytest.raises(NotLoadable, match="strict_types"):
        only_safe.loads_typed(STRICT.dumps_typed(Order("o")))
    for allowed in (
        StrictSerializer(strict_types=True, allowed_types=[Order]),
        StrictSerializer(strict_types=True, allowed_types=[key]),
        only_safe.with_msgpack_allowlist([key]),
        only_safe.with_msgpack_allowlist([Order]),
    ):
        assert type(allowed) is StrictSerializer
        assert round_trip(Order("o"), allowed) == Order("o")
        assert allowed.with_msgpack_allowlist([key]) is allowed
    with pytest.raises(NotLoadable):
        only_safe.loads_typed(STRICT.dumps_typed(Order("o")))
    with pytest.raises(NotLoadable):
        only_safe.with_msgpack_allowlist([key]).loads_typed(forged(1, ("os", "getpid", ())))


def test_an_allowlist_opens_further_types():
    fraction = forged(1, ("fractions", "Fraction", (1, 2)))
    with pytest.raises(NotLoadable):
        STRICT.loads_typed(fraction)
    opened = STRICT.with_msgpack_allowlist([("fractions", "Fraction")])
    assert str(opened.loads_typed(fraction)[0]) == "1/2"


# --- messages -----------------------------------------------------------------------------


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_the_fast_loader_equals_validation(message):
    dump = message.model_dump()
    validated = type(message)(**message.model_dump())
    loaded = STRICT.loads_typed(STRICT.dumps_typed([message]))[0]
    again = STRICT.loads_typed(STOCK.dumps_typed([message]))[0]
    for got in (loaded, again):
        assert type(got) is type(validated)
        assert got == validated
        assert list(got.__dict__.items()) == list(validated.__dict__.items())
        assert got.model_dump() == validated.model_dump() == dump
        assert got.model_fields_set == validated.model_fields_set
        assert got.__pydantic_extra__ == validated.__pydantic_extra__
        assert got.__pydantic_private__ == validated.__pydantic_private__
        assert repr(got) == repr(validated)
        assert got.model_copy(update={"id": "new"}).id == "new"
        got.additional_kwargs["later"] = 1
        got.name = "later"
        assert pickle.loads(pickle.dumps(got)) == got


def test_every_message_class_has_a_fast_loader_but_the_streaming_one():
    fast = {cls.__name__ for cls in serde_module._SHAPE_OF}
    assert fast == {type(m).__name__ for m in MESSAGES} - {"AIMessageChunk"}
    unchanged = [m for m in MESSAGES if type(m) in serde_module._SHAPE_OF]
    taken = [serde_module._SHAPE_OF[type(m)].unchanged(m.__dict__) for m in unchanged]
    assert sum(taken) >= len(taken) - 4


small = st.integers(-9, 9)
text_or_none = st.none() | st.text(max_size=5)
loose = st.dictionaries(
    st.text(max_size=3), st.none() | st.integers(0, 9) | st.text(max_size=3), max_size=3
)
anything = (
    st.none()
    | st.booleans()
    | st.integers(0, 9)
    | st.text(max_size=3)
    | loose
    | st.lists(loose, max_size=2)
)
call = st.fixed_dictionaries(
    {
        "name": st.text(max_size=3) | anything,
        "args": loose | anything,
        "id": text_or_none | anything,
    },
    optional={"type": st.just("tool_call") | anything, "extras": loose},
)
counts = st.fixed_dictionaries({}, optional={"audio": small | anything, "vendor": small})
usage = st.none() | st.fixed_dictionaries(
    dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), small | anything),
    optional={"output_token_details": counts, "input_token_details": counts, "more": anything},
)
field_values = {
    "content": st.text(max_size=5) | st.lists(anything, max_size=3) | anything,
    "additional_kwargs": loose | st.just({"tool_calls": [{"id": "1"}]}) | anything,
    "response_metadata": loose | anything,
    "name": text_or_none | anything,
    "id": text_or_none | anything,
    "tool_calls": st.lists(call, max_size=2),
    "invalid_tool_calls": st.lists(loose, max_size=1),
    "usage_metadata": usage,
    "tool_call_id": st.text(max_size=3) | anything,
    "artifact": anything,
    "status": st.sampled_from(["success", "error"]) | anything,
    "role": st.text(max_size=3) | anything,
}


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_the_fast_loader_takes_validation_would_not_change(data):
    shape = data.draw(st.sampled_from(list(serde_module._SHAPES.values())))
    fields: dict[str, Any] = {}
    for name, info in shape.cls.model_fields.items():
        if name == "type":
            fields[name] = data.draw(st.sampled_from([info.default, info.default, "other", None]))
        else:
            fields[name] = data.draw(field_values[name])
    plain = ormsgpack.unpackb(ormsgpack.packb(fields))
    if not shape.unchanged(plain):
        return
    validated = shape.cls(**ormsgpack.unpackb(ormsgpack.packb(fields)))
    built = shape.build(plain)
    assert built == validated
    assert same(built.__dict__, validated.__dict__)
    assert ormsgpack.packb(built.__dict__) == ormsgpack.packb(validated.__dict__)
    assert built.model_fields_set == validated.model_fields_set


def test_messages_do_not_share_what_they_may_change():
    first, second = round_trip([lc.HumanMessage("a"), lc.HumanMessage("b")])
    first.custom = 1
    first.name = "n"
    assert second.model_fields_set == set(lc.HumanMessage.model_fields)
    assert second.__pydantic_extra__ == {}


# --- lists in pieces ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [0, 1, 15, 16, 65_535, 65_536])
def test_headers_of_every_size(size):
    value = [None] * size
    items = dump_list_items(STRICT, value)
    assert items is not None
    assert join_list_items(items) == STOCK.dumps_typed(value)[1]


def test_pieces_of_mixed_lists():
    value = [
        None,
        b"x",
        bytearray(b"y"),
        "\ud800",
        2**70,
        {1: 2},
        {uuid.UUID(int=1): 1},
        [],
        *MESSAGES,
        *ORDINARY,
    ]
    items = dump_list_items(STRICT, value)
    assert items is not None
    assert len(items) == len(value)
    joined = join_list_items(items)
    assert joined == STRICT.dumps_typed(value)[1]
    assert STRICT.loads_typed(("msgpack", joined)) == round_trip(value)


def test_pieces_exist_for_lists_of_this_serialiser_only():
    assert dump_list_items(STOCK, [1]) is None
    assert dump_list_items(STRICT, (1,)) is None  # type: ignore[arg-type]
    with pytest.raises(NotStorable) as caught:
        dump_list_items(STRICT, [0, {"a": 1j}])
    assert caught.value.fields["path"] == "$[1]['a']"
    deep: Any = 1
    for _ in range(255):
        deep = [deep]
    assert STRICT.dumps_typed(deep)
    with pytest.raises(NotStorable):
        dump_list_items(STRICT, [deep])


# --- arrays -------------------------------------------------------------------------------


def test_arrays():
    np = pytest.importorskip("numpy")
    for array in (
        np.arange(6, dtype="<i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(12).reshape(3, 4)[:, ::2],
        np.array(["2026-01-01"], dtype="M8[ns]"),
        np.zeros((0, 3)),
        np.array(5),
        np.array(["ab", "c"]),
        np.array([True, False]),
        np.array([1 + 2j]),
    ):
        loaded = round_trip([array])[0]
        assert loaded.dtype == array.dtype
        assert loaded.shape == array.shape
        assert (loaded == array).all()
        assert loaded.flags.writeable
    plain = np.arange(6, dtype="<i4").reshape(2, 3)
    assert STRICT.dumps_typed(plain) == STOCK.dumps_typed(plain)
    assert "dtype" in refused([np.array([object()])])["reason"]
    assert "dtype" in refused([np.zeros(2, dtype=[("a", "i4")])])["reason"]
    assert "subclass" in refused([np.ma.masked_array([1, 2], mask=[0, 1])])["reason"]
    assert ".item()" in refused([np.float64(1.5)])["reason"]


# --- size ---------------------------------------------------------------------------------


def test_large_values_take_no_walk(monkeypatch):
    monkeypatch.setattr(serde_module._Writer, "_walk", lambda *_: pytest.fail("walked"))
    big = {"blob": b"x" * 10_000_000, "list": list(range(200_000)), "messages": MESSAGES}
    assert STRICT.loads_typed(STRICT.dumps_typed(big))["blob"] == big["blob"]
