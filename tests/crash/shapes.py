"""More graphs that are killed: what users build beyond the plain ones of `workloads`.

`MATRIX` is all of them. Each names the forms and durability modes in which it is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.messages import AnyMessage
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import RetryPolicy, Send, interrupt
from tests.crash.workloads import (
    ALL_FORMS,
    INLINE_FORMS,
    WORKLOADS,
    Graph,
    LostAnswer,
    Move,
    Pay,
    State,
    Stumble,
    Workload,
    go_on,
    note,
    tool_calls,
)

__all__ = ["MATRIX", "SHAPES", "by_name"]

WIDTH = 16


def wide(pay: Pay) -> Graph:
    """Sixteen branches at the same time, of all classes, then a join."""
    graph = StateGraph(State)
    graph.add_node("join", note("joined"))
    for n in range(WIDTH):
        graph.add_node(f"b{n:02}", pay.node(("KLN"[n % 3], f"b{n:02}")))
        graph.add_edge(START, f"b{n:02}")
        graph.add_edge(f"b{n:02}", "join")
    graph.add_edge("join", END)
    return graph


def twins(pay: Pay) -> Graph:
    """Two equal `Send`s per class; each is meant, so each pays."""
    graph = StateGraph(State)

    def spread(state: State) -> list[Send]:
        return [Send(f"pay-{kind}", {"notes": ["sent"]}) for kind in "KLNKLN"]

    for kind in "KLN":
        graph.add_node(f"pay-{kind}", pay.node((kind, f"twin-{kind}")))
        graph.add_edge(f"pay-{kind}", "join")
    graph.add_node("join", note("joined"))
    graph.add_conditional_edges(START, spread, [f"pay-{kind}" for kind in "KLN"])
    graph.add_edge("join", END)
    return graph


def asking(pay: Pay) -> Graph:
    """A subgraph as a node: it pays, asks, and pays again after the answer."""
    inner = StateGraph(State)

    def ask(state: State) -> State:
        return {"notes": [f"answered {interrupt('go on?')}"]}

    inner.add_node("first", pay.node(("L", "first")))
    inner.add_node("ask", ask)
    inner.add_node("then", pay.node(("N", "then")))
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")
    inner.add_edge("ask", "then")
    inner.add_edge("then", END)
    graph = StateGraph(State)
    graph.add_node("before", pay.node(("K", "before")))
    graph.add_node("sub", inner.compile())
    graph.add_node("after", pay.node(("K", "after")))
    graph.add_edge(START, "before")
    graph.add_edge("before", "sub")
    graph.add_edge("sub", "after")
    graph.add_edge("after", END)
    return graph


def questions(pay: Pay) -> Graph:
    """Three rounds, each pays and then asks; the last node asks twice around a payment."""
    graph = StateGraph(State)

    def turn(state: State) -> State:
        at = state.get("round", 0)
        paid = pay("LKN"[at], f"turn-{at}")
        return {"paid": [paid], "notes": [interrupt(f"round {at}?")], "round": at + 1}

    async def aturn(state: State) -> State:
        at = state.get("round", 0)
        paid = await pay("LKN"[at], f"turn-{at}")
        return {"paid": [paid], "notes": [interrupt(f"round {at}?")], "round": at + 1}

    def twice(state: State) -> State:
        first = interrupt("one?")
        paid = pay("K", "between")
        return {"paid": [paid], "notes": [first, interrupt("two?")]}

    async def atwice(state: State) -> State:
        first = interrupt("one?")
        paid = await pay("K", "between")
        return {"paid": [paid], "notes": [first, interrupt("two?")]}

    def onward(state: State) -> str:
        return "turn" if state["round"] < 3 else "twice"

    graph.add_node("turn", aturn if pay.is_async else turn)
    graph.add_node("twice", atwice if pay.is_async else twice)
    graph.add_edge(START, "turn")
    graph.add_conditional_edges("turn", onward, ["turn", "twice"])
    graph.add_edge("twice", END)
    return graph


class Chat(State, total=False):
    """A state with messages."""

    messages: Annotated[list[AnyMessage], add_messages]


def tools(pay: Pay) -> Graph:
    """A model that asks for four tools at once, two of them equal, and then for one more."""
    first = [("K", "same"), ("L", "other"), ("K", "same"), ("L", "third")]
    rounds = [first, [("N", "again")]]
    graph = StateGraph(Chat)

    def model(state: Chat) -> Chat:
        asked = sum(m.type == "ai" for m in state.get("messages", []))
        calls = [(kind, pay.invoice(what)) for kind, what in rounds[asked]]
        return {"messages": [tool_calls(*calls)], "notes": [f"asked {asked}"]}

    def onward(state: Chat) -> str:
        asked = sum(m.type == "ai" for m in state["messages"])
        return "model" if asked < len(rounds) else END

    graph.add_node("model", model)
    graph.add_node("tools", pay.tools)
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_conditional_edges("tools", onward, ["model", END])
    return graph


def retried(pay: Pay) -> Graph:
    """Every node is tried again: nothing was sent, an answer was lost, the node failed behind.

    In each process anew, so that a crash between two tries meets both. Not as tools: one whose
    outcome is not proven stops the run instead of being tried again in place.
    """
    pay.trouble = {
        "k-unsent": "not sent",
        "k-lost": "answer lost",
        "l-lost": "answer lost",
        "n-unsent": "not sent",
    }
    graph = StateGraph(State)

    def fails_behind(state: State) -> State:
        paid = pay("L", "behind")
        if pay.first("the node behind"):
            raise LostAnswer
        return {"paid": [paid]}

    async def afails_behind(state: State) -> State:
        paid = await pay("L", "behind")
        if pay.first("the node behind"):
            raise LostAnswer
        return {"paid": [paid]}

    steps = {
        "unsent": pay.node(("K", "k-unsent")),
        "lost": pay.node(("K", "k-lost")),
        "asked": pay.node(("L", "l-lost")),
        "behind": afails_behind if pay.is_async else fails_behind,
        "neither": pay.node(("N", "n-unsent")),
    }
    before = START
    for name, node in steps.items():
        policy = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False)
        graph.add_node(name, node, retry_policy=policy)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph


def updated(pay: Pay) -> Graph:
    """A person changes the state between two steps that pay."""
    graph = StateGraph(State)
    graph.add_node("first", pay.node(("L", "first")))
    graph.add_node("second", pay.node(("K", "second")))
    graph.add_node("third", pay.node(("N", "third")))
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", "third")
    graph.add_edge("third", END)
    return graph


def update_before_second(graph: Any, config: Any) -> Move | None:
    """Updates once, where the graph waits before its second step."""
    snapshot = graph.get_state(config)
    if snapshot.next == ("second",) and "updated" not in snapshot.values["notes"]:
        return Move({"notes": ["updated"]}, as_node="first")
    return go_on(graph, config)


def at_exit(pay: Pay) -> Graph:
    """Class K alone: a chain, four branches and a join, for the mode that saves at the end."""
    graph = StateGraph(State)
    graph.add_node("think", note("thought"))
    graph.add_node("pay", pay.node(("K", "one")))
    graph.add_node("both", pay.node(("K", "two"), ("K", "three")))
    graph.add_node("join", note("joined"))
    graph.add_edge(START, "think")
    graph.add_edge("think", "pay")
    graph.add_edge("pay", "both")
    for n in range(4):
        graph.add_node(f"b{n}", pay.node(("K", f"b{n}")))
        graph.add_edge("both", f"b{n}")
        graph.add_edge(f"b{n}", "join")
    graph.add_edge("join", END)
    return graph


def forked(pay: Pay) -> Graph:
    """A chain that pays; when it is done, it is played again from before its first payment."""
    graph = StateGraph(State)
    steps = {
        "think": note("thought"),
        "first": pay.node(("K", "first")),
        "second": pay.node(("L", "second")),
        "third": pay.node(("N", "third")),
        "tell": note("told"),
    }
    before = START
    for name, node in steps.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph


def again_from_first(graph: Any, config: Any) -> Move | None:
    """Goes back once, as soon as the graph is done for the first time."""
    snapshot = graph.get_state(config)
    if snapshot.tasks or snapshot.config["configurable"].get("checkpoint_id") is None:
        return go_on(graph, config)
    history = list(graph.get_state_history(config))
    if sum(not found.tasks for found in history) == 2:
        return None
    before = next(found for found in history if found.next == ("first",))
    return Move(at=before.config["configurable"]["checkpoint_id"])


def unfolded(pay: Pay) -> Graph:
    """Three branches pay, the last one fails; then new input comes and all of them run again."""
    graph = StateGraph(State)

    def fail(state: State) -> State:
        if "again" not in state["notes"]:
            raise Stumble("until there is other input")
        return {"notes": ["did not fail"]}

    # By name, and one after the other: the others have paid before the last one fails.
    for name, kind in (("a", "K"), ("b", "L"), ("c", "N")):
        graph.add_node(name, pay.node((kind, name)))
        graph.add_edge(START, name)
        graph.add_edge(name, "join")
    graph.add_node("d", fail)
    graph.add_edge(START, "d")
    graph.add_edge("d", "join")
    graph.add_node("join", note("joined"))
    graph.add_edge("join", END)
    return graph


def new_input_after_failure(graph: Any, config: Any) -> Move | None:
    """Says something else, instead of going on, when a branch has failed."""
    snapshot = graph.get_state(config)
    failed = any(task.error is not None for task in snapshot.tasks)
    if failed and "again" not in snapshot.values["notes"]:
        return Move({"notes": ["again"]})
    return go_on(graph, config)


SHAPES: Sequence[Workload] = (
    Workload(
        "fork",
        forked,
        {("K", "first"): 1, ("L", "second"): 1, ("N", "third"): 1},
        forms=ALL_FORMS,
        next_move=again_from_first,
    ),
    Workload(
        "unfolded",
        unfolded,
        {("K", "a"): 1, ("L", "b"): 1, ("N", "c"): 1},
        forms=INLINE_FORMS,
        next_move=new_input_after_failure,
        config={"max_concurrency": 1},
    ),
    Workload(
        "wide",
        wide,
        {("KLN"[n % 3], f"b{n:02}"): 1 for n in range(WIDTH)},
        sequential=False,
        forms=ALL_FORMS,
    ),
    Workload(
        "twins",
        twins,
        {(kind, f"twin-{kind}"): 2 for kind in "KLN"},
        sequential=False,
        forms=ALL_FORMS,
    ),
    Workload(
        "asking",
        asking,
        {("K", "before"): 1, ("L", "first"): 1, ("N", "then"): 1, ("K", "after"): 1},
        forms=ALL_FORMS,
    ),
    Workload(
        "questions",
        questions,
        {("L", "turn-0"): 1, ("K", "turn-1"): 1, ("N", "turn-2"): 1, ("K", "between"): 1},
        forms=INLINE_FORMS,
    ),
    Workload(
        "tools",
        tools,
        {("K", "same"): 2, ("L", "other"): 1, ("L", "third"): 1, ("N", "again"): 1},
        sequential=False,
        forms=("tool",),
    ),
    Workload(
        "retry",
        retried,
        {
            ("K", "k-unsent"): 1,
            ("K", "k-lost"): 1,
            ("L", "l-lost"): 1,
            ("L", "behind"): 1,
            ("N", "n-unsent"): 1,
        },
        forms=("function", "node"),
    ),
    Workload(
        "update",
        updated,
        {("L", "first"): 1, ("K", "second"): 1, ("N", "third"): 1},
        forms=ALL_FORMS,
        next_move=update_before_second,
        pauses=["second"],
    ),
    Workload(
        "exit",
        at_exit,
        {("K", what): 1 for what in ("one", "two", "three", "b0", "b1", "b2", "b3")},
        sequential=False,
        forms=ALL_FORMS,
        durabilities=["exit"],
    ),
)

MATRIX: Sequence[Workload] = (*WORKLOADS, *SHAPES)


def by_name(name: str) -> Workload:
    """The workload of this name."""
    return next(w for w in MATRIX if w.name == name)
