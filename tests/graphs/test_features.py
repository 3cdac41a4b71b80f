"""LangGraph's features on our saver, compared with `InMemorySaver`.

A scenario drives graphs and notes what it sees. It is played on the in-memory saver first and
on ours then, sync and async, in each durability mode; both logs have to be equal.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, StateUpdate, interrupt
from tests.graphs.conftest import Stores
from tests.graphs.playing import Config, Player, Scenario, differences

from surefoot import SurefootSaver

SCENARIOS: list[Scenario] = []


def scenario(play: Scenario) -> Scenario:
    """Registers a scenario."""
    SCENARIOS.append(play)
    return play


class Log(TypedDict, total=False):
    x: Annotated[list[Any], operator.add]
    k: Annotated[list[Any], operator.add]
    n: int


class Other(TypedDict, total=False):
    y: Annotated[list[Any], operator.add]


Node = Callable[..., Any]


def says(*words: Any) -> Node:
    """A node that appends words."""
    return lambda state: {"x": [*words]}


def asks(*questions: str, tag: str = "") -> Node:
    """A node that interrupts once for each question."""
    return lambda state: {"x": [(tag, *(interrupt(q) for q in questions))]}


def graph(player: Player | None, edges: str, **nodes: Any) -> Any:
    """Compiles a graph; ``edges`` is like ``"START a, a b c, b END"`` (one source, targets)."""
    compiling = {k[1:]: nodes.pop(k) for k in [*nodes] if k.startswith("_")}
    builder = StateGraph(compiling.pop("schema", Log))
    for name, given in nodes.items():
        node, options = given if isinstance(given, tuple) else (given, {})
        builder.add_node(name, node, **options)
    signs = {"START": START, "END": END}
    for edge in edges.split(","):
        source, *targets = edge.split()
        for target in targets:
            if "+" in source:
                builder.add_edge(source.split("+"), signs.get(target, target))
            else:
                builder.add_edge(signs.get(source, source), signs.get(target, target))
    if player is not None:
        compiling.setdefault("checkpointer", player.saver)
    return builder.compile(**compiling)


def look(player: Player, compiled: Any, config: Config | None = None) -> None:
    """Notes state and history."""
    player.state(compiled, config)
    player.history(compiled, config)


# --- shapes -----------------------------------------------------------------------------------


@scenario
def linear(player: Player) -> None:
    g = graph(player, "START a, a b, b c", a=says("a"), b=says("b"), c=says("c"))
    player.state(g)
    player.invoke(g, {"x": ["in"]})
    look(player, g)


@scenario
def several_turns(player: Player) -> None:
    g = graph(player, "START a, a b", a=says("a"), b=says("b"))
    for turn in range(3):
        player.invoke(g, {"x": [turn]})
    player.invoke(g, None)
    look(player, g)


@scenario
def loop(player: Player) -> None:
    def count(state: Log) -> Log:
        return {"n": state.get("n", 0) + 1, "x": [state.get("n", 0)]}

    builder = StateGraph(Log)
    builder.add_node("count", count)
    builder.add_edge(START, "count")
    builder.add_conditional_edges("count", lambda s: "count" if s["n"] < 5 else END)
    g = builder.compile(checkpointer=player.saver)
    player.invoke(g, {"x": []})
    look(player, g)


@scenario
def conditional_edges(player: Player) -> None:
    builder = StateGraph(Log)
    for name in ("a", "left", "right"):
        builder.add_node(name, says(name))
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", lambda s: "left" if s["x"][0] else "right")
    g = builder.compile(checkpointer=player.saver)
    player.invoke(g, {"x": [1]})
    player.invoke(g, {"x": [0]}, player.config("thread-2"))
    look(player, g)
    look(player, g, player.config("thread-2"))


@scenario
def fan_out_and_join(player: Player) -> None:
    g = graph(
        player,
        "START a b c, a a2, a2+b+c join, join END",
        a=says("a"),
        a2=says("a2"),
        b=says("b"),
        c=says("c"),
        join=says("join"),
    )
    player.invoke(g, {"x": []})
    player.invoke(g, {"x": ["again"]})
    look(player, g)


@scenario
def map_reduce(player: Player) -> None:
    builder = StateGraph(Log)
    builder.add_node("each", lambda s: {"x": [s["n"] * 10]})
    builder.add_node("done", says("done"))
    builder.add_conditional_edges(START, lambda s: [Send("each", {"n": n}) for n in range(5)])
    builder.add_edge("each", "done")
    g = builder.compile(checkpointer=player.saver)
    player.invoke(g, {"x": []})
    look(player, g)


@scenario
def sends_from_a_command(player: Player) -> None:
    builder = StateGraph(Log)
    builder.add_node(
        "a",
        lambda s: Command(
            update={"x": ["a"]}, goto=[Send("b", {"n": 1}), Send("b", {"n": 2}), "c"]
        ),
        destinations=("b", "c"),
    )
    builder.add_node("b", lambda s: {"x": [s["n"]]})
    builder.add_node("c", says("c"))
    builder.add_edge(START, "a")
    g = builder.compile(checkpointer=player.saver)
    player.invoke(g, {"x": []})
    look(player, g)


@scenario
def several_commands(player: Player) -> None:
    g = graph(
        player,
        "START a",
        a=(lambda s: [Command(update={"x": ["1"]}), Command(goto="b")], {"destinations": ("b",)}),
        b=(lambda s: Command(goto=END, update={"x": ["b"]}), {"destinations": (END,)}),
    )
    player.invoke(g, {"x": []})
    player.invoke(g, Command(update={"x": ["given"]}, goto="b"))
    look(player, g)


@scenario
def messages_and_their_removal(player: Player) -> None:
    class Chat(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    def answer(state: Chat) -> dict[str, Any]:
        return {
            "messages": [
                AIMessage(f"answer {len(state['messages'])}", id=f"a{len(state['messages'])}")
            ]
        }

    def trim(state: Chat) -> dict[str, Any]:
        surplus = state["messages"][:-3]
        return {"messages": [RemoveMessage(str(m.id)) for m in surplus]}

    g = graph(player, "START answer, answer trim", _schema=Chat, answer=answer, trim=trim)
    for turn in range(6):
        player.invoke(g, {"messages": [HumanMessage(f"turn {turn}", id=f"h{turn}")]})
    player.invoke(g, {"messages": [HumanMessage("changed", id="h5")]})
    look(player, g)


@scenario
def long_lists_that_grow_shrink_and_change(player: Player) -> None:
    class Items(TypedDict):
        items: list[Any]

    steps: list[Callable[[list[Any]], list[Any]]] = [
        lambda i: [*range(40)],
        lambda i: [*i, 40, 41],
        lambda i: i[:-5],
        lambda i: [*i[:10], "changed", *i[11:]],
        lambda i: [],
        lambda i: [*i, {"deep": [1, (2, 3)]}],
    ]

    def turn(state: Items) -> Items:
        return {"items": steps[state["items"][-1]](state["items"][:-1])}

    g = graph(player, "START turn", _schema=Items, turn=turn)
    for number in range(len(steps)):
        before = g.get_state(player.config()).values.get("items", [])
        player.invoke(g, {"items": [*before, number]})
    look(player, g)


# --- subgraphs --------------------------------------------------------------------------------


@scenario
def subgraph_with_shared_state(player: Player) -> None:
    inner = graph(None, "START i, i j", i=says("i"), j=says("j"))
    g = graph(player, "START a, a sub, sub b", a=says("a"), sub=inner, b=says("b"))
    player.invoke(g, {"x": []})
    player.invoke(g, {"x": ["again"]})
    look(player, g)


@scenario
def subgraph_with_other_state(player: Player) -> None:
    inner = graph(None, "START i", _schema=Other, i=lambda s: {"y": [*s["y"], "i"]})

    def call(state: Log) -> Log:
        return {"x": inner.invoke({"y": ["from outside"]})["y"]}

    g = graph(player, "START call, call b", call=call, b=says("b"))
    player.invoke(g, {"x": []})
    look(player, g)


@scenario
def subgraph_that_keeps_its_own_state(player: Player) -> None:
    inner = graph(
        None, "START i", _checkpointer=True, _schema=Other, i=lambda s: {"y": [len(s["y"])]}
    )

    def call(state: Log) -> Log:
        return {"x": inner.invoke({"y": ["new"]})["y"]}

    g = graph(player, "START call", call=call)
    for turn in range(3):
        player.invoke(g, {"x": [turn]})
    look(player, g)


@scenario
def subgraph_node_that_keeps_its_own_state(player: Player) -> None:
    class Both(TypedDict, total=False):
        x: Annotated[list[Any], operator.add]
        y: Annotated[list[Any], operator.add]

    class Inner(TypedDict, total=False):
        x: Annotated[list[Any], operator.add]
        z: Annotated[list[Any], operator.add]

    inner = graph(
        None,
        "START i",
        _checkpointer=True,
        _schema=Inner,
        i=lambda s: {"z": [len(s["x"])], "x": ["i"]},
    )
    g = graph(player, "START sub", _schema=Both, sub=inner)
    for turn in range(3):
        player.invoke(g, {"x": [turn]})
    look(player, g)
    look(player, g, player.config(checkpoint_ns="sub"))


@scenario
def subgraph_without_checkpoints(player: Player) -> None:
    inner = graph(None, "START i, i j", _checkpointer=False, i=says("i"), j=says("j"))
    g = graph(player, "START a, a sub", a=says("a"), sub=inner)
    player.invoke(g, {"x": []})
    look(player, g)


@scenario
def subgraphs_nested_twice(player: Player) -> None:
    innermost = graph(None, "START k, k l", k=says("k"), l=asks("innermost?", tag="l"))
    inner = graph(None, "START i, i deeper, deeper j", i=says("i"), deeper=innermost, j=says("j"))
    g = graph(player, "START a, a sub, sub b", a=says("a"), sub=inner, b=says("b"))
    player.invoke(g, {"x": []})
    player.state(g, subgraphs=True)
    player.invoke(g, Command(resume="yes"))
    player.state(g, subgraphs=True)
    look(player, g)


@scenario
def same_subgraph_twice_in_one_node(player: Player) -> None:
    inner = graph(
        None, "START i, i j", _schema=Other, i=lambda s: {"y": ["i"]}, j=lambda s: {"y": ["j"]}
    )

    def call(state: Log) -> Log:
        first = inner.invoke({"y": [1]})["y"]
        return {"x": [first, inner.invoke({"y": [2]})["y"]]}

    g = graph(player, "START call", call=call)
    player.invoke(g, {"x": []})
    look(player, g)


@scenario
def same_subgraph_in_parallel(player: Player) -> None:
    inner = graph(None, "START i, i j", i=says("i"), j=asks("go?", tag="j"))
    g = graph(player, "START one two, one+two end", one=inner, two=inner, end=says("end"))
    player.invoke(g, {"x": []})
    snapshot = player.state(g, subgraphs=True)
    first, second = sorted(snapshot.tasks, key=lambda t: str(t.name))
    player.invoke(g, Command(resume={first.interrupts[0].id: "first"}))
    player.state(g, subgraphs=True)
    player.invoke(g, Command(resume={second.interrupts[0].id: "second"}))
    look(player, g)


@scenario
def subgraphs_reached_by_send(player: Player) -> None:
    inner = graph(None, "START i, i j", i=lambda s: {"x": s["k"]}, j=asks("ok?", tag="j"))
    builder = StateGraph(Log)
    builder.add_node("sub", inner)
    builder.add_conditional_edges(
        START, lambda s: [Send("sub", {"k": [n], "x": []}) for n in (1, 2, 3)]
    )
    g = builder.compile(checkpointer=player.saver)
    player.invoke(g, {"x": []})
    snapshot = player.state(g, subgraphs=True)
    player.invoke(
        g, Command(resume={i.id: f"answer {n}" for n, i in enumerate(snapshot.interrupts)})
    )
    look(player, g)


@scenario
def command_to_the_parent(player: Player) -> None:
    inner = graph(
        None,
        "START i",
        i=lambda s: Command(graph=Command.PARENT, goto="after", update={"x": ["from inner"]}),
    )
    g = graph(player, "START sub", sub=(inner, {"destinations": ("after",)}), after=says("after"))
    player.invoke(g, {"x": []})
    look(player, g)


# --- interrupts -------------------------------------------------------------------------------


@scenario
def one_interrupt(player: Player) -> None:
    g = graph(player, "START a, a ask, ask b", a=says("a"), ask=asks("sure?"), b=says("b"))
    player.invoke(g, {"x": []})
    look(player, g)
    player.invoke(g, Command(resume={"answer": True}))
    look(player, g)


@scenario
def interrupt_looked_at_by_a_run_without_an_answer(player: Player) -> None:
    g = graph(player, "START ask, ask b", ask=asks("sure?"), b=says("b"))
    player.invoke(g, {"x": []})
    player.invoke(g, None)
    player.state(g)
    player.invoke(g, Command(resume="yes"))
    look(player, g)


@scenario
def interrupt_overrun_by_new_input(player: Player) -> None:
    g = graph(player, "START ask, ask b", ask=asks("sure?"), b=says("b"))
    player.invoke(g, {"x": ["one"]})
    player.invoke(g, {"x": ["two"]})
    look(player, g)
    player.invoke(g, Command(resume="yes", update={"x": ["with the answer"]}))
    look(player, g)


@scenario
def several_interrupts_in_one_node(player: Player) -> None:
    g = graph(player, "START ask, ask b", ask=asks("one?", "two?", "three?"), b=says("b"))
    player.invoke(g, {"x": []})
    for answer in ("1", None, [3]):
        player.state(g)
        player.invoke(g, Command(resume=answer))
    look(player, g)


@scenario
def parallel_interrupts_answered_one_by_one(player: Player) -> None:
    g = graph(
        player,
        "START p q r, p+q+r end",
        p=asks("p?", tag="p"),
        q=asks("q?", "q again?", tag="q"),
        r=says("r"),
        end=says("end"),
    )
    player.invoke(g, {"x": []})
    for answer in ("one", "two", "three"):
        pending = sorted(player.state(g).interrupts, key=lambda i: str(i.value))
        player.invoke(g, Command(resume={pending[0].id: answer}))
    look(player, g)


@scenario
def interrupt_in_a_subgraph(player: Player) -> None:
    inner = graph(None, "START i, i ask, ask j", i=says("i"), ask=asks("inside?"), j=says("j"))
    g = graph(player, "START sub, sub b", sub=inner, b=says("b"))
    player.invoke(g, {"x": []})
    player.state(g, subgraphs=True)
    player.invoke(g, Command(resume="yes"))
    player.state(g, subgraphs=True)
    look(player, g)


@scenario
def interrupt_around_a_called_subgraph(player: Player) -> None:
    inner = graph(
        None,
        "START i, i ask",
        _schema=Other,
        i=lambda s: {"y": ["i"]},
        ask=lambda s: {"y": [interrupt("in?")]},
    )

    def call(state: Log) -> Log:
        before = interrupt("before?")
        inside = inner.invoke({"y": []})["y"]
        return {"x": [before, inside, interrupt("after?")]}

    g = graph(player, "START call", call=call)
    player.invoke(g, {"x": []})
    for answer in ("1", "2", "3"):
        player.state(g, subgraphs=True)
        player.invoke(g, Command(resume=answer))
    look(player, g)


@scenario
def static_interrupts(player: Player) -> None:
    g = graph(
        player,
        "START a, a b, b c",
        a=says("a"),
        b=says("b"),
        c=says("c"),
        _interrupt_before=["b"],
        _interrupt_after=["b"],
    )
    player.invoke(g, {"x": []})
    player.state(g)
    player.invoke(g, None)
    player.state(g)
    player.invoke(g, None)
    look(player, g)


@scenario
def static_interrupt_asked_by_the_caller(player: Player) -> None:
    g = graph(player, "START a, a b, b c", a=says("a"), b=says("b"), c=says("c"))
    player.invoke(g, {"x": []}, interrupt_before="*")
    player.invoke(g, None, interrupt_before="*")
    player.state(g)
    player.invoke(g, None)
    look(player, g)


@scenario
def static_interrupt_in_a_subgraph(player: Player) -> None:
    inner = graph(None, "START i, i j", i=says("i"), j=says("j"), _interrupt_before=["j"])
    g = graph(player, "START sub, sub b", sub=inner, b=says("b"))
    player.invoke(g, {"x": []})
    player.state(g, subgraphs=True)
    player.invoke(g, None)
    look(player, g)


# --- updates and time travel ------------------------------------------------------------------


@scenario
def update_state(player: Player) -> None:
    g = graph(
        player, "START a, a b, b c", a=says("a"), b=says("b"), c=says("c"), _interrupt_before=["c"]
    )
    player.update(g, {"x": ["before anything"]}, as_node=START)
    player.state(g)
    player.invoke(g, {"x": ["in"]})
    player.update(g, {"x": ["as b"]}, as_node="b")
    player.state(g)
    player.update(g, {"x": ["as a"]}, as_node="a")
    player.state(g)
    player.invoke(g, None)
    player.update(g, None, as_node=END)
    player.state(g)
    player.update(g, {"x": ["at the end"]}, as_node="c")
    look(player, g)


@scenario
def update_of_an_older_checkpoint(player: Player) -> None:
    g = graph(player, "START a, a b, b c", a=says("a"), b=says("b"), c=says("c"))
    player.invoke(g, {"x": ["in"]})
    history = player.history(g)
    at_b = next((s for s in history if s.next == ("b",)), None)
    if at_b is None:
        return  # nothing in between is stored in this mode
    forked = player.update(g, {"x": ["forked"]}, dict(at_b.config))
    player.state(g)
    player.state(g, forked)
    player.invoke(g, None, forked)
    look(player, g)
    player.invoke(g, {"x": ["next turn"]})
    look(player, g)


@scenario
def update_inside_a_subgraph(player: Player) -> None:
    inner = graph(None, "START i, i j", i=says("i"), j=says("j"), _interrupt_before=["j"])
    g = graph(player, "START sub, sub b", sub=inner, b=says("b"))
    player.invoke(g, {"x": []})
    (inside,) = player.state(g, subgraphs=True).tasks
    after = player.update(g, {"x": ["inside"]}, dict(inside.state.config))
    player.state(g, subgraphs=True)
    player.note("parts", sorted(after["configurable"]))
    player.invoke(g, None)
    look(player, g)


@scenario
def bulk_update(player: Player) -> None:
    g = graph(player, "START a, a b, b c", a=says("a"), b=says("b"), c=says("c"))
    player.bulk_update(
        g,
        [
            [StateUpdate({"x": ["in"]}, START)],
            [StateUpdate({"x": ["a1"]}, "a"), StateUpdate({"x": ["a2"]}, "a")],
            [StateUpdate({"x": ["b"]}, "b")],
        ],
    )
    look(player, g)
    player.invoke(g, None)
    look(player, g)


@scenario
def time_travel(player: Player) -> None:
    g = graph(player, "START a, a b, b c", a=says("a"), b=says("b"), c=says("c"))
    player.invoke(g, {"x": ["one"]})
    history = player.history(g)
    for snapshot in history[:-1]:
        player.invoke(g, None, dict(snapshot.config))
    look(player, g)
    player.invoke(g, {"x": ["two"]})
    look(player, g)
    for snapshot in history:
        player.state(g, dict(snapshot.config))


@scenario
def time_travel_with_new_input(player: Player) -> None:
    g = graph(player, "START a, a b", a=says("a"), b=says("b"))
    player.invoke(g, {"x": ["one"]})
    player.invoke(g, {"x": ["two"]})
    first = next(s for s in player.history(g) if "two" not in s.values.get("x", []))
    player.invoke(g, {"x": ["instead of two"]}, dict(first.config))
    look(player, g)


@scenario
def time_travel_to_before_an_interrupt(player: Player) -> None:
    g = graph(player, "START a, a ask, ask b", a=says("a"), ask=asks("sure?"), b=says("b"))
    player.invoke(g, {"x": []})
    player.invoke(g, Command(resume="first"))
    asked = next((s for s in player.history(g) if s.next == ("ask",)), None)
    if asked is None:
        return
    player.invoke(g, Command(resume="second"), dict(asked.config))
    player.state(g)
    player.invoke(g, None, dict(asked.config))
    player.state(g)
    player.invoke(g, Command(resume="third"))
    look(player, g)


@scenario
def time_travel_into_a_subgraph(player: Player) -> None:
    inner = graph(None, "START i, i ask, ask j", i=says("i"), ask=asks("inside?"), j=says("j"))
    g = graph(player, "START a, a sub, sub b", a=says("a"), sub=inner, b=says("b"))
    player.invoke(g, {"x": []})
    (inside,) = player.state(g, subgraphs=True).tasks
    player.invoke(g, Command(resume="first"))
    player.state(g)
    player.invoke(g, None, dict(inside.state.config))
    look(player, g)


@scenario
def history_in_pieces(player: Player) -> None:
    g = graph(player, "START a, a b", a=says("a"), b=says("b"))
    config = {**player.config(), "metadata": {"who": "x", "dotted.key": 1}}
    player.invoke(g, {"x": [1]}, config)
    player.invoke(g, {"x": [2]}, {**player.config(), "metadata": {"who": "y"}})
    everything = player.history(g)
    player.history(g, limit=2)
    player.history(g, limit=0)
    player.history(g, filter={"who": "x"})
    player.history(g, filter={"dotted.key": 1})
    player.history(g, filter={"source": "loop", "step": 1})
    player.history(g, filter={"who": "nobody"})
    player.history(g, before=everything[len(everything) // 2].config)
    player.history(g, before=everything[0].config, limit=1, filter={"source": "input"})


# --- the functional API -----------------------------------------------------------------------


@scenario
def functional_with_previous(player: Player) -> None:
    @entrypoint(checkpointer=player.saver)
    def flow(given: int, *, previous: Any) -> Any:
        return entrypoint.final(value=given * 2, save=[*(previous or []), given])

    for given in (1, 2, 3):
        player.invoke(flow, given)
    look(player, flow)


@scenario
def functional_with_tasks_and_interrupts(player: Player) -> None:
    ran: list[int] = []

    @task
    def double(given: int) -> int:
        ran.append(given)
        return given * 2

    @entrypoint(checkpointer=player.saver)
    def flow(given: int) -> Any:
        waiting = [double(n) for n in range(given)]
        done = [w.result() for w in waiting]
        return [done, interrupt("one?"), double(100).result(), interrupt("two?")]

    player.invoke(flow, 4)
    player.state(flow)
    player.invoke(flow, Command(resume="first"))
    player.invoke(flow, Command(resume="second"))
    look(player, flow)
    player.note("ran", sorted(ran))


@scenario
def functional_task_that_fails_once(player: Player) -> None:
    ran: list[str] = []

    @task
    def good() -> str:
        ran.append("good")
        return "good"

    @task
    def bad() -> str:
        ran.append("bad")
        if ran.count("bad") == 1:
            raise ValueError("first time")
        return "bad"

    @entrypoint(checkpointer=player.saver)
    def flow(given: int) -> Any:
        return [good().result(), bad().result()]

    player.invoke(flow, 1)
    player.invoke(flow, None)
    player.note("ran", ran)
    look(player, flow)


@scenario
def functional_that_calls_a_graph(player: Player) -> None:
    inner = graph(None, "START i", i=says("i"))

    @entrypoint(checkpointer=player.saver)
    def flow(given: int) -> Any:
        return [inner.invoke({"x": [given]}), interrupt("then?")]

    player.invoke(flow, 1)
    player.invoke(flow, Command(resume="ok"))
    look(player, flow)


# --- errors, retries, limits ------------------------------------------------------------------


@scenario
def error_then_resume(player: Player) -> None:
    ran: list[str] = []

    def fails_twice(state: Log) -> Log:
        ran.append("f")
        if len(ran) < 3:
            raise ValueError(f"try {len(ran)}")
        return {"x": ["at last"]}

    g = graph(player, "START a, a f, f b", a=says("a"), f=fails_twice, b=says("b"))
    player.invoke(g, {"x": []})
    player.state(g)
    player.invoke(g, None)
    player.state(g)
    player.invoke(g, None)
    look(player, g)


@scenario
def error_in_a_fan_out_then_resume(player: Player) -> None:
    ran: list[str] = []

    def works(state: Log) -> Log:
        ran.append("works")
        return {"x": ["works"]}

    def fails(state: Log) -> Log:
        ran.append("fails")
        if ran.count("fails") == 1:
            raise ValueError("once")
        return {"x": ["works again"]}

    # The finished branch is in an earlier step of its own, so that it always ends first.
    g = graph(
        player, "START works, works fails, fails end", works=works, fails=fails, end=says("end")
    )
    player.invoke(g, {"x": []})
    player.invoke(g, None)
    player.note("ran", ran)
    look(player, g)


@scenario
def error_then_new_input(player: Player) -> None:
    ran: list[str] = []

    def fails_once(state: Log) -> Log:
        ran.append("f")
        if len(ran) == 1:
            raise ValueError("once")
        return {"x": ["fine"]}

    g = graph(player, "START a, a f", a=says("a"), f=fails_once)
    player.invoke(g, {"x": ["one"]})
    player.invoke(g, {"x": ["two"]})
    look(player, g)


@scenario
def error_in_a_subgraph_then_resume(player: Player) -> None:
    ran: list[str] = []

    def fails_once(state: Log) -> Log:
        ran.append("f")
        if len(ran) == 1:
            raise ValueError("once")
        return {"x": ["fine"]}

    inner = graph(None, "START i, i f", i=says("i"), f=fails_once)
    g = graph(player, "START sub, sub b", sub=inner, b=says("b"))
    player.invoke(g, {"x": []})
    player.state(g, subgraphs=True)
    player.invoke(g, None)
    look(player, g)


@scenario
def resume_while_the_error_is_held(player: Player) -> None:
    ran: list[str] = []

    def fails_once(state: Log) -> Log:
        ran.append("f")
        if len(ran) == 1:
            raise ValueError("once")
        return {"x": ["fine"]}

    g = graph(player, "START a, a f", a=says("a"), f=fails_once)
    run = (lambda *a: player.run(g.ainvoke(*a))) if player.asynchronous else g.invoke
    try:
        run({"x": []}, player.config())
    except ValueError:
        player.invoke(g, None)
    look(player, g)


@scenario
def recursion_limit_then_more(player: Player) -> None:
    g = graph(player, "START a, a b, b c, c d", a=says("a"), b=says("b"), c=says("c"), d=says("d"))
    player.invoke(g, {"x": []}, {**player.config(), "recursion_limit": 2})
    player.state(g)
    player.invoke(g, None, {**player.config(), "recursion_limit": 10})
    look(player, g)


@scenario
def recursion_error_held_while_resuming(player: Player) -> None:
    g = graph(player, "START a, a b, b c", a=says("a"), b=says("b"), c=says("c"))
    run = (lambda *a: player.run(g.ainvoke(*a))) if player.asynchronous else g.invoke
    try:
        run({"x": []}, {**player.config(), "recursion_limit": 1})
    except GraphRecursionError:
        player.invoke(g, None, {**player.config(), "recursion_limit": 10})
    look(player, g)


@scenario
def retry_policy(player: Player) -> None:
    ran: list[str] = []

    def fails_twice(state: Log) -> Log:
        ran.append("f")
        if len(ran) < 3:
            raise ValueError("again")
        return {"x": ["third time"]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False, retry_on=ValueError)
    g = graph(player, "START f, f b", f=(fails_twice, {"retry_policy": policy}), b=says("b"))
    player.invoke(g, {"x": []})
    look(player, g)


@scenario
def error_handler(player: Player) -> None:
    def fails(state: Log) -> Log:
        raise ValueError("handled")

    g = graph(
        player,
        "START f o, f b",
        f=(fails, {"error_handler": lambda s: {"x": ["handler"]}}),
        o=says("o"),
        b=says("b"),
    )
    player.invoke(g, {"x": []})
    look(player, g)
    player.invoke(g, {"x": ["again"]})
    look(player, g)


@scenario
def cache_policy(player: Player) -> None:
    ran: list[int] = []

    def costly(state: Log) -> Log:
        ran.append(1)
        return {"x": ["costly"]}

    g = graph(
        player,
        "START a, a costly",
        a=lambda s: {"n": 7},
        costly=(costly, {"cache_policy": CachePolicy(key_func=lambda s: b"same")}),
        _cache=InMemoryCache(),
    )
    player.invoke(g, {"x": [1]})
    player.invoke(g, {"x": [2]})
    player.invoke(g, {"x": [3]}, player.config("thread-2"))
    player.note("ran", len(ran))
    look(player, g)


@scenario
def drained_then_resumed(player: Player) -> None:
    from langgraph.runtime import RunControl

    control = RunControl()

    def drains(state: Log) -> Log:
        control.request_drain("deploy")
        return {"x": ["drains"]}

    g = graph(player, "START a, a d, d b", a=says("a"), d=drains, b=says("b"))
    player.invoke(g, {"x": []}, control=control)
    player.state(g)
    player.invoke(g, None)
    look(player, g)


@scenario
def stream_abandoned_then_resumed(player: Player) -> None:
    g = graph(player, "START a, a b, b c", a=says("a"), b=says("b"), c=says("c"))

    async def start() -> None:
        chunks = g.astream({"x": []}, player.config(), durability="sync")
        player.note("chunk", await chunks.__anext__())
        await chunks.aclose()

    if player.asynchronous:
        player.run(start())
    else:
        chunks = g.stream({"x": []}, player.config(), durability="sync")
        player.note("chunk", next(chunks))
        chunks.close()
    player.invoke(g, None)
    player.note("values", g.get_state(player.config()).values["x"].count("c"))


# --- streams ----------------------------------------------------------------------------------


@scenario
def every_stream_mode(player: Player) -> None:
    from langgraph.types import StreamWriter

    def custom(state: Log, writer: StreamWriter) -> Log:
        writer({"half": "way"})
        return {"x": ["custom"]}

    inner = graph(None, "START i, i c", i=says("i"), c=custom)
    modes = ["values", "updates", "custom", "checkpoints", "tasks", "debug", "messages"]
    for number, mode in enumerate([*modes, modes[:4]]):
        g = graph(player, "START a, a sub, sub b", a=says("a"), sub=inner, b=says("b"))
        thread = player.config(f"thread-{number}")
        player.stream(g, {"x": []}, thread, stream_mode=mode)
        player.stream(g, {"x": ["more"]}, thread, stream_mode=mode, subgraphs=True)


@scenario
def streams_with_interrupts(player: Player) -> None:
    inner = graph(None, "START i, i ask", i=says("i"), ask=asks("ok?"))
    g = graph(player, "START sub, sub b", sub=inner, b=says("b"))
    for mode in ("values", "updates", "debug", "checkpoints"):
        thread = player.config(mode)
        player.stream(g, {"x": []}, thread, stream_mode=mode, subgraphs=True)
        player.stream(g, Command(resume="yes"), thread, stream_mode=mode, subgraphs=True)


# --- DeltaChannel -----------------------------------------------------------------------------


def _apply(value: list[Any], writes: Any) -> list[Any]:
    return [*value, *(item for write in writes for item in write)]


def _delta_graph(player: Player, frequency: int, **nodes: Any) -> Any:
    channel = DeltaChannel(_apply, list, snapshot_frequency=frequency)
    # Not a class: its annotation could not be evaluated in this scope.
    delta: Any = TypedDict("delta", {"x": Annotated[list, channel]})
    return graph(player, "START a, a b, b c", _schema=delta, **nodes)


def _delta(player: Player, frequency: int) -> None:
    g = _delta_graph(player, frequency, a=says("a"), b=says("b"), c=asks("c?"))
    for turn in range(3):
        player.invoke(g, {"x": [turn]})
        player.state(g)
        player.invoke(g, Command(resume=turn))
    look(player, g)
    player.update(g, {"x": ["updated"]}, as_node="a")
    player.invoke(g, None)
    player.invoke(g, Command(resume="after the update"))
    history = player.history(g)
    older = next((s for s in history[4:] if s.next == ("b",)), None)
    if older is not None:
        player.invoke(g, None, dict(older.config))
        player.invoke(g, Command(resume="after the fork"))
    look(player, g)


@scenario
def delta_channel_with_few_snapshots(player: Player) -> None:
    _delta(player, 1_000)


@scenario
def delta_channel_with_some_snapshots(player: Player) -> None:
    _delta(player, 3)


@scenario
def delta_channel_with_a_snapshot_each_step(player: Player) -> None:
    _delta(player, 1)


# --- graphs inside nodes ----------------------------------------------------------------------


@scenario
def graph_on_another_thread_inside_a_node(player: Player) -> None:
    inner = graph(player, "START i, i j", i=says("i"), j=says("j"))

    def call(state: Log) -> Log:
        return {"x": inner.invoke({"x": []}, player.config("inner"))["x"]}

    g = graph(player, "START call, call b", call=call, b=says("b"))
    player.invoke(g, {"x": []})
    player.invoke(g, {"x": []})
    look(player, g)
    look(player, inner, player.config("inner"))


@scenario
def looks_and_updates_of_another_thread_inside_a_node(player: Player) -> None:
    inner = graph(player, "START i", i=says("i"))

    def call(state: Log) -> Log:
        inner.update_state(player.config("inner"), {"x": ["updated"]}, as_node="i")
        own = g.get_state(player.config()).values.get("x", [])
        return {"x": [inner.get_state(player.config("inner")).values["x"], len(own)]}

    g = graph(player, "START a, a call", a=says("a"), call=call)
    for _ in range(2):
        player.invoke(g, {"x": []}, durability="sync")
    look(player, g)


# --- the comparison ---------------------------------------------------------------------------


def _play(play: Scenario, player: Player) -> list[Any]:
    try:
        play(player)
    finally:
        player.close()
    assert player.log, "a scenario that notes nothing proves nothing"
    return player.log


def _compare(play: Scenario, saver: SurefootSaver, *, asynchronous: bool, durability: str) -> None:
    ours = Player(saver, asynchronous=asynchronous, durability=durability)
    # A save in the background may store what a later step has changed already (the set of a
    # join), so there the model saves before it goes on.
    model = "sync" if play is fan_out_and_join and durability == "async" else durability
    theirs = Player(InMemorySaver(), asynchronous=asynchronous, durability=model)
    expected, found = _play(play, theirs), _play(play, ours)
    told = [*differences(expected, found)]
    assert not told, "\n".join(told[:20])


def _name(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("play", SCENARIOS, ids=_name)
def test_like_memory(play: Scenario, asynchronous: bool, durability: str, stores: Stores) -> None:
    _compare(play, stores.open(), asynchronous=asynchronous, durability=durability)


@pytest.mark.postgres
@pytest.mark.parametrize("play", SCENARIOS, ids=_name)
def test_like_memory_on_postgres(play: Scenario, postgres_stores: Stores) -> None:
    """Every second scenario sync, the others async."""
    saver = postgres_stores.open(tenant=uuid.uuid4().hex)
    asynchronous = SCENARIOS.index(play) % 2 == 1
    _compare(play, saver, asynchronous=asynchronous, durability="async")
    saver.close()
