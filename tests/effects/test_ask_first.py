"""What is in doubt is asked about before the first node of a resumed run (rule E7)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import Absent, Committed, Conflicting, EffectCall, Unknown, effect
from surefoot.errors import EffectInDoubt
from surefoot.langgraph import hooks

pytestmark = pytest.mark.optimized
COLOURS = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


_numbers = itertools.count(1)


class Boom(Exception):
    """The process dies after the effect has landed."""


class World:
    """An effect whose first call lands and dies, and the order in which things happen."""

    def __init__(self, *answers: Any, asynchronous: bool = False) -> None:
        #: Hooks are found by the name of their effect in the whole process.
        self.name = f"pay-{next(_numbers)}"
        self.asynchronous = asynchronous
        self.answers = list(answers)
        self.log: list[str] = []
        self.loops: list[object] = []
        self.calls: list[EffectCall] = []
        self.sent = 0

        def answer(call: EffectCall) -> Any:
            self.log.append("asked")
            self.calls.append(call)
            found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(found, BaseException):
                raise found
            return found

        async def ask(call: EffectCall) -> Any:
            self.loops.append(asyncio.get_running_loop())
            await asyncio.sleep(0)
            return answer(call)

        settings: dict[str, Any] = {
            "name": self.name,
            "reconcile": ask if asynchronous else answer,
            "compare": ["amount"],
            "lookup": "strong",
        }

        def send(amount: int) -> str:
            self.sent += 1
            self.log.append("sent")
            if self.sent == 1:
                raise Boom
            return "sent"

        async def asend(amount: int) -> str:
            return send(amount)

        self.pay = effect(**settings)(asend if asynchronous else send)

    def node(self) -> Any:
        """Thinks, then pays."""

        def run(state: Any) -> Any:
            self.log.append("thought")
            return {"log": [self.pay(700)]}

        async def arun(state: Any) -> Any:
            self.log.append("thought")
            return {"log": [await self.pay(700)]}

        return arun if self.asynchronous else run

    def invoke(self, graph: Any, given: Any, config: Any) -> Any:
        """In its colour."""
        if not self.asynchronous:
            return graph.invoke(given, config)

        async def run() -> Any:
            self.loops.clear()
            self.loop = asyncio.get_running_loop()
            return await graph.ainvoke(given, config)

        return asyncio.run(run())


def crashed(bench: Bench, world: World) -> Any:
    """A thread whose effect landed and whose run ended before it was recorded."""
    config = bench.config()
    with pytest.raises(Boom):
        world.invoke(bench.graph(world.node()), {"log": []}, config)
    world.log.clear()
    return config


@COLOURS
def test_the_receiver_is_asked_before_any_node(either: Bench, asynchronous: bool) -> None:
    world = World(Committed({"amount": 700}, result="found"), asynchronous=asynchronous)
    config = crashed(either, world)
    graph = either.graph(world.node(), saver=either.open())
    assert world.invoke(graph, None, config)["log"] == ["found"]
    assert world.log == ["asked", "thought"]
    assert world.sent == 1
    if asynchronous:
        assert world.loops == [world.loop]


@COLOURS
def test_absent_counts_at_the_call_only(either: Bench, asynchronous: bool) -> None:
    world = World(Absent(), asynchronous=asynchronous)
    config = crashed(either, world)
    graph = either.graph(world.node(), saver=either.open())
    assert world.invoke(graph, None, config)["log"] == ["sent"]
    assert world.log == ["asked", "thought", "asked", "sent"]


def test_the_thread_loads_at_once_and_only_the_effect_waits(bench: Bench) -> None:
    """A settling time of an hour: the first node runs, the effect would wait."""
    world = World(Absent(), Committed({"amount": 700}, result="found later"))
    config = crashed(bench, world)
    graph = bench.graph(world.node(), saver=bench.open(settling_ms=3_600_000))
    assert world.invoke(graph, None, config)["log"] == ["found later"]
    assert world.log == ["asked", "thought", "asked"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Conflicting({"amount": 700}), "something else"),
        (Committed({"amount": 9}), "'amount' differs"),
        (Committed({}), "lacks 'amount'"),
    ],
)
def test_what_does_not_match_is_for_a_person(either: Bench, answer: Any, reason: str) -> None:
    world = World(answer)
    config = crashed(either, world)
    for _ in range(2):
        with pytest.raises(EffectInDoubt) as refused:
            world.invoke(either.graph(world.node(), saver=either.open()), None, config)
        assert refused.value.state == "needs_review"
        assert reason in str(refused.value)
    assert world.log == ["asked", "thought", "thought"]
    assert world.sent == 1


@COLOURS
@pytest.mark.parametrize("answer", [Unknown("no answer"), Boom(), "nonsense"], ids=repr)
def test_what_proves_nothing_changes_nothing(bench: Bench, answer: Any, asynchronous: bool) -> None:
    world = World(answer, Committed({"amount": 700}, result="found"), asynchronous=asynchronous)
    config = crashed(bench, world)
    graph = bench.graph(world.node(), saver=bench.open())
    assert world.invoke(graph, None, config)["log"] == ["found"]
    assert world.log == ["asked", "thought", "asked"]


def test_a_hook_that_this_process_does_not_have_is_named(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(Committed({"amount": 700}))
    config = crashed(bench, world)
    hooks._known.pop(world.name)  # as in a process that has not imported its module
    graph = bench.graph(lambda state: {"log": ["idle"]}, saver=bench.open())
    with caplog.at_level(logging.WARNING, "surefoot"):
        graph.invoke(None, config)
    assert any(repr(world.name) in record.getMessage() for record in caplog.records)
    assert world.log == []


def test_two_functions_of_one_name_are_asked_at_their_calls(bench: Bench) -> None:
    world = World(Committed({"amount": 700}, result="found"))
    config = crashed(bench, world)

    @effect(name=world.name, reconcile=lambda call: Conflicting("not mine"))
    def another(amount: int) -> None:
        raise AssertionError

    graph = bench.graph(world.node(), saver=bench.open())
    assert world.invoke(graph, None, config)["log"] == ["found"]
    assert world.log == ["thought", "asked"]
    assert another is not None


def test_looking_asks_nobody(bench: Bench) -> None:
    world = World(Committed({"amount": 700}, result="found"))
    config = crashed(bench, world)
    graph = bench.graph(world.node(), saver=bench.open())
    assert graph.get_state(config).next == ("n0",)
    assert [*graph.get_state_history(config)]
    assert world.log == []
