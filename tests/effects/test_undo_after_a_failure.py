"""An undo that was proven not sent, was made at another place, and is then reached again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import NotSent, effect

pytestmark = pytest.mark.optimized


class Boom(Exception):
    """The process dies after the undo."""


def test_an_undo_after_a_proven_failure_happens_once(either: Bench) -> None:
    refuses, dies = [True], [True]
    undone: list[int] = []

    @effect(name="refund")
    def refund(what: int) -> str:
        if refuses:
            refuses.pop()
            raise NotSent
        undone.append(what)
        return "refunded"

    @effect(name="pay", compensate=refund)
    def pay(what: int) -> str:
        either.world.send(what)
        return "paid"

    def undo(state: Any) -> Any:
        try:
            done = pay.compensate(1, call_id="first")
        except NotSent:
            done = pay.compensate(1, call_id="second")
        if dies:
            dies.pop()
            raise Boom
        return {"log": [done]}

    config = either.config()
    nodes = [lambda state: {"log": [pay(1)]}, undo]
    with pytest.raises(Boom):
        either.graph(*nodes).invoke({"n": 1}, config)
    either.graph(*nodes, saver=either.open()).invoke(None, config)
    assert either.world.sent == [1]
    assert undone == [1]
