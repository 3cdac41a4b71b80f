"""The cases of effects once more in the async colour, on both stores."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt
from tests.effects.conftest import Bench, State

from surefoot import Absent, EffectCall, NotSent, effect
from surefoot.errors import EffectConflict, Misuse

pytestmark = [
    pytest.mark.optimized,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="no ambient config in async nodes"),
]
KINDS = pytest.mark.parametrize("kind", ["K", "L", "N"])


class Boom(Exception):
    """The node, or the process in it, fails."""


def make(bench: Bench, kind: str, fault: Callable[[], None] = lambda: None) -> Callable[..., Any]:
    """An async effect of a class; its body is ``world.send``, then what ``fault`` says."""
    settings: dict[str, Any] = {"name": "pay", "idempotent": kind == "K"}
    if kind == "L":

        async def ask(call: EffectCall) -> Any:
            await asyncio.sleep(0)
            return Absent()

        settings |= {"reconcile": ask, "lookup": "strong"}

    @effect(**settings)
    async def pay(amount: int, *, call: EffectCall) -> int:
        await asyncio.sleep(0)
        bench.world.send(amount, call.key)
        fault()
        return amount * 10

    return pay


def once(error: BaseException) -> Callable[[], None]:
    """Raises the first time."""
    left = [error]

    def fault() -> None:
        if left:
            raise left.pop()

    return fault


def chain(bench: Bench, *nodes: Any, **more: Any) -> Any:
    """Nodes one after the other."""
    return bench.graph(*nodes, **more)


@KINDS
async def test_case_07_a_retry_policy_and_an_effect_that_commits(either: Bench, kind: str) -> None:
    pay, fault = make(either, kind), once(Boom())

    async def node(state: Any) -> Any:
        done = await pay(1)
        fault()
        return {"log": [done]}

    policy = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False)
    graph = chain(either, node, retry_policy=policy)
    assert (await graph.ainvoke({"log": []}, either.config()))["log"] == [10]
    assert either.world.sent == [1]


@KINDS
async def test_case_09_other_arguments_at_the_same_place(either: Bench, kind: str) -> None:
    pay, amounts = make(either, kind), iter([1, 2, 2])

    async def node(state: Any) -> Any:
        await pay(next(amounts))
        raise Boom

    graph, config = chain(either, node), either.config()
    with pytest.raises(Boom):
        await graph.ainvoke({"log": []}, config)
    for _ in range(2):
        with pytest.raises(EffectConflict) as caught:
            await graph.ainvoke(None, config)
        assert caught.value.differs == ["amount"]
    assert either.world.sent == [1]


@KINDS
async def test_case_10_intended_repeats(either: Bench, kind: str) -> None:
    """Twice in one node, in two super-steps, in two branches, in two `Send`s: each is meant."""
    pay, fault = make(either, kind), once(Boom())

    async def twice(state: Any) -> Any:
        return {"log": [await pay(1), await pay(1)]}

    async def again(state: Any) -> Any:
        return {"log": [await pay(1)]}

    async def dies(state: Any) -> Any:
        fault()
        return {}

    graph = StateGraph(State)
    graph.add_node("twice", twice)
    for name in ("left", "right", "worker"):
        graph.add_node(name, again)
    graph.add_node("dies", dies)
    graph.add_edge(START, "twice")
    graph.add_edge("twice", "left")
    graph.add_edge("twice", "right")
    graph.add_edge(["left", "right"], "dies")
    graph.add_conditional_edges("dies", lambda s: [Send("worker", {}), Send("worker", {})])
    config = either.config()
    built = graph.compile(checkpointer=either.saver)
    with pytest.raises(Boom):
        await built.ainvoke({"log": []}, config)
    done = await graph.compile(checkpointer=either.open()).ainvoke(None, config)
    assert done["log"] == [10] * 6
    assert either.world.sent == [1] * 6
    assert len(set(either.world.keys)) == 6


async def test_case_13_an_interrupt_in_a_subgraph(either: Bench) -> None:
    pay = make(either, "N")

    async def pays(state: Any) -> Any:
        return {"log": [await pay(1)]}

    async def asks(state: Any) -> Any:
        return {"log": [interrupt("one"), interrupt("two")]}

    inner = StateGraph(State)
    inner.add_node("pays", pays)
    inner.add_node("asks", asks)
    inner.add_edge(START, "pays")
    inner.add_edge("pays", "asks")
    sub = inner.compile()

    async def parent(state: Any) -> Any:
        own = await pay(2)
        return {"log": [own, *(await sub.ainvoke({"log": []}))["log"]]}

    graph, config = chain(either, parent), either.config()
    await graph.ainvoke({"log": []}, config)
    await graph.ainvoke(Command(resume="a"), config)
    done = await graph.ainvoke(Command(resume="b"), config)
    assert done["log"] == [20, 10, "a", "b"]
    assert sorted(either.world.sent) == [1, 2]


async def test_case_14_a_loop_of_interrupts_with_an_effect_before_each(either: Bench) -> None:
    pay = make(either, "N")

    async def node(state: Any) -> Any:
        log = []
        for number in range(3):
            log += [await pay(number), interrupt(number)]
        return {"log": log}

    graph, config = chain(either, node), either.config()
    await graph.ainvoke({"log": []}, config)
    for answer in "ab":
        await graph.ainvoke(Command(resume=answer), config)
    done = await graph.ainvoke(Command(resume="c"), config)
    assert done["log"] == [0, "a", 10, "b", 20, "c"]
    assert either.world.sent == [0, 1, 2]


async def test_case_15_another_payload_than_the_approved_one(either: Bench) -> None:
    """The payment was made for one amount; after the answer the node proposes another one."""
    pay, amounts = make(either, "N"), iter([1, 2])

    async def node(state: Any) -> Any:
        done = await pay(next(amounts))
        return {"log": [done, interrupt("is it right?")]}

    graph, config = chain(either, node), either.config()
    await graph.ainvoke({"log": []}, config)
    with pytest.raises(EffectConflict):
        await graph.ainvoke(Command(resume="yes"), config)
    assert either.world.sent == [1]


async def test_case_16_the_same_operation_with_other_arguments(either: Bench) -> None:
    @effect(name="charge", operation_id="invoice")
    async def charge(invoice: str, amount: int) -> int:
        await asyncio.sleep(0)
        either.world.send((invoice, amount))
        return amount

    def node(amount: int) -> Any:
        async def run(state: Any) -> Any:
            return {"log": [await charge("inv-1", amount)]}

        return run

    await chain(either, node(700)).ainvoke({"log": []}, either.config())
    with pytest.raises(EffectConflict):
        await chain(either, node(900)).ainvoke({"log": []}, either.config())
    done = await chain(either, node(700)).ainvoke({"log": []}, either.config())
    assert done["log"] == [700]
    assert either.world.sent == [("inv-1", 700)]


@KINDS
async def test_case_17_a_proven_failure_stays_retryable(either: Bench, kind: str) -> None:
    pay, amounts = make(either, kind, once(NotSent())), iter([1, 2])

    async def node(state: Any) -> Any:
        return {"log": [await pay(next(amounts))]}

    graph, config = chain(either, node), either.config()
    with pytest.raises(NotSent):
        await graph.ainvoke({"log": []}, config)
    done = await chain(either, node, saver=either.open()).ainvoke(None, config)
    assert done["log"] == [20]
    assert either.world.sent == [1, 2]


async def test_case_18_new_tool_call_ids_are_the_same_action(either: Bench) -> None:
    ids, dies = iter(["a", "b"]), [True]

    @tool
    @effect(name="pay")
    async def pay(amount: int) -> str:
        """Pays."""
        either.world.send(amount)
        return f"paid {amount}"

    tools = ToolNode([pay])

    async def agent(state: MessagesState) -> Any:
        call = {"name": "pay", "args": {"amount": 7}, "id": next(ids)}
        message = AIMessage("", tool_calls=[call])
        answers = await tools.ainvoke({"messages": [message]})
        if dies:
            dies.pop()
            raise Boom
        return {"messages": [message, *answers["messages"]]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent")
    graph.add_edge("agent", END)
    config = either.config()
    with pytest.raises(Boom):
        await graph.compile(checkpointer=either.saver).ainvoke({"messages": []}, config)
    done = await graph.compile(checkpointer=either.open()).ainvoke(None, config)
    assert done["messages"][-1].tool_call_id == "b"
    assert done["messages"][-1].content == "paid 7"
    assert either.world.sent == [7]


async def test_case_10_two_at_once_need_their_own_ids(either: Bench) -> None:
    pay = make(either, "N")

    async def node(state: Any) -> Any:
        return {"log": list(await asyncio.gather(pay(1), pay(1)))}

    with pytest.raises(Misuse, match="call_id"):
        await chain(either, node).ainvoke({"log": []}, either.config())

    async def named(state: Any) -> Any:
        return {"log": list(await asyncio.gather(pay(1, call_id="a"), pay(1, call_id="b")))}

    before = either.world.count
    await chain(either, named).ainvoke({"log": []}, either.config())
    assert either.world.count == before + 2
