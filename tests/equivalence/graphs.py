"""Graphs of users, well and badly wrapped; a killed child imports them from here."""

from __future__ import annotations

import itertools
import operator
import uuid
from functools import partial
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from surefoot import Absent, Committed, SurefootSaver, effect
from surefoot.langgraph.effects import EffectCall
from surefoot.testing import CountingReceiver


class State(TypedDict, total=False):
    """What was done."""

    log: Annotated[list[Any], operator.add]


def chain(saver: SurefootSaver, *nodes: Any, **settings: Any) -> Any:
    """Nodes one after the other."""
    builder = StateGraph(State)
    before = START
    for number, node in enumerate(nodes):
        builder.add_node(f"n{number}", node)
        builder.add_edge(before, f"n{number}")
        before = f"n{number}"
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver, **settings)


def sends(receiver: CountingReceiver, kind: str) -> Any:
    """An effect of a class."""

    def once(what: str, *, idempotency_key: str) -> str:
        receiver.send(what, key=idempotency_key, once=True)
        return what

    def anew(what: str, *, idempotency_key: str) -> str:
        receiver.send(what, key=idempotency_key)
        return what

    def lookup(call: EffectCall) -> Any:
        found = receiver.find(call.key)
        return Committed(found[0], result=found[0]["what"]) if found else Absent()

    if kind == "K":
        return effect(name="send_k", idempotent=True)(once)
    if kind == "L":
        return effect(name="send_l", reconcile=lookup, compare=["what"], lookup="strong")(anew)
    return effect(name="send_n")(anew)


def good(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Two effects well wrapped, with a question between them."""
    first, second = sends(receiver, "K"), sends(receiver, "L")

    def ask(state: State) -> State:
        return {"log": [f"answered {interrupt({'ask': 'go on?'})}"]}

    return chain(
        saver,
        lambda s: {"log": [first("one")]},
        ask,
        lambda s: {"log": [second("two"), interrupt("and now?")]},
    )


def good_async(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Three branches that pay at the same time, on a loop."""

    @effect(idempotent=True)
    async def post(what: str, *, idempotency_key: str) -> str:
        receiver.send(what, key=idempotency_key, once=True)
        return what

    def branch(what: str) -> Any:
        async def node(state: State) -> State:
            return {"log": [await post(what)]}

        return node

    builder = StateGraph(State)
    for what in "abc":
        builder.add_node(what, branch(what))
        builder.add_edge(START, what)
    return builder.compile(checkpointer=saver)


def neither(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """A receiver that can neither deduplicate nor be asked."""
    send = sends(receiver, "N")
    return chain(saver, lambda s: {"log": [send("mail")]}, lambda s: {"log": ["told"]})


class Chat(TypedDict):
    """Messages."""

    messages: Annotated[list[AnyMessage], add_messages]


def tools(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """A model that asks for two equal tools, and messages that get ids of their own."""

    @tool
    @effect(idempotent=True)
    def refund(invoice: str, *, idempotency_key: str) -> str:
        """Refunds an invoice."""
        receiver.send(invoice, key=idempotency_key, once=True)
        return f"refunded {invoice}"

    call = {"name": "refund", "args": {"invoice": "inv"}}
    message = partial(AIMessage, "", tool_calls=[{**call, "id": "1"}, {**call, "id": "2"}])
    builder = StateGraph(Chat)
    builder.add_node("model", lambda s: {"messages": [message()]})
    builder.add_node("tools", ToolNode([refund]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder.compile(checkpointer=saver)


# --- planted bugs -------------------------------------------------------------------------------


def outside(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Sends beside the effect instead of inside of it."""
    book = sends(receiver, "K")

    def node(state: State) -> State:
        receiver.send("mail")
        return {"log": [book("entry")]}

    return chain(saver, node)


def own_key(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Makes a key of its own at each attempt."""

    @effect(idempotent=True)
    def pay(what: str, *, idempotency_key: str) -> str:
        receiver.send(what, key=str(uuid.uuid4()), once=True)
        return what

    return chain(saver, lambda s: {"log": [pay("invoice")]})


def liar(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Declares a receiver to deduplicate that does not."""

    @effect(idempotent=True)
    def pay(what: str, *, idempotency_key: str) -> str:
        receiver.send(what, key=idempotency_key)
        return what

    return chain(saver, lambda s: {"log": [pay("invoice")]})


def blind(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Its lookup never finds anything."""

    @effect(reconcile=lambda call: Absent(), lookup="strong")
    def pay(what: str, *, idempotency_key: str) -> str:
        receiver.send(what, key=idempotency_key)
        return what

    return chain(saver, lambda s: {"log": [pay("invoice")]})


def swallowing(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Takes what it reads from a place that a crash clears."""
    pay = sends(receiver, "K")
    memory: list[str] = []

    def think(state: State) -> State:
        memory.append("invoice")
        return {"log": ["thought"]}

    def act(state: State) -> State:
        return {"log": [pay(what) for what in memory]}

    return chain(saver, think, act)


def other_arguments(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Calls its effect with other arguments when it runs again."""
    pay = sends(receiver, "K")
    return chain(saver, lambda s: {"log": [pay(f"invoice {uuid.uuid4().hex}")]})


_numbers = itertools.count()


def unsteady(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Ends in another state each time, also without a crash."""
    return chain(saver, lambda s: {"log": [next(_numbers)]})


def failing(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Fails without any crash."""

    def node(state: State) -> State:
        raise KeyError("a mistake of its own")

    return chain(saver, node)


def note(state: State) -> State:
    """A pure node."""
    return {"log": ["noted"]}


def only_here(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Fails in a process other than the one that the test runs in."""
    import multiprocessing

    if multiprocessing.parent_process() is not None:
        raise RuntimeError("not in a child")
    send = sends(receiver, "K")
    return chain(saver, lambda s: {"log": [send("one")]})
