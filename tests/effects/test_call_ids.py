"""``call_id=None`` is no id: two such calls are two calls (case 10)."""

from __future__ import annotations

import pytest
from tests.effects.conftest import Bench

from surefoot import effect

pytestmark = pytest.mark.optimized


def test_two_calls_without_an_id_are_two(either: Bench) -> None:
    @effect(name="pay")
    def pay(what: int) -> str:
        either.world.send(what)
        return "paid"

    def twice(call_id: str | None = None) -> list[str]:
        return [pay(1, call_id=call_id), pay(1, call_id=call_id)]

    either.graph(lambda state: {"log": twice()}).invoke({"n": 1}, either.config())
    assert either.world.sent == [1, 1]
