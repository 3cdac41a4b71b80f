"""What the package relies on in LangGraph. Runs against the lowest and the newest release.

Each test pins one behaviour; tests with the same number are about the same thing.
"""

from __future__ import annotations

import asyncio
import gc
import operator
import re
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import RunControl, Runtime
from langgraph.types import Command, RetryPolicy, Send, StateUpdate, interrupt
from tests.host.spying import Log, SpySaver, chain, config

from surefoot.errors import SurefootError

pytestmark = pytest.mark.host

RELEASE = tuple(int(part) for part in re.findall(r"\d+", version("langgraph"))[:3])
DURABILITY = ["sync", "async", "exit"]
MODES = ["invoke", "ainvoke", "stream"]


class Stop(SurefootError, GraphBubbleUp):
    """What an effect raises in a node."""

    template = "stop"


class Plain(SurefootError):
    """What the saver raises."""

    template = "plain"


def says(*words: Any) -> Callable[..., Any]:
    return lambda state: {"x": [*words]}


def run(graph: Any, given: Any, mode: str = "invoke", **more: Any) -> Any:
    where = more.pop("config", None) or config()
    if mode == "ainvoke":
        return asyncio.run(graph.ainvoke(given, where, **more))
    if mode == "stream":
        return [*graph.stream(given, where, **more)]
    return graph.invoke(given, where, **more)


# --- 1, 2, 3: order of calls and what a failing saver stops -----------------------------------


def test_1_writes_and_checkpoints_are_not_ordered_with_each_other() -> None:
    saver = SpySaver()
    last_put = threading.Event()
    order: list[str] = []

    def hold_the_first_writes(method: str, number: int) -> None:
        if method == "put_writes" and number == 2:
            assert last_put.wait(20)
        order.append(method)
        if method == "put" and number == 5:
            last_put.set()

    saver.before = hold_the_first_writes
    graph = chain(saver, says(0), says(1), says(2))
    run(graph, {"x": []}, durability="sync")
    assert order[-1] == "put_writes"
    assert order.count("put") == 5


def test_1_checkpoints_are_ordered_among_themselves() -> None:
    saver = SpySaver()
    run(chain(saver, *map(says, range(5))), {"x": []}, durability="async")
    parents = [c.checkpoint_id for c in saver.of("put")]
    assert parents[0] is None
    stored = [t.checkpoint["id"] for t in InMemorySaver.list(saver, config())]
    assert parents[1:] == sorted(stored)[:-1]


def test_2_after_a_failed_put_none_follows_or_one_that_names_it_as_parent() -> None:
    saver = SpySaver()
    saver.before = _fail("put", 2, Plain)
    with pytest.raises(Plain):
        run(chain(saver, *map(says, range(4))), {"x": []}, durability="async")
    later = saver.of("put")[2:]
    if RELEASE >= (1, 2, 24):
        assert not later
    stored = [t.checkpoint["id"] for t in InMemorySaver.list(saver, config())]
    assert not later or later[0].checkpoint_id not in stored


def _fail(method: str, number: int, error: type[Exception]) -> Callable[[str, int], None]:
    def fail(called: str, count: int) -> None:
        if called == method and number in {0, count}:
            raise error

    return fail


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
@pytest.mark.parametrize(
    ("method", "durability", "ran"),
    [
        ("put", "sync", 0),
        ("put", "async", 4),
        ("put_writes", "sync", 4),
        ("put_writes", "async", 4),
    ],
)
def test_3_nodes_run_on_behind_a_failing_saver(
    method: str, durability: str, ran: int, mode: str
) -> None:
    saver, done = SpySaver(), []
    saver.before = _fail(method, 2, Plain)

    def node(state: Log) -> Log:
        done.append(1)
        return {"x": [1]}

    with pytest.raises(Plain):
        run(chain(saver, node, node, node, node), {"x": []}, mode, durability=durability)
    assert len(done) == ran


# --- 4: durability ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("durability", [*DURABILITY, None])
def test_4_the_mode_is_told(durability: str | None, mode: str) -> None:
    saver, told = SpySaver(), []

    def node(state: Log, config: RunnableConfig) -> Log:
        told.append(config["configurable"].get("__pregel_durability"))
        return {"x": [1]}

    run(chain(saver, node), {"x": []}, mode, **({"durability": durability} if durability else {}))
    assert told == [durability]
    assert {c.durability for c in saver.calls} == {durability}


def test_4_exit_writes_nothing_before_the_end() -> None:
    saver, seen = SpySaver(), []

    def node(state: Log) -> Log:
        seen.append(len(saver.of("put")) + len(saver.of("put_writes")))
        return {"x": [1]}

    run(chain(saver, node, node), {"x": []}, durability="exit")
    assert seen == [0, 0]
    assert len(saver.of("put")) == 1


def test_4_async_runs_a_node_before_its_checkpoint_is_stored() -> None:
    saver, node_ran = SpySaver(), threading.Event()

    def wait_for_the_node(method: str, number: int) -> None:
        if method == "put" and number == 3:
            assert node_ran.wait(20)

    saver.before = wait_for_the_node

    def second(state: Log) -> Log:
        node_ran.set()
        return {"x": [2]}

    run(chain(saver, says(1), second), {"x": []}, durability="async")


# --- 5: errors that are GraphBubbleUp ---------------------------------------------------------


def test_5_a_bubble_up_raised_by_the_saver_may_be_dropped() -> None:
    """Whether it is depends on whether it came before the end of the run."""
    for _ in range(50):
        saver = SpySaver()
        saver.before = _fail("put_writes", 1, Stop)
        try:
            result = run(chain(saver, *map(says, range(5))), {"x": []}, durability="sync")
        except Stop:
            continue
        assert result == {"x": [0, 1, 2, 3, 4]}
        return
    pytest.fail("it always surfaced")


def test_5_an_ordinary_error_raised_in_put_writes_surfaces() -> None:
    saver = SpySaver()
    saver.before = _fail("put_writes", 0, Plain)
    with pytest.raises(Plain):
        run(chain(saver, says(1)), {"x": []})


@pytest.mark.parametrize("mode", MODES)
def test_5_an_error_raised_in_the_load_surfaces(mode: str) -> None:
    saver = SpySaver()
    saver.before = _fail("get_tuple", 1, Plain)
    with pytest.raises(Plain):
        run(chain(saver, says(1)), {"x": []}, mode)


RETRY = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False, retry_on=Exception)


def _raising(error: type[Exception], ran: list[int]) -> Any:
    def node(state: Any) -> Any:
        ran.append(1)
        raise error

    return node


def _raising_async(error: type[Exception], ran: list[int]) -> Any:
    async def node(state: Any) -> Any:
        ran.append(1)
        raise error

    return node


def _in_a_node(saver: Any, error: type[Exception], ran: list[int]) -> tuple[Any, Any]:
    return chain(saver, (_raising(error, ran), {"retry_policy": RETRY})), {"x": []}


def _in_an_async_node(saver: Any, error: type[Exception], ran: list[int]) -> tuple[Any, Any]:
    return chain(saver, (_raising_async(error, ran), {"retry_policy": RETRY})), {"x": []}


def _in_a_subgraph(saver: Any, error: type[Exception], ran: list[int]) -> tuple[Any, Any]:
    inner = chain(None, _raising(error, ran))
    return chain(saver, (inner, {"retry_policy": RETRY})), {"x": []}


def _in_a_task(saver: Any, error: type[Exception], ran: list[int]) -> tuple[Any, Any]:
    node = _raising(error, ran)

    def work(given: int) -> int:
        return int(node(given))

    untyped: Any = task
    retried = untyped(retry_policy=RETRY)(work)

    @entrypoint(checkpointer=saver)
    def flow(given: int) -> int:
        return int(retried(given).result())

    return flow, 1


def _in_an_async_task(saver: Any, error: type[Exception], ran: list[int]) -> tuple[Any, Any]:
    node = _raising_async(error, ran)

    async def work(given: int) -> int:
        return int(await node(given))

    untyped: Any = task
    retried = untyped(retry_policy=RETRY)(work)

    @entrypoint(checkpointer=saver)
    async def flow(given: int) -> int:
        return int(await retried(given))

    return flow, 1


def _with_an_error_handler(saver: Any, error: type[Exception], ran: list[int]) -> tuple[Any, Any]:
    return chain(saver, (_raising(error, ran), {"error_handler": says("handled")})), {"x": []}


PLACES = [
    (place, mode)
    for place in (_in_a_node, _in_an_async_node, _in_a_subgraph, _in_a_task, _in_an_async_task)
    for mode in (["ainvoke"] if "async" in place.__name__ else MODES)
] + [(_with_an_error_handler, mode) for mode in MODES]


@pytest.mark.parametrize(("place", "mode"), PLACES)
def test_5_a_bubble_up_raised_by_user_code_surfaces_once_and_is_not_stored(
    place: Any, mode: str
) -> None:
    """No retry, no error handler, no ERROR write: the task is simply not done."""
    saver = SpySaver()
    ran: list[int] = []
    graph, given = place(saver, Stop, ran)
    with pytest.raises(Stop):
        run(graph, given, mode)
    assert len(ran) == 1
    assert not [c for c in saver.channels() if "__error__" in c]
    snapshot = graph.get_state(config())
    assert snapshot.next
    assert all(t.error is None for t in snapshot.tasks)


@pytest.mark.parametrize(("place", "mode"), PLACES[:-3])
def test_5_an_ordinary_error_raised_by_user_code_is_retried_and_stored(
    place: Any, mode: str
) -> None:
    saver = SpySaver()
    ran: list[int] = []
    graph, given = place(saver, Plain, ran)
    with pytest.raises(Plain):
        run(graph, given, mode)
    assert len(ran) == 3
    assert [c for c in saver.channels() if "__error__" in c]


@pytest.mark.parametrize("mode", MODES)
def test_5_an_ordinary_error_goes_to_the_error_handler(mode: str) -> None:
    saver = SpySaver()
    graph, given = _with_an_error_handler(saver, Plain, [])
    run(graph, given, mode)
    assert graph.get_state(config()).values == {"x": ["handled"]}
    (batch,) = [c for c in saver.channels() if "__error__" in c]
    assert "__error_source_node__" in batch


class Chat(TypedDict):
    messages: Annotated[list[Any], operator.add]


def _tool_graph(saver: Any, tool_node: ToolNode) -> Any:
    builder = StateGraph(Chat)
    builder.add_node("tools", tool_node)
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=saver)


def _asks_for(name: str, *arguments: int) -> dict[str, Any]:
    calls = [
        {"name": name, "args": {"number": n}, "id": f"call-{i}"} for i, n in enumerate(arguments)
    ]
    return {"messages": [AIMessage("", tool_calls=calls)]}


@pytest.mark.parametrize(
    ("asynchronous", "mode"), [*((False, mode) for mode in MODES), (True, "ainvoke")]
)
@pytest.mark.parametrize("handling", [None, True, False])
@pytest.mark.parametrize(("error", "reaches_the_model"), [(Stop, False), (Plain, True)])
def test_5_in_a_tool(
    error: type[Exception],
    reaches_the_model: bool,
    handling: bool | None,
    asynchronous: bool,
    mode: str,
) -> None:
    """Only with handle_tool_errors=True an ordinary error becomes a message; a bubble-up never."""
    saver = SpySaver()

    @tool
    def charge(number: int) -> str:
        """Charges."""
        raise error

    @tool("charge")
    async def acharge(number: int) -> str:
        """Charges."""
        raise error

    options: dict[str, Any] = {} if handling is None else {"handle_tool_errors": handling}
    graph = _tool_graph(saver, ToolNode([acharge if asynchronous else charge], **options))
    if handling and reaches_the_model:
        run(graph, _asks_for("charge", 1), mode)
        assert "Error" in graph.get_state(config()).values["messages"][-1].content
        return
    with pytest.raises(error):
        run(graph, _asks_for("charge", 1), mode)
    stored = [c for c in saver.channels() if "__error__" in c]
    assert bool(stored) is (error is Plain)


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
def test_5_siblings_of_a_bubble_up_run_to_their_end_and_are_stored(mode: str) -> None:
    saver, raised = SpySaver(), threading.Event()

    def stops(state: Log) -> Log:
        raised.set()
        raise Stop

    def sibling(state: Log) -> Log:
        assert raised.wait(20)
        return {"x": ["sibling"]}

    builder = StateGraph(Log)
    builder.add_node("stops", stops)
    builder.add_node("sibling", sibling)
    builder.add_edge(START, "stops")
    builder.add_edge(START, "sibling")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(Stop):
        run(graph, {"x": []}, mode)
    assert ("x",) in saver.channels()
    assert graph.get_state(config()).next == ("stops",)


def test_5_a_bubble_up_beside_an_interrupt_surfaces_and_the_interrupt_is_stored() -> None:
    saver = SpySaver()
    builder = StateGraph(Log)
    builder.add_node("stops", _raising(Stop, []))
    builder.add_node("asks", lambda s: {"x": [interrupt("sure?")]})
    builder.add_edge(START, "stops")
    builder.add_edge(START, "asks")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(Stop):
        run(graph, {"x": []})
    assert [i.value for i in graph.get_state(config()).interrupts] == ["sure?"]


def test_5_a_caller_of_a_task_may_catch_a_bubble_up() -> None:
    @task
    def work() -> None:
        raise Stop

    @entrypoint(checkpointer=SpySaver())
    def flow(given: int) -> str:
        try:
            work().result()
        except SurefootError:
            return "caught"
        return "not raised"

    assert run(flow, 1) == "caught"


# --- 7: who is calling ------------------------------------------------------------------------


def _functional(saver: Any) -> Any:
    @task
    def work(given: int) -> int:
        return given

    @entrypoint(checkpointer=saver)
    def flow(given: int) -> int:
        return work(given).result() + work(given).result()

    return flow


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["graph", "subgraph", "nested", "functional", "error", "exit"])
def test_7_all_calls_of_a_run_carry_one_control(kind: str, mode: str) -> None:
    saver = SpySaver()
    given: Any = {"x": []}
    more: dict[str, Any] = {}
    if kind == "functional":
        graph, given = _functional(saver), 1
    elif kind == "subgraph":
        graph = chain(saver, chain(None, says(1), says(2)), says(3))
    elif kind == "nested":
        graph = chain(saver, chain(None, chain(None, says(1))), chain(True, says(2)))
    elif kind == "error":
        graph = chain(saver, says(1), _raising(Plain, []))
    else:
        graph = chain(saver, says(1), says(2))
        more = {"durability": "exit"} if kind == "exit" else {}
    try:
        run(graph, given, mode, **more)
    except Plain:
        assert kind == "error"
    assert {"get_tuple", "put"} <= {c.method for c in saver.calls}
    assert len({c.control for c in saver.calls}) == 1
    assert saver.calls[0].control is not None


def test_7_each_run_has_its_own_control_and_the_caller_may_give_one() -> None:
    saver, control = SpySaver(), RunControl()
    graph = chain(saver, says(1))
    run(graph, {"x": []})
    run(graph, {"x": []}, control=control)
    seen = {c.control for c in saver.calls}
    assert len(seen) == 2
    assert id(control) in seen


@pytest.mark.parametrize("asynchronous", [False, True])
def test_7_looks_and_updates_carry_none(asynchronous: bool) -> None:
    saver = SpySaver()
    graph = chain(saver, says(1), chain(None, says(2), interrupt_before=["n0"]))
    run(graph, {"x": []})
    saver.calls.clear()

    async def aside() -> None:
        await graph.aget_state(config(), subgraphs=True)
        [s async for s in graph.aget_state_history(config())]
        await graph.aupdate_state(config(), {"x": [0]})
        await graph.abulk_update_state(config(), [[StateUpdate({"x": [0]}, "n0")]])

    if asynchronous:
        asyncio.run(aside())
    else:
        graph.get_state(config(), subgraphs=True)
        [*graph.get_state_history(config())]
        graph.update_state(config(), {"x": [0]})
        graph.bulk_update_state(config(), [[StateUpdate({"x": [0]}, "n0")]])
    assert {c.method for c in saver.calls} == {"get_tuple", "list", "put", "put_writes"}
    assert {c.control for c in saver.calls} == {None}
    assert not any("__pregel_runtime" in c.keys for c in saver.calls)


def test_7_looks_and_updates_with_a_thread_id_carry_none_inside_a_node_either() -> None:
    saver, other = SpySaver(), SpySaver()
    aside = chain(other, says(1))

    def node(state: Log) -> Log:
        for thread in ("t", "other"):
            aside.get_state(config(thread))
            [*aside.get_state_history(config(thread))]
            aside.update_state(config(thread), {"x": [0]}, as_node="n0")
        return {"x": [1]}

    run(chain(saver, node), {"x": []})
    assert len(other.calls) >= 6
    assert {c.control for c in other.calls} == {None}


def test_7_looks_with_the_config_of_a_node_carry_the_run() -> None:
    saver = SpySaver()
    aside = chain(saver, says(1))

    def node(state: Log, config: RunnableConfig) -> Log:
        saver.calls.clear()
        aside.get_state(config)
        return {"x": [1]}

    graph = chain(saver, node)
    run(graph, {"x": []})
    assert saver.calls[0].method == "get_tuple"
    assert saver.calls[0].control is not None


@pytest.mark.parametrize("thread", ["t", "other"])
def test_7_a_graph_run_inside_a_node_with_a_thread_id_is_a_run_of_its_own(thread: str) -> None:
    """Also on the same thread id; whose node it runs in is only told by the ambient config."""
    saver, ambient = SpySaver(), []
    inner_saver = SpySaver()
    inner = chain(inner_saver, says("inner"))

    def note(method: str, number: int) -> None:
        if method == "get_tuple":
            around = (var_child_runnable_config.get() or {}).get("configurable") or {}
            ambient.append(id(around["__pregel_runtime"].control))

    inner_saver.before = note

    def node(state: Log) -> Log:
        inner.invoke({"x": []}, config(thread))
        return {"x": [1]}

    run(chain(saver, node), {"x": []})
    (outer,) = {c.control for c in saver.calls}
    (own,) = {c.control for c in inner_saver.calls}
    assert own not in {outer, None}
    assert {c.namespace for c in inner_saver.calls} == {""}
    assert ambient == [outer]


def test_7_a_graph_run_inside_a_node_without_a_thread_id_belongs_to_the_run() -> None:
    saver = SpySaver()
    inner = chain(saver, says("inner"))

    def node(state: Log) -> Log:
        inner.invoke({"x": []})
        return {"x": [1]}

    run(chain(saver, node), {"x": []})
    assert len({c.control for c in saver.calls}) == 1
    assert {c.namespace.split(":")[0] for c in saver.calls} == {"", "n0"}


# --- 8, 38: what a node knows -----------------------------------------------------------------


def _noting(infos: list[Any]) -> Any:
    def node(state: Any, runtime: Runtime[Any], config: RunnableConfig) -> Any:
        infos.append((runtime.execution_info, config["configurable"]))
        return {"x": [1]}

    return node


@pytest.mark.parametrize("mode", MODES)
def test_8_execution_info(mode: str) -> None:
    infos: list[Any] = []
    saver = SpySaver()
    graph = chain(saver, _noting(infos), _noting(infos))
    where = {**config(), "metadata": {"run_id": "r"}}
    run(graph, {"x": []}, mode, config=where, durability="sync")
    stored = [t.checkpoint["id"] for t in InMemorySaver.list(saver, config())][::-1]
    assert [i.checkpoint_id for i, _ in infos] == stored[1:3]
    assert [i.thread_id for i, _ in infos] == ["t", "t"]
    assert all(i.checkpoint_ns == f"n{n}:{i.task_id}" for n, (i, _) in enumerate(infos))
    assert [i.node_attempt for i, _ in infos] == [1, 1]


def test_8_execution_info_in_a_subgraph_and_a_send() -> None:
    infos: list[Any] = []
    inner = chain(None, _noting(infos))
    builder = StateGraph(Log)
    builder.add_node("sub", inner)
    builder.add_conditional_edges(START, lambda s: [Send("sub", {"x": []})] * 2)
    saver = SpySaver()
    run(builder.compile(checkpointer=saver), {"x": []}, durability="sync")
    assert len({i.task_id for i, _ in infos}) == 2
    for info, configurable in infos:
        outer, inside = info.checkpoint_ns.split("|")
        assert outer.startswith("sub:")
        assert inside == f"n0:{info.task_id}"
        # The checkpoint is the subgraph's own, in the namespace without the last part.
        stored = InMemorySaver.list(saver, config(checkpoint_ns=outer))
        assert info.checkpoint_id in [t.checkpoint["id"] for t in stored]
        assert "" in configurable["checkpoint_map"]


@pytest.mark.parametrize("checkpointer", [None, True, False])
def test_8_execution_info_by_the_subgraph_s_own_checkpoints(checkpointer: bool | None) -> None:
    infos: list[Any] = []
    inner = chain(checkpointer, _noting(infos))
    saver = SpySaver()
    run(chain(saver, inner), {"x": []}, durability="async")
    ((info, configurable),) = infos
    expected = {None: "n0:", True: "n0|", False: "n0:"}[checkpointer]
    assert info.checkpoint_ns.startswith(expected)
    own = {c.namespace for c in saver.of("put")} - {""}
    assert bool(own) is (checkpointer is not False)
    # Without checkpoints of its own, the saver is still found and the id is that of a
    # checkpoint which is never stored; only that its namespace was never loaded tells.
    assert configurable["__pregel_checkpointer"] is saver
    loaded = {c.namespace for c in saver.of("get_tuple")} - {""}
    assert loaded == own
    assert configurable["checkpoint_map"][info.checkpoint_ns.rpartition("|")[0]] == (
        info.checkpoint_id
    )
    assert configurable["checkpoint_map"][""] in [
        t.checkpoint["id"] for t in InMemorySaver.list(saver, config(checkpoint_ns=""))
    ]


def test_8_node_attempt_counts_from_one() -> None:
    attempts: list[int] = []

    def node(state: Log, runtime: Runtime[Any]) -> Log:
        assert runtime.execution_info is not None
        attempts.append(runtime.execution_info.node_attempt)
        if len(attempts) < 3:
            raise ValueError
        return {"x": [1]}

    run(chain(SpySaver(), (node, {"retry_policy": RETRY})), {"x": []})
    assert attempts == [1, 2, 3]


def test_8_and_38_in_a_task() -> None:
    seen: list[Any] = []

    @task
    def work(given: int) -> int:
        inside = get_config()["configurable"]
        seen.append((inside["__pregel_runtime"].execution_info, inside["__pregel_checkpointer"]))
        return given

    saver = SpySaver()

    @entrypoint(checkpointer=saver)
    def flow(given: int) -> int:
        seen.append(("flow", get_config()["configurable"]["__pregel_checkpointer"]))
        return work(given).result() + work(given).result()

    run(flow, 1)
    assert [s for _, s in seen] == [saver] * 3
    infos = [i for i, _ in seen if i != "flow"]
    assert len({i.task_id for i in infos}) == 2
    assert len({i.checkpoint_id for i in infos}) == 1


def test_38_the_saver_is_found_from_a_subgraph_node_and_a_tool() -> None:
    saver, found = SpySaver(), []

    @tool
    def charge(number: int) -> str:
        """Charges."""
        found.append(get_config()["configurable"]["__pregel_checkpointer"])
        return "ok"

    builder = StateGraph(Chat)
    builder.add_node("tools", ToolNode([charge]))
    builder.add_edge(START, "tools")
    outer = StateGraph(Chat)
    outer.add_node("sub", builder.compile())
    outer.add_edge(START, "sub")
    run(outer.compile(checkpointer=saver), _asks_for("charge", 1, 2))
    assert found == [saver, saver]


@pytest.mark.parametrize("way", ["ambient", "parameter"])
def test_38_in_async_nodes(way: str) -> None:
    saver, found = SpySaver(), []

    async def node(state: Log, config: RunnableConfig) -> Log:
        where = config if way == "parameter" else get_config()
        found.append(where["configurable"]["__pregel_checkpointer"])
        return {"x": [1]}

    graph = chain(saver, node)
    if way == "ambient" and sys.version_info < (3, 11):
        with pytest.raises(RuntimeError):
            run(graph, {"x": []}, "ainvoke")
        return
    run(graph, {"x": []}, "ainvoke")
    assert found == [saver]


def test_39_tool_calls_of_one_message_share_a_task_and_run_at_once() -> None:
    both, seen = threading.Barrier(2, timeout=20), []

    @tool
    def charge(number: int) -> str:
        """Charges."""
        both.wait()
        info = get_config()["configurable"]["__pregel_runtime"].execution_info
        seen.append((info.task_id, number))
        return "ok"

    run(_tool_graph(SpySaver(), ToolNode([charge])), _asks_for("charge", 7, 7))
    assert len(seen) == 2
    assert len(set(seen)) == 1


# --- 9, 10, 11: the saver as LangGraph handles it ---------------------------------------------


def test_9_an_allowlist_may_copy_the_saver_shallowly() -> None:
    class Ours(SpySaver):
        def __init__(self) -> None:
            super().__init__()
            self.shared = object()

    saver = Ours()
    other: Any = saver.with_allowlist([("tests.host.test_facts", "Chat")])
    assert isinstance(other, Ours)
    assert other.shared is saver.shared


def test_10_the_task_path_is_found_by_the_signature() -> None:
    paths: list[str] = []

    class Named(InMemorySaver):
        def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            paths.append(task_path)

    class Starred(InMemorySaver):
        def put_writes(self, *arguments: Any) -> None:
            paths.append(arguments[3] if len(arguments) > 3 else "lost")

    run(chain(Named(), says(1)), {"x": []})
    assert all("n0" in p or "__start__" in p or p for p in paths)
    paths.clear()
    run(chain(Starred(), says(1)), {"x": []})
    assert set(paths) == {"lost"}


def test_11_subgraphs_load_again() -> None:
    saver = SpySaver()
    run(chain(saver, chain(None, says(1)), says(2)), {"x": []})
    assert [c.namespace.split(":")[0] for c in saver.of("get_tuple")] == ["", "n0"]


# --- 12, 13, 15, 16: identity -----------------------------------------------------------------


def _task_ids(ids: list[str], *, fail: int) -> Any:
    def node(state: Log, runtime: Runtime[Any]) -> Log:
        assert runtime.execution_info is not None
        ids.append(runtime.execution_info.task_id)
        if len(ids) <= fail:
            raise ValueError("again")
        return {"x": [len(ids)]}

    return node


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_12_the_task_id_is_the_same_when_a_failed_run_goes_on(durability: str) -> None:
    ids: list[str] = []
    graph = chain(SpySaver(), says(0), _task_ids(ids, fail=1))
    with pytest.raises(ValueError, match="again"):
        run(graph, {"x": []}, durability=durability)
    run(graph, None, durability=durability)
    assert len(set(ids)) == 1


def test_12_the_task_id_changes_with_new_input_and_on_time_travel() -> None:
    ids: list[str] = []
    graph = chain(SpySaver(), says(0), _task_ids(ids, fail=1))
    with pytest.raises(ValueError, match="again"):
        run(graph, {"x": []})
    run(graph, {"x": ["new"]})
    before = next(s for s in graph.get_state_history(config()) if s.next == ("n1",))
    run(graph, None, config=before.config)
    assert len(set(ids)) == 3


def test_13_a_subgraph_s_namespace_holds_the_task_id() -> None:
    saver = SpySaver()
    ids: list[str] = []
    graph = chain(saver, chain(None, _task_ids(ids, fail=1)))
    with pytest.raises(ValueError, match="again"):
        run(graph, {"x": []})
    run(graph, {"x": []})
    assert len({c.namespace for c in saver.of("put") if c.namespace}) == 2


def test_15_an_interrupt_s_id_is_its_place() -> None:
    amounts = iter([1, 1000])
    graph = chain(SpySaver(), lambda s: {"x": [interrupt(f"pay {next(amounts)}?")]})
    run(graph, {"x": []})
    first = graph.get_state(config()).interrupts[0]
    run(graph, None)
    second = graph.get_state(config()).interrupts[0]
    assert first.value != second.value
    assert first.id == second.id


def test_16_the_same_run_id_again_runs_no_node() -> None:
    ran: list[str] = []

    def node(state: Log) -> Log:
        ran.append("n")
        return {"x": [1]}

    graph = chain(SpySaver(), node)
    for run_id, expected in (("r1", 1), ("r1", 1), ("r2", 2)):
        run(graph, {"x": ["in"]}, config={**config(), "metadata": {"run_id": run_id}})
        assert len(ran) == expected


# --- 36: the end of a run ---------------------------------------------------------------------


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _dead(saver: SpySaver) -> bool:
    assert saver.writers
    return all(r() is None for r in saver.writers)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ending", ["success", "exit", "static", "subgraph"])
def test_36_the_writer_dies_with_the_run(ending: str, mode: str) -> None:
    saver = SpySaver()
    given: dict[str, Any] = {"durability": "exit"} if ending == "exit" else {}
    nodes = [chain(None, says(1))] if ending == "subgraph" else [says(1), says(2)]
    before = ["n1"] if ending == "static" else None
    run(chain(saver, *nodes, interrupt_before=before), {"x": []}, mode, **given)
    assert _dead(saver)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ending", ["error", "stop", "interrupt", "limit"])
def test_36_after_an_error_or_an_interrupt_it_dies_at_the_next_collection(
    ending: str, mode: str
) -> None:
    saver = SpySaver()
    last: Any = {
        "error": _raising(Plain, []),
        "stop": _raising(Stop, []),
        "interrupt": lambda s: {"x": [interrupt("?")]},
        "limit": says(2),
    }[ending]
    where = {**config(), "recursion_limit": 1} if ending == "limit" else config()
    try:
        run(chain(saver, says(1), last), {"x": []}, mode, config=where)
    except (SurefootError, GraphRecursionError):
        pass
    gc.collect()
    assert _dead(saver)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
@pytest.mark.parametrize("error", [Plain, Stop])
def test_36_it_lives_as_long_as_somebody_holds_the_error(error: type[Exception], mode: str) -> None:
    saver = SpySaver()
    with pytest.raises(error) as held:
        run(chain(saver, says(1), _raising(error, [])), {"x": []}, mode)
    gc.collect()
    assert not _dead(saver)
    assert held.value is not None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("ending", ["dropped", "closed"])
def test_36_an_abandoned_stream(ending: str) -> None:
    saver = SpySaver()
    stream = chain(saver, *map(says, range(4))).stream({"x": []}, config())
    next(stream)
    assert not _dead(saver)
    if ending == "closed":
        stream.close()
    del stream
    assert _dead(saver)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("ending", ["dropped", "closed", "cancelled"])
def test_36_an_abandoned_async_run_ends_with_its_loop_at_the_latest(ending: str) -> None:
    saver = SpySaver()

    async def abandon() -> None:
        started, never = asyncio.Event(), asyncio.Event()

        async def waits(state: Log) -> Log:
            started.set()
            await never.wait()
            return {"x": [1]}

        if ending == "cancelled":
            running = asyncio.ensure_future(chain(saver, waits).ainvoke({"x": []}, config()))
            await started.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return
        stream = chain(saver, *map(says, range(4))).astream({"x": []}, config())
        await stream.__anext__()
        if ending == "closed":
            await stream.aclose()

    asyncio.run(abandon())
    gc.collect()
    assert _dead(saver)


@pytest.mark.parametrize("mode", ["invoke", "stream"])
@pytest.mark.parametrize("ending", ["success", "error", "stop", "limit", "interrupt"])
def test_36_the_threads_that_save_for_a_sync_run_end_with_it(ending: str, mode: str) -> None:
    """Those of the root graph; a subgraph's end earlier. True also while the error is held."""
    saver = SpySaver()
    last: Any = {
        "error": _raising(Plain, []),
        "stop": _raising(Stop, []),
        "interrupt": lambda s: {"x": [interrupt("?")]},
    }.get(ending, says(2))
    where = {**config(), "recursion_limit": 1} if ending == "limit" else config()
    try:
        run(chain(saver, says(1), last), {"x": []}, mode, config=where)
    except (SurefootError, GraphRecursionError):
        assert not any(c.carrier.is_alive() for c in saver.of("put"))
    assert not any(c.carrier.is_alive() for c in saver.of("put"))


def test_36_the_threads_that_save_live_while_a_stream_is_suspended() -> None:
    saver = SpySaver()
    stream = chain(saver, chain(None, says(1)), says(2), says(3)).stream({"x": []}, config())
    next(stream)
    root = [c.carrier for c in saver.of("put") if c.namespace == ""]
    inner = [c.carrier for c in saver.of("put") if c.namespace]
    assert all(c.is_alive() for c in root)
    assert inner
    assert not any(c.is_alive() for c in inner)
    stream.close()
    assert not any(c.is_alive() for c in root)


def test_36_at_rest_no_trigger_has_a_value() -> None:
    builder = StateGraph(Log)
    for name in "abc":
        builder.add_node(name, says(name))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge(["a", "b"], "c")
    saver = SpySaver()
    run(builder.compile(checkpointer=saver), {"x": []})
    newest, *older = [
        {
            channel
            for channel, value in t.checkpoint["channel_values"].items()
            if channel.startswith(("branch:to:", "__pregel_tasks"))
            or (channel.startswith("join:") and value == {"a", "b"})
        }
        for t in InMemorySaver.list(saver, config())
    ]
    assert not newest
    assert all(older[:-1])
    assert "join:a+b:c" in older[0]


def test_36_a_join_that_ran_leaves_an_empty_set() -> None:
    builder = StateGraph(Log)
    for name in "abc":
        builder.add_node(name, says(name))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge(["a", "b"], "c")
    saver = SpySaver()
    run(builder.compile(checkpointer=saver), {"x": []})
    newest = next(iter(InMemorySaver.list(saver, config())))
    assert newest.checkpoint["channel_values"]["join:a+b:c"] == set()


# --- 37: metadata -----------------------------------------------------------------------------


def test_37_primitives_of_the_config_end_in_the_metadata() -> None:
    from langgraph.checkpoint.base import get_checkpoint_metadata

    where: Any = {
        "configurable": {"thread_id": "t", "api_key": "hunter2", "__private": "no", "many": [1]},
        "metadata": {"team": "a"},
    }
    merged: Any = get_checkpoint_metadata(where, {"step": 1})
    assert merged["api_key"] == "hunter2"
    assert merged["team"] == "a"
    assert "__private" not in merged
    assert "many" not in merged


# --- the live set of a join -------------------------------------------------------------------


def test_a_saved_join_may_be_changed_by_the_step_that_follows() -> None:
    """`put` is handed the set itself; saved in the background it may be ahead of its checkpoint.

    What each node has seen is copied, so it tells which names belong to this checkpoint.
    """
    saved: dict[int, Any] = {}
    second_ran = threading.Event()

    class Late(SpySaver):
        def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            if metadata["step"] == 1:
                assert second_ran.wait(20)
            joined = sorted(checkpoint["channel_values"].get("join:a2+b:end", []))
            saved[metadata["step"]] = (joined, sorted(checkpoint["versions_seen"]))
            return super().put(config, checkpoint, metadata, new_versions)

    def third(state: Log) -> Log:
        second_ran.set()
        return {"x": ["a3"]}

    builder = StateGraph(Log)
    for name in ("a", "b", "a2", "end"):
        builder.add_node(name, says(name))
    builder.add_node("a3", third)
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge("a", "a2")
    builder.add_edge("a2", "a3")
    builder.add_edge(["a2", "b"], "end")
    run(builder.compile(checkpointer=Late()), {"x": []}, durability="async")
    joined, ran = saved[1]
    assert "a2" not in ran  # it runs in step 2 …
    assert joined in ([], ["a2", "b"])  # … and is in the set (or the set was emptied) all the same


# --- resuming ---------------------------------------------------------------------------------


def test_the_base_class_has_what_we_override() -> None:
    for name in (
        "get_tuple",
        "aget_tuple",
        "list",
        "alist",
        "put",
        "aput",
        "put_writes",
        "aput_writes",
        "delete_thread",
        "adelete_thread",
        "delete_for_runs",
        "copy_thread",
        "prune",
        "get_delta_channel_history",
        "aget_delta_channel_history",
        "with_allowlist",
        "get_next_version",
    ):
        assert hasattr(BaseCheckpointSaver, name), name


def test_an_answer_is_stored_before_the_node_runs_again() -> None:
    saver = SpySaver()
    graph = chain(saver, lambda s: {"x": [interrupt("?")]})
    run(graph, {"x": []})
    saver.calls.clear()
    run(graph, Command(resume="yes"))
    assert saver.channels()[0] == ("__resume__",)
