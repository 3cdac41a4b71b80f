"""Stores, graphs and receivers for effects: on SQLite, and some of it on PostgreSQL."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from tests.postgres import fresh_database

from surefoot import Keyring, ResumePolicy, Reviewers, SurefootSaver
from surefoot.langgraph import hooks

_numbers = itertools.count(1)


class State(TypedDict, total=False):
    """State of the graphs here."""

    n: int
    log: Annotated[list[Any], operator.add]


class Receiver:
    """What the world saw; safe for threads."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.keys: list[str] = []
        self._lock = threading.Lock()

    def send(self, what: Any, key: str | None = None) -> Any:
        """The effect itself."""
        with self._lock:
            self.sent.append(what)
            if key is not None:
                self.keys.append(key)
        return what

    @property
    def count(self) -> int:
        """How often something was sent."""
        return len(self.sent)


class GatedStore:
    """A content store whose appends can be watched and held."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.before: Callable[[Any], None] | None = None
        self.after: Callable[[Any], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append(self, append: Any) -> Any:
        """Appends, with the test's own steps around it."""
        if self.before is not None:
            self.before(append)
        key = self.inner.append(append)
        if self.after is not None:
            self.after(append)
        return key


class Bench:
    """Stores of one test, savers on them, and threads of its own."""

    def __init__(self, conn: str, highwater: str) -> None:
        self.conn, self.highwater = conn, highwater
        self.keys = Keyring.generate()
        self.tenant = f"tenant-{next(_numbers)}"
        self.world = Receiver()
        self._open = ExitStack()
        self._saver: SurefootSaver | None = None

    def open(self, *, reviewers: Reviewers | None = None, **policy: Any) -> SurefootSaver:
        """Another saver, as another process would open it."""
        settings = {"settling_ms": 0, **policy}
        saver = SurefootSaver(
            self.conn,
            highwater=self.highwater,
            keys=self.keys,
            tenant=self.tenant,
            policy=ResumePolicy(**settings),
            reviewers=reviewers,
        )
        self._open.callback(saver.close)
        saver.setup()
        return saver

    @property
    def saver(self) -> SurefootSaver:
        """The test's first saver."""
        if self._saver is None:
            self._saver = self.open()
        return self._saver

    def gate(self, saver: SurefootSaver | None = None) -> GatedStore:
        """Puts a gate before a saver's content store."""
        core = (saver or self.saver).core
        gate = GatedStore(core.ports.store)
        core.ports = dataclasses.replace(core.ports, store=gate)
        return gate

    def graph(self, *nodes: Callable[..., Any], saver: SurefootSaver | None = None, **more: Any):
        """Nodes one after the other."""
        builder = StateGraph(State)
        names = [START]
        for number, node in enumerate(nodes):
            name = f"n{number}"
            builder.add_node(name, node, **more)
            builder.add_edge(names[-1], name)
            names.append(name)
        builder.add_edge(names[-1], END)
        return builder.compile(checkpointer=saver or self.saver)

    def config(self, thread: str | None = None) -> dict[str, Any]:
        """A thread of its own."""
        return {"configurable": {"thread_id": thread or f"thread-{next(_numbers)}"}}

    def take_over(self, thread: str) -> None:
        """Another worker acquires the thread, as it may when the lease is over."""
        from surefoot.ports import Lease

        marks = self.saver.core.ports.marks
        held = marks.read(self.tenant, thread)
        taken = marks.acquire(
            self.tenant, thread, Lease("another worker", 60_000), over_epoch=held.epoch
        )
        if taken is None:
            raise RuntimeError("the takeover of the test did not happen")

    def close(self) -> None:
        """Closes all savers."""
        self._open.close()


@cache
def _databases() -> tuple[str, str]:
    return fresh_database(), fresh_database()


def _bench(kind: str, folder: Path) -> Bench:
    if kind == "postgres":
        return Bench(*_databases())
    return Bench(f"sqlite:///{folder}/a.db", f"sqlite:///{folder}/b.db")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On Python 3.10 an async node has no ambient config; one test says what to do there."""
    if sys.version_info >= (3, 11):
        return
    skip = pytest.mark.skip(reason="Python 3.10 gives async nodes no ambient config")
    for item in items:
        function = getattr(item, "function", None)
        called = getattr(item, "callspec", None)
        on_a_loop = inspect.iscoroutinefunction(function) or (
            called is not None and called.params.get("asynchronous") is True
        )
        if on_a_loop and item.path.parent == Path(__file__).parent and "config" not in item.name:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _own_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups are found by name in the whole process; each test is a process of its own."""
    monkeypatch.setattr(hooks, "_known", {})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """On SQLite."""
    made = _bench("sqlite", tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """On SQLite, and on PostgreSQL."""
    made = _bench(request.param, tmp_path)
    yield made
    made.close()
