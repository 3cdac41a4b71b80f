"""Bounded offload: a cancellation waits for the flow, and a closed pool says so."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from surefoot.errors import Closed
from surefoot.offload import Offload

pytestmark = pytest.mark.optimized
WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class Flow:
    """A flow that waits until the test lets it go."""

    def __init__(self, result: Any = "done") -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.ended = threading.Event()
        self.result = result

    def __call__(self) -> Any:
        self.entered.set()
        self.go.wait(20)
        self.ended.set()
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def pool() -> Any:
    made = Offload(3)
    yield made
    made.close()


async def entered(flow: Flow) -> None:
    assert await asyncio.to_thread(flow.entered.wait, 20)


async def test_a_flow_runs_in_a_thread_of_ours(pool: Offload) -> None:
    name = await pool.run(lambda: threading.current_thread().name)
    assert name.startswith("surefoot")
    assert await pool.run(lambda a, *, b: (a, b), 1, b=2) == (1, 2)


async def test_the_context_comes_along(pool: Offload) -> None:
    WHO.set("me")
    assert await pool.run(WHO.get) == "me"


async def test_errors_come_back(pool: Offload) -> None:
    for error in (ValueError("x"), KeyboardInterrupt(), Closed(field="f")):
        flow = Flow(error)
        flow.go.set()
        with pytest.raises(type(error)):
            await pool.run(flow)


@pytest.mark.parametrize("result", ["done", ValueError("late")], ids=repr)
async def test_a_cancellation_waits_for_the_flow_and_then_surfaces(
    pool: Offload, result: Any
) -> None:
    flow = Flow(result)
    running = asyncio.create_task(pool.run(flow))
    await entered(flow)
    for _ in range(3):  # once is not more than three times
        running.cancel()
        await asyncio.sleep(0.01)
        assert not running.done()
        assert not flow.ended.is_set()
    flow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert flow.ended.is_set()


async def test_a_time_out_waits_for_the_flow_too(pool: Offload) -> None:
    flow = Flow()
    asyncio.get_running_loop().call_later(0.05, flow.go.set)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(pool.run(flow), 0.01)
    assert flow.ended.is_set()


async def test_no_more_threads_than_its_bound(pool: Offload) -> None:
    flows = [Flow(n) for n in range(7)]
    running = [asyncio.create_task(pool.run(flow)) for flow in flows]
    for flow in flows[:3]:
        await entered(flow)
    await asyncio.sleep(0.05)
    assert [f.entered.is_set() for f in flows] == [True] * 3 + [False] * 4
    for flow in flows:
        flow.go.set()
    assert await asyncio.gather(*running) == list(range(7))


async def test_a_flow_that_waits_for_its_turn_may_be_cancelled(pool: Offload) -> None:
    """It has not started: whether it runs or not, nobody waits for ever."""
    blocking = [Flow() for _ in range(3)]
    busy = [asyncio.create_task(pool.run(flow)) for flow in blocking]
    for flow in blocking:
        await entered(flow)
    waiting = asyncio.create_task(pool.run(lambda: "ran"))
    await asyncio.sleep(0)
    waiting.cancel()
    for flow in blocking:
        flow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.gather(*busy) == ["done"] * 3


async def test_closed_means_closed(pool: Offload) -> None:
    assert await pool.run(lambda: 1) == 1
    pool.close()
    pool.close()
    with pytest.raises(Closed, match="CLOSED"):
        await pool.run(lambda: 1)
    with pytest.raises(Closed):
        pool.submit(lambda: 1)


def test_close_waits_for_what_runs() -> None:
    pool, flow = Offload(1), Flow()
    future = pool.submit(flow)
    assert flow.entered.wait(20)
    threading.Timer(0.05, flow.go.set).start()
    pool.close()
    assert flow.ended.is_set()
    assert future.result(0) == "done"


def test_a_pool_that_was_never_used_has_no_threads() -> None:
    before = threading.active_count()
    pool = Offload(8)
    assert threading.active_count() == before
    pool.close()


def test_two_loops_share_a_pool() -> None:
    pool = Offload(2)
    for number in range(2):
        assert asyncio.run(pool.run(lambda n=number: n)) == number
    pool.close()
