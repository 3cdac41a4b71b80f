"""Stores, keys of operators, and a run whose every step has an effect of each class."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from tests.saver.conftest import BACKENDS, TABLES, Backend, make_backend

from surefoot import Absent, Committed, Limits, ResumePolicy, SurefootSaver, effect
from surefoot.signing import Reviewers, SigningKey

STEPS = 4


class State(TypedDict, total=False):
    """What the run has done."""

    done: Annotated[list[Any], operator.add]


class World:
    """Receivers of side effects: what they were sent, by class."""

    def __init__(self) -> None:
        self.sent: dict[str, list[tuple[str, str]]] = {"K": [], "L": [], "N": []}
        self.asked = 0
        #: What lookups answer first, one each.
        self.first: list[Any] = []

    def lookup(self, call: Any) -> Any:
        """What a receiver of class L says."""
        self.asked += 1
        if self.first:
            return self.first.pop(0)
        found = [what for what, key in self.sent["L"] if key == call.key]
        return Committed({"what": found[0]}, result=found[0]) if found else Absent()

    def distinct(self, receiver: str) -> int:
        """How many different keys arrived: for class K that is how often it happened."""
        return len({key for _, key in self.sent[receiver]})


class Snapshot:
    """All rows of a content store at one moment, to be put back."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.rows = {table: backend.rows(table) for table in TABLES}

    def put_back(self) -> None:
        """Makes the content store what it was."""
        over = "" if self.backend.name == "sqlite" else " OVERRIDING SYSTEM VALUE"
        for table, rows in self.rows.items():
            self.backend.execute(f"DELETE FROM {table}")
            for row in rows:
                marks = ", ".join("?" * len(row))
                self.backend.execute(f"INSERT INTO {table}{over} VALUES ({marks})", *row)


class Place:
    """One test's stores, its operator, its world and its graph."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.operator = SigningKey.generate("op-1")
        self.reviewers = Reviewers({"op-1": self.operator.public()})
        self.world = World()
        self.saver = self.open()

    def open(self, **settings: Any) -> SurefootSaver:
        """Another saver, as another process would open it."""
        given = {
            "reviewers": self.reviewers,
            # A run that ended in a static interrupt gives its lease back in a thread of its own.
            "policy": ResumePolicy(settling_ms=0, handover_grace_ms=10_000),
            # Nothing is stored by the clock: boundaries are counted.
            "limits": Limits(flush_after_ms=10**9),
            **settings,
        }
        return self.backend.open_saver(**given)

    def nodes(self, classes: str) -> list[Any]:
        """One node per step; each calls one effect of each class."""
        world = self.world

        @effect(idempotent=True)
        def keyed(what: str, *, idempotency_key: str) -> str:
            world.sent["K"].append((what, idempotency_key))
            return what

        @effect(reconcile=world.lookup, compare=["what"])
        def looked_up(what: str, *, idempotency_key: str) -> str:
            world.sent["L"].append((what, idempotency_key))
            return what

        @effect
        def unasked(what: str, *, idempotency_key: str) -> str:
            world.sent["N"].append((what, idempotency_key))
            return what

        calls = {"K": keyed, "L": looked_up, "N": unasked}

        def make(number: int) -> Any:
            def node(state: State) -> State:
                return {"done": [calls[c](what=f"{c}{number}") for c in classes]}

            return node

        return [make(number) for number in range(STEPS)]

    def graph(self, classes: str, saver: SurefootSaver | None = None, *, stop: int = 0) -> Any:
        """The run; ``stop`` pauses it before that step."""
        builder = StateGraph(State)
        before = START
        for number, node in enumerate(self.nodes(classes)):
            builder.add_node(f"n{number}", node)
            builder.add_edge(before, f"n{number}")
            before = f"n{number}"
        builder.add_edge(before, END)
        return builder.compile(
            checkpointer=saver or self.saver, interrupt_before=[f"n{stop}"] if stop else None
        )

    def decide(
        self, thread: str, action: str, saver: SurefootSaver | None = None, **more: Any
    ) -> Any:
        """Proposes a decision, signs it and carries it out."""
        saver = saver or self.saver
        proposed = saver.propose(thread, action, reason="for the test", **more)
        return saver.resolve(self.operator.sign(proposed))


def at(thread: str) -> dict[str, Any]:
    """A config of a thread."""
    return {"configurable": {"thread_id": thread}}


def whole(classes: str) -> list[str]:
    """What a run that went through has done."""
    return [f"{c}{number}" for number in range(STEPS) for c in classes]


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """On SQLite and on PostgreSQL."""
    backend = make_backend(request.param, tmp_path)
    made = Place(backend)
    yield made
    backend.close()
