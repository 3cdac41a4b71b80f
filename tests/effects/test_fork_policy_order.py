"""With ``on_fork="execute"`` an older equal effect of another branch hides one of this branch."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effects.conftest import Bench
from tests.effects.test_adoption import _before

from surefoot import effect

pytestmark = pytest.mark.optimized


class Boom(Exception):
    """The node fails."""


def test_what_the_fork_itself_has_left_is_adopted(either: Bench) -> None:
    fails = [False, True, False]

    @effect(name="pay")
    def pay(what: int) -> str:
        either.world.send(what)
        return "paid"

    def node(state: Any) -> Any:
        done = pay(7)
        if fails.pop(0):
            raise Boom
        return {"log": [done]}

    config = either.config()
    go = {"log": ["go"]}
    graph = either.graph(lambda state: go, node, saver=either.open(on_fork="execute"))
    graph.invoke({"n": 1}, config)
    with pytest.raises(Boom):
        graph.invoke(None, _before(graph, config, "n1"))
    assert either.world.sent == [7, 7], "the policy lets the fork pay anew"
    graph.invoke({"n": 2}, config)  # case 11: new input after the failure
    assert either.world.sent == [7, 7]
