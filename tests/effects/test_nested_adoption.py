"""An effect inside another one's body, whose outer call is adopted (E4b)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import effect

pytestmark = pytest.mark.optimized


class Boom(Exception):
    """The node fails."""


def test_what_happened_inside_goes_with_it(either: Bench) -> None:
    fails = [True, False, False]

    @effect(name="charge")
    def charge(amount: int) -> str:
        either.world.send(amount)
        return "charged"

    @effect(name="checkout")
    def checkout(amount: int) -> str:
        return charge(amount)

    def node(state: Any) -> Any:
        done = charge(5) if state["n"] == 3 else checkout(5)
        if fails.pop(0):
            raise Boom
        return {"log": [done]}

    graph, config = either.graph(node), either.config()
    with pytest.raises(Boom):
        graph.invoke({"n": 1}, config)
    graph.invoke({"n": 2}, config)  # adopts the checkout, and the charge is part of it
    assert either.world.sent == [5]
    graph.invoke({"n": 3}, config)  # a charge of its own, in a turn of its own
    assert either.world.sent == [5, 5]
