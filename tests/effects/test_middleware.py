"""`EffectMiddleware`: tools of `create_agent` happen once, whatever middleware stands around."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent, middleware
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.errors import GraphBubbleUp
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from pydantic import BaseModel
from tests.effects.conftest import Bench
from tests.effects.test_tools import Kill, Run, calls, dies_once, faults, is_valid, recorded, sender

from surefoot import (
    Committed,
    EffectCall,
    EffectMiddleware,
    NotSent,
    RecordModelMiddleware,
    ResumePolicy,
    Reviewers,
    SigningKey,
    SurefootSaver,
    effect,
)
from surefoot.errors import EffectInDoubt, Misconfigured, Misuse, StaleInput
from surefoot.session import PendingRead


class Model(BaseChatModel):
    """Says what a script says; refuses messages that a provider would refuse."""

    script: Any
    seen: list[Any] = []
    model_name: str = "scripted-1"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **more: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *args: Any, **more: Any) -> ChatResult:
        if not is_valid(messages):
            raise ValueError("a call without a result")
        self.seen.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=next(self.script))])


def scripted(*says: Any) -> Model:
    script: Iterator[Any] = iter([*says, AIMessage("the end")])
    return Model(script=script, seen=[])


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs an agent in either colour."""
    if request.param == "sync":
        return lambda graph, given, config: graph.invoke(given, config)
    return lambda graph, given, config: asyncio.run(graph.ainvoke(given, config))


def go(text: str = "go") -> Any:
    return {"messages": [HumanMessage(text)]}


def answers(state: Any) -> list[tuple[str, Any]]:
    return sorted(
        (m.tool_call_id, m.content) for m in state["messages"] if isinstance(m, ToolMessage)
    )


@pytest.mark.optimized
@pytest.mark.parametrize("settings", [{}, {"idempotent": True}], ids=["N", "K"])
def test_the_tools_of_an_agent_happen_once(either: Bench, run: Run, settings: Any) -> None:
    pay, breaks = sender(either), dies_once(recorded(either, "succeeded", "succeeded"))
    message = calls(("pay", {"amount": 3}), ("breaks", {}), ("pay", {"amount": 3}))
    agent = create_agent(
        scripted(message),
        [pay, breaks],
        middleware=[EffectMiddleware({"pay": settings}, default="pure")],
        checkpointer=either.saver,
    )
    config = either.config()
    with pytest.raises(Kill):
        run(agent, go(), config)
    assert either.world.sent == [3, 3]
    assert answers(run(agent, None, config)) == [
        ("call-0", "paid 3"),
        ("call-1", "fine"),
        ("call-2", "paid 3"),
    ]
    assert either.world.sent == [3, 3]
    assert len(set(either.world.keys)) == 2


RETRIES = ToolRetryMiddleware(max_retries=2, initial_delay=0.001, jitter=False)


class Swallows(AgentMiddleware):
    """Middleware as people write it: every error becomes a message."""

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(request)
        except GraphBubbleUp:
            raise
        except Exception:
            return ToolMessage("sorry", tool_call_id=request.tool_call["id"], status="error")

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except GraphBubbleUp:
            raise
        except Exception:
            return ToolMessage("sorry", tool_call_id=request.tool_call["id"], status="error")


def _others() -> list[Any]:
    """Middleware that handles errors of tools; releases of langchain differ in what they ship."""
    found = {"retries": RETRIES, "own": Swallows()}
    tells = getattr(middleware, "ToolErrorMiddleware", None)
    if tells is not None:
        found["tells"] = tells(lambda error, request: "sorry")
    return [pytest.param(one, id=name) for name, one in found.items()]


@pytest.mark.optimized
@pytest.mark.parametrize("other", _others())
@pytest.mark.parametrize("first", [True, False], ids=["inside", "outside"])
def test_an_unknown_outcome_stops_the_run(bench: Bench, run: Run, other: Any, first: bool) -> None:
    """Whether other middleware stands inside or outside: nothing is sent twice, no model asked."""
    pay = sender(bench, faults(ConnectionError("lost")))
    ours = EffectMiddleware({"pay": {}}, default="refuse")
    model = scripted(calls(("pay", {"amount": 1})))
    agent = create_agent(
        model,
        [pay],
        middleware=[ours, other] if first else [other, ours],
        checkpointer=bench.saver,
    )
    config = bench.config()
    with pytest.raises((EffectInDoubt, Misuse)):
        run(agent, go(), config)
    assert bench.world.sent == [1]
    assert len(model.seen) == 1
    with pytest.raises(EffectInDoubt):
        run(agent, None, config)
    assert bench.world.sent == [1]
    assert answers(agent.get_state(config).values) == []


def test_a_retry_inside_of_an_idempotent_effect(bench: Bench, run: Run) -> None:
    """All attempts send one key."""
    pay = sender(bench, faults(ConnectionError(), ConnectionError()))
    agent = create_agent(
        scripted(calls(("pay", {"amount": 1}))),
        [pay],
        middleware=[EffectMiddleware({"pay": {"idempotent": True}}, default="refuse"), RETRIES],
        checkpointer=bench.saver,
    )
    assert answers(run(agent, go(), bench.config())) == [("call-0", "paid 1")]
    assert (bench.world.sent, len(set(bench.world.keys))) == ([1, 1, 1], 1)


def test_a_retry_that_gives_up_is_no_answer(bench: Bench, run: Run) -> None:
    """`ToolRetryMiddleware` tells the model in the end; what happened is still unknown."""
    pay = sender(bench, faults(*[ConnectionError() for _ in range(3)]))
    agent = create_agent(
        scripted(calls(("pay", {"amount": 1}))),
        [pay],
        middleware=[EffectMiddleware({"pay": {"idempotent": True}}, default="refuse"), RETRIES],
        checkpointer=bench.saver,
    )
    config = bench.config()
    with pytest.raises(EffectInDoubt):
        run(agent, go(), config)
    assert answers(run(agent, None, config)) == [("call-0", "paid 1")]
    assert (len(bench.world.sent), len(set(bench.world.keys))) == (4, 1)


@pytest.mark.parametrize("first", [True, False], ids=["inside", "outside"])
def test_nothing_happened_may_be_retried_and_told(bench: Bench, run: Run, first: bool) -> None:
    pay = sender(bench, faults(NotSent("402"), NotSent("402")))
    ours = EffectMiddleware({"pay": {}}, default="refuse")
    agent = create_agent(
        scripted(calls(("pay", {"amount": 1}))),
        [pay],
        middleware=[ours, RETRIES] if first else [RETRIES, ours],
        checkpointer=bench.saver,
    )
    assert answers(run(agent, go(), bench.config())) == [("call-0", "paid 1")]
    assert bench.world.sent == [1, 1, 1]


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_beside_a_person_who_approves(either: Bench, run: Run, decision: str) -> None:
    """A rejected call is answered by the person; an approved one happens once."""
    pay = sender(either)
    agent = create_agent(
        scripted(calls(("pay", {"amount": 1}))),
        [pay],
        middleware=[
            EffectMiddleware({"pay": {}}, default="refuse"),
            HumanInTheLoopMiddleware(interrupt_on={"pay": True}),
        ],
        checkpointer=either.saver,
    )
    config = either.config()
    assert "__interrupt__" in run(agent, go(), config)
    said = {
        "decisions": [
            {"type": decision, "message": "no"} if decision == "reject" else {"type": decision}
        ]
    }
    state = run(agent, Command(resume=said), config)
    assert state["messages"][-1].content == "the end"
    assert either.world.sent == ([1] if decision == "approve" else [])


# --- calls without a result --------------------------------------------------------------------


@pytest.mark.optimized
def test_new_input_after_a_stopped_turn(either: Bench, run: Run) -> None:
    """The model sees what happened, and an equal call that it then makes is another one."""
    pay, breaks = sender(either), dies_once(recorded(either, "succeeded"))
    model = scripted(
        calls(("breaks", {}), ("pay", {"amount": 3}), prefix="one"),
        calls(("pay", {"amount": 3}), prefix="two"),
    )
    agent = create_agent(
        model,
        [pay, breaks],
        middleware=[EffectMiddleware({"pay": {}}, default="pure")],
        checkpointer=either.saver,
    )
    config = either.config()
    with pytest.raises(Kill):
        run(agent, go(), config)
    assert either.world.sent == [3]
    state = run(agent, go("again, please"), config)
    seen = {m.tool_call_id: m for m in model.seen[1] if isinstance(m, ToolMessage)}
    assert (seen["one-1"].content, seen["one-1"].status) == ("paid 3", "success")
    assert seen["one-0"].status == "error"
    assert dict(answers(state))["two-0"] == "paid 3"
    assert either.world.sent == [3, 3], "it was told of the first one and wants a second"
    assert len(set(either.world.keys)) == 2


@pytest.mark.optimized
def test_a_stopped_turn_in_doubt(either: Bench, run: Run) -> None:
    """No model is called before somebody knows; the lookup may know later."""
    known: list[Any] = []

    def find(call: EffectCall) -> Any:
        return known[0] if known else None

    pay = sender(either, faults(Kill()))
    model = scripted(calls(("pay", {"amount": 3})))
    agent = create_agent(
        model,
        [pay],
        middleware=[
            EffectMiddleware({"pay": {"reconcile": find, "compare": ["amount"]}}, default="refuse")
        ],
        checkpointer=either.saver,
    )
    config = either.config()
    with pytest.raises(Kill):
        run(agent, go(), config)
    for given in (go("well?"), None, None):
        with pytest.raises(EffectInDoubt):
            run(agent, given, config)
    assert len(model.seen) == 1
    known.append(Committed({"amount": 3}, result="paid after all"))
    state = run(agent, None, config)
    assert answers(state) == [("call-0", "paid after all")]
    assert state["messages"][-1].content == "the end"
    assert either.world.sent == [3]


@pytest.mark.parametrize("outcome", ["succeeded", "absent"])
def test_a_person_settles_a_stopped_turn(bench: Bench, outcome: str) -> None:
    """Class N: what the decision says becomes the call's result."""
    operator = SigningKey.generate("op-1")
    saver = SurefootSaver(
        bench.conn,
        highwater=bench.highwater,
        keys=bench.keys,
        tenant=bench.tenant,
        reviewers=Reviewers({"op-1": operator.public()}),
        policy=ResumePolicy(settling_ms=0, handover_grace_ms=10_000),
    )
    with saver:
        saver.setup()
        pay = sender(bench, faults(Kill()))
        agent = create_agent(
            scripted(calls(("pay", {"amount": 3}))),
            [pay],
            middleware=[EffectMiddleware({"pay": {}}, default="refuse")],
            checkpointer=saver,
        )
        config = bench.config()
        with pytest.raises(Kill):
            agent.invoke(go(), config)
        with pytest.raises(EffectInDoubt) as caught:
            agent.invoke(go("well?"), config)
        assert caught.value.key == bench.world.keys[0]
        given = {"result": {"id": 7}} if outcome == "succeeded" else {}
        proposed = saver.propose(
            config["configurable"]["thread_id"],
            "approve",
            reason="asked the bank",
            slot=caught.value.slot,
            outcome=outcome,
            **given,
        )
        saver.resolve(operator.sign(proposed))
        state = agent.invoke(None, config)
    ((_, content),) = answers(state)
    assert content == '{"id": 7}' if outcome == "succeeded" else "Not carried out" in content
    assert state["messages"][-1].content == "the end"
    assert bench.world.sent == [3]


# --- streaming ---------------------------------------------------------------------------------


def test_a_replayed_tool_does_not_stream_twice(bench: Bench) -> None:
    from langgraph.config import get_stream_writer

    breaks = dies_once(recorded(bench, "succeeded"))

    @tool
    def pay(amount: int) -> str:
        """Pays."""
        get_stream_writer()({"paying": amount})
        return str(bench.world.send(amount))

    agent = create_agent(
        scripted(calls(("pay", {"amount": 1}), ("breaks", {}))),
        [pay, breaks],
        middleware=[EffectMiddleware({"pay": {}}, default="pure")],
        checkpointer=bench.saver,
    )
    config = bench.config()
    first: list[Any] = []
    with pytest.raises(Kill):
        first.extend(agent.stream(go(), config, stream_mode="custom"))
    second = list(agent.stream(None, config, stream_mode="custom"))
    assert second == []
    assert bench.world.sent == [1]


# --- reads -------------------------------------------------------------------------------------


def looker(bench: Bench, answers_: list[Any]) -> Any:
    """A tool that looks something up; what it finds changes each time."""

    @tool
    def look(what: str) -> str:
        """Looks."""
        bench.world.send(what)
        found = answers_[min(bench.world.count, len(answers_)) - 1]
        if isinstance(found, Exception):
            raise found
        return str(found)

    return look


def one_task(bench: Bench, policy: Any, tools: Sequence[Any], *asked: Any) -> Any:
    """A node that carries out all calls of a message, so that a resume makes all of them again."""
    ours = EffectMiddleware({"look": policy}, default="pure")
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [calls(*asked)]})
    node = ToolNode(
        tools,
        handle_tool_errors=True,
        wrap_tool_call=ours.wrap_tool_call,
        awrap_tool_call=ours.awrap_tool_call,
    )
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder.compile(checkpointer=bench.saver)


def reads(bench: Bench, count: int) -> Callable[[], bool]:
    """True once so many reads of the run are recorded, and none waits to be stored."""

    def ready() -> bool:
        sessions = bench.saver.core.sessions.all()
        known = {body.position for s in sessions for body in s.reads.bodies.copy().values()}
        waiting = [one for s in sessions for one in list(s.queue) if isinstance(one, PendingRead)]
        return len(known) == count and not waiting

    return ready


@pytest.mark.optimized
@pytest.mark.parametrize("policy", ["recorded", {"recorded": True, "freshness": 3_600}])
def test_a_read_tool_is_replayed(either: Bench, run: Run, policy: Any) -> None:
    """A sibling kills the process; the model sees what was found the first time."""
    tools = [looker(either, ["first", "second", "third"]), dies_once(reads(either, 2))]
    asked = [("look", {"what": "a"}), ("breaks", {}), ("look", {"what": "a"})]
    graph, config = one_task(either, policy, tools, *asked), either.config()
    with pytest.raises(Kill):
        run(graph, {"messages": []}, config)
    told = answers(run(graph, None, config))
    assert sorted(content for _, content in told) == ["fine", "first", "second"]
    assert either.world.count == 2


def test_a_read_tool_that_is_too_old_reads_again(bench: Bench, run: Run) -> None:
    tools = [looker(bench, ["first", "second"]), dies_once(reads(bench, 1))]
    policy = {"recorded": True, "freshness": 0}
    graph = one_task(bench, policy, tools, ("look", {"what": "a"}), ("breaks", {}))
    config = bench.config()
    with pytest.raises(Kill):
        run(graph, {"messages": []}, config)
    assert dict(answers(run(graph, None, config)))["call-0"] == "second"


@pytest.mark.optimized
@pytest.mark.parametrize("on_stale", ["refuse", "read"])
def test_an_old_answer_is_none_for_another_question(bench: Bench, run: Run, on_stale: str) -> None:
    """The model runs again and asks for something else at the same place."""
    look = looker(bench, ["first", "second"])
    effects = EffectMiddleware({"look": {"recorded": True, "on_stale": on_stale}}, default="pure")
    asked = iter(["a", "b"])
    die = faults(Kill())
    tools = ToolNode(
        [look],
        wrap_tool_call=effects.wrap_tool_call,
        awrap_tool_call=effects.awrap_tool_call,
    )

    def agent(state: Any, config: Any) -> Any:
        done = tools.invoke({"messages": [calls(("look", {"what": next(asked)}))]}, config)
        die()
        return done

    async def aagent(state: Any, config: Any) -> Any:
        done = await tools.ainvoke({"messages": [calls(("look", {"what": next(asked)}))]}, config)
        die()
        return done

    agent.__annotations__["config"] = aagent.__annotations__["config"] = RunnableConfig
    builder = StateGraph(MessagesState)
    builder.add_node("agent", RunnableLambda(agent, afunc=aagent))
    builder.add_edge(START, "agent")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    with pytest.raises(Kill):
        run(graph, {"messages": []}, config)
    if on_stale == "read":
        assert answers(run(graph, None, config)) == [("call-0", "second")]
        return
    with pytest.raises(StaleInput) as caught:
        run(graph, None, config)
    assert caught.value.differs == ["changed: what"]
    assert bench.world.sent == ["a"]


def test_a_read_tool_that_failed_is_asked_again(bench: Bench, run: Run) -> None:
    """What the tool node makes of its error is no answer that a resume would replay."""
    look = looker(bench, [ValueError("no network"), "second"])
    breaks = dies_once(lambda: bench.world.count == 1)
    graph = one_task(bench, "recorded", [look, breaks], ("look", {"what": "a"}), ("breaks", {}))
    config = bench.config()
    with pytest.raises(Kill):
        run(graph, {"messages": []}, config)
    assert dict(answers(run(graph, None, config)))["call-0"] == "second"


def test_the_error_of_a_read_tool_is_told(bench: Bench, run: Run) -> None:
    look = looker(bench, [ValueError("no network")])
    graph = one_task(bench, "recorded", [look], ("look", {"what": "a"}))
    ((_, content),) = answers(run(graph, {"messages": []}, bench.config()))
    assert "no network" in content


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"recorded": True, "idempotent": True}, "no 'idempotent'"),
        ({"recorded": True, "inputs": "what"}, "list of names"),
        ({"recorded": True, "on_stale": "ask"}, "on_stale"),
        ({"recorded": True, "freshness": -1}, "freshness"),
    ],
)
def test_contradictions_of_a_read_tool_are_refused(policy: Any, reason: str) -> None:
    for tools, default in (({"look": policy}, "pure"), ({}, policy)):
        with pytest.raises(Misconfigured, match=reason):
            EffectMiddleware(tools, default=default)


def test_an_effect_is_no_read(bench: Bench, run: Run) -> None:
    @tool
    @effect
    def pay(amount: int) -> str:
        """Pays."""
        return str(bench.world.send(amount))

    agent = create_agent(
        scripted(calls(("pay", {"amount": 1}))),
        [pay],
        middleware=[EffectMiddleware({"pay": "recorded"}, default="pure")],
        checkpointer=bench.saver,
    )
    with pytest.raises(Misuse, match="one place only"):
        run(agent, go(), bench.config())
    assert bench.world.sent == []


@pytest.mark.optimized
def test_a_read_of_a_stopped_turn_is_no_effect(either: Bench, run: Run) -> None:
    """Nothing was done, so nothing is in doubt and nothing is taken for the result of a call."""
    look, breaks = looker(either, ["first"]), dies_once(reads(either, 1))
    model = scripted(calls(("look", {"what": "a"}), ("breaks", {})))
    agent = create_agent(
        model,
        [look, breaks],
        middleware=[EffectMiddleware(default="recorded")],
        checkpointer=either.saver,
    )
    config = either.config()
    with pytest.raises(Kill):
        run(agent, go(), config)
    state = run(agent, go("well?"), config)
    assert is_valid(model.seen[-1])
    assert all("No result" in content for _, content in answers(state))
    assert state["messages"][-1].content == "the end"


# --- the model ---------------------------------------------------------------------------------


class BreaksBehind(AgentMiddleware):
    """The process dies once, after the model has answered."""

    def __init__(self, *errors: BaseException) -> None:
        super().__init__()
        self.tools = []
        self._die = faults(*errors)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        answer = handler(request)
        self._die()
        return answer

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        answer = await handler(request)
        self._die()
        return answer


def recording(bench: Bench, chat: Model, *more: Any, **settings: Any) -> Any:
    return create_agent(
        chat,
        more or [looker(bench, ["found"])],
        system_prompt=settings.pop("system_prompt", "Be brief."),
        response_format=settings.pop("response_format", None),
        middleware=[
            EffectMiddleware(default="pure"),
            BreaksBehind(*settings.pop("errors", [Kill()])),
            RecordModelMiddleware(**settings),
        ],
        checkpointer=bench.saver,
    )


@pytest.mark.optimized
def test_a_resumed_agent_does_not_ask_the_model_again(either: Bench, run: Run) -> None:
    """Each step asks once, and what the first answer asked for is what is done."""
    model = scripted(calls(("look", {"what": "a"})))
    agent, config = recording(either, model), either.config()
    with pytest.raises(Kill):
        run(agent, go(), config)
    assert len(model.seen) == 1
    state = run(agent, None, config)
    assert [m.type for m in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert answers(state) == [("call-0", "found")]
    assert state["messages"][-1].content == "the end"
    assert len(model.seen) == 2
    assert isinstance(state["messages"][1], AIMessage)


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("first", "then", "differs"),
    [
        ({}, {"system_prompt": "Be long."}, "system message"),
        ({"model": "one"}, {"model": "two"}, "changed: bound model id"),
        ({"binds": {"rules": 1}}, {"binds": {"rules": 2}}, "changed: bound rules"),
    ],
    ids=["prompt", "model", "binds"],
)
def test_another_question_is_not_answered(
    bench: Bench, run: Run, first: Any, then: Any, differs: str
) -> None:
    model = scripted(AIMessage("one"), AIMessage("two"))
    config = bench.config()
    with pytest.raises(Kill):
        run(recording(bench, model, **first), go(), config)
    with pytest.raises(StaleInput) as caught:
        run(recording(bench, model, errors=[], **then), None, config)
    assert any(differs in told for told in caught.value.differs)
    assert len(model.seen) == 1
    state = run(recording(bench, model, errors=[], on_stale="read", **then), None, config)
    assert state["messages"][-1].content == "two"


def test_other_tools_are_another_question(bench: Bench, run: Run) -> None:
    @tool
    def look(what: str, limit: int = 3) -> str:
        """Looks."""
        return what

    model, config = scripted(AIMessage("one")), bench.config()
    with pytest.raises(Kill):
        run(recording(bench, model), go(), config)
    with pytest.raises(StaleInput) as caught:
        run(recording(bench, model, look, errors=[]), None, config)
    assert all("bound tools.look" in told for told in caught.value.differs)


class Answer(BaseModel):
    """What the agent is asked for."""

    city: str


def test_a_structured_answer_is_replayed(bench: Bench, run: Run) -> None:
    model, config = scripted(calls(("Answer", {"city": "Bergen"}))), bench.config()
    agent = recording(bench, model, response_format=ToolStrategy(Answer))
    with pytest.raises(Kill):
        run(agent, go(), config)
    state = run(agent, None, config)
    assert state["structured_response"] == Answer(city="Bergen")
    assert len(model.seen) == 1


class Speaks(Model):
    """Streams its answer in two parts."""

    def _stream(self, messages: list[Any], *args: Any, **more: Any) -> Any:
        self.seen.append(list(messages))
        for part in ("hel", "lo"):
            yield ChatGenerationChunk(message=AIMessageChunk(part))


def test_a_replayed_answer_is_not_streamed_again(bench: Bench) -> None:
    model, config = Speaks(script=iter(()), seen=[]), bench.config()
    agent = recording(bench, model)
    parts: list[Any] = []
    with pytest.raises(Kill):
        parts.extend(p for p, _ in agent.stream(go(), config, stream_mode="messages"))
    again = [p for p, _ in agent.stream(None, config, stream_mode="messages")]
    assert len(model.seen) == 1
    assert [m.content for m in again] == ["hello"], "one message, no tokens"
    assert agent.get_state(config).values["messages"][-1].id == again[0].id


def test_a_model_without_an_id_has_to_be_named(bench: Bench, run: Run) -> None:
    model = scripted(AIMessage("one"))
    model.model_name = ""
    with pytest.raises(Misconfigured, match="no model id"):
        run(recording(bench, model), go(), bench.config())
    assert model.seen == []


# --- the extra ---------------------------------------------------------------------------------


def test_without_langchain_the_name_can_be_imported() -> None:
    """Only using it says what is missing."""
    program = textwrap.dedent(
        """
        import sys
        sys.modules["langchain"] = None
        sys.modules["langchain.agents"] = None
        from surefoot import *
        from surefoot.errors import Misconfigured
        try:
            EffectMiddleware(default="pure")
        except Misconfigured as error:
            print(error)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "surefoot[agents]" in done.stdout


def test_an_effect_below_a_tool_of_an_agent(bench: Bench, run: Run) -> None:
    @tool
    @effect
    def pay(amount: int) -> str:
        """Pays."""
        return str(bench.world.send(amount))

    agent = create_agent(
        scripted(calls(("pay", {"amount": 1}))),
        [pay],
        middleware=[EffectMiddleware(default={})],
        checkpointer=bench.saver,
    )
    assert answers(run(agent, go(), bench.config())) == [("call-0", "1")]
    assert bench.world.sent == [1]
