"""Case 40: a prune between approvals, with forks and effects: nothing repeats, nothing is lost."""

from __future__ import annotations

import operator
import os
import threading
from dataclasses import replace
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from tests.orders.conftest import Place, at, whole

from surefoot import effect
from surefoot.errors import Fenced
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

pytestmark = pytest.mark.optimized


class Approvals(TypedDict, total=False):
    """Three approvals, each after an effect."""

    said: Annotated[list[str], operator.add]


def approving(place: Place, saver: Any) -> Any:
    world = place.world

    @effect
    def announce(what: str, *, idempotency_key: str) -> str:
        world.sent["N"].append((what, idempotency_key))
        return what

    def make(number: int) -> Any:
        def node(state: Approvals) -> Approvals:
            announce(what=f"A{number}")
            return {"said": [interrupt(f"question {number}")]}

        return node

    builder = StateGraph(Approvals)
    before = START
    for number in range(3):
        builder.add_node(f"a{number}", make(number))
        builder.add_edge(before, f"a{number}")
        before = f"a{number}"
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver)


def test_case_40_a_prune_between_two_of_three_approvals(place: Place) -> None:
    approving(place, place.saver).invoke({"said": []}, at("t"))
    for number in range(3):
        other = place.open()
        other.prune(["t"])
        waiting = approving(place, other).get_state(at("t"))
        assert [i.value for i in waiting.interrupts] == [f"question {number}"]
        result = approving(place, place.open()).invoke(Command(resume=f"yes {number}"), at("t"))
    assert result["said"] == ["yes 0", "yes 1", "yes 2"]
    assert [what for what, _ in place.world.sent["N"]] == ["A0", "A1", "A2"]
    assert [r.ok for r in place.open().verify("t", deep=True)] == [True]


def test_case_40_a_fork_that_was_left_waiting_survives_a_prune(place: Place) -> None:
    place.graph("K", stop=1).invoke({"done": []}, at("t"))
    paused = place.saver.get_tuple(at("t"))
    assert paused is not None
    place.graph("K").invoke(None, at("t"))
    place.graph("K", stop=2).invoke(None, paused.config)
    left = place.saver.get_tuple(at("t"))
    assert left is not None
    place.graph("K", stop=3).invoke(None, paused.config)
    before = {t.checkpoint["id"] for t in place.saver.list(at("t"))}
    place.saver.prune(["t"])
    after = {t.checkpoint["id"] for t in place.saver.list(at("t"))}
    assert len(after) == 3, "the heads of three branches"
    assert after < before
    fresh = place.open()
    assert fresh.get_tuple(left.config) == left
    assert place.graph("K", fresh).invoke(None, left.config)["done"] == whole("K")


def test_a_worker_that_writes_while_a_prune_collects_loses_nothing(place: Place) -> None:
    """The collection is planned under the lease; whoever got it since has other rows."""
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    pruning, working = place.open(), place.open()
    held, go = threading.Event(), threading.Event()

    class Held:
        """A content store that waits before it collects."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def collect(self, key: int, kept: Any) -> Any:
            held.set()
            go.wait(60)
            return self.inner.collect(key, kept)

    core = pruning.core
    core.ports = replace(core.ports, store=Held(core.ports.store))
    ended: list[BaseException | None] = []

    def prune() -> None:
        try:
            pruning.prune(["t"])
        except Fenced as error:
            ended.append(error)
        else:
            ended.append(None)

    pruner = threading.Thread(target=prune)
    pruner.start()
    assert held.wait(60)
    # The pruner is frozen past its lease; another worker takes over and stores a large value.
    marks = working.core.ports.marks
    mark = marks.read(working.core.ports.tenant, "t")
    assert mark is not None
    if place.backend.name == "sqlite":
        place.backend.execute_on_marks("UPDATE surefoot_marks SET lease_until_ms = 0")
    else:
        place.backend.execute_on_marks(
            "UPDATE surefoot_marks SET lease_until_ms = 0 WHERE tenant = ?",
            working.core.ports.tenant.encode(),
        )
    graph = place.graph("K", working)
    noise = os.urandom(5_000).hex()  # cannot be packed, so it lies in a row of its own
    rows = place.backend.counts()["surefoot_value"]
    graph.update_state(at("t"), {"done": [noise]})
    assert place.backend.counts()["surefoot_value"] > rows, "there is nothing to lose"
    go.set()
    pruner.join(60)
    assert isinstance(ended[0], Fenced), "it could give back a thread that is not its own"
    assert place.open().get_tuple(at("t")).checkpoint["channel_values"]["done"][-1] == noise
    assert [r.ok for r in place.open().verify("t", deep=True)] == [True]


@pytest.mark.parametrize("act", ["prune", "delete"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_nothing_is_deleted_before_the_record_that_permits_it_is_published(
    place: Place, act: str, side: str
) -> None:
    """P6: who dies before the publish has deleted nothing, who dies after it may have."""
    place.graph("K").invoke({"done": []}, at("t"))
    place.saver.release("t")
    whole_history = list(place.saver.list(at("t")))
    assert len(whole_history) > 2
    dying = place.open()
    boundary = f"marks.publish.{side}#1"
    plan = Plan({boundary: Fault.DIE})
    with_faults(dying, plan)
    with pytest.raises(Died):
        dying.prune(["t"], strategy="keep_latest" if act == "prune" else "delete")
    bury(dying, plan)
    assert plan.hit == [boundary]
    found = list(place.open().list(at("t")))
    if side == "before":
        assert found == whole_history
    else:
        assert found == (whole_history[:1] if act == "prune" else [])
