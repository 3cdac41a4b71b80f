"""PostgreSQL behind a wire that is cut: before every message, in each direction, to each store.

For each cut: an error of ours, no effect behind it, the whole history verifies, and the thread
ends as an uninterrupted one with every effect exactly once. ``SUREFOOT_FAULTS=all`` takes every
message; without it, they are thinned out.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from tests.postgres import fresh_database
from tests.storage_faults.errand import CHARGES, Errand, Failed, Stores, Walk, no_alarm, walked
from tests.storage_faults.wire import Cut, Hold, LostReply, Wire

from surefoot import Keyring, Limits
from surefoot.config import ResumePolicy
from surefoot.errors import BarrierTimeout, StoreUnavailable, SurefootError, Unavailable
from surefoot.highwater.postgres import PostgresHighWater

pytestmark = pytest.mark.postgres
ALL = os.environ.get("SUREFOOT_FAULTS") == "all"
EVERY = 1 if ALL else 19
#: Statements that change a store, as the wire sees them.
APPEND = r"INSERT INTO \S*surefoot_frame"
PUBLISH = r"UPDATE \S*surefoot_marks AS mark SET\s+seq"


@dataclass
class Wired:
    """Both stores behind wires, and what an uninterrupted run does.

    Attributes:
        direct: The same stores without the wires.
        counts: Messages of an uninterrupted run by store and direction.
        executed: SQL of that run, by store.
    """

    stores: Stores
    direct: Stores
    a: Wire
    b: Wire
    reference: Walk
    counts: dict[tuple[str, str], int]
    executed: dict[str, list[str]]
    threads: Iterator[int]

    def wire(self, store: str) -> Wire:
        return self.a if store == "a" else self.b

    def errand(self, name: str, **more: Any) -> Errand:
        """A thread of its own."""
        return Errand(self.stores, f"{name} {next(self.threads)}", **more)

    def mend(self) -> None:
        self.a.mend()
        self.b.mend()


def opened(stack: ExitStack, *, tcp: bool = False) -> Wired:
    """Two databases behind two wires."""
    content, marks = fresh_database(), fresh_database()
    a, b = Wire(content, tcp=tcp), Wire(marks, tcp=tcp)
    stack.callback(a.close)
    stack.callback(b.close)
    keys = Keyring.generate()
    limits = Limits(flush_after_ms=10**9, connect_timeout_ms=250)
    direct = Stores(content, marks, keys).set_up()
    stores = Stores(a.url, b.url, keys, limits)
    wired = Wired(stores, direct, a, b, Walk("", (), 0), {}, {}, iter(range(10**9)))
    a.plan(None)
    b.plan(None)
    errand = wired.errand("reference")
    with stores.open() as saver:
        errand.finish(saver)
    wired.counts = {
        (name, direction): count
        for name in "ab"
        for direction, count in wired.wire(name).counts.items()
    }
    wired.executed = {name: list(wired.wire(name).executed) for name in "ab"}
    wired.reference = walked(stores, errand.thread)
    if errand.errors:
        raise Failed(f"{errand.errors}")
    return wired


@pytest.fixture(scope="module")
def wired() -> Iterator[Wired]:
    with ExitStack() as stack:
        yield opened(stack)


def struck(
    wired: Wired, store: str, fault: Cut | LostReply, *, is_async: bool, same: bool
) -> tuple[list[str], bool, bool]:
    """Runs into a fault, mends the wire, goes on, and judges.

    Returns:
        What does not hold, whether the fault hit, and whether the run raised.
    """
    wire = wired.wire(store)
    errand = wired.errand("thread", is_async=is_async)
    saver = wired.stores.open()
    wire.plan(fault, lambda text: errand.till.note("fault", text))
    error = errand.attempt(saver)
    if not same:
        saver.close()
    hit = bool(wire.hits)
    wired.mend()
    if not same:
        saver = wired.stores.open()
    try:
        errand.finish(saver)
    except Failed as failed:
        return [str(failed)], hit, True
    finally:
        saver.close()
    errand.stores = wired.direct  # judged without hurry
    return errand.problems(wired.reference), hit, error is not None


def judged(wired: Wired, store: str, faults: list[Any]) -> tuple[int, int]:
    """Every fault in a run of its own; gives how many hit, and how many runs raised."""
    assert faults, "nothing to be made to fail"
    ways = [(a, s) for a in (False, True) for s in (True, False)]
    problems, missed, hits, raised = [], [], 0, 0
    with no_alarm():
        for number, fault in enumerate(faults):
            is_async, same = ways[number % len(ways)]
            found, hit, stopped = struck(wired, store, fault, is_async=is_async, same=same)
            problems += [f"{store}, {fault}: {problem}" for problem in found]
            hits += hit
            raised += stopped
            missed += [] if hit else [str(fault)]
    assert not problems, "\n".join(problems)
    # A pool opens connections in threads of its own, so the last few messages may not come.
    assert len(missed) <= max(1, len(faults) // 10), f"did not hit, so proves nothing: {missed}"
    return hits, raised


@pytest.mark.timeout(3_000 if ALL else 120)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "down"])
@pytest.mark.parametrize("direction", ["to", "from"])
@pytest.mark.parametrize("store", ["a", "b"])
def test_a_cut_before_every_message(
    wired: Wired, store: str, direction: str, *, lasting: bool
) -> None:
    count = wired.counts[store, direction]
    assert count > 60
    every = EVERY * (2 if lasting and not ALL else 1)
    first = 1 if ALL else {"a": 2, "b": 5}[store]
    faults = [Cut(direction, number, lasting) for number in range(first, count - 2, every)]
    hits, raised = judged(wired, store, faults)
    assert not lasting or raised > hits // 2
    print(f"{store} {direction}: {hits} cuts proven, {raised} runs stopped, of {count} messages")


@pytest.mark.parametrize("store", ["a", "b"])
def test_down_at_each_call_of_a_run(wired: Wired, store: str) -> None:
    """The server is gone before a call is made, and stays away until the run has ended."""
    count = wired.counts[store, "statement"]
    assert count > 10
    every = 1 if ALL else 3
    faults = [Cut("statement", number, lasting=True) for number in range(1, count + 1, every)]
    hits, raised = judged(wired, store, faults)
    assert raised > hits // 2
    print(f"{store}: down at {hits} of {count} calls, {raised} runs stopped")


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "down"])
@pytest.mark.parametrize(("store", "sql"), [("a", APPEND), ("b", PUBLISH)], ids=["a", "b"])
def test_every_commit_whose_reply_is_lost(
    wired: Wired, store: str, sql: str, *, lasting: bool
) -> None:
    """The server has committed; with ``lasting``, nobody can read back either."""
    count = sum(re.search(sql, text) is not None for text in wired.executed[store])
    assert count > 4, wired.executed[store]
    every = 1 if ALL or not lasting else 3
    faults = [LostReply(sql, number, lasting) for number in range(1, count + 1, every)]
    hits, raised = judged(wired, store, faults)
    assert hits == len(faults)
    if not lasting:
        assert raised == 0, "a lost reply that can be read back stops nobody"
    else:
        assert raised >= hits - 1
    print(f"{store}: {hits} lost replies proven, {raised} runs stopped")


def test_over_tcp_as_well() -> None:
    with ExitStack() as stack:
        wired = opened(stack, tcp=True)
        for store in "ab":
            count = wired.counts[store, "to"]
            hits, _ = judged(
                wired, store, [Cut("to", n) for n in range(3, count - 2, 1 if ALL else 60)]
            )
            assert hits > 0


# --- slow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize(("store", "sql"), [("a", APPEND), ("b", PUBLISH)], ids=["a", "b"])
def test_a_slow_store_delays_effects_and_the_return(
    wired: Wired, store: str, sql: str, *, is_async: bool
) -> None:
    """The answer of each commit is held in turn: while it is, nothing behind it happens."""
    wire = wired.wire(store)
    count = sum(re.search(sql, text) is not None for text in wired.executed[store])
    for number in range(1, count + 1, 1 if ALL else 5):
        errand = wired.errand("slow", is_async=is_async)
        with wired.stores.open() as saver, ThreadPoolExecutor(1) as pool:
            wire.plan(Hold(sql, number))
            running = pool.submit(errand.attempt, saver)
            while not wire.held.wait(0.01) and not running.done():
                pass
            if not wire.held.is_set():  # it is the one with which the saver is closed
                assert number == count
                continue
            before = list(errand.till.log)
            # Whatever could go on without the answer gets a chance to: another thread's run.
            other = wired.errand("beside")
            other.finish(wired_beside := wired.direct.open())
            wired_beside.close()
            assert errand.till.log == before, "something went on before the commit was answered"
            assert not running.done()
            wire.let_go()
            assert running.result(60) is None
        assert wire.hits
        assert not errand.problems(wired.reference)


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
def test_an_effect_does_not_wait_for_ever_for_a_slow_store(wired: Wired, *, is_async: bool) -> None:
    """E1: the barrier has a deadline; under "async" the checkpoint is published meanwhile."""
    errand = wired.errand("deadline", is_async=is_async, durability="async")
    policy = ResumePolicy(
        lease_ttl_ms=3_600_000, settling_ms=0, handover_grace_ms=0, barrier_timeout_ms=150
    )
    with wired.stores.open(policy=policy) as saver, ThreadPoolExecutor(1) as pool:
        wired.b.plan(Hold(PUBLISH, 1))
        running = pool.submit(errand.attempt, saver)
        assert wired.b.held.wait(30)
        caught = threading.Event()
        note = errand.till.note

        def noted(what: str, detail: str = "") -> None:
            note(what, detail)
            if what == "caught":
                caught.set()

        errand.till.note = noted  # type: ignore[method-assign]
        assert caught.wait(30), "the effect waits for ever"
        assert not errand.till.landed
        wired.b.let_go()
        error = running.result(60)
        assert isinstance(error, BarrierTimeout | Unavailable), error
        errand.finish(saver)
    assert ("caught", "BARRIER_TIMEOUT") in errand.till.log
    assert errand.till.counts() == {f"{errand.thread}/{what}": 1 for what in CHARGES}
    # Another number of frames, but all of them verify.
    walk = walked(wired.direct, errand.thread)
    assert (walk.values, walk.steps) == (wired.reference.values, wired.reference.steps)


# --- no connection is left ------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("store", ["a", "b"])
def test_a_pool_that_somebody_else_has_used_up(wired: Wired, store: str, *, is_async: bool) -> None:
    """All connections of the caller's pool are taken from the first effect on, then given back."""
    url = wired.direct.url if store == "a" else wired.direct.highwater
    limits = replace(wired.stores.limits, connect_timeout_ms=150)
    errand = wired.errand("pool", is_async=is_async)
    errand.stores = wired.direct
    taken: list[psycopg.Connection[Any]] = []
    with ConnectionPool(url, min_size=2, max_size=2, open=True) as pool:
        given = (
            {"conn": pool}
            if store == "a"
            else {"highwater": PostgresHighWater(pool, limits=limits)}
        )
        charge = errand.till.charge

        def charge_and_take(mode: str, invoice: str, key: str) -> dict[str, Any]:
            answer = charge(mode, invoice, key)
            if not taken and not given.get("left"):
                taken.extend(pool.getconn(timeout=10) for _ in range(2))
            return answer

        errand.till.charge = charge_and_take  # type: ignore[method-assign]
        saver = wired.direct.open(limits=limits, **given)
        error = errand.attempt(saver)
        assert len(taken) == 2, "the pool was never used up"
        assert isinstance(error, StoreUnavailable | SurefootError), error
        assert error.reaction == "unavailable", error
        assert len(errand.till.landed) == 1, "an effect started after its save had failed"
        assert saver.health()["ok"] is False
        given["left"] = True  # type: ignore[assignment]
        while taken:
            pool.putconn(taken.pop())
        errand.finish(saver)
        assert saver.health()["ok"] is True
        saver.close()
    assert not errand.problems(wired.reference)


def test_one_connection_serves_many_threads_with_effects(wired: Wired) -> None:
    """Nobody holds the only connection while waiting for another one's publish (E1)."""
    limits = replace(wired.stores.limits, pool_max_connections=1, connect_timeout_ms=20_000)
    errands = [wired.errand("narrow", is_async=n % 2 == 0, durability="async") for n in range(6)]
    with wired.direct.open(limits=limits) as saver, ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(errand.finish, saver) for errand in errands]:
            done.result(90)
    for errand in errands:
        errand.stores = wired.direct
        assert not errand.errors
        assert not errand.problems(wired.reference)
