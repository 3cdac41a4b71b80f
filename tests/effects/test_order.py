"""The order of steps, as the stores see it: who is told what before what happens."""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from tests.effects.conftest import Bench, State

from surefoot import EffectCall, ResumePolicy, SurefootSaver, Unknown, effect
from surefoot.errors import NotStorable
from surefoot.flows.acquire import effect_of
from surefoot.flows.views import viewing
from surefoot.rules.envelope import Kind
from surefoot.rules.intents import unpack_intents
from surefoot.testing.faults import Fault, Plan, with_faults

pytestmark = pytest.mark.optimized


class WatchedMarks:
    """A high-water store whose publishes can be watched and held."""

    def __init__(self, inner: Any, before: Callable[[Any], None]) -> None:
        self.inner, self.before = inner, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def publish(self, tenant: str, thread: str, publish: Any) -> Any:
        self.before(publish)
        return self.inner.publish(tenant, thread, publish)


def watch(saver: SurefootSaver, before: Callable[[Any], None]) -> None:
    core = saver.core
    core.ports = dataclasses.replace(core.ports, marks=WatchedMarks(core.ports.marks, before))


def paying(bench: Bench, kind: str, during: Callable[[EffectCall], None]) -> Callable[..., Any]:
    """An effect of a class that looks around while it is being sent."""
    settings: dict[str, Any] = {
        "K": {"idempotent": True},
        "L": {"reconcile": lambda call: Unknown()},
        "N": {},
    }[kind]

    @effect(name="pay", **settings)
    def pay(amount: int, *, call: EffectCall) -> int:
        during(call)
        return int(bench.world.send(amount, call.key))

    return pay


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_what_is_published_is_stored(either: Bench, kind: str, durability: str) -> None:
    """P4: the mark never names what the database does not hold yet."""
    config = either.config()
    thread = config["configurable"]["thread_id"]
    reader = either.open().core.ports.store
    seen: list[bool] = []

    def before(publish: Any) -> None:
        row = reader.read_thread(either.tenant, thread)
        head = None if row is None else (row.head.seq, row.head.digest)
        seen.append(head == (publish.new_seq, publish.new_digest))

    watch(either.saver, before)
    pay = paying(either, kind, lambda call: None)
    graph = either.graph(lambda s: {"log": ["first"]}, lambda s: {"log": [pay(1)]})
    assert graph.invoke({"log": []}, config, durability=durability)["log"] == ["first", 1]
    assert len(seen) >= 4
    assert all(seen), "published before it was stored"


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_lost_reply_of_a_publish_is_read_back(either: Bench, number: int) -> None:
    """P4: the mark took it, so the run goes on as if it had been told."""
    lost = f"marks.publish.after#{number}"
    plan = Plan({lost: Fault.LOST})
    worker = with_faults(either.open(), plan)
    pay = paying(either, "N", lambda call: None)
    graph = either.graph(lambda s: {"log": ["first"]}, lambda s: {"log": [pay(1)]}, saver=worker)
    done = graph.invoke({"log": []}, either.config(), durability="sync")
    assert plan.hit == [lost]
    assert done["log"] == ["first", 1]
    assert either.world.count == 1


def test_a_put_that_has_returned_is_seen_by_everybody(either: Bench) -> None:
    """P5: acknowledged means published, at each put and not only at the end of the run."""
    reader = either.saver
    acknowledged: list[tuple[str, str]] = []

    class Said(SurefootSaver):
        """Asks another saver for the latest checkpoint after each put."""

        def put(self, *args: Any) -> Any:
            config = super().put(*args)
            found = reader.get_tuple({"configurable": {"thread_id": thread}})
            latest = "" if found is None else found.checkpoint["id"]
            acknowledged.append((config["configurable"]["checkpoint_id"], latest))
            return config

    config = either.config()
    thread = config["configurable"]["thread_id"]
    with Said(
        either.conn, highwater=either.highwater, keys=either.keys, tenant=either.tenant
    ) as saver:
        graph = either.graph(*(lambda s: {"log": ["n"]},) * 3, saver=saver)
        graph.invoke({"log": []}, config, durability="sync")
    assert len(acknowledged) == 5
    assert [latest for _, latest in acknowledged] == [made for made, _ in acknowledged]


def ledger(bench: Bench, thread: str) -> list[tuple[str, bytes, str]]:
    """Records of effects as another process reads them, newest first: state, slot, key."""

    def look(chain: Any) -> list[tuple[str, bytes, str]]:
        effects = [effect_of(thread, r) for r in chain.walk() if r.kind is Kind.EFFECT]
        return [(e.state, e.slot, e.key) for e in effects]

    return viewing(bench.saver.core.ports, thread, look)


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_an_effect_is_recorded_before_it_is_sent_and_after_it(
    either: Bench, kind: str, durability: str
) -> None:
    """E2 and E5: others see the start and the intent while it is sent, then the outcome."""
    worker = either.open()
    config = either.config()
    thread = config["configurable"]["thread_id"]
    during: list[list[tuple[str, bytes, str]]] = []
    intents: list[dict[bytes, int]] = []
    after: list[list[tuple[str, bytes, str]]] = []

    def look(call: EffectCall) -> None:
        during.append([found for found in ledger(either, thread) if found[2] == call.key])
        mark = either.saver.core.ports.marks.read(either.tenant, thread)
        intents.append({} if mark is None else unpack_intents(mark.intents))

    pay = paying(either, kind, look)

    def node(state: Any) -> Any:
        amount = pay(1)
        after.append(ledger(either, thread))
        return {"log": [amount]}

    graph = either.graph(lambda s: {"log": ["first"]}, node, saver=worker)
    assert graph.invoke({"log": []}, config, durability=durability)["log"] == ["first", 1]
    ((state, slot, _),) = during[0]
    assert state == "started"
    assert (slot in intents[0]) == (kind != "K"), "K needs no intent, the others do"
    assert [found[0] for found in after[0]] == ["succeeded", "started"]


def test_what_a_body_notes_is_stored_at_once(either: Bench) -> None:
    """E2: others see the provider's id while the body runs, not only when it has ended."""
    worker = either.open()
    config = either.config()
    thread = config["configurable"]["thread_id"]
    noted: list[list[bool]] = []

    def receipts(chain: Any) -> list[bool]:
        effects = [effect_of(thread, r) for r in chain.walk() if r.kind is Kind.EFFECT]
        return [e.receipt is not None for e in effects]

    def look(call: EffectCall) -> None:
        noted.append(viewing(either.saver.core.ports, thread, receipts))
        call.note(provider_id="ch_1")
        noted.append(viewing(either.saver.core.ports, thread, receipts))

    pay = paying(either, "N", look)
    graph = either.graph(lambda s: {"log": [pay(1)]}, saver=worker)
    assert graph.invoke({"log": []}, config)["log"] == [1]
    assert noted == [[False], [True, False]]


@pytest.mark.parametrize("kind", ["K", "L", "N"])
@pytest.mark.parametrize("where", ["before the commit", "before the publish"])
def test_an_effect_waits_until_its_checkpoint_is_published(
    bench: Bench, kind: str, where: str
) -> None:
    """E1: the put of its checkpoint is held at either place, and nothing is sent meanwhile."""
    config = bench.config()
    thread = config["configurable"]["thread_id"]
    armed, held, go, idle = (threading.Event() for _ in range(4))
    sent_before: list[int] = []

    def hold() -> None:
        if armed.is_set() and not held.is_set():
            held.set()
            go.wait(60)
            sent_before.append(bench.world.count)

    class Held(SurefootSaver):
        """Waits before it begins to put."""

        def put(self, *args: Any) -> Any:
            if where == "before the commit":
                hold()
            return super().put(*args)

    saver = Held(bench.conn, highwater=bench.highwater, keys=bench.keys, tenant=bench.tenant)
    saver.setup()
    if where == "before the publish":
        watch(saver, lambda publish: hold())
    pay = paying(bench, kind, lambda call: None)

    def first(state: Any) -> Any:
        session = saver.core.sessions.get(thread)
        assert session is not None
        assert session.wait_change(30, lambda: session.mark.seq >= 2)
        armed.set()
        return {"log": ["first"]}

    def let_go() -> None:
        """Once the effect waits; or once it was sent without waiting."""
        session = saver.core.sessions.get(thread)
        for _ in range(6_000):
            if bench.world.count or (session and session._published._waiters):
                break
            idle.wait(0.005)
        go.set()

    def second(state: Any) -> Any:
        assert held.wait(60)
        threading.Thread(target=let_go).start()
        return {"log": [pay(1)]}

    graph = bench.graph(first, second, saver=saver)
    assert graph.invoke({"log": []}, config, durability="async")["log"] == ["first", 1]
    saver.close()
    assert held.is_set(), "the fault has to hit"
    assert sent_before == [0], "sent before its checkpoint was published"


class Dropping(TypedDict, total=False):
    """A state whose checkpoints can be stored although a write cannot."""

    log: Annotated[list[Any], operator.add]
    handle: Annotated[Any, lambda before, new: before]


@pytest.mark.parametrize("kind", ["K", "L", "N"])
@pytest.mark.parametrize("channel", ["log", "handle"])
def test_after_a_value_that_cannot_be_stored_no_effect_starts(
    bench: Bench, kind: str, channel: str
) -> None:
    """E10: no checkpoint follows a step whose result is lost, whatever the state makes of it."""
    config = bench.config()
    thread = config["configurable"]["thread_id"]
    pay = paying(bench, kind, lambda call: None)
    stopped: list[bool] = []
    before: list[int] = []

    def first(state: Any) -> Any:
        session = bench.saver.core.sessions.get(thread)
        assert session is not None
        assert session.wait_change(30, lambda: session.mark == session.head)
        before.append(session.mark.seq)
        return {channel: [threading.Lock()]}

    def second(state: Any) -> Any:
        session = bench.saver.core.sessions.get(thread)
        assert session is not None
        session.wait_change(30, lambda: session.stopped or session.mark.seq > before[0])
        stopped.append(session.stopped)
        return {"log": [pay(1)]}

    builder = StateGraph(Dropping)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    graph = builder.compile(checkpointer=bench.saver)
    with pytest.raises(NotStorable):
        graph.invoke({"log": []}, config, durability="async")
    assert stopped == [True]
    assert bench.world.sent == []
    assert graph.get_state(config).next == ("first",)


class Lagging(SurefootSaver):
    """Root checkpoints come late: nothing orders the saves of a graph and of its subgraphs."""

    inner_is_stored: threading.Event

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Waits, for a root checkpoint of a later step, until the subgraph's is stored."""
        namespace = config["configurable"].get("checkpoint_ns", "")
        if not namespace and metadata["step"] >= 1 and not self.inner_is_stored.wait(30):
            raise TimeoutError("the subgraph has stored nothing")
        done = super().put(config, checkpoint, metadata, new_versions)
        if namespace and metadata["step"] >= 0:
            self.inner_is_stored.set()
        return done


@pytest.mark.optimized
def test_a_subgraph_may_be_stored_long_before_the_checkpoints_above_it(either: Bench) -> None:
    """Two root checkpoints come after it; the effect must not wait for what is there already."""
    saver = Lagging(
        either.conn,
        highwater=either.highwater,
        keys=either.keys,
        tenant=either.tenant,
        policy=ResumePolicy(barrier_timeout_ms=5_000),
    )
    saver.inner_is_stored = threading.Event()

    @effect(idempotent=True)
    def pay(amount: int, *, idempotency_key: str) -> int:
        return either.world.send(amount, idempotency_key)

    inner = StateGraph(State)
    inner.add_node("pay", lambda state: {"log": [pay(7)]})
    inner.add_edge(START, "pay")
    with saver:
        saver.setup()
        graph = StateGraph(State)
        graph.add_node("first", lambda state: {"log": ["first"]})
        graph.add_node("second", lambda state: {"log": ["second"]})
        graph.add_node("inner", inner.compile())
        graph.add_edge(START, "first")
        graph.add_edge("first", "second")
        graph.add_edge("second", "inner")
        built = graph.compile(checkpointer=saver)
        built.checkpointer.inner_is_stored = saver.inner_is_stored  # type: ignore[union-attr]
        done = built.invoke({"n": 1}, either.config(), durability="async")
    assert done["log"][-1] == 7
    assert either.world.sent == [7]
