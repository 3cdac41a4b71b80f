"""What a step costs, in counts: statements, commits and round trips, never in time."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from tests.saver.conftest import Backend, at

from surefoot import SurefootSaver

STEPS = 20


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[int], operator.add]


def counted(saver: SurefootSaver) -> Counter[str]:
    """Counts the calls of both ports: each is one statement, each append one commit."""
    calls: Counter[str] = Counter()
    for port, names in (
        (saver.core.ports.store, ("append", "read_newest", "read_values", "read_frames")),
        (saver.core.ports.marks, ("acquire", "create", "publish", "read", "renew")),
    ):
        for name in names:
            inner = getattr(port, name)

            def call(*args: Any, _inner: Any = inner, _name: str = name, **kwargs: Any) -> Any:
                calls[_name] += 1
                return _inner(*args, **kwargs)

            setattr(port, name, call)
    return calls


def counter_graph(saver: SurefootSaver) -> Any:
    graph = StateGraph(State)
    graph.add_node("step", lambda s: {"n": s["n"] + 1})
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda s: "step" if s["n"] < STEPS else END)
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_pure_step_is_one_commit_and_one_publish(backend: Backend, durability: str) -> None:
    saver = backend.open_saver()
    counter_graph(saver).invoke({"n": 0}, at("warm"), durability=durability)
    calls = counted(saver)
    config = {**at("t"), "recursion_limit": STEPS * 3}
    counter_graph(saver).invoke({"n": 0}, config, durability=durability)
    saves = STEPS + 2  # the input, the first loop checkpoint, and one for each step
    # Writes ride with the next checkpoint; a timer may flush a few of them on a slow machine.
    assert saves <= calls["append"] <= saves * 1.3
    assert calls["publish"] <= calls["append"] + 1
    assert calls["acquire"] + calls["create"] <= 2


def test_a_fan_out_is_one_commit(backend: Backend) -> None:
    saver = backend.open_saver()
    graph = StateGraph(State)
    graph.add_node("work", lambda s: {"log": [s["n"]]})
    graph.add_conditional_edges(START, lambda _: [Send("work", {"n": n}) for n in range(16)])
    compiled = graph.compile(checkpointer=saver)
    compiled.invoke({"log": []}, at("warm"), durability="sync")
    calls = counted(saver)
    compiled.invoke({"log": []}, at("t"), durability="sync")
    # Two or three checkpoints and the writes of sixteen tasks; the stock saver commits 20 times.
    assert calls["append"] <= 6
    assert calls["publish"] <= calls["append"] + 1


def test_a_resume_reads_twice(backend: Backend) -> None:
    first = backend.open_saver()
    graph = counter_graph(first)
    graph.invoke({"n": 0}, {**at("t"), "recursion_limit": STEPS * 3})
    first.close()
    saver = backend.open_saver()
    calls = counted(saver)
    looked = counter_graph(saver).get_state(at("t"))
    assert looked.values["n"] == STEPS
    assert calls["read"] == 1
    assert calls["read_newest"] == 1
    assert calls["read_values"] <= 1
    assert calls["read_frames"] == 0
