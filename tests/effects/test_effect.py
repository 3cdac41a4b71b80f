"""`@effect`: what touches the world happens once, whatever happens around it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.errors import GraphBubbleUp
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from tests.effects.conftest import Bench, State

from surefoot import (
    Absent,
    Committed,
    Conflicting,
    EffectCall,
    Keyring,
    NotSent,
    ResumePolicy,
    SurefootSaver,
    Unknown,
    effect,
)
from surefoot.errors import (
    BarrierTimeout,
    EffectConflict,
    EffectInDoubt,
    EffectResultLost,
    Fenced,
    KeyMissing,
    Misconfigured,
    Misuse,
    NotStorable,
    SaveFailed,
    StoreUnavailable,
    SurefootError,
)
from surefoot.flows.views import viewing
from surefoot.keys import Key
from surefoot.rules.bodies import EffectBody
from surefoot.rules.envelope import Kind


@pytest.fixture(autouse=True)
def _two_of_a_name(_own_hooks: None) -> Iterator[None]:
    """Another effect is called the same, so receivers are asked where the run calls the effect.

    What is asked before the first node is tested in test_ask_first.py.
    """

    @effect(name="pay", reconcile=lambda call: Unknown())
    def another(amount: int) -> None: ...

    yield
    del another


RETRY = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False)


class Boom(Exception):
    """The node, or the process in it, fails."""


def fails_once(after: Callable[[], Any]) -> Callable[[Any], Any]:
    """A node that works, and fails the first time, after it has worked."""
    tries: list[int] = []

    def node(state: Any) -> Any:
        result = after()
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {"log": [result]}

    return node


def lookup(*answers: Any) -> Callable[[EffectCall], Any]:
    """A hook that gives these answers one after the other, the last one for ever."""
    left = list(answers)

    def ask(call: EffectCall) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        answer = answer(call) if callable(answer) else answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return ask


def make(bench: Bench, kind: str, **settings: Any) -> Callable[..., Any]:
    """An effect of a class; its body is ``world.send``, then what ``fault`` says."""
    fault = settings.pop("fault", lambda: None)
    if kind == "K":

        @effect(name="pay", idempotent=True, **settings)
        def keyed(amount: int, *, idempotency_key: str) -> int:
            bench.world.send(amount, idempotency_key)
            fault()
            return amount * 10

        return keyed
    if kind == "L":
        settings.setdefault("reconcile", lookup(Unknown()))

    @effect(name="pay", **settings)
    def plain(amount: int, *, call: EffectCall) -> int:
        bench.world.send(amount, call.key)
        fault()
        return amount * 10

    return plain


def once(*steps: Any) -> Callable[[], None]:
    """Raises the steps that are exceptions, one for each call; then nothing happens."""
    left = list(steps)

    def fault() -> None:
        if left:
            step = left.pop(0)
            if step is not None:
                raise step

    return fault


# --- the plain path ----------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_runs_once_and_is_replayed_on_resume(either: Bench, kind: str, durability: str) -> None:
    """The node fails after its effect: the next attempt gets the recorded result."""
    pay = make(either, kind)
    graph, config = either.graph(fails_once(lambda: pay(7))), either.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config, durability=durability)
    assert either.world.sent == [7]
    assert graph.invoke(None, config, durability=durability)["log"] == [70]
    assert either.world.sent == [7]


@pytest.mark.parametrize("kind", ["K", "L", "N"])
async def test_runs_once_on_a_loop(either: Bench, kind: str) -> None:
    hook: dict[str, Any] = {}
    if kind == "K":
        hook = {"idempotent": True}
    elif kind == "L":

        async def ask(call: EffectCall) -> Any:
            return Unknown()

        hook = {"reconcile": ask}

    @effect(name="pay", **hook)
    async def pay(amount: int, *, call: EffectCall) -> int:
        await asyncio.sleep(0)
        return int(either.world.send(amount, call.key)) * 10

    tries: list[int] = []

    async def node(state: State) -> State:
        result = await pay(7)
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {"log": [result]}

    graph, config = either.graph(node), either.config()
    with pytest.raises(Boom):
        await graph.ainvoke({"log": []}, config)
    assert (await graph.ainvoke(None, config))["log"] == [70]
    assert either.world.sent == [7]


async def test_an_async_node_may_pass_its_config_on(bench: Bench) -> None:
    """The way for Python 3.10; the config is no part of what is meant."""
    tries: list[int] = []

    @effect
    async def pay(amount: int, config: RunnableConfig) -> int:
        return int(bench.world.send(amount))

    async def node(state: State, config: RunnableConfig) -> State:
        result = await pay(3, config)
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {"log": [result]}

    graph, thread = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        await graph.ainvoke({"log": []}, thread)
    assert (await graph.ainvoke(None, thread))["log"] == [3]
    assert bench.world.sent == [3]


def test_a_run_without_faults(bench: Bench) -> None:
    pay = make(bench, "N")
    graph = bench.graph(lambda s: {"log": [pay(1)]}, lambda s: {"log": [pay(2)]})
    config = bench.config()
    assert graph.invoke({"log": []}, config)["log"] == [10, 20]
    assert graph.invoke({"log": []}, config)["log"] == [10, 20, 10, 20]
    assert bench.world.sent == [1, 2, 1, 2], "a new turn means new effects"


def test_what_the_caller_gets_is_what_a_replay_gives(bench: Bench) -> None:
    @effect
    def pay(amount: int) -> Any:
        return {"pair": (1, amount), "bytes": bytearray(b"x")}

    seen: list[Any] = []
    node = fails_once(lambda: seen.append(pay(2)))
    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    graph.invoke(None, config)
    assert seen == [{"pair": [1, 2], "bytes": b"x"}] * 2


def test_a_whole_node_as_one_effect(bench: Bench) -> None:
    """State is its semantic input; what LangGraph injects is not."""
    tries: list[int] = []

    @effect(name="node", inputs=["state"])
    def node(state: State, config: RunnableConfig) -> State:
        bench.world.send(state["n"])
        return {"log": [config["configurable"]["thread_id"]]}

    def after(state: State) -> State:
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {}

    builder = StateGraph(State)
    builder.add_node("a", node)
    builder.add_node("b", after)
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config("mine")
    with pytest.raises(Boom):
        graph.invoke({"n": 5, "log": []}, config)
    assert graph.invoke(None, config)["log"] == ["mine"]
    assert bench.world.sent == [5]


@pytest.mark.parametrize("way", ["other arguments", "call ids"])
def test_inside_a_functional_workflow(bench: Bench, way: str) -> None:
    pay: Any = make(bench, "N")
    tries: list[int] = []

    @task
    def work(amount: int, name: str) -> int:
        return int(pay(amount, call_id=name) if way == "call ids" else pay(amount))

    @entrypoint(checkpointer=bench.saver)
    def flow(amounts: list[int]) -> list[int]:
        done = [work(a, f"call {n}").result() for n, a in enumerate(amounts)]
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return done

    amounts = [3, 3] if way == "call ids" else [3, 4]
    config = bench.config()
    with pytest.raises(Boom):
        flow.invoke(amounts, config)
    assert bench.world.sent == amounts
    assert flow.invoke(None, config) == [a * 10 for a in amounts]
    assert bench.world.sent == amounts


def test_equal_calls_of_a_functional_workflow_need_call_ids(bench: Bench) -> None:
    """A retry of the task would look exactly like the second call: nobody guesses."""
    pay = make(bench, "N")

    @task
    def work(amount: int) -> int:
        return int(pay(amount))

    @entrypoint(checkpointer=bench.saver)
    def flow(amount: int) -> list[int]:
        return [work(amount).result(), work(amount).result()]

    with pytest.raises(Misuse, match="call_id="):
        flow.invoke(3, bench.config())
    assert bench.world.sent == [3]


# --- classes and outcomes ----------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_not_sent_may_run_again_with_other_arguments(either: Bench, kind: str) -> None:
    """A proven failure stays retryable (case 17)."""
    amounts = iter([1, 2])
    pay = make(either, kind, fault=once(NotSent("402")))
    graph, config = either.graph(lambda s: {"log": [pay(next(amounts))]}), either.config()
    with pytest.raises(NotSent):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [20]
    assert either.world.sent == [1, 2]
    assert len(set(either.world.keys)) == 1, "the same place has the same key"


def test_a_proven_failure_is_no_success_for_ever(bench: Bench) -> None:
    pay = make(bench, "N", fault=once(NotSent(), NotSent(), NotSent()))
    graph, config = bench.graph(lambda s: {"log": [pay(1)]}), bench.config()
    for _ in range(3):
        with pytest.raises(NotSent):
            graph.invoke(None if bench.world.count else {"log": []}, config)
    assert graph.invoke(None, config)["log"] == [10]
    assert bench.world.count == 4


@pytest.mark.optimized
def test_class_k_is_sent_again_with_the_same_key(either: Bench) -> None:
    pay = make(either, "K", fault=once(ConnectionError()))
    graph, config = either.graph(lambda s: {"log": [pay(1)]}), either.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [10]
    assert either.world.sent == [1, 1]
    assert len(set(either.world.keys)) == 1


@pytest.mark.optimized
def test_class_n_is_never_sent_again(either: Bench) -> None:
    """The lost answer is unknown, never failed (case 8)."""
    pay = make(either, "N", fault=once(TimeoutError()))
    graph, config = either.graph(lambda s: {"log": [pay(1)]}), either.config()
    with pytest.raises(TimeoutError):
        graph.invoke({"log": []}, config)
    for _ in range(2):
        with pytest.raises(EffectInDoubt) as caught:
            graph.invoke(None, config)
    assert either.world.sent == [1]
    error = caught.value
    assert (error.effect, error.thread) == ("pay", config["configurable"]["thread_id"])
    assert error.key == either.world.keys[0]
    assert error.state == "in_doubt"
    assert "n0" in error.position


@pytest.mark.optimized
def test_class_l_takes_what_the_lookup_found(either: Bench) -> None:
    hook = lookup(lambda call: Committed({"amount": call.arguments["amount"], "id": "ch_1"}))
    pay = make(either, "L", reconcile=hook, compare=["amount"], fault=once(ConnectionError()))
    graph, config = either.graph(lambda s: {"log": [pay(1)]}), either.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [{"amount": 1, "id": "ch_1"}]
    assert either.world.sent == [1]


def test_a_hook_may_give_the_result_that_the_body_would_have_given(bench: Bench) -> None:
    hook = lookup(Committed({"id": 1}, result=99))
    pay = make(bench, "L", reconcile=hook, fault=once(ConnectionError()))
    node = fails_once(lambda: pay(1))
    graph, config = bench.graph(node), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    with pytest.raises(Boom):
        graph.invoke(None, config)
    assert graph.invoke(None, config)["log"] == [99], "what was reconciled is replayed"


@pytest.mark.parametrize("strong", [True, False])
def test_class_l_runs_again_when_it_is_proven_absent(either: Bench, strong: bool) -> None:
    """From a strong lookup at once, otherwise only after a second read (case 21)."""
    asked: list[str] = []

    def hook(call: EffectCall) -> Any:
        asked.append(call.key)
        return Absent()

    pay = make(
        either,
        "L",
        reconcile=hook,
        settling=0,
        lookup="strong" if strong else "settling",
        fault=once(ConnectionError()),
    )
    graph, config = either.graph(lambda s: {"log": [pay(1)]}), either.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [10]
    assert either.world.sent == [1, 1]
    assert len(set(either.world.keys)) == 1
    assert len(asked) == (1 if strong else 2)


def test_absent_now_and_found_later(bench: Bench) -> None:
    """An eventually consistent lookup: the second read finds it (case 21)."""
    hook = lookup(Absent(), Committed({"amount": 1}))
    pay = make(
        bench, "L", reconcile=hook, compare=["amount"], settling=0, fault=once(ConnectionError())
    )
    graph, config = bench.graph(lambda s: {"log": [pay(1)]}), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [{"amount": 1}]
    assert bench.world.sent == [1]


def test_absent_does_not_count_before_the_settling_time(bench: Bench) -> None:
    clock = Clock(bench.saver)
    asked: list[int] = []

    def hook(call: EffectCall) -> Any:
        asked.append(clock.ms)
        return Absent()

    pay = make(
        bench, "L", reconcile=hook, settling=3, lookup="strong", fault=once(ConnectionError())
    )
    graph, config = bench.graph(lambda s: {"log": [pay(1)]}), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    acquired = clock.ms
    assert graph.invoke(None, config)["log"] == [10]
    assert asked[-1] - acquired >= 3_000, "the answer that counted came late enough"
    assert asked[0] - acquired < 3_000, "and it was asked before"
    assert bench.world.sent == [1, 1]


class Clock:
    """A host whose monotonic clock moves only when somebody waits."""

    def __init__(self, saver: SurefootSaver) -> None:
        import dataclasses

        self._inner = saver.core.ports.host
        self.ms = 1_000_000
        saver.core.ports = dataclasses.replace(saver.core.ports, host=self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def monotonic_ms(self) -> int:
        return self.ms

    def pause(self, milliseconds: int) -> None:
        self.ms += milliseconds


REVIEWED = [
    pytest.param(Committed({"amount": 2}), "'amount' differs", id="another amount"),
    pytest.param(Committed({}), "lacks 'amount'", id="no amount"),
    pytest.param(Committed(None), "lacks 'amount'", id="nothing"),
    pytest.param(Conflicting([{"id": 1}, {"id": 2}], "two charges"), "two charges", id="several"),
    pytest.param(Conflicting(threading.Lock()), "something else", id="evidence unstorable"),
]


@pytest.mark.optimized
@pytest.mark.parametrize(("answer", "reason"), REVIEWED)
def test_what_does_not_match_goes_to_review(bench: Bench, answer: Any, reason: str) -> None:
    """Case 22: review, and it stays there, whatever the lookup says later."""
    hook = lookup(answer, Committed({"amount": 1}))
    pay = make(bench, "L", reconcile=hook, compare=["amount"], fault=once(ConnectionError()))
    graph, config = bench.graph(lambda s: {"log": [pay(1)]}), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    with pytest.raises(EffectInDoubt, match="needs_review") as caught:
        graph.invoke(None, config)
    assert reason in str(caught.value)
    with pytest.raises(EffectInDoubt, match="a person decides"):
        graph.invoke(None, config)
    assert bench.world.sent == [1]


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Unknown(), "did not say"),
        (Unknown("the gateway is down"), "the gateway is down"),
        (TimeoutError("secret"), "the lookup raised TimeoutError"),
        (None, "the lookup returned NoneType"),
        (True, "the lookup returned bool"),
        ("committed", "the lookup returned str"),
        (Committed, "the lookup"),
    ],
    ids=repr,
)
def test_what_says_nothing_proves_nothing(bench: Bench, answer: Any, reason: str) -> None:
    """It stays in doubt, and a later lookup may still settle it."""
    first = (lambda call: Committed) if answer is Committed else answer
    hook = lookup(first, Committed({"amount": 1}))
    pay = make(bench, "L", reconcile=hook, compare=["amount"], fault=once(ConnectionError()))
    graph, config = bench.graph(lambda s: {"log": [pay(1)]}), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    with pytest.raises(EffectInDoubt) as caught:
        graph.invoke(None, config)
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)
    assert graph.invoke(None, config)["log"] == [{"amount": 1}]
    assert bench.world.sent == [1]


async def test_an_async_hook_is_asked_on_the_loop(either: Bench) -> None:
    loops: list[Any] = []

    async def ask(call: EffectCall) -> Any:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return Committed({"amount": call.arguments["amount"]}, result="found")

    fault = once(ConnectionError())

    @effect(name="pay", reconcile=ask, compare=["amount"])
    async def pay(amount: int) -> int:
        either.world.send(amount)
        fault()
        return amount

    async def node(state: State) -> State:
        return {"log": [await pay(4)]}

    graph, config = either.graph(node), either.config()
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"log": []}, config)
    assert (await graph.ainvoke(None, config))["log"] == ["found"]
    assert loops == [asyncio.get_running_loop()]
    assert either.world.sent == [4]


async def test_a_sync_hook_of_an_async_effect(bench: Bench) -> None:
    fault = once(ConnectionError())

    @effect(name="pay", reconcile=lookup(Committed("ok")))
    async def pay(amount: int) -> int:
        fault()
        return amount

    async def node(state: State) -> State:
        return {"log": [await pay(4)]}

    graph, config = bench.graph(node), bench.config()
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"log": []}, config)
    assert (await graph.ainvoke(None, config))["log"] == ["ok"]


def test_a_hook_that_is_gone_leaves_it_in_doubt(bench: Bench) -> None:
    """Declared L when it was sent, N by the program that resumes: a person decides."""
    first = make(bench, "L", fault=once(ConnectionError()))
    config = bench.config()
    with pytest.raises(ConnectionError):
        bench.graph(lambda s: {"log": [first(1)]}).invoke({"log": []}, config)
    second = make(bench, "N")
    with pytest.raises(EffectInDoubt):
        bench.graph(lambda s: {"log": [second(1)]}).invoke(None, config)
    assert bench.world.sent == [1]


# --- other arguments (cases 9, 16) ---------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("kind", ["K", "L", "N"])
@pytest.mark.parametrize("fault", [None, ConnectionError()], ids=["succeeded", "in doubt"])
def test_case_09_other_arguments_at_the_same_place(either: Bench, kind: str, fault: Any) -> None:
    amounts = iter([1, 2, 2])
    pay = make(
        either, kind, fault=once(fault), **({"reconcile": lookup(Absent())} if kind == "L" else {})
    )

    def node(state: State) -> State:
        pay(next(amounts))
        raise Boom

    graph, config = either.graph(node), either.config()
    with pytest.raises((Boom, ConnectionError)):
        graph.invoke({"log": []}, config)
    for _ in range(2):
        with pytest.raises(EffectConflict) as caught:
            graph.invoke(None, config)
    assert either.world.sent == [1]
    assert caught.value.effect == "pay"
    assert caught.value.thread == config["configurable"]["thread_id"]
    assert len(caught.value.slot) == 64
    assert caught.value.differs == ["amount"]
    assert caught.value.recorded != caught.value.proposed
    assert caught.value.key == either.world.keys[0]
    held = newest_effect(either, config)
    assert held.conflict is not None  # what was proposed is kept beside what is recorded
    assert held.state == ("succeeded" if fault is None else held.state)


def newest_effect(bench: Bench, config: dict[str, Any]) -> EffectBody:
    """The newest record of an effect of a thread."""

    def newest(chain: Any) -> EffectBody:
        record = next(r for r in chain.walk() if r.kind is Kind.EFFECT)
        return EffectBody.unpack(record.schema, record.body)

    thread = config["configurable"]["thread_id"]
    return viewing(bench.saver.core.ports, thread, newest)


@pytest.mark.parametrize("order", [("shop-1", "shop-2")])
def test_an_argument_counts_whatever_its_name(bench: Bench, order: tuple[str, str]) -> None:
    """``store`` and ``config`` are words of other trades, too."""
    shops = iter(order)

    @effect
    def buy(store, config, previous):
        bench.world.send(store)
        return store

    def node(state: State) -> State:
        buy(next(shops), 1, 2)
        raise Boom

    graph, thread = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, thread)
    with pytest.raises(EffectConflict):
        graph.invoke(None, thread)
    assert bench.world.sent == ["shop-1"]


@pytest.mark.parametrize(
    ("inputs", "same"),
    [
        (["invoice"], True),
        (["amount"], False),
        (["invoice", "amount"], False),
        (lambda invoice, amount: invoice, True),
        (lambda invoice, amount: {"amount": amount}, False),
    ],
)
def test_inputs_name_what_is_meant(bench: Bench, inputs: Any, same: bool) -> None:
    amounts = iter([1, 2])

    @effect(inputs=inputs)
    def pay(invoice: str, amount: int) -> int:
        return int(bench.world.send(amount))

    node = fails_once(lambda: pay("INV-1", next(amounts)))
    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    if same:
        assert graph.invoke(None, config)["log"] == [1]
    else:
        with pytest.raises(EffectConflict):
            graph.invoke(None, config)
    assert bench.world.sent == [1]


def test_defaults_and_keywords_do_not_change_what_is_meant(bench: Bench) -> None:
    spellings: Any = iter([((1,), {}), ((), {"currency": "EUR", "amount": 1})])

    @effect
    def pay(amount: int, currency: str = "EUR") -> int:
        return int(bench.world.send(amount))

    def spelled() -> int:
        positional, named = next(spellings)
        return int(pay(*positional, **named))

    node = fails_once(spelled)
    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [1]
    assert bench.world.sent == [1]


# --- retries and repeats (cases 7, 10) -----------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_case_07_a_retry_policy_and_an_effect_that_commits(either: Bench, kind: str) -> None:
    pay = make(either, kind)
    graph = either.graph(fails_once(lambda: pay(1)), retry_policy=RETRY)
    assert graph.invoke({"log": []}, either.config())["log"] == [10]
    assert either.world.sent == [1]


@pytest.mark.optimized
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_case_07_a_retry_of_the_node_that_called_a_subgraph(
    either: Bench, kind: str, steps: int
) -> None:
    """The subgraph's checkpoint has folded the effect, and the retry enters it from its start."""
    pay = make(either, kind)
    inner = StateGraph(State)
    names = [START]
    for number in range(steps):
        inner.add_node(f"leaf{number}", lambda s, n=number: {"log": [pay(n)]})
        inner.add_edge(names[-1], f"leaf{number}")
        names.append(f"leaf{number}")
    sub = inner.compile()
    node = fails_once(lambda: sub.invoke({"log": []})["log"])
    graph = either.graph(node, lambda s: {"log": [pay(9)]}, retry_policy=RETRY)
    config = either.config()
    assert graph.invoke({"log": []}, config)["log"] == [[n * 10 for n in range(steps)], 90]
    assert len(set(either.world.keys)) == steps + 1
    assert either.world.sent == [*range(steps), 9], "nothing is sent twice, not even to K"


def test_a_retry_policy_and_a_body_that_raises(bench: Bench) -> None:
    """N: the second attempt of the policy stops, and is not tried a third time."""
    pay = make(bench, "N", fault=once(ConnectionError(), None))
    graph = bench.graph(lambda s: {"log": [pay(1)]}, retry_policy=RETRY._replace(max_attempts=5))
    with pytest.raises(EffectInDoubt):
        graph.invoke({"log": []}, bench.config())
    assert bench.world.sent == [1]


def test_a_retry_policy_and_a_lookup(bench: Bench) -> None:
    pay = make(
        bench, "L", reconcile=lookup(Committed("found")), fault=once(ConnectionError(), None)
    )
    graph = bench.graph(lambda s: {"log": [pay(1)]}, retry_policy=RETRY)
    assert graph.invoke({"log": []}, bench.config())["log"] == ["found"]
    assert bench.world.sent == [1]


@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_case_10_twice_in_one_node(either: Bench, kind: str) -> None:
    pay = make(either, kind)
    node = fails_once(lambda: [pay(1), pay(1)])
    graph, config = either.graph(node), either.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [[10, 10]]
    assert either.world.sent == [1, 1]
    assert len(set(either.world.keys)) == 2


def test_case_10_the_second_one_fails(bench: Bench) -> None:
    pay = make(bench, "K", fault=once(None, ConnectionError()))
    graph, config = bench.graph(lambda s: {"log": [pay(1), pay(1)]}), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [10, 10]
    keys = bench.world.keys
    assert len(keys) == 3
    assert keys[1] == keys[2] != keys[0]


def test_case_10_in_two_super_steps(bench: Bench) -> None:
    pay = make(bench, "N")
    node = fails_once(lambda: pay(1))
    graph, config = bench.graph(lambda s: {"log": [pay(1)]}, node), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [10, 10]
    assert bench.world.sent == [1, 1]
    assert len(set(bench.world.keys)) == 2


@pytest.mark.optimized
def test_case_10_in_a_loop(bench: Bench) -> None:
    pay = make(bench, "N")
    builder = StateGraph(State)
    builder.add_node("a", lambda s: {"n": s["n"] - 1, "log": [pay(1)]})
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", lambda s: "a" if s["n"] else END)
    graph = builder.compile(checkpointer=bench.saver)
    assert graph.invoke({"n": 3, "log": []}, bench.config())["log"] == [10, 10, 10]
    assert len(set(bench.world.keys)) == 3


def test_case_10_in_parallel_branches(either: Bench) -> None:
    pay = make(either, "N")
    builder = StateGraph(State)
    for name, node in {
        "a": lambda s: {"log": [pay(1)]},
        "b": lambda s: {"log": [pay(1)]},
        "c": fails_once(lambda: pay(1)),
    }.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    graph, config = builder.compile(checkpointer=either.saver), either.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [10, 10, 10]
    assert len(set(either.world.keys)) == 3
    assert either.world.count <= 3


def test_case_10_in_two_sends_with_the_same_payload(either: Bench) -> None:
    pay = make(either, "N")
    tries: list[int] = []

    def worker(state: State) -> State:
        result = pay(state["n"])
        tries.append(1)
        if len(tries) == 2:
            raise Boom
        return {"log": [result]}

    builder = StateGraph(State)
    builder.add_node("worker", worker)
    builder.add_conditional_edges(START, lambda s: [Send("worker", {"n": 5})] * 3)
    graph, config = builder.compile(checkpointer=either.saver), either.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [50, 50, 50]
    assert either.world.count == 3
    assert len(set(either.world.keys)) == 3


# --- interrupts and subgraphs (cases 13, 14) -----------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_an_interrupt_after_an_effect(either: Bench, kind: str) -> None:
    pay = make(either, kind)

    def node(state: State) -> State:
        paid = pay(1)
        return {"log": [paid, interrupt("sure?")]}

    graph, config = either.graph(node), either.config()
    graph.invoke({"log": []}, config)
    assert graph.invoke(Command(resume="yes"), config)["log"] == [10, "yes"]
    assert either.world.sent == [1]


def test_case_14_a_loop_of_interrupts_with_an_effect_before_each(bench: Bench) -> None:
    pay = make(bench, "N")

    def node(state: State) -> State:
        log = []
        for number in range(3):
            log += [pay(number), interrupt(number)]
        return {"log": log}

    graph, config = bench.graph(node), bench.config()
    graph.invoke({"log": []}, config)
    for answer in "ab":
        graph.invoke(Command(resume=answer), config)
    assert graph.invoke(Command(resume="c"), config)["log"] == [0, "a", 10, "b", 20, "c"]
    assert bench.world.sent == [0, 1, 2]


def test_case_14_two_interrupts_of_which_one_is_answered(bench: Bench) -> None:
    pay = make(bench, "N")
    builder = StateGraph(State)
    for name in ("a", "b"):

        def node(state: State, name: str = name) -> State:
            return {"log": [(name, pay(name), interrupt(name))]}

        builder.add_node(name, node)
        builder.add_edge(START, name)
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    asked = graph.invoke({"log": []}, config)["__interrupt__"]
    first = next(i for i in asked if i.value == "a")
    second = next(i for i in asked if i.value == "b")
    graph.invoke(Command(resume={first.id: 1}), config)
    done = graph.invoke(Command(resume={second.id: 2}), config)
    assert sorted(map(list, done["log"])) == [["a", "a" * 10, 1], ["b", "b" * 10, 2]]
    assert sorted(bench.world.sent) == ["a", "b"]


@pytest.mark.parametrize("own", [None, True], ids=["inherited", "own checkpoints"])
def test_case_13_an_interrupt_in_a_subgraph(either: Bench, own: Any) -> None:
    pay = make(either, "N")

    def pays(state: State) -> State:
        return {"log": [pay(1)]}

    def asks(state: State) -> State:
        return {"log": [interrupt("one"), interrupt("two")]}

    inner = StateGraph(State)
    inner.add_node("pays", pays)
    inner.add_node("asks", asks)
    inner.add_edge(START, "pays")
    inner.add_edge("pays", "asks")
    sub = inner.compile(checkpointer=own)

    def parent(state: State) -> State:
        own_payment = pay(2)
        return {"log": [own_payment, *sub.invoke({"log": []})["log"]]}

    graph, config = either.graph(parent), either.config()
    graph.invoke({"log": []}, config)
    graph.invoke(Command(resume="a"), config)
    assert graph.invoke(Command(resume="b"), config)["log"] == [20, 10, "a", "b"]
    assert sorted(either.world.sent) == [1, 2]


def test_an_effect_in_a_subgraph_node(bench: Bench) -> None:
    pay = make(bench, "N")
    inner = StateGraph(State)
    inner.add_node("pays", fails_once(lambda: pay(1)))
    inner.add_edge(START, "pays")
    builder = StateGraph(State)
    builder.add_node("sub", inner.compile())
    builder.add_edge(START, "sub")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [10]
    assert bench.world.sent == [1]


def test_the_same_effect_in_two_subgraphs(bench: Bench) -> None:
    pay = make(bench, "N")
    inner = StateGraph(State)
    inner.add_node("pays", lambda s: {"log": [pay(1)]})
    inner.add_edge(START, "pays")
    builder = StateGraph(State)
    for name in ("one", "two"):
        builder.add_node(name, inner.compile())
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=bench.saver)
    assert graph.invoke({"log": []}, bench.config())["log"] == [10, 10]
    assert len(set(bench.world.keys)) == 2


# --- concurrent calls --------------------------------------------------------------------------


def slow_effect(bench: Bench) -> Callable[..., Any]:
    """An async effect whose bodies wait for each other's start before they end."""

    @effect(name="pay")
    async def pay(amount: int, *, call: EffectCall) -> int:
        bench.world.send(amount, call.key)
        await asyncio.sleep(0.05)
        return amount * 10

    return pay


async def test_call_ids_tell_concurrent_calls_apart(either: Bench) -> None:
    pay = slow_effect(either)
    tries: list[int] = []

    async def node(state: State) -> State:
        order = ["x", "y", "z"] if not tries else ["z", "y", "x"]
        done = dict(
            zip(order, await asyncio.gather(*(pay(ord(i), call_id=i) for i in order)), strict=True)
        )
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {"log": [done]}

    graph, config = either.graph(node), either.config()
    with pytest.raises(Boom):
        await graph.ainvoke({"log": []}, config)
    assert (await graph.ainvoke(None, config))["log"] == [{"x": 1200, "y": 1210, "z": 1220}]
    assert sorted(either.world.sent) == [120, 121, 122]
    assert len(set(either.world.keys)) == 3


@pytest.mark.optimized
async def test_concurrent_calls_without_a_call_id_are_refused(bench: Bench) -> None:
    pay = slow_effect(bench)

    async def node(state: State) -> State:
        return {"log": await asyncio.gather(pay(1), pay(1), pay(1))}

    with pytest.raises(Misuse, match="call_id="):
        await bench.graph(node).ainvoke({"log": []}, bench.config())
    assert bench.world.count <= 1


@pytest.mark.parametrize("kind", ["K", "L", "N"])
async def test_two_concurrent_calls_with_one_call_id_are_sent_once(bench: Bench, kind: str) -> None:
    settings: dict[str, Any] = {"K": {"idempotent": True}, "N": {}}.get(kind) or {}
    if kind == "L":
        settings = {"reconcile": lookup(Absent()), "lookup": "strong", "settling": 0}

    @effect(name="pay", **settings)
    async def pay(amount: int, *, call: EffectCall) -> int:
        bench.world.send(amount)
        await asyncio.sleep(0.1)
        return amount

    async def node(state: State) -> State:
        done = await asyncio.gather(
            pay(1, call_id="a"), pay(1, call_id="a"), return_exceptions=True
        )
        return {"log": [type(d).__name__ for d in done]}

    log = (await bench.graph(node).ainvoke({"log": []}, bench.config()))["log"]
    assert sorted(log) == ["Misuse", "int"]
    assert bench.world.count == 1


def test_threads_of_one_node_need_call_ids_as_well(bench: Bench) -> None:
    from contextvars import copy_context

    entered, go = threading.Event(), threading.Event()

    @effect(name="pay")
    def pay(amount: int) -> int:
        entered.set()
        go.wait(10)
        return int(bench.world.send(amount))

    def node(state: State) -> State:
        thread = threading.Thread(target=copy_context().run, args=(pay, 1))
        thread.start()
        entered.wait(10)
        try:
            pay(2)
        finally:
            go.set()
            thread.join()
        return {}

    with pytest.raises(Misuse, match="call_id="):
        bench.graph(node).invoke({"log": []}, bench.config())
    assert bench.world.sent == [1]


# --- misuse ------------------------------------------------------------------------------------


@pytest.mark.optimized
def test_outside_a_run(bench: Bench) -> None:
    pay = make(bench, "N")
    with pytest.raises(Misuse, match="outside a run"):
        pay(1)
    assert bench.world.sent == []


async def test_outside_a_run_on_a_loop(bench: Bench) -> None:
    pay = slow_effect(bench)
    with pytest.raises(Misuse, match="outside a run"):
        await pay(1)


def test_in_a_run_without_our_saver(bench: Bench) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    pay = make(bench, "N")
    graph = bench.graph(lambda s: {"log": [pay(1)]}, saver=InMemorySaver())  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="SurefootSaver"):
        graph.invoke({"log": []}, bench.config())
    assert bench.world.sent == []


@pytest.mark.optimized
async def test_a_sync_effect_on_the_loop_of_the_run(bench: Bench) -> None:
    """It could never be served: it is refused, not left hanging."""
    pay = make(bench, "N")

    async def node(state: State) -> State:
        return {"log": [pay(1)]}

    with pytest.raises(Misuse, match="make it async"):
        await asyncio.wait_for(bench.graph(node).ainvoke({"log": []}, bench.config()), 20)
    assert bench.world.sent == []


async def test_a_sync_effect_in_a_thread_of_an_async_run(bench: Bench) -> None:
    pay = make(bench, "N")

    async def node(state: State) -> State:
        return {"log": [await asyncio.to_thread(pay, 1)]}

    async def plain(state: State) -> State:
        return {}

    graph = bench.graph(node, lambda s: {"log": [pay(2)]}, plain)
    assert (await graph.ainvoke({"log": []}, bench.config()))["log"] == [10, 20]


async def test_a_synchronous_run_on_a_loop(bench: Bench) -> None:
    """As in a notebook: the loop has no part in it, so there is nothing to refuse."""
    pay = make(bench, "N")
    for durability in ("sync", "async"):
        graph = bench.graph(lambda s: {"log": [pay(1)]})
        done = graph.invoke({"log": []}, bench.config(), durability=durability)  # type: ignore[arg-type]
        assert done["log"] == [10]


@pytest.mark.optimized
@pytest.mark.parametrize(("kind", "runs"), [("K", True), ("L", False), ("N", False)])
def test_durability_exit(either: Bench, kind: str, runs: bool) -> None:
    pay = make(either, kind)
    graph, config = either.graph(fails_once(lambda: pay(1))), either.config()
    if not runs:
        with pytest.raises(Misuse, match="exit"):
            graph.invoke({"log": []}, config, durability="exit")
        assert either.world.sent == []
        return
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config, durability="exit")
    assert graph.invoke(None, config, durability="exit")["log"] == [10]
    assert len(set(either.world.keys)) == 1


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"idempotent": True}, "idempotency_key"),
        ({"compare": ["amount"]}, "reconcile="),
        ({"lookup": "weak"}, "lookup"),
        ({"settling": -1}, "settling"),
    ],
)
def test_contradictions_are_refused_at_decoration(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Misconfigured, match=field):

        @effect(**settings)
        def pay(amount: int) -> int:
            return amount


def test_what_cannot_be_an_effect_is_refused_at_decoration() -> None:
    @tool
    def a_tool(amount: int) -> int:
        """Pays."""
        return amount

    def generator(amount: int) -> Any:
        yield amount

    async def async_generator(amount: int) -> Any:
        yield amount

    for thing in (generator, async_generator, a_tool, 5):
        with pytest.raises(Misconfigured):
            effect(thing)  # type: ignore[arg-type]


def test_a_typo_in_compare_is_refused_at_decoration() -> None:
    with pytest.raises(Misconfigured, match="amout"):

        @effect(reconcile=lookup(Unknown()), compare=["amout"])
        def pay(amount: int) -> int:
            return amount


def test_an_async_hook_of_a_sync_effect_is_refused_at_decoration() -> None:
    async def ask(call: EffectCall) -> Any:
        return Unknown()

    with pytest.raises(Misconfigured, match="reconcile"):

        @effect(reconcile=ask)
        def pay(amount: int) -> int:
            return amount


def test_a_call_with_missing_arguments_leaves_no_trace(bench: Bench) -> None:
    """A slip of the program is no effect in doubt: the corrected program goes on."""

    @effect
    def pay(amount: int, currency: str, *, idempotency_key: str) -> int:
        return int(bench.world.send(amount))

    calls = iter([lambda: pay(1), lambda: pay(1, "EUR", "GBP"), lambda: pay(1, "EUR")])  # type: ignore[call-arg]
    graph, config = bench.graph(lambda s: {"log": [next(calls)()]}), bench.config()
    for first in ({"log": []}, None):
        with pytest.raises(TypeError):
            graph.invoke(first, config)
    assert graph.invoke(None, config)["log"] == [1]
    assert bench.world.sent == [1]


def test_a_function_that_returns_an_awaitable_was_not_run(bench: Bench) -> None:
    async def real(amount: int) -> int:
        return int(bench.world.send(amount))

    @effect(name="pay")
    def wrong(amount: int) -> Any:
        return real(amount)

    right = make(bench, "N")
    ways = iter([wrong, right])
    graph, config = bench.graph(lambda s: {"log": [next(ways)(1)]}), bench.config()
    with pytest.raises(Misuse, match="await"):
        graph.invoke({"log": []}, config)
    gc.collect()
    assert graph.invoke(None, config)["log"] == [10]
    assert bench.world.sent == [1]


def test_arguments_without_a_canonical_form_are_refused_before_anything(bench: Bench) -> None:
    pay = make(bench, "N")
    arguments = iter([threading.Lock(), 1])
    graph, config = bench.graph(lambda s: {"log": [pay(next(arguments))]}), bench.config()
    with pytest.raises(Misuse, match=r"\$\.amount") as caught:
        graph.invoke({"log": []}, config)
    assert caught.value.code == "UNFINGERPRINTABLE"
    assert graph.invoke(None, config)["log"] == [10]


# --- results, receipts, nesting ------------------------------------------------------------------


@pytest.mark.optimized
def test_case_33_a_result_that_cannot_be_stored(either: Bench) -> None:
    """The receipt is kept, and it is never run again."""

    @effect
    def pay(amount: int, *, call: EffectCall) -> Any:
        either.world.send(amount)
        call.note(charge="ch_1")
        return threading.Lock()

    graph, config = either.graph(lambda s: {"log": [pay(1)]}), either.config()
    with pytest.raises(EffectResultLost) as first:
        graph.invoke({"log": []}, config)
    assert isinstance(first.value.__cause__, NotStorable) or "NOT_STORABLE" in str(first.value)
    for _ in range(2):
        with pytest.raises(EffectResultLost) as caught:
            graph.invoke(None, config)
        assert caught.value.receipt == {"charge": "ch_1"}
    assert either.world.sent == [1]


@pytest.mark.optimized
def test_what_was_noted_survives(either: Bench) -> None:
    seen: list[dict[str, Any]] = []

    def ask(call: EffectCall) -> Any:
        seen.append(dict(call.receipt))
        return Committed("ok")

    @effect(name="pay", reconcile=ask)
    def pay(amount: int, *, call: EffectCall) -> Any:
        call.note(request="r-1")
        call.note(charge="ch_1", at=call.attempt)
        raise ConnectionError

    graph, config = either.graph(lambda s: {"log": [pay(1)]}), either.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == ["ok"]
    assert seen == [{"request": "r-1", "charge": "ch_1", "at": 1}]


def test_a_second_attempt_sees_what_the_first_one_noted(bench: Bench) -> None:
    seen: list[Any] = []

    @effect(name="pay", idempotent=True)
    def pay(amount: int, *, call: EffectCall) -> int:
        seen.append((call.attempt, dict(call.receipt), dict(call.arguments), call.effect))
        call.note(charge="ch_1")
        if call.attempt == 1:
            raise ConnectionError
        return amount

    graph, config = bench.graph(lambda s: {"log": [pay(1)]}), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    graph.invoke(None, config)
    assert seen == [
        (1, {}, {"amount": 1}, "pay"),
        (2, {"charge": "ch_1"}, {"amount": 1}, "pay"),
    ]


def test_a_note_that_cannot_be_stored(bench: Bench) -> None:
    @effect
    def pay(amount: int, *, call: EffectCall) -> Any:
        with pytest.raises(NotStorable):
            call.note(handle=threading.Lock())
        return bench.world.send(amount)

    graph = bench.graph(lambda s: {"log": [pay(1)]})
    assert graph.invoke({"log": []}, bench.config())["log"] == [1]


@pytest.mark.optimized
@pytest.mark.parametrize("proven", [False, True])
def test_a_late_note_does_not_open_an_effect_again(bench: Bench, proven: bool) -> None:
    calls: list[EffectCall] = []
    fault = once(NotSent()) if proven else once(None)

    @effect
    def pay(amount: int, *, call: EffectCall) -> Any:
        calls.append(call)
        bench.world.send(amount)
        fault()
        return amount

    tries: list[int] = []

    def node(state: State) -> State:
        try:
            paid = pay(1)
        except NotSent:
            paid = None
        if not tries:
            tries.append(1)
            with pytest.raises(SurefootError):
                calls[0].note(late=1)
            raise Boom
        return {"log": [paid]}

    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [1]
    assert bench.world.count == (2 if proven else 1)


def test_an_effect_inside_an_effect(bench: Bench) -> None:
    inner = make(bench, "N", fault=once(None))
    tries: list[int] = []

    @effect(name="outer", idempotent=True)
    def outer(amount: int, *, idempotency_key: str) -> int:
        bench.world.send("outer")
        paid = inner(amount)
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return int(paid) + 1

    graph, config = bench.graph(lambda s: {"log": [outer(1)]}), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [11]
    assert bench.world.sent == ["outer", 1, "outer"], "the inner one is replayed"


def test_the_key_is_equal_at_every_attempt_and_worker(either: Bench) -> None:
    pay = make(either, "K", fault=once(*[ConnectionError()] * 3))
    config = either.config()
    first = {"log": []}
    for _ in range(3):
        saver = either.open()
        graph = either.graph(lambda s: {"log": [pay(1)]}, saver=saver)
        with pytest.raises(ConnectionError):
            graph.invoke(first, config)
        saver.close()
        first = None  # type: ignore[assignment]
    other = either.graph(lambda s: {"log": [pay(1)]}, saver=either.open())
    assert other.invoke(None, config)["log"] == [10]
    assert len(either.world.keys) == 4
    assert len(set(either.world.keys)) == 1


@pytest.mark.optimized
@pytest.mark.parametrize("old_state", ["enabled", "retired"])
def test_the_key_outlives_a_rotation(bench: Bench, old_state: str) -> None:
    """The keys of the seals change between two attempts; what the receiver sees does not."""
    old = Key("old", b"o" * 32, "primary")
    bench.keys = Keyring([old])
    pay = make(bench, "K", fault=once(ConnectionError()))
    config = bench.config()
    with pytest.raises(ConnectionError):
        bench.graph(lambda s: {"log": [pay(1)]}, saver=bench.open()).invoke({"log": []}, config)
    bench.keys = Keyring([Key("new", b"n" * 32, "primary"), Key("old", b"o" * 32, old_state)])
    graph = bench.graph(lambda s: {"log": [pay(1)]}, saver=bench.open())
    if old_state == "retired":  # its records are refused by the key's name: nothing is sent
        with pytest.raises(KeyMissing, match="old"):
            graph.invoke(None, config)
        assert bench.world.count == 1
        return
    assert graph.invoke(None, config)["log"] == [10]
    assert bench.world.count == 2
    assert len(set(bench.world.keys)) == 1


def test_a_question_inside_an_effect_is_refused_when_it_is_asked(bench: Bench) -> None:
    """A pause in the middle of an effect could not be told from one that was sent."""

    @effect
    def pay(amount: int) -> int:
        interrupt("sure?")
        return int(bench.world.send(amount))

    graph, config = bench.graph(lambda s: {"log": [pay(1)]}), bench.config()
    with pytest.raises(Misuse, match="interrupt"):
        graph.invoke({"log": []}, config)
    assert bench.world.sent == []


def test_keys_differ_between_threads_and_effects(bench: Bench) -> None:
    keys: list[str] = []

    def body(amount: int, *, idempotency_key: str) -> int:
        keys.append(idempotency_key)
        return amount

    one, other = (
        effect(body, name="one") if False else effect(name="one")(body),
        effect(name="other")(body),
    )
    for _ in range(2):
        bench.graph(lambda s: {"log": [one(1), other(1)]}).invoke({"log": []}, bench.config())
    assert len(set(keys)) == 4
    assert all(len(key) == 32 for key in keys)


# --- tools (cases 10, 18) ----------------------------------------------------------------------


def calls_message(*calls: tuple[str, dict[str, Any]], prefix: str = "call") -> AIMessage:
    return AIMessage(
        "",
        tool_calls=[
            {"name": name, "args": args, "id": f"{prefix}-{n}"}
            for n, (name, args) in enumerate(calls)
        ],
    )


def tool_graph(bench: Bench, tools: Any, message: Callable[[], AIMessage], **settings: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda s: {"messages": [message()]})
    builder.add_node("tools", ToolNode(tools, **settings))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder.compile(checkpointer=bench.saver)


def contents(state: Any) -> list[Any]:
    return [m.content for m in state["messages"] if isinstance(m, ToolMessage)]


@pytest.mark.optimized
def test_two_equal_tool_calls_of_one_message_are_two_effects(either: Bench) -> None:
    @tool
    @effect
    def refund(invoice: str, *, idempotency_key: str) -> str:
        """Refunds an invoice."""
        either.world.send(invoice, idempotency_key)
        return f"refunded {invoice}"

    assert set(refund.args) == {"invoice"}, "the model is not asked for the key"
    message = calls_message(("refund", {"invoice": "a"}), ("refund", {"invoice": "a"}))
    graph = tool_graph(either, [refund], lambda: message)
    done = graph.invoke({"messages": []}, either.config())
    assert contents(done) == ["refunded a", "refunded a"]
    assert either.world.sent == ["a", "a"]
    assert len(set(either.world.keys)) == 2


async def test_async_tools(either: Bench) -> None:
    @tool
    @effect
    async def refund(invoice: str, *, idempotency_key: str) -> str:
        """Refunds an invoice."""
        await asyncio.sleep(0.01)
        either.world.send(invoice, idempotency_key)
        return f"refunded {invoice}"

    message = calls_message(*[("refund", {"invoice": "a"})] * 3)
    graph = tool_graph(either, [refund], lambda: message)
    done = await graph.ainvoke({"messages": []}, either.config())
    assert contents(done) == ["refunded a"] * 3
    assert len(set(either.world.keys)) == 3


@pytest.mark.optimized
@pytest.mark.parametrize("handle", [True, False])
def test_a_sibling_that_fails_does_not_repeat_the_others(either: Bench, handle: bool) -> None:
    """The tools of a message run again together; each recognises its own effect."""
    tries: list[int] = []

    @tool
    @effect
    def refund(invoice: str, *, idempotency_key: str) -> str:
        """Refunds an invoice."""
        either.world.send(invoice, idempotency_key)
        return f"refunded {invoice}"

    @tool
    def breaks() -> str:
        """Breaks once, as a crash would."""
        tries.append(1)
        if len(tries) == 1:
            raise Crash
        return "fine"

    message = calls_message(
        ("refund", {"invoice": "a"}), ("breaks", {}), ("refund", {"invoice": "a"})
    )
    graph = tool_graph(either, [refund, breaks], lambda: message, handle_tool_errors=handle)
    config = either.config()
    with pytest.raises(Crash):
        graph.invoke({"messages": []}, config)
    before = either.world.count
    done = graph.invoke(None, config)
    assert contents(done) == ["refunded a", "fine", "refunded a"]
    assert 1 <= before <= either.world.count == 2
    assert len(set(either.world.keys)) == 2


class Crash(BaseException):
    """What no tool node takes for an error of a tool."""


def test_case_18_new_tool_call_ids_are_the_same_action(bench: Bench) -> None:
    fault = once(None, Boom())
    prefixes = iter(["first", "second"])

    @effect
    def pay(amount: int) -> int:
        return int(bench.world.send(amount))

    def model_and_tools(state: MessagesState) -> Any:
        """A node in which the model runs again, and mints other ids."""
        message = calls_message(("pay", {"amount": 5}), prefix=next(prefixes))
        results = [pay(**call["args"]) for call in message.tool_calls]
        fault()
        fault()
        return {"messages": [message, ToolMessage(str(results), tool_call_id="x")]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", model_and_tools)
    builder.add_edge(START, "agent")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"messages": []}, config)
    assert contents(graph.invoke(None, config)) == ["[5]"]
    assert bench.world.sent == [5]


def test_two_tools_in_the_other_order_are_other_calls(bench: Bench) -> None:
    """Position and name tell calls apart, so different tools of a message never meet."""

    @tool
    @effect
    def credit(amount: int) -> str:
        """Credits."""
        return str(bench.world.send(("credit", amount)))

    @tool
    @effect
    def debit(amount: int) -> str:
        """Debits."""
        return str(bench.world.send(("debit", amount)))

    message = calls_message(("credit", {"amount": 1}), ("debit", {"amount": 1}))
    graph = tool_graph(bench, [credit, debit], lambda: message)
    graph.invoke({"messages": []}, bench.config())
    assert sorted(bench.world.sent) == [("credit", 1), ("debit", 1)]


@pytest.mark.optimized
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_refusal_is_no_message_for_the_model(bench: Bench, asynchronous: bool) -> None:
    """`handle_tool_errors=True` answers the model's tool errors, but not for us."""
    fault = once(Crash(), None)
    if asynchronous:

        @tool
        @effect
        async def pay(amount: int) -> str:
            """Pays."""
            bench.world.send(amount)
            fault()
            return "paid"

    else:

        @tool
        @effect
        def pay(amount: int) -> str:
            """Pays."""
            bench.world.send(amount)
            fault()
            return "paid"

    message = calls_message(("pay", {"amount": 1}))
    graph = tool_graph(bench, [pay], lambda: message, handle_tool_errors=True)
    config = bench.config()

    def run(given: Any) -> Any:
        if asynchronous:
            return asyncio.run(graph.ainvoke(given, config))
        return graph.invoke(given, config)

    with pytest.raises(Crash):
        run({"messages": []})
    for _ in range(2):
        with pytest.raises(EffectInDoubt) as caught:
            run(None)
        assert isinstance(caught.value, GraphBubbleUp)
    assert bench.world.sent == [1]
    assert contents(graph.get_state(config).values) == []


def test_an_ordinary_tool_error_still_reaches_the_model(bench: Bench) -> None:
    """What is proven: nothing happened, so a call that the model makes again is no second one."""

    class Declined(Exception):
        """The receiver said no."""

    @tool
    @effect(failed_when=Declined)
    def pay(amount: int) -> str:
        """Pays."""
        raise Declined("by the bank") if amount > 1 else NotSent("the card was declined")

    message = calls_message(("pay", {"amount": 1}), ("pay", {"amount": 2}))
    graph = tool_graph(bench, [pay], lambda: message, handle_tool_errors=True)
    first, second = contents(graph.invoke({"messages": []}, bench.config()))
    assert "declined" in first
    assert "by the bank" in second


@pytest.mark.optimized
@pytest.mark.parametrize("settings", [{}, {"idempotent": True}], ids=["N", "K"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("handle", [True, False])
@pytest.mark.parametrize("own_schema", [True, False])
def test_a_tool_error_that_proves_nothing_is_no_message_for_the_model(
    either: Bench, asynchronous: bool, settings: Any, handle: bool, own_schema: bool
) -> None:
    """A model that is told of a time-out calls again, under another key: a second charge."""
    fault = once(TimeoutError("no answer"), None)
    if asynchronous:

        @effect(**settings)
        async def pay(amount: int, *, idempotency_key: str) -> str:
            """Pays."""
            either.world.send(amount, idempotency_key)
            fault()
            return "paid"

    else:

        @effect(**settings)
        def pay(amount: int, *, idempotency_key: str) -> str:
            """Pays."""
            either.world.send(amount, idempotency_key)
            fault()
            return "paid"

    class Asked(BaseModel):
        """What the model is asked for."""

        amount: int

    made = tool("pay", args_schema=Asked)(pay) if own_schema else tool("pay")(pay)
    models: list[int] = []

    def message() -> AIMessage:
        models.append(1)
        return calls_message(("pay", {"amount": 1}))

    graph = tool_graph(either, [made], message, handle_tool_errors=handle)
    config = either.config()

    def run(given: Any) -> Any:
        if asynchronous:
            return asyncio.run(graph.ainvoke(given, config))
        return graph.invoke(given, config)

    with pytest.raises(EffectInDoubt) as caught:
        run({"messages": []})
    assert isinstance(caught.value, GraphBubbleUp)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert either.world.sent == [1]
    assert contents(graph.get_state(config).values) == []
    if not settings:
        with pytest.raises(EffectInDoubt):
            run(None)
        assert either.world.sent == [1]
        return
    assert contents(run(None)) == ["paid"]
    assert either.world.sent == [1, 1]
    assert len(set(either.world.keys)) == 1
    assert len(models) == 1


def test_a_resend_that_was_not_sent_is_no_message_for_the_model(bench: Bench) -> None:
    """The first attempt may have landed, so a call under another key could be a second charge."""
    fault = once(TimeoutError("no answer"), NotSent("refused"), None)

    @tool
    @effect(idempotent=True)
    def pay(amount: int, *, idempotency_key: str) -> str:
        """Pays."""
        bench.world.send(amount, idempotency_key)
        fault()
        return "paid"

    message = calls_message(("pay", {"amount": 1}))
    graph = tool_graph(bench, [pay], lambda: message, handle_tool_errors=True)
    config = bench.config()
    for given in ({"messages": []}, None):
        with pytest.raises(EffectInDoubt):
            graph.invoke(given, config)
    assert contents(graph.invoke(None, config)) == ["paid"]
    assert len(set(bench.world.keys)) == 1


@pytest.mark.parametrize("settings", [{}, {"idempotent": True}], ids=["N", "K"])
def test_no_retry_policy_of_a_tool_node_sends_what_is_in_doubt(bench: Bench, settings: Any) -> None:
    """Class N: once. Class K stops as well, and the next run sends under the same key."""
    fault = once(TimeoutError("no answer"), None)

    @tool
    @effect(**settings)
    def pay(amount: int, *, idempotency_key: str) -> str:
        """Pays."""
        bench.world.send(amount, idempotency_key)
        fault()
        return "paid"

    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda s: {"messages": [calls_message(("pay", {"amount": 1}))]})
    retries = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False, retry_on=Exception)
    builder.add_node("tools", ToolNode([pay]), retry_policy=retries)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    with pytest.raises(EffectInDoubt):
        graph.invoke({"messages": []}, config)
    assert bench.world.sent == [1]
    if settings:
        assert contents(graph.invoke(None, config)) == ["paid"]
        assert len(set(bench.world.keys)) == 1


# --- cancellation (case 19) ----------------------------------------------------------------------


async def test_case_19_a_cancelled_effect_is_in_doubt(either: Bench) -> None:
    entered = asyncio.Event()

    @effect
    async def pay(amount: int) -> int:
        either.world.send(amount)
        entered.set()
        await asyncio.sleep(60)
        return amount

    async def node(state: State) -> State:
        return {"log": [await pay(1)]}

    graph, config = either.graph(node), either.config()
    running = asyncio.create_task(graph.ainvoke({"log": []}, config))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(EffectInDoubt):
        await graph.ainvoke(None, config)
    assert either.world.sent == [1]


async def test_case_19_finished_siblings_keep_their_results(bench: Bench) -> None:
    both = asyncio.Event()

    @effect
    async def quick(amount: int) -> int:
        return int(bench.world.send(amount))

    tries: list[int] = []

    async def one(state: State) -> State:
        result = await quick(1)
        both.set()
        return {"log": [result]}

    async def slow(state: State) -> State:
        tries.append(1)
        if len(tries) == 1:
            await both.wait()
            await asyncio.sleep(60)
        return {"log": ["slow"]}

    builder = StateGraph(State)
    builder.add_node("one", one)
    builder.add_node("slow", slow)
    builder.add_edge(START, "one")
    builder.add_edge(START, "slow")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    running = asyncio.create_task(graph.ainvoke({"log": []}, config))
    await both.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await graph.ainvoke(None, config))["log"] == [1, "slow"]
    assert bench.world.sent == [1]


async def test_a_cancel_before_anything_was_sent_leaves_nothing_in_doubt(bench: Bench) -> None:
    gate = bench.gate()
    reached, go = threading.Event(), threading.Event()
    armed: list[int] = []

    def hold(append: Any) -> None:
        if armed and not reached.is_set():
            reached.set()
            go.wait(20)

    gate.before = hold

    @effect
    async def pay(amount: int) -> int:
        return int(bench.world.send(amount))

    async def node(state: State) -> State:
        armed.append(1)
        return {"log": [await pay(1)]}

    graph, config = bench.graph(node), bench.config()
    running = asyncio.create_task(graph.ainvoke({"log": []}, config, durability="sync"))
    await asyncio.to_thread(reached.wait, 20)
    running.cancel()
    asyncio.get_running_loop().call_later(0.05, go.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.world.sent == []
    assert (await graph.ainvoke(None, config))["log"] == [1]
    assert bench.world.sent == [1]


# --- the barrier (E1) --------------------------------------------------------------------------


def published_seq(bench: Bench, thread: str) -> int:
    mark = bench.saver.core.ports.marks.read(bench.tenant, thread)
    return 0 if mark is None else int(mark.seq)


@pytest.mark.optimized
@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_effect_before_its_checkpoint_is_published(either: Bench, asynchronous: bool) -> None:
    """Async durability, and the put of the checkpoint held at a gate: the effect waits."""
    gate = either.gate()
    held, go = threading.Event(), threading.Event()
    entered = threading.Event()
    order: list[str] = []
    config = either.config()
    thread = config["configurable"]["thread_id"]

    def before(append: Any) -> None:
        if entered.is_set() or append.checkpoint_hash is None:
            return
        if published_seq(either, thread) >= 2 and not held.is_set():
            held.set()
            go.wait(20)
            order.append("put")

    gate.before = before

    def body(amount: int) -> int:
        order.append("effect")
        return int(either.world.send(amount))

    if asynchronous:

        @effect(name="pay")
        async def pay_async(amount: int) -> int:
            return body(amount)

        async def node_async(state: State) -> State:
            order.append("node")
            threading.Timer(0.2, go.set).start()
            return {"log": [await pay_async(1)]}

        async def first_async(state: State) -> State:
            return {"log": ["first"]}

        graph = either.graph(first_async, node_async)
        done = asyncio.run(graph.ainvoke({"log": []}, config, durability="async"))
    else:
        pay = effect(name="pay")(body)

        def node(state: State) -> State:
            order.append("node")
            threading.Timer(0.2, go.set).start()
            return {"log": [pay(1)]}

        graph = either.graph(lambda s: {"log": ["first"]}, node)
        done = graph.invoke({"log": []}, config, durability="async")
    assert held.is_set(), "the fault has to hit"
    assert done["log"] == ["first", 1]
    assert order.index("put") < order.index("effect")
    assert order.index("node") < order.index("put"), "the node itself did not wait"


def test_the_barrier_has_a_deadline(bench: Bench) -> None:
    saver = bench.open(barrier_timeout_ms=100)
    gate = bench.gate(saver)
    go = threading.Event()
    pay = make(bench, "N")
    started: list[int] = []
    waited: list[bool] = []

    def before(append: Any) -> None:
        if append.checkpoint_hash is not None and not started and not waited:
            seen = bench.saver.core.ports.marks.read(bench.tenant, thread)
            if seen.seq >= 2:
                waited.append(not go.wait(10))

    gate.before = before
    config = bench.config()
    thread = config["configurable"]["thread_id"]

    def node(state: State) -> State:
        try:
            return {"log": [pay(1)]}
        finally:
            started.append(1)
            go.set()

    graph = bench.graph(lambda s: {"log": ["first"]}, node, saver=saver)
    with pytest.raises(BarrierTimeout, match="BARRIER_TIMEOUT"):
        graph.invoke({"log": []}, config, durability="async")
    assert bench.world.sent == []
    assert waited == [False], "the deadline ended the wait, not the checkpoint"
    # With a deadline that a busy machine keeps: what is tested is over.
    ports = saver.core.ports
    saver.core.ports = replace(ports, policy=ResumePolicy(settling_ms=0))
    assert graph.invoke(None, config)["log"] == ["first", 10]


# --- latch (E10) and fence -----------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_after_a_failed_save_no_effect_starts(either: Bench, kind: str) -> None:
    """A failing put does not stop nodes under async durability; it does stop effects."""
    gate = either.gate()
    broken = threading.Event()
    pay = make(either, kind)

    def before(append: Any) -> None:
        if broken.is_set():
            raise StoreUnavailable(store="the database", reason="is down")

    gate.before = before

    hits: list[int] = []

    def breaks(state: State) -> State:
        if not hits:
            session = either.saver.core.sessions.get(config["configurable"]["thread_id"])
            assert session is not None
            assert session.wait_change(10, lambda: session.mark.seq >= 2), "its own checkpoint"
            broken.set()
        hits.append(1)
        return {"log": ["first"]}

    graph, config = either.graph(breaks, lambda s: {"log": [pay(1)]}), either.config()
    with pytest.raises((SaveFailed, StoreUnavailable)):
        graph.invoke({"log": []}, config, durability="async")
    assert either.world.sent == []
    broken.clear()
    assert graph.invoke(None, config)["log"] == ["first", 10]
    assert either.world.sent == [1]


@pytest.mark.parametrize("kind", ["L", "N"])
def test_an_outcome_that_could_not_be_recorded_stays_open(bench: Bench, kind: str) -> None:
    """The database dies between the effect and its outcome: never sent twice (case 1)."""
    gate = bench.gate()
    broken = threading.Event()
    settings: dict[str, Any] = {"reconcile": lookup(Committed("found"))} if kind == "L" else {}
    pay = make(bench, kind, fault=broken.set, **settings)

    def before(append: Any) -> None:
        if broken.is_set():
            raise StoreUnavailable(store="the database", reason="is down")

    gate.before = before
    graph, config = bench.graph(lambda s: {"log": [pay(1)]}), bench.config()
    with pytest.raises((StoreUnavailable, SaveFailed)):
        graph.invoke({"log": []}, config)
    broken.clear()
    if kind == "L":
        assert graph.invoke(None, config)["log"] == ["found"]
    else:
        with pytest.raises(EffectInDoubt, match="started"):
            graph.invoke(None, config)
    assert bench.world.sent == [1]


@pytest.mark.optimized
@pytest.mark.parametrize("kind", ["L", "N"])
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_fenced_worker_sends_nothing(either: Bench, kind: str, durability: str) -> None:
    pay = make(either, kind)
    config = either.config()
    thread = config["configurable"]["thread_id"]
    taken: list[int] = []

    def node(state: State) -> State:
        if not taken:
            session = either.saver.core.sessions.get(thread)
            if session is not None:
                session.wait_change(5, lambda: session.mark == session.head)
            either.take_over(thread)
            taken.append(1)
        return {"log": [pay(1)]}

    graph = either.graph(node)
    with pytest.raises(Fenced) as caught:
        graph.invoke({"log": []}, config, durability=durability)
    assert caught.value.current_epoch == 2
    assert either.world.sent == []


@pytest.mark.optimized
def test_class_k_is_fenced_once_its_lease_is_over(bench: Bench) -> None:
    """The local clock guards what needs no word of the high-water store."""
    pay = make(bench, "K")
    config = bench.config()
    thread = config["configurable"]["thread_id"]

    def node(state: State) -> State:
        session = bench.saver.core.sessions.get(thread)
        assert session is not None
        bench.take_over(thread)
        session.lease_until_ms = bench.saver.core.ports.host.monotonic_ms()
        return {"log": [pay(1)]}

    with pytest.raises(Fenced):
        bench.graph(node).invoke({"log": []}, config, durability="sync")
    assert bench.world.sent == []


@pytest.mark.optimized
@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_a_worker_that_is_fenced_while_it_sends(either: Bench, kind: str) -> None:
    """Case 6: it may not go on; the outcome that it sealed is adopted, nothing is sent again."""
    config = either.config()
    thread = config["configurable"]["thread_id"]
    pay = make(either, kind, fault=lambda: either.take_over(thread))
    first = either.graph(lambda s: {"log": [pay(1)]})
    with pytest.raises(Fenced):
        first.invoke({"log": []}, config, durability="sync")
    free_lease(either, thread)
    second = either.graph(lambda s: {"log": [pay(1)]}, saver=either.open())
    assert second.invoke(None, config)["log"] == [10]
    assert either.world.sent == [1]


def free_lease(bench: Bench, thread: str) -> None:
    """The other worker ends without a word: its lease is over, nothing is clean."""
    from surefoot.ports import Publish

    marks = bench.saver.core.ports.marks
    mark = marks.read(bench.tenant, thread)
    freed = marks.publish(
        bench.tenant,
        thread,
        Publish(
            epoch=mark.epoch,
            seq=mark.seq,
            digest=mark.digest,
            new_seq=mark.seq,
            new_digest=mark.digest,
            step=mark.step,
            intents=mark.intents,
            ttl_ms=0,
        ),
    )
    if not freed:
        raise RuntimeError("the lease of the test was not given back")


def test_after_a_refusal_another_worker_need_not_wait(bench: Bench) -> None:
    """The run has ended, so its thread is free: the next one learns the reason, not "busy"."""
    pay = make(bench, "N", fault=once(ConnectionError()))
    graph, config = bench.graph(lambda s: {"log": [pay(1)]}), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke({"log": []}, config)
    with pytest.raises(EffectInDoubt) as kept:
        graph.invoke(None, config)
    other = bench.graph(lambda s: {"log": [pay(1)]}, saver=bench.open())
    with pytest.raises(EffectInDoubt):
        other.invoke(None, config)
    assert kept.value.code == "EFFECT_IN_DOUBT"


def test_case_15_an_approval_for_one_payload(bench: Bench) -> None:
    """Approved for one amount; the model then proposes another one: nothing is sent."""
    amounts = iter([100, 100, 900, 900])
    pay = make(bench, "N", fault=once(NotSent()))

    def node(state: State) -> State:
        amount = next(amounts)
        approved = interrupt({"amount": amount})
        if approved != amount:
            raise Boom
        return {"log": [pay(amount)]}

    graph, config = bench.graph(node), bench.config()
    graph.invoke({"log": []}, config)
    with pytest.raises(NotSent):
        graph.invoke(Command(resume=100), config)
    with pytest.raises(Boom):
        graph.invoke(None, config)
    assert bench.world.sent == [100]


def test_fifty_threads_do_not_meet(bench: Bench) -> None:
    """Case 41, for effects: one compiled graph, many threads at once."""
    from concurrent.futures import ThreadPoolExecutor

    pay = make(bench, "N")
    graph = bench.graph(lambda s: {"log": [pay(s["n"])]})
    with ThreadPoolExecutor(8) as pool:
        done = list(
            pool.map(lambda n: graph.invoke({"n": n, "log": []}, bench.config())["log"], range(24))
        )
    assert done == [[n * 10] for n in range(24)]
    assert sorted(bench.world.sent) == list(range(24))
    assert len(set(bench.world.keys)) == 24


def test_a_refusal_keeps_the_lease_while_a_sibling_is_sending(either: Bench) -> None:
    """Given back, another worker or a person could decide about what is being sent right now."""
    begun, refused = threading.Event(), threading.Event()
    left: list[int] = []
    first = [True]
    config = either.config()
    thread = config["configurable"]["thread_id"]

    @effect
    def doubtful() -> str:
        raise TimeoutError

    @effect
    def slow() -> str:
        begun.set()
        refused.wait(60)
        mark = either.saver.core.ports.marks.read(either.tenant, thread)
        left.append(mark.lease_left_ms)
        return "sent"

    def one(state: State) -> State:
        if not first[0]:
            begun.wait(60)
        try:
            return {"log": [doubtful()]}
        except EffectInDoubt:
            refused.set()
            raise

    def other(state: State) -> State:
        if first[0]:
            raise RuntimeError("not up yet")
        return {"log": [slow()]}

    builder = StateGraph(State)
    for name, node in (("one", one), ("other", other)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    graph = builder.compile(checkpointer=either.saver)
    with pytest.raises((TimeoutError, RuntimeError)):
        graph.invoke({"n": 0, "log": []}, config)
    either.saver.release(thread)
    first[0] = False
    with pytest.raises(EffectInDoubt):
        graph.invoke(None, config)
    assert refused.is_set()
    assert len(left) == 1
    assert left[0] > 0, "the lease was given back while an effect was being sent"
