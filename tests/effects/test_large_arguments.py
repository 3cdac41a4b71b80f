"""An effect of the same database with large arguments whose body raises."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import effect

pytestmark = pytest.mark.optimized
LARGE = "".join(f"{number * 7919 % 104729:x}" for number in range(2_000))


class Boom(Exception):
    """The body fails; its transaction is undone."""


def test_its_failure_leaves_no_value_that_is_not_stored(either: Bench) -> None:
    fails = [True, False]

    @effect(name="post", same_database=True)
    def post(text: str, *, conn: Any) -> int:
        if fails.pop(0):
            raise Boom
        return len(text)

    config = either.config()
    thread = config["configurable"]["thread_id"]
    graph = either.graph(lambda state: {"log": [post(LARGE)]})
    with pytest.raises(Boom):
        graph.invoke({"n": 1}, config)
    report = next(iter(either.saver.verify(thread, deep=True)))
    assert report.problems == (), "an honest failure is an alarm"
    assert graph.invoke(None, config)["log"] == [len(LARGE)]
    report = next(iter(either.saver.verify(thread, deep=True)))
    assert report.ok
