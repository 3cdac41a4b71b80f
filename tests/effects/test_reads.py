"""`@recorded`, `@pure`, the clock and chance: what was read stays read, and says when it moved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from tests.effects.conftest import Bench, State

import surefoot
from surefoot import NotSent, SurefootSaver, effect, pure, recorded
from surefoot.errors import (
    Fenced,
    Misconfigured,
    Misuse,
    NotStorable,
    StaleInput,
    StoreUnavailable,
    SurefootError,
)
from surefoot.flows.acquire import effect_of
from surefoot.flows.views import viewing
from surefoot.ports import Publish
from surefoot.rules.envelope import Kind
from surefoot.rules.folding import fold

RETRY = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False)
FIRST: Any = {"log": []}


class Boom(Exception):
    """The node, or the process in it, fails."""


class Source:
    """Something that answers otherwise each time."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask(self, question: Any) -> str:
        self.asked.append(question)
        return f"answer {len(self.asked)} to {question}"


@pytest.fixture
def source() -> Source:
    return Source()


def search_of(source: Source, **settings: Any) -> Callable[..., Any]:
    @recorded(name="search", **settings)
    def search(question: Any) -> str:
        return source.ask(question)

    return search


def failing(work: Callable[[Any], Any], times: int = 1) -> Callable[[State], State]:
    """A node that works, and fails the first times, after it has worked."""
    left = [times]

    def node(state: State) -> State:
        result = work(state)
        left[0] -= 1
        if left[0] >= 0:
            raise Boom
        return {"log": [result]}

    return node


def free_lease(bench: Bench, thread: str) -> None:
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
    if freed is False:
        raise RuntimeError("the lease of the test was not freed")


class Death:
    """A worker that stops storing at a moment: what it does from then on leaves no trace."""

    def __init__(self, bench: Bench, **settings: Any) -> None:
        self.bench = bench
        self.saver = bench.open(**settings)
        self.gate = bench.gate(self.saver)
        self.refused = 0

    def now(self, thread: str) -> None:
        def refuse(append: Any) -> None:
            self.refused += 1
            raise StoreUnavailable(store="a", reason="the process is dead")

        self.gate.before = refuse
        self.bench.take_over(thread)
        raise Boom

    def bury(self, thread: str) -> None:
        free_lease(self.bench, thread)


def thread_of(config: dict[str, Any]) -> str:
    return str(config["configurable"]["thread_id"])


def records(bench: Bench, config: dict[str, Any]) -> list[tuple[str, str]]:
    """(receiver, name) of each E record, oldest first, as another process reads them."""
    thread = thread_of(config)

    def look(chain: Any) -> list[tuple[str, str]]:
        found = [effect_of(thread, r) for r in chain.walk() if r.kind is Kind.EFFECT]
        return [(e.receiver, e.name) for e in reversed(found)]

    return viewing(bench.saver.core.ports, thread, look)


# --- the plain path ----------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_is_replayed_on_resume_by_another_saver(
    either: Bench, source: Source, durability: str
) -> None:
    search = search_of(source)
    node = failing(lambda s: [search("a"), search("a"), search("b")])
    config = either.config()
    with pytest.raises(Boom):
        either.graph(node, saver=either.open()).invoke(FIRST, config, durability=durability)
    done = either.graph(node, saver=either.open()).invoke(None, config, durability=durability)
    assert done["log"] == [["answer 1 to a", "answer 2 to a", "answer 3 to b"]]
    assert source.asked == ["a", "a", "b"]


@pytest.mark.optimized
async def test_is_replayed_on_a_loop(either: Bench, source: Source) -> None:
    @recorded
    async def search(question: str) -> str:
        await asyncio.sleep(0)
        return source.ask(question)

    @recorded
    def lookup(question: str) -> str:
        return source.ask(question)

    tries: list[int] = []

    async def node(state: State) -> State:
        result = [await search("a"), lookup("b"), await search("a")]
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {"log": result}

    config = either.config()
    with pytest.raises(Boom):
        await either.graph(node, saver=either.open()).ainvoke(FIRST, config)
    done = await either.graph(node, saver=either.open()).ainvoke(None, config)
    assert done["log"] == ["answer 1 to a", "answer 2 to b", "answer 3 to a"]
    assert source.asked == ["a", "b", "a"]


async def test_an_async_node_may_pass_its_config_on(bench: Bench, source: Source) -> None:
    @recorded
    async def search(question: str, config: RunnableConfig) -> str:
        return source.ask(question)

    tries: list[int] = []

    async def node(state: State, config: RunnableConfig) -> State:
        result = await search("a", config), str(surefoot.now(config=config))
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {"log": [result[0]]}

    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        await graph.ainvoke(FIRST, config)
    assert (await graph.ainvoke(None, config))["log"] == ["answer 1 to a"]
    assert source.asked == ["a"]


def test_every_step_and_every_turn_reads_for_itself(bench: Bench, source: Source) -> None:
    search = search_of(source)
    builder = StateGraph(State)
    builder.add_node("loop", lambda s: {"log": [search("a")]})
    builder.add_edge(START, "loop")
    builder.add_conditional_edges("loop", lambda s: "loop" if len(s["log"]) < 3 else END)
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    assert graph.invoke(FIRST, config)["log"] == [f"answer {n} to a" for n in (1, 2, 3)]
    graph.invoke({"log": []}, config)
    assert len(source.asked) == 4


def test_steps_of_an_async_run_do_not_mix_their_reads(bench: Bench, source: Source) -> None:
    """The next node reads while the step before it is still being saved, and reads again after."""
    search = search_of(source)
    config = bench.config()
    gate = bench.gate()
    held, go = threading.Event(), threading.Event()

    def hold(append: Any) -> None:
        if source.asked and not held.is_set():
            held.set()
            go.wait(60)

    def second(state: State) -> State:
        if not held.wait(60):
            raise RuntimeError("the put was not held")
        early = search("a")
        go.set()
        session = bench.saver.core.sessions.get(thread_of(config))
        session.wait_change(30, lambda: session.mark.seq >= 4)
        return {"log": [early, search("a")]}

    def first(state: State) -> State:
        return {"log": [search("a")]}

    gate.before = hold
    done = bench.graph(first, second).invoke(FIRST, config, durability="async")
    assert held.is_set()
    assert done["log"] == [f"answer {n} to a" for n in (1, 2, 3)]


def test_what_the_caller_gets_is_what_a_replay_gives(bench: Bench) -> None:
    @recorded
    def read() -> Any:
        return {"pair": (1, 2), "bytes": bytearray(b"x"), "long": "y" * 5_000}

    seen: list[Any] = []
    graph, config = bench.graph(failing(lambda s: seen.append(read()))), bench.config()
    with pytest.raises(Boom):
        graph.invoke(FIRST, config)
    bench.graph(lambda s: {"log": [seen.append(read())]}, saver=bench.open()).invoke(None, config)
    assert seen == [{"pair": [1, 2], "bytes": b"x", "long": "y" * 5_000}] * 2


def test_a_whole_node_as_one_read(bench: Bench, source: Source) -> None:
    @recorded(inputs=["state"])
    def node(state: State, config: RunnableConfig) -> State:
        return {"log": [source.ask(state["n"])]}

    builder = StateGraph(State)
    builder.add_node("a", node)
    builder.add_node("b", failing(lambda s: "b"))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"n": 5, "log": []}, config)
    assert graph.invoke(None, config)["log"] == ["answer 1 to 5", "b"]
    assert source.asked == [5]


def test_what_raises_is_not_recorded(bench: Bench, source: Source) -> None:
    answers = iter([ConnectionError(), "found"])

    @recorded
    def search() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    graph, config = bench.graph(lambda s: {"log": [search()]}), bench.config()
    with pytest.raises(ConnectionError):
        graph.invoke(FIRST, config)
    assert graph.invoke(None, config)["log"] == ["found"]


def test_an_outcome_that_cannot_be_stored_is_refused(bench: Bench) -> None:
    @recorded
    def search() -> Any:
        return {"handle": threading.Lock()}

    with pytest.raises(NotStorable, match="result of search"):
        bench.graph(lambda s: {"log": [search()]}).invoke(FIRST, bench.config())


def test_a_run_of_reads_appends_no_more_often_than_one_without(
    bench: Bench, source: Source
) -> None:
    search = search_of(source)
    gate = bench.gate()
    appended: list[int] = []
    gate.before = lambda append: appended.append(1)
    bench.graph(lambda s: {"log": ["x"]}).invoke(FIRST, bench.config(), durability="sync")
    plain = len(appended)
    appended.clear()
    config = bench.config()
    bench.graph(lambda s: {"log": [[search(n) for n in range(5)]]}).invoke(
        FIRST, config, durability="sync"
    )
    # The keeper may have stored what waited for 50 ms; never one append for each read.
    assert plain <= len(appended) <= plain + 1
    assert records(bench, config) == [("R", "search")] * 5


@pytest.mark.optimized
def test_what_was_read_is_encrypted_where_the_rest_is(bench: Bench, source: Source) -> None:
    """Small outcomes in the record, large ones in rows of their own."""

    def opened() -> SurefootSaver:
        return SurefootSaver(
            bench.conn,
            highwater=bench.highwater,
            keys=bench.keys,
            tenant=bench.tenant,
            encryption=True,
        )

    @recorded
    def search(size: int) -> str:
        return "PLANTED " * size + source.ask(size)

    node = failing(lambda s: [search(1), search(1_000)])
    config = bench.config()
    with opened() as saver:
        saver.setup()
        with pytest.raises(Boom):
            bench.graph(node, saver=saver).invoke(FIRST, config)
    with opened() as saver:
        (found,) = bench.graph(node, saver=saver).invoke(None, config)["log"]
    assert [len(text) > 8_000 for text in found] == [False, True]
    assert source.asked == [1, 1_000]
    database = Path(bench.conn.removeprefix("sqlite:///"))
    for file in database.parent.glob(f"{database.name}*"):
        assert b"PLANTED" not in file.read_bytes()


# --- death -------------------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("kind", ["K", "N"])
def test_what_an_effect_may_depend_on_outlives_the_process(
    either: Bench, source: Source, durability: str, kind: str
) -> None:
    """The effect's start stores the read: after the death, the same arguments and one payment."""
    search = search_of(source)
    config = either.config()
    death = Death(either)
    dies = [True]

    if kind == "K":

        @effect(idempotent=True)
        def pay(what: str, *, idempotency_key: str) -> str:
            return str(either.world.send(what, idempotency_key))
    else:

        @effect
        def pay(what: str) -> str:
            return str(either.world.send(what))

    def node(state: State) -> State:
        paid = pay(search("price"))
        if dies.pop() if dies else False:
            death.now(thread_of(config))
        return {"log": [paid]}

    before = lambda s: {"log": [search("first")]}
    with pytest.raises((Boom, SurefootError)):
        either.graph(before, node, saver=death.saver).invoke(FIRST, config, durability=durability)
    assert death.refused > 0, "the death has to hit"
    death.bury(thread_of(config))
    done = either.graph(before, node, saver=either.open()).invoke(None, config)
    assert done["log"] == ["answer 1 to first", "answer 2 to price"]
    assert either.world.sent == ["answer 2 to price"]


@pytest.mark.optimized
def test_a_read_that_was_never_stored_runs_again(bench: Bench, source: Source) -> None:
    search = search_of(source)
    config = bench.config()
    death = Death(bench)
    dies = [True]

    def node(state: State) -> State:
        def stop(append: Any) -> None:
            raise StoreUnavailable(store="a", reason="the process is dead")

        if dies:
            death.gate.before = stop
        found = search("a")
        if dies:
            dies.pop()
            death.now(thread_of(config))
        return {"log": [found]}

    with pytest.raises((Boom, SurefootError)):
        bench.graph(node, saver=death.saver).invoke(FIRST, config, durability="sync")
    death.bury(thread_of(config))
    done = bench.graph(node, saver=bench.open()).invoke(None, config)
    assert done["log"] == ["answer 2 to a"]


@pytest.mark.optimized
@pytest.mark.parametrize("behind", [False, True])
def test_a_read_made_before_its_checkpoint_was_stored_keeps_its_place(
    bench: Bench, source: Source, behind: bool
) -> None:
    """Also on a branch whose name is not known yet, because its first checkpoint is under way."""
    search = search_of(source)
    config = bench.config()
    start: Any = config
    armed = [not behind]
    held, go = threading.Event(), threading.Event()
    dies = [True]
    death = Death(bench)

    @effect
    def pay(what: str) -> str:
        go.set()
        return str(bench.world.send(what))

    def hold(append: Any) -> None:
        if armed[0] and append.checkpoint_hash and "first" in ran and not held.is_set():
            held.set()
            go.wait(60)

    ran: list[str] = []

    def first(state: State) -> State:
        ran.append("first")
        return {"log": ["first"]}

    def second(state: State) -> State:
        if armed[0] and not dies:
            return {"log": [pay(search("a"))]}
        if armed[0]:
            if not held.wait(60):
                raise RuntimeError("the put was not held")
            found = search("a")
            go.set()
            paid = pay(found)
            dies.pop()
            death.now(thread_of(config))
            return {"log": [paid]}
        return {"log": ["second"]}

    if behind:
        bench.graph(first, second).invoke(FIRST, config)
        history = [*bench.graph(first, second).get_state_history(config)]
        start = next(h.config for h in history if h.next == ("n0",))
        armed[0] = True
        ran.clear()
    death.gate.before = hold
    with pytest.raises((Boom, SurefootError)):
        bench.graph(first, second, saver=death.saver).invoke(
            None if behind else FIRST, start, durability="async"
        )
    assert held.is_set()
    assert bench.world.sent == ["answer 1 to a"]
    death.bury(thread_of(config))
    done = bench.graph(first, second, saver=bench.open()).invoke(None, config)
    assert done["log"] == ["first", "answer 1 to a"]
    assert source.asked == ["a"]
    assert bench.world.sent == ["answer 1 to a"]


@pytest.mark.optimized
def test_what_an_effect_reads_while_it_runs_is_stored_before_it_sends(
    either: Bench, source: Source
) -> None:
    """K is sent again after the death: with the same key, and with the same payload."""
    search = search_of(source)
    config = either.config()
    death = Death(either)
    dies = [True]

    @effect(idempotent=True)
    def pay(*, idempotency_key: str) -> str:
        what = search("rate")
        either.world.send(what, idempotency_key)
        if dies:
            dies.pop()
            death.now(thread_of(config))
        return what

    def node(state: State) -> State:
        return {"log": [pay(), search("rate")]}

    with pytest.raises((Boom, SurefootError)):
        either.graph(node, saver=death.saver).invoke(FIRST, config, durability="sync")
    death.bury(thread_of(config))
    done = either.graph(node, saver=either.open()).invoke(None, config)
    assert either.world.sent == ["answer 1 to rate"] * 2
    assert len(set(either.world.keys)) == 1
    assert done["log"] == ["answer 1 to rate", "answer 2 to rate"], "a body's reads are its own"


def test_a_body_that_is_not_run_again_shifts_nothing(bench: Bench, source: Source) -> None:
    search = search_of(source)

    @effect
    def pay() -> str:
        return str(search("x"))

    @recorded
    def outer() -> str:
        return str(search("x"))

    node = failing(lambda s: [pay(), outer(), search("x")])
    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        graph.invoke(FIRST, config)
    expected = [f"answer {n} to x" for n in (1, 2, 3)]
    assert graph.invoke(None, config)["log"] == [expected]
    assert len(source.asked) == 3


def test_exit_durability_keeps_what_a_resend_depends_on(bench: Bench, source: Source) -> None:
    search = search_of(source)

    @effect(idempotent=True)
    def pay(what: str, *, idempotency_key: str) -> str:
        return str(bench.world.send(what, idempotency_key))

    node = failing(lambda s: pay(search("a")), times=2)
    config = bench.config()
    given: Any = FIRST
    for _ in range(2):
        with pytest.raises(Boom):
            bench.graph(node, saver=bench.open()).invoke(given, config, durability="exit")
        given = None
    assert bench.graph(node).invoke(None, config, durability="exit")["log"] == ["answer 1 to a"]
    assert set(bench.world.sent) == {"answer 1 to a"}


def test_a_fenced_worker_reads_nothing_more(bench: Bench, source: Source) -> None:
    search = search_of(source)
    config = bench.config()

    def node(state: State) -> State:
        session = bench.saver.core.sessions.get(thread_of(config))
        session.latch(Fenced(thread="t", epoch=1, current_epoch=2, reason="for the test"))
        return {"log": [search("a")]}

    with pytest.raises(Fenced):
        bench.graph(node).invoke(FIRST, config)
    assert source.asked == []


# --- where a read can stand --------------------------------------------------------------------


@pytest.mark.optimized
def test_a_retry_policy_replays(either: Bench, source: Source) -> None:
    search = search_of(source)
    graph = either.graph(failing(lambda s: [search("a"), search("b")], 2), retry_policy=RETRY)
    done = graph.invoke(FIRST, either.config())
    assert done["log"] == [["answer 1 to a", "answer 2 to b"]]
    assert source.asked == ["a", "b"]


@pytest.mark.optimized
def test_branches_of_a_fan_out_read_for_themselves(either: Bench, source: Source) -> None:
    search = search_of(source)
    failed: list[int] = []

    def worker(state: State) -> State:
        found = search("same")
        if state["n"] == 3 and not failed:
            failed.append(1)
            raise Boom
        return {"log": [(state["n"], found)]}

    builder = StateGraph(State)
    builder.add_node("worker", worker)
    builder.add_conditional_edges(START, lambda s: [Send("worker", {"n": n}) for n in range(4)])
    config = either.config()
    with pytest.raises(Boom):
        builder.compile(checkpointer=either.open()).invoke(FIRST, config)
    done = builder.compile(checkpointer=either.open()).invoke(None, config)
    assert len({found for _, found in done["log"]}) == 4
    assert len(source.asked) == 4, "the branch that failed replays its own"


@pytest.mark.optimized
@pytest.mark.parametrize("how", ["resume", "retry"])
def test_inside_a_subgraph(either: Bench, source: Source, how: str) -> None:
    """An effect behind the read would meet other arguments if the read did not keep its place."""
    search = search_of(source)

    @effect(idempotent=True)
    def pay(what: str, *, idempotency_key: str) -> str:
        return str(either.world.send(what, idempotency_key))

    inner = StateGraph(State)
    inner.add_node("leaf", lambda s: {"log": [pay(search("a"))]})
    inner.add_edge(START, "leaf")
    sub = inner.compile()
    node = failing(lambda s: sub.invoke(FIRST)["log"])
    config = either.config()
    if how == "retry":
        done = either.graph(node, retry_policy=RETRY).invoke(FIRST, config)
    else:
        with pytest.raises(Boom):
            either.graph(node, saver=either.open()).invoke(FIRST, config)
        done = either.graph(node, saver=either.open()).invoke(None, config)
    assert done["log"] == [["answer 1 to a"]]
    assert source.asked == ["a"]
    assert set(either.world.sent) == {"answer 1 to a"}
    assert len(set(either.world.keys)) == 1


@pytest.mark.optimized
def test_what_was_read_before_an_interrupt_is_replayed(either: Bench, source: Source) -> None:
    """A person approved a price: the price is that one when the node runs again."""
    search = search_of(source)

    def node(state: State) -> State:
        price = search("price")
        answer = interrupt(price)
        return {"log": [price, answer, search("price")]}

    config = either.config()
    paused = either.graph(node, saver=either.open()).invoke(FIRST, config)
    assert paused["__interrupt__"][0].value == "answer 1 to price"
    done = either.graph(node, saver=either.open()).invoke(Command(resume="yes"), config)
    assert done["log"] == ["answer 1 to price", "yes", "answer 2 to price"]
    assert len(source.asked) == 2


@pytest.mark.optimized
@pytest.mark.parametrize("then", ["resume", "fork"])
@pytest.mark.parametrize("behind", [False, True])
def test_an_interrupt_may_overtake_the_checkpoint_that_it_is_pending_on(
    bench: Bench, source: Source, behind: bool, then: str
) -> None:
    """What was read is then stored before its checkpoint, on a branch that has no name yet."""
    search = search_of(source)
    config = bench.config()
    armed, held, go = threading.Event(), threading.Event(), threading.Event()

    class Held(SurefootSaver):
        """Begins to put the checkpoint of the second node only after the interrupt is stored."""

        def put(self, *args: Any) -> Any:
            if armed.is_set() and args[2].get("step") == 1 and not held.is_set():
                held.set()
                go.wait(60)
            return super().put(*args)

        def put_writes(self, config: Any, writes: Any, *more: Any) -> None:
            super().put_writes(config, writes, *more)
            if any(channel == "__interrupt__" for channel, _ in writes):
                go.set()

    def first(state: State) -> State:
        return {"log": [search("first")]}

    def second(state: State) -> State:
        if armed.is_set() and not held.wait(60):
            raise RuntimeError("the put was not held")
        price = search("price")
        return {"log": [price, interrupt(price)]}

    nodes = (first, second)
    start: Any = config
    if behind:
        bench.graph(*nodes).invoke(FIRST, config)
        history = bench.graph(*nodes).get_state_history(config)
        start = next(h.config for h in history if h.next == ("n0",))
    with Held(bench.conn, highwater=bench.highwater, keys=bench.keys, tenant=bench.tenant) as saver:
        saver.setup()
        armed.set()
        paused = bench.graph(*nodes, saver=saver).invoke(
            None if behind else FIRST, start, durability="async"
        )
    assert held.is_set()
    shown = paused["__interrupt__"][0].value
    graph = bench.graph(*nodes, saver=bench.open())
    if then == "resume":
        done = graph.invoke(Command(resume="yes"), config)
        assert done["log"][1:] == [shown, "yes"]
        return
    asked = len(source.asked)
    again = next(h.config for h in graph.get_state_history(config) if h.next == ("n0",))
    graph.invoke(None, again)
    assert len(source.asked) == asked + 2, "a fork reads anew, however early the reads were stored"


def test_a_long_run_forgets_what_it_has_read(bench: Bench, source: Source) -> None:
    search = search_of(source)
    config = bench.config()
    sizes: list[int] = []

    def loop(state: State) -> State:
        reads = bench.saver.core.sessions.get(thread_of(config)).reads
        sizes.append(len(reads.bodies) + len(reads.raw) + len(reads._steps) + len(reads._roots))
        return {"log": [search("a")]}

    builder = StateGraph(State)
    builder.add_node("loop", loop)
    builder.add_edge(START, "loop")
    builder.add_conditional_edges("loop", lambda s: "loop" if len(s["log"]) < 20 else END)
    builder.compile(checkpointer=bench.saver).invoke(FIRST, config, durability="sync")
    assert len(sizes) == 20
    assert max(sizes) <= 10
    assert records(bench, config) == [("R", "search")] * 20


@pytest.mark.optimized
def test_inside_a_functional_workflow(either: Bench, source: Source) -> None:
    search = search_of(source)
    tries: list[int] = []

    @task
    def look(question: str) -> str:
        return str(search(question))

    def flow_of(saver: SurefootSaver) -> Any:
        @entrypoint(checkpointer=saver)
        def flow(question: str) -> list[str]:
            found = [search(question), look(question).result(), look("b").result()]
            tries.append(1)
            if len(tries) == 1:
                raise Boom
            return found

        return flow

    config = either.config()
    with pytest.raises(Boom):
        flow_of(either.open()).invoke("a", config)
    done = flow_of(either.open()).invoke(None, config)
    assert done == ["answer 1 to a", "answer 2 to a", "answer 3 to b"]
    assert source.asked == ["a", "a", "b"]


def calls_message(*calls: tuple[str, dict[str, Any]]) -> AIMessage:
    return AIMessage(
        "", tool_calls=[{"name": n, "args": a, "id": f"id-{i}"} for i, (n, a) in enumerate(calls)]
    )


@pytest.mark.optimized
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_below_tool(bench: Bench, source: Source, asynchronous: bool) -> None:
    """Equal calls of one message run at the same time; each keeps its own outcome."""
    fails = [True]
    stamps: list[tuple[str, str, datetime]] = []

    def body(question: str) -> str:
        found = source.ask(question)
        stamps.append((question, found, surefoot.now()))
        return found

    if asynchronous:

        @recorded
        async def search(question: str) -> str:
            return body(question)
    else:

        @recorded
        def search(question: str) -> str:
            return body(question)

    search.__doc__ = "Searches."
    tools = ToolNode([tool(search)])

    async def after(state: MessagesState) -> Any:
        if fails:
            fails.pop()
            raise Boom
        return {}

    async def agent(state: MessagesState) -> Any:
        done = await tools.ainvoke(
            {"messages": [calls_message(*[("search", {"question": "a"})] * 2)]}
        )
        await after(state)
        return done

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    config = bench.config()
    with pytest.raises(Boom):
        await builder.compile(checkpointer=bench.open()).ainvoke({"messages": []}, config)
    first = sorted(found for _, found, _ in stamps)
    done = await builder.compile(checkpointer=bench.open()).ainvoke(None, config)
    assert (
        sorted(m.content for m in done["messages"]) == first == ["answer 1 to a", "answer 2 to a"]
    )
    assert len(source.asked) == 2


def test_tools_of_one_message_need_names_for_their_clocks(bench: Bench) -> None:
    """Which of them is first is chance, so their order cannot identify what they read."""

    @tool
    def stamp(n: int) -> str:
        """Stamps."""
        return str(surefoot.now())

    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([stamp]))
    builder.add_edge(START, "tools")
    message = calls_message(("stamp", {"n": 1}), ("stamp", {"n": 2}))
    with pytest.raises(Misuse, match="call_id="):
        builder.compile(checkpointer=bench.saver).invoke({"messages": [message]}, bench.config())
    one = calls_message(("stamp", {"n": 1}))
    done = builder.compile(checkpointer=bench.saver).invoke({"messages": [one]}, bench.config())
    assert done["messages"][-1].content


def test_tools_may_name_their_clocks(bench: Bench) -> None:
    @tool
    def stamp(n: int) -> str:
        """Stamps."""
        return str(surefoot.now(call_id=str(n)))

    tools = ToolNode([stamp])
    message = calls_message(("stamp", {"n": 1}), ("stamp", {"n": 2}))
    seen: list[list[str]] = []

    def agent(state: MessagesState) -> Any:
        seen.append([m.content for m in tools.invoke({"messages": [message]})["messages"]])
        if len(seen) == 1:
            raise Boom
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    graph, config = builder.compile(checkpointer=bench.saver), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"messages": []}, config)
    graph.invoke(None, config)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 2


@pytest.mark.parametrize("named", [True, False])
async def test_reads_at_the_same_time_need_call_ids(
    bench: Bench, source: Source, named: bool
) -> None:
    started = asyncio.Event()

    @recorded
    async def search(question: str) -> str:
        if started.is_set():
            return source.ask(question)
        started.set()
        await asyncio.sleep(0)
        return source.ask(question)

    tries: list[int] = []

    async def node(state: State) -> State:
        ids = [{"call_id": q} for q in "ab"] if named else [{}, {}]
        found = await asyncio.gather(*(search(q, **i) for q, i in zip("ab", ids, strict=True)))
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {"log": found}

    graph, config = bench.graph(node), bench.config()
    if not named:
        with pytest.raises(Misuse, match="call_id="):
            await graph.ainvoke(FIRST, config)
        return
    with pytest.raises(Boom):
        await graph.ainvoke(FIRST, config)
    await graph.ainvoke(None, config)
    assert sorted(source.asked) == ["a", "b"]


def test_outside_a_run_nothing_can_be_recorded(source: Source) -> None:
    search = search_of(source)
    with pytest.raises(Misuse, match="read 'search'"):
        search("a")
    with pytest.raises(Misuse, match="outside a run"):
        surefoot.now()
    assert search.__wrapped__("a") == "answer 1 to a"  # type: ignore[attr-defined]


# --- other inputs ------------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("on_stale", ["refuse", "read"])
@pytest.mark.parametrize("where", ["same process", "another saver"])
def test_an_old_answer_never_stands_for_a_new_question(
    either: Bench, source: Source, on_stale: str, where: str
) -> None:
    search = search_of(source, on_stale=on_stale)
    questions: Any = iter(
        [
            {"text": "secret flights", "filters": {"to": "OSL"}},
            {"text": "secret flights", "filters": {"to": "SVG", "days": 3}},
        ]
    )
    node = failing(lambda s: search(next(questions)))
    config = either.config()
    if where == "same process":
        graph = either.graph(node, retry_policy=RETRY)
        run = lambda: graph.invoke(FIRST, config)
    else:
        with pytest.raises(Boom):
            either.graph(node, saver=either.open()).invoke(FIRST, config)
        run = lambda: either.graph(node, saver=either.open()).invoke(None, config)
    if on_stale == "read":
        assert "SVG" in run()["log"][0]
        assert len(source.asked) == 2
        return
    with pytest.raises(StaleInput) as caught:
        run()
    error = caught.value
    assert len(source.asked) == 1
    assert (error.step, error.thread) == ("search", thread_of(config))
    assert error.differs == ["added: question.filters.days", "changed: question.filters.to"]
    assert "n0" not in error.slot
    assert error.recorded != error.proposed
    assert "question.filters.to" in str(error)
    assert "SVG" not in str(error)
    assert "secret" not in str(error)


def test_what_was_read_again_supersedes(bench: Bench, source: Source) -> None:
    search = search_of(source, on_stale="read")
    questions = iter("abb")
    node = failing(lambda s: search(next(questions)), times=2)
    config = bench.config()
    given: Any = FIRST
    for _ in range(2):
        with pytest.raises(Boom):
            bench.graph(node, saver=bench.open()).invoke(given, config)
        given = None
    done = bench.graph(node, saver=bench.open()).invoke(None, config)
    assert done["log"] == ["answer 2 to b"]


class Search(BaseModel):
    """Searches."""

    query: str


class SearchMore(BaseModel):
    """Searches."""

    query: str
    limit: int = 5


SearchMore.__name__ = "Search"


@tool
def weather(city: str) -> str:
    """The weather."""
    return city


@tool("weather")
def weather_now(city: str, unit: str) -> str:
    """The weather."""
    return city + unit


BINDINGS: list[Any] = [
    pytest.param({"model": "m-1"}, {"model": "m-2"}, ["changed: bound model id"], id="model"),
    pytest.param(
        {"prompt": "Be brief."}, {"prompt": "Be long."}, ["changed: bound prompt"], id="prompt"
    ),
    pytest.param(
        {"tools": [Search]},
        {"tools": [SearchMore]},
        ["added: bound tools.Search.function.parameters.properties.limit"],
        id="a schema grew",
    ),
    pytest.param(
        {"tools": [weather]},
        {"tools": [weather_now]},
        None,
        id="a tool has another schema",
    ),
    pytest.param(
        {"tools": [weather, Search]},
        {"tools": [Search]},
        ["removed: bound tools.weather"],
        id="gone",
    ),
    pytest.param(
        {"tools": [{"name": "x", "input": {}}]},
        {"tools": [{"name": "x", "input": {"a": 1}}]},
        ["added: bound tools.x.input.a"],
        id="dicts",
    ),
    pytest.param(
        {"binds": {"temperature": 0.0}},
        {"binds": {"temperature": 0.5}},
        ["changed: bound temperature"],
        id="anything",
    ),
]


@pytest.mark.optimized
@pytest.mark.parametrize(("before", "after", "differs"), BINDINGS)
def test_a_change_of_what_a_model_is_given_names_itself(
    bench: Bench, source: Source, before: Any, after: Any, differs: list[str] | None
) -> None:
    config = bench.config()
    first, second = search_of(source, **before), search_of(source, **after)
    with pytest.raises(Boom):
        bench.graph(failing(lambda s: first("a"))).invoke(FIRST, config)
    with pytest.raises(StaleInput) as caught:
        bench.graph(lambda s: {"log": [second("a")]}, saver=bench.open()).invoke(None, config)
    if differs is None:
        assert caught.value.differs
        assert all("bound tools.weather" in d for d in caught.value.differs)
    else:
        assert set(differs) <= set(caught.value.differs)
        assert len(source.asked) == 1


def test_what_did_not_change_is_no_difference(bench: Bench, source: Source) -> None:
    """The order of tools, a template made anew, a model object with the same id."""

    def bound(turned: bool) -> Callable[..., Any]:
        tools = [weather, Search] if turned else [Search, weather]
        return search_of(
            source,
            model=lambda question: FakeModel(model_name=f"m-{question}"),
            prompt=ChatPromptTemplate.from_messages([("system", "Be {tone}."), ("user", "{q}")]),
            tools=tools,
            binds=lambda **args: {"length": len(args["question"])},
        )

    config = bench.config()
    with pytest.raises(Boom):
        bench.graph(failing(lambda s: bound(False)("a"))).invoke(FIRST, config)
    again = bench.graph(lambda s: {"log": [bound(True)("a")]}, saver=bench.open())
    assert again.invoke(None, config)["log"] == ["answer 1 to a"]


class FakeModel(FakeListChatModel):
    """A model object with an id."""

    model_name: str
    responses: list[str] = []


@pytest.mark.parametrize(
    "settings",
    [
        {"model": FakeListChatModel(responses=[])},
        {"tools": [{"input": {}}]},
        {"tools": [weather, weather]},
        {"tools": [3]},
        {"binds": lambda: 3},
    ],
    ids=repr,
)
def test_what_cannot_be_bound_is_said(bench: Bench, source: Source, settings: Any) -> None:
    search = search_of(source, **settings)
    with pytest.raises(Misconfigured):
        bench.graph(lambda s: {"log": [search("a")]}).invoke(FIRST, bench.config())
    assert source.asked == []


@pytest.mark.parametrize(
    "settings",
    [
        {"freshness": -1},
        {"freshness": True},
        {"freshness": float("nan")},
        {"freshness": timedelta(seconds=-1)},
        {"on_stale": "replay"},
    ],
    ids=repr,
)
def test_settings_that_mean_nothing_are_refused(settings: Any) -> None:
    with pytest.raises(Misconfigured):
        recorded(**settings)(lambda: 1)


def test_what_cannot_be_one_read_is_refused() -> None:
    def generator() -> Any:
        yield 1

    def keyed(idempotency_key: str) -> None: ...

    def open_ended(*questions: str) -> None: ...

    with pytest.raises(Misconfigured, match="depends_on"):
        effect(depends_on="stock")(lambda: None)
    for decorate, fn in [
        (recorded, generator),
        (pure, generator),
        (recorded, object()),
        (pure, weather),
        (recorded, keyed),
        (recorded(observe=True), open_ended),
    ]:
        with pytest.raises(Misconfigured):
            decorate(fn)  # type: ignore[operator]


# --- freshness ---------------------------------------------------------------------------------


class Clock:
    """A host whose wall clock is the test's."""

    def __init__(self, saver: SurefootSaver, now_us: int) -> None:
        import dataclasses

        self._inner = saver.core.ports.host
        self._now_us = now_us
        saver.core.ports = dataclasses.replace(saver.core.ports, host=self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def now_us(self) -> int:
        return self._now_us


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("freshness", "later_s", "again"),
    [
        (None, 10**6, False),
        (60, 59, False),
        (60, 60, True),
        (60, -1, True),
        (timedelta(minutes=1), 61, True),
        (0, 0, True),
    ],
)
def test_freshness_says_from_which_age_on_it_is_read_anew(
    either: Bench, source: Source, freshness: Any, later_s: int, again: bool
) -> None:
    """A clock that stepped back tells no age: with a freshness rule that is too old."""
    search = search_of(source, freshness=freshness)
    node = failing(lambda s: search("a"))
    config = either.config()
    first, second = either.open(), either.open()
    at_us = 1_800_000_000_000_000
    Clock(first, at_us)
    Clock(second, at_us + later_s * 1_000_000)
    with pytest.raises(Boom):
        either.graph(node, saver=first).invoke(FIRST, config)
    done = either.graph(node, saver=second).invoke(None, config)
    assert done["log"] == [f"answer {2 if again else 1} to a"]


@pytest.mark.optimized
@pytest.mark.parametrize("retried", [False, True])
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_what_an_effect_is_made_of_is_not_asked_again(
    either: Bench, source: Source, durability: str, retried: bool
) -> None:
    """The order stands, at the price of then; with another price its call would be a conflict."""
    search = search_of(source, freshness=60)
    saver, other = either.open(), either.open()
    clock, later_us = Clock(saver, 1_800_000_000_000_000), 1_800_003_600_000_000
    Clock(other, later_us)

    @effect
    def order(price: str) -> str:
        return str(either.world.send(price))

    fails = [True]

    def node(state: State) -> State:
        ordered, after = order(search("price")), search("next")
        if fails:
            fails.pop()
            clock._now_us = later_us
            raise Boom
        return {"log": [ordered, after]}

    config = either.config()
    graph = either.graph(node, saver=saver, retry_policy=RETRY if retried else None)
    if retried:
        done = graph.invoke(FIRST, config, durability=durability)
    else:
        with pytest.raises(Boom):
            graph.invoke(FIRST, config, durability=durability)
        done = either.graph(node, saver=other).invoke(None, config, durability=durability)
    # What was read behind the order is a matter of freshness as before.
    assert done["log"] == ["answer 1 to price", "answer 3 to next"]
    assert either.world.sent == ["answer 1 to price"]


@pytest.mark.optimized
def test_what_an_effect_is_proven_not_to_have_sent_is_asked_again(
    either: Bench, source: Source
) -> None:
    search = search_of(source, freshness=60)
    first, second = either.open(), either.open()
    Clock(first, 1_800_000_000_000_000)
    Clock(second, 1_800_003_600_000_000)
    refuses = [True]

    @effect
    def order(price: str) -> str:
        if refuses:
            refuses.pop()
            raise NotSent
        return str(either.world.send(price))

    config = either.config()
    node = lambda s: {"log": [order(search("price"))]}
    with pytest.raises(NotSent):
        either.graph(node, saver=first).invoke(FIRST, config)
    either.graph(node, saver=second).invoke(None, config)
    assert either.world.sent == ["answer 2 to price"]


@pytest.mark.optimized
@pytest.mark.parametrize("sent", [True, False])
def test_what_a_body_has_read_is_as_old_as_what_it_has_sent(
    either: Bench, source: Source, sent: bool
) -> None:
    """What is sent again under one key is the same; what was never sent may be another."""
    search = search_of(source, freshness=60)
    first, second = either.open(), either.open()
    Clock(first, 1_800_000_000_000_000)
    Clock(second, 1_800_003_600_000_000)
    fails = [True]

    @effect(idempotent=True)
    def order(what: str, *, idempotency_key: str) -> str:
        price = search("price")
        if fails and not sent:
            fails.pop()
            raise NotSent
        either.world.send(price, idempotency_key)
        if fails:
            fails.pop()
            raise Boom
        return price

    config = either.config()
    node = lambda s: {"log": [order("a")]}
    with pytest.raises((Boom, NotSent)):
        either.graph(node, saver=first).invoke(FIRST, config)
    either.graph(node, saver=second).invoke(None, config)
    told = ["answer 1 to price"] * 2 if sent else ["answer 2 to price"]
    assert either.world.sent == told
    assert len(set(either.world.keys)) == 1


@pytest.mark.optimized
@pytest.mark.parametrize("sent", [True, False])
def test_after_a_proven_failure_a_body_may_ask_something_else(
    either: Bench, source: Source, sent: bool
) -> None:
    """As the effect may have other arguments then; of what may have been sent that is refused."""
    search = search_of(source)
    wanted, fails = ["a"], [True]

    @effect(idempotent=True, inputs=[])
    def order(*, idempotency_key: str) -> str:
        found = search(wanted[0])
        if fails:
            fails.pop()
            raise Boom if sent else NotSent
        return str(either.world.send(found, idempotency_key))

    node, config = (lambda s: {"log": [order()]}), either.config()
    with pytest.raises((Boom, NotSent)):
        either.graph(node, saver=either.open()).invoke(FIRST, config)
    wanted[0] = "b"
    if sent:
        with pytest.raises(StaleInput):
            either.graph(node, saver=either.open()).invoke(None, config)
        assert either.world.sent == []
    else:
        done = either.graph(node, saver=either.open()).invoke(None, config)
        assert done["log"] == either.world.sent == ["answer 2 to b"]


@pytest.mark.optimized
def test_what_the_body_of_an_operation_has_read_is_sent_again(
    either: Bench, source: Source
) -> None:
    search = search_of(source, freshness=0)
    fails = [True]

    @effect(idempotent=True, operation_id="invoice")
    def pay(invoice: str, *, idempotency_key: str) -> str:
        price = search("price")
        either.world.send(price, idempotency_key)
        if fails:
            fails.pop()
            raise Boom
        return price

    node = lambda s: {"log": [pay(f"invoice of {either.tenant}")]}
    config = either.config()
    with pytest.raises(Boom):
        either.graph(node, saver=either.open()).invoke(FIRST, config)
    either.graph(node, saver=either.open()).invoke(None, config)
    assert either.world.sent == ["answer 1 to price"] * 2


# --- clock and chance --------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_clock_and_chance_are_equal_after_a_resume(either: Bench, durability: str) -> None:
    seen: list[list[Any]] = []

    def draw(state: State) -> str:
        drawn = [
            surefoot.now(),
            surefoot.random(),
            surefoot.uuid4(),
            surefoot.random(),
            surefoot.uuid4(),
            surefoot.now(),
        ]
        seen.append(drawn)
        return "done"

    config = either.config()
    node = failing(draw)
    with pytest.raises(Boom):
        either.graph(node, saver=either.open()).invoke(FIRST, config, durability=durability)
    either.graph(node, saver=either.open()).invoke(None, config, durability=durability)
    assert seen[0] == seen[1]
    now, number, unique, number_2, unique_2, now_2 = seen[1]
    assert isinstance(now, datetime)
    assert now.utcoffset() == timedelta(0)
    assert abs(datetime.now(timezone.utc) - now) < timedelta(hours=1)
    assert now <= now_2
    assert 0 <= number < 1
    assert number != number_2
    assert isinstance(unique, UUID)
    assert unique.version == 4
    assert unique != unique_2


@pytest.mark.optimized
async def test_the_clock_on_the_loop_that_serves_the_run(either: Bench) -> None:
    """A synchronous read waits for nothing that the loop would have to do."""
    seen: list[list[Any]] = []

    async def first(state: State) -> State:
        return {"log": [str(surefoot.uuid4())]}

    async def node(state: State) -> State:
        seen.append([surefoot.now(), surefoot.random(), surefoot.uuid4()])
        await asyncio.sleep(0)
        seen[-1].append(surefoot.uuid4())
        if len(seen) == 1:
            raise Boom
        return {"log": ["done"]}

    config = either.config()
    with pytest.raises(Boom):
        await either.graph(first, node, saver=either.open()).ainvoke(FIRST, config)
    await either.graph(first, node, saver=either.open()).ainvoke(None, config)
    assert seen[0] == seen[1]


def test_a_chain_beside_the_node_names_its_reads(bench: Bench) -> None:
    chain = RunnableLambda(lambda _: surefoot.random(call_id="chain"))
    node = failing(lambda s: [surefoot.random(), chain.invoke(1)])
    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        graph.invoke(FIRST, config)
    first, second = graph.invoke(None, config)["log"][0]
    assert first != second


# --- pure --------------------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_pure_step_runs_again_and_records_nothing(bench: Bench, asynchronous: bool) -> None:
    ran: list[int] = []

    @pure
    def add(a: int, b: int) -> int:
        ran.append(1)
        return a + b

    @pure(name="adding")
    async def add_async(a: int, b: int) -> int:
        ran.append(1)
        await asyncio.sleep(0)
        return a + b

    tries: list[int] = []

    async def node(state: State) -> State:
        result = (await add_async(1, 2)) if asynchronous else add(1, 2)
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {"log": [result]}

    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        await graph.ainvoke(FIRST, config)
    assert (await graph.ainvoke(None, config))["log"] == [3]
    assert len(ran) == 2
    assert records(bench, config) == []
    assert add(1, 2) == 3, "and needs no run"


@pytest.mark.optimized
@pytest.mark.parametrize("what", ["effect", "read", "clock"])
def test_nothing_is_sent_or_read_inside_a_pure_step(
    bench: Bench, source: Source, what: str
) -> None:
    search = search_of(source)

    @effect(name="pay")
    def pay() -> int:
        return int(bench.world.send(1))

    calls = {"effect": pay, "read": lambda: search("a"), "clock": surefoot.now}
    named = {"effect": "pay", "read": "search", "clock": "surefoot.now"}

    @pure
    def node(state: State) -> State:
        return {"log": [calls[what]()]}

    with pytest.raises(Misuse) as caught:
        bench.graph(node).invoke(FIRST, bench.config())
    assert named[what] in str(caught.value)
    assert "'node'" in str(caught.value)
    assert (bench.world.sent, source.asked) == ([], [])
    assert bench.graph(lambda s: {"log": [pay()]}).invoke(FIRST, bench.config())["log"] == [1]


@pytest.mark.optimized
async def test_nothing_is_sent_inside_an_async_pure_step(bench: Bench) -> None:
    @effect
    async def pay() -> int:
        return int(bench.world.send(1))

    @pure
    async def node(state: State) -> State:
        return {"log": [await pay()]}

    with pytest.raises(Misuse, match="'node'"):
        await bench.graph(node).ainvoke(FIRST, bench.config())
    assert bench.world.sent == []


# --- observations ------------------------------------------------------------------------------


class World:
    """Something that effects depend on, and that may move."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.looked = 0

    def look(self) -> dict[str, Any]:
        self.looked += 1
        return dict(self.fields)


@pytest.mark.optimized
@pytest.mark.parametrize("moves", [False, True])
def test_an_observation_is_looked_at_again_before_the_next_effect(
    either: Bench, moves: bool
) -> None:
    world = World(stock=5, shelf="a")

    @recorded(observe=True)
    def stock(item: str) -> Any:
        return world.look()

    @effect
    def order(count: int) -> int:
        return int(either.world.send(count))

    fails = [True]

    def node(state: State) -> State:
        seen = stock("x")
        if fails:
            fails.pop()
            raise Boom
        return {"log": [order(seen["stock"])]}

    config = either.config()
    with pytest.raises(Boom):
        either.graph(node, saver=either.open()).invoke(FIRST, config)
    assert world.looked == 1
    if not moves:
        assert either.graph(node, saver=either.open()).invoke(None, config)["log"] == [5]
        assert world.looked == 2
        return
    world.fields["stock"] = 4
    with pytest.raises(StaleInput) as caught:
        either.graph(node, saver=either.open()).invoke(None, config)
    assert caught.value.step == "stock"
    assert caught.value.differs == ["changed: (observed).stock"]
    assert either.world.sent == []
    # Going on is a decision of whoever resumes: from then on what is there now counts.
    assert either.graph(node, saver=either.open()).invoke(None, config)["log"] == [4]
    assert either.world.sent == [4]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_run_that_is_not_resumed_looks_once(bench: Bench, asynchronous: bool) -> None:
    world = World(stock=5)

    @recorded(observe=True)
    async def stock() -> Any:
        return world.look()

    @effect
    async def order(count: int) -> int:
        return int(bench.world.send(count))

    tries: list[int] = []

    async def node(state: State) -> State:
        seen = await stock()
        tries.append(1)
        if asynchronous and len(tries) == 1:
            raise Boom
        world.fields["stock"] -= 0
        return {"log": [await order(seen["stock"]), await order(seen["stock"])]}

    graph, config = bench.graph(node), bench.config()
    if asynchronous:
        with pytest.raises(Boom):
            await graph.ainvoke(FIRST, config)
    await graph.ainvoke(None if asynchronous else FIRST, config)
    assert world.looked == (2 if asynchronous else 1), "once for the whole of a resumed run"
    assert bench.world.sent == [5, 5]


def test_what_our_own_effect_has_moved_is_no_alarm(bench: Bench) -> None:
    """The first order took from the stock; the second does not depend on what was seen before."""
    world = World(stock=5)

    @recorded(observe=True)
    def stock() -> Any:
        return world.look()

    @effect
    def order(count: int) -> int:
        world.fields["stock"] -= count
        return int(bench.world.send(count))

    fails = [True]

    def node(state: State) -> State:
        seen = stock()
        first = order(1)
        if fails:
            fails.pop()
            raise Boom
        return {"log": [seen["stock"], first, order(2)]}

    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        graph.invoke(FIRST, config)
    assert graph.invoke(None, config)["log"] == [5, 1, 2]
    assert world.looked == 1


@pytest.mark.optimized
@pytest.mark.parametrize("moves", [False, True])
def test_an_effect_may_name_what_it_depends_on(either: Bench, moves: bool) -> None:
    """The observation was made, and folded, in an earlier step."""
    world = World(rate=1.5)

    @recorded(observe=True, name=f"rate of {either.tenant}")
    def rate(currency: str) -> Any:
        return {**world.look(), "currency": currency}

    @effect(depends_on=[f"rate of {either.tenant}"])
    def pay(amount: float) -> float:
        return float(either.world.send(amount))

    fails = [True]

    def second(state: State) -> State:
        if fails:
            fails.pop()
            raise Boom
        return {"log": [pay(state["log"][0] * 2)]}

    nodes = (lambda s: {"log": [rate("EUR")["rate"]]}, lambda s: {"log": ["between"]}, second)
    config = either.config()
    with pytest.raises(Boom):
        either.graph(*nodes, saver=either.open()).invoke(FIRST, config)
    if moves:
        world.fields["rate"] = 1.6
        for _ in range(2):  # the plan is in the state: it does not get better by trying again
            with pytest.raises(StaleInput, match="rate of"):
                either.graph(*nodes, saver=either.open()).invoke(None, config)
        assert either.world.sent == []
    else:
        done = either.graph(*nodes, saver=either.open()).invoke(None, config)
        assert done["log"] == [1.5, "between", 3.0]
        assert world.looked == 2


@pytest.mark.optimized
@pytest.mark.parametrize("same_step", [True, False])
@pytest.mark.parametrize("same_effect", [True, False])
def test_what_an_effect_that_names_it_has_moved_is_no_alarm(
    either: Bench, same_step: bool, same_effect: bool
) -> None:
    """Also where the effect was folded, and where another one names the same observation."""
    world = World(stock=5)
    name = f"stock of {either.tenant}"
    stock = recorded(observe=True, name=name)(world.look)

    @effect(name=f"buy of {either.tenant}", depends_on=[name])
    def buy(what: str) -> str:
        world.fields["stock"] -= 1
        return str(either.world.send(what))

    @effect(name=f"ship of {either.tenant}", depends_on=[name])
    def ship(what: str) -> str:
        return str(either.world.send(what))

    fails = [True]
    first = lambda s: {"log": [stock()["stock"], buy("a")]}

    def second(state: State) -> State:
        before = first(state)["log"] if same_step else []
        if fails:
            fails.pop()
            raise Boom
        return {"log": [*before, (buy if same_effect else ship)("b")]}

    nodes, config = (second,) if same_step else (first, second), either.config()
    with pytest.raises(Boom):
        either.graph(*nodes, saver=either.open()).invoke(FIRST, config)
    done = either.graph(*nodes, saver=either.open()).invoke(None, config)
    assert done["log"] == [5, "a", "b"]
    assert either.world.sent == ["a", "b"]


@pytest.mark.optimized
def test_what_another_effect_has_left_as_it_was_is_looked_at_again(either: Bench) -> None:
    """An effect that names nothing of the kind, or that came before, says nothing about it."""
    world = World(stock=5)
    name = f"stock of {either.tenant}"
    stock = recorded(observe=True, name=name)(world.look)

    @effect(name=f"buy of {either.tenant}", depends_on=[name])
    def buy(what: str) -> str:
        return str(either.world.send(what))

    @effect
    def tell(what: str) -> str:
        return str(either.world.send(what))

    fails = [True]

    def node(state: State) -> State:
        stock()
        bought = buy("a")
        stock()
        told = tell("b")
        if fails:
            fails.pop()
            raise Boom
        return {"log": [bought, told, buy("c")]}

    config = either.config()
    with pytest.raises(Boom):
        either.graph(node, saver=either.open()).invoke(FIRST, config)
    world.fields["stock"] = 4
    with pytest.raises(StaleInput):
        either.graph(node, saver=either.open()).invoke(None, config)
    assert either.world.sent == ["a", "b"]


@pytest.mark.optimized
@pytest.mark.parametrize("observed", [True, False])
def test_a_fork_depends_on_what_it_was_planned_on(either: Bench, observed: bool) -> None:
    """What the line it has left observed later is as the world is now; its plan is not."""
    world = World(stock=5)
    name = f"stock of {either.tenant}"
    stock = recorded(observe=True, name=name)(world.look)

    @effect(depends_on=[name])
    def order(count: int) -> int:
        return int(either.world.send(count))

    def plan(state: State) -> State:
        return {"log": [stock()["stock"] if observed else 5]}

    nodes = (
        plan,
        lambda s: {"log": ["between"]},
        lambda s: {"log": [order(s["log"][0]) if "go" in s["log"] else "none"]},
        lambda s: {"log": [stock()["stock"]]},
    )
    graph, config = either.graph(*nodes), either.config()
    graph.invoke(FIRST, config)
    world.fields["stock"] = 4
    graph.invoke(FIRST, config)
    old = [h for h in graph.get_state_history(config) if h.next == ("n2",)][-1]
    forked = graph.update_state(old.config, {"log": ["go"]}, as_node="n1")
    refused: Any = StaleInput if observed else Misuse
    with pytest.raises(refused, match="stock of"):
        either.graph(*nodes, saver=either.open()).invoke(None, forked)
    assert either.world.sent == []


@pytest.mark.optimized
@pytest.mark.parametrize("before", ["sync", "exit"])
@pytest.mark.parametrize("after", ["sync", "exit"])
def test_an_observation_counts_whatever_was_stored_of_its_steps(
    either: Bench, before: str, after: str
) -> None:
    world = World(stock=5)
    name = f"stock of {either.tenant}"
    stock = recorded(observe=True, name=name)(world.look)

    @effect(idempotent=True, depends_on=[name])
    def order(count: int, *, idempotency_key: str) -> int:
        return int(either.world.send(count, idempotency_key))

    def inner() -> Any:
        builder = StateGraph(State)
        builder.add_node("look", lambda s: {"log": [stock()["stock"]]})
        builder.add_edge(START, "look")
        return builder.compile()

    looked, fails = inner(), [True]

    def last(state: State) -> State:
        if fails:
            fails.pop()
            raise Boom
        return {"log": [order(1)]}

    between = lambda s: {"log": ["between"]}
    nodes = (lambda s: {"log": looked.invoke({"log": []})["log"]}, between, between, last)
    config = either.config()
    with pytest.raises(Boom):
        either.graph(*nodes, saver=either.open()).invoke(FIRST, config, durability=before)
    world.fields["stock"] = 4
    with pytest.raises(StaleInput, match="stock of"):
        either.graph(*nodes, saver=either.open()).invoke(None, config, durability=after)
    world.fields["stock"] = 5
    done = either.graph(*nodes, saver=either.open()).invoke(None, config, durability=after)
    assert done["log"] == [5, "between", "between", 1]


@pytest.mark.parametrize("known", [True, False])
def test_what_was_never_observed_cannot_be_depended_on(bench: Bench, known: bool) -> None:
    name = f"unseen of {bench.tenant}"
    if known:
        recorded(observe=True, name=name)(lambda: 1)

    @effect(depends_on=[name])
    def pay() -> int:
        return int(bench.world.send(1))

    with pytest.raises(Misuse, match="unseen of"):
        bench.graph(lambda s: {"log": [pay()]}).invoke(FIRST, bench.config())
    assert bench.world.sent == []


# --- the trail ---------------------------------------------------------------------------------


def test_the_trail_tells_reads_apart_from_effects(bench: Bench, source: Source) -> None:
    search = search_of(source)
    stock = recorded(observe=True, name=f"stock of {bench.tenant}")(lambda: 5)

    @effect
    def pay(what: str) -> str:
        return str(bench.world.send(what))

    config = bench.config()
    graph = bench.graph(lambda s: {"log": [pay(search("a")), stock()]})
    graph.invoke(FIRST, config, durability="sync")
    events = [*bench.saver.events(thread_of(config))]
    told = [e.facts for e in events if e.kind == "surefoot.read.recorded"]
    assert [f["effect"] for f in told] == ["search", f"stock of {bench.tenant}"]
    assert [e.facts["effect"] for e in events if ".effect." in e.kind] == ["pay", "pay"]
    assert {effect.name for effect in fold(events).effects.values()} == {"pay"}


# --- operations --------------------------------------------------------------------------------


@pytest.mark.optimized
def test_an_operation_stores_what_its_run_has_read(either: Bench, source: Source) -> None:
    """Its journal is another one; the read stands in that of the thread, before anything leaves."""
    search = search_of(source)
    config = either.config()
    death = Death(either)
    dies = [True]

    @effect(idempotent=True, operation_id="invoice")
    def pay(invoice: str, what: str, *, idempotency_key: str) -> str:
        return str(either.world.send(what, idempotency_key))

    def node(state: State) -> State:
        paid = pay(f"invoice of {either.tenant}", search("price"))
        if dies.pop() if dies else False:
            death.now(thread_of(config))
        return {"log": [paid]}

    with pytest.raises((Boom, SurefootError)):
        either.graph(node, saver=death.saver).invoke(FIRST, config, durability="sync")
    death.bury(thread_of(config))
    done = either.graph(node, saver=either.open()).invoke(None, config)
    assert done["log"] == ["answer 1 to price"]
    assert either.world.sent == ["answer 1 to price"]


@pytest.mark.parametrize("moves", [True, False])
def test_an_operation_depends_on_what_its_run_has_observed(bench: Bench, moves: bool) -> None:
    world = World(stock=5)

    @recorded(observe=True)
    def stock() -> Any:
        return world.look()

    @effect(operation_id="order_id")
    def order(order_id: str, count: int) -> int:
        return int(bench.world.send(count))

    fails = [True]

    def node(state: State) -> State:
        seen = stock()
        if fails:
            fails.pop()
            raise Boom
        return {"log": [order(f"order of {bench.tenant}", seen["stock"])]}

    graph, config = bench.graph(node), bench.config()
    with pytest.raises(Boom):
        graph.invoke(FIRST, config)
    if moves:
        world.fields["stock"] = 4
        with pytest.raises(StaleInput):
            graph.invoke(None, config)
        assert bench.world.sent == []
    done = graph.invoke(None, config)
    assert done["log"] == [world.fields["stock"]]


def test_a_fork_reads_anew(bench: Bench, source: Source) -> None:
    search = search_of(source)
    graph = bench.graph(lambda s: {"log": [search("a")]}, lambda s: {"log": ["end"]})
    config = bench.config()
    assert graph.invoke(FIRST, config)["log"] == ["answer 1 to a", "end"]
    start = next(h.config for h in graph.get_state_history(config) if h.next == ("n0",))
    assert graph.invoke(None, start)["log"] == ["answer 2 to a", "end"]
