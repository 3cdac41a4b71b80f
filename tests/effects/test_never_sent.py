"""A start without its intent was never sent (E5), so nothing about it is in doubt."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import effect
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

pytestmark = pytest.mark.optimized


@pytest.fixture
def killed(either: Bench) -> tuple[Any, list[int], dict[str, Any]]:
    """A worker is killed after its start is stored and before its intent is published."""
    wanted = [7]

    @effect(name="pay")
    def pay(what: int) -> str:
        either.world.send(what)
        return "paid"

    def node(state: Any) -> Any:
        return {"log": [pay(wanted[0])]}

    dying, config = either.open(), either.config()
    plan = Plan({"marks.publish.before#3": Fault.DIE})
    with_faults(dying, plan)
    with pytest.raises(Died):
        either.graph(node, saver=dying).invoke({"n": 1}, config, durability="sync")
    bury(dying, plan)
    (start,) = either.saver.effects(config["configurable"]["thread_id"])
    if (start.state, either.world.count) != ("started", 0):
        raise AssertionError("the fault did not hit between the start and its intent")
    return node, wanted, config


def test_it_may_run_with_other_arguments(either: Bench, killed: Any) -> None:
    node, wanted, config = killed
    wanted[0] = 8
    either.graph(node, saver=either.open()).invoke(None, config)
    assert either.world.sent == [8]


def test_it_runs_after_new_input(either: Bench, killed: Any) -> None:
    node, _, config = killed
    either.graph(node, saver=either.open()).invoke({"n": 2}, config)
    assert either.world.sent == [7]


def test_it_is_no_doubt(either: Bench, killed: Any) -> None:
    assert either.saver.in_doubt() == []
