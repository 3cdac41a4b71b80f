"""What a lookup answered stands in the trail, also when it settled nothing (rules E5, E7, E8)."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import Absent, Committed, EffectCall, Unknown, effect, fold
from surefoot.errors import EffectConflict, EffectInDoubt
from surefoot.rules.events import OURS, Event

pytestmark = pytest.mark.optimized
_numbers = itertools.count(1)


class Boom(ConnectionError):
    """The answer of the receiver is lost."""


class Pay:
    """A node whose first send lands and loses its answer; lookups answer in the order given."""

    def __init__(self, bench: Bench, *answers: Any, **settings: Any) -> None:
        self.bench, self.answers, self.asked = bench, [*answers], 0

        def lookup(call: EffectCall) -> Any:
            self.asked += 1
            found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(found, BaseException):
                raise found
            return found

        @effect(
            name=f"pay-{next(_numbers)}",
            reconcile=lookup,
            compare=["amount"],
            **{"lookup": "strong", **settings},
        )
        def pay(amount: int) -> str:
            bench.world.send(amount)
            if bench.world.count == 1:
                raise Boom
            return "sent"

        self.node = lambda state: {"log": [pay(700)]}
        self.config = bench.config()
        self.thread = self.config["configurable"]["thread_id"]
        with pytest.raises(Boom):
            self.run({"log": []})

    def run(self, given: Any = None, **policy: Any) -> Any:
        """As another process would go on."""
        graph = self.bench.graph(self.node, saver=self.bench.open(**policy))
        return graph.invoke(given, self.config)["log"]

    def events(self) -> list[Event]:
        """What the trail tells of the effect since its answer was lost."""
        told = self.bench.saver.events(self.thread)
        return [e for e in told if e.kind.startswith(OURS + "effect.")][2:]

    def trail(self) -> list[tuple[str, str, Any]]:
        """Kind, rule and evidence of each of them."""
        return [(e.kind.rpartition(".")[2], e.facts["rule"], e.value) for e in self.events()]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Unknown("the gateway is down"), "the gateway is down"),
        (TimeoutError("secret"), "the lookup raised TimeoutError; repair it and run again"),
        ("nonsense", "the lookup returned str instead of"),
    ],
    ids=["unknown", "raised", "no answer"],
)
def test_an_answer_that_says_nothing_is_told(either: Bench, answer: Any, why: str) -> None:
    """Once when the run loads and once at the call; the effect stays what it was."""
    pay = Pay(either, answer)
    (before,) = either.saver.in_doubt(thread=pay.thread)
    transitions = either.saver.effects(pay.thread)
    for runs in (1, 2):
        with pytest.raises(EffectInDoubt):
            pay.run()
        assert pay.asked == 2 * runs
        assert pay.trail() == [("asked", "E8", None)] * pay.asked
    event = pay.events()[-1]
    assert event.facts["answer"] == "unknown"
    assert event.facts["why"].startswith(why)
    assert event.facts["state"] == "in_doubt"
    assert event.facts["error"].startswith("Boom"), "what the body raised stays beside it"
    assert "secret" not in str(event.document())
    assert event.at_us > pay.events()[0].at_us > 0
    (after,) = either.saver.in_doubt(thread=pay.thread)
    assert (after.state, after.opened_at, after.reason) == (
        "in_doubt",
        before.opened_at,
        before.reason,
    )
    told = either.saver.effects(pay.thread)
    assert [one for one in told if one.event != "asked"] == transitions
    assert [(one.answer, one.state, one.newest) for one in told[:4]] == [
        ("unknown", "in_doubt", False)
    ] * 4
    assert all(one.why.startswith(why) for one in told[:4])
    assert either.saver.effects(pay.thread, limit=3) == told[:3]
    assert all(report.ok for report in either.saver.verify(pay.thread, deep=True))


def test_an_absence_is_told_with_its_evidence(either: Bench) -> None:
    """At load it does not count yet; at the call it does, and the effect runs once more."""
    pay = Pay(either, Absent({"searched": 1}), Absent({"searched": 2}))
    assert pay.run() == ["sent"]
    assert pay.trail() == [
        ("asked", "E5", {"searched": 1}),
        ("reconciled", "E5", {"searched": 2}),
        ("retried", "E2", None),
        ("succeeded", "E2", None),
    ]
    early, settled, again, done = pay.events()
    assert (early.facts["answer"], early.facts["state"]) == ("absent", "in_doubt")
    assert "where the run calls" in early.facts["why"]
    assert (settled.facts["state"], settled.facts["evidence"]) == ("absent", True)
    assert not again.facts["evidence"]
    assert not done.facts["evidence"]
    assert either.world.count == 2


def test_evidence_that_cannot_be_stored_is_described(either: Bench) -> None:
    pay = Pay(either, Absent(threading.Lock()))
    assert pay.run() == ["sent"]
    assert [value for _, _, value in pay.trail()[:2]] == ["lock that cannot be stored"] * 2


def test_of_the_polls_of_a_wait_the_first_and_the_last_are_told(either: Bench) -> None:
    """A settling time of an hour, so each look comes too early until one finds it."""
    polls = [Absent({"poll": number}) for number in range(4)]
    pay = Pay(either, *polls, Committed({"amount": 700}, result="found"))
    assert pay.run(settling_ms=3_600_000) == ["found"]
    assert pay.asked == 5
    assert pay.trail() == [
        ("asked", "E5", {"poll": 0}),
        ("asked", "E5", {"poll": 1}),
        ("reconciled", "E8", {"amount": 700}),
    ]
    assert "settled" in pay.events()[1].facts["why"]


def test_a_first_look_that_does_not_count_alone_is_told(either: Bench) -> None:
    pay = Pay(either, *(Absent(number) for number in range(1, 4)), lookup="settling")
    assert pay.run() == ["sent"]
    assert pay.trail()[:3] == [("asked", "E5", 1), ("asked", "E5", 2), ("reconciled", "E5", 3)]
    assert "second look" in pay.events()[1].facts["why"]


def test_an_answer_after_others_that_said_nothing_settles_it(either: Bench) -> None:
    """What is kept for the trail is in nobody's way, and no checkpoint folds it."""
    pay = Pay(either, Unknown(), Unknown(), Committed({"amount": 700}, result="found"))
    with pytest.raises(EffectInDoubt):
        pay.run()
    assert pay.run() == ["found"]
    assert [kind for kind, _, _ in pay.trail()] == ["asked", "asked", "reconciled"]
    state = fold(either.saver.events(pay.thread))
    assert (state.status, state.effects_by_state()) == ("done", {"succeeded": 1})
    assert either.saver.in_doubt(thread=pay.thread) == []


async def test_an_async_lookup_is_told_as_well(either: Bench) -> None:
    answers = [Unknown("down"), Absent({"n": 0}), Absent({"n": 1})]

    async def lookup(call: EffectCall) -> Any:
        return answers.pop(0)

    @effect(name=f"pay-{next(_numbers)}", reconcile=lookup, lookup="strong")
    async def pay(amount: int) -> str:
        either.world.send(amount)
        if either.world.count == 1:
            raise Boom
        return "sent"

    async def node(state: Any) -> Any:
        return {"log": [await pay(700)]}

    config = either.config()
    with pytest.raises(Boom):
        await either.graph(node).ainvoke({"log": []}, config)
    answers.insert(0, Unknown("away"))
    with pytest.raises(EffectInDoubt, match="down"):
        await either.graph(node, saver=either.open()).ainvoke(None, config)
    assert (await either.graph(node, saver=either.open()).ainvoke(None, config))["log"] == ["sent"]
    told = await either.saver.aevents(config["configurable"]["thread_id"])
    whys = [e.facts["why"] for e in told if e.kind == OURS + "effect.asked"]
    assert whys == ["away", "down", "it counts where the run calls the effect"]


def test_a_lookup_that_nobody_asked_is_not_told(either: Bench) -> None:
    """A synchronous run has no loop for an async lookup, so it asks nobody when it loads."""

    async def lookup(call: EffectCall) -> Any:
        raise AssertionError

    @effect(name=f"pay-{next(_numbers)}", reconcile=lookup)
    async def pay(amount: int) -> None:
        raise Boom

    async def node(state: Any) -> Any:
        return {"log": [await pay(700)]}

    config = either.config()
    with pytest.raises(Boom):
        asyncio.run(either.graph(node).ainvoke({"log": []}, config))
    either.graph(lambda state: {"log": ["idle"]}, saver=either.open()).invoke(None, config)
    told = either.saver.events(config["configurable"]["thread_id"])
    assert not [e for e in told if e.kind == OURS + "effect.asked"]


def test_a_conflict_is_told_once_and_not_as_another_reconciliation(either: Bench) -> None:
    amounts = [700, 700, 900]

    @effect(
        name=f"pay-{next(_numbers)}",
        reconcile=lambda call: Committed({"amount": 700}, result="found"),
    )
    def pay(amount: int) -> str:
        either.world.send(amount)
        raise Boom

    def node(state: Any) -> Any:
        pay(amounts.pop(0))
        raise ValueError("the node fails behind its effect")

    config = either.config()
    with pytest.raises(Boom):
        either.graph(node).invoke({"log": []}, config)
    with pytest.raises(ValueError, match="behind its effect"):
        either.graph(node, saver=either.open()).invoke(None, config)
    with pytest.raises(EffectConflict):
        either.graph(node, saver=either.open()).invoke(None, config)
    told = either.saver.events(config["configurable"]["thread_id"])
    kinds = [e.kind.removeprefix(OURS) for e in told if ".effect." in e.kind]
    assert kinds[2:] == ["effect.reconciled", "effect.conflicted"]
    assert told[-1].facts["rule"] == "E4"
