"""`effect_node`: a whole node happens once, and what it returned comes back as it was."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.managed import RemainingSteps
from langgraph.runtime import Runtime
from langgraph.types import Command, Overwrite, RetryPolicy, Send
from pydantic import BaseModel
from tests.effects.conftest import Bench, State

from surefoot import Absent, Committed, EffectCall, NotSent, Unknown, effect_node
from surefoot.errors import EffectInDoubt, EffectResultLost, Misconfigured, Misuse, StaleInput

RETRY = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False)


class Boom(Exception):
    """A sibling fails, or the process in it."""


def fails_once() -> Callable[[Any], Any]:
    """A sibling node that fails the first time."""
    tries: list[int] = []

    def sibling(state: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {}

    return sibling


def beside(
    bench: Bench, node: Any, sibling: Any = None, *, schema: Any = State, **more: Any
) -> Any:
    """The node, and a sibling whose failure makes its step run again."""
    builder = StateGraph(schema)
    builder.add_node("work", node, **more)
    builder.add_node("sibling", sibling or fails_once())
    builder.add_edge(START, "work")
    builder.add_edge(START, "sibling")
    for name in ("left", "right"):
        builder.add_node(name, lambda state, name=name: {"log": [(name, state.get("n"))]})
        builder.add_edge(name, END)
    return builder.compile(checkpointer=bench.saver)


def crash_and_resume(graph: Any, config: Any, given: Any) -> Any:
    """The first run fails beside the node, whose writes are then lost with its checkpoint."""
    with pytest.raises(Boom):
        graph.invoke(given, config)
    return graph.invoke(None, config)


class Kill(BaseException):
    """The process dies: nothing of the step is written."""


def replayed(bench: Bench, node: Any, given: Any, **more: Any) -> tuple[Any, Any]:
    """What a graph ends with when the node runs plainly, and when it is replayed from the ledger.

    For the replay the node's answer is lost on its way to the checkpoint, as in a crash.
    """
    plain = beside(bench, node, lambda state: {}, **more).invoke(given, bench.config())
    died: list[int] = []

    def dying(*args: Any, **kwargs: Any) -> Any:
        answer = node(*args, **kwargs)
        if not died:
            died.append(1)
            raise Kill
        return answer

    dying.__signature__ = __import__("inspect").signature(node)  # type: ignore[attr-defined]
    graph = beside(bench, dying, lambda state: {}, **more)
    config = bench.config()
    with pytest.raises(Kill):
        graph.invoke(given, config)
    return plain, graph.invoke(None, config)


# --- once --------------------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_node_happens_once(either: Bench, durability: str) -> None:
    def charge(state: State, *, idempotency_key: str) -> State:
        either.world.send(state["n"], idempotency_key)
        return {"log": [f"charged {state['n']}"]}

    tries: list[int] = []
    wrapped = effect_node(charge, idempotent=True)

    def dies(state: State) -> Any:
        update = wrapped(state)
        tries.append(1)
        if len(tries) == 1:
            raise Kill
        return update

    graph, config = either.graph(dies), either.config()
    with pytest.raises(Kill):
        graph.invoke({"n": 5, "log": []}, config, durability=durability)
    assert graph.invoke(None, config, durability=durability)["log"] == ["charged 5"]
    assert either.world.sent == [5]


@pytest.mark.optimized
async def test_an_async_node_happens_once(either: Bench) -> None:
    async def charge(state: State, call: EffectCall) -> State:
        await asyncio.sleep(0)
        either.world.send(state["n"], call.key)
        return {"log": [f"charged {state['n']}"]}

    graph = beside(either, effect_node(charge))
    config = either.config()
    with pytest.raises(Boom):
        await graph.ainvoke({"n": 5, "log": []}, config)
    assert (await graph.ainvoke(None, config))["log"] == ["charged 5"]
    assert either.world.sent == [5]


def test_as_a_decorator(bench: Bench) -> None:
    @effect_node(name="charge/v1")
    def charge(state: State) -> State:
        """Charges."""
        bench.world.send(state["n"])
        return {"log": ["charged"]}

    assert (charge.__name__, charge.__doc__) == ("charge", "Charges.")
    assert crash_and_resume(beside(bench, charge), bench.config(), {"n": 1, "log": []})["log"] == [
        "charged"
    ]
    assert bench.world.sent == [1]


def test_a_retry_policy_sees_the_recorded_update(bench: Bench) -> None:
    """Case 7 for a node: what failed came after its effect."""
    charge = effect_node(lambda state: {"log": [bench.world.send(state["n"])]}, name="charge")
    tries: list[int] = []

    def node(state: State) -> Any:
        update = charge(state)
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return update

    graph = bench.graph(node, retry_policy=RETRY)
    assert graph.invoke({"n": 1, "log": []}, bench.config())["log"] == [1]
    assert (bench.world.sent, len(tries)) == ([1], 2)


def test_in_a_subgraph_and_in_sends(either: Bench) -> None:
    """Each task of a fan-out is its own effect, in a subgraph that runs twice as well."""

    @effect_node(inputs=["n"])
    def charge(state: State, *, idempotency_key: str) -> State:
        either.world.send(state["n"], idempotency_key)
        return {"log": [state["n"]]}

    inner = StateGraph(State)
    inner.add_node("charge", charge)
    inner.add_conditional_edges(
        START, lambda state: [Send("charge", {"n": n}) for n in (1, 1, 2)], ["charge"]
    )
    outer = StateGraph(State)
    outer.add_node("sub", inner.compile())
    outer.add_node("sibling", fails_once())
    outer.add_edge(START, "sub")
    outer.add_edge(START, "sibling")
    graph = outer.compile(checkpointer=either.saver)
    assert sorted(crash_and_resume(graph, either.config(), {"n": 0, "log": []})["log"]) == [1, 1, 2]
    assert sorted(either.world.sent) == [1, 1, 2]
    assert len(set(either.world.keys)) == 3


# --- what is meant -----------------------------------------------------------------------------


class Wide(TypedDict, total=False):
    n: int
    note: str
    log: Annotated[list[Any], operator.add]
    left: RemainingSteps


class Narrow(TypedDict):
    n: int


def again_with(bench: Bench, node: Any, first: Any, second: Any) -> Any:
    """Calls the node in one place, first with one state and then, after a crash, with another."""
    states = iter([first, second])
    tries: list[int] = []

    def caller(state: Any) -> Any:
        update = node(next(states))
        tries.append(1)
        if len(tries) == 1:
            raise Kill
        return update

    graph, config = bench.graph(caller), bench.config()
    with pytest.raises(Kill):
        graph.invoke({"log": []}, config)
    return graph.invoke(None, config)


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("inputs", "second", "differs"),
    [
        (None, {"n": 1, "note": "b"}, ["changed: note"]),
        (["n"], {"n": 1, "note": "b"}, None),
        (["n"], {"n": 2, "note": "a"}, ["changed: n"]),
        (["n", "log"], {"n": 1, "note": "b"}, None),
        (lambda state: {"amount": state["n"]}, {"n": 1, "note": "b"}, None),
        (lambda state: {"amount": state["n"]}, {"n": 2, "note": "a"}, ["changed: amount"]),
        (lambda state: state["n"], {"n": 1, "note": "b"}, None),
        (lambda state: state["n"], {"n": 2, "note": "a"}, ["changed: inputs"]),
    ],
    ids=["all", "same key", "other key", "absent key", "map", "other map", "value", "other value"],
)
def test_what_is_meant(bench: Bench, inputs: Any, second: Any, differs: list[str] | None) -> None:
    def charge(state: Wide) -> Any:
        return {"log": [bench.world.send(state["n"])]}

    node = effect_node(charge, inputs=inputs)
    first = {"n": 1, "note": "a"}
    if differs is None:
        assert again_with(bench, node, first, second)["log"] == [1]
    else:
        with pytest.raises(StaleInput) as caught:
            again_with(bench, node, first, second)
        assert caught.value.differs == differs
    assert bench.world.sent == [1]


def test_the_input_schema_says_what_a_node_reads(bench: Bench) -> None:
    """LangGraph hands a node the part of the state that its annotation names."""
    seen: list[Any] = []

    @effect_node
    def charge(state: Narrow, call: EffectCall) -> Any:
        seen.append((dict(state), dict(call.arguments)))
        return {}

    beside(bench, charge, lambda state: {}, schema=Wide).invoke(
        {"n": 1, "note": "a", "log": []}, bench.config()
    )
    assert seen == [({"n": 1}, {"n": 1})]


def test_managed_values_are_not_what_is_meant(bench: Bench) -> None:
    """How many steps are left depends on how the run was started."""
    seen: list[Any] = []

    @effect_node
    def charge(state: Wide, call: EffectCall) -> Any:
        seen.append((state["left"], sorted(call.arguments)))
        return {"log": ["charged"]}

    tries: list[int] = []

    def dies(state: Wide) -> Any:
        update = charge(state)
        tries.append(1)
        if len(tries) == 1:
            raise Kill
        return update

    graph = beside(bench, dies, lambda state: {}, schema=Wide)
    config = bench.config()
    with pytest.raises(Kill):
        graph.invoke({"n": 1, "log": []}, {**config, "recursion_limit": 10})
    done = graph.invoke(None, {**config, "recursion_limit": 20})
    assert done["log"] == ["charged"]
    assert [keys for _, keys in seen] == [["log", "n"]]


@dataclass
class Data:
    n: int
    log: Annotated[list[Any], operator.add]


class Model(BaseModel):
    n: int
    log: Annotated[list[Any], operator.add] = []


@pytest.mark.parametrize("schema", [Data, Model])
def test_states_that_are_no_dicts(bench: Bench, schema: Any) -> None:
    seen: list[Any] = []

    def charge(state: Any, call: EffectCall) -> Any:
        seen.append(dict(call.arguments))
        return {"log": [bench.world.send(state.n)]}

    charge.__annotations__["state"] = schema
    builder = StateGraph(schema)
    builder.add_node("work", effect_node(charge))
    builder.add_node("sibling", fails_once())
    builder.add_edge(START, "work")
    builder.add_edge(START, "sibling")
    graph = builder.compile(checkpointer=bench.saver)
    assert crash_and_resume(graph, bench.config(), {"n": 3, "log": []})["log"] == [3]
    assert seen == [{"n": 3, "log": []}]
    assert bench.world.sent == [3]


def test_what_langgraph_hands_in_is_not_what_is_meant(bench: Bench) -> None:
    seen: list[Any] = []

    @effect_node
    def charge(state: State, config: RunnableConfig, runtime: Runtime, call: EffectCall) -> Any:
        seen.append((config["configurable"]["thread_id"], runtime.execution_info.node_attempt))
        assert set(call.arguments) == {"n", "log"}
        return {"log": ["charged"]}

    done = crash_and_resume(beside(bench, charge), bench.config("mine"), {"n": 1, "log": []})
    assert done["log"] == ["charged"]
    assert seen == [("mine", 1)]


# --- what a node may return --------------------------------------------------------------------


class Update(BaseModel):
    n: int
    log: list[Any]


def goes_left(state: Any) -> Command[Literal["left"]]:
    return Command(update={"n": 7, "log": ["work"]}, goto="left")


def goes_both_ways(state: Any) -> Any:
    return Command(goto=[Send("left", {"n": 1}), Send("left", {"n": 2}), "right"])


RETURNS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda state: None,
    "an update": lambda state: {"n": 3, "log": ["work"]},
    "a model": lambda state: Update(n=3, log=["work"]),
    "a command": goes_left,
    "sends": goes_both_ways,
    "one send": lambda state: Command(goto=Send("left", {"n": 9})),
    "a command of pairs": lambda state: Command(
        update=[("log", ["one"]), ("log", ["two"]), ("n", 4)], goto=("left", "right")
    ),
    "commands": lambda state: [
        Command(update={"log": ["one"]}),
        Command(update=(("log", ["two"]),), goto="right"),
        {"log": ["three"]},
    ],
    "an overwrite": lambda state: {"log": Overwrite(["only"])},
}


@pytest.mark.optimized
@pytest.mark.parametrize("kind", RETURNS)
def test_a_replay_gives_what_the_node_gave(bench: Bench, kind: str) -> None:
    calls: list[int] = []

    def work(state: Any) -> Any:
        calls.append(1)
        return RETURNS[kind](state)

    node = effect_node(work)
    plain, resumed = replayed(bench, node, {"n": 1, "log": []}, destinations=("left", "right"))
    assert len(calls) == 2, "one for each of the two runs"
    plain["log"], resumed["log"] = (sorted(map(tuple_of, s["log"])) for s in (plain, resumed))
    assert plain == resumed


def tuple_of(entry: Any) -> Any:
    """As LangGraph gives tuples back."""
    return str(tuple(entry)) if isinstance(entry, (list, tuple)) else str(entry)


def test_a_command_for_the_parent(bench: Bench) -> None:
    calls: list[int] = []

    @effect_node
    def hand_off(state: State) -> Any:
        calls.append(1)
        return Command(graph=Command.PARENT, goto="right", update={"log": ["handed off"]})

    inner = StateGraph(State)
    inner.add_node("hand_off", hand_off)
    inner.add_edge(START, "hand_off")
    outer = StateGraph(State)
    outer.add_node("sub", inner.compile(), destinations=("right",))
    outer.add_node("right", lambda state: {"log": ["right"]})
    outer.add_node("sibling", fails_once())
    outer.add_edge(START, "sub")
    outer.add_edge(START, "sibling")
    graph = outer.compile(checkpointer=bench.saver)
    done = crash_and_resume(graph, bench.config(), {"n": 1, "log": []})
    assert done["log"] == ["handed off", "right"]
    assert calls == [1]


def test_an_update_that_cannot_be_stored(bench: Bench) -> None:
    """It happened, so it is never run again; the error says so at once and later."""
    import threading

    @effect_node
    def charge(state: State) -> Any:
        bench.world.send(state["n"])
        return {"log": [threading.Lock()]}

    graph, config = bench.graph(charge), bench.config()
    for given in ({"n": 1, "log": []}, None):
        with pytest.raises(EffectResultLost):
            graph.invoke(given, config)
    assert bench.world.sent == [1]


# --- classes -----------------------------------------------------------------------------------


@pytest.mark.optimized
def test_in_doubt_without_a_lookup(either: Bench) -> None:
    @effect_node
    def mail(state: State) -> Any:
        either.world.send(state["n"])
        raise TimeoutError

    graph, config = either.graph(mail, retry_policy=RETRY), either.config()
    with pytest.raises(TimeoutError):
        graph.invoke({"n": 1, "log": []}, config)
    with pytest.raises(EffectInDoubt, match="mail"):
        graph.invoke(None, config)
    assert either.world.sent == [1]


@pytest.mark.optimized
@pytest.mark.parametrize("found", ["committed", "absent", "unknown"])
def test_a_lookup_gives_the_update(either: Bench, found: str) -> None:
    """`compare=` names keys of the state; `result=` is what the node would have returned."""
    faults = [ConnectionError()]

    def find(call: EffectCall) -> Any:
        evidence = {"n": call.arguments["n"]}
        update = Command(update=[("log", ["found"]), ("log", ["by lookup"])])
        answers = {"committed": Committed(evidence, result=update), "absent": Absent()}
        return answers.get(found, Unknown())

    @effect_node(reconcile=find, compare=["n"], settling=0)
    def charge(state: State) -> Any:
        either.world.send(state["n"])
        if faults:
            raise faults.pop()
        return {"log": ["charged"]}

    graph, config = either.graph(charge), either.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"n": 1, "log": []}, config)
    if found == "unknown":
        with pytest.raises(EffectInDoubt):
            graph.invoke(None, config)
        assert either.world.sent == [1]
        return
    done = graph.invoke(None, config)["log"]
    assert done == (["found", "by lookup"] if found == "committed" else ["charged"])
    assert either.world.sent == ([1] if found == "committed" else [1, 1])


async def test_an_async_lookup(either: Bench) -> None:
    async def find(call: EffectCall) -> Any:
        await asyncio.sleep(0)
        return Committed({"n": 1}, result={"log": ["found"]})

    @effect_node(reconcile=find, compare=["n"])
    async def charge(state: State) -> Any:
        either.world.send(state["n"])
        raise ConnectionError

    graph, config = either.graph(charge), either.config()
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"n": 1, "log": []}, config)
    assert (await graph.ainvoke(None, config))["log"] == ["found"]
    assert either.world.sent == [1]


def test_nothing_happened(bench: Bench) -> None:
    faults = [NotSent("402")]

    @effect_node
    def charge(state: State) -> Any:
        bench.world.send(state["n"])
        if faults:
            raise faults.pop()
        return {"log": ["charged"]}

    graph, config = bench.graph(charge), bench.config()
    with pytest.raises(NotSent):
        graph.invoke({"n": 1, "log": []}, config)
    assert graph.invoke(None, config)["log"] == ["charged"]


@pytest.mark.parametrize("named", ["n", lambda state: f"op {state['n']}"], ids=["key", "function"])
def test_a_node_that_names_an_operation(either: Bench, named: Any) -> None:
    """Two threads of one tenant: it happens once, and both get its update."""

    @effect_node(operation_id=named, idempotent=True)
    def charge(state: Narrow, *, idempotency_key: str) -> Any:
        either.world.send(state["n"], idempotency_key)
        return {"log": [f"charged {state['n']}"]}

    graph = either.graph(charge)
    for _ in range(2):
        assert graph.invoke({"n": 5, "log": []}, either.config())["log"] == ["charged 5"]
    assert either.world.sent == [5]


def test_further_parameters_of_an_effect_and_no_others() -> None:
    """`effect_node` knows every parameter of `effect`, except the inverse."""
    effect_node(typed, risk="high", deadline=60)
    for wrong in ({"risc": "high"}, {"compensate": typed}):
        with pytest.raises(Misconfigured, match="takes no"):
            effect_node(typed, **wrong)


# --- definition --------------------------------------------------------------------------------


def typed(state: Narrow) -> Any:
    return {}


@pytest.mark.parametrize(
    ("fn", "settings", "reason"),
    [
        (typed, {"inputs": "n"}, "list of keys"),
        (typed, {"inputs": ["m"]}, "no key 'm'"),
        (typed, {"compare": ["m"], "reconcile": lambda call: Unknown()}, "no key 'm'"),
        (typed, {"inputs": [], "compare": ["n"], "reconcile": lambda call: 0}, "no key 'n'"),
        (typed, {"operation_id": "m"}, "no key 'm'"),
        (typed, {"compare": ["n"]}, "reconcile="),
        (typed, {"idempotent": True}, "idempotency_key"),
        (dict, {"name": "x"}, "first parameter is the state"),
        (lambda *, state: {}, {"name": "x"}, "first parameter is the state"),
    ],
)
def test_contradictions_are_refused_at_definition(fn: Any, settings: Any, reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason):
        effect_node(fn, **settings)


def test_a_sync_node_of_an_async_run(bench: Bench) -> None:
    """LangGraph runs it in a thread of its own, where it may wait."""

    @effect_node
    def charge(state: State) -> Any:
        return {"log": [bench.world.send(state["n"])]}

    graph = bench.graph(charge)
    done = asyncio.run(graph.ainvoke({"n": 1, "log": []}, bench.config()))
    assert done["log"] == [1]


def test_without_our_saver() -> None:
    builder = StateGraph(State)
    builder.add_node("work", effect_node(lambda state: {}, name="work"))
    builder.add_edge(START, "work")
    with pytest.raises(Misuse, match="compiled with a SurefootSaver"):
        builder.compile().invoke({"log": []})
