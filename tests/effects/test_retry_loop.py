"""A node that tries again by itself after a proven failure, and is then resumed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import Absent, Committed, EffectCall, NotSent, effect

pytestmark = pytest.mark.optimized


class Boom(Exception):
    """The process dies after the loop."""


@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_a_loop_over_a_proven_failure_sends_once(either: Bench, kind: str) -> None:
    refuses, dies = [True], [True]
    settings: dict[str, Any] = {"name": "pay", "idempotent": kind == "K"}
    if kind == "L":
        settings["lookup"] = "strong"
        settings["reconcile"] = lambda call: (
            Committed({}) if call.key in either.world.keys else Absent()
        )

    @effect(**settings)
    def pay(what: int, *, call: EffectCall) -> str:
        if refuses:
            refuses.pop()
            raise NotSent
        either.world.send(what, call.key)
        return "paid"

    def node(state: Any) -> Any:
        done = None
        for _ in range(3):
            try:
                done = pay(1)
                break
            except NotSent:
                continue
        if dies:
            dies.pop()
            raise Boom
        return {"log": [done]}

    config = either.config()
    with pytest.raises(Boom):
        either.graph(node).invoke({"n": 1}, config)
    either.graph(node, saver=either.open()).invoke(None, config)
    assert either.world.sent == [1]
