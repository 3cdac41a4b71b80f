"""What ``compensate`` has undone still counts as done where somebody calls it again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import effect
from surefoot.errors import Refused

pytestmark = pytest.mark.optimized


class Boom(Exception):
    """The node fails."""


def test_what_was_undone_is_no_reason_to_adopt(either: Bench) -> None:
    """Charged, then the step failed; new input cancels that charge and charges anew."""
    fails, undone = [True, False], []

    @effect(name="refund")
    def refund(invoice: str) -> None:
        undone.append(invoice)

    @effect(name="charge", compensate=refund)
    def charge(invoice: str) -> int:
        either.world.send(invoice)
        return either.world.count

    def cancels(state: Any) -> Any:
        return {"log": [charge.compensate("inv-1")]} if state["n"] == 2 else {}

    def charges(state: Any) -> Any:
        done = charge("inv-1")
        if fails.pop(0):
            raise Boom
        return {"log": [done]}

    graph, config = either.graph(cancels, charges), either.config()
    with pytest.raises(Boom):
        graph.invoke({"n": 1}, config)
    done = graph.invoke({"n": 2}, config)
    assert undone == ["inv-1"]
    assert either.world.count == 2, "the second charge is meant; the first one was given back"
    assert done["log"][-1] == 2


def test_an_operation_that_was_undone_is_not_reported_as_done(either: Bench) -> None:
    undone: list[str] = []

    @effect(name="refund")
    def refund(invoice: str) -> None:
        undone.append(invoice)

    @effect(name="charge", operation_id="invoice", compensate=refund)
    def charge(invoice: str) -> int:
        either.world.send(invoice)
        return either.world.count

    def run(call: Any) -> Any:
        graph = either.graph(lambda state: {"log": [call("inv-1")]})
        return graph.invoke({"n": 1}, either.config())["log"][-1]

    assert run(charge) == 1
    run(charge.compensate)
    assert undone == ["inv-1"]
    try:
        again = run(charge)
    except Refused:
        return  # said, so it is no silent old result
    assert again == 2, "the result of a charge that was given back"
