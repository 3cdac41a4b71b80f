"""Graphs that are killed: what they do, how they are driven on, and what must have happened.

A workload runs in two colours (sync and async nodes) against any receiver; its final state and
its number of charges do not depend on how often it was interrupted.
"""

from __future__ import annotations

import asyncio
import json
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypedDict

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

from surefoot import Absent, Committed, NotSent, Unknown, effect
from surefoot.langgraph.effects import EffectCall

__all__ = [
    "DONE",
    "FAILING",
    "WORKLOADS",
    "Graph",
    "LostAnswer",
    "Move",
    "Pay",
    "Receiver",
    "State",
    "Stumble",
    "Workload",
    "go_on",
    "invoke",
    "linear",
    "make",
    "next_input",
    "note",
    "shown",
    "tool_calls",
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


class LostAnswer(ConnectionError):
    """The receiver has executed, and its answer was lost."""


class Pay:
    """The effects of one process: one per class, in one colour and form, on one receiver.

    Forms: ``function`` calls an effect inside a node, ``node`` makes a node that pays once the
    effect itself, ``tool`` calls through a `ToolNode`, several calls as one message.

    Attributes:
        before_failing: What the failing branch of `failing` waits for; None when it shall not
            fail.
        trouble: What goes wrong with a payment at its first try in this process: ``not sent`` or
            ``answer lost``.
    """

    def __init__(
        self,
        receiver: Receiver,
        thread: str,
        *,
        is_async: bool,
        settling: float = 0.0,
        form: str = "function",
    ) -> None:
        self.thread = thread
        self.is_async = is_async
        self.form = form
        self.before_failing: Callable[[], object] | None = None
        self.trouble: Mapping[str, str] = {}
        self._receiver = receiver
        self._settling = settling
        self._tried: set[str] = set()
        self._lock = threading.Lock()
        self._effects = {kind: self._effect(kind, self._body(kind)) for kind in MODES}
        if form == "tool":
            self._tools = ToolNode(
                [tool(f"pay_{kind.lower()}")(made) for kind, made in self._effects.items()]
            )

    def _effect(
        self,
        kind: str,
        body: Callable[..., Any],
        returned: Callable[[Any], Any] | None = None,
        **more: Any,
    ) -> Callable[..., Any]:
        """The effect of a class; ``returned`` makes its result of what a lookup finds."""

        def lookup(call: EffectCall) -> Any:
            matches = self._receiver.find(call.key)
            if len(matches) > 1:
                return Unknown("several")
            if not matches:
                return Absent()
            return Committed(matches[0], *([returned(matches[0])] if returned else []))

        async def alookup(call: EffectCall) -> Any:
            return await asyncio.to_thread(lookup, call)

        if kind == "K":
            return effect(name="pay_k", idempotent=True, **more)(body)
        if kind == "N":
            return effect(name="pay_n", **more)(body)
        return effect(
            name="pay_l",
            reconcile=alookup if self.is_async else lookup,
            compare=["invoice"],
            settling=self._settling,
            lookup="strong",
            **more,
        )(body)

    def _body(self, kind: str) -> Callable[..., Any]:
        def pay(invoice: str, amount: int, *, idempotency_key: str) -> dict[str, Any]:
            """Pays an invoice."""
            return self._charge(kind, invoice, idempotency_key)

        async def apay(invoice: str, amount: int, *, idempotency_key: str) -> dict[str, Any]:
            """Pays an invoice."""
            return await asyncio.to_thread(self._charge, kind, invoice, idempotency_key)

        return apay if self.is_async else pay

    def _charge(self, kind: str, invoice: str, key: str) -> dict[str, Any]:
        trouble = self.trouble.get(invoice.rpartition("/")[2])
        if trouble is not None and not self.first(invoice):
            trouble = None
        if trouble == "not sent":
            raise NotSent
        paid = self._receiver.charge(MODES[kind], invoice, key)
        if trouble == "answer lost":
            raise LostAnswer
        return paid

    def first(self, what: str) -> bool:
        """True the first time in this process."""
        with self._lock:
            known = what in self._tried
            self._tried.add(what)
        return not known

    def invoice(self, what: str) -> str:
        """An invoice of this thread."""
        return f"{self.thread}/{what}"

    def __call__(self, kind: str, what: str) -> Any:
        """Pays; gives the result, or an awaitable of it in the async colour."""
        if self.form != "tool":
            return self._effects[kind](self.invoice(what), 700)
        return self._first_of((kind, what)) if self.is_async else self._by_tools((kind, what))[0]

    def node(self, *calls: tuple[str, str]) -> Callable[[Any], Any]:
        """A node that pays these: one after the other, or as the calls of one message."""
        if self.form == "node" and len(calls) == 1:
            return self._node_effect(*calls[0])

        def run(state: State) -> State:
            if self.form == "tool":
                return {"paid": self._by_tools(*calls)}
            return {"paid": [self(kind, what) for kind, what in calls]}

        async def arun(state: State) -> State:
            if self.form == "tool":
                return {"paid": await self._aby_tools(*calls)}
            return {"paid": [await self(kind, what) for kind, what in calls]}

        return arun if self.is_async else run

    def _node_effect(self, kind: str, what: str) -> Callable[..., Any]:
        invoice = self.invoice(what)

        def node(state: State, *, idempotency_key: str) -> State:
            return {"paid": [self._charge(kind, invoice, idempotency_key)]}

        async def anode(state: State, *, idempotency_key: str) -> State:
            paid = await asyncio.to_thread(self._charge, kind, invoice, idempotency_key)
            return {"paid": [paid]}

        def inputs(state: State) -> dict[str, Any]:
            return {"invoice": invoice, "notes": state.get("notes", [])}

        return self._effect(
            kind,
            anode if self.is_async else node,
            lambda found: {"paid": [found]},
            inputs=inputs,
        )

    def _message(self, calls: Sequence[tuple[str, str]]) -> dict[str, Any]:
        return {"messages": [tool_calls(*((k, self.invoice(what)) for k, what in calls))]}

    def _by_tools(self, *calls: tuple[str, str]) -> list[Any]:
        return _contents(self._tools.invoke(self._message(calls)))

    async def _aby_tools(self, *calls: tuple[str, str]) -> list[Any]:
        return _contents(await self._tools.ainvoke(self._message(calls)))

    async def _first_of(self, call: tuple[str, str]) -> Any:
        return (await self._aby_tools(call))[0]

    @property
    def tools(self) -> ToolNode:
        """A node that carries out the tool calls of the last message."""
        return self._tools


def tool_calls(*calls: tuple[str, str]) -> AIMessage:
    """A message that asks for payments, by (class, invoice)."""
    return AIMessage(
        "",
        id=f"asks for {len(calls)}",
        tool_calls=[
            {
                "name": f"pay_{kind.lower()}",
                "args": {"invoice": invoice, "amount": 700},
                "id": f"call-{n}",
            }
            for n, (kind, invoice) in enumerate(calls)
        ],
    )


def _contents(answer: Mapping[str, Any]) -> list[Any]:
    return [json.loads(message.content) for message in answer["messages"]]


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
class Move:
    """What an application does next with a thread.

    Attributes:
        given: What the graph, or the update of its state, is given.
        at: Checkpoint to run from; None goes on from the newest.
        as_node: Updates the state in this node's name instead of running.
    """

    given: Any = None
    at: str | None = None
    as_node: str | None = None


def go_on(graph: Any, config: Any) -> Move | None:
    """The next move of most applications; None when there is nothing left to do."""
    given = next_input(graph.get_state(config))
    return None if given is DONE else Move(given)


class Stumble(Exception):
    """A branch fails by its own fault; the application goes on by what the state says."""


@dataclass(frozen=True)
class Workload:
    """A graph and what it must have done in the end.

    Attributes:
        name: For test ids.
        build: Makes the graph for one process.
        charges: How often each invoice is paid, by (class, what).
        sequential: No two effects at the same time, as long as the form is no tool.
        forms: In which forms it pays.
        next_move: What the application does next, judged by what is stored alone.
        durabilities: The modes that make sense for it; empty for all but ``exit``.
        pauses: Nodes before which the graph returns.
        config: Further settings of its runs.
    """

    name: str
    build: Callable[[Pay], Graph]
    charges: Mapping[tuple[str, str], int]
    sequential: bool = True
    forms: Sequence[str] = ("function",)
    next_move: Callable[[Any, Any], Move | None] = go_on
    durabilities: Sequence[str] = ()
    pauses: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    def compile(self, pay: Pay, saver: Any) -> Any:
        """The graph of one process."""
        return self.build(pay).compile(checkpointer=saver, interrupt_before=list(self.pauses))


ALL_FORMS = ("function", "node", "tool")
INLINE_FORMS = ("function", "tool")

WORKLOADS: Sequence[Workload] = (
    Workload(
        "linear",
        linear,
        {("K", "k1"): 1, ("K", "k2"): 1, ("L", "l"): 1, ("N", "n"): 1},
        forms=ALL_FORMS,
    ),
    Workload(
        "fan-out",
        fan_out,
        {("K", "a"): 1, ("L", "b"): 1, ("N", "c"): 1, ("L", "d"): 1},
        sequential=False,
        forms=ALL_FORMS,
    ),
    Workload(
        "send",
        sends,
        {("K", "send-1"): 2, ("L", "send-2"): 1},
        sequential=False,
        forms=INLINE_FORMS,
    ),
    Workload(
        "subgraph",
        subgraph,
        {("K", "before"): 1, ("L", "inner-l"): 1, ("N", "inner-n"): 1, ("K", "after"): 1},
        forms=ALL_FORMS,
    ),
    Workload(
        "interrupt",
        interrupted,
        {("L", "before-question"): 1, ("K", "after-answer"): 1, ("N", "last"): 1},
        forms=INLINE_FORMS,
    ),
    Workload(
        "loop",
        loop,
        {("K", "round-0"): 1, ("L", "round-1"): 1, ("K", "round-2"): 1},
        forms=INLINE_FORMS,
    ),
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


def make(move: Move, graph: Any, config: Any, *, durability: str, is_async: bool) -> Any:
    """Makes a move in either colour."""
    if move.at is not None:
        config = {**config, "configurable": {**config["configurable"], "checkpoint_id": move.at}}
    if move.as_node is None:
        return invoke(graph, move.given, config, durability=durability, is_async=is_async)
    if is_async:
        return asyncio.run(graph.aupdate_state(config, move.given, as_node=move.as_node))
    return graph.update_state(config, move.given, as_node=move.as_node)


def shown(values: Mapping[str, Any], steps: Sequence[Any], thread: str) -> str:
    """A final state as text: values and steps of the history, without what differs by design."""

    def plain(value: Any) -> Any:
        if isinstance(value, BaseMessage):
            return [value.type, value.content, getattr(value, "tool_calls", None)]
        raise TypeError(f"cannot be compared: {type(value).__name__}")

    return json.dumps([values, steps], sort_keys=True, default=plain).replace(thread, "THREAD")


def invoke(graph: Any, given: Any, config: Any, *, durability: str, is_async: bool) -> Any:
    """Runs a graph in either colour."""
    if is_async:
        return asyncio.run(graph.ainvoke(given, config, durability=durability))
    return graph.invoke(given, config, durability=durability)
