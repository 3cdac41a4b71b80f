"""Receivers that forget keys, lag behind, or answer oddly (cases 20 to 22), in both colours."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import Absent, Committed, Conflicting, EffectCall, SurefootSaver, Unknown, effect
from surefoot.errors import EffectInDoubt, Misconfigured

pytestmark = pytest.mark.optimized
COLOURS = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
DAY_US = 24 * 3600 * 1_000_000


class Lost(Exception):
    """The connection drops after the receiver has executed."""


class Later:
    """A host whose wall clock is ahead; everything else is the real one."""

    def __init__(self, inner: Any, by_us: int) -> None:
        self._inner, self._by_us = inner, by_us

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def now_us(self) -> int:
        """The time, ahead."""
        return int(self._inner.now_us()) + self._by_us


def later(bench: Bench, by_us: int) -> SurefootSaver:
    """Another process, some time later."""
    saver = bench.open()
    saver.core.ports = dataclasses.replace(
        saver.core.ports, host=Later(saver.core.ports.host, by_us)
    )
    return saver


class Till:
    """A receiver whose answer to the first request is lost, and an effect that talks to it."""

    def __init__(self, bench: Bench, *, asynchronous: bool, answers: Any = (), **more: Any) -> None:
        self.world = bench.world
        self.asynchronous = asynchronous
        self.answers = list(answers)
        if answers:
            more["reconcile"] = self.aask if asynchronous else self.ask

        def pay(amount: int, *, idempotency_key: str) -> str:
            self.world.send(amount, idempotency_key)
            if self.world.count == 1:
                raise Lost
            return "paid"

        async def apay(amount: int, *, idempotency_key: str) -> str:
            await asyncio.sleep(0)
            return pay(amount, idempotency_key=idempotency_key)

        self.pay = effect(name="pay", **more)(apay if asynchronous else pay)

    def ask(self, call: EffectCall) -> Any:
        """The next answer; the last one for ever."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def aask(self, call: EffectCall) -> Any:
        """The same on a loop."""
        await asyncio.sleep(0)
        return self.ask(call)

    def graph(self, bench: Bench, saver: SurefootSaver | None = None) -> Any:
        """One node that pays."""

        def node(state: Any) -> Any:
            return {"log": [self.pay(700)]}

        async def anode(state: Any) -> Any:
            return {"log": [await self.pay(700)]}

        return bench.graph(anode if self.asynchronous else node, saver=saver)

    def run(self, graph: Any, given: Any, config: Any) -> Any:
        """Invokes in the colour."""
        if self.asynchronous:
            return asyncio.run(graph.ainvoke(given, config))["log"]
        return graph.invoke(given, config)["log"]


def lost(bench: Bench, till: Till) -> Any:
    """A thread whose effect landed, and whose answer was lost."""
    config = bench.config()
    with pytest.raises(Lost):
        till.run(till.graph(bench), {"log": []}, config)
    return config


# --- case 20: the receiver's window --------------------------------------------------------------


@COLOURS
def test_case_20_within_the_window_the_key_protects(either: Bench, asynchronous: bool) -> None:
    till = Till(either, asynchronous=asynchronous, idempotent=True, window=timedelta(hours=24))
    config = lost(either, till)
    graph = till.graph(either, later(either, DAY_US // 2))
    assert till.run(graph, None, config) == ["paid"]
    assert len(either.world.sent) == 2
    assert len(set(either.world.keys)) == 1


@COLOURS
@pytest.mark.parametrize("ahead", [DAY_US, 30 * DAY_US, -DAY_US])
def test_case_20_past_the_window_a_person_is_asked(
    either: Bench, asynchronous: bool, ahead: int
) -> None:
    """Also when the clock says that it was sent tomorrow: an age that cannot be proves nothing."""
    till = Till(either, asynchronous=asynchronous, idempotent=True, window=24 * 3600)
    config = lost(either, till)
    for _ in range(2):
        with pytest.raises(EffectInDoubt, match="window is over"):
            till.run(till.graph(either, later(either, ahead)), None, config)
    assert len(either.world.sent) == 1


@COLOURS
def test_case_20_past_the_window_the_receiver_is_asked(either: Bench, asynchronous: bool) -> None:
    till = Till(
        either,
        asynchronous=asynchronous,
        answers=[Committed({"amount": 700}, result="found")],
        idempotent=True,
        window=24 * 3600,
        compare=["amount"],
    )
    config = lost(either, till)
    assert till.run(till.graph(either, later(either, DAY_US)), None, config) == ["found"]
    assert len(either.world.sent) == 1


@COLOURS
def test_case_20_what_is_absent_after_the_window_is_sent_again(
    either: Bench, asynchronous: bool
) -> None:
    till = Till(
        either,
        asynchronous=asynchronous,
        answers=[Absent()],
        lookup="strong",
        idempotent=True,
        window=24 * 3600,
    )
    config = lost(either, till)
    assert till.run(till.graph(either, later(either, DAY_US)), None, config) == ["paid"]
    assert len(either.world.sent) == 2
    assert len(set(either.world.keys)) == 1


@pytest.mark.parametrize(
    "settings", [{"window": 60}, {"window": 0, "idempotent": True}, {"window": -1}]
)
def test_a_window_that_means_nothing_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="window="):
        effect(**settings)(lambda *, idempotency_key: None)


# --- case 21: a lookup that lags -----------------------------------------------------------------


@COLOURS
def test_case_21_absent_now_and_found_later(either: Bench, asynchronous: bool) -> None:
    """Not found twice would count; found at the second read is found."""
    till = Till(
        either,
        asynchronous=asynchronous,
        answers=[Absent(), Absent(), Committed({"amount": 700}, result="found")],
        compare=["amount"],
    )
    config = lost(either, till)
    # Asked before the first node, then at the call: twice not found there would count.
    assert till.run(till.graph(either, either.open()), None, config) == ["found"]
    assert len(either.world.sent) == 1


@COLOURS
def test_case_21_absent_counts_after_the_settling_time_and_a_second_read(
    either: Bench, asynchronous: bool
) -> None:
    till = Till(either, asynchronous=asynchronous, answers=[Absent()])
    config = lost(either, till)
    assert till.run(till.graph(either, either.open()), None, config) == ["paid"]
    assert len(either.world.sent) == 2
    assert len(set(either.world.keys)) == 1


# --- case 22: two matches, another amount, a time-out -----------------------------------------


@COLOURS
@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Conflicting([{"id": 1}, {"id": 2}], "two matches"), "needs_review"),
        (Committed({"amount": 900}), "needs_review"),
        (TimeoutError(), "in_doubt"),
        (Unknown(), "in_doubt"),
    ],
    ids=["two matches", "another amount", "a time-out", "no answer"],
)
def test_case_22_what_the_lookup_finds(
    either: Bench, asynchronous: bool, answer: Any, state: str
) -> None:
    till = Till(either, asynchronous=asynchronous, answers=[answer], compare=["amount"])
    config = lost(either, till)
    for _ in range(2):
        with pytest.raises(EffectInDoubt) as refused:
            till.run(till.graph(either, either.open()), None, config)
        assert refused.value.state == state
    (doubt,) = either.saver.in_doubt(thread=config["configurable"]["thread_id"])
    assert (doubt.effect, doubt.state) == ("pay", state)
    assert doubt.arguments["amount"] == 700
    assert (doubt.evidence is not None) is (state == "needs_review")
    assert len(either.world.sent) == 1
