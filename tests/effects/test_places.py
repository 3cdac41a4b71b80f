"""Every place where LangGraph runs user code: an effect there happens once, or is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.config import get_stream_writer
from langgraph.errors import GraphBubbleUp
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import RunControl
from langgraph.types import CachePolicy, Command, RetryPolicy, interrupt
from tests.effects.conftest import Bench, State
from tests.effects.test_tools import Kill, calls, faults, results

from surefoot import EffectCall, Unknown, effect, effect_node, wrap_tool_call
from surefoot.errors import EffectInDoubt, Misuse, SurefootError

EVERYTHING = RetryPolicy(max_attempts=5, initial_interval=0.001, jitter=False, retry_on=Exception)


class Boom(Exception):
    """Something of the user's fails."""


def both(graph: Any, asynchronous: bool) -> Callable[..., Any]:
    """Runs a graph in one of the two colours."""
    if asynchronous:
        return lambda given, config, **more: asyncio.run(graph.ainvoke(given, config, **more))
    run: Callable[..., Any] = graph.invoke
    return run


# --- refusals ----------------------------------------------------------------------------------


def doubtful(bench: Bench, place: str) -> tuple[Any, Any]:
    """A graph whose effect is in doubt, with everything around it that handles errors."""
    handled: list[Any] = []
    fault = faults(Kill())

    def body(state: Any) -> Any:
        bench.world.send(1)
        fault()
        return {"log": ["sent"]}

    send = effect(lambda: body(None), name="send")
    nodes: dict[str, Any] = {
        "function": lambda state: send() and None,
        "node": effect_node(body, name="send"),
    }

    def handler(state: Any) -> Any:
        handled.append(state)
        return {"log": ["handled"]}

    builder = StateGraph(State)
    builder.add_node("work", nodes[place], retry_policy=EVERYTHING, error_handler=handler)
    builder.add_edge(START, "work")
    return builder.compile(checkpointer=bench.saver), handled


@pytest.mark.optimized
@pytest.mark.parametrize("place", ["function", "node"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_refusal_is_neither_retried_nor_handled(
    either: Bench, place: str, asynchronous: bool
) -> None:
    """A retry policy for everything and an error handler do not get to see it."""
    graph, handled = doubtful(either, place)
    run, config = both(graph, asynchronous), either.config()
    with pytest.raises(Kill):
        run({"n": 1, "log": []}, config)
    attempts: list[Any] = []
    begin = either.saver.core.ports.host.now_us
    for _ in range(2):
        with pytest.raises(EffectInDoubt) as caught:
            run(None, config)
        attempts.append(caught.value)
    assert all(isinstance(error, GraphBubbleUp) for error in attempts)
    assert begin() > 0
    assert handled == []
    assert either.world.sent == [1]


@pytest.mark.optimized
def test_a_misuse_is_neither_retried_nor_handled(bench: Bench) -> None:
    """Two calls at the same time without `call_id=`: running again would not help."""
    entered: list[int] = []

    @effect
    async def pay(amount: int) -> int:
        entered.append(1)
        await asyncio.sleep(0)
        return int(bench.world.send(amount))

    async def node(state: State) -> Any:
        await asyncio.gather(pay(1), pay(1))

    handled: list[Any] = []
    builder = StateGraph(State)
    builder.add_node(
        "work", node, retry_policy=EVERYTHING, error_handler=lambda state: handled.append(1)
    )
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=bench.saver)
    with pytest.raises(Misuse, match="call_id="):
        asyncio.run(graph.ainvoke({"log": []}, bench.config()))
    assert (entered, handled) == ([1], [])


def test_an_error_of_the_body_is_the_users_own(bench: Bench) -> None:
    """An error handler sees it; the effect of class K it leaves behind is sent again on resume."""
    seen: list[Any] = []

    @effect_node(idempotent=True)
    def work(state: State, *, idempotency_key: str) -> Any:
        bench.world.send(1, idempotency_key)
        raise Boom

    def handler(state: State) -> Any:
        seen.append(1)
        return {"log": ["handled"]}

    builder = StateGraph(State)
    builder.add_node("work", work, error_handler=handler)
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=bench.saver)
    assert graph.invoke({"log": []}, bench.config())["log"] == ["handled"]
    assert (seen, bench.world.sent) == ([1], [1])


def test_an_effect_in_an_error_handler(either: Bench) -> None:
    """A handler is a node like any other: what it does happens once."""
    die = faults(Kill())

    def work(state: State) -> Any:
        raise Boom

    refund = effect_node(lambda state: {"log": [either.world.send("refund")]}, name="refund")

    def handler(state: State) -> Any:
        update = refund(state)
        die()
        return update

    builder = StateGraph(State)
    builder.add_node("work", work, error_handler=handler)
    builder.add_edge(START, "work")
    graph, config = builder.compile(checkpointer=either.saver), either.config()
    with pytest.raises(Kill):
        graph.invoke({"n": 1, "log": []}, config)
    assert graph.invoke(None, config)["log"] == ["refund"]
    assert either.world.sent == ["refund"]


# --- the functional API ------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_workflow_of_tasks(either: Bench, asynchronous: bool) -> None:
    die = faults(Boom())

    if asynchronous:

        @effect
        async def apay(amount: int, call: EffectCall) -> int:
            await asyncio.sleep(0)
            return int(either.world.send(amount, call.key))

        @task
        async def awork(amount: int) -> int:
            return await apay(amount, call_id=f"pay {amount}")

        @entrypoint(checkpointer=either.saver)
        async def aflow(amounts: list[int]) -> list[int]:
            done = await asyncio.gather(*(awork(a) for a in amounts))
            die()
            return [*done, await apay(9, call_id="last")]

        flow: Any = aflow
    else:

        @effect
        def pay(amount: int, call: EffectCall) -> int:
            return int(either.world.send(amount, call.key))

        @task
        def work(amount: int) -> int:
            return pay(amount)

        @entrypoint(checkpointer=either.saver)
        def sflow(amounts: list[int]) -> list[int]:
            done = [future.result() for future in [work(a) for a in amounts]]
            die()
            return [*done, pay(9)]

        flow = sflow
    run, config = both(flow, asynchronous), either.config()
    with pytest.raises(Boom):
        run([1, 2, 3], config)
    assert run(None, config) == [1, 2, 3, 9]
    assert sorted(either.world.sent) == [1, 2, 3, 9]


def test_a_cached_task(bench: Bench) -> None:
    """What the cache answers is not called: an effect is as often as its task really runs."""
    cache = InMemoryCache()

    @effect
    def pay(amount: int) -> int:
        return int(bench.world.send(amount))

    @task(cache_policy=CachePolicy())
    def work(amount: int) -> int:
        return pay(amount)

    @entrypoint(checkpointer=bench.saver, cache=cache)
    def flow(amount: int) -> int:
        return work(amount).result()

    assert [flow.invoke(7, bench.config()) for _ in range(2)] == [7, 7]
    assert flow.invoke(8, bench.config()) == 8
    assert bench.world.sent == [7, 8]


@pytest.mark.parametrize("hit", [True, False])
def test_a_cached_node(bench: Bench, hit: bool) -> None:
    """A replay stands before the cache is filled: the recorded update is what gets cached."""
    die = faults(Kill())
    charge = effect_node(lambda state: {"log": [bench.world.send(state["n"])]}, name="charge")

    def node(state: State) -> Any:
        update = charge(state)
        die()
        return update

    builder = StateGraph(State)
    builder.add_node("work", node, cache_policy=CachePolicy())
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=bench.saver, cache=InMemoryCache())
    config = bench.config()
    with pytest.raises(Kill):
        graph.invoke({"n": 1, "log": []}, config)
    assert graph.invoke(None, config)["log"] == [1]
    assert bench.world.sent == [1]
    assert graph.invoke({"n": 1 if hit else 2, "log": []}, bench.config())["log"] == [
        1 if hit else 2
    ]
    assert bench.world.sent == ([1] if hit else [1, 2])


# --- interrupts --------------------------------------------------------------------------------


def test_a_question_in_a_node_that_is_an_effect(bench: Bench) -> None:
    """Refused when nobody can prove what came before it; a receiver that deduplicates may ask."""

    def ask(state: State, *, idempotency_key: str) -> Any:
        answer = interrupt("really?")
        bench.world.send(answer, idempotency_key)
        return {"log": [answer]}

    with pytest.raises(Misuse, match="ask before the effect"):
        bench.graph(effect_node(ask)).invoke({"log": []}, bench.config())
    graph, config = bench.graph(effect_node(ask, idempotent=True)), bench.config()
    assert graph.invoke({"log": []}, config)["__interrupt__"][0].value == "really?"
    assert graph.invoke(Command(resume="yes"), config)["log"] == ["yes"]
    assert bench.world.sent == ["yes"]


def test_an_effect_node_before_an_interrupt(either: Bench) -> None:
    charge = effect_node(lambda state: {"log": [either.world.send(1)]}, name="charge")
    graph = either.graph(charge, lambda state: {"log": [interrupt("go on?")]})
    config = either.config()
    graph.invoke({"log": []}, config)
    assert graph.invoke(Command(resume="yes"), config)["log"] == [1, "yes"]
    assert either.world.sent == [1]


# --- streaming ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["function", "node", "tool"])
@pytest.mark.parametrize("mode", ["custom", "messages"])
def test_a_replay_does_not_stream_again(bench: Bench, kind: str, mode: str) -> None:
    """What a body streams is streamed while it runs; a replay has only its result."""
    model = GenericFakeChatModel(messages=iter([AIMessage("a b c"), AIMessage("never said")]))
    die = faults(Kill())

    def body() -> str:
        get_stream_writer()("working")
        return str(model.invoke("say").content) + str(bench.world.send(""))

    if kind == "function":
        inner: Any = effect(body)
        node: Any = lambda state: {"log": [inner()]}
    elif kind == "node":
        node = effect_node(lambda state: {"log": [body()]}, name="node")
    else:
        from langchain_core.tools import tool

        @tool
        def act() -> str:
            """Acts."""
            return body()

        tools = ToolNode([act], wrap_tool_call=wrap_tool_call({"act": {}}, default="refuse"))
        message = calls(("act", {}))

        def node(state: State) -> Any:
            from langgraph.config import get_config

            done = tools.invoke({"messages": [message]}, get_config())
            return {"log": [done["messages"][0].content]}

    def dies(state: State) -> Any:
        update = node(state)
        die()
        return update

    graph, config = bench.graph(dies), bench.config()
    first: list[Any] = []
    with pytest.raises(Kill):
        first.extend(graph.stream({"log": []}, config, stream_mode=mode))
    assert first, "the fault has to come after the stream"
    assert list(graph.stream(None, config, stream_mode=mode)) == []
    assert graph.get_state(config).values["log"] == ["a b c"]
    assert bench.world.count == 1


# --- concurrency and cancellation --------------------------------------------------------------


async def test_gather_with_call_ids_in_a_cancelled_run(either: Bench) -> None:
    """Case 19: what was done keeps its result, what was cancelled is looked at again."""
    reached, forever = asyncio.Event(), asyncio.Event()

    @effect(idempotent=True)
    async def pay(name: str, *, idempotency_key: str) -> str:
        either.world.send(name, idempotency_key)
        if name == "slow" and either.world.sent.count("slow") == 1:
            reached.set()
            await forever.wait()
        return f"paid {name}"

    async def node(state: State) -> Any:
        quick = pay("quick", call_id="quick")
        done = [await quick]
        done += await asyncio.gather(*(pay(name, call_id=name) for name in ("also quick", "slow")))
        return {"log": done}

    graph, config = either.graph(node), either.config()
    running = asyncio.create_task(graph.ainvoke({"log": []}, config))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    done = await graph.ainvoke(None, config)
    assert done["log"] == ["paid quick", "paid also quick", "paid slow"]
    assert either.world.sent.count("quick") == 1
    assert either.world.sent.count("also quick") in (1, 2), "it may have been cancelled as well"
    assert either.world.sent.count("slow") == 2
    assert len(set(either.world.keys)) == 3


def test_threads_of_a_node_with_call_ids(bench: Bench) -> None:
    from contextvars import copy_context

    @effect(idempotent=True)
    def pay(name: str, *, idempotency_key: str) -> str:
        return str(bench.world.send(name, idempotency_key))

    die = faults(Kill())

    def node(state: State) -> Any:
        done: dict[str, str] = {}

        def work(name: str) -> None:
            done[name] = pay(name, call_id=name)

        threads = [threading.Thread(target=copy_context().run, args=(work, name)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        die()
        return {"log": [done[name] for name in "abc"]}

    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Kill):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == ["a", "b", "c"]
    assert sorted(bench.world.sent) == ["a", "b", "c"]


# --- drain and SIGTERM -------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_drain_between_two_effect_nodes(either: Bench, asynchronous: bool) -> None:
    """The node at work finishes; the next one waits for the next run."""
    from langgraph.errors import GraphDrained

    control = RunControl()

    def first(state: State) -> Any:
        control.request_drain("deploy")
        return {"log": [either.world.send("first")]}

    graph = either.graph(
        effect_node(first),
        effect_node(lambda state: {"log": [either.world.send("second")]}, name="second"),
    )
    run, config = both(graph, asynchronous), either.config()
    with pytest.raises(GraphDrained):
        run({"log": []}, config, control=control)
    assert either.world.sent == ["first"]
    assert run(None, config)["log"] == ["first", "second"]
    assert either.world.sent == ["first", "second"]


def start(folder: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("sigterm_worker.py")), str(folder), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


def until(worker: subprocess.Popen[str], wanted: str) -> None:
    """Reads the barrier that has to come next."""
    assert worker.stdout is not None
    line = worker.stdout.readline().strip()
    assert line == wanted, f"it said {line!r}"


def let_go(worker: subprocess.Popen[str]) -> str:
    said, _ = worker.communicate("go\n", timeout=60)
    return said.strip()


@pytest.mark.kill
@pytest.mark.optimized
@pytest.mark.parametrize("mode", ["node", "drain"])
def test_case_19_sigterm_during_a_long_node(either: Bench, tmp_path: Path, mode: str) -> None:
    """Killed by it, or drained: another process goes on, and every attempt sends one key."""
    either.keys.to_file(tmp_path / "keys.json")
    for name in ("conn", "highwater", "tenant"):
        (tmp_path / name).write_text(getattr(either, name), encoding="utf-8")
    first = start(tmp_path, mode)
    until(first, "AT effect")
    first.send_signal(signal.SIGTERM)
    if mode == "node":
        assert first.wait(60) == -signal.SIGTERM, "the signal has to hit inside of the effect"
    else:
        assert let_go(first) == "RAISED GraphDrained"
        assert first.returncode == 3
    sent = tmp_path / "sent"
    assert len(sent.read_text(encoding="utf-8").split()) == 1
    second = start(tmp_path, mode)
    if mode == "node":
        until(second, "AT effect")
    assert let_go(second) == "DONE charged,after"
    assert second.returncode == 0
    keys = sent.read_text(encoding="utf-8").split()
    assert len(keys) == (2 if mode == "node" else 1)
    assert len(set(keys)) == 1, "the receiver executes it once"


# --- tools in other places ---------------------------------------------------------------------


def test_a_tool_node_inside_a_task(bench: Bench) -> None:
    """Tools called from the functional API: their place comes from the message."""
    from langchain_core.tools import tool

    @tool
    def pay(amount: int) -> str:
        """Pays."""
        return str(bench.world.send(amount))

    effects = wrap_tool_call({"pay": {}}, default="refuse")
    tools = ToolNode([pay], wrap_tool_call=effects, awrap_tool_call=effects.on_loop)
    die = faults(Boom())

    @task
    def act(messages: list[Any]) -> Any:
        from langgraph.config import get_config

        done = tools.invoke({"messages": messages}, get_config())
        die()
        return done["messages"]

    @entrypoint(checkpointer=bench.saver)
    def flow(text: str) -> Any:
        return act(
            [HumanMessage(text), calls(("pay", {"amount": 1}), ("pay", {"amount": 1}))]
        ).result()

    config = bench.config()
    with pytest.raises(Boom):
        flow.invoke("go", config)
    done = flow.invoke(None, config)
    assert results({"messages": done}) == [("call-0", "1"), ("call-1", "1")]
    assert bench.world.sent == [1, 1]


def test_a_lookup_that_says_nothing_stops_every_place(bench: Bench) -> None:
    """The same error, whatever the place."""
    settings: dict[str, Any] = {"reconcile": lambda call: Unknown()}
    die = faults(Boom(), Boom())

    def body(*_: Any) -> Any:
        bench.world.send(1)
        die()
        return {}

    in_function = effect(body, name="a", **settings)
    nodes = [lambda state: in_function() and None, effect_node(body_of(body), name="b", **settings)]
    codes: list[str] = []
    for node in nodes:
        graph, config = bench.graph(node), bench.config()
        with pytest.raises(Boom):
            graph.invoke({"log": []}, config)
        with pytest.raises(SurefootError) as caught:
            graph.invoke(None, config)
        codes.append(caught.value.code)
    assert codes == ["EFFECT_IN_DOUBT"] * 2
    assert bench.world.sent == [1, 1]


def body_of(body: Callable[..., Any]) -> Callable[[Any], Any]:
    def node(state: State) -> Any:
        return body(state)

    return node
