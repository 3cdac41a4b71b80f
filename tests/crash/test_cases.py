"""Faults from the field, each with a real process: killed, frozen, cut off or overtaken."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from tests.crash.nursery import Child
from tests.crash.stores import BACKENDS, place
from tests.crash.test_kill import SIDE_BY_SIDE, Killer, killer
from tests.crash.worker import Order
from tests.crash.workloads import Pay, State, linear

from surefoot.errors import Busy
from surefoot.ports import Mark

__all__ = ["killer"]

pytestmark = pytest.mark.kill
FOREIGN = "00000000-0000-0000-0000-000000000001"
backends = pytest.mark.parametrize("backend", BACKENDS)
colours = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
classes = pytest.mark.parametrize("kind", "KLN")


def resumed(killer: Killer, order: Order, **more: Any) -> dict[str, Any]:
    """What another process says that goes on with an order."""
    return killer.nursery.fork(Order(**{**asdict(order), "stops": (), **more})).finish()


def mark_of(order: Order) -> Mark | None:
    with place(order.place["backend"]).open() as saver:
        return saver.core.ports.marks.read("default", order.thread)


def after_charge(trace: list[str], nth: int) -> str:
    """The first append after a charge has returned: it records the outcome."""
    at = trace.index(f"effect.charge.after#{nth}")
    return next(name for name in trace[at:] if name.startswith("store.append.after#"))


def expected(kind: str, said: dict[str, Any], outcome: str, charges: int) -> None:
    """K and L end like an uninterrupted run; N ends there, or in doubt."""
    if kind == "N" and "RAISED" in said:
        assert said["RAISED"]["error"] == "EffectInDoubt"
        assert said["RAISED"]["intent"] is True
        assert charges <= 1
        return
    assert "RAISED" not in said, said["RAISED"]
    assert said["DONE"] == outcome
    assert charges == 1


#: Which payment of the linear workload has this class, and its number in the run.
PAYMENT = {"K": ("k1", 1), "L": ("l", 3), "N": ("n", 4)}


@backends
@colours
@classes
def test_case_01_kill_after_the_effect_landed_and_before_its_outcome_is_recorded(
    backend: str, is_async: bool, kind: str, killer: Killer
) -> None:
    order = killer.order("linear", backend, is_async=is_async)
    what, _ = PAYMENT[kind]
    hold = killer.service.hold("after_commit", invoice=f"{order.thread}/{what}")
    child = killer.nursery.fork(order)
    killer.service.wait_held(hold)
    child.kill()
    assert killer.service.wait_gone(hold).outcome == "landed"
    assert killer.count(order.thread, what) == 1
    said = resumed(killer, order)
    assert killer.count(order.thread, what) == 1
    assert ("RAISED" in said) == (kind == "N")
    expected(kind, said, killer.uninterrupted("linear", backend, is_async)[1], 1)


@backends
@colours
@classes
def test_case_02_kill_inside_the_effect_before_it_landed(
    backend: str, is_async: bool, kind: str, killer: Killer
) -> None:
    order = killer.order("linear", backend, is_async=is_async)
    what, _ = PAYMENT[kind]
    invoice = f"{order.thread}/{what}"
    hold = killer.service.hold("before_commit", invoice=invoice, on_disconnect="abort")
    child = killer.nursery.fork(order)
    killer.service.wait_held(hold)
    (key,) = {h["key"] for h in _held(killer) if h["invoice"] == invoice}
    child.kill()
    assert killer.service.wait_gone(hold).outcome == "aborted"
    assert killer.count(order.thread, what) == 0
    said = resumed(killer, order)
    if kind == "N":
        assert said["RAISED"]["error"] == "EffectInDoubt"
        assert killer.count(order.thread, what) == 0
        return
    assert said["DONE"] == killer.uninterrupted("linear", backend, is_async)[1]
    (landed,) = killer.service.audit(invoice=invoice).landed
    assert landed["key"] == key, "sent again with another key"


def _held(killer: Killer) -> list[dict[str, Any]]:
    from surefoot.demo.payments_client import _read

    return list(_read(f"{killer.service.url}/control", 10)["held"])


@backends
@colours
@classes
def test_case_03_kill_after_the_outcome_is_recorded_and_before_the_node_returns(
    backend: str, is_async: bool, kind: str, killer: Killer
) -> None:
    what, number = PAYMENT[kind]
    trace, outcome = killer.uninterrupted("linear", backend, is_async)
    recorded = after_charge(list(trace), number)
    order = killer.order("linear", backend, is_async=is_async, stops=(recorded,))
    child = killer.nursery.fork(order)
    child.at(recorded)
    child.kill()
    said = resumed(killer, order)
    # The outcome is recorded, so even class N is not in doubt: it is replayed.
    assert said.get("DONE") == outcome, said
    invoice = f"{order.thread}/{what}"
    assert killer.service.audit(invoice=invoice).attempted(invoice) == 1, "sent again"


@backends
@colours
@pytest.mark.parametrize("order_of", ["writes-never-come", "writes-come-first"])
def test_case_04_put_writes_delayed_and_kill_inside_the_next_put(
    backend: str, is_async: bool, order_of: str, killer: Killer
) -> None:
    """The writes of a node that paid are held back (or not) while the next put is killed."""
    trace, outcome = killer.uninterrupted("linear", backend, is_async)
    paid = trace.index("effect.charge.after#2")
    writes = next(n for n in trace[paid:] if n.startswith("saver.put_writes.before#"))
    since = trace[trace.index(writes) :]
    inside = next(n for n in since if n.startswith("marks.publish.before#"))
    stops = (writes, inside) if order_of == "writes-never-come" else (inside,)
    order = killer.order("linear", backend, is_async=is_async, durability="async", stops=stops)
    child = killer.nursery.fork(order)
    if order_of == "writes-never-come":
        lines = {child.read("AT", "RAISED", "DONE") for _ in stops}
        assert lines == {f"AT {writes}", f"AT {inside}"}
    else:
        child.at(inside)
    child.kill()
    said = resumed(killer, order)
    assert said.get("DONE") == outcome, said
    assert {w: killer.count(order.thread, w) for w in ("k1", "k2", "l", "n")} == dict.fromkeys(
        ("k1", "k2", "l", "n"), 1
    )


@backends
@colours
def test_case_05_kill_inside_the_very_first_put(
    backend: str, is_async: bool, killer: Killer
) -> None:
    """Whether the run was admitted is known: yes from the moment the mark exists."""
    trace, outcome = killer.uninterrupted("linear", backend, is_async)
    created = trace.index("marks.create.after#1")
    published = trace.index("marks.publish.after#1")
    inside = [n for n in trace[created:published] if n.startswith(("store.", "marks."))]
    windows = ["marks.acquire.before#1", "marks.create.before#1", *inside]

    def killed_at(stop: str) -> None:
        order = killer.order("linear", backend, is_async=is_async, stops=(stop,))
        child = killer.nursery.fork(order)
        child.at(stop)
        child.kill()
        mark = mark_of(order)
        if trace.index(stop) < trace.index("marks.create.after#1"):
            assert mark is None, f"{stop}: admitted before the acquisition"
        else:
            assert mark is not None, f"{stop}: an admitted run was never seen"
            assert (mark.epoch, mark.seq) == (1, 0)
        said = resumed(killer, order)
        assert said.get("DONE") == outcome, (stop, said)
        assert killer.count(order.thread, "k1") == 1

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for future in [pool.submit(killed_at, stop) for stop in windows]:
            future.result()


@backends
@colours
@classes
def test_case_08_the_lost_answer(backend: str, is_async: bool, kind: str, killer: Killer) -> None:
    """The receiver executes and the connection drops: unknown, never failed."""
    order = killer.order("linear", backend, is_async=is_async)
    what, _ = PAYMENT[kind]
    invoice = f"{order.thread}/{what}"
    killer.service.drop("after_commit", invoice=invoice)
    said = killer.nursery.fork(order).finish()
    assert said["RAISED"]["error"] == "OutcomeUnknown"
    assert killer.count(order.thread, what) == 1
    said = resumed(killer, order)
    assert ("RAISED" in said) == (kind == "N")
    expected(
        kind,
        said,
        killer.uninterrupted("linear", backend, is_async)[1],
        killer.count(order.thread, what),
    )
    assert killer.count(order.thread, what) == 1


# --- who owns a thread --------------------------------------------------------------------------


@backends
@colours
def test_case_52_a_worker_killed_on_this_host_is_followed_at_once(
    backend: str, is_async: bool, killer: Killer
) -> None:
    """Its lease runs for an hour; nobody waits for it, because its process is proven dead."""
    stop = "effect.charge.before#1"
    order = killer.order("linear", backend, is_async=is_async, stops=(stop,))
    child = killer.nursery.fork(order)
    child.at(stop)
    child.kill()
    mark = mark_of(order)
    assert mark is not None
    assert mark.lease_left_ms > 3_000_000
    said = resumed(killer, order)
    assert said.get("DONE") == killer.uninterrupted("linear", backend, is_async)[1]


@backends
@colours
def test_case_52_the_next_chat_turn_is_served_by_another_process_without_waiting(
    backend: str, is_async: bool, killer: Killer
) -> None:
    """Four turns in four processes, each begun while the one before still lives."""
    order = killer.order(
        "loop", backend, is_async=is_async, inputs=({"paid": [], "round": 0},), wait=1, runs=1
    )
    living: list[Child] = []
    for turn in range(1, 5):
        child = killer.nursery.fork(order)
        living.append(child)
        answered = child.read("ANSWERED", "RAISED")
        assert answered == f"ANSWERED {3 * turn}", answered
    for child in living:
        child.send("go")
        child.finish()


@pytest.fixture
def frozen() -> Iterator[list[Child]]:
    """Workers that a failing test must not leave frozen."""
    children: list[Child] = []
    yield children
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.signal(signal.SIGCONT)


@backends
@colours
@pytest.mark.parametrize("at", ["effect", "write"])
def test_case_52_a_worker_frozen_on_another_host_is_waited_for_and_then_fenced(
    backend: str, is_async: bool, at: str, killer: Killer, frozen: list[Child]
) -> None:
    trace, outcome = killer.uninterrupted("linear", backend, is_async)
    charged = trace.index("effect.charge.before#1")
    if at == "effect":  # the record of the effect's start, before anything is sent
        stop = [n for n in trace[:charged] if n.startswith("store.append.before#")][-1]
    else:  # the put of the step that paid
        publish = next(n for n in trace[charged:] if n.startswith("marks.publish.before#"))
        appends = trace[charged : trace.index(publish)]
        stop = [n for n in appends if n.startswith("store.append.before#")][-1]
    order = killer.order(
        "linear",
        backend,
        is_async=is_async,
        stops=(stop,),
        boot_id=FOREIGN,
        policy={"lease_ttl_ms": 3_000},
    )
    child = killer.nursery.fork(order)
    child.at(stop)
    child.signal(signal.SIGSTOP)
    frozen.append(child)
    with place(backend).open() as saver:
        graph = linear(Pay(Till(), order.thread, is_async=False)).compile(checkpointer=saver)
        with pytest.raises(Busy):
            graph.invoke(None, {"configurable": {"thread_id": order.thread}})
    said = resumed(killer, order, boot_id=None, policy={"wait_for_lease_ms": 30_000})
    assert said.get("DONE") == outcome
    before = killer.service.audit().attempts
    child.signal(signal.SIGCONT)
    child.send(f"go {stop}")
    said = child.finish()
    assert said["RAISED"]["error"] == "Fenced", said
    assert killer.service.audit().attempts == before, "an effect of a fenced worker"
    assert {w: killer.count(order.thread, w) for w in ("k1", "k2", "l", "n")} == dict.fromkeys(
        ("k1", "k2", "l", "n"), 1
    )


@backends
@colours
def test_case_53_a_run_that_waits_for_an_answer_is_taken_over_without_waiting(
    backend: str, is_async: bool, killer: Killer
) -> None:
    order = killer.order("interrupt", backend, is_async=is_async)
    first = killer.nursery.fork(Order(**{**asdict(order), "wait": 1}))
    # The graph has returned with its question; the process lives on.
    first.read("ANSWERED")
    said = resumed(killer, order)
    assert said.get("DONE") == killer.uninterrupted("interrupt", backend, is_async)[1]
    first.send("go")
    first.finish()
    for what in ("before-question", "after-answer", "last"):
        assert killer.count(order.thread, what) == 1


@backends
@colours
def test_case_53_late_writes_of_siblings_of_a_failed_branch_are_fenced_cleanly(
    backend: str, is_async: bool, killer: Killer
) -> None:
    """One branch fails while its sibling still pays; another process goes on meanwhile."""
    order = killer.order("failing", backend, is_async=is_async)
    invoice = f"{order.thread}/sibling"
    hold = killer.service.hold("before_commit", invoice=invoice, on_disconnect="wait")
    first = killer.nursery.fork(Order(**{**asdict(order), "fail": True}))
    killer.service.wait_held(hold)
    first.send("go")
    first.read("FAILED")
    said = resumed(killer, order)
    assert said.get("DONE") == killer.uninterrupted("failing", backend, is_async)[1], said
    killer.service.release(hold)
    late = first.finish()
    assert late["RAISED"]["error"] in ("Fenced", "ValueError", "SaveFailed"), late
    assert killer.count(order.thread, "sibling") == 1


# --- many at once -------------------------------------------------------------------------------


class Till:
    """A receiver in memory that knows who paid what."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.landed: list[tuple[str, str]] = []

    def charge(self, mode: str, invoice: str, key: str) -> dict[str, Any]:
        with self._lock:
            self.landed.append((invoice, key))
        return {"invoice": invoice, "key": key}

    def find(self, key: str) -> list[dict[str, Any]]:
        raise AssertionError("nothing crashed, so nothing is looked up")


def _per_thread(pay: Pay) -> Any:
    """Two steps that pay for whoever the state names."""

    def pay_for(step: int) -> Any:
        def run(state: State) -> State:
            return {"paid": [pay(kind, f"{state['notes'][0]}-{step}") for kind in "KLN"]}

        async def arun(state: State) -> State:
            return {"paid": [await pay(kind, f"{state['notes'][0]}-{step}") for kind in "KLN"]}

        return arun if pay.is_async else run

    graph = StateGraph(State)
    graph.add_node("one", pay_for(1))
    graph.add_node("two", pay_for(2))
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    graph.add_edge("two", END)
    return graph


@backends
@colours
def test_case_41_fifty_threads_at_once_on_one_compiled_graph(backend: str, is_async: bool) -> None:
    till = Till()
    with place(backend).open() as saver:
        graph = _per_thread(Pay(till, "till", is_async=is_async)).compile(checkpointer=saver)
        names = [f"c41-{backend}-{is_async}-{n}" for n in range(50)]
        given = [
            ({"paid": [], "notes": [name]}, {"configurable": {"thread_id": name}}) for name in names
        ]
        values = asyncio.run(_all(graph, given)) if is_async else _in_threads(graph, given)
        states = [graph.get_state(config).values for _, config in given]
    for name, value, state in zip(names, values, states, strict=True):
        assert value == state
        assert [p["invoice"] for p in value["paid"]] == [
            f"till/{name}-{step}" for step in (1, 2) for _ in "KLN"
        ]
    assert len(till.landed) == 50 * 6
    assert len({key for _, key in till.landed}) == 50 * 6, "two effects shared a key"


async def _all(graph: Any, given: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*(graph.ainvoke(*one) for one in given)))


def _in_threads(graph: Any, given: list[Any]) -> list[Any]:
    values: list[Any] = [None] * len(given)
    begin = threading.Barrier(len(given))

    def run(number: int) -> None:
        begin.wait()
        values[number] = graph.invoke(*given[number])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return values
