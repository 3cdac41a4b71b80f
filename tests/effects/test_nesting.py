"""Every nesting, every level that may fail and be retried: each intended call is one effect.

LangGraph's counters and task ids change between attempts; the place of a call must not, and two
intended calls must never share one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, Send

from surefoot import Keyring, SurefootSaver, effect
from surefoot.errors import Misuse


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[str], operator.add]


RETRY = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False, retry_on=ConnectionError)
Levels = Callable[[str], None]


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[SurefootSaver]:
    with SurefootSaver(
        f"sqlite:///{tmp_path}/a.db",
        highwater=f"sqlite:///{tmp_path}/b.db",
        keys=Keyring.generate(),
    ) as opened:
        opened.setup()
        yield opened


class Receiver:
    """Counts what a receiver that deduplicates executes."""

    def __init__(self) -> None:
        self.keys: list[str] = []

        @effect(idempotent=True)
        def pay(what: str, *, idempotency_key: str) -> str:
            self.keys.append(idempotency_key)
            return what

        self.pay = pay

    @property
    def executed(self) -> int:
        return len(set(self.keys))


def one(name: str, node: Any, **options: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(State)
    graph.add_node(name, node, **options)
    graph.add_edge(START, name)
    return graph


def calls(graph: Any, fails: Levels, level: str, *, times: int = 1) -> Callable[[State], State]:
    """A node that calls a graph, and may fail between or after the calls."""

    def node(state: State) -> State:
        for call in range(times):
            graph.invoke({"x": 1})
            if call == 0:
                fails(level)
        return {"log": [level]}

    return node


def leaf_of(receiver: Receiver, fails: Levels) -> Any:
    def leaf(state: State) -> State:
        receiver.pay("same")
        fails("leaf")
        return {"log": ["leaf"]}

    return one("leaf", leaf).compile()


def called_called(leaf: Any, fails: Levels) -> tuple[Any, int]:
    mid = one("mid", calls(leaf, fails, "mid"), retry_policy=RETRY).compile()
    return one("outer", calls(mid, fails, "outer"), retry_policy=RETRY), 1


def node_called_twice(leaf: Any, fails: Levels) -> tuple[Any, int]:
    mid = one("mid", calls(leaf, fails, "mid", times=2), retry_policy=RETRY).compile()
    return one("outer", mid, retry_policy=RETRY), 2


def called_twice_node(leaf: Any, fails: Levels) -> tuple[Any, int]:
    mid = one("mid", leaf, retry_policy=RETRY).compile()
    return one("outer", calls(mid, fails, "outer", times=2), retry_policy=RETRY), 2


def node_node(leaf: Any, fails: Levels) -> tuple[Any, int]:
    mid = one("mid", leaf, retry_policy=RETRY).compile()
    return one("outer", mid, retry_policy=RETRY), 1


def sent_twice(leaf: Any, fails: Levels) -> tuple[Any, int]:
    graph = StateGraph(State)
    graph.add_node("outer", calls(leaf, fails, "outer"), retry_policy=RETRY)
    graph.add_conditional_edges(START, lambda _: [Send("outer", {"x": 1})] * 2)
    return graph, 2


@pytest.mark.optimized
@pytest.mark.parametrize("failing", ["leaf", "mid", "outer", None])
@pytest.mark.parametrize(
    "nesting", [called_called, node_called_twice, called_twice_node, node_node, sent_twice]
)
def test_each_intended_call_is_one_effect(
    saver: SurefootSaver, nesting: Callable[[Any, Levels], tuple[Any, int]], failing: str | None
) -> None:
    receiver, failed = Receiver(), []

    def fails(level: str) -> None:
        if level == failing and not failed:
            failed.append(level)
            raise ConnectionError(level)

    graph, intended = nesting(leaf_of(receiver, fails), fails)
    graph.compile(checkpointer=saver).invoke({"x": 0}, {"configurable": {"thread_id": "t"}})
    assert receiver.executed == intended


def test_unsaved_subgraphs_of_two_sends_are_not_merged(saver: SurefootSaver) -> None:
    receiver = Receiver()

    def leaf(state: State) -> State:
        receiver.pay("same")
        return {"log": ["leaf"]}

    inner = one("leaf", leaf).compile(checkpointer=False)

    def outer(state: State) -> State:
        inner.invoke({"x": 1})
        return {"log": ["outer"]}

    graph = StateGraph(State)
    graph.add_node("outer", outer)
    graph.add_conditional_edges(START, lambda _: [Send("outer", {"x": 1})] * 2)
    with pytest.raises(Misuse, match="call_id"):
        graph.compile(checkpointer=saver).invoke({"x": 0}, {"configurable": {"thread_id": "t"}})
    assert receiver.executed <= 1
