"""Under ``durability="exit"`` records of effects lie below the checkpoint that they ran under."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import effect
from surefoot.errors import EffectConflict, EffectInDoubt

pytestmark = pytest.mark.optimized


class Boom(Exception):
    """The node fails after its effect."""


def failing(bench: Bench, **settings: Any) -> tuple[Any, dict[str, Any], list[int]]:
    """A run whose second step has paid and then failed; LangGraph stores what there is."""
    fails, wanted = [True], [2]

    @effect(name="pay", idempotent=True, **settings)
    def pay(what: int, idempotency_key: str) -> int:
        bench.world.send(what, idempotency_key)
        return what

    def second(state: Any) -> Any:
        done = pay(wanted[0])
        if fails:
            fails.pop()
            raise Boom
        return {"log": [done]}

    graph, config = bench.graph(lambda state: {"log": ["first"]}, second), bench.config()
    with pytest.raises(Boom):
        graph.invoke({"n": 1}, config, durability="exit")
    return graph, config, wanted


def test_case_11_new_input_after_a_failure(either: Bench) -> None:
    graph, config, _ = failing(either)
    graph.invoke({"n": 2}, config, durability="exit")
    assert len(set(either.world.keys)) == 1, "the receiver sees one payment"


def test_a_recorded_result_is_replayed(either: Bench) -> None:
    graph, config, _ = failing(either)
    graph.invoke(None, config, durability="exit")
    assert either.world.sent == [2]


def test_case_09_other_arguments_are_a_conflict(either: Bench) -> None:
    graph, config, wanted = failing(either)
    wanted[0] = 3
    with pytest.raises(EffectConflict):
        graph.invoke(None, config, durability="exit")
    assert either.world.sent == [2]


def test_case_20_the_window(either: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, config, _ = failing(either, window=timedelta(hours=24))
    host = type(either.saver.core.ports.host)
    now_us = host.now_us
    monkeypatch.setattr(host, "now_us", lambda self: now_us(self) + 48 * 3600 * 1_000_000)
    try:
        graph.invoke(None, config, durability="exit")
    except EffectInDoubt:
        pass
    assert either.world.sent == [2], "the receiver has forgotten the key by now"
