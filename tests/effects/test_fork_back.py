"""Going back to a branch that has consumed an effect which another branch has adopted since."""

from __future__ import annotations

import pytest
from tests.effects.conftest import Bench
from tests.effects.test_adoption import _before

from surefoot import effect

pytestmark = pytest.mark.optimized


def test_an_intended_repeat_is_not_adopted(either: Bench) -> None:
    """Rule E4b: what is consumed on the branch is an intended repeat when it comes again."""

    @effect(name="pay")
    def pay(what: int) -> str:
        either.world.send(what)
        return "paid"

    go, end = {"log": ["go"]}, {"log": ["end"]}
    graph = either.graph(lambda state: go, lambda state: {"log": [pay(7)]}, lambda state: end)
    config = either.config()
    graph.invoke({"n": 1}, config)
    behind = _before(graph, config, "n2")  # the payment is part of this state
    graph.invoke(None, _before(graph, config, "n1"))  # a replay from before it, recognised
    assert graph.invoke(None, behind)["log"] == ["go", "paid", "end"]
    assert either.world.sent == [7]
    done = graph.invoke({"n": 2}, config)  # the next turn, and a second payment
    assert done["log"] == ["go", "paid", "end"] * 2
    assert either.world.sent == [7, 7]
