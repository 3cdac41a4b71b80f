"""A place that holds a proven failure still has to look for an equal effect elsewhere (E4b)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import NotSent, effect

pytestmark = pytest.mark.optimized


class Boom(Exception):
    """The node fails."""


def test_a_proven_failure_does_not_hide_an_unconsumed_effect(either: Bench) -> None:
    """Pays 7 and fails; on new input 8 is refused first, then the model proposes 7 again."""
    wanted, refuses, fails = [7, 8, 7], [False, True, False], [True, True, False]

    @effect(name="pay")
    def pay(what: int) -> str:
        if refuses.pop(0):
            raise NotSent
        either.world.send(what)
        return "paid"

    def node(state: Any) -> Any:
        try:
            done = pay(wanted.pop(0))
        finally:
            if fails.pop(0):
                raise Boom
        return {"log": [done]}

    config = either.config()
    graph = either.graph(node)
    with pytest.raises(Boom):
        graph.invoke({"n": 1}, config)
    with pytest.raises(Boom):
        graph.invoke({"n": 2}, config)
    graph.invoke(None, config)
    assert either.world.sent == [7]
