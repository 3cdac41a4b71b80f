"""The audit trail on real stores: what is recorded and read, and that it fits the live run."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import operator
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt
from tests.saver.conftest import Backend, Half, at, checkpoint, metadata, put_chain

import surefoot
from surefoot import (
    Absent,
    Committed,
    Event,
    Limits,
    NotSent,
    ResumePolicy,
    Reviewers,
    SigningKey,
    SurefootSaver,
    effect,
    fold,
)
from surefoot.errors import (
    Busy,
    EffectInDoubt,
    Fenced,
    Misuse,
    NotStorable,
    ResumeRefused,
    RollbackDetected,
    SaveFailed,
    StoreUnavailable,
    TamperDetected,
)
from surefoot.flows.views import viewing
from surefoot.ports import Lease
from surefoot.rules.effects import operation_thread
from surefoot.rules.envelope import Kind
from surefoot.rules.folding import ThreadState
from surefoot.session import Caller, RunHandle

pytestmark = pytest.mark.optimized
OURS = "surefoot."
#: Too large for a record, and nothing that compresses: it gets a row of its own.
LARGE = hashlib.shake_256(b"large").hexdigest(4_000)


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[Any], operator.add]


def told(saver: SurefootSaver, thread: str = "t") -> list[str]:
    """Kinds of a thread's events, oldest first."""
    return [e.kind.removeprefix(OURS) for e in saver.events(thread)]


def facts(saver: SurefootSaver, thread: str = "t") -> list[tuple[str, Any, int]]:
    """The user's facts of a thread, oldest first."""
    found = saver.events(thread)
    return [(e.kind, e.value, e.schema) for e in found if not e.kind.startswith(OURS)]


def chained(saver: SurefootSaver, *nodes: Callable[..., Any], **more: Any) -> Any:
    """Nodes one after the other."""
    builder = StateGraph(State)
    names = [START]
    for number, node in enumerate(nodes):
        builder.add_node(f"n{number}", node, **more)
        builder.add_edge(names[-1], f"n{number}")
        names.append(f"n{number}")
    builder.add_edge(names[-1], END)
    return builder.compile(checkpointer=saver)


# --- every prefix of the journal is the state that the live run had -----------------------------


class Watched:
    """A high-water store that looks at the thread after each publish, as another process would."""

    def __init__(self, inner: Any, look: Callable[[Any], None]) -> None:
        self.inner = inner
        self.look = look

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def publish(self, tenant: str, thread: str, publish: Any) -> bool:
        """Publishes, and looks."""
        done: bool = self.inner.publish(tenant, thread, publish)
        if done:
            self.look(publish)
        return done


@dataclasses.dataclass
class Seen:
    """What a live run and a reader had at one publish."""

    seq: int
    checkpoint_id: str | None
    parent_id: str | None
    step: int | None
    writes: int
    heads: dict[str, tuple[str, int, str]]
    effects: dict[str, tuple[str, int]]


class Witness:
    """Collects what is seen at each publish of a saver."""

    def __init__(self, saver: SurefootSaver, reader: SurefootSaver) -> None:
        self.seen: list[Seen] = []
        self._saver, self._reader = saver, reader
        marks = Watched(saver.core.ports.marks, self._look)
        saver.core.ports = dataclasses.replace(saver.core.ports, marks=marks)

    def _look(self, publish: Any) -> None:
        found = self._reader.get_tuple(at("t"))
        session = self._saver.core.sessions.get("t")
        heads: dict[str, tuple[str, int, str]] = {}
        effects: dict[str, tuple[str, int]] = {}
        if session is not None and session.epoch == publish.epoch:
            known = [session.known[place] for place in session.latest.items()]
            heads = {k.namespace: (k.checkpoint_id, k.step, k.branch.hex()) for k in known}
            effects = {s.hex(): (e.state, e.attempt) for s, e in session.effects.items()}
        above = None if found is None else found.parent_config
        self.seen.append(
            Seen(
                publish.new_seq,
                None if found is None else found.checkpoint["id"],
                None if above is None else above["configurable"]["checkpoint_id"],
                None if found is None else found.metadata["step"],
                0 if found is None else len(found.pending_writes or ()),
                heads,
                effects,
            )
        )

    def check(self, events: list[Event]) -> None:
        """Folds every prefix and compares it with what was seen when it was all there was."""
        for seen in self.seen:
            state = fold(e for e in events if e.seq <= seen.seq)
            assert state.seq == seen.seq
            head = state.heads.get("")
            assert (None if head is None else head.checkpoint_id) == seen.checkpoint_id
            if head is not None:
                assert (head.parent_id, head.step) == (seen.parent_id, seen.step)
                assert head.writes == seen.writes
            for namespace, (checkpoint_id, step, branch) in seen.heads.items():
                mine = state.heads[namespace]
                assert (mine.checkpoint_id, mine.step, mine.branch) == (checkpoint_id, step, branch)
            for slot, known in seen.effects.items():
                assert (state.effects[slot].state, state.effects[slot].attempt) == known


def everything(saver: SurefootSaver) -> Any:
    """A graph with a fan-out, a subgraph that asks, effects of each outcome, retries and facts."""
    tries: dict[str, int] = {}

    def first_time(name: str, key: str) -> bool:
        tries[name + key] = tries.get(name + key, 0) + 1
        return tries[name + key] == 1

    @effect(idempotent=True)
    def mail(n: int, *, idempotency_key: str) -> int:
        if first_time("mail", idempotency_key):
            raise NotSent
        return n

    @effect(reconcile=lambda call: Committed({"n": call.arguments["n"]}), compare=["n"], settling=0)
    def charge(n: int, *, idempotency_key: str) -> dict[str, int]:
        if first_time("charge", idempotency_key):
            raise TimeoutError
        return {"n": n}

    def ask(state: State) -> State:
        first = interrupt("first?")
        second = interrupt("second?")
        surefoot.record("approval.used", {"answers": [first, second]})
        return {"log": [first, second]}

    def pay(state: State) -> State:
        saver.record("t", "before.paying", state["n"])
        mail(state["n"])
        charge(state["n"])
        return {"n": state["n"] + 1}

    inner = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_node("after", lambda s: {"log": ["after"]})
    inner.add_edge(START, "ask")
    inner.add_edge("ask", "after")
    built = StateGraph(State)
    for name in ("left", "right"):
        built.add_node(name, lambda s, name=name: {"log": [name]})
        built.add_edge(START, name)
    built.add_node("sub", inner.compile())
    policy = RetryPolicy(max_attempts=2, initial_interval=0.001, retry_on=NotSent)
    built.add_node("pay", pay, retry_policy=policy)
    built.add_edge(["left", "right"], "sub")
    built.add_edge("sub", "pay")
    return built.compile(checkpointer=saver)


async def drive(graph: Any, *, is_async: bool, durability: Any) -> None:
    """A run with questions, a time-out, an update, new input and a fork."""

    async def invoke(given: Any, config: Any = None) -> Any:
        config = config or at("t")
        if is_async:
            return await graph.ainvoke(given, config, durability=durability)
        return await asyncio.to_thread(graph.invoke, given, config, durability=durability)

    async def answer() -> Any:
        asked = await invoke(Command(resume="yes"))
        name = asked["__interrupt__"][0].id
        return await invoke(Command(resume={name: "yes again"}))

    async def to_the_end() -> None:
        with pytest.raises(TimeoutError):
            await answer()
        await invoke(None)  # the receiver is asked, and the run goes on

    await invoke({"n": 1, "log": []})
    await to_the_end()
    history = [found async for found in graph.aget_state_history(at("t"))]
    middle = next(s.config for s in history if s.next == ("sub",))
    if is_async:
        await graph.aupdate_state(at("t"), {"log": ["updated"]}, as_node="pay")
    else:
        await asyncio.to_thread(graph.update_state, at("t"), {"log": ["updated"]}, as_node="pay")
    await invoke({"n": 10})
    await to_the_end()
    await invoke(None, middle)  # a fork; it asks anew
    await answer()  # and adopts what the other branch has sent


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_every_prefix_folds_to_the_state_that_the_live_run_had(
    backend: Backend, *, is_async: bool, durability: str
) -> None:
    saver = backend.open_saver(policy=ResumePolicy(settling_ms=0))
    witness = Witness(saver, backend.open_saver(setup=False))
    await drive(everything(saver), is_async=is_async, durability=durability)
    await saver.arecord("t", "driven", None)
    events = [*saver.events("t")]
    assert len(witness.seen) > 30
    assert sum(bool(seen.effects) for seen in witness.seen) > 8
    witness.check(events)
    kinds = {e.kind.removeprefix(OURS) for e in events}
    assert kinds >= {
        *("epoch.began", "checkpoint.saved", "writes.stored", "approval.asked"),
        *("approval.passed_up", "approval.answered", "effect.started", "effect.failed"),
        *("effect.retried", "effect.succeeded", "effect.in_doubt", "effect.reconciled"),
        "effect.adopted",
        *("approval.used", "before.paying", "driven"),
    }
    state = fold(events)
    assert [a.state for a in state.approvals] == ["answered"] * 6
    assert all(a.latency_us is not None for a in state.approvals)
    assert state.status == "done"
    assert state.effects_by_state() == {"succeeded": 4}, "of two inputs; the fork sent nothing"
    assert len(state.effects) == 6
    assert all(report.ok for report in saver.verify("t", deep=True))


@pytest.mark.parametrize("then", ["prune", "restore", "delete_for_runs"])
async def test_after_an_order_the_fold_is_what_a_reader_sees(
    backend: Backend, half: Half, then: str
) -> None:
    """What was dropped or given up is not on the chain, so it is not folded either."""
    operator_key = SigningKey.generate("operator")
    saver = backend.open_saver(reviewers=Reviewers({"operator": operator_key.public()}))
    half = half.on(saver)
    await put_chain(half, "t", "c0", "c1", "c2")
    await half.put_writes(at("t", "c2"), [("a", 1)], "task")
    made = checkpoint("c3", n=3)
    await half.put(at("t", "c2"), made, metadata(3, run_id="bad"), made["channel_versions"])
    await half.record("t", "seen", [1])
    if then == "prune":
        await half.prune(["t"])
    elif then == "delete_for_runs":
        await half.delete_for_runs(["bad"])
    else:
        signed = operator_key.sign(saver.propose("t", "restore", reason="test", to_seq=4))
        await half.resolve(signed)
    found = await half.get_tuple(at("t"))
    state = fold(await half.events("t"))
    head = state.heads[""]
    assert head.checkpoint_id == found.checkpoint["id"] == ("c3" if then == "prune" else "c2")
    assert (head.step, head.writes) == (found.metadata["step"], len(found.pending_writes))
    assert state.facts == ({} if then == "restore" else {"seen": 1})
    session, _, _ = saver.core.load("t", RunHandle(object(), None, "sync"), _me())
    assert head.branch == session.known["", head.checkpoint_id].branch.hex()
    assert (state.horizon if then == "restore" else None) == (
        session.horizon if then == "restore" else None
    )
    saver.close()


def _me() -> Caller:
    return Caller(threading.current_thread(), None, is_task=False)


class Stopped(BaseException):
    """The worker stops here."""


class Gone:
    """A content store that a stopped worker does not reach any more."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.stopped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append(self, append: Any) -> Any:
        """Appends as long as the worker lives."""
        if self.stopped:
            raise StoreUnavailable(store="content", reason="the worker has stopped")
        return self.inner.append(append)


async def test_a_takeover_is_told(backend: Backend) -> None:
    """A worker that stops with an effect started, and the one that goes on."""
    first = backend.open_saver(policy=ResumePolicy(settling_ms=0))
    gone = Gone(first.core.ports.store)
    first.core.ports = dataclasses.replace(first.core.ports, store=gone)
    asked: list[str] = []

    def look(call: Any) -> Any:
        asked.append(call.key)
        return Absent({"found": 0})

    def graph(saver: SurefootSaver, *, stops: bool) -> Any:
        @effect(name="pay", reconcile=look, settling=0, lookup="strong")
        def pay(n: int, *, idempotency_key: str) -> int:
            if stops:
                take_over(backend, first)
                gone.stopped = True
                raise Stopped
            return n

        return chained(saver, lambda s: {"n": pay(7)})

    with pytest.raises((Stopped, SaveFailed, StoreUnavailable)):
        graph(first, stops=True).invoke({"n": 0}, at("t"))
    second = backend.open_saver(policy=ResumePolicy(settling_ms=0))
    give_back(backend, second)
    assert graph(second, stops=False).invoke(None, at("t"))["n"] == 7
    events = second.events("t")
    effects = [e for e in events if e.kind.startswith("surefoot.effect.")]
    assert [e.kind.rpartition(".")[2] for e in effects] == [
        "started",
        "reconciled",
        "retried",
        "succeeded",
    ]
    assert (effects[1].facts["state"], effects[1].facts["rule"]) == ("absent", "E5")
    assert asked
    (began,) = [
        e for e in events if e.kind == "surefoot.epoch.began" and e.epoch == effects[1].epoch
    ]
    assert began.facts == {"before": 1, "silent": began.epoch - 2, "left_started": 1}
    assert began.epoch >= 3, "an epoch that wrote nothing lies between"
    assert fold(events).handovers == 1


def take_over(backend: Backend, saver: SurefootSaver) -> None:
    """Another worker acquires the thread, as it may when the lease is over."""
    marks = saver.core.ports.marks
    mark = marks.read(backend.tenant, "t")
    assert mark is not None
    lease = Lease("another worker", 600_000)
    taken = marks.acquire(backend.tenant, "t", lease, over_epoch=mark.epoch)
    if taken is None:
        raise RuntimeError("the takeover of the test did not happen")


def give_back(backend: Backend, saver: SurefootSaver) -> None:
    """That worker goes without having written anything."""
    from surefoot.ports import Publish

    marks = saver.core.ports.marks
    mark = marks.read(backend.tenant, "t")
    if mark is None:
        raise RuntimeError("there is no mark")
    same = {"seq": mark.seq, "digest": mark.digest, "new_seq": mark.seq, "new_digest": mark.digest}
    given = Publish(epoch=mark.epoch, **same, step=mark.step, intents=mark.intents, ttl_ms=0)
    if not marks.publish(backend.tenant, "t", given):
        raise RuntimeError("the lease was not given back")


async def test_an_operation_has_a_trail_of_its_own(saver: SurefootSaver) -> None:
    @effect(idempotent=True, operation_id=lambda invoice: invoice)
    def pay(invoice: str, *, idempotency_key: str) -> str:
        return "paid"

    graph = chained(saver, lambda s: {"log": [pay("inv-771")]})
    for thread in ("t", "u"):
        assert graph.invoke({"log": []}, at(thread))["log"] == ["paid"]
    events = saver.events(operation_thread("pay", "inv-771"))
    effects = [e for e in events if e.kind.startswith("surefoot.effect.")]
    assert [e.kind for e in effects] == ["surefoot.effect.started", "surefoot.effect.succeeded"]
    assert (effects[0].facts["operation"], effects[0].facts["caller"]) == ("inv-771", "t")
    assert fold(events).status == "done"


# --- recording ---------------------------------------------------------------------------------


async def test_facts_come_back_in_order(each_half: Half) -> None:
    payloads: list[Any] = [None, {"a": [1, 2.5, b"\0", True]}, LARGE, [], {"d": {"e": None}}]
    for number, payload in enumerate(payloads):
        await each_half.record("t", f"kind.{number}", payload, schema=number + 1)
    assert facts(each_half.saver) == [(f"kind.{n}", p, n + 1) for n, p in enumerate(payloads)]
    found = await each_half.events("t")
    times = [e.at_us for e in found]
    assert times == sorted(times)
    assert times[0] > 1_700_000_000 * 10**6
    assert await each_half.get_tuple(at("t")) is None, "facts are no state"
    assert fold(found).status == "empty"


async def test_a_fact_from_outside_is_published_and_leaves_the_thread_free(
    backend: Backend, each_half: Half
) -> None:
    await put_chain(each_half, "t", "c1")
    marks = each_half.saver.core.ports.marks
    before = marks.read(backend.tenant, "t")
    await each_half.record("t", "seen", 1)
    after = marks.read(backend.tenant, "t")
    assert before is not None
    assert after is not None
    assert (after.seq, after.epoch) == (before.seq + 1, before.epoch + 1)
    assert (after.lease_left_ms <= 0, after.clean, after.tainted) == (True, True, False)
    assert (await each_half.get_tuple(at("t"))).checkpoint["id"] == "c1"
    await put_chain(each_half, "t", "c2")


async def test_what_may_not_be_recorded(each_half: Half) -> None:
    for kind in ("", "surefoot.mine", "a b", 5):
        with pytest.raises(Misuse):
            await each_half.record("t", kind, 1)
    for schema in (0, -1, True, "1", 2**31):
        with pytest.raises(Misuse):
            await each_half.record("t", "a", 1, schema=schema)
    with pytest.raises(NotStorable) as caught:
        await each_half.record("t", "a", {"x": object()})
    assert caught.value.path == "$['x']"
    with pytest.raises(Misuse):
        await each_half.record(None, "a", 1)
    assert await each_half.events("t") == ()


async def test_a_fact_of_a_live_run_of_another_owner_is_busy(
    backend: Backend, saver: SurefootSaver
) -> None:
    other = backend.open_saver(policy=ResumePolicy(handover_grace_ms=0))
    tried: list[str] = []

    def node(state: State) -> State:
        def outside() -> None:
            for who in (saver, other):
                with pytest.raises(Busy):
                    who.record("t", "not.mine", 1)
                tried.append("busy")

        stranger = threading.Thread(target=outside)
        stranger.start()
        stranger.join(60)
        saver.record("u", "another.thread", 1)
        return {"n": 1}

    chained(saver, node).invoke({"n": 0}, at("t"))
    assert tried == ["busy", "busy"]
    assert facts(saver) == []
    assert facts(saver, "u") == [("another.thread", 1, 1)]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_facts_from_inside_a_run(saver: SurefootSaver, durability: Any) -> None:
    def node(state: State) -> State:
        surefoot.record("inside", {"n": state["n"]})
        saver.record("t", "through.the.saver", state["n"], schema=2)
        return {"n": state["n"] + 1}

    async def async_node(state: State) -> State:
        await surefoot.arecord("inside", {"n": state["n"]})
        await saver.arecord("async", "through.the.saver", state["n"], schema=2)
        return {"n": state["n"] + 1}

    graph = chained(saver, node, node)
    assert graph.invoke({"n": 0}, at("t"), durability=durability)["n"] == 2
    wanted = [
        (kind, value, schema)
        for n in range(2)
        for kind, value, schema in (("inside", {"n": n}, 1), ("through.the.saver", n, 2))
    ]
    assert facts(saver) == wanted
    graph = chained(saver, async_node, async_node)
    done = await graph.ainvoke({"n": 0}, at("async"), durability=durability)
    assert done["n"] == 2
    assert facts(saver, "async") == wanted
    for thread in ("t", "async"):
        events = saver.events(thread)
        assert fold(events).status == "done"
        assert {e.epoch for e in events} == {1}, "no acquisition of its own"


async def test_a_fact_inside_a_run_disturbs_nothing(backend: Backend) -> None:
    """The same checkpoints and writes, and one record, one commit, one publish more for each."""
    # Nothing is stored by the clock: records are counted.
    saver = backend.open_saver(limits=Limits(flush_after_ms=10**9))

    def graph(*, tells: bool) -> Any:
        def node(state: State) -> State:
            if tells:
                surefoot.record("fact", "x")
            return {"n": state["n"] + 1}

        return chained(saver, node, node, node)

    graph(tells=False).invoke({"n": 0}, at("plain"), durability="sync")
    graph(tells=True).invoke({"n": 0}, at("t"), durability="sync")
    plain, more = saver.events("plain"), saver.events("t")
    assert [e.kind for e in more if e.kind != "fact"] == [e.kind for e in plain]
    assert more[-1].seq == plain[-1].seq + 3
    marks = saver.core.ports.marks
    one, other = marks.read(backend.tenant, "plain"), marks.read(backend.tenant, "t")
    assert one is not None
    assert other is not None
    assert (other.clean, other.tainted, other.epoch) == (one.clean, one.tainted, one.epoch)


async def test_a_fact_beside_a_question_leaves_the_lease_given_back(backend: Backend) -> None:
    """The run pauses in one task while the other still tells; then anybody may answer."""
    saver = backend.open_saver()
    paused = threading.Event()

    def asks(state: State) -> State:
        return {"log": [interrupt("sure?")]}

    def tells(state: State) -> State:
        session = saver.core.sessions.get("t")
        assert session is not None
        if not session.yielded:
            assert session.wait_change(30, lambda: session.yielded)
        paused.set()
        surefoot.record("told.late", 1)
        mark = saver.core.ports.marks.read(backend.tenant, "t")
        assert mark is not None
        return {"log": [mark.lease_left_ms > 0]}

    built = StateGraph(State)
    built.add_node("asks", asks)
    built.add_node("tells", tells)
    built.add_edge(START, "asks")
    built.add_edge(START, "tells")
    graph = built.compile(checkpointer=saver)
    await asyncio.to_thread(graph.invoke, {"log": []}, at("t"))
    assert paused.is_set()
    other = backend.open_saver(policy=ResumePolicy(handover_grace_ms=0))
    built_again = built.compile(checkpointer=other)
    done = await asyncio.to_thread(built_again.invoke, Command(resume="yes"), at("t"))
    assert sorted(done["log"], key=str) == [False, "yes"]
    assert facts(other) == [("told.late", 1, 1)]


async def test_outside_of_a_run_the_short_form_says_so(saver: SurefootSaver) -> None:
    with pytest.raises(Misuse, match="outside a run"):
        surefoot.record("a", 1)
    with pytest.raises(Misuse, match="outside a run"):
        await surefoot.arecord("a", 1)


async def test_a_config_that_is_handed_on_is_enough(saver: SurefootSaver) -> None:
    """As an async node on Python 3.10 has to do it."""
    from langchain_core.runnables import RunnableConfig

    def node(state: State, config: RunnableConfig) -> State:
        worker = threading.Thread(target=lambda: surefoot.record("handed.on", 1, config=config))
        worker.start()
        worker.join(30)
        return {"n": 1}

    chained(saver, node).invoke({"n": 0}, at("t"))
    assert facts(saver) == [("handed.on", 1, 1)]


async def test_a_fenced_run_records_nothing(backend: Backend, saver: SurefootSaver) -> None:
    seen: list[type[BaseException]] = []

    def node(state: State) -> State:
        take_over(backend, saver)
        for _ in range(2):
            try:
                surefoot.record("too.late", 1)
            except Exception as error:
                seen.append(type(error))
        return {"n": 1}

    with pytest.raises(Exception, match=r"superseded|latched"):
        chained(saver, node).invoke({"n": 0}, at("t"))
    assert issubclass(seen[0], Fenced)
    assert issubclass(seen[1], (Fenced, SaveFailed))
    assert facts(backend.open_saver(setup=False)) == []


async def test_a_fact_that_was_not_published_is_not_told(backend: Backend) -> None:
    """The worker dies between storing and publishing: nobody was told that it stands."""
    saver = backend.open_saver()
    await put_chain(Half(saver, is_async=False), "t", "c1")

    class Deaf(Watched):
        def publish(self, tenant: str, thread: str, publish: Any) -> bool:
            """The store is gone."""
            raise StoreUnavailable(store="marks", reason="test")

    inner = saver.core.ports.marks
    stored = backend.counts()["surefoot_frame"]
    saver.core.ports = dataclasses.replace(saver.core.ports, marks=Deaf(inner, lambda _: None))
    with pytest.raises(StoreUnavailable):
        saver.record("t", "never.published", 1)
    assert backend.counts()["surefoot_frame"] == stored + 1, (
        "it was not stored, so nothing is shown"
    )
    other = backend.open_saver()
    assert facts(other) == []
    other.record("t", "the.next", 2)
    assert facts(other) == [("the.next", 2, 1)]
    assert all(report.ok for report in other.verify("t", deep=True))


async def test_a_frozen_thread_takes_no_facts(backend: Backend) -> None:
    key = SigningKey.generate("operator")
    saver = backend.open_saver(reviewers=Reviewers({"operator": key.public()}))
    saver.record("t", "before", 1)
    saver.resolve(key.sign(saver.propose("t", "abort", reason="test")))
    with pytest.raises(ResumeRefused, match="R13"):
        saver.record("t", "after", 2)
    assert facts(saver) == [("before", 1, 1)]
    assert fold(saver.events("t")).status == "frozen"


async def test_a_deleted_thread_begins_a_new_trail(each_half: Half) -> None:
    await each_half.record("t", "first.life", 1)
    await each_half.delete_thread("t")
    assert await each_half.events("t") == ()
    await each_half.record("t", "second.life", 2)
    assert facts(each_half.saver) == [("second.life", 2, 1)]


async def test_what_a_prune_and_a_copy_do_with_facts(each_half: Half) -> None:
    saver = each_half.saver
    await put_chain(each_half, "t", "c1", "c2")
    await each_half.record("t", "large", LARGE)
    await put_chain(each_half, "t", "c3")
    await each_half.prune(["t"])
    assert facts(saver) == [("large", LARGE, 1)], "its row has to be kept as well"
    assert told(saver)[-1] == "thread.pruned"
    await each_half.copy_thread("t", "u")
    assert facts(saver, "u") == []
    assert "thread.copied" in told(saver, "u")
    assert all(report.ok for report in saver.verify(deep=True))


async def test_a_payload_is_encrypted_like_everything_else(backend: Backend) -> None:
    pytest.importorskip("cryptography")
    saver = backend.open_saver(encryption=True)
    secret = "SECRET-" * 3
    saver.record("t", "small", secret)
    saver.record("t", "large", secret * 400)
    assert facts(saver) == [("small", secret, 1), ("large", secret * 400, 1)]
    assert b"SECRET-" not in backend.dump()
    plain = backend.open_saver()
    plain.record("u", "small", secret)
    assert b"SECRET-" in backend.dump(), "otherwise this test could not fail"


# --- reading -----------------------------------------------------------------------------------


async def test_limits_and_order(each_half: Half) -> None:
    for number in range(5):
        await each_half.record("t", f"n{number}", number)
    whole = await each_half.events("t")
    assert len(whole) == 10
    assert await each_half.events("t", newest_first=True) == whole[::-1]
    assert await each_half.events("t", limit=3) == whole[:3]
    assert await each_half.events("t", limit=3, newest_first=True) == whole[::-1][:3]
    assert await each_half.events("t", limit=0) == ()
    assert await each_half.events("t", limit=99) == whole
    assert await each_half.events("nobody") == ()
    for limit in (-1, True, "3"):
        with pytest.raises(Misuse):
            await each_half.events("t", limit=limit)
    with pytest.raises(Misuse):
        await each_half.events("t", newest_first=1)


async def test_progress_on_a_long_thread(each_half: Half) -> None:
    await put_chain(each_half, "t", *(f"c{n:03}" for n in range(150)))
    said: list[tuple[str, int]] = []
    found = await each_half.events("t", progress=lambda *what: said.append(what))
    assert said == [("t", 64), ("t", 128), ("t", 150)]
    assert [e.facts["step"] for e in found if e.kind == "surefoot.checkpoint.saved"] == [
        *range(150)
    ]


async def test_reading_takes_no_lease_beside_a_live_run(
    backend: Backend, saver: SurefootSaver
) -> None:
    reader = backend.open_saver(setup=False)
    states: list[ThreadState] = []

    def node(state: State) -> State:
        surefoot.record("at", state["n"])
        states.append(fold(reader.events("t")))
        states.append(fold(saver.events("t")))
        return {"n": state["n"] + 1}

    done = chained(saver, node, node).invoke({"n": 0}, at("t"), durability="sync")
    assert done["n"] == 2
    assert [(s.step, s.facts["at"], s.epoch) for s in states] == [
        *[(0, 1, 1)] * 2,
        *[(1, 2, 1)] * 2,
    ]


async def test_what_was_tampered_with_is_refused(backend: Backend, saver: SurefootSaver) -> None:
    saver.record("t", "small", "abc")
    saver.record("t", "large", LARGE)
    ((body,),) = backend.execute("SELECT body FROM surefoot_value")
    changed = bytes(body)[:-1] + bytes((bytes(body)[-1] ^ 1,))
    backend.execute("UPDATE surefoot_value SET body = ?", changed)
    with pytest.raises(TamperDetected):
        saver.events("t")
    backend.execute("UPDATE surefoot_value SET body = ?", bytes(body))
    assert len(saver.events("t")) == 4
    ((raw,),) = backend.execute("SELECT body FROM surefoot_frame WHERE last_seq = 1")
    backend.execute(
        "UPDATE surefoot_frame SET body = ? WHERE last_seq = 1",
        bytes(raw).replace(b"abc", b"abd"),
    )
    with pytest.raises(TamperDetected):
        saver.events("t")
    assert not next(saver.verify("t")).ok


async def test_a_trail_that_was_cut_off_is_refused(backend: Backend, saver: SurefootSaver) -> None:
    saver.record("t", "first", 1)
    saver.record("t", "inconvenient", 2)
    backend.execute("DELETE FROM surefoot_frame WHERE last_seq = 2")
    with pytest.raises(RollbackDetected):
        saver.events("t")


async def test_facts_are_records_of_their_own_kind(saver: SurefootSaver) -> None:
    saver.record("t", "a", 1)
    kinds = viewing(
        saver.core.ports, "t", lambda chain: [] if chain is None else [r.kind for r in chain.walk()]
    )
    assert kinds == [Kind.EVENT]
    (report,) = saver.verify("t", deep=True)
    assert (dict(report.records), report.values) == ({"V": 1}, 1)


async def test_an_effect_that_nobody_can_settle_shows_in_the_trail(saver: SurefootSaver) -> None:
    @effect
    def send(n: int) -> int:
        raise TimeoutError

    graph = chained(saver, lambda s: {"n": send(1)})
    with pytest.raises(TimeoutError):
        graph.invoke({"n": 0}, at("t"))
    with pytest.raises(EffectInDoubt):
        graph.invoke(None, at("t"))
    events = saver.events("t")
    assert fold(events).status == "in_doubt"
    (doubt,) = [e for e in events if e.kind == "surefoot.effect.in_doubt"]
    assert (doubt.facts["error"], doubt.facts["receiver"]) == ("TimeoutError (timeout)", "N")
