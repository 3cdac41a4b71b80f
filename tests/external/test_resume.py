"""The nine published edits on the effects that a resume needs: it refuses, and sends nothing.

A node has run five effects and died before its step was saved, so that their outcomes (and
starts) are all that says so. The edits are those of `agmi`, each with its own proof that it
landed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from agmi import check
from agmi.attacks.guard import snapshot
from langgraph.graph import START, StateGraph
from tests.external.agmi_adapter import (
    OTHER,
    SEED,
    THREAD,
    Outcomes,
    PostgresStore,
    SqliteStore,
    Starts,
)

from surefoot import effect
from surefoot.errors import RollbackDetected, TamperDetected

pytestmark = pytest.mark.optimized

COUNT = 5


class State(TypedDict, total=False):
    what: str
    done: Annotated[list[str], operator.add]


class Died(Exception):
    """The node did not come to its end."""


class Interrupted(Outcomes):
    """One run whose node dies after its effects.

    Attributes:
        sent: What the receiver got.
        receiver: Class of the receiver.
    """

    receiver = "N"

    def setup(self) -> None:
        super().setup()
        self.sent: list[str] = []

    def _seed(self, thread: str, word: str, numbers: range) -> None:
        with pytest.raises(Died):
            self.run(thread, word, numbers.stop, dies=True)

    def run(self, thread: str, word: str, count: int, *, dies: bool) -> Any:
        """Runs the graph from its beginning, or resumes it."""

        def act(what: str, *, idempotency_key: str) -> str:
            self.sent.append(what)
            return f"{what} done"

        act = effect(name="act", idempotent=self.receiver == "K")(act)

        def node(state: State) -> State:
            done = [act(f"{state['what']}{n}") for n in range(count)]
            if dies:
                raise Died
            return {"done": done}

        builder = StateGraph(State)
        builder.add_node("node", node)
        builder.add_edge(START, "node")
        graph = builder.compile(checkpointer=self.saver)
        config = {"configurable": {"thread_id": thread}}
        begun = self.saver.get_tuple({"configurable": {"thread_id": thread}}) is not None
        try:
            return graph.invoke(None if begun else {"what": word}, config)
        finally:
            self.saver.release(thread)


class InterruptedStarts(Interrupted):
    state = Starts.state


Made = Callable[[type[Interrupted], str], Interrupted]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def make(request: pytest.FixtureRequest) -> Iterator[Made]:
    store = SqliteStore if request.param == "sqlite" else PostgresStore
    opened: list[Interrupted] = []

    def made(kind: type[Interrupted], receiver: str) -> Interrupted:
        adapter = type(kind.__name__, (kind,), {"store_of": store, "receiver": receiver})()
        adapter.setup()
        opened.append(adapter)
        adapter.seed(COUNT)
        return adapter

    yield made
    for adapter in opened:
        adapter.teardown()


@pytest.mark.parametrize("receiver", ["K", "N"])
@pytest.mark.parametrize("kind", [Interrupted, InterruptedStarts])
def test_an_untouched_store_is_resumed_without_sending_anything(
    make: Made, kind: type[Interrupted], receiver: str
) -> None:
    adapter = make(kind, receiver)
    assert len(adapter.read_all_raw()) == COUNT
    assert len(adapter.sent) == COUNT
    adapter.reload()
    result = adapter.run(THREAD, SEED, COUNT, dies=False)
    assert result["done"] == [f"{SEED}{n} done" for n in range(COUNT)]
    assert len(adapter.sent) == COUNT


@pytest.mark.parametrize("receiver", ["K", "N"])
@pytest.mark.parametrize("kind", [Interrupted, InterruptedStarts])
@pytest.mark.parametrize("attack", check.ALL_AT_REST_ATTACKS, ids=lambda attack: attack.name)
def test_an_edit_of_effects_ends_the_resume(
    make: Made, attack: Any, kind: type[Interrupted], receiver: str
) -> None:
    adapter, edit = make(kind, receiver), attack()
    before = snapshot(adapter, adapter.read_all_raw())
    edit.tamper(adapter)
    edit.check_landed(adapter, before, snapshot(adapter, adapter.read_all_raw()))
    sent = [*adapter.sent]
    adapter.reload()
    with pytest.raises((TamperDetected, RollbackDetected)):
        adapter.run(THREAD, SEED, COUNT, dies=False)
    assert adapter.sent == sent
    if attack.name == "cross_replay":  # the donor's thread is as good as before
        result = adapter.run(OTHER, "", COUNT, dies=False)
        assert len(result["done"]) == COUNT
        assert adapter.sent == sent


def test_all_nine_are_here() -> None:
    assert len(check.ALL_AT_REST_ATTACKS) == 9
