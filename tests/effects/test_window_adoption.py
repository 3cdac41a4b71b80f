"""An adopted effect of class K whose receiver has forgotten the key by now (case 20)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import effect
from surefoot.errors import EffectInDoubt

pytestmark = pytest.mark.optimized


class Timeout(Exception):
    """The answer of the receiver is lost."""


def test_the_window_counts_from_the_first_attempt(
    either: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @effect(name="pay", idempotent=True, window=timedelta(hours=24))
    def pay(what: int, idempotency_key: str) -> str:
        either.world.send(what, idempotency_key)
        if either.world.count == 1:
            raise Timeout
        return "paid"

    graph, config = either.graph(lambda state: {"log": [pay(7)]}), either.config()
    with pytest.raises(Timeout):
        graph.invoke({"n": 1}, config)
    host: Any = type(either.saver.core.ports.host)
    now_us = host.now_us
    monkeypatch.setattr(host, "now_us", lambda self: now_us(self) + 48 * 3600 * 1_000_000)
    with pytest.raises(EffectInDoubt):
        graph.invoke({"n": 2}, config)
    assert either.world.sent == [7]
