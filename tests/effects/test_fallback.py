"""A node that goes on after a proven failure, and is then run again (cases 17 and 1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.types import RetryPolicy
from tests.effects.conftest import Bench

from surefoot import NotSent, effect

pytestmark = pytest.mark.optimized


class Boom(Exception):
    """The process dies after the second provider was paid."""


class Desk:
    """Two providers; the first one refuses at first."""

    def __init__(self, bench: Bench, refusals: int = 1) -> None:
        self.world = bench.world
        self.refuses = [True] * refusals
        self.dies = [True]

        @effect(name="first")
        def first(what: int) -> str:
            if self.refuses:
                self.refuses.pop()
                raise NotSent
            self.world.send(("first", what))
            return "first"

        @effect(name="second")
        def second(what: int) -> str:
            self.world.send(("second", what))
            return "second"

        self.first, self.second = first, second

    def falls_back(self, state: Any) -> Any:
        """Pays the second one where the first one refuses."""
        try:
            done = self.first(1)
        except NotSent:
            done = self.second(1)
        if self.dies:
            self.dies.pop()
            raise Boom
        return {"log": [done]}


def test_the_first_provider_is_not_paid_as_well(either: Bench) -> None:
    desk, config = Desk(either), either.config()
    with pytest.raises(Boom):
        either.graph(desk.falls_back).invoke({"n": 1}, config)
    done = either.graph(desk.falls_back, saver=either.open()).invoke(None, config)
    assert either.world.sent == [("second", 1)]
    assert done["log"] == ["second"]


def test_nor_by_a_retry_policy(bench: Bench) -> None:
    desk = Desk(bench)
    policy = RetryPolicy(max_attempts=2, initial_interval=0.001, retry_on=Boom)
    graph = bench.graph(desk.falls_back, retry_policy=policy)
    assert graph.invoke({"n": 1}, bench.config())["log"] == ["second"]
    assert bench.world.sent == [("second", 1)]


def test_a_failure_that_ended_the_task_may_be_retried(either: Bench) -> None:
    """Nobody caught it, so the node has not gone on; the other one happened before it."""
    desk, config = Desk(either), either.config()

    def node(state: Any) -> Any:
        return {"log": [desk.second(1), desk.first(1)]}

    with pytest.raises(NotSent):
        either.graph(node).invoke({"n": 1}, config)
    done = either.graph(node, saver=either.open()).invoke(None, config)
    assert done["log"] == ["second", "first"]
    assert either.world.sent == [("second", 1), ("first", 1)]


async def test_beside_another_one_it_may_be_retried(either: Bench) -> None:
    """Both at once; the one that happens is recorded after the failure of the other."""
    refuses, sent = [True], either.world.sent
    failed = asyncio.Event()

    @effect(name="first")
    async def first(what: int) -> str:
        if refuses:
            refuses.pop()
            raise NotSent
        sent.append(("first", what))
        return "first"

    @effect(name="second")
    async def second(what: int) -> str:
        await asyncio.wait_for(failed.wait(), 30)
        sent.append(("second", what))
        return "second"

    async def tries(what: int) -> str:
        try:
            return await first(what)
        finally:
            failed.set()

    async def node(state: Any) -> Any:
        done = await asyncio.gather(tries(1), second(1), return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException):
                raise one
        return {"log": done}

    config = either.config()
    with pytest.raises(NotSent):
        await either.graph(node).ainvoke({"n": 1}, config)
    assert sent == [("second", 1)]
    done = await either.graph(node, saver=either.open()).ainvoke(None, config)
    assert done["log"] == ["first", "second"]
    assert sent == [("second", 1), ("first", 1)]


def test_a_failure_that_was_caught_and_then_ended_the_task_after_all(either: Bench) -> None:
    """It fails again as it did; as nobody catches it now, the next run may make it."""
    desk, config = Desk(either), either.config()
    catches = [True]

    def node(state: Any) -> Any:
        if catches:
            catches.pop()
            return desk.falls_back(state)
        return {"log": [desk.first(1)]}

    with pytest.raises(Boom):
        either.graph(node).invoke({"n": 1}, config)
    with pytest.raises(NotSent, match="fails as it did then"):
        either.graph(node, saver=either.open()).invoke(None, config)
    done = either.graph(node, saver=either.open()).invoke(None, config)
    assert done["log"] == ["first"]
