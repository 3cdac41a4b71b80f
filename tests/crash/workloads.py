"""Graphs that are killed: what they do, how they are driven on, and what must have happened.

A workload runs in two colours (sync and async nodes) against any receiver; its final state and
its number of charges do not depend on how often it was interrupted.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from surefoot import Absent, Committed, Unknown, effect
from surefoot.langgraph.effects import EffectCall

__all__ = [
    "DONE",
    "FAILING",
    "WORKLOADS",
    "Pay",
    "Receiver",
    "State",
    "Workload",
    "invoke",
    "linear",
    "next_input",
]

#: Mode of the receiver by class: it deduplicates, it can be asked, neither.
MODES = {"K": "idempotent", "L": "lookup", "N": "neither"}


class State(TypedDict, total=False):
    """State of every workload."""

    paid: Annotated[list[Any], operator.add]
    notes: Annotated[list[str], operator.add]
    round: int


class Receiver(Protocol):
    """The outside world, as one process reaches it."""

    def charge(self, mode: str, invoice: str, key: str) -> dict[str, Any]: ...
    def find(self, key: str) -> list[dict[str, Any]]: ...


class Pay:
    """The effects of one process: one per class, in one colour, on one receiver."""

    def __init__(
        self, receiver: Receiver, thread: str, *, is_async: bool, settling: float = 0.0
    ) -> None:
        self.thread = thread
        self.is_async = is_async
        #: What the failing branch of `failing` waits for; None when it shall not fail.
        self.before_failing: Callable[[], object] | None = None

        def body(kind: str) -> Callable[..., Any]:
            def pay(invoice: str, amount: int, *, idempotency_key: str) -> dict[str, Any]:
                return receiver.charge(MODES[kind], invoice, idempotency_key)

            async def apay(invoice: str, amount: int, *, idempotency_key: str) -> dict[str, Any]:
                return await asyncio.to_thread(
                    receiver.charge, MODES[kind], invoice, idempotency_key
                )

            return apay if is_async else pay

        def lookup(call: EffectCall) -> Any:
            matches = receiver.find(call.key)
            if len(matches) > 1:
                return Unknown("several")
            return Committed(matches[0]) if matches else Absent()

        async def alookup(call: EffectCall) -> Any:
            return await asyncio.to_thread(lookup, call)

        self._effects: Mapping[str, Callable[..., Any]] = {
            "K": effect(name="pay_k", idempotent=True)(body("K")),
            "L": effect(
                name="pay_l",
                reconcile=alookup if is_async else lookup,
                compare=["invoice"],
                settling=settling,
                lookup="strong",
            )(body("L")),
            "N": effect(name="pay_n")(body("N")),
        }

    def invoice(self, what: str) -> str:
        """An invoice of this thread."""
        return f"{self.thread}/{what}"

    def __call__(self, kind: str, what: str) -> Any:
        """Pays; gives the result, or an awaitable of it in the async colour."""
        return self._effects[kind](self.invoice(what), 700)

    def node(self, *calls: tuple[str, str]) -> Callable[[Any], Any]:
        """A node that pays these, one after the other."""

        def run(state: State) -> State:
            return {"paid": [self(kind, what) for kind, what in calls]}

        async def arun(state: State) -> State:
            return {"paid": [await self(kind, what) for kind, what in calls]}

        return arun if self.is_async else run


def note(text: str) -> Callable[[Any], Any]:
    """A pure node."""

    def run(state: State) -> State:
        return {"notes": [text]}

    return run


Graph = StateGraph[State, None, State, State]


def linear(pay: Pay) -> Graph:
    """Pure, K, L, N, then pure; the K node pays twice."""
    graph = StateGraph(State)
    steps = {
        "think": note("thought"),
        "k": pay.node(("K", "k1"), ("K", "k2")),
        "l": pay.node(("L", "l")),
        "n": pay.node(("N", "n")),
        "tell": note("told"),
    }
    before = START
    for name, node in steps.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph


def fan_out(pay: Pay) -> Graph:
    """Four branches at the same time, then a join."""
    graph = StateGraph(State)
    graph.add_node("join", note("joined"))
    for name, kind in (("a", "K"), ("b", "L"), ("c", "N"), ("d", "L")):
        graph.add_node(name, pay.node((kind, name)))
        graph.add_edge(START, name)
        graph.add_edge(name, "join")
    graph.add_edge("join", END)
    return graph


def sends(pay: Pay) -> Graph:
    """Three `Send`s of one node; the first two carry the same payload."""
    graph = StateGraph(State)

    def spread(state: State) -> list[Send]:
        return [Send("worker", {"round": n}) for n in (1, 1, 2)]

    def work(state: State) -> State:
        return {"paid": [pay("L" if state["round"] == 2 else "K", f"send-{state['round']}")]}

    async def awork(state: State) -> State:
        kind = "L" if state["round"] == 2 else "K"
        return {"paid": [await pay(kind, f"send-{state['round']}")]}

    graph.add_node("worker", awork if pay.is_async else work)
    graph.add_node("join", note("joined"))
    graph.add_conditional_edges(START, spread, ["worker"])
    graph.add_edge("worker", "join")
    graph.add_edge("join", END)
    return graph


def subgraph(pay: Pay) -> Graph:
    """A subgraph that pays in its second step, between two payments of its parent."""
    inner = StateGraph(State)
    inner.add_node("think", note("inner"))
    inner.add_node("pay", pay.node(("L", "inner-l")))
    inner.add_node("more", pay.node(("N", "inner-n")))
    inner.add_edge(START, "think")
    inner.add_edge("think", "pay")
    inner.add_edge("pay", "more")
    inner.add_edge("more", END)

    class Inner(TypedDict, total=False):
        inner: dict[str, Any]

    compiled = inner.compile()

    def call(state: State) -> State:
        done = compiled.invoke({"paid": [], "notes": []})
        return {"paid": done["paid"], "notes": done["notes"]}

    async def acall(state: State) -> State:
        done = await compiled.ainvoke({"paid": [], "notes": []})
        return {"paid": done["paid"], "notes": done["notes"]}

    graph = StateGraph(State)
    graph.add_node("before", pay.node(("K", "before")))
    graph.add_node("sub", acall if pay.is_async else call)
    graph.add_node("after", pay.node(("K", "after")))
    graph.add_edge(START, "before")
    graph.add_edge("before", "sub")
    graph.add_edge("sub", "after")
    graph.add_edge("after", END)
    return graph


def interrupted(pay: Pay) -> Graph:
    """A payment, a question, and a payment after its answer, all in one node; then one more."""
    graph = StateGraph(State)

    def ask(state: State) -> State:
        first = pay("L", "before-question")
        answer = interrupt("go on?")
        return {"paid": [first, pay("K", "after-answer")], "notes": [f"answered {answer}"]}

    async def aask(state: State) -> State:
        first = await pay("L", "before-question")
        answer = interrupt("go on?")
        return {"paid": [first, await pay("K", "after-answer")], "notes": [f"answered {answer}"]}

    graph.add_node("ask", aask if pay.is_async else ask)
    graph.add_node("last", pay.node(("N", "last")))
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "last")
    graph.add_edge("last", END)
    return graph


def loop(pay: Pay) -> Graph:
    """The same node three times, each round with another class."""
    graph = StateGraph(State)

    def turn(state: State) -> State:
        at = state.get("round", 0)
        return {"paid": [pay("KLK"[at], f"round-{at}")], "round": at + 1}

    async def aturn(state: State) -> State:
        at = state.get("round", 0)
        return {"paid": [await pay("KLK"[at], f"round-{at}")], "round": at + 1}

    def onward(state: State) -> str:
        return "turn" if state["round"] < 3 else END

    graph.add_node("turn", aturn if pay.is_async else turn)
    graph.add_edge(START, "turn")
    graph.add_conditional_edges("turn", onward, ["turn", END])
    return graph


def failing(pay: Pay) -> Graph:
    """Two branches: one pays, the other fails where it is told to."""
    graph = StateGraph(State)

    def fail(state: State) -> State:
        if pay.before_failing is not None:
            pay.before_failing()
            raise ValueError("this branch fails")
        return {"notes": ["did not fail"]}

    graph.add_node("sibling", pay.node(("K", "sibling")))
    graph.add_node("fail", fail)
    graph.add_edge(START, "sibling")
    graph.add_edge(START, "fail")
    return graph


@dataclass(frozen=True)
class Workload:
    """A graph and what it must have done in the end.

    Attributes:
        name: For test ids.
        build: Makes the graph for one process.
        charges: How often each invoice is paid, by (class, what).
        sequential: No two effects at the same time.
    """

    name: str
    build: Callable[[Pay], Graph]
    charges: Mapping[tuple[str, str], int]
    sequential: bool = True


WORKLOADS: Sequence[Workload] = (
    Workload("linear", linear, {("K", "k1"): 1, ("K", "k2"): 1, ("L", "l"): 1, ("N", "n"): 1}),
    Workload(
        "fan-out",
        fan_out,
        {("K", "a"): 1, ("L", "b"): 1, ("N", "c"): 1, ("L", "d"): 1},
        sequential=False,
    ),
    Workload("send", sends, {("K", "send-1"): 2, ("L", "send-2"): 1}, sequential=False),
    Workload(
        "subgraph",
        subgraph,
        {("K", "before"): 1, ("L", "inner-l"): 1, ("N", "inner-n"): 1, ("K", "after"): 1},
    ),
    Workload(
        "interrupt",
        interrupted,
        {("L", "before-question"): 1, ("K", "after-answer"): 1, ("N", "last"): 1},
    ),
    Workload("loop", loop, {("K", "round-0"): 1, ("L", "round-1"): 1, ("K", "round-2"): 1}),
)

#: Not among those that are enumerated, because it fails.
FAILING = Workload("failing", failing, {("K", "sibling"): 1}, sequential=False)

#: There is nothing left to do.
DONE = object()


def next_input(snapshot: Any) -> Any:
    """What an application gives a graph next, judging by its state alone."""
    if snapshot.config["configurable"].get("checkpoint_id") is None:
        return {"paid": [], "notes": ["begun"]}
    if not snapshot.tasks:  # `next` leaves out tasks whose writes wait to be applied
        return DONE
    return Command(resume="yes") if snapshot.interrupts else None


def invoke(graph: Any, given: Any, config: Any, *, durability: str, is_async: bool) -> Any:
    """Runs a graph in either colour."""
    if is_async:
        return asyncio.run(graph.ainvoke(given, config, durability=durability))
    return graph.invoke(given, config, durability=durability)
