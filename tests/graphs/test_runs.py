"""Whole runs on our saver: many at once, across savers, with rich state, with async nodes."""

from __future__ import annotations

import asyncio
import enum
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from tests.graphs.conftest import Stores
from tests.graphs.playing import plain

from surefoot.errors import Busy, NotStorable


class Log(TypedDict, total=False):
    x: Annotated[list[Any], operator.add]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL = 1


@dataclass
class Item:
    name: str
    colour: Colour = Colour.RED
    tags: list[str] = field(default_factory=list)


class Order(BaseModel):
    id: UUID
    items: list[Item]
    total: Decimal
    when: datetime


@dataclass
class DataState:
    order: Order | None = None
    seen: set[str] = field(default_factory=set)
    sizes: dict[str, Size] = field(default_factory=dict)


class ModelState(BaseModel):
    order: Order | None = None
    seen: set[str] = set()
    sizes: dict[str, Size] = {}


class DictState(TypedDict, total=False):
    order: Order
    seen: set[str]
    sizes: dict[str, Size]


ORDER = Order(
    id=UUID(int=7),
    items=[Item("pen", Colour.GREEN, ["a"]), Item("ink")],
    total=Decimal("1.10"),
    when=datetime(2026, 1, 2, tzinfo=timezone.utc),
)


def _config(thread: str = "t") -> Any:
    return {"configurable": {"thread_id": thread}}


def _asking(saver: Any) -> Any:
    builder = StateGraph(Log)
    builder.add_node("a", lambda s: {"x": ["a"]})
    builder.add_node("ask", lambda s: {"x": [interrupt("sure?")]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "ask")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("schema", [DictState, DataState, ModelState])
def test_state_of_classes_comes_back_equal(schema: Any, either_stores: Stores) -> None:
    """In another saver, as if in another process."""
    builder = StateGraph(schema)
    builder.add_node("a", lambda s: {"seen": {"x", "y"}, "sizes": {"pen": Size.SMALL}})
    builder.add_node("b", lambda s: {"sizes": {"ink": interrupt("size?")}})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    shown = []
    for saver in (InMemorySaver(), either_stores.open()):
        builder.compile(checkpointer=saver).invoke({"order": ORDER}, _config())
        again: Any = saver
        if not isinstance(saver, InMemorySaver):
            again = either_stores.open()
            saver.close()
        graph = builder.compile(checkpointer=again)
        snapshot = graph.get_state(_config())
        assert snapshot.values["order"] == ORDER
        assert snapshot.values["seen"] == {"x", "y"}
        assert snapshot.values["sizes"]["pen"] is Size.SMALL or isinstance(saver, InMemorySaver)
        assert type(snapshot.values["order"].items[0].colour) is Colour
        shown.append(plain(graph.invoke(Command(resume=2), _config())))
    assert shown[0] == shown[1]


def test_a_value_that_cannot_be_stored_is_named(stores: Stores) -> None:
    builder = StateGraph(Log)
    builder.add_node("a", lambda s: {"x": [threading.Lock()]})
    builder.add_edge(START, "a")
    graph = builder.compile(checkpointer=stores.open())
    with pytest.raises(NotStorable) as refused:
        graph.invoke({"x": ["in"]}, _config())
    assert refused.value.fields["channel"] == "x"
    assert graph.get_state(_config()).values == {"x": ["in"]}
    assert graph.get_state(_config()).next == ("a",)


def test_a_run_goes_on_in_another_saver(either_stores: Stores) -> None:
    """The first saver is still open: nobody waits for a lease."""
    first, second = either_stores.open(), either_stores.open()
    _asking(first).invoke({"x": []}, _config())
    assert _asking(second).get_state(_config()).next == ("ask",)
    assert _asking(second).invoke(Command(resume="yes"), _config()) == {"x": ["a", "yes"]}
    assert _asking(first).get_state(_config()).values == {"x": ["a", "yes"]}
    assert _asking(first).invoke({"x": ["more"]}, _config())["x"][-2:] == ["more", "a"]


def test_turns_alternate_between_savers(stores: Stores) -> None:
    builder = StateGraph(Log)
    builder.add_node("a", lambda s: {"x": ["a"]})
    builder.add_node("b", lambda s: {"x": ["b"]})
    builder.add_node("join", lambda s: {"x": ["join"]})
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge(["a", "b"], "join")
    graphs = [builder.compile(checkpointer=stores.open()) for _ in range(3)]
    for turn in range(9):
        graphs[turn % 3].invoke({"x": [turn]}, _config())
    found = graphs[0].get_state(_config()).values["x"]
    assert found == [word for turn in range(9) for word in (turn, "a", "b", "join")]


def test_an_error_lets_another_saver_go_on(stores: Stores) -> None:
    ran: list[int] = []

    def fails_once(state: Log) -> Log:
        ran.append(1)
        if len(ran) == 1:
            raise ValueError("once")
        return {"x": ["fine"]}

    builder = StateGraph(Log)
    builder.add_node("a", fails_once)
    builder.add_edge(START, "a")
    first, second = (builder.compile(checkpointer=stores.open()) for _ in range(2))
    with pytest.raises(ValueError, match="once"):
        first.invoke({"x": []}, _config())
    assert second.invoke(None, _config()) == {"x": ["fine"]}


def test_twenty_threads_run_on_one_graph(either_stores: Stores) -> None:
    graph = _asking(either_stores.open())
    together = threading.Barrier(20, timeout=30)

    def one(number: int) -> Any:
        where = _config(f"t{number}")
        together.wait()
        for turn in range(3):
            graph.invoke({"x": [f"{number}.{turn}"]}, where)
            graph.invoke(Command(resume=number), where)
        return graph.get_state(where).values["x"]

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(one, range(20)))
    for number, words in enumerate(found):
        assert words == [w for turn in range(3) for w in (f"{number}.{turn}", "a", number)]


def test_twenty_async_runs_on_one_graph(stores: Stores) -> None:
    graph = _asking(stores.open())

    async def one(number: int) -> Any:
        where = _config(f"t{number}")
        await graph.ainvoke({"x": [number]}, where)
        await graph.ainvoke(Command(resume=number), where)
        return (await graph.aget_state(where)).values["x"]

    async def everything() -> list[Any]:
        return list(await asyncio.gather(*map(one, range(20))))

    assert asyncio.run(everything()) == [[n, "a", n] for n in range(20)]


def test_two_runs_of_one_thread_at_once_are_refused(stores: Stores) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def node(state: Log) -> Log:
        inside.set()
        assert go_on.wait(30)
        return {"x": ["node"]}

    builder = StateGraph(Log)
    builder.add_node("a", node)
    builder.add_edge(START, "a")
    graph: Any = builder.compile(checkpointer=stores.open())
    other = builder.compile(checkpointer=stores.open())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(graph.invoke, {"x": []}, _config())
        assert inside.wait(30)
        for rival in (graph, other):
            with pytest.raises(Busy):
                rival.invoke({"x": ["rival"]}, _config())
        go_on.set()
        assert running.result() == {"x": ["node"]}


def test_a_graph_run_in_its_own_thread_inside_a_node_is_refused_at_once(stores: Stores) -> None:
    saver, met = stores.open(), []
    inner = _asking(saver)

    def node(state: Log) -> Log:
        with pytest.raises(Busy) as refused:
            inner.invoke({"x": []}, _config())
        met.append(refused.value)
        return {"x": ["outer"]}

    builder = StateGraph(Log)
    builder.add_node("a", node)
    builder.add_edge(START, "a")
    assert builder.compile(checkpointer=saver).invoke({"x": []}, _config()) == {"x": ["outer"]}
    assert len(met) == 1


def test_a_stream_pulled_by_a_task_for_each_chunk(stores: Stores) -> None:
    builder = StateGraph(Log)
    for number in range(4):
        builder.add_node(f"n{number}", lambda s, number=number: {"x": [number]})
        builder.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    saver = stores.open()
    graph = builder.compile(checkpointer=saver)

    async def pull() -> list[Any]:
        stream = graph.astream({"x": []}, _config())
        chunks = []
        while True:
            try:
                chunks.append(await asyncio.ensure_future(stream.__anext__()))
            except StopAsyncIteration:
                return chunks
            saver.core.flush_due()

    assert len(asyncio.run(pull())) == 4
    assert graph.get_state(_config()).values == {"x": [0, 1, 2, 3]}


def test_a_sync_stream_may_pause(stores: Stores) -> None:
    builder = StateGraph(Log)
    inner = StateGraph(Log)
    inner.add_node("i", lambda s: {"x": ["i"]})
    inner.add_edge(START, "i")
    builder.add_node("a", inner.compile())
    builder.add_node("b", lambda s: {"x": ["b"]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    saver = stores.open()
    graph = builder.compile(checkpointer=saver)
    for _ in graph.stream({"x": []}, _config(), subgraphs=True):
        saver.core.flush_due()
    assert graph.get_state(_config()).values == {"x": ["i", "b"]}


def test_async_nodes_and_a_cancelled_run(stores: Stores) -> None:
    saver = stores.open()
    runs: list[int] = []

    async def everything() -> Any:
        started, never = asyncio.Event(), asyncio.Event()

        async def first(state: Log) -> Log:
            return {"x": ["first"]}

        async def second(state: Log) -> Log:
            runs.append(1)
            if len(runs) == 1:
                started.set()
                await never.wait()
            return {"x": ["second"]}

        builder = StateGraph(Log)
        builder.add_node("first", first)
        builder.add_node("second", second)
        builder.add_edge(START, "first")
        builder.add_edge("first", "second")
        graph = builder.compile(checkpointer=saver)
        running = asyncio.ensure_future(graph.ainvoke({"x": []}, _config()))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await graph.ainvoke(None, _config())

    assert asyncio.run(everything()) == {"x": ["first", "second"]}


def test_async_interrupt_answered_in_another_loop(stores: Stores) -> None:
    saver = stores.open()
    graph = _asking(saver)
    asyncio.run(graph.ainvoke({"x": []}, _config()))
    assert asyncio.run(graph.ainvoke(Command(resume="yes"), _config())) == {"x": ["a", "yes"]}
