"""A lookup settles an effect whose record a restore gave up; its arguments are large."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from tests.orders.conftest import Place, Snapshot, State, at, place

from surefoot import Committed, effect
from surefoot.errors import EffectInDoubt, RollbackDetected

__all__ = ["place"]
pytestmark = pytest.mark.optimized
LARGE = "".join(f"{number * 7919 % 104729:x}" for number in range(2_000))


@pytest.mark.parametrize("matches", [True, False])
def test_what_is_recorded_can_be_read(place: Place, matches: bool) -> None:
    sent: list[str] = []

    def ask(call: Any) -> Any:
        found = call.arguments["what"] if matches else "other"
        return Committed({"what": found, "id": 7}, result="found")

    @effect(name="send", reconcile=ask, compare=["what"])
    def send(what: str) -> str:
        sent.append(what)
        return "sent"

    def graph(stop: bool = False) -> Any:
        builder = StateGraph(State)
        builder.add_node("first", lambda state: {"done": ["first"]})
        builder.add_node("second", lambda state: {"done": [send(LARGE)]})
        builder.add_edge(START, "first")
        builder.add_edge("first", "second")
        builder.add_edge("second", END)
        return builder.compile(
            checkpointer=place.saver, interrupt_before=["second"] if stop else None
        )

    graph(stop=True).invoke({"done": []}, at("t"))
    before = Snapshot(place.backend)
    graph().invoke(None, at("t"))
    before.put_back()
    with pytest.raises(RollbackDetected):
        graph().invoke(None, at("t"))
    place.decide("t", "restore")
    if matches:
        assert graph().invoke(None, at("t"))["done"] == ["first", "found"]
    else:
        with pytest.raises(EffectInDoubt):
            graph().invoke(None, at("t"))
        (item,) = place.saver.in_doubt(thread="t")
        assert item.arguments == {"what": LARGE}
    assert len(sent) == 1
    assert [r.ok for r in place.saver.verify("t", deep=True)] == [True]
