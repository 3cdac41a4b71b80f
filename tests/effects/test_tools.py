"""`wrap_tool_call`: every tool call of a message happens once, under its new id as well."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    ToolException,
    tool,
)
from langgraph.channels import DeltaChannel
from langgraph.errors import GraphBubbleUp
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, _messages_delta_reducer
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt
from tests.effects.conftest import Bench

import surefoot
from surefoot import (
    Absent,
    Committed,
    EffectCall,
    NotSent,
    ToolEffects,
    Unknown,
    current_call,
    effect,
    wrap_tool_call,
)
from surefoot.errors import EffectConflict, EffectInDoubt, Fenced, Misconfigured, Misuse
from surefoot.langgraph.orphans import orphans_in

RETRY = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False, retry_on=Exception)


class Kill(BaseException):
    """The process dies, as far as a tool node can tell."""


def calls(*made: tuple[str, dict[str, Any]], prefix: str = "call") -> AIMessage:
    return AIMessage(
        "",
        tool_calls=[
            {"name": name, "args": args, "id": f"{prefix}-{n}"}
            for n, (name, args) in enumerate(made)
        ],
    )


def tool_graph(
    bench: Bench,
    tools: Any,
    effects: ToolEffects,
    message: AIMessage,
    *,
    node: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [message]})
    tool_node = ToolNode(tools, wrap_tool_call=effects, awrap_tool_call=effects.on_loop, **settings)
    builder.add_node("tools", tool_node, **(node or {}))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder.compile(checkpointer=bench.saver)


def results(state: Any) -> list[tuple[str, Any]]:
    return [(m.tool_call_id, m.content) for m in state["messages"] if isinstance(m, ToolMessage)]


Run = Callable[[Any, Any, Any], Any]


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a graph in either colour."""

    def sync(graph: Any, given: Any, config: Any) -> Any:
        return graph.invoke(given, config)

    def on_a_loop(graph: Any, given: Any, config: Any) -> Any:
        return asyncio.run(graph.ainvoke(given, config))

    return sync if request.param == "sync" else on_a_loop


def recorded(bench: Bench, *states: str) -> Callable[[], bool]:
    """True once the effects of the run are recorded in these states."""

    def ready() -> bool:
        effects = [e for s in bench.saver.core.sessions.all() for e in list(s.effects.values())]
        return sorted(e.state for e in effects) == sorted(states)

    return ready


def dies_once(ready: Callable[[], bool], name: str = "breaks") -> BaseTool:
    """A tool beside the others, in which the process dies the first time, when they are done."""
    tries: list[int] = []
    idle = threading.Event()

    @tool(name)
    def breaks() -> str:
        """Breaks."""
        tries.append(1)
        if len(tries) > 1:
            return "fine"
        for _ in range(3_000):
            if ready():
                raise Kill
            idle.wait(0.01)
        return "the others never came so far"

    return breaks


def sender(bench: Bench, fault: Callable[[], Any] = lambda: None, **settings: Any) -> BaseTool:
    """A plain tool that sends something."""

    @tool(**settings)
    def pay(amount: int, currency: str = "EUR") -> str:
        """Pays."""
        bench.world.send(amount, current_call().key)
        fault()
        return f"paid {amount}"

    return pay


def faults(*errors: BaseException | None) -> Callable[[], None]:
    """Raises these one after the other."""
    left = list(errors)

    def fault() -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return fault


# --- once --------------------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("settings", [{}, {"idempotent": True}], ids=["N", "K"])
def test_case_10_two_equal_calls_of_a_message(either: Bench, run: Run, settings: Any) -> None:
    """A sibling kills the process; each call recognises its own effect afterwards."""
    pay, breaks = sender(either), dies_once(recorded(either, "succeeded", "succeeded"))
    effects = wrap_tool_call({"pay": settings}, default="pure")
    message = calls(("pay", {"amount": 3}), ("breaks", {}), ("pay", {"amount": 3}))
    graph, config = tool_graph(either, [pay, breaks], effects, message), either.config()
    with pytest.raises(Kill):
        run(graph, {"messages": []}, config)
    assert either.world.sent == [3, 3]
    assert results(run(graph, None, config)) == [
        ("call-0", "paid 3"),
        ("call-1", "fine"),
        ("call-2", "paid 3"),
    ]
    assert either.world.sent == [3, 3]
    assert len(set(either.world.keys)) == 2


@pytest.mark.optimized
def test_case_18_a_new_id_is_the_same_action(either: Bench, run: Run) -> None:
    """The model runs again and mints another id: the recorded message comes under that id."""
    pay = sender(either)
    effects = wrap_tool_call({"pay": {}}, default="refuse")
    prefixes = iter(["first", "second"])
    tools = ToolNode([pay], wrap_tool_call=effects, awrap_tool_call=effects.on_loop)
    die = faults(Kill())

    def agent(state: MessagesState, config: Any) -> Any:
        message = calls(("pay", {"amount": 5}), prefix=next(prefixes))
        done = tools.invoke({"messages": [message]}, config)
        die()
        return {"messages": [message, *done["messages"]]}

    async def aagent(state: MessagesState, config: Any) -> Any:
        message = calls(("pay", {"amount": 5}), prefix=next(prefixes))
        done = await tools.ainvoke({"messages": [message]}, config)
        die()
        return {"messages": [message, *done["messages"]]}

    agent.__annotations__["config"] = aagent.__annotations__["config"] = RunnableConfig
    builder = StateGraph(MessagesState)
    builder.add_node("agent", RunnableLambda(agent, afunc=aagent))
    builder.add_edge(START, "agent")
    graph, config = builder.compile(checkpointer=either.saver), either.config()
    with pytest.raises(Kill):
        run(graph, {"messages": []}, config)
    assert results(run(graph, None, config)) == [("second-0", "paid 5")]
    assert either.world.sent == [5]


def test_other_arguments_at_the_same_place(bench: Bench, run: Run) -> None:
    """Case 9 for tools; the default of an argument that the model leaves out is not guessed."""
    pay = sender(bench)
    effects = wrap_tool_call({"pay": {}}, default="refuse")
    arguments = iter([{"amount": 5}, {"amount": 6}])
    die = faults(Kill())
    tools = ToolNode([pay], wrap_tool_call=effects, awrap_tool_call=effects.on_loop)

    async def aagent(state: Any, config: Any) -> Any:
        message = calls(("pay", next(arguments)))
        await tools.ainvoke({"messages": [message]}, config)
        die()

    def agent(state: Any, config: Any) -> Any:
        message = calls(("pay", next(arguments)))
        tools.invoke({"messages": [message]}, config)
        die()

    agent.__annotations__["config"] = aagent.__annotations__["config"] = RunnableConfig
    builder = StateGraph(MessagesState)
    builder.add_node("agent", RunnableLambda(agent, afunc=aagent))
    builder.add_edge(START, "agent")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    with pytest.raises(Kill):
        run(graph, {"messages": []}, config)
    with pytest.raises(EffectConflict) as caught:
        run(graph, None, config)
    assert caught.value.differs == ["amount"]
    assert bench.world.sent == [5]


def test_in_a_send_fan_out_and_a_subgraph(either: Bench, run: Run) -> None:
    """As `create_agent` does it: one task for each call."""
    pay, breaks = sender(either), dies_once(recorded(either, "succeeded", "succeeded"))
    effects = wrap_tool_call({"pay": {}}, default="pure")
    message = calls(("pay", {"amount": 3}), ("breaks", {}), ("pay", {"amount": 3}))
    inner = StateGraph(MessagesState)
    inner.add_node("model", lambda state: {"messages": [message]})
    inner.add_node(
        "tools",
        ToolNode([pay, breaks], wrap_tool_call=effects, awrap_tool_call=effects.on_loop),
    )
    inner.add_edge(START, "model")
    inner.add_conditional_edges(
        "model",
        lambda state: [
            Send("tools", [{**call, "type": "tool_call"}])
            for call in state["messages"][-1].tool_calls
        ],
        ["tools"],
    )
    outer = StateGraph(MessagesState)
    outer.add_node("agent", inner.compile())
    outer.add_edge(START, "agent")
    graph, config = outer.compile(checkpointer=either.saver), either.config()
    with pytest.raises(Kill):
        run(graph, {"messages": []}, config)
    assert sorted(results(run(graph, None, config))) == [
        ("call-0", "paid 3"),
        ("call-1", "fine"),
        ("call-2", "paid 3"),
    ]
    assert either.world.sent == [3, 3]
    assert len(set(either.world.keys)) == 2


@pytest.mark.parametrize("key", ["messages", "chat"])
def test_messages_under_any_key(bench: Bench, key: str) -> None:
    """Two equal calls run at the same time, so their place has to be found."""
    from langgraph.graph.message import add_messages

    schema = __import__("typing").TypedDict("Chat", {key: Annotated[list[Any], add_messages]})
    meet = threading.Barrier(2)

    @tool
    def pay(amount: int) -> str:
        """Pays."""
        meet.wait(30)
        return str(bench.world.send(amount))

    effects = wrap_tool_call({"pay": {}}, default="refuse")
    builder = StateGraph(schema)
    message = calls(("pay", {"amount": 1}), ("pay", {"amount": 1}))
    builder.add_node("model", lambda state: {key: [message]})
    builder.add_node("tools", ToolNode([pay], wrap_tool_call=effects, messages_key=key))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph = builder.compile(checkpointer=bench.saver)
    done = graph.invoke({key: []}, bench.config())
    assert [m.content for m in done[key] if isinstance(m, ToolMessage)] == ["1", "1"]


# --- what tools return -------------------------------------------------------------------------


def command(call_id: str) -> Any:
    return Command(
        update={"messages": [ToolMessage("moved", tool_call_id=call_id)], "mood": "good"},
        goto="after",
    )


def pairs(call_id: str) -> Any:
    message = ToolMessage("moved", tool_call_id=call_id)
    return Command(update=[("messages", [message]), ("mood", "good")])


RETURNS: dict[str, Callable[[str], Any]] = {
    "a value": lambda call_id: {"id": 7},
    "a message": lambda call_id: ToolMessage("said", tool_call_id=call_id, artifact={"a": 1}),
    "an error": lambda call_id: ToolMessage("no", tool_call_id=call_id, status="error"),
    "a command": command,
    "a list": lambda call_id: [
        Command(update={"mood": "fine"}),
        ToolMessage("done", tool_call_id=call_id),
    ],
}


@pytest.mark.optimized
@pytest.mark.parametrize("kind", RETURNS)
def test_a_replay_gives_what_the_tool_gave(bench: Bench, run: Run, kind: str) -> None:
    entered: list[int] = []

    @tool
    def act(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Acts."""
        entered.append(1)
        return RETURNS[kind](tool_call_id)

    class Mood(MessagesState):
        mood: str

    def graph_of(second: Any) -> Any:
        effects = wrap_tool_call({"act": {}}, default="pure")
        builder = StateGraph(Mood)
        builder.add_node("model", lambda s: {"messages": [calls(("act", {}), ("other", {}))]})
        builder.add_node(
            "tools",
            ToolNode([act, second], wrap_tool_call=effects, awrap_tool_call=effects.on_loop),
            destinations=("after",),
        )
        builder.add_node("after", lambda s: {"messages": [HumanMessage("went on")]})
        builder.add_edge(START, "model")
        builder.add_edge("model", "tools")
        return builder.compile(checkpointer=bench.saver)

    @tool("other")
    def fine() -> str:
        """Is fine."""
        return "fine"

    plain = run(graph_of(fine), {"messages": []}, bench.config())
    dying = dies_once(recorded(bench, "succeeded"), "other")
    graph, config = graph_of(dying), bench.config()
    with pytest.raises(Kill):
        run(graph, {"messages": []}, config)
    resumed = run(graph, None, config)
    assert len(entered) == 2, "one for each run"
    assert shown(resumed) == shown(plain)


def shown(state: Any) -> Any:
    kept = [
        (m.type, m.content, getattr(m, "status", 0), getattr(m, "artifact", 0))
        for m in state["messages"]
    ]
    return kept, state.get("mood")


# --- errors ------------------------------------------------------------------------------------


HANDLERS: list[Any] = [True, "sorry", ValueError, (ValueError,), lambda e: "sorry", False]


@pytest.mark.optimized
@pytest.mark.parametrize("handle", HANDLERS, ids=["true", "text", "type", "types", "call", "no"])
@pytest.mark.parametrize("settings", [{}, {"idempotent": True}], ids=["N", "K"])
def test_an_error_of_a_tool_is_no_message(
    bench: Bench, run: Run, handle: Any, settings: Any
) -> None:
    """Case 8: told of an error the model would call again, under another key."""
    pay = sender(bench, faults(ValueError("secret")))
    effects = wrap_tool_call({"pay": settings}, default="refuse")
    graph = tool_graph(
        bench,
        [pay],
        effects,
        calls(("pay", {"amount": 1})),
        node={"retry_policy": RETRY},
        handle_tool_errors=handle,
    )
    config = bench.config()
    with pytest.raises(EffectInDoubt, match="raised ValueError") as caught:
        run(graph, {"messages": []}, config)
    assert isinstance(caught.value, GraphBubbleUp)
    assert "secret" not in str(caught.value)
    assert bench.world.sent == [1], "a retry policy does not try it again"
    assert results(graph.get_state(config).values) == []
    if settings:
        assert results(run(graph, None, config)) == [("call-0", "paid 1")]
        assert len(set(bench.world.keys)) == 1
    else:
        with pytest.raises(EffectInDoubt):
            run(graph, None, config)
        assert bench.world.sent == [1]


@pytest.mark.optimized
def test_an_error_that_the_tool_itself_answers(bench: Bench, run: Run) -> None:
    """`handle_tool_error` of a tool makes a message of a `ToolException`; nothing is proven."""
    pay = sender(bench, faults(ToolException("timed out")))
    pay.handle_tool_error = True
    effects = wrap_tool_call({"pay": {}}, default="refuse")
    graph, config = tool_graph(bench, [pay], effects, calls(("pay", {"amount": 1}))), bench.config()
    for given in ({"messages": []}, None):
        with pytest.raises(EffectInDoubt):
            run(graph, given, config)
    assert bench.world.sent == [1]


class Declined(NotSent, ToolException):
    """The card was declined: nothing happened."""


@pytest.mark.parametrize("way", ["the tool", "the tool node", "nobody"])
def test_nothing_happened_may_be_told(bench: Bench, run: Run, way: str) -> None:
    """Case 17: `NotSent` is an ordinary error, and the call may be made again."""
    pay = sender(bench, faults(Declined("declined")))
    pay.handle_tool_error = way == "the tool"
    effects = wrap_tool_call({"pay": {}}, default="refuse")
    message = calls(("pay", {"amount": 1}))
    graph = tool_graph(bench, [pay], effects, message, handle_tool_errors=way == "the tool node")
    config = bench.config()
    if way == "nobody":
        with pytest.raises(NotSent):
            run(graph, {"messages": []}, config)
        assert results(run(graph, None, config)) == [("call-0", "paid 1")]
    else:
        ((call_id, content),) = results(run(graph, {"messages": []}, config))
        assert call_id == "call-0"
        assert "declined" in content


@pytest.mark.parametrize("asked", [("pay", {"amount": "x"}), ("pay", {}), ("nosuch", {})], ids=str)
def test_what_never_reached_the_tool_is_told(bench: Bench, run: Run, asked: Any) -> None:
    pay = sender(bench)
    effects = wrap_tool_call({}, default={})
    graph, config = tool_graph(bench, [pay], effects, calls(asked)), bench.config()
    ((_, content),) = results(run(graph, {"messages": []}, config))
    assert "rror" in content
    assert bench.world.sent == []


@pytest.mark.optimized
@pytest.mark.parametrize("found", ["committed", "absent", "unknown"])
def test_a_lookup_is_asked(either: Bench, run: Run, found: str) -> None:
    def find(call: EffectCall) -> Any:
        evidence = {"amount": call.arguments["amount"]}
        answers = {"committed": Committed(evidence, result="found"), "absent": Absent()}
        return answers.get(found, Unknown())

    pay = sender(either, faults(ConnectionError()))
    effects = wrap_tool_call(
        {"pay": {"reconcile": find, "compare": ["amount"], "settling": 0}}, default="refuse"
    )
    message = calls(("pay", {"amount": 1}))
    graph, config = tool_graph(either, [pay], effects, message), either.config()
    with pytest.raises(EffectInDoubt):
        run(graph, {"messages": []}, config)
    if found == "unknown":
        with pytest.raises(EffectInDoubt):
            run(graph, None, config)
        assert either.world.sent == [1]
        return
    content = {"committed": "found", "absent": "paid 1"}[found]
    assert results(run(graph, None, config)) == [("call-0", content)]
    assert either.world.sent == ([1] if found == "committed" else [1, 1])
    assert len(set(either.world.keys)) == 1


async def test_an_async_tool_with_an_async_lookup(either: Bench) -> None:
    fault = faults(ConnectionError())

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        await asyncio.sleep(0)
        either.world.send(amount, current_call().key)
        fault()
        return "paid"

    async def find(call: EffectCall) -> Any:
        await asyncio.sleep(0)
        return Committed({"amount": 1}, result={"id": 1})

    effects = wrap_tool_call({"pay": {"reconcile": find, "compare": ["amount"]}}, default="pure")
    message = calls(("pay", {"amount": 1}))
    graph, config = tool_graph(either, [pay], effects, message), either.config()
    with pytest.raises(EffectInDoubt):
        await graph.ainvoke({"messages": []}, config)
    assert results(await graph.ainvoke(None, config)) == [("call-0", '{"id": 1}')]
    assert either.world.sent == [1]


def test_a_question_inside_a_tool(bench: Bench, run: Run) -> None:
    """An interrupt is no error; the receiver that deduplicates lets the tool ask."""

    @tool
    def pay(amount: int) -> str:
        """Pays."""
        if interrupt("really?") != "yes":
            return "no"
        bench.world.send(amount, current_call().key)
        return "paid"

    message = calls(("pay", {"amount": 1}))
    effects = wrap_tool_call({"pay": {"idempotent": True}}, default="refuse")
    graph, config = tool_graph(bench, [pay], effects, message), bench.config()
    assert run(graph, {"messages": []}, config)["__interrupt__"][0].value == "really?"
    assert results(run(graph, Command(resume="yes"), config)) == [("call-0", "paid")]
    assert bench.world.sent == [1]
    effects = wrap_tool_call({"pay": {}}, default="refuse")
    with pytest.raises(Misuse, match="ask before the effect"):
        run(tool_graph(bench, [pay], effects, message), {"messages": []}, bench.config())


# --- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("required", [True, False])
def test_a_parameter_for_the_key(bench: Bench, run: Run, required: bool) -> None:
    """Hidden from the model, and what a model makes up for it is not used."""
    if required:

        @tool
        def pay(amount: int, idempotency_key: Annotated[str, InjectedToolArg]) -> str:
            """Pays."""
            return str(bench.world.send(amount, idempotency_key))

    else:

        @tool
        def pay(amount: int, idempotency_key: Annotated[str, InjectedToolArg] = "") -> str:
            """Pays."""
            return str(bench.world.send(amount, idempotency_key))

    effects = wrap_tool_call({"pay": {"idempotent": True}}, default="refuse")
    message = calls(("pay", {"amount": 1, "idempotency_key": "forged"}))
    graph = tool_graph(bench, [pay], effects, message)
    assert results(run(graph, {"messages": []}, bench.config())) == [("call-0", "1")]
    (key,) = bench.world.keys
    assert len(key) == 32


def test_a_key_that_the_model_would_fill_in_is_refused(bench: Bench, run: Run) -> None:
    @tool
    def pay(amount: int, idempotency_key: str) -> str:
        """Pays."""
        return str(bench.world.send(amount))

    effects = wrap_tool_call({"pay": {"idempotent": True}}, default="refuse")
    message = calls(("pay", {"amount": 1, "idempotency_key": "made up"}))
    graph = tool_graph(bench, [pay], effects, message, handle_tool_errors=True)
    with pytest.raises(Misconfigured, match="InjectedToolArg"):
        run(graph, {"messages": []}, bench.config())
    assert bench.world.sent == []


def test_a_tool_class_of_ones_own(either: Bench, run: Run) -> None:
    class Pay(BaseTool):
        name: str = "pay"
        description: str = "Pays."

        def _run(self, amount: int) -> str:
            either.world.send(amount, current_call().key)
            return "paid"

    effects = wrap_tool_call({"pay": {}}, default="refuse")
    message = calls(("pay", {"amount": 1}), ("pay", {"amount": 2}))
    graph = tool_graph(either, [Pay()], effects, message)
    assert results(run(graph, {"messages": []}, either.config())) == [
        ("call-0", "paid"),
        ("call-1", "paid"),
    ]
    assert sorted(either.world.sent) == [1, 2]


def test_there_is_no_current_call_outside() -> None:
    with pytest.raises(Misuse, match="outside"):
        current_call()


# --- who is declared, and where ----------------------------------------------------------------


def test_an_effect_below_a_tool_is_counted_once(bench: Bench, run: Run) -> None:
    """The inner one wins over the default; to declare both is refused."""

    @tool
    @effect
    def pay(amount: int) -> str:
        """Pays."""
        return str(bench.world.send(amount))

    message = calls(("pay", {"amount": 1}))
    graph = tool_graph(bench, [pay], wrap_tool_call(default={}), message)
    config = bench.config()
    assert results(run(graph, {"messages": []}, config)) == [("call-0", "1")]
    twice = tool_graph(
        bench, [pay], wrap_tool_call({"pay": {}}, default="pure"), message, handle_tool_errors=True
    )
    with pytest.raises(Misuse, match="already"):
        run(twice, {"messages": []}, bench.config())
    assert bench.world.sent == [1]


def test_what_is_not_declared_is_refused(bench: Bench, run: Run) -> None:
    @tool
    def pay(amount: int) -> str:
        """Pays."""
        return str(bench.world.send(amount))

    effects = wrap_tool_call({"search": "pure"}, default="refuse")
    message = calls(("pay", {"amount": 1}))
    graph = tool_graph(bench, [pay], effects, message, handle_tool_errors=True)
    with pytest.raises(Misuse, match="nothing is declared"):
        run(graph, {"messages": []}, bench.config())
    assert bench.world.sent == []


async def test_a_sync_wrapper_in_an_async_run_is_refused(bench: Bench) -> None:
    pay = sender(bench)
    builder = StateGraph(MessagesState)
    message = calls(("pay", {"amount": 1}))
    builder.add_node("model", lambda state: {"messages": [message]})
    effects = wrap_tool_call({"pay": {}}, default="refuse")
    builder.add_node("tools", ToolNode([pay], wrap_tool_call=effects, handle_tool_errors=True))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph = builder.compile(checkpointer=bench.saver)
    with pytest.raises(Misuse, match="awrap_tool_call"):
        await graph.ainvoke({"messages": []}, bench.config())
    assert bench.world.sent == []


@pytest.mark.parametrize(
    ("tools", "default", "reason"),
    [
        ({"pay": "effect"}, "pure", "is a mapping"),
        ({"pay": {"idempotant": True}}, "pure", "idempotant"),
        ({"pay": {"compare": ["amount"]}}, "pure", "reconcile="),
        ({"pay": {"inputs": "amount"}}, "pure", "list of names"),
        ({}, {"name": "all"}, "one name"),
        ({}, None, "is a mapping"),
    ],
)
def test_contradictions_are_refused_at_once(tools: Any, default: Any, reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason):
        wrap_tool_call(tools, default=default)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_retry_inside_of_the_effect(bench: Bench, run: Run, idempotent: bool) -> None:
    """Whoever stands between us and the tool may run it again only where that is safe."""
    pay = sender(bench, faults(ConnectionError(), ConnectionError()))
    effects = wrap_tool_call({"pay": {"idempotent": idempotent}}, default="refuse")

    def retrying(request: Any, execute: Any) -> Any:
        def three_times(inner: Any) -> Any:
            for _ in range(2):
                try:
                    return execute(inner)
                except ConnectionError:
                    continue
            return execute(inner)

        return effects(request, three_times)

    async def aretrying(request: Any, execute: Any) -> Any:
        async def three_times(inner: Any) -> Any:
            for _ in range(2):
                try:
                    return await execute(inner)
                except ConnectionError:
                    continue
            return await execute(inner)

        return await effects.on_loop(request, three_times)

    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [calls(("pay", {"amount": 1}))]})
    builder.add_node(
        "tools",
        ToolNode([pay], wrap_tool_call=retrying, awrap_tool_call=aretrying),
    )
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    if idempotent:
        assert results(run(graph, {"messages": []}, config)) == [("call-0", "paid 1")]
        assert (bench.world.sent, len(set(bench.world.keys))) == ([1, 1, 1], 1)
    else:
        with pytest.raises(Misuse, match="put the retry outside"):
            run(graph, {"messages": []}, config)
        assert bench.world.sent == [1]


# --- calls without a result --------------------------------------------------------------------


class World:
    """A chat whose turns stop between the model's message and the tools."""

    def __init__(self, bench: Bench, effects: ToolEffects, tools: Any, *asked: Any) -> None:
        self.config = bench.config()
        self.seen: list[list[Any]] = []
        turn = calls(*asked)

        def model(state: MessagesState) -> Any:
            self.seen.append(list(state["messages"]))
            first = not any(isinstance(m, AIMessage) for m in state["messages"])
            return {"messages": [turn if first else AIMessage("the end")]}

        builder = StateGraph(MessagesState)
        builder.add_node("answer_orphans", effects.orphans_node())
        builder.add_node("model", model)
        builder.add_node(
            "tools",
            ToolNode(tools, wrap_tool_call=effects, awrap_tool_call=effects.on_loop),
        )
        builder.add_edge(START, "answer_orphans")
        builder.add_edge("answer_orphans", "model")
        builder.add_conditional_edges(
            "model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END]
        )
        builder.add_edge("tools", "answer_orphans")
        self.graph = builder.compile(checkpointer=bench.saver)


def is_valid(messages: list[Any]) -> bool:
    """As a provider checks it: each call is answered right behind the message that asks for it."""
    open_: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_:
                return False
            open_.discard(message.tool_call_id)
        elif open_:
            return False
        open_ |= {c["id"] for c in getattr(message, "tool_calls", None) or ()}
    return not open_


@pytest.mark.optimized
def test_orphans_get_what_the_ledger_says(either: Bench, run: Run) -> None:
    """One call happened, one proved that nothing happened, one was never made, one is pure."""

    @tool
    def pay(amount: int) -> str:
        """Pays."""
        either.world.send(amount)
        return f"paid {amount}"

    @tool
    def refund(amount: int) -> str:
        """Refunds."""
        raise NotSent

    search = dies_once(recorded(either, "failed", "succeeded"), "search")
    effects = wrap_tool_call({"search": "pure"}, default={})
    world = World(
        either,
        effects,
        [pay, refund, search],
        ("pay", {"amount": 3}),
        ("refund", {"amount": 3}),
        ("search", {}),
    )
    with pytest.raises((Kill, NotSent)):
        world.graph.invoke({"messages": [HumanMessage("go")]}, world.config)
    state = run(world.graph, {"messages": [HumanMessage("and now?")]}, world.config)
    assert [m.type for m in state["messages"]] == [
        "human",
        "ai",
        "tool",
        "tool",
        "tool",
        "human",
        "ai",
    ]
    assert is_valid(world.seen[-1])
    paid, refunded, searched = (m for m in state["messages"] if isinstance(m, ToolMessage))
    assert (paid.content, paid.status, paid.tool_call_id) == ("paid 3", "success", "call-0")
    assert (refunded.status, searched.status) == ("error", "error")
    assert "Not carried out" in refunded.content
    assert "No result" in searched.content
    assert either.world.sent == [3]
    again = run(world.graph, {"messages": [HumanMessage("thanks")]}, world.config)
    assert len(again["messages"]) == len(state["messages"]) + 2, "they are answered once"


def test_a_result_belongs_to_the_message_before_it() -> None:
    """Otherwise the model is called with an effect open (E7), on messages that it refuses."""
    call = {"name": "pay", "args": {}, "id": "call_0"}
    asks, paid = AIMessage("", tool_calls=[call]), ToolMessage("paid", tool_call_id="call_0")
    for messages, open_ in (
        ([asks, paid, HumanMessage("again"), asks, HumanMessage("are you there?")], [(3, 0)]),
        ([asks, HumanMessage("again"), asks, paid], [(0, 0)]),
        ([asks, HumanMessage("again"), asks], [(0, 0), (2, 1)]),
        ([asks, HumanMessage("wait"), paid], []),
    ):
        assert [(o.message, o.turn) for o in orphans_in(messages)] == open_


@pytest.mark.parametrize("second", ["two", "one"], ids=["other-id", "same-id"])
def test_an_orphan_that_never_started(either: Bench, run: Run, second: str) -> None:
    """An equal call of an earlier turn is another call, also under the same id."""
    pay = sender(either)
    effects = wrap_tool_call({"pay": {}}, default="refuse")
    asked = iter(
        [
            calls(("pay", {"amount": 3}), prefix="one"),
            AIMessage("done"),
            calls(("pay", {"amount": 3}), prefix=second),
            AIMessage("the end"),
        ]
    )

    def model(state: MessagesState) -> Any:
        if not is_valid(list(state["messages"])):
            raise ValueError("no model accepts this")
        return {"messages": [next(asked)]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer_orphans", effects.orphans_node())
    builder.add_node("model", model)
    builder.add_node(
        "tools", ToolNode([pay], wrap_tool_call=effects, awrap_tool_call=effects.on_loop)
    )
    builder.add_edge(START, "answer_orphans")
    builder.add_edge("answer_orphans", "model")
    builder.add_conditional_edges(
        "model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END]
    )
    builder.add_edge("tools", "answer_orphans")
    graph = builder.compile(checkpointer=either.saver)
    stops = builder.compile(checkpointer=either.saver, interrupt_before=["tools"])
    config = either.config()
    run(graph, {"messages": [HumanMessage("pay")]}, config)
    run(stops, {"messages": [HumanMessage("pay again")]}, config)
    state = run(graph, {"messages": [HumanMessage("well?")]}, config)
    first, orphan = (m for m in state["messages"] if isinstance(m, ToolMessage))
    assert (first.tool_call_id, first.content) == ("one-0", "paid 3")
    assert orphan.tool_call_id == f"{second}-0"
    assert "Not carried out" in orphan.content
    assert either.world.sent == [3]


@pytest.mark.optimized
@pytest.mark.parametrize("found", ["committed", "absent", "unknown", "nobody"])
def test_an_orphan_in_doubt_is_asked_about(either: Bench, run: Run, found: str) -> None:
    """Before the model is called; it is never run again for a turn that is over."""

    def find(call: EffectCall) -> Any:
        evidence = {"amount": call.arguments["amount"]}
        answers = {"committed": Committed(evidence, result="found"), "absent": Absent()}
        return answers.get(found, Unknown())

    settings = (
        {} if found == "nobody" else {"reconcile": find, "compare": ["amount"], "settling": 0}
    )
    pay = sender(either, faults(ConnectionError()))
    world = World(
        either, wrap_tool_call({"pay": settings}, default="refuse"), [pay], ("pay", {"amount": 1})
    )
    with pytest.raises(EffectInDoubt):
        run(world.graph, {"messages": [HumanMessage("go")]}, world.config)
    models = len(world.seen)
    if found in ("unknown", "nobody"):
        for given in ({"messages": [HumanMessage("and now?")]}, None):
            with pytest.raises(EffectInDoubt):
                run(world.graph, given, world.config)
        assert len(world.seen) == models, "no model was called"
    else:
        state = run(world.graph, {"messages": [HumanMessage("and now?")]}, world.config)
        (answer,) = (m for m in state["messages"] if isinstance(m, ToolMessage))
        expected = {"committed": ("found", "success"), "absent": (None, "error")}[found]
        assert answer.status == expected[1]
        assert expected[0] in (None, answer.content)
        assert is_valid(world.seen[-1])
    assert either.world.sent == [1]


def test_an_orphan_whose_effect_stands_below_the_tool(bench: Bench, run: Run) -> None:
    """`@effect` under `@tool` leaves its record at the same place."""

    @tool
    @effect
    def pay(amount: int) -> str:
        """Pays."""
        return f"paid {bench.world.send(amount)}"

    breaks = dies_once(recorded(bench, "succeeded"))
    effects = wrap_tool_call(default="pure")
    world = World(bench, effects, [pay, breaks], ("breaks", {}), ("pay", {"amount": 2}))
    with pytest.raises(Kill):
        world.graph.invoke({"messages": [HumanMessage("go")]}, world.config)
    state = run(world.graph, {"messages": [HumanMessage("and now?")]}, world.config)
    broken, paid = (m for m in state["messages"] if isinstance(m, ToolMessage))
    assert (paid.content, paid.status) == ("paid 2", "success")
    assert "No result" in broken.content
    assert bench.world.sent == [2]


def test_an_effect_inside_of_an_interrupted_tool(bench: Bench, run: Run) -> None:
    """The tool is pure, what it calls is not: the model learns that some of it was done."""

    @effect(name="charge")
    def charge(amount: int) -> int:
        return int(bench.world.send(amount))

    @tool
    def order(amount: int) -> str:
        """Orders."""
        charge(amount)
        raise Kill

    effects = wrap_tool_call(default="pure")
    world = World(bench, effects, [order], ("order", {"amount": 2}))
    with pytest.raises(Kill):
        world.graph.invoke({"messages": [HumanMessage("go")]}, world.config)
    state = run(world.graph, {"messages": [HumanMessage("and now?")]}, world.config)
    (told,) = (m for m in state["messages"] if isinstance(m, ToolMessage))
    assert told.content.endswith("some of it was done: charge")
    assert told.status == "error"


def test_a_command_of_an_orphan_updates_the_state(bench: Bench, run: Run) -> None:
    """What the recorded command updates is applied; where it wanted to go is not."""

    class Mood(MessagesState):
        mood: str

    @tool
    def act(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Acts."""
        return command(tool_call_id)

    breaks = dies_once(recorded(bench, "succeeded"))
    effects = wrap_tool_call({"act": {}}, default="pure")
    builder = StateGraph(Mood)
    builder.add_node("answer_orphans", effects.orphans_node())
    message = calls(("act", {}), ("breaks", {}))

    def model(state: Mood) -> Any:
        first = not any(isinstance(m, AIMessage) for m in state["messages"])
        return {"messages": [message if first else AIMessage("the end")]}

    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([act, breaks], wrap_tool_call=effects), destinations=(END,))
    builder.add_edge(START, "answer_orphans")
    builder.add_edge("answer_orphans", "model")
    builder.add_conditional_edges(
        "model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END]
    )
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    with pytest.raises(Kill):
        graph.invoke({"messages": [HumanMessage("go")]}, config)
    state = run(graph, {"messages": [HumanMessage("and now?")]}, config)
    assert state["mood"] == "good"
    moved, _ = (m for m in state["messages"] if isinstance(m, ToolMessage))
    assert (moved.content, moved.tool_call_id) == ("moved", "call-0")
    assert is_valid(state["messages"])


def test_valid_messages_are_left_alone(bench: Bench, run: Run) -> None:
    """Nothing is read, and nothing is written."""
    effects = wrap_tool_call(default="pure")
    assert effects.answer_orphans([HumanMessage("hi"), AIMessage("hello")]) is None


def test_an_answer_that_is_lost_is_given_again(either: Bench, run: Run) -> None:
    """The process dies behind the node that answers; an equal call to come is still another one."""
    pay, breaks = sender(either), dies_once(recorded(either, "succeeded"))
    effects = wrap_tool_call({"pay": {}}, default="pure")
    die = faults(None, Kill())
    asked = iter(
        [
            calls(("pay", {"amount": 3}), ("breaks", {}), prefix="one"),
            calls(("pay", {"amount": 3}), prefix="two"),
            AIMessage("the end"),
        ]
    )

    def answers(state: MessagesState, config: RunnableConfig) -> Any:
        update = effects.answer_orphans(state["messages"], config=config)
        die()
        return update

    async def aanswers(state: MessagesState, config: RunnableConfig) -> Any:
        update = await effects.aanswer_orphans(state["messages"], config=config)
        die()
        return update

    def model(state: MessagesState) -> Any:
        if not is_valid(list(state["messages"])):
            raise ValueError("no model accepts this")
        return {"messages": [next(asked)]}

    builder = StateGraph(MessagesState)
    builder.add_node("answers", RunnableLambda(answers, afunc=aanswers))
    builder.add_node("model", model)
    builder.add_node(
        "tools", ToolNode([pay, breaks], wrap_tool_call=effects, awrap_tool_call=effects.on_loop)
    )
    builder.add_edge(START, "answers")
    builder.add_edge("answers", "model")
    builder.add_conditional_edges(
        "model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END]
    )
    builder.add_edge("tools", "answers")
    graph, config = builder.compile(checkpointer=either.saver), either.config()
    with pytest.raises(Kill):
        graph.invoke({"messages": [HumanMessage("go")]}, config)
    with pytest.raises(Kill):
        run(graph, {"messages": [HumanMessage("once more")]}, config)
    done = dict(results(run(graph, None, config)))
    assert (done["one-0"], done["two-0"]) == ("paid 3", "paid 3")
    assert either.world.sent == [3, 3]
    assert len(set(either.world.keys)) == 2


def test_orphans_whose_tools_ran_in_a_subgraph(either: Bench, run: Run) -> None:
    """The record stands under a checkpoint of the subgraph, the message in the parent's state."""
    pay, breaks = sender(either), dies_once(recorded(either, "succeeded"))
    effects = wrap_tool_call({"pay": {}}, default="pure")
    message = calls(("pay", {"amount": 3}), ("breaks", {}))
    inner = StateGraph(MessagesState)
    inner.add_node(
        "tools", ToolNode([pay, breaks], wrap_tool_call=effects, awrap_tool_call=effects.on_loop)
    )
    inner.add_edge(START, "tools")

    def model(state: MessagesState) -> Any:
        first = not any(isinstance(m, AIMessage) for m in state["messages"])
        return {"messages": [message if first else AIMessage("the end")]}

    outer = StateGraph(MessagesState)
    outer.add_node("answer_orphans", effects.orphans_node())
    outer.add_node("model", model)
    outer.add_node("tools", inner.compile())
    outer.add_edge(START, "answer_orphans")
    outer.add_edge("answer_orphans", "model")
    outer.add_conditional_edges(
        "model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END]
    )
    graph, config = outer.compile(checkpointer=either.saver), either.config()
    with pytest.raises(Kill):
        graph.invoke({"messages": [HumanMessage("go")]}, config)
    state = run(graph, {"messages": [HumanMessage("well?")]}, config)
    assert dict(results(state))["call-0"] == "paid 3"
    assert is_valid(state["messages"])
    assert either.world.sent == [3]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_orphans_under_every_durability(bench: Bench, durability: str) -> None:
    """Also where the checkpoint of the step that answers is not stored yet."""
    pay, breaks = sender(bench), dies_once(recorded(bench, "succeeded"))
    effects = wrap_tool_call({"pay": {"idempotent": True}}, default="pure")
    world = World(bench, effects, [pay, breaks], ("pay", {"amount": 3}), ("breaks", {}))
    with pytest.raises(Kill):
        world.graph.invoke({"messages": [HumanMessage("go")]}, world.config, durability="async")
    state = world.graph.invoke(
        {"messages": [HumanMessage("well?")]}, world.config, durability=durability
    )
    assert dict(results(state))["call-0"] == "paid 3"
    assert is_valid(state["messages"])
    assert bench.world.sent == [3]


# --- messages in a DeltaChannel ----------------------------------------------------------------


class Chat:
    """Two turns, each with a payment; messages are stored only now and then."""

    def __init__(self, bench: Bench, snapshot_frequency: int, *tools: BaseTool) -> None:
        self.config = bench.config()
        self.seen: list[list[Any]] = []
        effects = wrap_tool_call({"pay": {}}, default="pure")
        channel = DeltaChannel(_messages_delta_reducer, list, snapshot_frequency=snapshot_frequency)
        # Not a class: its annotation could not be evaluated in this scope.
        schema: Any = TypedDict("schema", {"messages": Annotated[list, channel]})
        asked = iter(
            [
                calls(("pay", {"amount": 1}), prefix="one"),
                AIMessage("done", id="said"),
                calls(("pay", {"amount": 3}), ("breaks", {}), prefix="two"),
                AIMessage("the end"),
            ]
        )

        def model(state: Any) -> Any:
            self.seen.append(list(state["messages"]))
            return {"messages": [next(asked)]}

        builder = StateGraph(schema)
        builder.add_node("answer_orphans", effects.orphans_node())
        builder.add_node("model", model)
        builder.add_node(
            "tools",
            ToolNode([*tools], wrap_tool_call=effects, awrap_tool_call=effects.on_loop),
        )
        builder.add_edge(START, "answer_orphans")
        builder.add_edge("answer_orphans", "model")
        builder.add_conditional_edges(
            "model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END]
        )
        builder.add_edge("tools", "answer_orphans")
        self.graph = builder.compile(checkpointer=bench.saver)
        self.stops = builder.compile(checkpointer=bench.saver, interrupt_before=["tools"])


@pytest.mark.optimized
@pytest.mark.parametrize("frequency", [1, 1_000], ids=["stored", "not-stored"])
def test_an_orphan_whose_message_is_not_stored_is_never_denied(
    either: Bench, run: Run, frequency: int
) -> None:
    """The search finds the effect, and cannot read for which call it was: it says so."""
    settled = recorded(either, "succeeded")
    pay, breaks = sender(either), dies_once(lambda: either.world.count == 2 and settled())
    chat = Chat(either, frequency, pay, breaks)
    run(chat.graph, {"messages": [HumanMessage("pay")]}, chat.config)
    with pytest.raises(Kill):
        chat.graph.invoke({"messages": [HumanMessage("pay more")]}, chat.config)
    assert either.world.sent == [1, 3]
    if frequency > 1:
        asked = len(chat.seen)
        for given in ({"messages": [HumanMessage("well?")]}, None):
            with pytest.raises(Misuse, match="DeltaChannel"):
                run(chat.graph, given, chat.config)
        assert len(chat.seen) == asked, "no model is asked before somebody knows"
        held = chat.graph.get_state(chat.config).values["messages"]
        (turn,) = [n for n, m in enumerate(held) if isinstance(m, AIMessage) and m.tool_calls][1:]
        told = [ToolMessage("paid 3", tool_call_id="two-0", name="pay")]
        told.append(ToolMessage("no result", tool_call_id="two-1", name="breaks"))
        whole = [RemoveMessage(REMOVE_ALL_MESSAGES), *held[: turn + 1], *told, *held[turn + 1 :]]
        chat.graph.update_state(chat.config, {"messages": whole}, as_node="answer_orphans")
        state = run(chat.graph, None, chat.config)
    else:
        state = run(chat.graph, {"messages": [HumanMessage("well?")]}, chat.config)
    assert dict(results(state))["two-0"] == "paid 3"
    assert is_valid(chat.seen[-1])
    assert state["messages"][-1].content == "the end"
    assert either.world.sent == [1, 3]


@pytest.mark.parametrize("frequency", [1, 1_000], ids=["stored", "not-stored"])
def test_what_the_state_has_taken_up_is_no_effect_of_an_orphan(
    bench: Bench, run: Run, frequency: int
) -> None:
    """An equal call of an earlier turn stands in the way of nothing, stored or not."""
    chat = Chat(bench, frequency, sender(bench), dies_once(lambda: True))
    run(chat.graph, {"messages": [HumanMessage("pay")]}, chat.config)
    run(chat.stops, {"messages": [HumanMessage("pay more")]}, chat.config)
    state = run(chat.graph, {"messages": [HumanMessage("well?")]}, chat.config)
    assert "Not carried out" in dict(results(state))["two-0"]
    assert bench.world.sent == [1]


# --- operations (E4c) --------------------------------------------------------------------------


@pytest.mark.optimized
def test_an_operation_is_one_across_messages_and_threads(either: Bench, run: Run) -> None:
    """The model pays the same invoice in two messages and two threads: it is paid once."""

    @tool
    def settle(invoice: str, amount: int) -> str:
        """Settles an invoice."""
        either.world.send(invoice, current_call().key)
        return f"settled {invoice}"

    settings = {"idempotent": True, "operation_id": "invoice", "inputs": ["invoice", "amount"]}
    effects = wrap_tool_call({"settle": settings}, default="refuse")
    asked = {"invoice": f"inv-{either.tenant}", "amount": 5}
    for prefix in ("one", "two"):
        message = calls(("settle", asked), prefix=prefix)
        graph = tool_graph(either, [settle], effects, message)
        ((call_id, content),) = results(run(graph, {"messages": []}, either.config()))
        assert (call_id, content) == (f"{prefix}-0", f"settled {asked['invoice']}")
    assert either.world.count == 1


@pytest.mark.parametrize("happened", [True, False])
def test_an_orphan_that_names_an_operation(either: Bench, run: Run, happened: bool) -> None:
    """Its record is in the operation's journal, not in the thread's."""
    settings = {"operation_id": "invoice"}

    @tool
    def settle(invoice: str) -> str:
        """Settles an invoice."""
        either.world.send(invoice)
        return "settled"

    # The tool node waits for the thread of the other tool, and so for its record.
    breaks = dies_once(lambda: either.world.count == 1)
    effects = wrap_tool_call({"settle": settings}, default="pure")
    asked = [("breaks", {}), ("settle", {"invoice": f"i-{either.tenant}"})]
    world = World(either, effects, [breaks, settle], *asked)
    if happened:
        with pytest.raises(Kill):
            world.graph.invoke({"messages": [HumanMessage("go")]}, world.config)
    else:
        world.graph.interrupt_before_nodes = ["tools"]
        world.graph.invoke({"messages": [HumanMessage("go")]}, world.config)
        world.graph.interrupt_before_nodes = []
    state = run(world.graph, {"messages": [HumanMessage("and now?")]}, world.config)
    told = [m for m in state["messages"] if isinstance(m, ToolMessage)][1]
    if happened:
        assert (told.content, told.status) == ("settled", "success")
    else:
        assert "Not carried out" in told.content
    assert either.world.count == (1 if happened else 0)


# --- facts of a tool ---------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("way", ["record", "arecord", "saver", "saver-async"])
async def test_a_refusal_to_record_is_no_message_for_the_model(either: Bench, way: str) -> None:
    config = either.config()
    thread = config["configurable"]["thread_id"]
    told: list[Any] = []

    def search(what: str) -> str:
        """Searches."""
        either.take_over(thread)
        if way == "record":
            surefoot.record("searched", {"what": what})
        else:
            either.saver.record(thread, "searched", {"what": what})
        return "found"

    async def asearch(what: str, config: RunnableConfig) -> str:
        """Searches."""
        either.take_over(thread)
        if way == "arecord":
            await surefoot.arecord("searched", {"what": what}, config=config)
        else:
            await either.saver.arecord(thread, "searched", {"what": what})
        return "found"

    asynchronous = way in ("arecord", "saver-async")
    made = tool("search")(asearch if asynchronous else search)

    def model(state: MessagesState) -> Any:
        told.extend(m.content for m in state["messages"] if m.type == "tool")
        call = {"name": "search", "args": {"what": "x"}, "id": "1"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    tools = ToolNode([made], handle_tool_errors=True)

    def carry_out(state: MessagesState) -> Any:
        answers = tools.invoke(state)
        told.extend(m.content for m in answers["messages"])
        return answers

    async def acarry_out(state: MessagesState, config: RunnableConfig) -> Any:
        answers = await tools.ainvoke(state, config)
        told.extend(m.content for m in answers["messages"])
        return answers

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", acarry_out if asynchronous else carry_out)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("tools", END)
    graph = builder.compile(checkpointer=either.saver)
    messages: Any = {"messages": []}
    with pytest.raises(Fenced):
        await (
            graph.ainvoke(messages, config)
            if asynchronous
            else asyncio.to_thread(graph.invoke, messages, config)
        )
    assert told == [], "the model would be told that the run was fenced"


def _asking(way: Callable[[], Any]) -> Callable[[], str]:
    def ask() -> str:
        return str(way())

    return ask


def test_a_refusal_of_what_a_tool_reads_or_asks_is_no_message_for_the_model(bench: Bench) -> None:
    """Clock, chance, reads and the present call, all where they may not be used."""
    ways: dict[str, Callable[[], Any]] = {
        "now": surefoot.now,
        "random": surefoot.random,
        "uuid4": surefoot.uuid4,
        "recorded": surefoot.recorded(lambda: 1),
        "effect": surefoot.effect(lambda: 1),
    }
    ways = {name: surefoot.pure(name=name)(way) for name, way in ways.items()}
    ways |= {"current_call": surefoot.current_call, "kind": lambda: surefoot.record("surefoot.x")}
    for name, way in ways.items():
        made = tool(name, description="Refuses.")(_asking(way))
        tools = ToolNode([made], handle_tool_errors=True)
        builder = StateGraph(MessagesState)
        builder.add_node("tools", tools)
        builder.add_edge(START, "tools")
        graph = builder.compile(checkpointer=bench.saver)
        with pytest.raises(Misuse):
            graph.invoke({"messages": [calls((name, {}))]}, bench.config())
