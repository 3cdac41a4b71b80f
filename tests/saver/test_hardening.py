"""What a hostile reviewer broke once: each kind has its test, on SQLite and on PostgreSQL."""

from __future__ import annotations

import operator
import os
import threading
import uuid
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy
from tests.saver.conftest import Backend, Half, at, put, put_chain

from surefoot import Keyring, ResumePolicy, SurefootSaver, effect
from surefoot.errors import (
    Busy,
    Fenced,
    Misconfigured,
    Misuse,
    RollbackDetected,
    SaveFailed,
    StoreUnavailable,
    SurefootError,
    TamperDetected,
)
from surefoot.flows import acquire, journal
from surefoot.keys import Key
from surefoot.rules.bodies import BODY_SCHEMAS, WritesBody
from surefoot.rules.envelope import Kind, Record
from surefoot.rules.intents import LEFT_OPEN, unpack_intents
from surefoot.testing.faults import Died as ProcessDied
from surefoot.testing.faults import Fault, Plan, bury, with_faults


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[Any], operator.add]


class Died(BaseException):
    """Stands for the death of the process: nothing may swallow it."""


def line(saver: SurefootSaver | None, *nodes: Callable[[State], Any], **options: Any) -> Any:
    """A graph of these nodes, one after the other."""
    graph = StateGraph(State)
    names = [f"n{i}" for i in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node, **options)
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver) if saver else graph.compile()


RETRY = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False, retry_on=ConnectionError)


class Sent(list[tuple[Any, str]]):
    """What an idempotent receiver got."""

    def effects(self) -> int:
        return len({key for _, key in self})


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def pay(sent: Sent) -> Any:
    @effect(idempotent=True)
    def pay(amount: Any, *, idempotency_key: str) -> Any:
        sent.append((amount, idempotency_key))
        return amount

    return pay


# --- retries of what encloses an effect ----------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("fails", ["inside", "after"])
@pytest.mark.parametrize("entered", ["called", "as node"])
def test_a_retried_parent_enters_its_subgraph_again(
    saver: SurefootSaver, sent: Sent, pay: Any, fails: str, entered: str
) -> None:
    tries: list[str] = []

    def child(state: State) -> State:
        pay("same")
        tries.append("child")
        if fails == "inside" and len(tries) == 1:
            raise ConnectionError
        return {"log": ["child"]}

    inner = line(None, child)

    def outer(state: State) -> State:
        inner.invoke({"x": 1})
        tries.append("outer")
        if fails == "after" and tries.count("outer") == 1:
            raise ConnectionError
        return {"log": ["outer"]}

    node = inner if entered == "as node" else outer
    line(saver, node, retry_policy=RETRY).invoke({"x": 0}, at("t"))
    assert sent.effects() == 1


def test_two_subgraph_calls_of_one_node_are_two(saver: SurefootSaver, sent: Sent, pay: Any) -> None:
    def child(state: State) -> State:
        pay("same")
        return {"log": ["child"]}

    inner = line(None, child)

    def outer(state: State) -> State:
        inner.invoke({"x": 1})
        inner.invoke({"x": 1})
        return {"log": ["outer"]}

    line(saver, outer).invoke({"x": 0}, at("t"))
    assert sent.effects() == 2


def test_an_equal_call_under_another_counter_is_not_guessed(
    saver: SurefootSaver, sent: Sent, pay: Any
) -> None:
    tries: list[int] = []

    @task
    def step(n: str) -> Any:
        return pay(n)

    @entrypoint(checkpointer=saver, retry_policy=RETRY)
    def run(x: int) -> Any:
        result = step("same").result()
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return result

    with pytest.raises(Misuse, match="call_id"):
        run.invoke(1, at("t"))
    assert sent.effects() == 1


def test_a_call_id_makes_it_one(saver: SurefootSaver, sent: Sent, pay: Any) -> None:
    tries: list[int] = []

    @task
    def step(n: str) -> Any:
        return pay(n, call_id="the-payment")

    @entrypoint(checkpointer=saver, retry_policy=RETRY)
    def run(x: int) -> Any:
        result = step("same").result()
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return result

    assert run.invoke(1, at("t")) == "same"
    assert sent.effects() == 1


# --- step numbers and keys that come back --------------------------------------------------------


def test_a_run_after_a_deleted_one_runs_its_effects(
    saver: SurefootSaver, sent: Sent, pay: Any
) -> None:
    graph = line(saver, lambda s: (pay(s["x"]), {"log": [s["x"]]})[1])

    def run(x: int) -> str:
        run_id = str(uuid.uuid4())
        graph.invoke({"x": x}, {**at("t"), "metadata": {"run_id": run_id}})
        saver.release("t")
        return run_id

    run(1)
    saver.delete_for_runs([run(2)])
    run(2)
    assert [amount for amount, _ in sent] == [1, 2, 2]
    assert sent.effects() == 3


def test_a_thread_of_which_every_run_was_deleted_begins_anew(
    saver: SurefootSaver, sent: Sent, pay: Any
) -> None:
    graph = line(saver, lambda s: (pay(s["x"]), {"log": [s["x"]]})[1])
    for _ in range(2):
        run_id = str(uuid.uuid4())
        graph.invoke({"x": 1}, {**at("t"), "metadata": {"run_id": run_id}})
        saver.release("t")
        saver.delete_for_runs([run_id])
    assert sent.effects() == 2


def test_the_idempotency_key_outlives_a_rotation(backend: Backend) -> None:
    """Also where the record of the start, which holds the key, was lost with the tail."""
    keys: list[str] = []
    plan = Plan()

    def graph(saver: SurefootSaver, *, dies: bool) -> Any:
        @effect(idempotent=True)
        def pay(*, idempotency_key: str) -> int:
            keys.append(idempotency_key)
            if dies:
                plan.die()
                plan.check_alive()
            return 1

        return line(saver, lambda _: (pay(), {"log": [1]})[1])

    old, new = Key("k1", b"1" * 32, "primary"), Key("k2", b"2" * 32, "primary")
    first = with_faults(backend.open_saver(keys=Keyring([old])), plan)
    with pytest.raises(ProcessDied):
        graph(first, dies=True).invoke({"x": 1}, at("t"))
    bury(first, plan)
    rotated = Keyring([Key("k1", b"1" * 32, "enabled"), new])
    second = backend.open_saver(keys=rotated)
    mark = second.core.ports.marks.read(backend.tenant, "t")
    assert mark is not None
    before = backend.counts()["surefoot_frame"]
    backend.execute("DELETE FROM surefoot_frame WHERE last_seq > ?", mark.seq)
    assert backend.counts()["surefoot_frame"] < before, "the record of the start is still there"
    graph(second, dies=False).invoke(None, at("t"))
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_exit_durability_refuses_effects_on_an_older_checkpoint(
    saver: SurefootSaver, sent: Sent, pay: Any
) -> None:
    graph = line(saver, lambda s: {"log": ["a"]}, lambda s: (pay(s["x"]), {"log": ["b"]})[1])
    graph.invoke({"x": 1}, at("t"), durability="exit")
    old = graph.get_state(at("t")).config
    graph.invoke({"x": 7}, old, durability="exit")
    with pytest.raises(Misuse, match="exit"):
        graph.invoke({"x": 8}, old, durability="exit")
    assert [amount for amount, _ in sent] == [1, 7]


def test_effects_left_in_doubt_do_not_pile_up_in_the_mark(saver: SurefootSaver) -> None:
    @effect
    def mail(n: int) -> None:
        raise TimeoutError

    def node(state: State) -> State:
        with pytest.raises(TimeoutError):
            mail(state["x"])
        return {"log": [1]}

    graph = line(saver, node)
    for x in range(5):
        graph.invoke({"x": x}, at("t"))
    saver.release("t")
    ports = saver.core.ports
    mark = ports.marks.read(ports.tenant, "t")
    assert mark is not None
    assert unpack_intents(mark.intents).keys() == {LEFT_OPEN}, "one entry stands for all of them"


# --- readers beside writers ----------------------------------------------------------------------


@pytest.mark.parametrize("what", ["state", "history", "list", "older"])
@pytest.mark.parametrize("act", ["prune", "delete"])
def test_a_reader_never_alarms_beside_a_prune_or_a_deletion(
    backend: Backend, saver: SurefootSaver, what: str, act: str
) -> None:
    graph = line(
        saver,
        lambda s: {"log": [os.urandom(900).hex()], "x": s["x"] + 1},
        lambda s: {"log": [os.urandom(900).hex()]},
    )
    for _ in range(3):
        graph.invoke({"x": 0}, at("t"))
    saver.release("t")
    reader = backend.open_saver()
    older = [*reader.list(at("t"))][3].config
    store, hits = reader.core.ports.store, []
    read_values = store.read_values

    def meanwhile(*args: Any) -> Any:
        if not hits:
            hits.append(1)
            saver.prune(["t"], strategy="keep_latest" if act == "prune" else "delete")
        return read_values(*args)

    store.read_values = meanwhile  # type: ignore[method-assign]
    looked = {
        "state": lambda: reader.get_tuple(at("t")),
        "history": lambda: [*reader.list(at("t"))],
        "list": lambda: [*reader.list(None)],
        "older": lambda: reader.get_tuple(older),
    }[what]()
    assert hits
    if act == "delete" or what == "older":
        assert not looked
    else:
        assert looked


def test_a_list_that_is_read_slowly_ends_quietly(backend: Backend, saver: SurefootSaver) -> None:
    graph = line(saver, lambda s: {"log": [os.urandom(900).hex()]})
    for _ in range(8):
        graph.invoke({"x": 0}, at("t"))
    saver.release("t")
    found = backend.open_saver().list(at("t"))
    next(found)
    saver.prune(["t"])
    assert len([*found]) < 24


def test_before_does_not_believe_a_lookup_column(backend: Backend, saver: SurefootSaver) -> None:
    line(saver, lambda s: {"log": [1]}).invoke({"x": 1}, at("t"))
    saver.release("t")
    latest = saver.get_tuple(at("t"))
    assert latest is not None
    config = latest.config
    for name in ("9-late", "1-clock-stepped-back", "5-x"):
        made = {**latest.checkpoint, "id": name}
        config = saver.put(config, made, {"source": "loop", "step": 9}, {})  # type: ignore[arg-type]

    def before() -> list[str]:
        edge = at("t", "1-clock-stepped-back")
        return [t.checkpoint["id"] for t in saver.list(at("t"), before=edge)]

    honest = before()
    backend.execute("UPDATE surefoot_frame SET checkpoint_hash = NULL")
    assert before() == honest
    assert len(honest) == 4


def test_a_thread_whose_row_is_gone_is_not_left_out(backend: Backend, saver: SurefootSaver) -> None:
    for thread in ("kept", "gone"):
        line(saver, lambda s: {"log": [1]}).invoke({"x": 1}, at(thread))
        saver.release(thread)
    backend.execute("DELETE FROM surefoot_thread WHERE thread = ?", b"gone")
    with pytest.raises(RollbackDetected, match="gone"):
        list(saver.list(None))


# --- deaths in maintenance -----------------------------------------------------------------------


def test_a_copy_that_died_can_be_made_again(backend: Backend, saver: SurefootSaver) -> None:
    line(saver, lambda s: {"log": [f"m{i}" for i in range(12)]}).invoke({"x": 0}, at("t"))
    saver.release("t")
    marks = saver.core.ports.marks
    publish = marks.publish

    def die(*_: Any) -> bool:
        raise Died

    marks.publish = die  # type: ignore[method-assign]
    with pytest.raises(Died):
        saver.copy_thread("t", "u")
    marks.publish = publish  # type: ignore[method-assign]
    other = backend.open_saver()
    other.copy_thread("t", "u")
    copied, source = other.get_tuple(at("u")), other.get_tuple(at("t"))
    assert copied is not None
    assert source is not None
    assert copied.checkpoint == source.checkpoint


def test_a_prune_that_died_before_it_collected_is_caught_up(
    backend: Backend, saver: SurefootSaver
) -> None:
    graph = line(saver, lambda s: {"log": [f"SECRET-{s['x']}-{os.urandom(400).hex()}"]})
    for x in range(3):
        graph.invoke({"x": x}, {**at("t"), "metadata": {"run_id": f"run{x}"}})
    saver.release("t")
    store = saver.core.ports.store

    def die(*_: Any) -> None:
        raise Died

    store.collect = die  # type: ignore[method-assign]
    with pytest.raises(Died):
        saver.delete_for_runs(["run1"])
    before = backend.counts()["surefoot_frame"]
    backend.open_saver().delete_for_runs(["run1"])
    assert backend.counts()["surefoot_frame"] < before


def test_a_late_worker_of_a_deleted_life_stays_outside(backend: Backend) -> None:
    stale = backend.open_saver(policy=ResumePolicy(lease_ttl_ms=1, handover_grace_ms=5_000))
    session, _ = acquire.acquire(stale.core.ports, "t", object())  # frozen before its first write
    deleter, fresh = backend.open_saver(), backend.open_saver()
    ports = stale.core.ports
    while (mark := ports.marks.read(ports.tenant, "t")) is None or mark.lease_left_ms > 0:
        ports.host.pause(1)
    deleter.delete_thread("t")
    append, done = fresh.core.ports.store.append, []

    def late(request: Any) -> Any:
        if not done:
            body = WritesBody("", "cid", ()).pack()
            record = Record(Kind.WRITES, BODY_SCHEMAS["W"], bytes(16), body)
            done.append(journal.append(ports, session, [record]))
            with pytest.raises(Fenced):
                journal.publish(ports, session)
        return append(request)

    fresh.core.ports.store.append = late  # type: ignore[method-assign]
    graph = line(fresh, lambda s: {"log": ["n"]})
    graph.invoke({"x": 0}, at("t"))
    assert done
    reader = backend.open_saver()
    assert line(reader, lambda s: {"log": ["n"]}).get_state(at("t")).values["log"] == ["n"]


def writes_record() -> Record:
    return Record(Kind.WRITES, BODY_SCHEMAS["W"], bytes(16), WritesBody("", "cid", ()).pack())


def run_out(saver: SurefootSaver) -> None:
    """Waits until the lease of the thread has run out."""
    ports = saver.core.ports
    while (mark := ports.marks.read(ports.tenant, "t")) is None or mark.lease_left_ms > 0:
        ports.host.pause(1)


def test_a_worker_that_loads_after_its_fence_stays_outside(backend: Backend) -> None:
    """Between acquiring and loading the lease ran out, and another worker wrote."""
    short = ResumePolicy(lease_ttl_ms=1, handover_grace_ms=5_000)
    stale, fresh = backend.open_saver(policy=short).core.ports, backend.open_saver().core.ports
    late, mark = acquire.begin(stale, "t", object())
    run_out(backend.open_saver())
    session, _ = acquire.acquire(fresh, "t", object())
    journal.append(fresh, session, [writes_record()])
    acquire._load(stale, late, mark, adopt=True)
    assert late.stored_head is not None
    assert late.stored_head.epoch == session.epoch > late.epoch
    with pytest.raises(Fenced):
        journal.append(stale, late, [writes_record()])
    journal.append(fresh, session, [writes_record()])
    journal.publish(fresh, session)
    assert session.mark.seq == 2


@pytest.mark.parametrize("lost", [True, False])
def test_nothing_is_stored_behind_a_record_that_a_failover_lost(
    backend: Backend, lost: bool
) -> None:
    """After the takeover A fails over to a standby; without the loss it is an honest orphan."""
    short = ResumePolicy(lease_ttl_ms=1, handover_grace_ms=5_000)
    first, second = backend.open_saver(policy=short).core.ports, backend.open_saver().core.ports
    old, _ = acquire.acquire(first, "t", object())
    (one,) = journal.append(first, old, [writes_record()])
    (two,) = journal.append(first, old, [writes_record()])
    journal.publish(first, old)
    run_out(backend.open_saver())
    session, _ = acquire.acquire(second, "t", object())
    if lost:
        backend.execute("DELETE FROM surefoot_frame WHERE last_seq = ?", two.seq)
        backend.execute(
            "UPDATE surefoot_thread SET head_seq = ?, head_digest = ?", one.seq, one.digest
        )
        with pytest.raises(RollbackDetected):
            journal.append(second, session, [writes_record()])
        return
    (orphan,) = journal.append(first, old, [writes_record()])
    (three,) = journal.append(second, session, [writes_record()])
    assert orphan.seq == three.seq
    journal.publish(second, session)


def test_a_worker_that_is_overtaken_while_it_loads_is_fenced_and_alarms_nobody(
    backend: Backend,
) -> None:
    """Between acquiring and reading the lease ran out, and the thread was deleted."""
    first = backend.open_saver()
    line(first, lambda s: {"log": [1]}).invoke({"x": 0}, at("t"))
    first.release("t")
    short = ResumePolicy(lease_ttl_ms=1, handover_grace_ms=5_000)
    stale = backend.open_saver(policy=short).core.ports
    late, mark = acquire.begin(stale, "t", object())
    assert mark.seq > 0
    run_out(backend.open_saver())
    backend.open_saver().delete_thread("t")
    assert stale.store.read_thread(stale.tenant, "t") is None, "the fault of the test did not hit"
    with pytest.raises(Fenced):
        acquire._load(stale, late, mark, adopt=True)


@pytest.mark.parametrize("lost", [True, False])
def test_another_record_at_the_published_height_is_a_fork(backend: Backend, lost: bool) -> None:
    """R4: the published record is gone, and an orphan of an earlier worker stands at its height."""
    short = ResumePolicy(lease_ttl_ms=1, handover_grace_ms=5_000)
    first, second = backend.open_saver(policy=short).core.ports, backend.open_saver().core.ports
    old, _ = acquire.acquire(first, "t", object())
    journal.append(first, old, [writes_record()])
    journal.publish(first, old)
    run_out(backend.open_saver())
    session, _ = acquire.acquire(second, "t", object())
    (orphan,) = journal.append(first, old, [writes_record()])
    (published,) = journal.append(second, session, [writes_record()])
    assert orphan.seq == published.seq
    assert orphan.digest != published.digest
    journal.publish(second, session)
    acquire.release(second, session)
    reader = backend.open_saver()
    if not lost:
        assert reader.get_tuple(at("t")) is None  # there is no checkpoint, and no alarm
        return
    backend.execute(
        "DELETE FROM surefoot_frame WHERE last_seq = ? AND epoch = ?", published.seq, session.epoch
    )
    with pytest.raises(TamperDetected, match="R4 the database holds another record"):
        reader.get_tuple(at("t"))
    with pytest.raises(TamperDetected, match="R4 the database holds another record"):
        line(reader, lambda s: {"log": [1]}).invoke({"x": 0}, at("t"))


@pytest.mark.parametrize("fails", ["store.append", "marks.publish"])
def test_after_a_failed_write_nothing_of_the_session_is_stored_or_published(
    backend: Backend, fails: str
) -> None:
    """E10: nobody can know what a next record would follow, so there is none."""
    plan = Plan({f"{fails}.before#2": Fault.UNAVAILABLE})
    ports = with_faults(backend.open_saver(), plan).core.ports
    session, _ = acquire.acquire(ports, "t", object())
    journal.append(ports, session, [writes_record()])
    journal.publish(ports, session)

    def step() -> None:
        journal.append(ports, session, [writes_record()])
        journal.publish(ports, session)

    with pytest.raises(StoreUnavailable):
        step()
    assert plan.hit == [f"{fails}.before#2"]
    stored, mark = backend.counts(), ports.marks.read(ports.tenant, "t")
    with pytest.raises(SaveFailed):
        journal.append(ports, session, [writes_record()])
    with pytest.raises(SaveFailed):
        journal.publish(ports, session)
    assert session.stopped, "effects would start"
    assert backend.counts() == stored
    after = ports.marks.read(ports.tenant, "t")
    assert mark is not None
    assert after is not None
    assert (after.seq, after.digest, after.epoch) == (mark.seq, mark.digest, mark.epoch)


@pytest.mark.parametrize("sending", [True, False])
def test_a_thread_is_given_back_as_clean_only_when_nothing_is_being_sent(
    backend: Backend, sending: bool
) -> None:
    """P7: whoever comes next must know that an answer may still be under way."""
    ports = backend.open_saver().core.ports
    session, _ = acquire.acquire(ports, "t", object())
    journal.append(ports, session, [writes_record()])
    if sending:
        session.running.add(bytes(32))
    acquire.release(ports, session)
    mark = ports.marks.read(ports.tenant, "t")
    assert mark is not None
    assert mark.lease_left_ms <= 0
    assert mark.clean is not sending


# --- leases --------------------------------------------------------------------------------------


def test_a_forked_child_leaves_the_parents_run_alone(
    backend: Backend, saver: SurefootSaver
) -> None:
    reached, go, out = threading.Event(), threading.Event(), []

    def node(state: State) -> State:
        reached.set()
        go.wait(60)
        return {"log": ["n"]}

    graph = line(saver, node, lambda s: {"log": ["m"]})
    run = threading.Thread(target=lambda: out.append(graph.invoke({"x": 0}, at("t"))))
    run.start()
    reached.wait(60)
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        code = 1
        try:
            saver.close()  # what its exit does as well
            code = 0 if not saver.core.sessions.all() else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    ports = saver.core.ports
    mark = ports.marks.read(ports.tenant, "t")
    go.set()
    run.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert mark is not None
    assert mark.lease_left_ms > 0
    assert not mark.clean
    assert out[0]["log"] == ["n", "m"]


def test_a_long_save_of_one_thread_costs_no_other_its_lease(backend: Backend) -> None:
    saver = backend.open_saver(policy=ResumePolicy(lease_ttl_ms=1_500))
    saving, go = threading.Event(), threading.Event()
    append = saver.core.ports.store.append

    def slow(request: Any) -> Any:
        if request.thread == "slow" and request.checkpoint_hash is not None:
            saving.set()
            go.wait(60)
        return append(request)

    saver.core.ports.store.append = slow  # type: ignore[method-assign]
    graph = line(saver, lambda s: {"log": [1]})
    run = threading.Thread(target=lambda: graph.invoke({"x": 0}, at("slow")))
    run.start()
    saving.wait(60)
    ports, low = saver.core.ports, []
    renewed = threading.Event()
    renew = ports.marks.renew

    def seen(tenant: str, thread: str, epoch: int, ttl_ms: int) -> bool:
        done = renew(tenant, thread, epoch, ttl_ms)
        if thread == "alive":
            low.append(done)
            if len(low) == 3:
                renewed.set()
        return done

    ports.marks.renew = seen  # type: ignore[method-assign]

    def wait(state: State) -> State:
        renewed.wait(60)
        return {"log": ["w"]}

    result = line(saver, wait, lambda s: {"log": ["z"]}).invoke({"x": 0}, at("alive"))
    go.set()
    run.join()
    assert result["log"] == ["w", "z"]
    assert low[:3] == [True, True, True]


def test_a_late_renewal_does_not_take_back_what_was_given_back(saver: SurefootSaver) -> None:
    line(saver, lambda s: {"log": [1]}).invoke({"x": 0}, at("t"))
    ports = saver.core.ports
    mark = ports.marks.read(ports.tenant, "t")
    assert mark is not None
    assert mark.lease_left_ms <= 0
    assert not ports.marks.renew(ports.tenant, "t", mark.epoch, 60_000)
    again = ports.marks.read(ports.tenant, "t")
    assert again is not None
    assert again.lease_left_ms <= 0


def test_a_direct_call_does_not_end_a_suspended_stream(saver: SurefootSaver) -> None:
    graph = line(saver, *(lambda s: {"log": ["n"]},) * 3)
    seen = 0
    for _ in graph.stream({"x": 1}, at("t")):
        if not seen:
            with pytest.raises(Busy):
                graph.update_state(at("t"), {"x": 7})
        seen += 1
    assert seen == 3


# --- nonsense at the edges -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.put(at("t"), {"id": 5}, {}, {}),
        lambda s: s.put(at("t"), None, {}, {}),
        lambda s: s.put(at("t"), {"id": "c", "channel_values": 5}, {}, {}),
        lambda s: s.put_writes(at("t", "c"), None, "task"),
        lambda s: s.put_writes(at("t", "c"), [("only",)], "task"),
        lambda s: s.put_writes(at("t", "c"), [("a", 1)], None),
        lambda s: s.delete_thread(None),
        lambda s: s.prune([None]),
        lambda s: s.prune("t"),
        lambda s: s.prune(["t"], strategy="all"),
        lambda s: s.copy_thread("t", None),
        lambda s: s.delete_for_runs(5),
        lambda s: s.get_next_version("abc", None),
        lambda s: s.get_tuple({"configurable": {"thread_id": object()}}),
    ],
)
def test_nonsense_is_refused_by_name(
    saver: SurefootSaver, call: Callable[[SurefootSaver], Any]
) -> None:
    with pytest.raises(Misuse) as refused:
        call(saver)
    assert refused.value.fields["field"]


@pytest.mark.parametrize(
    "url",
    ["postgresql://app:S3/CRET@db/agents", "postgresql://bob:S3CRET@[::1/x", "S3CRET", "sqlite://"],
)
def test_a_bad_address_is_never_shown(url: str) -> None:
    with pytest.raises(SurefootError) as refused:
        SurefootSaver(url, highwater="sqlite:///b.db", keys=Keyring.generate())
    assert isinstance(refused.value, Misconfigured)
    assert "CRET" not in str(refused.value)


# --- half a copy --------------------------------------------------------------------------------


@pytest.mark.optimized
async def test_a_copy_that_is_refused_in_the_middle_leaves_nothing(
    backend: Backend, half: Half
) -> None:
    await put_chain(half, "source", "c0", "c1")
    await put(half, at("source", "c1"), "c2", large=os.urandom(2_000))
    ((key, digest, body),) = backend.rows("surefoot_value")
    changed = bytes(body)[:-1] + bytes([bytes(body)[-1] ^ 1])
    write = "UPDATE surefoot_value SET body = ? WHERE thread_key = ? AND digest = ?"
    backend.execute(write, changed, key, digest)
    with pytest.raises(TamperDetected):
        await half.copy_thread("source", "target")
    assert await half.list(at("target")) == []
    assert await half.get_tuple(at("target")) is None
    backend.execute(write, body, key, digest)
    await half.copy_thread("source", "target")
    assert await half.ids(at("target")) == ["c2", "c1", "c0"]
    await put(half, at("target", "c2"), "c3", n=3)


async def test_a_copy_that_is_interrupted_leaves_nothing(saver: SurefootSaver, half: Half) -> None:
    config: Any = at("source")
    for checkpoint_id in ("c0", "c1", "c2"):
        config = await put(half, config, checkpoint_id, large=os.urandom(2_000))
    store = saver.core.ports.store
    read_values, calls = store.read_values, 0

    def interrupted(*asked: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise Died
        return read_values(*asked)

    store.read_values = interrupted  # type: ignore[method-assign]
    with pytest.raises(Died):
        await half.copy_thread("source", "target")
    del store.read_values
    assert calls == 3
    assert await half.list(at("target")) == []
    await half.copy_thread("source", "target")
    assert await half.ids(at("target")) == ["c2", "c1", "c0"]
