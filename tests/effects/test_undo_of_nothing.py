"""An undo that found nothing to undo, in a node that charges afterwards and is then resumed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import effect

pytestmark = pytest.mark.optimized


class Boom(Exception):
    """The process dies after the charge."""


def test_a_resume_does_not_undo_what_came_after(either: Bench) -> None:
    dies, undone = [True], []

    @effect(name="refund")
    def refund(invoice: str) -> str:
        undone.append(invoice)
        return "refunded"

    @effect(name="charge", compensate=refund)
    def charge(invoice: str) -> str:
        either.world.send(invoice)
        return "charged"

    def node(state: Any) -> Any:
        before = charge.compensate("inv-1")  # whatever an earlier turn has charged
        done = charge("inv-1")
        if dies:
            dies.pop()
            raise Boom
        return {"log": [before, done]}

    config = either.config()
    with pytest.raises(Boom):
        either.graph(node).invoke({"n": 1}, config)
    assert either.world.sent == ["inv-1"]
    assert undone == []
    done = either.graph(node, saver=either.open()).invoke(None, config)
    assert undone == [], "the charge of this very step was taken back"
    assert done["log"] == [None, "charged"]
